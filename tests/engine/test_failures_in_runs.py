"""What breaks in mid-job, in the event loop: outcomes, and charges up to the instant it happened."""

from __future__ import annotations

import numpy as np
import pytest

from edgesim.runs.simulate import simulate
from tests.conftest import PSI, digits_scenario, frames, simulate_null, timing_scenario
from tests.sizes import spread, thinned

BITS = 8 * 4 * 567_858  # CNN-CIFAR10, one way
POWER = {"name": "power", "idle": "2 W", "busy": "5 W", "transmit": "1 W", "receive": "0.5 W"}
OWN = {"name": "fixed", "up": "1 Mbit/s", "down": "4 Mbit/s", "latency": "0.1 s"}
LINKS = {"own": OWN, "shared": {**OWN, "name": "shared"}}
DOWN_S, COMPUTE_S, UP_S = 0.1 + BITS / 4e6, 10.0, 0.1 + BITS / 1e6  # with the links to oneself
PHASES = ["down_s", "compute_s", "up_s"]
JOULES = ["down_j", "compute_j", "up_j"]


def run_of(links="own", devices=1, **changes):
    """Run devices of 10 s of computing in a timing-only scenario."""
    fleet = [{"count": devices, "cpu": {"flops_per_s": PSI}, **changes.pop("block", {})}]
    return simulate_null(timing_scenario(energy=POWER, network=LINKS[links], fleet=fleet, **changes))


@pytest.mark.parametrize("links", LINKS)
@pytest.mark.parametrize(("phase", "place"), [("download", 0), ("training", 1), ("upload", 2)])
def test_a_crash_ends_a_job_inside_its_phase(links, phase, place):
    """Phases before the crash are complete, it lies inside its own, and joules follow the seconds of each."""
    crash = {"name": "crash", "probability": 1.0, "phase": phase}
    (job,) = frames(run_of(links, failures=[crash]))["jobs"].to_dict("records")
    full_s = [DOWN_S, COMPUTE_S, UP_S]
    assert job["outcome"] == "crashed"
    assert [job[name] for name in PHASES[:place]] == pytest.approx(full_s[:place])
    assert 0 < job[PHASES[place]] < full_s[place]
    assert [job[name] for name in PHASES[place + 1 :]] == [0.0] * (2 - place)
    assert job["end_s"] == pytest.approx(sum(job[name] for name in PHASES))
    latency_s = np.array([0.1, 0.0, 0.1])
    on_s = np.maximum(np.array([job[name] for name in PHASES]) - latency_s, 0.0)
    expected_j = on_s * [0.5, 3.0, 1.0]
    assert [job[name] for name in JOULES] == pytest.approx(expected_j.tolist())


@pytest.mark.parametrize("links", LINKS)
def test_both_kinds_of_links_crash_alike(links):
    """A moment inside the training is the same over own and shared links."""
    crash = {"name": "crash", "probability": 1.0, "phase": "training"}
    jobs = frames(run_of(links, devices=20, failures=[crash]))["jobs"].sort_values("device")
    reference = frames(run_of("own", devices=20, failures=[crash]))["jobs"].sort_values("device")
    assert jobs["end_s"].to_numpy() == pytest.approx(reference["end_s"].to_numpy(), rel=1e-12)


@pytest.mark.parametrize("slower", thinned([1, 1e5], [1]), ids=["minutes", "years"])
@pytest.mark.parametrize("links", spread(LINKS, 1))
def test_a_battery_that_lasts_is_never_empty(links, slower):
    """However the seconds of latencies and phases are rounded, and however late in a run: a year has 3e7 seconds."""
    block = {"cpu": {"flops_per_s": {"uniform": [PSI / slower, 2 * PSI / slower]}}, "battery": {"capacity": "1 TJ"}}
    network = {**LINKS[links], "latency": {"uniform": ["5 ms", "500 ms"]}}
    run = simulate_null(
        timing_scenario(energy=POWER, network=network, fleet=[{"count": 20, **block}], stop={"rounds": 40})
    )
    assert frames(run)["jobs"]["outcome"].tolist() == ["ok"] * 800
    assert run.session.now_s > 250 * slower


