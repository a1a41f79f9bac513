"""Draws of clock errors: the interval of their law, common to scenarios, the same in any process."""

from __future__ import annotations

import math

import numpy as np
import pytest

import edgesim
from edgesim.config import device_profiles
from edgesim.core.clock_error import clock_factor
from edgesim.core.errors import ConfigError
from edgesim.core.work import interval_factor
from edgesim.runs.simulate import simulate
from edgesim.world.fleet import build_fleet
from tests.conftest import digits_scenario, frames, simulate_null, timing_scenario


def fleet(*boards: str, **changes: object) -> edgesim.Scenario:
    """A board of each name at 1 GFLOP/s, whose clocks have a spread of 0.2."""
    blocks = [{"cpu": {"flops_per_s": "1 GFLOP/s", "spread": 0.2, "board": board}} for board in boards]
    return timing_scenario(**{"fleet": blocks, **changes})


def compute_s(scenario: edgesim.Scenario) -> list[float]:
    """Return the seconds of computing of each device's first job."""
    jobs = frames(simulate_null(scenario))["jobs"].sort_values("device")
    return list(jobs["compute_s"])


def test_nine_of_ten_draws_are_within_the_interval_factor() -> None:
    """The closed form for a computation: ln of the factor is normal with the spread as standard deviation."""
    factors = np.array([clock_factor(draw, 0.2, "board", "lenet5") for draw in range(2000)])
    low, median, high = np.quantile(factors, [0.05, 0.5, 0.95])
    assert high == pytest.approx(interval_factor(0.2), rel=0.03)
    assert low == pytest.approx(1 / interval_factor(0.2), rel=0.03)
    assert median == pytest.approx(1.0, rel=0.02)
    assert np.log(factors).std() == pytest.approx(0.2, rel=0.04)


def test_a_draw_stretches_computations_by_its_factor() -> None:
    """All devices of a board by the same; a board of another name, or another network, by another."""
    right, wrong = compute_s(fleet("a", "a", "b")), compute_s(fleet("a", "a", "b", clock_error=7))
    factors = np.array(wrong) / np.array(right)
    assert factors[0] == pytest.approx(clock_factor(7, 0.2, "a", "cnn_cifar10"), rel=1e-12)
    assert factors[0] == factors[1] != factors[2]
    assert clock_factor(7, 0.2, "a", "lenet5") != clock_factor(7, 0.2, "a", "cnn_cifar10")


def test_terms_and_flops_per_s_follow_the_draw() -> None:
    """Methods that plan by speed see the same clock as jobs do."""
    cpu = {"flops_per_s": "1 GFLOP/s", "clock": {"name": "terms", "steps": "2 ms", "bytes": "1 ns"}, "spread": 0.3}
    scenario = timing_scenario(fleet=[{"cpu": cpu}])
    drawn = scenario.model_copy(update={"clock_error": 3})
    factor = clock_factor(3, 0.3, "block0", "cnn_cifar10")
    assert compute_s(drawn) == pytest.approx([factor * each for each in compute_s(scenario)], rel=1e-12)
    assert build_fleet(drawn).flops_per_s == pytest.approx(build_fleet(scenario).flops_per_s / factor, rel=1e-12)


def test_drawn_takes_the_seed_and_none_changes_nothing() -> None:
    """Each seed of a study has an error of its own; without the key a spread has no effect, to the last bit."""
    assert compute_s(fleet("a", seed=5, clock_error="drawn")) == compute_s(fleet("a", seed=2, clock_error=5))
    assert compute_s(fleet("a", seed=5, clock_error="drawn")) != compute_s(fleet("a", seed=6, clock_error="drawn"))
    bare = timing_scenario(fleet=[{"cpu": {"flops_per_s": "1 GFLOP/s"}}])
    assert compute_s(fleet("a")) == compute_s(bare) == compute_s(bare.model_copy(update={"clock_error": 4}))


def test_the_number_of_workers_changes_no_draw() -> None:
    """Errors are keyed, so it does not matter which process draws first."""
    cpu = {"flops_per_s": "1 GFLOP/s", "spread": 0.2}
    given = {"clock_error": "drawn", "stop": {"rounds": 1}, "fleet": [{"count": 4, "cpu": cpu}]}
    ends = [
        simulate(digits_scenario(**given, backend=backend)).rounds["now_s"].tolist()
        for backend in ("serial", {"name": "workers", "workers": 2})
    ]
    assert ends[0] == ends[1]


def test_profiles_give_their_spread_unless_the_scenario_states_a_speed() -> None:
    """A profile's spread is of the profile's clock."""
    spread = device_profiles.find("raspberry_pi_4").spread
    block = {"profile": "raspberry_pi_4"}
    by_profile = timing_scenario(fleet=[block]).fleet[0].cpu
    assert (by_profile.spread, by_profile.board) == (spread, "raspberry_pi_4")
    stated = timing_scenario(fleet=[{**block, "cpu": {"flops_per_s": "1 GFLOP/s"}}]).fleet[0].cpu
    assert (stated.spread, stated.board) == (0.0, None)
    own = timing_scenario(fleet=[{**block, "cpu": {"spread": 0.5}}]).fleet[0].cpu
    assert (own.spread, own.board) == (0.5, "raspberry_pi_4")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fleet": [{"cpu": {"flops_per_s": 1e9, "spread": -0.1}}]}, "fleet.0.cpu.spread"),
        ({"fleet": [{"cpu": {"flops_per_s": 1e9, "spread": math.inf}}]}, "fleet.0.cpu.spread"),
        ({"clock_error": "some"}, 'clock_error: must be "none", "drawn" or the number of a draw'),
        ({"clock_error": -1}, "clock_error: must be"),
        ({"clock_error": True}, "clock_error: must be"),
    ],
)
def test_bad_input_is_one_line(changes: dict[str, object], words: str) -> None:
    """The key, what was found, what is allowed."""
    with pytest.raises(ConfigError, match=words) as told:
        timing_scenario(**changes)
    assert "\n" not in str(told.value)
