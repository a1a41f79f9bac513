"""Exchanges among peers: a device fetches messages of others and waits for messages still to come, then it computes.

All inputs start to flow when the round does. Computing begins once they have arrived and the wait is settled. A message
that others wait for flows to them as soon as it exists. A device whose battery empties ends like one that leaves.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Sequence
from graphlib import CycleError, TopologicalSorter
from math import inf

import numpy as np

from edgesim.core.errors import ContractError
from edgesim.core.job import Job
from edgesim.core.update import ModelRef
from edgesim.engine.flows import Flow, Flows
from edgesim.engine.legs import Computation, Driver, Leg, LegSum, Trip
from edgesim.world.failures.base import DOWNLOAD

_UNTRAINED = -1  # version of the message that a device has before it ever trained


class Gathering(Leg):
    """The inputs of a peer's job, and its wait for messages of others."""

    phase = DOWNLOAD
    __slots__ = ("awaited", "came", "exchange", "fetched_s", "flows", "inputs", "missing", "starts_s")

    def __init__(self, driver: Driver, trip: Trip, exchange: PeerExchange, awaited: set[int]) -> None:
        """`awaited`: peers whose fresh messages the job may wait for."""
        super().__init__(driver, trip)
        self.exchange = exchange
        self.inputs: dict[int, ModelRef] = {}  # messages that existed when the round started, by sender
        self.awaited = awaited  # and of whose messages nothing is known yet
        self.fetched_s = trip.job.sent_s  # when all inputs are there, as far as is known
        self.missing = 0  # inputs of which that is not known
        self.came: list[tuple[float, int]] = []  # when fresh messages are there, and whose
        self.flows: list[Flow] = []  # to this job
        self.starts_s = inf  # computing; as planned, until it does

    def begin(self) -> None:
        """Let the device draw idle power, by which its battery may empty; the exchange starts the flows."""
        self.driver.draw(self.trip, 0.0)

    def expect(self, flow: Flow) -> None:
        """Take note of a flow to this job that has just started."""
        self.flows.append(flow)
        self.exchange.sent.setdefault(flow.source, []).append(flow)
        self.missing += not flow.fresh
        if flow.ends_s < inf:
            self.note_end(flow)

    def note_end(self, flow: Flow) -> None:
        """Take note of when a message is there, which may lie ahead."""
        if flow.fresh:
            self.awaited.discard(flow.source)
            insort(self.came, (flow.ends_s, flow.source))
        else:
            self.missing -= 1
            if flow.ends_s > self.fetched_s:
                self.fetched_s = flow.ends_s

    def lose(self, flow: Flow, known: bool) -> None:
        """Go on without a message that was on its way; `known`: when it would have been there."""
        if flow.fresh:
            self.awaited.discard(flow.source)
            self.came = [entry for entry in self.came if entry[1] != flow.source]
        else:
            del self.inputs[flow.source]
            self.missing -= not known
            ends_s = (other.ends_s for other in self.flows if not other.fresh)
            self.fetched_s = max(end_s for end_s in ends_s if end_s < inf)
        self.consider()

    def consider(self) -> None:
        """Plan anew when the job starts to compute, unless it does already."""
        now_s = self.driver.env.now
        if self.missing or self.starts_s <= now_s:
            return
        wait, came = self.trip.job.wait, self.came
        need = len(wait.peers) if wait.need is None else wait.need
        ready_s = self.fetched_s + wait.within_s
        if len(came) >= need or not self.awaited:
            last = min(need, len(came))
            ready_s = min(ready_s, came[last - 1][0] if last else 0.0)
        start_s = max(ready_s, self.fetched_s, now_s)
        if start_s == self.starts_s:
            return
        self.starts_s = start_s
        if start_s <= now_s:
            self.driver.over(self)
        elif start_s < inf:
            self.driver.after(
                start_s - now_s, self, lambda: self.driver.over(self) if self.starts_s == start_s else None
            )

    def add(self, total: LegSum) -> None:
        """Add the seconds until all inputs are there, those of waiting after that, and the messages to this job."""
        now_s = self.driver.env.now
        fetched_s = now_s if self.missing else min(self.fetched_s, now_s)
        total.seconds[DOWNLOAD] = fetched_s - self.trip.job.sent_s
        total.wait_s = min(self.starts_s, now_s) - fetched_s
        total.flows = self.flows if self.trip.job.ended else self.exchange.flows.so_far(self.flows)
        total.down_air_s = sum([flow.down_air_s for flow in total.flows])

    def close(self, through: bool) -> None:
        """Stop the flows to this job; a job that is complete knows which messages it started from."""
        self.exchange.flows.stop(self.flows)
        if through and self.came:
            job, newest = self.trip.job, self.exchange.newest
            fresh = [peer for at_s, peer in self.came if at_s <= self.starts_s][: job.wait.need]
            self.inputs |= {peer: ModelRef(1 + peer, newest[peer][0]) for peer in fresh}
        if through:
            self.trip.job.received = tuple([self.inputs[peer] for peer in sorted(self.inputs)])

    def job_ended(self, through: bool) -> None:
        """Tell the jobs that wait for this one."""
        self.exchange.job_ended(self, through)


