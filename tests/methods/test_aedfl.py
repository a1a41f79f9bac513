"""AEDFL as its docstring reads it, against a schedule of three devices worked out on paper, and each of its parts.

The model is one number that starts at 0, the gradient of device k at x is x - (k + 1), and the learning rate 0.5, so
that a device goes from a mix x to (x + k + 1) / 2. Devices 0, 1 and 2 compute for 1, 2 and 5 s, and all hear each
other. A message has 8 bytes, 4 of them its clock: 1 s at the sender's 64 bit/s; the two that a device fetches share its
128 bit/s and take 1 s too. With twice 0.25 s of latency a job computes 1.5 s after it began.

    device  began  fetches                      mix (weights are 1 / (staleness + 1))             ends with    clock
    0       0      0 and 0, clocks 0            0                                                 2.5  0.5     1
    1       0      0 and 0                      0                                                 3.5  1       1
    0       2.5    0 of 1 and of 2, clocks 0    (1 x 0.5 + 1/2 x 0 + 1/2 x 0) / 2 = 0.25          5.0  0.625   2
    2       0      0 and 0                      0                                                 6.5  1.5     1
    1       3.5    0.5 of 0, 0 of 2             (1 x 1 + 1 x 0.5 + 1/2 x 0) / 2.5 = 0.6           7.0  1.3     2
    0       5.0    1 of 1 (clock 1), 0 of 2     (1 x 0.625 + 1/2 x 1 + 1/3 x 0) / (11/6) = 27/44  7.5  71/88   3
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

import edgesim
from edgesim.core.errors import ConfigError
from edgesim.learning.submodel import masks
from edgesim.methods.aedfl import AEDFL, mix_weights
from tests.conftest import frames
from tests.contracts.support import mixed_scenario, prepare, run
from tests.plugins.one_number import numbers, scenario

LINKS = {"name": "fixed", "up": "64 bit/s", "down": "128 bit/s", "latency": "0.25 s"}
POWER = {"name": "power", "idle": "2 W", "busy": "5 W", "transmit": "1 W", "receive": "0.5 W"}
PLAIN = {"weights": "equal", "staleness_a": 1.0, "learn": 0.0, "sparsity": 0.0}


@dataclass(frozen=True, kw_only=True)
class Pulled(AEDFL):
    """AEDFL whose device k has the loss (x - (k + 1))^2 / 2."""

    def local(self, task: Any) -> Any:
        """Return AEDFL's rule with the gradient of that loss."""
        rule = super().local(task)

        def gradient(local: Any, batch: Any, context: Any) -> list[torch.Tensor]:
            return [local.weights["params"]["layer.weight"] - (context.device + 1.0)]

        return replace(rule, phases=(replace(rule.phases[0], gradient=gradient),))


def schedule(updates: int = 6, **method: Any) -> edgesim.Scenario:
    """Return the scenario of the schedule above, a round for each update."""
    return scenario(
        [1.0, 2.0, 5.0],
        method={"name": f"{__name__}:Pulled", **PLAIN, **method},
        protocol={"name": "gossip", "every": 1},
        peers="full",
        network=LINKS,
        energy=POWER,
        training={"batch": 3, "lr": 0.5},
        stop={"rounds": updates},
        backend="serial",
    )


def number(simulation: Any, device: int) -> float:
    """Return the model of a device."""
    return float(simulation.learner.memory[device]["params"]["layer.weight"])


