"""The server's work takes simulated time and energy, whoever trains."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgesim.core.errors import ConfigError
from edgesim.engine.server_queue import shared_work
from edgesim.engine.world import worked_s
from edgesim.runs.simulate import simulate
from tests.conftest import SPEEDS, digits_scenario, frames, simulate_null, timing_scenario

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


def test_a_round_may_have_seconds_of_its_framework():
    """3 s a round and 9 s more in the first, which begin after the slowest job; the server is idle meanwhile."""
    fleet = [{"count": 3, "cpu": {"flops_per_s": "1 GFLOP/s"}}]
    overheads = {"round_overhead": "3 s", "first_round_overhead": "9 s"}
    plain = simulate_null(timing_scenario(fleet=fleet, stop={"rounds": 2}))
    run = simulate_null(timing_scenario(fleet=fleet, stop={"rounds": 2}, server={**overheads, "idle": "2 W"}))
    ends_s = frames(plain)["rounds"]["now_s"]
    rounds = frames(run)["rounds"]
    assert rounds["now_s"].tolist() == pytest.approx((ends_s + [12.0, 15.0]).tolist())
    assert rounds["server_s"].tolist() == pytest.approx([12.0, 3.0])
    assert run.ledger.server_j(run.session.now_s) == pytest.approx((2 * (ends_s.iloc[-1] + 15.0), 0.0))


@pytest.mark.parametrize(("speed", "workers"), [("inf", 1), (SPEED, 1), ("inf", 3)])
def test_a_server_may_take_seconds_a_byte(speed, workers):
    """Three updates of 4 P bytes each, one after the other, or one on each worker."""
    fleet = [{"count": 3, "cpu": {"flops_per_s": "1 GFLOP/s"}}]
    server = {"flops_per_s": speed, "per_byte": "5 ns", "workers": workers, "busy": "5 W"}
    run = simulate_null(timing_scenario(fleet=fleet, server=server))
    up_bytes = frames(run)["jobs"]["up_bytes"].tolist()
    update_s = 5e-9 * up_bytes[0] + 2 * params_of(run) / float(speed)
    assert frames(run)["rounds"]["server_s"].tolist() == pytest.approx([3 / workers * update_s])
    assert run.ledger.server_j(run.session.now_s)[1] == pytest.approx(5 * 3 * update_s)


def test_a_server_may_test_each_model():
    """It runs forward passes of 100 samples after the merge."""
    fleet = [{"count": 3, "cpu": {"flops_per_s": "1 GFLOP/s"}}]
    run = simulate_null(timing_scenario(fleet=fleet, server={"flops_per_s": SPEED, "test_samples": 100}))
    flops = 6 * params_of(run) + 100 * run.parts.setting.cost_profile.forward_flops()
    assert frames(run)["rounds"]["server_s"].tolist() == pytest.approx([flops / SPEED])


def test_a_server_tests_when_the_model_is_evaluated():
    """Every third round, and the last two of eight."""
    evaluation, server = {"every": 3, "last": 2}, {"flops_per_s": SPEED, "test_samples": 100}
    run = simulate_null(timing_scenario(server=server, evaluation=evaluation, stop={"rounds": 8}))
    merge_s = len(SPEEDS) * 2 * params_of(run) / SPEED
    test_s = 100 * run.parts.setting.cost_profile.forward_flops() / SPEED
    expected = [merge_s + test_s * (round_ in (2, 5, 6, 7)) for round_ in range(8)]
    assert frames(run)["rounds"]["server_s"].tolist() == pytest.approx(expected)


def test_a_server_tests_each_of_several_networks():
    """All of them on all samples, as their scores say; a device sends its own network alone."""
    fleet = [{"cpu": {"flops_per_s": "1 GFLOP/s"}, "model": model} for model in ("cnn_cifar10", "lenet5")]
    run = simulate_null(timing_scenario(fleet=fleet, server={"flops_per_s": SPEED, "test_samples": 100}))
    each = run.parts.setting.cost_profile.networks.values()
    flops = sum(2 * profile.params + 100 * profile.forward_flops() for profile in each)
    assert len(each) == 2 and frames(run)["rounds"]["server_s"].tolist() == pytest.approx([flops / SPEED])


def test_tests_at_infinite_speed_are_refused():
    """They would take no time."""
    with pytest.raises(ConfigError, match=r"server\.test_samples: needs flops_per_s"):
        timing_scenario(server={"test_samples": 100})


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


# --- several workers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("updates", "own", "workers", "expected"),
    [
        ([3, 1, 1, 2], 0, 1, [7]),
        ([3, 1, 1, 2], 5, 1, [12]),
        ([3, 1, 1, 2], 0, 2, [3, 4]),  # the second worker: 0-1, 1-2, and the last one 2-4
        ([3, 1, 1, 2], 5, 2, [3, 9]),  # when all are through at 4, it goes on alone
        ([2, 2, 2], 0, 2, [4, 2]),  # both are free at 2: the first takes the third
        ([3, 3], 1, 4, [4, 3, 0, 0]),
        ([], 6, 3, [6, 0, 0]),
    ],
)
def test_who_takes_which_update(updates, own, workers, expected):
    """Schedules by hand: in their order, to whoever is free first; the method's own work follows."""
    assert shared_work(updates, own, workers) == expected


