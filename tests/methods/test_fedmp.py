"""FedMP's bandit and rewards on paper, its networks and completed models against networks cut by hand.

Source: Jiang et al. (2022); the discounted bound of Garivier and Moulines (2008).
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from edgesim.core.errors import ConfigError
from edgesim.core.price_list import ChannelGroup, CostProfile, LayerCost
from edgesim.core.rng import Key
from edgesim.core.task import Task
from edgesim.core.workload import expected_s
from edgesim.methods.fedmp import Bandit, FedMP, order_of
from edgesim.runs.assembly import assemble
from tests.conftest import digits_scenario, frames
from tests.contracts.support import Spy, fingerprint, mixed_scenario, prepare, run
from tests.contracts.test_prices import measured_jobs
from tests.methods.hand_made import message_of
from tests.methods.recorded import close_to, record

BANDIT = Bandit(most=0.9, discount=1.0, resolution=0.05)
UNITS = 16 + 32  # of the digits' CNN, all of which may go but the outputs


# --- the bandit -------------------------------------------------------------------------------------------------


def test_bounds_on_paper():
    """Parts [0, 0.2), [0.2, 0.6) with rewards 1 and 2, [0.6, 0.9) with 3: n = 3, and 3 is the largest reward."""
    pulls, cuts = [[0.2, 1.0, 1], [0.6, 3.0, 2], [0.3, 2.0, 3]], [0.2, 0.6]
    ln3 = math.log(3)
    expected = [math.inf, 1.5 + 3 * math.sqrt(2 * ln3 / 2), 3 + 3 * math.sqrt(2 * ln3 / 1)]
    assert BANDIT.bounds(pulls, cuts, 4) == pytest.approx(expected)
    assert BANDIT.ratio({"pulls": pulls, "cuts": cuts}, 4, 0.25) == pytest.approx(0.05)  # who was never tried is first
    assert BANDIT.ratio({"pulls": [[0.1, 0.0, 0], *pulls], "cuts": cuts}, 4, 0.5) == pytest.approx(0.75)


def test_old_rewards_count_less():
    """A half a round: pulls of rounds 1, 2 and 3 count 1/8, 1/4 and 1/2 in round 4, in all less than one: ln n is 0."""
    pulls, cuts = [[0.2, 1.0, 1], [0.6, 3.0, 2], [0.3, 2.0, 3]], [0.2, 0.6]
    found = BANDIT._replace(discount=0.5).bounds(pulls, cuts, 4)
    assert found == pytest.approx([math.inf, (1 / 8 * 1 + 1 / 2 * 2) / (5 / 8), 3.0])


def test_parts_are_cut_where_a_ratio_was_tried():
    """Until they are no wider than the resolution; a ratio that is a cut already cuts nothing."""
    arm = BANDIT.pulled({"pulls": [], "cuts": []}, 0.4, 1.0, 2)
    assert arm == {"pulls": [[0.4, 1.0, 2]], "cuts": [0.4]}
    arm = BANDIT.pulled(arm, 0.86, 2.0, 3)
    assert arm["cuts"] == [0.4, 0.86]
    assert BANDIT.pulled(arm, 0.88, 2.0, 4)["cuts"] == [0.4, 0.86]
    assert BANDIT.pulled(arm, 0.4, 2.0, 4)["cuts"] == [0.4, 0.86]
    assert BANDIT._replace(resolution=0.02).pulled(arm, 0.88, 2.0, 4)["cuts"] == [0.4, 0.86, 0.88]


@pytest.mark.parametrize("best", [0.1, 0.6])
def test_it_finds_what_is_rewarded(best):
    """Rewards fall with the distance from the best ratio: of 200 later ratios 44 would be within 0.1 by chance."""
    draws, arm, found = np.random.default_rng(5), {"pulls": [], "cuts": []}, []
    for now in range(300):
        ratio = BANDIT.ratio(arm, now, float(draws.random()))
        arm = BANDIT.pulled(arm, ratio, 0.05 / (0.05 + abs(ratio - best)), now)
        found.append(ratio)
    assert sum(abs(ratio - best) < 0.1 for ratio in found[100:]) >= 80
    assert all(0 <= ratio < 0.9 for ratio in found)


# --- the server -------------------------------------------------------------------------------------------------


def test_rewards_on_paper():
    """Jobs of 1, 2 and 6 s: the mean is 3 s, gaps are 2/3, 1/3 and 1 of it. Losses fell by 0.2, 0.1 and rose by 0.3;
    a fourth device, in time, has no loss from before.
    """
    setting = assemble(mixed_scenario(method="fedmp")).setting
    flops = 40 * setting.cost_profile.train_flops()
    nothing = replace(Task().down, collections=frozenset(), extra_bytes=0)
    speeds = flops / np.array([1.0, 2.0, 6.0, 3.0, 1.0, 1.0])
    setting = replace(setting, flops_per_s=speeds, latency_s=np.zeros(6), speeds=None)
    training = Task(local_sgd=(setting.training.local_sgd(0),), down=nothing, up=nothing)
    updates = [
        message_of(device, 40, {})._replace(task=training, statistics={"loss": loss})
        for device, loss in enumerate([1.0, 1.5, 2.0, 0.5])
    ]
    before = {0: 1.2, 1: 1.6, 2: 1.7}
    found = FedMP().rewards(updates, before, setting)
    assert found == pytest.approx({0: 0.2 / (2 / 3), 1: 0.1 / (1 / 3), 2: -0.3 / 1})
    near = FedMP(least_gap=0.8).rewards(updates, before, setting)
    assert near == pytest.approx({0: 0.2 / 0.8, 1: 0.1 / 0.8, 2: -0.3 / 1})


def test_times_on_paper():
    """What the rewards come from: down 40 bytes at 80 bit/s, 40 samples' FLOPs, up 20 bytes at 20 bit/s, two latencies
    of half a second.
    """
    setting = assemble(mixed_scenario(method="fedmp")).setting
    rates = {"up_bps": np.full(6, 20.0), "down_bps": np.full(6, 80.0), "latency_s": np.full(6, 0.5)}
    flops = 40 * setting.cost_profile.train_flops()
    setting = replace(setting, **rates, flops_per_s=np.full(6, flops / 3), speeds=None)
    down, up = (replace(Task().down, collections=frozenset(), extra_bytes=n) for n in (40, 20))
    task = Task(local_sgd=(setting.training.local_sgd(0),), down=down, up=up)
    assert expected_s(task, setting, np.array([2, 4])).tolist() == pytest.approx([4 + 3 + 8 + 1] * 2)


def test_units_by_the_size_of_their_weights():
    """By sums of the sizes of rows, biases aside, against a loop; equal units in the order of their numbers."""
    simulation = prepare(mixed_scenario(method="fedmp"))
    params = {n: t.clone() for n, t in simulation.learner.weights()["params"].items()}
    params["conv1.weight"][3] = params["conv1.weight"][9]
    found = order_of(params, simulation.parts.setting.cost_profile, "inner")
    assert found.keys() == {"conv1", "conv2"}
    for layer, order in found.items():
        sums = [sum(abs(float(w)) for w in unit.flatten()) for unit in params[f"{layer}.weight"]]
        assert [sums[unit] for unit in order] == pytest.approx(sorted(sums, reverse=True))
    assert found["conv1"].index(9) == found["conv1"].index(3) + 1


# --- rounds -----------------------------------------------------------------------------------------------------


def cut(params, one, two):
    """Return the parameters of the digits' CNN with these channels; a channel of the second has 2 x 2 inputs of fc1."""
    inputs = [4 * channel + pixel for channel in two for pixel in range(4)]
    return {
        "conv1.weight": params["conv1.weight"][one],
        "conv1.bias": params["conv1.bias"][one],
        "conv2.weight": params["conv2.weight"][two][:, one],
        "conv2.bias": params["conv2.bias"][two],
        "fc1.weight": params["fc1.weight"][:, inputs],
        "fc1.bias": params["fc1.bias"],
    }