class PeerExchange:
    """The jobs of peers that gather messages, and the messages that devices send them."""

    def __init__(self, driver: Driver, flows: Flows) -> None:
        self.flows = flows
        self.newest: dict[int, tuple[int, float]] = {}  # device -> job and bytes of its newest message
        self.sent: dict[int, list[Flow]] = {}  # by sender, those that are over among them
        self._driver = driver
        self._jobs: dict[int, Gathering] = {}  # by device
        self._waiters: dict[int, list[Gathering]] = {}  # by the device waited for
        driver.when_gone.append(self.cut_off)

    def start(self, trips: Sequence[Trip], refused: Collection[int] = ()) -> None:
        """Start all jobs of a round now; `refused`: devices that were asked too but cannot do their job.

        Raises ContractError if waits cannot be met.
        """
        jobs = [trip.job for trip in trips]
        _check_waits(jobs, refused)
        edges: list[tuple[int, int, float]] = []
        for trip in trips:
            job = trip.job
            leg = Gathering(self._driver, trip, self, set(job.wait.peers).difference(refused))
            for source in job.inputs:
                # before it ever trained, a device sends as many bytes as its listener would
                version, nbytes = self.newest.get(source) or (_UNTRAINED, job.prices.message_bytes)
                leg.inputs[source] = ModelRef(1 + source, version)
                edges.append((source, job.device, nbytes))
            self._jobs[job.device] = leg
            job.received = tuple(sorted(leg.inputs.values()))  # messages that must not be forgotten until it computes
            self.sent[job.device] = [flow for flow in self.sent.get(job.device, ()) if not flow.over]
            for peer in leg.awaited:
                self._waiters.setdefault(peer, []).append(leg)
            trip.legs = (leg, Computation(self._driver, trip))
            self._driver.start(trip)
        if edges:
            sources, targets, sizes = np.array(edges).T
            occasion = jobs[0].nth if jobs[0].task.own_clock else jobs[0].round
            for flow in self.flows.together(sources, targets, sizes.astype(np.float64), occasion, self._there):
                self._jobs[flow.target].expect(flow)
        for job in jobs:
            self._jobs[job.device].consider()

    def job_ended(self, leg: Gathering, through: bool) -> None:
        """Take note of the end of a job; send its message to the jobs that wait for it, or let them go on without."""
        job, now_s = leg.trip.job, self._driver.env.now
        del self._jobs[job.device]
        if leg.trip.legs[-1].until_s < inf:  # it has computed
            self.newest[job.device] = (job.id, job.prices.message_bytes)
        if not through:
            self.cut_off(job.device)
        for waiter in self._waiters.pop(job.device, ()):
            if waiter.trip.job.ended or waiter.starts_s <= now_s:
                continue
            if through:
                target, nbytes = waiter.trip.job.device, job.prices.message_bytes
                waiter.expect(self.flows.one(job.device, target, nbytes, job.round, self._there))
            else:
                waiter.awaited.discard(job.device)
            waiter.consider()

    def cut_off(self, device: int) -> None:
        """End the messages that a device is sending; their receivers continue without them."""
        now_s = self._driver.env.now
        under_way = [flow for flow in self.sent.pop(device, ()) if not flow.over and flow.ends_s > now_s]
        for flow in under_way:
            known = flow.ends_s < inf
            self.flows.stop([flow])
            self._jobs[flow.target].lose(flow, known)

    def _there(self, flow: Flow) -> None:
        """Take note of the end of a flow whose end was unknown."""
        leg = self._jobs[flow.target]
        leg.note_end(flow)
        leg.consider()


def _check_waits(jobs: Sequence[Job], refused: Collection[int]) -> None:
    """Raise ContractError if a job waits for a device that was not asked in this round, or jobs wait in a circle."""
    waits = {job.device: job.wait.peers for job in jobs if job.wait.peers}
    asked = {job.device for job in jobs}.union(refused)
    for device, peers in waits.items():
        for peer in peers:
            if peer not in asked:
                raise ContractError(f"device {device} waits for device {peer}, which was not asked")
    try:
        TopologicalSorter(waits).prepare()
    except CycleError as error:
        circle = " -> ".join(map(str, error.args[1]))
        raise ContractError(f"devices wait for one another in a circle: {circle}") from error
