"""DP-FedAvg against lemma 1 and algorithm 1 of its paper, the Gaussian mechanism's closed form, and opacus itself.

Source: McMahan et al. (ICLR 2018); Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy" (2018).
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from opacus.accountants import PRVAccountant, RDPAccountant
from opacus.accountants.utils import get_noise_multiplier
from scipy.optimize import brentq
from scipy.stats import norm

from edgesim.core.encoding import Encoding
from edgesim.core.errors import ConfigError
from edgesim.core.method import LocalState
from edgesim.core.rng import Key
from edgesim.core.task import Pass
from edgesim.core.view import Asked
from edgesim.engine.selection.rules import Poisson
from edgesim.learning.privacy import accountant
from edgesim.learning.privacy.accountant import epsilon_spent, noise_for
from edgesim.methods.dp_fedavg import DpFedAvg
from edgesim.runs.assembly import assemble
from edgesim.runs.cache_identity import facts_of
from tests.contracts.support import mixed_scenario, run
from tests.methods.hand_made import KEY, message_of, model_of, server_of, setting_of, view_of
from tests.sizes import full, spread

START = {"a": [1.0, 2.0], "b": [3.0]}
SIZES = {"a": 2, "b": 1}
OF_LIBRARY = {"rdp": RDPAccountant, "prv": PRVAccountant}


def setting(samples, **changes):
    return setting_of(samples, SIZES, **{"asked": Asked(0.5, True), **changes})


def merged(method, samples, updates, key=KEY, start=START, **changes):
    """Return the aggregate of a first round, and its parameters as one vector."""
    of = setting(samples, **changes)
    made = method.aggregate(method.init(of, KEY), model_of(start), updates, server_of(view_of(of)), key)
    return made, torch.cat([t.flatten() for t in made.model["params"].values()]).numpy()


@pytest.mark.parametrize("full_weight", [None, 20])
def test_as_the_paper_s_formula(full_weight):
    """Moves times min(1, S / norm), weighted by min(1, n / w-hat), over q W; devices that sent nothing add nothing."""
    samples, sent = [10, 20, 40, 5], {0: [[1.3, 2.4], [3.0]], 2: [[4.0, 2.0], [-1.0]], 3: [[1.0, 2.0], [3.0]]}
    weight = np.ones(4) if full_weight is None else np.array([0.5, 1.0, 1.0, 0.25])
    start, moved = np.array([1.0, 2.0, 3.0]), np.zeros(3)
    for device, (a, b) in sent.items():
        move = np.array([*a, *b]) - start  # norms 0.5, 5 and 0
        moved += weight[device] * move * min(1.0, 2.0 / max(np.linalg.norm(move), 1e-9))
    method = DpFedAvg(clip=2.0, noise_multiplier=0.0, full_weight=full_weight, clip_at="server")
    updates = [message_of(k, samples[k], {"a": a, "b": b}) for k, (a, b) in sent.items()]
    made, params = merged(method, samples, updates)
    assert params == pytest.approx(start + moved / (0.5 * weight.sum()), rel=1e-6)
    assert made.metrics == {"clipped": {0: 0.0, 2: 1.0, 3: 0.0}}  # without noise there is no epsilon


def test_noise_has_the_deviation_of_the_lemma():
    """z S / (q W) in every number, about 0, and another draw in another round."""
    layers = {"a": [0.0] * 20_000}
    method = DpFedAvg(clip=3.0, noise_multiplier=0.5, accountant="none")
    of = setting_of([1] * 8, {"a": 20_000}, asked=Asked(0.25, True))
    update = message_of(0, 1, layers)
    draws = [
        method.aggregate(method.init(of, KEY), model_of(layers), [update], server_of(view_of(of)), Key(seed))
        for seed in (1, 1, 2)
    ]
    noises = [made.model["params"]["a.weight"].double().numpy() for made in draws]
    deviation = 0.5 * 3.0 / (0.25 * 8)
    assert noises[0].std() == pytest.approx(deviation, rel=5 / np.sqrt(2 * 20_000))  # five standard errors
    assert abs(noises[0].mean()) < 5 * deviation / np.sqrt(20_000)
    assert (noises[0] == noises[1]).all()
    assert abs(np.corrcoef(noises[0], noises[2])[0, 1]) < 5 / np.sqrt(20_000)


def test_noise_does_not_depend_on_who_answers():
    """One device more moves the sum by at most S, which is all that the accountant is told."""
    method = DpFedAvg(clip=1.0, noise_multiplier=2.0, accountant="none", clip_at="server")
    updates = [message_of(k, 1, {"a": [10.0 * k, -7.0], "b": [0.0]}) for k in range(3)]
    with_all, without = (merged(method, [1, 1, 1], some)[1] for some in (updates, updates[:2]))
    assert 1.5 * np.linalg.norm(with_all - without) == pytest.approx(1.0, rel=1e-5)  # q W = 1.5


def test_late_updates_and_larger_weights_do_not_count():
    """A device may be asked anew while its late update is on the way: both together would move the sum by 2 S."""
    method = DpFedAvg(clip=100.0, noise_multiplier=0.0)
    update = message_of(0, 1, {"a": [2.0, 2.0], "b": [3.0]})
    late, heavy = update._replace(staleness=1), update._replace(weight=3.0)
    assert merged(method, [1, 1], [late])[1].tolist() == [1.0, 2.0, 3.0]
    assert merged(method, [1, 1], [heavy])[1].tolist() == [2.0, 2.0, 3.0]


def test_devices_clip_what_they_send():
    """The model that leaves a device is S from where it began; it is charged 5 FLOPs a number for that."""
    method, of = DpFedAvg(clip=2.0), setting([1])
    task = method.task(view_of(of))
    context = SimpleNamespace(global_model=model_of(START), copy=lambda model: model)
    trained = model_of({"a": [4.0, 2.0], "b": [-1.0]})
    sent = method.local(task).on_finish(LocalState(trained), context).body["params"]
    assert torch.cat([*sent.values()]).tolist() == pytest.approx([1 + 3 * 0.4, 2.0, 3 - 4 * 0.4])
    assert task.passes == (Pass(), Pass("flops", times=5 * 3))
    by_server = DpFedAvg(clip_at="server")
    assert by_server.local(by_server.task(view_of(of))).on_finish is None
    assert by_server.task(view_of(of)).passes == (Pass(),)
    assert (method.merge_flops(4, of), by_server.merge_flops(4, of)) == (2 * 3, (2 + 5 * 4) * 3)


def test_variances_stay_at_least_0():
    """Noise may make a running variance negative, of which no root can be taken."""
    method, of = DpFedAvg(noise_multiplier=50.0, accountant="none"), setting([1])
    names = ("n.running_var", "n.running_mean")
    start = {"params": {}, "buffers": {name: torch.ones(200) for name in names}}
    update = message_of(0, 1, {})._replace(body=start)
    made = method.aggregate(method.init(of, KEY), start, [update], server_of(view_of(of)), KEY)
    variances, means = (made.model["buffers"][name] for name in names)
    assert 50 < int((variances == 0).sum()) < 150
    assert float(variances.min()) == 0 > float(means.min())


@full
@pytest.mark.parametrize("name", spread(["rdp", "prv"], 1))
def test_epsilon_is_the_library_s(name):
    """After two rounds that somebody answered and one that nobody did, three releases, by the library's own steps."""
    method = DpFedAvg(noise_multiplier=1.3, delta=1e-4, accountant=name)
    of, start = setting([1, 1]), model_of(START)
    state, server = method.init(of, KEY), server_of(view_of(of))
    library, found = OF_LIBRARY[name](), []
    for updates in ([message_of(0, 1, START)], [], [message_of(1, 1, START)]):
        made = method.aggregate(state, start, updates, server, KEY)
        state = made.state
        library.step(noise_multiplier=1.3, sample_rate=0.5)
        found.append((made.metrics["epsilon"], library.get_epsilon(delta=1e-4)))
    assert [ours for ours, _ in found] == [theirs for _, theirs in found]
    assert found[0] < found[1] < found[2]


