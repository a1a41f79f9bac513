"""FedAD against numbers on paper, and in runs whose jobs become smaller.

Source: "Efficient Federated Learning with Heterogeneous Data and Adaptive Dropout", arXiv 2507.10430. The formulas are
tested in tests/methods/test_unit_rates.py, test_unit_ranks.py and test_spectrum.py.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from edgesim.core.errors import ConfigError
from edgesim.core.price_list import ChannelGroup, CostProfile, LayerCost
from edgesim.core.task import Submodel, Task
from edgesim.core.update import Update
from edgesim.learning.submodel.slicing import extract, thinner
from edgesim.methods.fedad import FedAD
from tests.conftest import digits_scenario, frames, simulate_null
from tests.contracts.support import (
    MODELS,
    NORMED,
    fingerprint,
    merge_arguments,
    mixed_scenario,
    prepare,
    results_of,
    run,
)
from tests.contracts.test_prices import measured_jobs
from tests.methods.hand_made import KEY, server_of, setting_of, view_of
from tests.methods.recorded import close_to, record
from tests.sizes import full

NOBODY: frozenset[str] = frozenset()
# two layers: four channels and six neurons, a number each
LAYERS = (
    LayerCost("c", "Conv2d", 4, 0, 18.0, 18.0, 18.0, NOBODY, 4, "c"),
    LayerCost("a", "Linear", 6, 0, 6.0, 6.0, 6.0, frozenset({"c"}), 6, "a"),
)
CARD = CostProfile("by hand", (1,), 2, LAYERS, groups=(ChannelGroup("c", 4), ChannelGroup("a", 6)))
SAMPLES = np.array([100, 300, 200])
TAKES_S = np.array([10.0, 20.0, 40.0])
RANKS = {"c": np.array([3.0, 1.0, 2.0, 4.0]), "a": np.array([2.0, 4.0, 4.0, 4.0, 4.0, 4.0])}
RATIOS = (0.9, 0.95, 0.8)


def setting(samples=SAMPLES):
    """Return a setting of three devices that take 10, 20 and 40 s for the whole model, all of it to compute."""
    speeds = samples * CARD.train_flops() / TAKES_S
    free = np.full(3, math.inf)
    return replace(setting_of(samples, {}), cost_profile=CARD, flops_per_s=speeds, up_bps=free, down_bps=free)


def ranks_from(device, ranks, deficiency=0.7):
    """Return what a device tells of the units."""
    statistics = {"importance": ranks, "deficiency": deficiency}
    return Update(device, device, Task("ranks"), {}, int(SAMPLES[device]), 0, 0, statistics)


def heard(method, *checks, ratios=RATIOS, first=5):
    """Return the state after checks, five rounds apart, in each of which all devices tell the same ranks."""
    state, place = method.init(setting(), KEY), setting()
    for number, ranks in enumerate(checks):
        view = view_of(place, first + 5 * number)
        state = method.on_exchange(state, [ranks_from(k, ranks) for k in range(3)], view, KEY)
        if state["due"]:
            told = [Update(k, k, Task("curvature"), {}, 1, 0, 0, {"ratio": r}) for k, r in enumerate(ratios)]
            state = method.on_exchange(state, told, view, KEY)
    return state


SOON = {"force_first_at": 5}


@pytest.mark.parametrize(
    ("convention", "ratios", "longest_s", "drop"),
    [
        ("keep", RATIOS, 17.833333, [0, 0.108333, 0.554167]),
        ("literal", (0.1, 0.05, 0.2), 2.166667, [0.216667, 0.108333, 0.054167]),
    ],
)
def test_rates_of_three_devices(convention, ratios, longest_s, drop):
    """rho 0.9, 0.95 and 0.8 are 0.891667 on average, the second device has the most data; or all of it is dropped."""
    state = heard(FedAD(rate_convention=convention, **SOON), RANKS, ratios=ratios)
    assert state["said"]["et_max_s"] == pytest.approx(longest_s, abs=1e-6)
    assert state["drop"].tolist() == pytest.approx(drop, abs=1e-6)
    assert state["said"]["rho"] == dict(enumerate(ratios))


def test_bounds_of_shares():
    """rho of 0.1 counts as 0.5: 10, 20 and 40 s in 10 s. The slowest keeps at least 0.4 where it would keep 0.25."""
    few = heard(FedAD(**SOON), RANKS, ratios=(0.1, 0.1, 0.1))
    assert few["drop"].tolist() == pytest.approx([0, 0.5, 0.75])
    assert heard(FedAD(keep_min=0.4, **SOON), RANKS, ratios=(0.1,) * 3)["drop"][2] == pytest.approx(0.6)
    free = heard(FedAD(ratio_min=0.1, keep_min=0.01, **SOON), RANKS, ratios=(0.1,) * 3)
    assert free["drop"].tolist() == pytest.approx([0.8, 0.9, 0.95])


def test_exact_shares_take_the_time():
    """The largest thousandths of four channels and six neurons that take no more than 17.83 of 20 and of 40 s."""
    state, place = heard(FedAD(time_map="exact", **SOON), RANKS), setting()

    def seconds(device, share):
        counts = [max(1, round(share * size)) for size in (4, 6)]
        submodel = Submodel(channels=tuple((name, tuple(range(n))) for name, n in zip("ca", counts, strict=True)))
        return SAMPLES[device] * CARD.train_flops(submodel) / place.flops_per_s[device]

    assert state["drop"][0] == 0
    for device in (1, 2):
        keep = 1 - state["drop"][device]
        assert seconds(device, keep) <= state["said"]["et_max_s"] < seconds(device, keep + 0.001)


def test_importances_are_means_by_data_size_over_the_layers_largest():
    """100, 300 and 200 samples; the third device's are not numbers and count as if they had not come."""
    place, method = setting(), FedAD(check_every=1)
    told = [
        ranks_from(0, RANKS),
        ranks_from(1, {**RANKS, "c": np.ones(4)}),
        ranks_from(2, {**RANKS, "c": np.full(4, np.nan)}),
    ]
    state = method.on_exchange(method.init(place, KEY), told, view_of(place, 1), KEY)
    channels = (100 * RANKS["c"] + 300) / 400
    assert state["heard"].tolist() == pytest.approx([*(channels / channels.max()), 0.5, 1, 1, 1, 1, 1])
    raw = FedAD(check_every=1, rank_norm="none")
    state = raw.on_exchange(raw.init(place, KEY), told, view_of(place, 1), KEY)
    assert state["heard"].tolist() == pytest.approx([*channels, 2, 4, 4, 4, 4, 4])
    assert (
        method.aggregate(state, {"params": {}, "buffers": {}}, told, server_of(view_of(place, 1)), KEY).metrics[
            "left_out"
        ]
        == 1
    )


