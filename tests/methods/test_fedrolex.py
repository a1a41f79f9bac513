"""FedRolex: which units roll by, the mean of what they send, and that all the rest is HeteroFL.

Source: Alam et al. (2022).
"""

from __future__ import annotations

import pytest
import torch

from edgesim.core.errors import ConfigError
from edgesim.core.task import Submodel
from edgesim.methods.fedrolex import FedRolex
from edgesim.methods.heterofl import HeteroFL
from tests.conftest import digits_scenario, frames, timing_scenario
from tests.contracts.support import mixed_scenario, prepare, run
from tests.methods.hand_made import KEY, merged_layers, message_of, setting_of, view_of
from tests.methods.recorded import record
from tests.methods.test_heterofl import FOUR
from tests.sizes import full

HALF = {"name": "fedrolex", "rates": [0.5], "tiers": "level"}
ONE_LEVEL = [{"count": 2, "level": 1, "cpu": {"flops_per_s": "50 MFLOP/s"}}]


def windows(rounds, **settings):
    """Return the units that a device of rate 1/2 has of four, round by round."""
    method, setting = FedRolex(rates=(0.5,), **settings), setting_of([1], {}, cost_profile=FOUR)
    state = method.init(setting, KEY)
    plans = [method.plan(state, view_of(setting, round_), KEY) for round_ in range(rounds)]
    return [dict(plan.orders[0].task.submodel.channels)["w"] for plan in plans]


def test_the_window_rolls_on_by_one():
    """Rounds 1 to 4; in the third it wraps around."""
    assert windows(4) == [(1, 2), (2, 3), (3, 0), (0, 1)]


def test_a_round_on_paper():
    """t = 3: units 3 and 0 came back as 2 and 4, the others stay at 1."""
    third = windows(3)[2]
    got = [message_of(0, 1, {"w": [2.0, 4.0]}, Submodel(channels=(("w", third),)))]
    setting = setting_of([1], {}, cost_profile=FOUR)
    assert merged_layers(FedRolex(rates=(0.5,)), setting, {"w": [1.0] * 4}, got) == {"w": [4, 1, 1, 2]}


@full
def test_groups_of_one_size_have_the_same_units():
    """Channels that a residual network adds stay aligned; every other group wraps at its own size."""
    fleet = [{"level": 1, "cpu": {"flops_per_s": 1e9}}]
    simulation = prepare(timing_scenario(model="resnet18_gn", fleet=fleet, method=HALF))
    simulation.session.round = 99  # t = 100
    (order,) = simulation.learner.plan(simulation.session.view()).orders
    sizes = {group.name: group.size for group in simulation.parts.setting.cost_profile.groups}
    found = {(sizes[name], channels) for name, channels in order.task.submodel.channels}
    assert found == {(n, tuple((100 + i) % n for i in range(n // 2))) for n in (64, 128, 256, 512)}


def test_a_device_trains_the_units_of_the_round(monkeypatch):
    """What it gets and sends are these units' numbers, and nobody else's of the global model move."""
    jobs = record(monkeypatch)
    simulation = prepare(mixed_scenario(method=HALF, fleet=ONE_LEVEL, stop={"rounds": 1}))
    before = simulation.learner.weights()["params"]
    simulation.run()
    after = simulation.learner.weights()["params"]
    kept = [(1 + i) % 16 for i in range(8)]
    assert all(torch.equal(job.assignment.global_model["params"]["conv1.bias"], before["conv1.bias"]) for job in jobs)
    mean = sum(job.result.body["params"]["conv1.bias"] for job in jobs) / len(jobs)
    torch.testing.assert_close(after["conv1.bias"][kept], mean, atol=1e-6, rtol=0)
    others = [i for i in range(16) if i not in kept]
    assert torch.equal(after["conv1.bias"][others], before["conv1.bias"][others])


@full
def test_all_units_are_trained_though_no_device_has_them_all():
    """32 rounds of half of 32 channels move all of them; HeteroFL's first half leaves the others as they were."""
    for name, moves in (("fedrolex", True), ("heterofl", False)):
        scenario = mixed_scenario(method={**HALF, "name": name}, fleet=ONE_LEVEL, stop={"rounds": 32})
        simulation = prepare(scenario)
        before = simulation.learner.weights()["params"]["conv2.bias"].clone()
        simulation.run()
        moved = simulation.learner.weights()["params"]["conv2.bias"] != before
        assert moved.tolist() == [moves or channel < 16 for channel in range(32)]


def test_costs_and_scales_are_those_of_heterofl():
    """A rolling window is as large as a fixed one, and nobody sends which units it has."""
    jobs = [
        frames(run(mixed_scenario(method=name, backend="null", stop={"rounds": 1})))["jobs"]
        for name in ("fedrolex", "heterofl")
    ]
    for column in ("submodel", "flops", "down_bytes", "up_bytes", "compute_s"):
        assert jobs[0][column].tolist() == jobs[1][column].tolist()
    setting = setting_of([1], {}, cost_profile=FOUR)
    for cls in (FedRolex, HeteroFL):
        (order,) = cls(rates=(0.25,)).plan({"rank": [1]}, view_of(setting), KEY).orders
        assert order.task.submodel.scale == (("w", (4.0,)),)


def test_a_full_rate_does_not_roll():
    """All units in their order: the network itself."""
    setting = setting_of([1], {}, cost_profile=FOUR)
    (order,) = FedRolex(rates=(1.0,)).plan({"rank": [1]}, view_of(setting, 3), KEY).orders
    assert order.task.submodel == Submodel("rate1", width=1)


def test_settings_out_of_range():
    with pytest.raises(ConfigError, match=r"method\.rates"):
        digits_scenario(method={"name": "fedrolex", "rates": [1.5]})


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "fedrolex": {
        "rates": "test_all_units_are_trained_though_no_device_has_them_all",
        "tiers": "test_heterofl.py::test_rates_may_be_drawn_every_round",
        "proportions": "test_heterofl.py::test_proportions",
        "scaler": "test_costs_and_scales_are_those_of_heterofl",
        "masking": "test_heterofl.py::test_rows_of_classes_are_those_of_who_has_them",
        "weights": "test_a_round_on_paper",
    },
}
