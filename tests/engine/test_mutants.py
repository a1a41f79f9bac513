"""The checks that guard the engine notice five classical faults, seeded one at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

from edgesim.core.job import Completion
from edgesim.engine.accounting import NO_USAGE
from edgesim.engine.inbox import Inbox
from edgesim.engine.participants import Devices
from edgesim.execution.backends.null import NullBackend
from edgesim.runs.assembly import assemble
from edgesim.runs.simulation import Silent, Simulation
from tests.conftest import PSI, timing_scenario


class Observed(NamedTuple):
    """A finished run, and the completions of every merge in the order the learner saw them."""

    simulation: Simulation
    merged: Sequence[Sequence[Completion]]
    jobs: pd.DataFrame
    rounds: pd.DataFrame


# --- faults -------------------------------------------------------------------------------------------------


class DoubleEnd(Devices):
    """Forgets that an aborted job has ended, so its timeout ends it again."""

    def abort(self, jobs, why):
        """End the jobs and make them run on."""
        sent = {job.id: self.running[job.id] for job in jobs if not job.ended}
        completions = super().abort(jobs, why)
        for job in [completion.job for completion in completions]:
            job.ended = False
            self.running[job.id] = replace(sent[job.id], inbox=Inbox(self._driver.env))
            sent[job.id].owner.running[job.id] = job
        return completions


class LostCancel(Devices):
    """Loses the order to cancel, so late jobs run on into the next rounds."""

    def abort(self, jobs, why):
        """Do nothing."""
        return []


class UnchargedAbort(Devices):
    """Ends an aborted job as if it had spent nothing."""

    def _end(self, trip, outcome):
        if outcome != "ok":
            self._driver.end = lambda trip, through: NO_USAGE
        try:
            return super()._end(trip, outcome)
        finally:
            vars(self._driver).pop("end", None)


class StaleTimeout(Devices):
    """Takes any timeout of a device as the end of the job that it runs now."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._driver._arrived = self._arrived

    def _arrived(self, event):
        for trip in list(self.running.values()):
            if trip.job.device == event.value.job.device:
                self.finish(trip)


class TieByCreation(Inbox):
    """Sees completions of one instant in the order in which their jobs were made."""

    def take(self):
        """Return completions ordered by time and job."""
        return sorted(super().take(), key=lambda a: (a.ended_s, a.job.id))


FAULTS: dict[type, str] = {
    DoubleEnd: "every job ends once",
    LostCancel: "rounds leave nobody behind",
    UnchargedAbort: "a job is charged for the time it took",
    StaleTimeout: "a delivered job took its full price",
    TieByCreation: "ties go by device",
}


# --- checks -------------------------------------------------------------------------------------------------


def every_job_ends_once(run: Observed) -> bool:
    """Every job made has exactly one row, and nothing runs on."""
    world = run.simulation.world
    return sorted(run.jobs["job"]) == list(range(world.devices.counter.jobs)) and not world.devices.running


def rounds_leave_nobody_behind(run: Observed) -> bool:
    """The jobs of a round end within it, and its merge hears of all of them."""
    closed_s = run.rounds.set_index("round")["now_s"].reindex(run.jobs["round"]).to_numpy()
    asked = run.jobs.groupby("round").size().tolist()
    return bool((run.jobs["end_s"].to_numpy() <= closed_s).all()) and asked == run.rounds["asked"].tolist()


def charged_for_the_time_it_took(run: Observed) -> bool:
    """The seconds of the phases of a job are those between its start and its end, whatever its outcome."""
    phases_s = run.jobs[["down_s", "compute_s", "up_s"]].sum(axis=1)
    return bool(np.allclose(phases_s, run.jobs["end_s"] - run.jobs["sent_s"], rtol=1e-9))


def delivered_took_its_full_price(run: Observed) -> bool:
    """A job that arrived did so at the instant worked out when it started."""
    delivered = [a for completions in run.merged for a in completions if a.outcome == "ok"]
    return all(abs(a.ended_s - a.job.due_s) <= 1e-9 for a in delivered)


def ties_go_by_device(run: Observed) -> bool:
    """Completions in time are seen in the order (time, device, job)."""
    delivered = [[a for a in completions if a.outcome == "ok"] for completions in run.merged]
    return all(a == sorted(a, key=lambda x: (x.ended_s, x.job.device, x.job.id)) for a in delivered)


def one_job_at_a_time(run: Observed) -> bool:
    """No device starts a job before its last one ended."""
    own = [jobs.sort_values("sent_s") for _, jobs in run.jobs.groupby("device")]
    return all((jobs["sent_s"].to_numpy()[1:] >= jobs["end_s"].to_numpy()[:-1]).all() for jobs in own)


def joules_are_booked_twice_alike(run: Observed) -> bool:
    """Joules by device in the ledger are those of the jobs table."""
    columns = ["down_j", "compute_j", "up_j"]
    by_device = run.jobs.groupby("device")[columns].sum().to_numpy()
    return bool(np.allclose(by_device, run.simulation.ledger.activity_j, rtol=1e-9))


CHECKS: dict[str, Callable[[Observed], bool]] = {
    "every job ends once": every_job_ends_once,
    "rounds leave nobody behind": rounds_leave_nobody_behind,
    "a job is charged for the time it took": charged_for_the_time_it_took,
    "a delivered job took its full price": delivered_took_its_full_price,
    "ties go by device": ties_go_by_device,
    "one job at a time": one_job_at_a_time,
    "joules are booked twice alike": joules_are_booked_twice_alike,
}


def observe() -> Observed:
    """Run four rounds of six devices: two of them late in every round, three that tie, asked in descending order.

    The slow ones need more than a deadline, so the timeout of a cancelled job fires while its device is at the next.
    """
    speeds = [(2, PSI / 3), (1, PSI / 1.5), (3, PSI)]
    scenario = timing_scenario(
        method="tests.plugins.methods:Backwards",
        protocol={"name": "deadline", "deadline": "20 s"},
        energy={"name": "power", "idle": "1 W", "busy": "3 W"},
        fleet=[{"count": count, "cpu": {"flops_per_s": speed}} for count, speed in speeds],
        stop={"rounds": 4},
    )
    simulation = Simulation(assemble(scenario), NullBackend(), Silent())
    merged, really_merge = [], simulation.learner.aggregate

    def merge(completions, view):
        merged.append(list(completions))
        return really_merge(completions, view)

    simulation.learner.aggregate = merge
    simulation.run()
    return Observed(simulation, merged, *(simulation.tables[name].frame() for name in ("jobs", "rounds")))


def failed(run: Observed) -> set[str]:
    """Return the names of the checks that a run fails."""
    return {name for name, check in CHECKS.items() if not check(run)}


def test_the_engine_passes_every_check():
    """The real engine fails none of them, in a run that has late jobs, ties and stale timeouts."""
    run = observe()
    assert failed(run) == set()
    assert run.jobs.groupby(["round", "outcome"]).size().tolist() == [2, 4] * 4
    assert all(len({a.ended_s for a in completions if a.outcome == "ok"}) == 2 for completions in run.merged)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_every_fault_is_caught(fault, monkeypatch):
    """A fault of the engine fails the check that is about it."""
    if issubclass(fault, Devices):
        monkeypatch.setattr("edgesim.engine.world.Devices", fault)
    else:
        monkeypatch.setattr("edgesim.engine.session.Inbox", fault)
    assert FAULTS[fault] in failed(observe())