def test_delta_is_a_distance():
    """|(3, 1, 2, 4) - (2.5, 1.5, 2, 3)| = 1.224745; rates stay until the trigger says otherwise."""
    method = FedAD(rank_norm="none", force_first_at=100)
    state = heard(method, RANKS, {**RANKS, "c": np.array([2.5, 1.5, 2, 3])})
    assert state["said"] == {"fired": 0.0, "delta": pytest.approx(1.224745, abs=1e-6)}
    assert not state["drop"].any()


def test_rates_are_renewed_whenever_importances_move_less():
    """Forced in round 5; moved by 1 in round 10, by 2 in 15, by 1 in 20: only then rates follow the new importances."""
    method = FedAD(rank_norm="none", **SOON)
    checks = [{**RANKS, "a": RANKS["a"] + shift} for shift in np.array([0, 1, 3, 4]) / math.sqrt(6)]
    at = [heard(method, *checks[: n + 1]) for n in range(4)]
    assert [state["said"]["fired"] for state in at] == [1, 0, 0, 1]
    assert [float(state["importance"][4] - 2) * math.sqrt(6) for state in at] == pytest.approx([0, 0, 0, 4])


# --- parts ------------------------------------------------------------------------------------------------------


def submodels(method, state, round_=6):
    """Return the task of each device in a round without a check."""
    orders = method.plan(state, view_of(setting(), round_), KEY.at(round_)).orders
    return {order.device: order.task for order in orders}