def trained(w, batches):
    """Return the parameters of a thinner CNN, and its mean loss, after plain SGD in functions of PyTorch."""
    w, losses, met = {n: t.clone().requires_grad_() for n, t in w.items()}, 0.0, 0
    for x, y in batches:
        for layer in ("conv1", "conv2"):
            x = F.relu(F.max_pool2d(F.conv2d(x, w[f"{layer}.weight"], w[f"{layer}.bias"], padding=1), 2))
        loss = F.cross_entropy(F.linear(x.flatten(1), w["fc1.weight"], w["fc1.bias"]), y)
        grads = torch.autograd.grad(loss, list(w.values()))
        w = {n: (t - 0.1 * g).detach().requires_grad_() for (n, t), g in zip(w.items(), grads, strict=True)}
        losses, met = losses + float(loss.detach()) * len(y), met + len(y)
    return {n: t.detach() for n, t in w.items()}, losses / met


def completed(old, new, one, two):
    """Return the old model with the trained channels in their places, entry by entry where there are two."""
    inputs = [4 * channel + pixel for channel in two for pixel in range(4)]
    full = {n: t.clone() for n, t in old.items()}
    full["conv1.weight"][one], full["conv1.bias"][one] = new["conv1.weight"], new["conv1.bias"]
    for place, channel in enumerate(two):
        full["conv2.weight"][channel, one] = new["conv2.weight"][place]
    full["conv2.bias"][two] = new["conv2.bias"]
    full["fc1.weight"][:, inputs], full["fc1.bias"] = new["fc1.weight"], new["fc1.bias"]
    return full