def test_without_sampling_it_is_the_gaussian_mechanism():
    """Ten releases of every device at z = 4 are one at 4 / sqrt(10): Balle and Wang, theorem 8, solved for epsilon."""
    z = 4 / np.sqrt(10)

    def delta(epsilon):
        near, far = 1 / (2 * z) - epsilon * z, -1 / (2 * z) - epsilon * z
        return norm.cdf(near) - np.exp(epsilon) * norm.cdf(far)

    exact = brentq(lambda epsilon: delta(epsilon) - 1e-5, 0.01, 50)
    assert exact <= epsilon_spent("prv", 4.0, 1.0, 10, 1e-5) <= exact + 0.02  # its error is 0.01
    assert exact <= epsilon_spent("rdp", 4.0, 1.0, 10, 1e-5) <= 1.1 * exact


@full
def test_a_budget_gives_the_noise():
    """epsilon = 8 at delta = 1e-5 in ten rounds: the library's noise multiplier, and what is spent in the end is 8."""
    method = DpFedAvg(epsilon=8.0, rounds=10)
    noise = method.init(setting([1, 1]), KEY)["noise"]
    assert noise == get_noise_multiplier(target_epsilon=8.0, target_delta=1e-5, sample_rate=0.5, steps=10)
    assert 7.99 <= epsilon_spent("rdp", noise, 0.5, 10, 1e-5) <= 8.0