def test_units_and_multipliers_of_a_device():
    """Device 0 trains everything. Of others a channel c is left out with 4 d e^-r / sum e^-r, neurons likewise.

    What is kept is multiplied by 1 / (1 - p), which travels down in 4 bytes a unit.
    """
    state = heard(FedAD(**SOON), RANKS)
    tasks = submodels(FedAD(**SOON), state)
    assert tasks[0].submodel == Submodel()
    weights = {"c": np.exp(-RANKS["c"] / 4), "a": np.exp(-RANKS["a"] / 4)}
    p = {name: len(w) * 0.108333333 * w / w.sum() for name, w in weights.items()}
    for name, kept in tasks[1].submodel.channels:
        assert dict(tasks[1].submodel.scale)[name] == pytest.approx((1 / (1 - p[name][list(kept)])).tolist(), abs=1e-6)
    kept = sum(len(channels) for _, channels in tasks[1].submodel.channels)
    assert CARD.nbytes(tasks[1].down, tasks[1].submodel) == 4 * CARD.submodel_params(tasks[1].submodel) + 4 * kept
    assert CARD.nbytes(tasks[1].up, tasks[1].submodel) == 4 * CARD.submodel_params(tasks[1].submodel)


def test_multipliers_can_be_left_out():
    """The same units without multipliers, and without the bytes of these."""
    state = heard(FedAD(**SOON), RANKS)
    scaled, plain = (submodels(FedAD(rescale=rescale, **SOON), state)[1] for rescale in (True, False))
    assert plain.submodel.channels == scaled.submodel.channels != ()
    assert scaled.submodel.scale != () == plain.submodel.scale
    assert CARD.nbytes(plain.down, plain.submodel) == 4 * CARD.submodel_params(plain.submodel)


def test_no_unit_is_left_out_more_often_than_the_cap():
    """Ranks of 0 and 40: without a cap the first channel would be left out with 2.2; at 0.6 its multiplier is 2.5."""
    state = heard(FedAD(rank_norm="none", drop_cap=0.6, **SOON), {**RANKS, "c": np.array([0.0, 40.0, 40.0, 40.0])})
    scales = {
        scale
        for round_ in range(6, 30)
        if round_ % 5
        for name, scales in submodels(FedAD(rank_norm="none", drop_cap=0.6, **SOON), state, round_)[2].submodel.scale
        if name == "c"
        for scale in scales
    }
    assert max(scales) == pytest.approx(2.5)


def test_exact_numbers_of_units():
    """0.445833 of 4 channels and of 6 neurons, 1.8 and 2.7, are 2 and 3 every time; else by chance."""
    state = heard(FedAD(**SOON), RANKS)
    rounds = [round_ for round_ in range(6, 40) if round_ % 5]

    def counts(method):
        return {
            tuple(len(channels) for _, channels in submodels(method, state, r)[2].submodel.channels) for r in rounds
        }

    assert counts(FedAD(exact_k=True, **SOON)) == {(2, 3)}
    assert len(counts(FedAD(**SOON))) > 3


def test_every_weight_is_averaged_over_who_kept_it():
    """Three units with 0.2, 0.3 and 0.5: the third was kept by nobody; or who lacks a unit counts with (0, 0, 10)."""
    cost_profile = CostProfile(
        "u", (1,), 2, (LayerCost("u", "Linear", 3, 0, 2.0, 2.0, 2.0, NOBODY, 3, "u"),), groups=(ChannelGroup("u", 3),)
    )
    place = replace(setting_of((2, 3, 5), {}), cost_profile=cost_profile)
    held = {0: ((0, 1), [1.0, 2.0]), 1: ((0,), [4.0]), 2: ((0, 1), [7.0, 8.0])}
    got = [
        Update(
            k, k, Task(submodel=Submodel(channels=(("u", channels),)), local_sgd=(place.training.local_sgd(0),)),
            {"params": {"u.weight": torch.tensor(values)}, "buffers": {}}, int(place.samples[k]), 1, 0, {},
        )
        for k, (channels, values) in held.items()
    ]  # fmt: skip
    base = {"params": {"u.weight": torch.tensor([0.0, 0.0, 10.0])}, "buffers": {}}
    for absent, expected in (("average_over_holders", [4.9, 6.285714, 10.0]), ("include_absent", [4.9, 4.4, 10.0])):
        method = FedAD(absent=absent)
        merged = method.aggregate(method.init(place, KEY), base, got, server_of(view_of(place)), KEY)
        assert merged.model["params"]["u.weight"].tolist() == pytest.approx(expected, abs=1e-6)


