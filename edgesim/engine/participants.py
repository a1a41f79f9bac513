"""Those that an aggregator may ask for jobs: the devices of a world, or the edge servers below a server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import inf

import numpy as np
import simpy

from edgesim.core.arrays import Ids
from edgesim.core.errors import ContractError
from edgesim.core.job import DELIVERED, ON_TIME_S, Completion, Job, Outcome
from edgesim.engine.accounting import NO_USAGE
from edgesim.engine.dispatcher import JobCounter, PricedJobs
from edgesim.engine.flows import Flows
from edgesim.engine.inbox import Inbox
from edgesim.engine.legs import AccessTransfer, Computation, Driver, JobOwner, Overlap, Trip
from edgesim.engine.meetings import Meetings
from edgesim.engine.peers import PeerExchange
from edgesim.engine.reachability import Presence
from edgesim.world.availability.base import Availability
from edgesim.world.failures.base import DOWNLOAD, UPLOAD


class Participants(ABC):
    """Takers of jobs, at most one at a time each: which are busy, and the jobs that run."""

    def __init__(self, driver: Driver, count: int) -> None:
        self.busy = np.zeros(count, dtype=bool)
        self.counter = JobCounter(count)
        self.running: dict[int, Trip] = {}  # by job id, ascending
        self._driver = driver
        self._next_end: simpy.Event | None = None

    @abstractmethod
    def start(self, priced: PricedJobs, owner: JobOwner, to: Inbox) -> None:
        """Send jobs off now; their completions go to `to`."""

    @abstractmethod
    def new_presence(self, members: Ids | None) -> Presence:
        """Return the reachability for a caller with occasions of its own; `members`: as for `Presence`."""

    def any_end(self) -> simpy.Event:
        """Return an event that fires when the next job ends."""
        self._next_end = self._next_end or self._driver.env.event()
        return self._next_end

    def abort(self, jobs: Sequence[Job], why: Outcome) -> list[Completion]:
        """End the jobs of `jobs` that still run, charged up to now; return their completions.

        A job that ends within ON_TIME_S of now is in time: it goes to its inbox instead.
        """
        aborted = []
        self._driver.settle()
        for job in jobs:
            if job.ended:
                continue
            if job.due_s - self._driver.env.now <= ON_TIME_S:
                self.finish(self.running[job.id])
            else:
                aborted.append(self._end(self.running[job.id], why))
        return aborted

    def finish(self, trip: Trip) -> None:
        """End a job that got through, unless its update is lost on the air; its completion goes to its inbox."""
        delivered: Outcome = "ok" if trip.job.steps is None else "partial"
        trip.inbox.put(self._end(trip, "outage" if trip.interruption.lost else delivered))

    def fail(self, trip: Trip, outcome: Outcome) -> None:
        """End a job before its time, charged up to now; its completion goes to its inbox."""
        trip.inbox.put(self._end(trip, outcome))

    def _end(self, trip: Trip, outcome: Outcome) -> Completion:
        """End a job once: free who had it, and tell its owner what it spent."""
        job = trip.job
        if job.ended:
            raise ContractError(f"job {job.id} ended twice")
        job.ended = True
        del self.running[job.id]
        self.busy[job.device] = False
        if self._next_end is not None:
            self._next_end.succeed()
            self._next_end = None
        usage = NO_USAGE if outcome == "no_memory" else self._driver.end(trip, outcome in DELIVERED)
        return trip.owner.job_ended(job, outcome, usage)


class Devices(Participants):
    """The devices of a world."""

    def __init__(self, driver: Driver, flows: Flows, availability: Availability) -> None:
        """`flows`: of messages between devices."""
        super().__init__(driver, len(driver.fleet))
        self._availability = availability
        self._peers = PeerExchange(driver, flows)
        self._meetings = Meetings(driver, flows)

    def new_presence(self, members: Ids | None) -> Presence:
        """Return the reachability for a caller with occasions of its own; `members`: as for `Presence`."""
        return Presence(self._availability, self._driver.batteries, members)

    def start(self, priced: PricedJobs, owner: JobOwner, to: Inbox) -> None:
        """Send jobs off now; their completions go to `to`. Devices without enough memory are refused at once."""
        driver, among_peers, refused = self._driver, list[Trip](), list[Trip]()
        for place, (job, fits) in enumerate(zip(priced.jobs, priced.fits, strict=True)):
            trip = self.running[job.id] = Trip(job, owner, to, self)
            if not fits:
                refused.append(trip)
                continue
            if priced.interruptions is not None:
                trip.interruption = priced.interruptions[place]
            if job.task.own_clock == "trade":
                self._meetings.start(trip)
            elif job.task.start == "device":
                among_peers.append(trip)
            elif driver.network is None:
                driver.start_known(trip, inf if priced.battery_s is None else priced.battery_s[place])
            elif job.task.overlaps:
                trip.legs = (Overlap(driver, trip),)
                driver.start(trip)
            else:
                down, up = (AccessTransfer(driver, trip, phase) for phase in (DOWNLOAD, UPLOAD))
                trip.legs = (down, Computation(driver, trip), up)
                driver.start(trip)
        if among_peers:
            self._peers.start(among_peers, [trip.job.device for trip in refused])
        for trip in refused:
            self.fail(trip, "no_memory")