@full
def test_the_tighter_accountant_needs_less_noise():
    """For the same budget, by several seconds of its search."""
    noise, tight = (noise_for(name, 8.0, 0.5, 10, 1e-5) for name in ("rdp", "prv"))
    assert tight < noise
    assert 7.98 <= epsilon_spent("prv", tight, 0.5, 10, 1e-5) <= 8.0


@full
def test_after_the_budget_s_rounds_the_model_stays():
    """The second round of a budget for one brings no new version, and spends nothing."""
    method, of = DpFedAvg(epsilon=8.0, rounds=1), setting([1, 1])
    server, update = server_of(view_of(of)), message_of(0, 1, {"a": [2.0, 2.0], "b": [3.0]})
    first = method.aggregate(method.init(of, KEY), model_of(START), [update], server, KEY)
    second = method.aggregate(first.state, first.model, [update], server, KEY)
    assert first.model is not None and second.model is None
    assert second.metrics["epsilon"] == first.metrics["epsilon"] <= 8.0


def test_a_run_reports_what_it_spends():
    """Every round a row, of all six devices in each; the last is the budget's."""
    frame = (
        run(mixed_scenario(method={"name": "dp_fedavg", "epsilon": 8.0, "rounds": 3}, stop={"rounds": 3}))
        .tables["metrics"]
        .frame()
    )
    spent = frame[frame["name"] == "epsilon"]
    assert spent["round"].tolist() == [0, 1, 2]
    assert spent["value"].is_monotonic_increasing
    assert 7.99 <= spent["value"].iloc[-1] <= 8.0


@pytest.mark.parametrize(
    ("method", "changes", "says"),
    [
        ({"epsilon": 1e-3, "rounds": 10}, {}, r"method\.epsilon: .* finds no noise for 0\.001 .*ask for more"),
        ({"epsilon": 0.1028, "rounds": 1}, {}, r"method\.epsilon: .* finds no noise for 0\.1028 "),
        ({"epsilon": 8.0}, {}, r"method\.epsilon: goes with method\.rounds"),
        ({"rounds": 10}, {}, r"method\.epsilon: goes with method\.rounds"),
        ({"epsilon": 8.0, "noise_multiplier": 1.0}, {}, r"method\.epsilon: gives the noise_multiplier"),
        ({"epsilon": 8.0, "accountant": "none"}, {}, r"method\.epsilon: needs an accountant.*found 'none'"),
        ({}, {"asked": None}, r"edges: this method .*leave edge servers out"),
        ({"accountant": "prv", "noise_multiplier": 0.01}, {}, r"method\.accountant: .*at least 0\.1, found 0\.01"),
        ({}, {"encoding_up": Encoding(values="int8")}, r"method\.clip_at: must be 'server'.*int8 up, float32 down"),
    ],
)  # fmt: skip
def test_what_gives_no_guarantee_is_refused(method, changes, says):
    """In one line that says what to do."""
    with pytest.raises(ConfigError, match=says):
        DpFedAvg(**method).init(setting([1], **changes), KEY)


