"""Who decided the length of a round: schedules small enough to be solved by hand."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import edgesim
from edgesim.cli.look import parse_rounds
from edgesim.core.errors import ConfigError
from edgesim.reports.critical_path import (
    attribute,
    attributed,
    critical_jobs,
    explain,
    next_to_end,
    phase_intervals_s,
    round_row,
)
from edgesim.reports.load import open_run
from tests.conftest import digits_scenario, frames, simulate_null, timing_scenario
from tests.records.written import manifest_of, new_tables, whole, write_run
from tests.sizes import examples

SPENT = ["down_s", "compute_s", "up_s", "link_wait_s", "wait_s", "server_s"]


def jobs_of(*rows):
    """Return a jobs table from (device, round, sent_s, down_s, compute_s, up_s[, outcome[, lacked_s]]) a job."""
    table = new_tables()["jobs"]
    for job, (device, round_, sent_s, down_s, compute_s, up_s, *ended) in enumerate(rows):
        outcome, lacked_s = (*ended, *("ok", 0.0)[len(ended) :])
        end_s = sent_s + down_s + compute_s + up_s
        head = (job, device, round_, round_, "train", "full", sent_s, down_s, compute_s, up_s, 0.0, 0.0, end_s)
        table.append((*head, outcome, lacked_s, 1e6, 10, 20, 0, 0.5, 2.0, 1.0, 0.0, 0.0))
    return table.frame()


def merges_of(*rows, server_s=0.0, closed_by="all", deadline_s=np.inf):
    """Return a merges table from (start_s, now_s), one a round."""
    table = new_tables()["rounds"]
    for round_, (start_s, now_s) in enumerate(rows):
        table.append((round_, round_ + 1, start_s, now_s, 3, 2, 1, closed_by, deadline_s, 0.0, server_s, *([0] * 14)))
    return table.frame()


def shares(frame, row=0):
    """Return device and the seconds that are not zero."""
    found = frame.iloc[row].to_dict()
    return {"device": found["device"]} | {name: found[name] for name in SPENT if found[name] != 0.0}


def test_the_last_to_end_decides_and_its_phases_are_the_round():
    jobs = jobs_of((4, 0, 0.0, 1.0, 2.0, 3.0), (7, 0, 0.0, 1.0, 8.0, 0.5), (9, 0, 0.0, 4.0, 2.0, 2.0))
    found = attribute(jobs, merges_of((0.0, 9.5)))
    assert shares(found) == {"device": 7, "down_s": 1.0, "compute_s": 8.0, "up_s": 0.5}
    assert list(found) == ["round", "device", *SPENT]


def test_of_jobs_cut_off_together_the_lowest_device_counts():
    """Devices 2 and 5 are late at the deadline of 10 s; the server then needs 2 s."""
    jobs = jobs_of((5, 0, 0.0, 1.0, 9.0, 0.0, "late"), (2, 0, 0.0, 1.0, 8.0, 1.0, "late"), (3, 0, 0.0, 1.0, 1.0, 1.0))
    found = attribute(jobs, merges_of((0.0, 12.0), server_s=2.0))
    assert shares(found) == {"device": 2, "down_s": 1.0, "compute_s": 8.0, "up_s": 1.0, "server_s": 2.0}


def test_what_no_job_fills_is_waiting():
    """The only job is dropped after 3 s, the deadline is at 10 s; in the next round nobody is at work."""
    jobs = jobs_of((6, 0, 0.0, 1.0, 2.0, 0.0, "dropped"))
    found = attribute(jobs, merges_of((0.0, 10.0), (10.0, 15.0)))
    assert shares(found) == {"device": 6, "down_s": 1.0, "compute_s": 2.0, "wait_s": 7.0}
    assert shares(found, 1) == {"device": -1, "wait_s": 5.0}


def test_exchanges_are_chained():
    """Probes take 2 s and 3 s, then training 7 s and 6 s: 3 + 7, decided by device 1 and then by device 0."""
    probes = (0, 0, 0.0, 1.0, 0.0, 1.0), (1, 0, 0.0, 1.0, 0.0, 2.0)
    training = (0, 0, 3.0, 1.0, 5.0, 1.0), (1, 0, 3.0, 1.0, 4.0, 1.0)
    jobs, rounds = jobs_of(*probes, *training), merges_of((0.0, 10.0))
    assert shares(attribute(jobs, rounds)) == {"device": 0, "down_s": 2.0, "compute_s": 5.0, "up_s": 3.0}
    path = critical_jobs(jobs, rounds)
    assert path[["job", "device", "start_s", "end_s"]].to_numpy().tolist() == [[1, 1, 0, 3], [2, 0, 3, 10]]


def test_a_job_that_began_in_an_earlier_round_counts_from_the_start_of_the_round():
    """Device 8 is asked in round 0 and merged in round 1: of its 2 + 9 + 1 s the last 6 + 1 lie in round 1."""
    jobs = jobs_of((1, 0, 0.0, 1.0, 3.0, 1.0), (8, 0, 0.0, 2.0, 9.0, 1.0), (1, 1, 5.0, 1.0, 3.0, 1.0))
    found = attribute(jobs, merges_of((0.0, 5.0), (5.0, 12.0)))
    assert shares(found) == {"device": 1, "down_s": 1.0, "compute_s": 3.0, "up_s": 1.0}
    assert shares(found, 1) == {"device": 8, "compute_s": 6.0, "up_s": 1.0}


def test_waiting_for_a_shared_link_is_taken_from_the_transfers():
    """Of 2 + 6 s in transfers 4 s were waiting: a half of each."""
    jobs = jobs_of((3, 0, 0.0, 2.0, 5.0, 6.0)).assign(link_wait_s=[4.0])
    found = attribute(jobs, merges_of((0.0, 13.0)))
    assert shares(found) == {"device": 3, "down_s": 1.0, "compute_s": 5.0, "up_s": 3.0, "link_wait_s": 4.0}


def test_jobs_cut_off_by_the_end_of_the_run_decide_nothing():
    ended, stopped = (4, 0, 0.0, 1.0, 2.0, 6.0), (0, 0, 0.0, 1.0, 8.0, 0.0, "stopped")
    jobs = jobs_of(stopped, ended, (2, 1, 9.0, 1.0, 0.0, 0.0, "stopped"))
    assert shares(attribute(jobs, merges_of((0.0, 9.0)))) == {"device": 4, "down_s": 1.0, "compute_s": 2.0, "up_s": 6.0}
    assert attribute(jobs, merges_of()).empty


seconds = st.floats(0, 1e3)
exchange = st.lists(st.tuples(seconds, seconds, seconds), min_size=1, max_size=4)


@settings(max_examples=examples(60), deadline=None)
@given(rounds=st.lists(st.lists(exchange, min_size=1, max_size=3), min_size=1, max_size=4), server_s=seconds)
def test_a_path_is_made_of_the_longest_job_of_each_exchange(rounds, server_s):
    """Rounds laid out by hand, one exchange after another; the parts add up to the round."""
    now_s, rows, bounds, compute_s = 0.0, [], [], []
    for number, exchanges in enumerate(rounds):
        start_s, expected_s = now_s, 0.0
        for work in exchanges:
            ends = [now_s + down + compute + up for down, compute, up in work]
            longest = int(np.argmax(ends))  # the first of equal ones, so the lowest device
            expected_s += work[longest][1] if ends[longest] > now_s else 0.0
            rows += [(device, number, now_s, *job) for device, job in enumerate(work)]
            now_s = max(ends)
        now_s += server_s
        bounds.append((start_s, now_s))
        compute_s.append(expected_s)
    found = attribute(jobs_of(*rows), merges_of(*bounds, server_s=server_s))
    lengths = [end - start for start, end in bounds]
    assert found[SPENT].sum(axis=1).tolist() == pytest.approx(lengths, abs=1e-9)
    assert found["compute_s"].tolist() == pytest.approx(compute_s, abs=1e-9)
    assert (found[SPENT] >= 0).all().all()


def test_on_the_engines_own_tables():
    """Full CNN-CIFAR10 on psi/5 ... psi takes 50, 40, 30, 20, 10 s; with a deadline of 26.5 s device 0 is cut off."""
    free = frames(simulate_null(timing_scenario(stop={"rounds": 2})))
    found = attribute(free["jobs"], free["rounds"])
    assert found["device"].tolist() == [0, 0]
    assert found["compute_s"].tolist() == pytest.approx([50.0, 50.0])
    late = frames(simulate_null(timing_scenario(protocol={"name": "deadline", "deadline": "26.5 s"})))
    assert shares(attribute(late["jobs"], late["rounds"])) == {"device": 0, "compute_s": 26.5}


def test_next_to_end_and_round_numbers():
    jobs = jobs_of((4, 0, 0.0, 1.0, 2.0, 3.0), (7, 0, 0.0, 1.0, 8.0, 0.5), (2, 0, 0.0, 1.0, 2.0, 3.0))
    assert next_to_end(jobs, 1)["device"].tolist() == [2]  # ended with device 4
    assert next_to_end(jobs[jobs["job"] == 1], 1).empty
    rounds = merges_of((0.0, 1.0), (1.0, 2.0))
    assert round_row(rounds, 2) == 1
    with pytest.raises(ConfigError, match=r"^--round: the run has rounds 1 to 2, found 3$"):
        round_row(rounds, 3)
    with pytest.raises(ConfigError, match="no closed round, found 1"):
        round_row(merges_of(), 1)


def test_protocols_without_rounds_start_and_end_anywhere():
    """Buffered by hand: merges at 4, 9 and 10 s, each with 0.5 s of server work; device 7 is asked in the first round.

    Round 2: device 3 ends at 8.5 s and was sent at 4 s, so its 1 + 3 + 0.5 s fill all. Round 3: device 7 (0.25 + 9 +
    0.25 s from 0 s on) ends as the buffer fills at 9.5 s; of it only the time from 9 s on lies in the round. Device 3,
    sent at 9 s, is cut off by the end of the run.
    """
    jobs = jobs_of(
        (7, 0, 0.0, 0.25, 9.0, 0.25), (3, 0, 0.0, 1.0, 2.0, 0.5), (3, 1, 4.0, 1.0, 3.0, 0.5),
        (3, 2, 9.0, 1.0, 0.0, 0.0, "stopped"),
    )  # fmt: skip
    found = attribute(jobs, merges_of((0.0, 4.0), (4.0, 9.0), (9.0, 10.0), server_s=0.5))
    assert [shares(found, row) for row in range(3)] == [
        {"device": 3, "down_s": 1.0, "compute_s": 2.0, "up_s": 0.5, "server_s": 0.5},
        {"device": 3, "down_s": 1.0, "compute_s": 3.0, "up_s": 0.5, "server_s": 0.5},
        {"device": 7, "compute_s": 0.25, "up_s": 0.25, "server_s": 0.5},
    ]


@settings(max_examples=examples(60), deadline=None)
@given(
    jobs=st.lists(st.tuples(st.floats(0, 50), seconds, seconds, seconds, st.integers(0, 9)), max_size=12),
    gaps_s=st.lists(st.floats(0, 100), max_size=8),
    server_s=st.floats(0, 1),
)
def test_whenever_jobs_begin_and_merges_happen_the_seconds_add_up(jobs, gaps_s, server_s):
    """Jobs of random times and rounds; merges follow each other after random gaps, each with some server work."""
    ends = np.cumsum([0.0, *(gap + server_s for gap in gaps_s)])
    rows = [(i, min(round_, len(gaps_s)), sent, *spent) for i, (sent, *spent, round_) in enumerate(jobs)]
    rounds = merges_of(*pairwise(ends), server_s=server_s)
    found = attribute(jobs_of(*rows), rounds)
    assert found[SPENT].sum(axis=1).to_numpy() == pytest.approx(np.diff(ends), abs=1e-9)
    assert (found[SPENT] >= 0).all().all()


def test_far_on_the_clock_the_seconds_still_add_up():
    """After 30 years the clock moves in steps of 1.2e-7 s, so that this path fills more than the round has room for."""
    start_s, server_s = 1e9, 0.3
    now_s = start_s + 2.0
    room_s = now_s - start_s - server_s
    assert (now_s - server_s) - start_s > room_s + 1e-9  # what the rounding of the clock does
    found = attribute(jobs_of((0, 0, start_s, 0.5, 1.0, 5.0)), merges_of((start_s, now_s), server_s=server_s))
    assert found[SPENT].sum(axis=1).tolist() == pytest.approx([2.0], abs=1e-12)


def test_waiting_for_peers_lies_between_download_and_computing():
    """1 s down, 4 s until the peers' messages are there, 2 s of computing, 3 s up."""
    jobs = jobs_of((5, 0, 0.0, 1.0, 2.0, 3.0)).assign(wait_s=[4.0], end_s=[10.0])
    begin_s, end_s = phase_intervals_s(jobs)
    assert (begin_s.tolist(), end_s.tolist()) == ([[0, 5, 7]], [[1, 7, 10]])
    found = attribute(jobs, merges_of((0.0, 10.0)))
    assert shares(found) == {"device": 5, "down_s": 1.0, "compute_s": 2.0, "up_s": 3.0, "wait_s": 4.0}