# --- runs -------------------------------------------------------------------------------------------------------

QUICK = {"name": "fedad", "check_every": 2, "force_first_at": 2, "probe_samples": 10, "hessian_samples": 10}
# the first device has as much data as any, and is fast: the others are to take no longer
FLEET = [
    {"count": 2, "level": 1, "cpu": {"flops_per_s": "100 MFLOP/s"}},
    {"count": 2, "level": 2, "cpu": {"flops_per_s": "40 MFLOP/s"}},
]


def digits(rounds=4, **changes):
    """Return a scenario of two fast and two slow devices, and FedAD with its first update in round 2."""
    method = {**QUICK, **changes.pop("method", {})}
    return mixed_scenario(
        **{"selection": "all", "fleet": FLEET, "stop": {"rounds": rounds}, **changes, "method": method}
    )


def noted(simulation, name):
    """Return a note's values, a list a round that has it."""
    metrics = frames(simulation)["metrics"]
    return {r: rows["value"].tolist() for r, rows in metrics[metrics["name"] == name].groupby("round")}


def test_jobs_become_smaller_and_the_tables_show_it():
    """From round 2 on slow devices compute, send and get less, and the notes say why; fast ones stay whole."""
    simulation = run(digits())
    jobs = frames(simulation)["jobs"]
    assert jobs.groupby(["round", "task"]).size().to_dict() == {
        (0, "train"): 4, (1, "train"): 4, (2, "ranks"): 4, (2, "curvature"): 4, (2, "train"): 4, (3, "train"): 4
    }  # fmt: skip
    train = jobs[jobs["task"] == "train"].set_index(["round", "device"])
    for device in (2, 3):
        for column in ("flops", "up_bytes"):
            assert train[column][3, device] < 0.9 * train[column][0, device]
            assert train[column][2, device] < 0.9 * train[column][0, device]
        assert train["down_bytes"][3, device] < train["down_bytes"][0, device]
        assert train["down_bytes"][2, device] <= math.ceil(48 / 8) + 4 * 48  # a mask and multipliers
    assert train["flops"][3, 0] <= train["flops"][0, 0]
    drop = noted(simulation, "drop")
    assert drop[0] == drop[1] == [0, 0, 0, 0]
    assert min(drop[2][2:]) > 0.2 and drop[2] == drop[3]
    rho = noted(simulation, "rho")[2]
    seconds = [train[["down_s", "compute_s", "up_s"]].sum(axis=1)[0, device] for device in range(4)]
    assert noted(simulation, "et_max_s")[2] == pytest.approx([np.mean(rho) * seconds[0]])
    assert drop[2] == pytest.approx([1 - min(1, np.mean(rho) * seconds[0] / s) for s in seconds], abs=1e-9)
    assert noted(simulation, "fired") == {2: [1.0]}


