"""The FedPMT study's timing (its section on experiments): levels, widths and the 26.5 s deadline, in the event loop."""

from __future__ import annotations

import pytest

from tests.conftest import PSI, SPEEDS, frames, simulate_null, timing_scenario

PAPER = {"name": "table", "ratios": [0.46, 0.58, 0.88, 0.94, 1.0]}
DEADLINE = {"name": "deadline", "deadline": "26.5 s"}


def test_full_model_takes_ten_seconds_per_psi():
    """Y1: 14,761,200 FLOPs a sample x 500 samples on psi, psi/2, ... takes 10, 20, 30, 40, 50 s."""
    jobs = frames(simulate_null(timing_scenario()))["jobs"].sort_values("device")
    assert jobs["compute_s"].tolist() == pytest.approx([50, 40, 30, 20, 10], rel=1e-12)
    assert jobs["flops"].tolist() == [14_761_200 * 500] * 5


@pytest.mark.parametrize(
    ("cost", "seconds"),
    [(PAPER, [23.0, 23.2, 26.4, 18.8, 10.0]), ("measured", [18.811479, 15.878384, 14.144379, 13.982061, 10.0])],
)
def test_widths_by_level(cost, seconds):
    """Y1: FedPMT's times under the published and under the measured cost ratios; the round is the slowest."""
    tables = frames(simulate_null(timing_scenario(method="fedpmt", cost=cost)))
    assert tables["jobs"].sort_values("device")["compute_s"].tolist() == pytest.approx(seconds, abs=1e-6)
    assert tables["rounds"]["now_s"].tolist() == pytest.approx([max(seconds)], abs=1e-6)


def test_fedavg_loses_the_slow_levels():
    """Y2: with 26.5 s only psi/2 and psi arrive; the round lasts until the deadline; the late are charged for it."""
    tables = frames(simulate_null(timing_scenario(protocol=DEADLINE)))
    jobs, merge = tables["jobs"].sort_values("device"), tables["rounds"].iloc[0]
    assert jobs["outcome"].tolist() == ["late", "late", "late", "ok", "ok"]
    assert merge["now_s"] == 26.5
    assert (merge["used"], merge["late"]) == (2, 3)
    assert jobs["compute_s"].tolist() == pytest.approx([26.5, 26.5, 26.5, 20, 10])
    assert jobs["lacked_s"].tolist() == pytest.approx([50 - 26.5, 40 - 26.5, 30 - 26.5, 0, 0])
    assert jobs["flops"].tolist()[:3] == pytest.approx([26.5 * speed for speed in SPEEDS[:3]])
    assert jobs["up_bytes"].tolist() == [0, 0, 0, 4 * 567_858, 4 * 567_858]


def test_fedpmt_closes_early():
    """Y3: with the paper's costs all five arrive and the round ends at 26.4 s, before the deadline."""
    tables = frames(simulate_null(timing_scenario(method="fedpmt", cost=PAPER, protocol=DEADLINE)))
    assert set(tables["jobs"]["outcome"]) == {"ok"}
    assert tables["rounds"]["now_s"].tolist() == pytest.approx([26.4])


@pytest.mark.parametrize(("cost", "widths"), [(PAPER, [1, 2, 3, 5, 5]), ("measured", [3, 3, 4, 5, 5])])
def test_widths_by_deadline(cost, widths):
    """Y4: the largest width that each level finishes within 26.5 s."""
    scenario = timing_scenario(method={"name": "fedpmt", "rule": "deadline"}, cost=cost, protocol=DEADLINE)
    jobs = frames(simulate_null(scenario))["jobs"].sort_values("device")
    assert jobs["submodel"].tolist() == [f"last{width}" for width in widths]


def test_arrival_exactly_at_the_deadline_counts():
    """The device of psi/2 needs 20 s; a 20 s deadline keeps it and ends the round at 20 s."""
    tables = frames(simulate_null(timing_scenario(protocol={"name": "deadline", "deadline": "20 s"})))
    jobs = tables["jobs"].sort_values("device")
    assert jobs["outcome"].tolist() == ["late", "late", "late", "ok", "ok"]
    assert tables["rounds"]["now_s"].tolist() == [20.0]


def test_empty_round_costs_time_and_keeps_the_model():
    """Nobody makes a 5 s deadline: the clock moves by 5 s a round, the model's version does not."""
    tables = frames(simulate_null(timing_scenario(protocol={"name": "deadline", "deadline": 5}, stop={"rounds": 3})))
    assert tables["rounds"]["now_s"].tolist() == [5, 10, 15]
    assert tables["rounds"]["version"].tolist() == [0, 0, 0]


def test_late_devices_are_free_for_the_next_round():
    """A cancelled device is asked again at once, and its old timeout does not end its new job."""
    tables = frames(simulate_null(timing_scenario(protocol=DEADLINE, stop={"rounds": 4})))
    assert tables["jobs"].groupby("round")["device"].count().tolist() == [5, 5, 5, 5]
    slowest = tables["jobs"][tables["jobs"]["device"] == 0]
    assert slowest["compute_s"].tolist() == pytest.approx([26.5] * 4)
    assert slowest["end_s"].tolist() == pytest.approx([26.5, 53, 79.5, 106])


def test_a_late_update_that_comes_while_the_server_merges_is_one_model_old():
    """Two devices of 10 and 14 s, a deadline of 12 s, merges of one update that take 5 s.

    The server merges device 0 from 12 to 17 s. Device 1 delivers at 14 s and waits. The next round asks both at 17 s,
    and ends at its deadline, 29 s. It merges device 0, and the update of device 1 that is one model old, for 10 s.
    """
    given = {
        "fleet": [{"count": 1, "cpu": {"flops_per_s": PSI * share}} for share in (1, 10 / 14)],
        "protocol": {"name": "deadline", "deadline": "12 s", "late": "keep"},
        "server": {"flops_per_s": 2 * 567_858 / 5},
        "selection": {"name": "uniform", "count": 2},
        "stop": {"rounds": 2},
    }
    tables = frames(simulate_null(timing_scenario(**given)))
    rounds, jobs = tables["rounds"], tables["jobs"].sort_values("end_s")
    assert jobs["end_s"].tolist()[:2] == pytest.approx([10, 14])
    assert rounds["now_s"].tolist() == pytest.approx([17, 29 + 2 * 5])
    assert rounds["used"].tolist() == [1, 2]
    assert rounds["staleness_mean"].tolist() == [0, 0.5]
