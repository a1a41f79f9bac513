"""The server's work takes simulated time and energy, whoever trains."""

from __future__ import annotations

import pandas as pd
import pytest

from edgesim.simulation.run import simulate
from tests.conftest import digits_scenario, frames, simulate_null, timing_scenario

SPEED = 1e8


def params_of(run) -> int:
    """Return the number of parameters that a run's jobs send."""
    return run.parts.setting.cost_profile.params


def test_averaging_takes_two_flops_a_number():
    """Three devices send a model of P numbers each: 2 x 3 x P FLOPs after the slowest job, at 5 W instead of 2 W."""
    run = simulate_null(
        timing_scenario(
            fleet=[{"count": 3, "cpu": {"flops_per_s": "1 GFLOP/s"}}],
            server={"flops_per_s": SPEED, "idle": "2 W", "busy": "5 W"},
        )
    )
    tables, params = frames(run), params_of(run)
    merge_s = 2 * 3 * params / SPEED
    jobs_s = tables["jobs"]["end_s"].max()
    assert tables["rounds"]["server_s"].tolist() == pytest.approx([merge_s])
    assert tables["rounds"]["now_s"].tolist() == pytest.approx([jobs_s + merge_s])
    assert run.ledger.server_j(run.session.now_s) == pytest.approx((2 * (jobs_s + merge_s), 3 * merge_s))


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_a_run_that_ends_in_mid_merge_charges_what_was_done(share):
    """A quarter of the work or, at the instant in which it is done, all of it; the round is not closed."""
    given = {"server": {"flops_per_s": SPEED, "idle": "2 W", "busy": "5 W"}}
    merge = frames(simulate_null(timing_scenario(**given)))["rounds"].iloc[0]
    ends_s = merge["now_s"] - (1 - share) * merge["server_s"]
    run = simulate_null(timing_scenario(**given, stop={"sim_time": float(ends_s)}))
    assert run.session.now_s == ends_s
    assert run.ledger.server_j(ends_s) == pytest.approx((2 * ends_s, 3 * share * merge["server_s"]))
    assert len(frames(run)["rounds"]) == 0


def test_training_and_timing_agree(tmp_path):
    """A run that trains spends the same seconds and joules on the server as one that does not."""
    given = {"server": {"flops_per_s": "1 MFLOP/s", "busy": "3 W"}, "stop": {"rounds": 2}}
    trained = simulate(digits_scenario(**given), tmp_path / "run")
    timed = frames(simulate_null(digits_scenario(**given, backend="null")))
    columns = ["round", "now_s", "server_s", "energy_j", "total_energy_j"]
    assert (timed["rounds"]["server_s"] > 0).all()
    pd.testing.assert_frame_equal(trained.table("rounds")[columns], timed["rounds"][columns])


def test_a_server_that_gets_nothing_does_nothing():
    """A round in which everybody is late has nothing to average."""
    run = simulate_null(
        timing_scenario(protocol={"name": "deadline", "deadline": "1 s"}, server={"flops_per_s": SPEED})
    )
    assert frames(run)["rounds"][["used", "server_s"]].to_numpy().tolist() == [[0, 0.0]]