def test_a_timing_only_run_trains_the_whole_model():
    """Every other round, but not the first, starts with ranks; 4 bytes a unit and one for the ratio go up.

    The model, which is down already, does not travel again.
    """
    simulation = simulate_null(digits(rounds=5))
    jobs, parameters = frames(simulation)["jobs"], simulation.parts.setting.cost_profile.params
    asked = jobs.groupby(["round", "task"]).size().unstack(fill_value=0)
    assert asked["ranks"].tolist() == [0, 0, 4, 0, 4]
    assert asked["train"].tolist() == [4] * 5
    ranks, train = jobs[jobs["task"] == "ranks"], jobs[jobs["task"] == "train"]
    assert set(ranks["up_bytes"]) == {4 * (16 + 32 + 1)}
    assert set(ranks["down_bytes"]) == set(train["up_bytes"]) == {4 * parameters}
    assert train.groupby("round")["down_bytes"].first().tolist() == [
        4 * parameters,
        4 * parameters,
        0,
        4 * parameters,
        0,
    ]
    assert set(frames(simulate_null(digits(method={"check_every": 9})))["jobs"]["task"]) == {"train"}


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        *(pytest.param(model, {}, marks=full) for model in MODELS),
        pytest.param("tests.plugins.own_networks:Volume", {}, marks=full),
        pytest.param("tests.plugins.own_networks:Sequence", {}, marks=full),
        (MODELS[0], {"hessian_of": "linear", "lanczos_starts": 2, "lanczos_steps": 4, "probe_samples": 3}),
        pytest.param(NORMED, {"rate_source": "dense", "hessian_samples": 3}, marks=full),
        (MODELS[0], {"rate_source": "fixed", "fixed_ratio": 0.5, "exact_k": True}),
    ],
)
def test_charged_is_what_was_done(model, changes, monkeypatch):
    """FLOPs by PyTorch's counter, decompositions and vectors by formula; bytes of the tensors sent and 4 a number."""
    jobs = measured_jobs(digits(model=model, method=changes), monkeypatch)
    assert (jobs["flops"] == jobs["real_flops"]).all()
    assert (jobs["up_bytes"] == jobs["real_bytes"] + jobs["extra_bytes"]).all()
    assert set(jobs["task"]) == {"ranks", "train"} | ({"curvature"} if "rate_source" not in changes else set()) | (
        {"curvature"} if changes.get("rate_source") == "dense" else set()
    )
    assert jobs.groupby(["task", "round"])["flops"].first()["train", 0] == jobs[jobs["task"] == "train"]["flops"].max()
    assert jobs[jobs["task"] == "train"]["flops"].nunique() > 1


@full
def test_where_ratios_come_from():
    """A constant; the mean of rank over side of all channels, which NumPy finds as well; and no exchange for either."""
    constant = run(digits(method={"rate_source": "fixed", "fixed_ratio": 0.9}))
    assert noted(constant, "rho") == {2: [0.9] * 4}
    lacking = run(digits(method={"rate_source": "rank_deficiency", "ratio_min": 0.0}))
    assert set(frames(lacking)["jobs"]["task"]) == {"ranks", "train"}
    assert all(0 < rho < 1 for rho in noted(lacking, "rho")[2])
    assert noted(lacking, "fallback") == {}


@full
def test_multipliers_folded_into_weights(monkeypatch):
    """A turn by hand on the thin network: weights that read a unit times its multiplier, plain SGD, and divided again.

    Multipliers are those of a run that does not fold, whose first thinned round has the same units, FLOPs and bytes.
    """
    seen = record(monkeypatch)
    scaled, folded = (frames(run(digits(rounds=3, method={"fold": fold})))["jobs"] for fold in (False, True))
    for column in ("flops", "up_bytes", "down_bytes"):
        assert scaled[column].tolist() == folded[column].tolist()
    thin = [job for job in seen if job.assignment.task.submodel.channels]
    assert len(thin) % 2 == 0 and len(thin) >= 4
    half = len(thin) // 2
    for plain, job in zip(thin[:half], thin[half:], strict=True):
        submodel, scales = job.assignment.task.submodel, dict(plain.assignment.task.submodel.scale)
        assert submodel == replace(plain.assignment.task.submodel, scale=()) and max(map(max, scales.values())) > 1
        cost_profile = job.trainer.cost_profile
        base = extract(job.assignment.global_model, submodel, cost_profile)["params"]
        readers = {layer.name: scales[layer.columns] for layer in cost_profile.layers if layer.columns in scales}
        factors = {f"{name}.weight": _columns(s, base[f"{name}.weight"]) for name, s in readers.items()}
        network = thinner(job.trainer.module, submodel, cost_profile).train()
        for name, parameter in network.named_parameters():
            parameter.data = (base[name] * factors.get(name, 1.0)).requires_grad_()
        optimizer = torch.optim.SGD(network.parameters(), lr=job.assignment.task.local_sgd[0].lr)
        for x, y in job.batches():
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(network(x), y).backward()
            optimizer.step()
        expected = {name: p.detach() / factors.get(name, 1.0) for name, p in network.named_parameters()}
        close_to(dict(job.result.body["params"]), expected)
        assert any(not torch.allclose(t, plain.result.body["params"][n], atol=1e-4) for n, t in expected.items())