def test_three_rounds_by_hand(monkeypatch):
    """The whole model, then thinner ones of the largest channels; models are completed by the old one and averaged."""
    seen = record(monkeypatch)
    scenario = mixed_scenario(method="fedmp", partition={"name": "dirichlet_label", "beta": 1}, stop={"rounds": 3})
    simulation = prepare(scenario)
    w, kept = simulation.learner.weights()["params"], set()
    simulation.run()
    for round_ in range(3):
        jobs, models = seen[6 * round_ : 6 * round_ + 6], []
        for job in jobs:
            ratio, channels = job.assignment.task.config["ratio"], {}
            for layer, size in (("conv1", 16), ("conv2", 32)):
                sums = w[f"{layer}.weight"].double().abs().flatten(1).sum(1)
                channels[layer] = sorted(sums.argsort(descending=True)[: math.ceil((1 - ratio) * size)].tolist())
            kept.add(len(channels["conv2"]))
            new, loss = trained(cut(w, *channels.values()), job.batches())
            close_to(job.result.body["params"], new, atol=5e-6)
            assert job.result.statistics["loss"] == pytest.approx(loss, rel=1e-5)
            models.append(completed(w, new, *channels.values()))
        sizes = [len(job.trainer.shards[job.assignment.device]) for job in jobs]
        w = {n: sum(k * m[n] for k, m in zip(sizes, models, strict=True)) / sum(sizes) for n in w}
    close_to(simulation.learner.weights()["params"], w, atol=5e-6)
    assert len(kept) > 4  # each device has a ratio of its own


def test_what_the_bandits_learn():
    """After three rounds every device has two pulls, of the ratios that it had, with the rewards of these rounds."""
    simulation = prepare(mixed_scenario(method="fedmp", stop={"rounds": 3}))
    spy = simulation.learner.method = Spy(simulation.learner.method)
    simulation.run()
    losses: dict[int, float] = {}
    pulls: dict[int, list[list[float]]] = {device: [] for device in range(6)}
    for round_, (_, _, updates, server, _) in enumerate(spy.rounds):
        rewards = spy.method.rewards(updates, losses, server.setting)
        for update in updates if round_ else ():
            pulls[update.device].append([update.task.config["ratio"], rewards[update.device], round_])
        losses = {update.device: update.statistics["loss"] for update in updates}
    assert {device: arm["pulls"] for device, arm in simulation.learner.state["arms"].items()} == pulls
    metrics = frames(simulation)["metrics"].query("name == 'ratio'")
    assert metrics[metrics["round"] == 2].set_index("device")["value"].to_dict() == {
        d: p[1][0] for d, p in pulls.items()
    }


def test_work_and_bytes(monkeypatch):
    """FLOPs by PyTorch's counter. p and q channels have 10 p + 9 p q + q + 40 q + 10 parameters; a bit a unit more."""
    seen = record(monkeypatch)
    jobs = measured_jobs(mixed_scenario(method="fedmp", stop={"rounds": 3}), monkeypatch)
    assert (jobs["flops"] == jobs["real_flops"]).all()
    assert (jobs["up_bytes"] == jobs["real_bytes"] + 4).all()
    for job, (_, row) in zip(seen, jobs.sort_index().iterrows(), strict=True):
        ratio = job.assignment.task.config["ratio"]
        p, q = (math.ceil((1 - ratio) * size) for size in (16, 32))
        params = 10 * p + 9 * p * q + q + 40 * q + 10
        assert row["up_bytes"] == 4 * params + 4
        assert row["down_bytes"] == 4 * params + (math.ceil(UNITS / 8) if row["round"] else 0)