SCENARIOS = {
    "sync": timing_scenario,
    "server": partial(digits_scenario, server={"flops_per_s": "1 MFLOP/s"}),
    "deadline": partial(timing_scenario, protocol={"name": "deadline", "deadline": "26.5 s"}),
    "links of their own": partial(timing_scenario, network={"name": "fixed", "up": "1 Mbit/s", "down": "8 Mbit/s"}),
    "shared links": partial(
        timing_scenario,
        network={"name": "shared", "up": "1 Mbit/s", "down": "4 Mbit/s", "latency": "0.1 s"},
        topology={"name": "star", "server_up": "2 Mbit/s", "server_down": "2 Mbit/s"},
    ),
    "batteries": partial(
        timing_scenario,
        energy={"name": "power", "idle": "0.5 W", "busy": "5 W"},
        fleet=[
            {"count": 2, "cpu": {"flops_per_s": 7.3806e8}, "battery": {"capacity": "60 J"}},
            {
                "count": 2,
                "cpu": {"flops_per_s": 3.6903e8},
                "battery": {"capacity": "20 J", "charge": "2 W", "windows": [["0 s", "1 h"]], "restart": 0.5},
            },
        ],
    ),
}


@pytest.mark.parametrize("kind", SCENARIOS)
def test_the_merges_of_a_run_say_where_its_seconds_went(kind, tmp_path):
    """Three rounds of scenarios that show what they are called after."""
    run = edgesim.run(SCENARIOS[kind](stop={"rounds": 3}), out=tmp_path / "run")
    rounds, critical = run.rounds, run.rounds[[f"critical_{name}" for name in SPENT[:-1]]]
    length_s = rounds["now_s"] - rounds["start_s"]
    assert len(rounds) == 3
    assert (critical.sum(axis=1) + rounds["server_s"]).tolist() == pytest.approx(length_s.tolist(), abs=1e-9)
    assert (critical >= 0).all().all()
    found = attribute(run.jobs, rounds)
    assert critical.to_numpy().tolist() == found[SPENT[:-1]].to_numpy().tolist()
    assert rounds["critical_device"].tolist() == found["device"].tolist()
    shown = {
        "server": rounds["server_s"],
        "deadline": run.jobs["outcome"].eq("late"),
        "links of their own": rounds["critical_up_s"],
        "shared links": rounds["critical_link_wait_s"],
        "batteries": run.jobs["outcome"].eq("battery"),
    }
    assert kind not in shown or shown[kind].any()


