"""A small network learns, a large one is charged for: its FLOPs, bytes and memory; accuracy is the small one's."""

from __future__ import annotations

import numpy as np
import pytest

import edgesim
from edgesim.core.errors import ConfigError
from edgesim.core.task import Submodel
from edgesim.runs.simulate import simulate
from edgesim.runs.simulation import check
from tests.calling import call
from tests.conftest import digits_scenario, timing_scenario
from tests.sizes import full

LARGE = {"name": "as", "model": "cnn_cifar10", "input": "3x32x32"}


def test_a_whole_job_costs_what_the_large_network_does():
    small = timing_scenario(model="cnn_digits", cost=LARGE)
    large = timing_scenario(model="cnn_cifar10")
    one, other = simulate(small).jobs, simulate(large).jobs
    for column in ("flops", "down_bytes", "up_bytes", "compute_s"):
        assert one[column].tolist() == pytest.approx(other[column].tolist(), rel=1e-12), column


def test_a_part_costs_the_share_that_it_has_of_the_small_network():
    fleet = [{"level": level, "cpu": {"flops_per_s": "1 GFLOP/s"}} for level in (1, 2, 3)]
    same = {"method": {"name": "fedpmt", "rule": "fixed"}, "fleet": fleet}
    plain = simulate(timing_scenario(model="cnn_digits", **same)).jobs
    charged = simulate(timing_scenario(model="cnn_digits", cost=LARGE, **same)).jobs
    whole, large = plain["flops"].max(), charged["flops"].max()
    assert len(set(plain["submodel"])) > 1
    assert (charged["flops"] / large).tolist() == pytest.approx((plain["flops"] / whole).tolist(), rel=1e-12)
    up = charged["up_bytes"] / charged["up_bytes"].max()
    assert up.tolist() == pytest.approx(
        (plain["up_bytes"] / plain["up_bytes"].max()).tolist(), rel=2e-3
    )  # masks' bytes are not scaled


def test_other_bytes_may_travel():
    carried = timing_scenario(model="cnn_digits", cost={**LARGE, "payload_of": "cnn_mnist"})
    other = timing_scenario(model="cnn_digits", cost={**LARGE, "model": "cnn_mnist"})
    one, two = simulate(carried).jobs, simulate(other).jobs
    assert one["up_bytes"].tolist() == two["up_bytes"].tolist()
    assert (one["flops"] > 2 * two["flops"]).all()


def test_memory_is_the_large_networks():
    parts = check(timing_scenario(model="cnn_digits", cost=LARGE))
    large = check(timing_scenario(model="cnn_cifar10")).setting.cost_profile
    found, wanted = (profile.memory_bytes(Submodel(), 20).total for profile in (parts.setting.cost_profile, large))
    assert found == pytest.approx(wanted, abs=4)


@full
def test_a_clock_of_terms_takes_the_large_networks_seconds():
    speeds = {
        "flops_per_s": "1 GFLOP/s", "clock": {"name": "terms", "flops": "2 ns", "steps": "1 ms"},
    }  # fmt: skip
    fleet = [{"count": 2, "cpu": speeds}]
    one = simulate(timing_scenario(model="cnn_digits", cost=LARGE, fleet=fleet)).jobs
    other = simulate(timing_scenario(model="cnn_cifar10", fleet=fleet)).jobs
    assert one["compute_s"].tolist() == pytest.approx(other["compute_s"].tolist(), rel=1e-12)


@full
def test_what_is_learned_stays_the_same_to_the_last_bit(tmp_path):
    plain = simulate(digits_scenario(), tmp_path / "plain")
    charged = simulate(digits_scenario(cost=LARGE), tmp_path / "charged")
    assert charged.evals["accuracy"].tolist() == plain.evals["accuracy"].tolist()
    weights = plain.weights()
    assert all(np.array_equal(each, weights[name]) for name, each in charged.weights().items())
    assert charged.rounds["now_s"].iloc[-1] > 2 * plain.rounds["now_s"].iloc[-1]
    assert charged.charged_as == "cnn_cifar10 on 3x32x32"
    assert plain.charged_as is None
    told = call("table", tmp_path / "charged")
    assert "charged: learned by cnn_digits, charged as cnn_cifar10 on 3x32x32" in told.err


@pytest.mark.parametrize(
    ("cost", "says"),
    [
        ({"model": "resnet_9000"}, "cost.model: unknown model 'resnet_9000'"),
        ({"model": "cnn_cifar10", "input": "large"}, "cost.input: must be a size such as '3x224x224', got 'large'"),
        ({"model": "cnn_cifar10", "classes": 0}, "cost.classes: must be greater than or equal to 1, got 0"),
        ({"model": "cnn_cifar10", "payload_of": {"name": "cnn_mnist", "width": 3}}, "cost.payload_of"),
        ({}, "cost.model: is missing"),
    ],
)
def test_a_network_that_cannot_be(cost, says):
    with pytest.raises(ConfigError) as fault:
        check(timing_scenario(cost={"name": "as", **cost}))
    assert says in str(fault.value)
    assert "\n" not in str(fault.value)


@full
def test_a_network_of_torchvision_can_be_charged():
    cost = {"name": "as", "model": "torchvision:mobilenet_v3_small", "input": "3x64x64", "classes": 10}
    parts = check(timing_scenario(model="cnn_digits", cost=cost, fleet=[{"cpu": {"flops_per_s": "1 GFLOP/s"}}]))
    assert isinstance(parts.scenario, edgesim.Scenario)
    assert parts.setting.cost_profile.charged_as.model == "torchvision:mobilenet_v3_small"