def test_the_schedule():
    """Instants, bytes, joules of both ends, and the mean of all devices after every update."""
    simulation, seen = numbers(schedule())
    jobs = frames(simulation)["jobs"]
    ended = jobs[jobs["outcome"] == "ok"]
    assert ended["device"].tolist() == [0, 1, 0, 2, 1, 0]
    assert ended["sent_s"].tolist() == pytest.approx([0, 0, 2.5, 0, 3.5, 5])
    assert ended["down_s"].tolist() == pytest.approx([1.5] * 6)
    assert ended["compute_s"].tolist() == pytest.approx([1, 2, 1, 5, 2, 1])
    assert ended["end_s"].tolist() == pytest.approx([2.5, 3.5, 5, 6.5, 7, 7.5])
    assert ended["down_bytes"].tolist() == ended["peer_bytes"].tolist() == [16] * 6
    assert ended["up_bytes"].tolist() == [0] * 6
    assert ended["down_j"].tolist() == pytest.approx([0.5] * 6)  # 0.5 W for 1 s
    assert ended["peer_j"].tolist() == pytest.approx([2.0] * 6)  # two senders, 1 W for 1 s
    sums = [0.5, 1.5, 0.625 + 1, 0.625 + 1 + 1.5, 0.625 + 1.3 + 1.5, 71 / 88 + 1.3 + 1.5]
    assert [at_s for at_s, _ in seen] == pytest.approx([2.5, 3.5, 5, 6.5, 7, 7.5])
    assert [mean for _, mean in seen] == pytest.approx([total / 3 for total in sums])
    clocks = {device: int(kept["tensors"]["clock"][0]) for device, kept in simulation.learner.memory.items()}
    assert clocks == {0: 3, 1: 2, 2: 1}


def test_trust_is_learned():
    """In its second job device 0 goes up by 0.375 from a mix of 0.25, away from both others, which are at 0.

    Their weights in it were 1/4 each, so v = 0 - 0.4 x 1/4 x 1 = -0.1. In its third one the mix is
    (0.625 + e^-0.1 / 2) / (1 + e^-0.1 / 2 + e^-0.1 / 3), and it goes to (mix + 1) / 2.
    """
    simulation, _ = numbers(schedule(learn=0.4))
    e = math.exp(-0.1)
    mix = (0.625 + e / 2) / (1 + e / 2 + e / 3)
    assert number(simulation, 0) == pytest.approx((mix + 1) / 2)
    # on that way, up from the mix, model 1 lies ahead, and 2 behind
    p1, p2 = (e / divisor / (1 + e / 2 + e / 3) for divisor in (2, 3))
    trust = {name: float(v) for name, v in simulation.learner.memory[0]["trust"].items()}
    assert trust == {"1": pytest.approx(-0.1 + 0.4 * p1), "2": pytest.approx(-0.1 - 0.4 * p2)}


def test_staleness_plays_no_part_with_a_power_of_nothing():
    """All models count alike: device 0 goes from 0.5 / 3 to half way to 1."""
    simulation, _ = numbers(schedule(updates=3, staleness_a=0.0))
    assert number(simulation, 0) == pytest.approx((0.5 / 3 + 1) / 2)


def test_weights_of_a_mix():
    """Sizes 1, 2 and 4, clocks 5, 4 and 2 and a = 1: 1, 1 and 1; with trust log 3 in the last it has three of five."""
    assert mix_weights([1, 2, 4], [5, 4, 2], [0, 0, 0], 1.0) == pytest.approx([1 / 3] * 3)
    assert mix_weights([1, 2, 4], [5, 4, 2], [0, 0, math.log(3)], 1.0) == pytest.approx([0.2, 0.2, 0.6])


def test_what_devices_count():
    """By samples, or by samples over the divergence of labels: those of one class against half and half have 0.21576.

    (ln 4/3) / 2 + (ln 2/3 + ln 2) / 4; a device with the labels of all has 0, which counts as `d_min`.
    """
    setting = prepare(mixed_scenario(method="aedfl")).parts.setting
    setting = replace(setting, samples=np.array([2, 4, 2]), labels=np.array([[2.0, 0.0], [0.0, 4.0], [3.0, 1.0]]))
    by_samples = AEDFL(sparsity=0.0).init(setting, None)["sizes"]
    assert by_samples.tolist() == [2, 4, 2]
    assert AEDFL(weights="equal", sparsity=0.0).init(setting, None)["sizes"].tolist() == [1, 1, 1]
    even = replace(setting, labels=np.array([[2.0, 0.0], [0.0, 2.0], [1.0, 1.0]]))
    js = math.log(4 / 3) / 2 + (math.log(2 / 3) + math.log(2)) / 4
    sizes = AEDFL(weights="divergence", d_min=0.02, sparsity=0.0).init(even, None)["sizes"]
    assert sizes.tolist() == pytest.approx([2 / js, 4 / js, 2 / 0.02])
    with pytest.raises(ConfigError, match=r"method\.weights: 'divergence' weighs devices by their labels"):
        AEDFL(weights="divergence").init(replace(setting, labels=None), None)