@given(count=st.integers(0, 40), workers=st.integers(1, 9), each=st.floats(1, 1e9))
def test_equal_updates_take_turns(count, workers, each):
    """Closed form: of n equal updates c workers do ceil(n / c) in a row."""
    assert max(shared_work([each] * count, 0.0, workers)) == pytest.approx(-(-count // workers) * each)


@given(updates=st.lists(st.floats(0, 100), min_size=1, max_size=30), workers=st.integers(1, 9))
def test_no_schedule_is_far_from_the_best(updates, workers):
    """Graham 1969: list scheduling lasts at most total / c + (1 - 1 / c) longest, and no less than either bound."""
    loads = shared_work(updates, 0.0, workers)
    assert sum(loads) == pytest.approx(sum(updates))
    mean, longest = sum(updates) / workers, max(updates)
    assert max(mean, longest) * (1 - 1e-9) <= max(loads) <= (mean + (1 - 1 / workers) * longest) * (1 + 1e-9) + 1e-9


def test_what_workers_have_done_by_a_moment():
    """Of 3 s and 1 s: after 0.5 s half a second each, after 2 s the second has nothing to do."""
    assert [worked_s([3.0, 1.0], at_s) for at_s in (0.5, 2.0, 3.0)] == [[0.5, 0.5], [2.0, 1.0], [3.0, 1.0]]


THREE = {"fleet": [{"count": 3, "cpu": {"flops_per_s": "1 GFLOP/s"}}]}
AT_WORK = {"flops_per_s": SPEED, "idle": "2 W", "busy": "5 W"}


@pytest.mark.parametrize(("workers", "in_a_row"), [(1, 3), (2, 2), (3, 1), (7, 1)])
def test_several_workers_average_at_the_same_time(workers, in_a_row):
    """Three updates of P numbers: 2P FLOPs each, in turns; each busy worker adds 3 W, so joules are the same."""
    run = simulate_null(timing_scenario(**THREE, server={**AT_WORK, "workers": workers}))
    rounds, update_s = frames(run)["rounds"], 2 * params_of(run) / SPEED
    assert rounds["server_s"].tolist() == pytest.approx([in_a_row * update_s], rel=1e-12)
    assert run.ledger.server_j(run.session.now_s)[1] == pytest.approx(3 * 3 * update_s, rel=1e-12)


def test_a_run_that_ends_in_mid_merge_charges_each_worker():
    """Two workers, three updates: after 1.5 updates' time one has worked all of it, the other one update's time."""
    given = {**THREE, "server": {**AT_WORK, "workers": 2}}
    whole = simulate_null(timing_scenario(**given))
    merge, update_s = frames(whole)["rounds"].iloc[0], 2 * params_of(whole) / SPEED
    ends_s = float(merge["now_s"] - 0.5 * update_s)
    run = simulate_null(timing_scenario(**given, stop={"sim_time": ends_s}))
    assert run.ledger.server_j(ends_s) == pytest.approx((2 * ends_s, 3 * 2.5 * update_s))


def test_unequal_updates_are_taken_in_the_order_in_which_they_came():
    """Submodels of five levels on two workers, against a queue worked through here."""
    run = simulate_null(timing_scenario(method="heterofl", server={**AT_WORK, "workers": 2}))
    tables = frames(run)
    flops = 2 * tables["jobs"].sort_values("end_s")["up_bytes"].to_numpy() / 4
    free_s = np.zeros(2)
    for each in flops:
        free_s[free_s.argmin()] += each / SPEED
    assert len(set(flops)) == 5
    assert tables["rounds"]["server_s"].tolist() == pytest.approx([free_s.max()], rel=1e-12)


def test_one_update_a_merge_leaves_nothing_to_share():
    """FedAsync merges one update at a time, and a merge has the global model to itself: more workers stand by."""
    given = {"method": "fedasync", "protocol": {"name": "buffered", "concurrency": 3, "buffer": 1}, **THREE}
    one, four = (
        frames(simulate_null(timing_scenario(**given, stop={"rounds": 6}, server={**AT_WORK, "workers": workers})))
        for workers in (1, 4)
    )
    for name, table in one.items():
        pd.testing.assert_frame_equal(table, four[name], check_exact=True)