def _columns(scale, weight):
    """Return the multiplier of each column of a weight that reads so many units, the same number of columns each."""
    each = torch.tensor(scale).repeat_interleave(weight.shape[1] // len(scale))
    return each.view(1, -1, *(1,) * (weight.dim() - 2))


@pytest.mark.parametrize(("fallback", "least", "most"), [("fixed", 0.8, 0.8), ("rank_deficiency", 0.0, 0.79)])
def test_a_poor_spectrum_is_replaced_and_the_notes_say_so(fallback, least, most):
    """Two steps cannot find the largest eigenvalue to a millionth; with a residual of 10 they are good enough."""
    changes = {"lanczos_steps": 2, "fallback": fallback, "fixed_ratio": 0.8, "ratio_min": 0.0}
    poor = run(digits(rounds=3, method={**changes, "residual": 1e-6}))
    assert noted(poor, "fallback") == {2: [1.0] * 4}
    assert all(least <= rho <= most for rho in noted(poor, "rho")[2])
    assert noted(run(digits(rounds=3, method={**changes, "residual": 10.0})), "fallback") == {2: [0.0] * 4}


@full
def test_more_starts_and_larger_zeros_change_the_ratio_only():
    """Other random vectors, or a higher bar for what counts as zero, give other ratios; the trigger sees none of that.

    After steps so short that no activation changes its sign, as otherwise B is too steep for any gap.
    """
    near = {"rounds": 3, "training": {"lr": 0.0001}}
    runs = [run(digits(method={**m, "ratio_min": 0.0}, **near)) for m in ({}, {"lanczos_starts": 3}, {"zero": 0.05})]
    assert len({fingerprint(simulation.learner.state["heard"]) for simulation in runs}) == 1
    ratios = [noted(simulation, "rho")[2] for simulation in runs]
    assert all(0 < rho < 1 for of_run in ratios for rho in of_run)
    assert len({tuple(of_run) for of_run in ratios}) == 3
    assert [noted(simulation, "gap")[2] for simulation in runs] == [[1.0] * 4] * 3


@full
def test_a_spectrum_without_a_gap_is_noted():
    """After a first round of usual length B is too steep for any gap: everything is kept."""
    usual = run(digits(rounds=3))
    assert noted(usual, "gap") == {2: [0.0] * 4}
    assert noted(usual, "fallback") == {2: [0.0] * 4}
    assert noted(usual, "rho") == {2: [1.0] * 4}


def test_who_does_not_answer_is_not_asked_again():
    """Half of the jobs crash; whoever told its ranks is asked for the next thing, and whoever told that trains."""
    jobs = frames(run(digits(rounds=9, method={"patience": 0}, failures={"name": "crash", "probability": 0.5})))["jobs"]
    ok = {at: set(rows["device"][rows["outcome"] == "ok"]) for at, rows in jobs.groupby(["round", "task"])}
    asked = {at: set(rows["device"]) for at, rows in jobs.groupby(["round", "task"])}
    crashed = 0
    for round_ in (2, 4, 6, 8):
        answered = ok[round_, "ranks"]
        crashed += 4 - len(answered)
        for task in ("curvature", "train"):
            if answered and ((round_, task) in asked or task == "train"):
                assert asked[round_, task] == answered
                answered = ok[round_, task]
    assert crashed > 0


def test_a_deadline_is_refused():
    """Waiting for ranks would use it up."""
    with pytest.raises(ConfigError, match=r"protocol\.name: fedad runs on sync, found deadline"):
        prepare(digits(protocol={"name": "deadline", "deadline": "1 h"}))


@full
@pytest.mark.workers
def test_workers_agree_with_serial():
    """The first model, by which rho is found, is the same in every process."""
    outcomes = []
    for backend in ("serial", {"name": "workers", "workers": 2}):
        simulation = run(digits(model=NORMED, backend=backend))
        simulation.learner.backend.close()
        outcomes.append(results_of(simulation))
    assert outcomes[0] == outcomes[1]


def test_a_round_of_nobody_leaves_everything():
    """Where nothing arrived the model stays, and what was heard is forgotten with the round."""
    simulation = prepare(digits())
    state, base, _, server, key = merge_arguments(simulation)
    merged = simulation.learner.method.aggregate({**state, "said": {"fired": 1.0}, "due": True}, base, [], server, key)
    assert (merged.model, merged.state["due"], merged.state["said"]) == (None, False, {})
    assert merged.metrics == {"fired": 1.0, "drop": {}}


# --- settings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"check_every": 0},
        {"patience": -1},
        {"gain": 1},
        {"force_first_at": -1},
        {"probe_samples": 0},
        {"neuron_weight": "square"},
        {"rank_norm": "sum"},
        {"rate_convention": "drop"},
        {"rate_source": "guess"},
        {"fallback": "lanczos"},
        {"fixed_ratio": 0},
        {"hessian_samples": 0},
        {"hessian_of": "conv"},
        {"lanczos_steps": 1},
        {"lanczos_starts": 0},
        {"residual": 0},
        {"zero": 1},
        {"ratio_min": 1.1},
        {"keep_min": 0},
        {"time_map": "square"},
        {"drop_cap": 1},
        {"exact_k": "perhaps"},
        {"rescale": 2},
        {"fold": 2},
        {"channels": "outer"},
        {"absent": "zero"},
    ],
)
def test_settings_out_of_range(wrong):
    """Each key is named."""
    (key,) = wrong
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        digits_scenario(method={"name": "fedad", **wrong})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "mlr"}, r"model\.name: mlr has no unit that method\.channels 'inner' could leave out"),
        (
            {"method": {"name": "fedad", "rate_source": "dense"}},
            r"method\.rate_source: .* 1 to 2000 parameters; cnn_digits has 6090",
        ),
        (
            {"method": {"name": "fedad", "time_map": "exact", "rate_convention": "literal"}},
            r"method\.time_map: 'exact' is for method\.rate_convention 'keep', found 'literal'",
        ),
        (
            {"method": {"name": "fedad", "fold": True, "rescale": False}},
            r"method\.fold: puts multipliers into weights, and method\.rescale is false",
        ),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    """A model without hidden units, a Hessian too large to be written down, two keys that contradict each other."""
    with pytest.raises(ConfigError, match=message):
        prepare(digits_scenario(**{"method": "fedad", **changes}))


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "fedad": {
        "absent": "test_every_weight_is_averaged_over_who_kept_it",
        "check_every": "test_a_timing_only_run_trains_the_whole_model",
        "patience": "test_unit_rates.py::test_patience_and_the_latest_round",
        "gain": "test_unit_rates.py::test_a_gain_below_the_least_is_none",
        "force_first_at": "test_unit_rates.py::test_patience_and_the_latest_round",
        "probe_samples": "test_unit_ranks.py::test_ranks_of_maps_after_relu",
        "neuron_weight": "test_unit_ranks.py::test_weights_of_neurons",
        "rank_norm": "test_unit_rates.py::test_importances_of_a_layer_are_over_its_largest",
        "rate_convention": "test_rates_of_three_devices",
        "rate_source": "test_where_ratios_come_from",
        "fallback": "test_a_poor_spectrum_is_replaced_and_the_notes_say_so",
        "fixed_ratio": "test_where_ratios_come_from",
        "hessian_samples": "test_charged_is_what_was_done",
        "hessian_of": "test_unit_ranks.py::test_curvature_of_a_network",
        "lanczos_steps": "test_a_poor_spectrum_is_replaced_and_the_notes_say_so",
        "lanczos_starts": "test_more_starts_and_larger_zeros_change_the_ratio_only",
        "residual": "test_a_poor_spectrum_is_replaced_and_the_notes_say_so",
        "zero": "test_more_starts_and_larger_zeros_change_the_ratio_only",
        "ratio_min": "test_bounds_of_shares",
        "keep_min": "test_bounds_of_shares",
        "time_map": "test_exact_shares_take_the_time",
        "drop_cap": "test_no_unit_is_left_out_more_often_than_the_cap",
        "rescale": "test_multipliers_can_be_left_out",
        "fold": "test_multipliers_folded_into_weights",
        "exact_k": "test_exact_numbers_of_units",
        "channels": "test_fjord.py::test_units_of_several_layers",
    },
}