def test_without_rounds_or_jobs_there_are_columns_all_the_same(tmp_path):
    run = edgesim.run(timing_scenario(stop={"rounds": 1, "sim_time": "5 s"}), out=tmp_path / "run")
    assert (len(run.rounds), set(run.jobs["outcome"])) == (0, {"stopped"})
    idle = attributed(jobs_of(), merges_of((0.0, 5.0)))
    assert idle["critical_wait_s"].tolist() == [5.0]
    assert idle["critical_device"].tolist() == [-1]
    assert attributed(jobs_of(), merges_of()).columns.tolist() == idle.columns.tolist()


@pytest.fixture
def write_tables(tmp_path):
    """Return a maker of runs from their jobs and merges; all devices are of the kind Psi/5."""

    def write(jobs, rounds):
        tables = whole(new_tables()) | {"jobs": jobs, "rounds": attributed(jobs, rounds)}
        devices = new_tables()["devices"]
        for device in [*sorted(set(jobs["device"])), -1]:
            devices.append((device, "server" if device < 0 else "Psi/5", 1, 1, 1, 1.0, 10, 20, 0.0, 0.0, 0.0, 0.0, 0.0))
        write_run(tmp_path / "run", tables | {"devices": devices.frame()}, manifest_of({}), {})
        return open_run(tmp_path / "run")

    return write