@pytest.mark.parametrize("links", LINKS)
def test_a_battery_dies_at_the_same_instant(links):
    """By hand: 2 W idle for the whole time, 0.5 W more on air, 3 W more while computing, from 40 J.

    Download: 2 x 4.64 + 0.5 x 4.54 = 11.56 J. The rest, 28.4 J, lasts 5.69 s at 5 W.
    """
    run = run_of(links, block={"battery": {"capacity": "40 J"}})
    (job,) = frames(run)["jobs"].to_dict("records")
    left_j = 40 - 2 * DOWN_S - 0.5 * (DOWN_S - 0.1)
    assert job["outcome"] == "battery"
    assert job["compute_s"] == pytest.approx(left_j / 5)
    assert job["down_j"] + job["compute_j"] + 2 * job["end_s"] == pytest.approx(40)
    assert run.rounds.stop_reason is not None


@pytest.mark.parametrize("links", LINKS)
def test_who_leaves_in_mid_job_is_offline(links):
    """A device that leaves for ever at 7 s has computed for 7 s less its download."""
    run = run_of(links, availability={"name": "lifetime", "leave": "7 s"})
    (job,) = frames(run)["jobs"].to_dict("records")
    assert (job["outcome"], job["end_s"]) == ("offline", 7.0)
    assert job["compute_s"] == pytest.approx(7 - DOWN_S)


@pytest.mark.parametrize("links", LINKS)
def test_who_leaves_when_its_job_arrives_has_delivered(links):
    """At that very instant; a microsecond before it has not."""
    (end_s,) = frames(run_of(links))["jobs"]["end_s"]
    for leave_s, outcome in (end_s, "ok"), (end_s - 1e-6, "offline"):
        run = run_of(links, availability={"name": "lifetime", "leave": leave_s})
        assert frames(run)["jobs"]["outcome"].tolist() == [outcome]


def test_a_run_that_nobody_can_continue_says_so():
    """The only device leaves for ever in its second job: the run ends with that reason, not with an error."""
    run = run_of(availability={"name": "lifetime", "leave": "40 s"}, stop={"rounds": 5})
    assert frames(run)["jobs"]["outcome"].tolist() == ["ok", "offline"]
    assert "no device can take part any more" in run.rounds.stop_reason


def test_the_clock_waits_for_whoever_comes_next():
    """Nobody is there before 100 s: the round starts then, and its length holds the wait."""
    run = run_of(availability={"name": "lifetime", "join": "100 s"})
    tables = frames(run)
    assert tables["jobs"]["sent_s"].tolist() == [100.0]
    assert tables["rounds"]["start_s"].tolist() == [0.0]
    assert tables["rounds"]["now_s"].tolist() == pytest.approx([100 + DOWN_S + COMPUTE_S + UP_S])


@pytest.mark.parametrize("links", LINKS)
def test_transfers_stand_still_while_the_link_is_down(links):
    """Every transfer second passes with the link up; pauses make phases longer but cost no radio."""
    outage = {"name": "link_outage", "up": "3 s", "down": "2 s"}
    run = run_of(links, devices=30, failures=[outage])
    jobs = frames(run)["jobs"].sort_values("device")
    assert (jobs["outcome"] == "ok").all()
    assert (jobs["up_s"] > UP_S + 0.5).sum() > 15  # 18 s of upload meet six outages on average
    assert jobs["up_j"].to_numpy() == pytest.approx(np.full(30, 1.0 * (UP_S - 0.1)), rel=1e-9)
    assert jobs["compute_s"].to_numpy() == pytest.approx(np.full(30, COMPUTE_S))