def test_few_neighbours_are_fetched():
    """With fan_in = 2 of five, a device fetches two others, not always the same."""
    changes = {"method": {"name": "aedfl", "fan_in": 2}, "peers": "full", "backend": "null", "stop": {"rounds": 5}}
    simulation = prepare(mixed_scenario(**changes))
    heard = []
    start = simulation.learner.start
    simulation.learner.start = lambda jobs: [heard.extend(job.inputs for job in jobs if job.device == 5), start(jobs)]
    simulation.run()
    assert {len(set(inputs)) for inputs in heard} == {2}
    assert len(set(heard)) > 1


def test_the_share_of_zeros_rises():
    """Two jobs without; then 0.5 (1 - (1 - 1/2)^3) = 0.4375, and 0.5 from then on."""
    method = AEDFL(sparsity=0.5, prune_from=2, prune_over=2)
    assert [method.share_at(nth) for nth in range(5)] == pytest.approx([0, 0, 0.4375, 0.5, 0.5])
    assert AEDFL(sparsity=0.0, prune_from=0).share_at(9) == 0


def test_sparse_models_of_a_run():
    """From the second job on 60 % of the weights are zero, and FLOPs and bytes are those of the others."""
    method = {"name": "aedfl", "sparsity": 0.6, "prune_from": 1, "prune_over": 1}
    changes = {"peers": "ring", "cost": {"name": "measured", "sparse": "ideal"}, "stop": {"rounds": 6}}
    simulation = run(mixed_scenario(method=method, encoding={"up": {"zeros": "bitmap"}}, **changes))
    profile = simulation.parts.setting.cost_profile
    shapes = masks.weight_shapes(profile)
    counts = masks.kept_counts(shapes, masks.densities(shapes, 0.6, "erk"))
    jobs = frames(simulation)["jobs"]
    delivered = jobs[jobs["outcome"] == "ok"].copy()
    delivered["nth"] = delivered.groupby("device").cumcount()
    pruned = delivered[delivered["nth"] >= 1]
    assert set(pruned["submodel"]) == {"sparse"}
    assert set(delivered[delivered["nth"] == 0]["submodel"]) == {"full"}
    quick = delivered[delivered["device"] == 5].set_index("nth")
    assert quick.loc[1, "flops"] < quick.loc[0, "flops"]
    assert quick.loc[3, "down_bytes"] < quick.loc[0, "down_bytes"]
    for device in pruned["device"].unique():
        params = simulation.learner.memory[device]["params"]
        assert {name: int((params[name] != 0).sum()) for name in counts} == counts


def test_a_weight_is_mixed_over_those_who_have_it():
    """Models 2 and 0, of equal weight: under masks the one that is there counts alone, else the mean is 1."""
    two, none = ({"params": {"w": torch.tensor([[x]])}} for x in (2.0, 0.0))
    held = [masks.support(model["params"]) for model in (two, none)]
    assert float(masks.masked_mean([two, none], held, [0.5, 0.5])["params"]["w"]) == 2.0
    assert float(masks.masked_mean([two, none], [{}, {}], [0.5, 0.5])["params"]["w"]) == 1.0


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "aedfl": {
        "fan_in": "test_few_neighbours_are_fetched",
        "weights": "test_what_devices_count",
        "d_min": "test_what_devices_count",
        "staleness_a": "test_staleness_plays_no_part_with_a_power_of_nothing",
        "learn": "test_trust_is_learned",
        "sparsity": "test_sparse_models_of_a_run",
        "prune_from": "test_the_share_of_zeros_rises",
        "prune_over": "test_the_share_of_zeros_rises",
    },
}