def test_explained_in_words(write_tables):
    """The second round starts at 30 s: probes until 33 s, training until 80 s, 2 s of server work."""
    late = (3, 0, 0.0, 5.0, 15.0, 0.0, "late", 9.0), (4, 0, 0.0, 5.0, 3.0, 12.0, "late", 2.0)
    first_round = *late, (5, 0, 0.0, 1.0, 1.0, 1.0)
    probes = (3, 1, 30.0, 1.0, 0.0, 2.0), (7, 1, 30.0, 1.0, 0.0, 1.5)
    training = (3, 1, 33.0, 0.4, 46.2, 0.4), (7, 1, 33.0, 1.0, 35.0, 4.0)
    rounds = merges_of((0.0, 20.0), (30.0, 82.0))
    rounds.loc[0, ["closed_by", "deadline_s"]] = "deadline", 20.0
    rounds.loc[1, "server_s"] = 2.0
    run = write_tables(jobs_of(*first_round, *probes, *training), rounds)
    assert explain(run, 1).splitlines() == [
        "Round 1 took 20 s; 2 of 3 jobs merged.",
        "The deadline of 20 s ended it, with 2 jobs late: device 4 (Psi/5) lacked 2 s after 12 s of uploading; "
        "device 3 (Psi/5) lacked 9 s after 15 s of computing. Without any one of them it would have taken as long.",
    ]
    assert explain(run, 2).splitlines() == [
        "Round 2 took 52 s; 2 of 3 jobs merged.",
        "Exchange 1 of 2: device 3 (Psi/5) was the last: download 1 s, upload 2 s. "
        "Next to end was device 7 (Psi/5), 500 ms before.",
        "All jobs had ended; device 3 (Psi/5) was the last: download 400 ms, compute 46.2 s, upload 400 ms. "
        "Next to end was device 7 (Psi/5), 7 s before.",
        "The server's work took 2 s.",
    ]
    with pytest.raises(ConfigError, match="rounds 1 to 2, found 3"):
        explain(run, 3)