@pytest.mark.parametrize("deadline_s", [4.0, 25.0])
def test_what_is_broken_off_has_sent_what_flowed(deadline_s):
    """A deadline in mid-transfer: over own links, too, nothing flows and no radio draws while the link is down."""
    outage = {"name": "link_outage", "up": "3 s", "down": "2 s"}
    late = {"name": "deadline", "deadline": deadline_s}
    own, shared = (
        frames(run_of(links, devices=30, failures=[outage], protocol=late))["jobs"].sort_values("device")
        for links in LINKS
    )
    assert own["outcome"].tolist() == shared["outcome"].tolist()
    assert (own["outcome"] == "late").sum() > 20
    for column in ("down_bytes", "up_bytes", "down_j", "up_j"):
        assert own[column].to_numpy() == pytest.approx(shared[column].to_numpy(), rel=1e-9, abs=1.001)
    busy_s = own["down_s"] + own["up_s"] - 0.1 - (own["up_s"] > 0) * 0.1
    assert (own["down_j"] / 0.5 + own["up_j"] / 1.0 < busy_s - 0.5).sum() > 10


def test_partial_work_returns_what_it_has(tmp_path):
    """Devices stop after part of their steps: the true count reaches `merge`, and the price is in proportion."""
    given = {"stop": {"rounds": 2}, "method": "tests.plugins.counting:CountsSteps"}
    whole = simulate(digits_scenario(**given), tmp_path / "whole")
    cut = simulate(digits_scenario(**given, failures={"name": "partial_work", "probability": 1.0}), tmp_path / "cut")
    assert set(cut.jobs["outcome"]) == {"partial"}
    full, part = (_with_steps(run).query("round == 0").set_index("device") for run in (whole, cut))
    full = full.loc[part.index]
    assert ((part["value"] >= 1) & (part["value"] < full["value"])).all()
    ratio = part["value"] / full["value"]
    assert part["flops"].to_numpy() == pytest.approx((full["flops"] * ratio).to_numpy())
    assert part["compute_s"].to_numpy() == pytest.approx((full["compute_s"] * ratio).to_numpy())


def test_partial_work_is_sent_when_it_is_done(tmp_path):
    """The uplink is ten times as fast from second 8 on, when all of the 10 s of computing would end after it."""
    series = tmp_path / "rates.csv"
    series.write_text("time_s,up_bps,down_bps\n0,1e6,1e9\n8,1e7,1e9\n")
    network = {"name": "trace", "file": str(series), "repeat": False}
    run = simulate_null(
        timing_scenario(
            energy=POWER,
            network=network,
            fleet=[{"count": 20, "cpu": {"flops_per_s": PSI}}],
            failures={"name": "partial_work", "probability": 1.0},
        )
    )
    jobs = frames(run)["jobs"]
    begins_s = jobs["down_s"] + jobs["compute_s"]
    before_s = np.maximum(8.0 - begins_s, 0.0)  # of the upload, at 1 Mbit/s; a whole one is 18 Mbit
    assert (begins_s < 8).sum() > 10 < len(jobs)
    assert jobs["up_s"].to_numpy() == pytest.approx((before_s + (BITS - 1e6 * before_s) / 1e7).to_numpy())
    assert jobs["up_j"].to_numpy() == pytest.approx(jobs["up_s"].to_numpy())


def _with_steps(run):
    """Return the jobs of a run, each with the steps that reached its merge."""
    return run.jobs.merge(run.metrics.query("name == 'steps'"), on=["round", "device"])


def test_a_restart_loses_what_was_not_merged():
    """Ten devices of 10 to 100 s in one synchronous round: a restart at 55 s loses those that came before."""
    fleet = [{"cpu": {"flops_per_s": PSI / k}} for k in range(1, 11)]
    run = simulate_null(
        timing_scenario(fleet=fleet, failures=[{"name": "server_restart", "at": ["55 s"]}], energy=POWER)
    )
    tables = frames(run)
    jobs = tables["jobs"].sort_values("device")
    assert jobs["outcome"].tolist() == ["lost"] * 5 + ["ok"] * 5
    assert tables["rounds"][["asked", "used"]].to_numpy().tolist() == [[10, 5]]