def test_without_the_library_it_says_what_to_install(monkeypatch):
    """And works where nothing is to be accounted for."""
    monkeypatch.setattr(accountant, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r'method\.accountant: opacus is not installed; pip install "edgesim\[privacy\]"'
    ):
        DpFedAvg().init(setting([1]), KEY)
    assert DpFedAvg(noise_multiplier=0.0).init(setting([1]), KEY)["noise"] == 0
    assert DpFedAvg(accountant="none").init(setting([1]), KEY)["noise"] == 1.0


@pytest.mark.parametrize(
    ("selection", "asked"),
    [
        ("all", (1.0, True)),
        ({"name": "uniform", "count": 2}, (1 / 3, True)),
        ({"name": "poisson", "rate": 0.5}, (0.5 + 0.5**6 / 6, True)),
        ({"name": "stratified", "count": 3}, (0.5, False)),
        ({"name": "oort", "count": 2}, (1 / 3, False)),
    ],
)
def test_what_selections_are_reckoned_with(selection, asked):
    """Who asks by level or loss has no one probability: each of the six devices is taken to be in every round."""
    scenario = mixed_scenario(method="dp_fedavg", selection=selection)
    found = assemble(scenario).setting
    assert found.asked == pytest.approx(asked)
    state = DpFedAvg().init(found, KEY)
    assert (state["share"], state["rate"]) == pytest.approx((asked[0], asked[0] if asked[1] else 1.0))


def test_poisson_draws_are_independent():
    """How many of 40 are asked has a binomial's mean and variance, of every device equally often."""
    rule, everybody, rounds = Poisson(rate=0.3), np.arange(40), 2000
    draws = np.zeros((rounds, 40))
    for seed in range(rounds):
        draws[seed, rule.choose(everybody, np.ones(40), Key(seed))] = 1
    counts = draws.sum(1)
    assert counts.mean() == pytest.approx(12, abs=5 * np.sqrt(8.4 / rounds))
    assert counts.var() == pytest.approx(8.4, rel=5 * np.sqrt(2 / rounds))
    assert abs(draws.mean(0) - 0.3).max() < 5 * np.sqrt(0.21 / rounds)


def test_a_poisson_round_asks_somebody():
    """With three devices and rate 0.1 each is asked with 0.1 + 0.9^3 / 3, as an empty draw asks one of them."""
    rule, everybody = Poisson(rate=0.1), np.arange(3)
    draws = [rule.choose(everybody, np.ones(3), Key(seed)).tolist() for seed in range(3000)]
    assert min(map(len, draws)) == 1
    assert rule.asked_share(3) == pytest.approx(0.1 + 0.9**3 / 3)
    share = np.mean([0 in draw for draw in draws])
    assert share == pytest.approx(rule.asked_share(3), abs=5 * np.sqrt(0.25 / 3000))


def test_the_probability_is_part_of_what_a_run_depends_on():
    """With another probability there is other noise: answers of one run are not another's."""

    def facts(method, **changes):
        parts = assemble(mixed_scenario(method=method))
        return facts_of(replace(parts, setting=replace(parts.setting, **changes)))

    assert (
        len(
            {facts("dp_fedavg", **change) for change in ({}, {"asked": Asked(0.5, True)}, {"asked": Asked(1.0, False)})}
        )
        == 3
    )
    assert (
        len({facts("fedavg", **change) for change in ({}, {"asked": Asked(0.5, True)}, {"asked": Asked(1.0, False)})})
        == 1
    )


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "dp_fedavg": {
        "clip": "test_as_the_paper_s_formula",
        "noise_multiplier": "test_noise_has_the_deviation_of_the_lemma",
        "epsilon": "test_a_budget_gives_the_noise",
        "rounds": "test_after_the_budget_s_rounds_the_model_stays",
        "delta": "test_epsilon_is_the_library_s",
        "accountant": "test_epsilon_is_the_library_s",
        "full_weight": "test_as_the_paper_s_formula",
        "clip_at": "test_devices_clip_what_they_send",
    },
}