def test_the_first_round_is_fedavg():
    """All have the whole model: the same bits."""
    scenario = {"partition": {"name": "dirichlet_label", "beta": 1}, "stop": {"rounds": 1}}
    plain, whole = (run(mixed_scenario(method=m, **scenario)).learner.weights() for m in ("fedavg", "fedmp"))
    assert fingerprint(whole) == fingerprint(plain)


@pytest.mark.parametrize("which", ["inner", "all"])
def test_channels_that_several_layers_make(which):
    """A residual network's shortcuts are thinned only if asked for; a channel there counts with all of its makers."""
    params, cost_profile = residual()
    found = order_of(params, cost_profile, which)
    assert found == ({"inner": [1, 0]} if which == "inner" else {"inner": [1, 0], "shared": [0, 1]})


def residual():
    """Return weights and profile of two layers whose two outputs are added, and one of its own units between them."""

    def layer(name, rows, columns):
        return LayerCost(name, "Linear", 4, 0, 2.0, 2.0, 2.0, frozenset(), 4, rows, columns)

    profile = CostProfile(
        "by hand",
        (2,),
        2,
        (layer("one", "shared", ""), layer("between", "inner", "shared"), layer("two", "shared", "inner")),
        groups=(ChannelGroup("shared", 2), ChannelGroup("inner", 2)),
    )
    weights = {"one": [[1.0, 0], [2, 0]], "between": [[1, -1], [2, 2]], "two": [[-3, 0], [0, 1]]}
    return {f"{name}.weight": torch.tensor(rows) for name, rows in weights.items()}, profile


def test_who_had_a_unit_may_count_alone():
    """Then the mean of a unit that one device trained is that device's."""
    params = {n: [] for n in ("average_over_holders", "include_absent")}
    for absent, found in params.items():
        simulation = prepare(mixed_scenario(method={"name": "fedmp", "absent": absent}, stop={"rounds": 2}))
        spy = simulation.learner.method = Spy(simulation.learner.method)
        simulation.run()
        _, old, updates, *_ = spy.rounds[1]
        held = np.zeros(32)
        for update in updates:
            held[list(dict(update.task.submodel.channels)["conv2"])] += 1
        [*some] = np.flatnonzero((held > 0) & (held < 6))
        moved = simulation.learner.weights()["params"]["conv2.bias"] - old["params"]["conv2.bias"]
        for unit in some:
            steps = [
                float(u.body["params"]["conv2.bias"][dict(u.task.submodel.channels)["conv2"].index(unit)])
                - float(old["params"]["conv2.bias"][unit])
                for u in updates
                if unit in dict(u.task.submodel.channels)["conv2"]
            ]
            shared_by = len(steps) if absent == "average_over_holders" else 6
            found.append(float(moved[unit]) - sum(steps) / shared_by)
    assert all(len(found) > 5 for found in params.values())
    assert all(abs(each) < 1e-6 for found in params.values() for each in found)


@pytest.mark.parametrize(
    "wrong", [{"most": 1}, {"most": 0}, {"discount": 0}, {"resolution": 0}, {"least_gap": 0}, {"channels": "linear"}]
)
def test_settings_out_of_range(wrong):
    (key,) = wrong
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        digits_scenario(method={"name": "fedmp", **wrong})


def test_a_model_that_stays_whole():
    with pytest.raises(ConfigError, match=r"model\.name: mlr has no unit .* fedavg would do the same"):
        prepare(mixed_scenario(method="fedmp", model="mlr"))


def test_ratios_up_to_the_largest():
    """Drawn at random from the whole range at first, below `most`."""
    method, state = FedMP(most=0.5), {"order": {"conv1": list(range(16))}, "arms": {}, "loss": {}}
    ratios = [method.device_ratio(state, 1, device, Key(3)) for device in range(200)]
    assert 0.45 < max(ratios) < 0.5
    assert 0 <= min(ratios) < 0.05


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "fedmp": {
        "most": "test_ratios_up_to_the_largest",
        "discount": "test_old_rewards_count_less",
        "resolution": "test_parts_are_cut_where_a_ratio_was_tried",
        "least_gap": "test_rewards_on_paper",
        "absent": "test_who_had_a_unit_may_count_alone",
        "channels": "test_channels_that_several_layers_make",
    },
}