def test_only_the_nearest_to_delivery_are_told(write_tables):
    left = [(device, 0, 0.0, 1.0, 9.0 - 0.5 * device, 0.5 * device, "offline") for device in range(1, 8)]
    told = explain(write_tables(jobs_of(*left), merges_of((0.0, 10.0))), 1).splitlines()[-1]
    assert told.startswith("Offline: device 7 (Psi/5) after 3.5 s of uploading; device 6")
    assert told.endswith("device 3 (Psi/5) after 1.5 s of uploading; 2 more.")


def test_partial_updates_are_no_failures(write_tables):
    """Both ended at 5 s; the one cut short is named only because it counts as the last."""
    run = write_tables(
        jobs_of((1, 0, 0.0, 1.0, 3.0, 1.0, "partial"), (2, 0, 0.0, 1.0, 3.0, 1.0)), merges_of((0.0, 5.0))
    )
    assert explain(run, 1).splitlines()[1:] == [
        "All jobs had ended; device 1 (Psi/5) was the last (outcome: partial): download 1 s, compute 3 s, upload 1 s. "
        "Without it the round would have taken as long (device 2 (Psi/5))."
    ]


def test_a_round_without_jobs_is_explained(write_tables):
    run = write_tables(jobs_of(), merges_of((0.0, 5.0)))
    assert explain(run, 1).splitlines()[1:] == [
        "No device was at work.",
        "5 s passed in waiting for others.",
    ]


def test_ranges_of_rounds():
    assert parse_rounds("3:5") == (3, 5) and parse_rounds("4") == (4, 4)
    for wrong in ("", "5:3", "0:2", "a", "1:", "-1"):
        with pytest.raises(ConfigError, match=r"^--rounds: '.*' is not a range of rounds; write for example 3:5"):
            parse_rounds(wrong)
