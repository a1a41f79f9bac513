"""Jobs of peers: a device fetches messages of others, waits for messages still to come, and computes a new one.

All inputs start to flow when the round does. Computing begins once they are there and the wait is settled. A message
that others wait for flows to them as soon as it exists. A device whose battery empties ends like one that leaves.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from math import inf

import numpy as np
import simpy

from edgesim.core.errors import ContractError
from edgesim.core.job import ON_TIME_S, Job, Outcome
from edgesim.core.update import ModelRef
from edgesim.engine.accounting import Usage
from edgesim.engine.interruptions import UNINTERRUPTED, Interruption
from edgesim.engine.transport.battery_load import BatteryLoads
from edgesim.engine.transport.flows import Flow, Flows
from edgesim.world.failures.base import COMPUTATION, DOWNLOAD, SENT, UPLOAD

_UNTRAINED = -1  # version of the message that a device has before it ever trained


@dataclass(slots=True, eq=False)
class _PeerJob:
    """State of a peer's job."""

    job: Job
    interruption: Interruption
    inputs: dict[int, ModelRef]  # messages that existed when the round started, by sender
    awaited: set[int]  # peers of whose fresh messages nothing is known yet
    fetched_s: float  # when all inputs are there, as far as is known
    foreseen_s: float  # what computing was to take when the job was sent
    missing: int = 0  # inputs of which that is not known
    came: list[tuple[float, int]] = field(default_factory=list)  # when fresh messages are there, and whose
    flows: list[Flow] = field(default_factory=list)  # to this job
    starts_s: float = inf  # computing; as planned, until it does
    computed: bool = False


class PeerExchange:
    """Transports the jobs of a round among peers; calls `arrive` when one is through, else `fail`."""

    def __init__(
        self,
        env: simpy.Environment,
        flows: Flows,
        price_compute: Callable[[Job, float], None],
        arrive: Callable[[Job], None],
        fail: Callable[[Job, Outcome], None],
        loads: BatteryLoads,
    ) -> None:
        self._env = env
        self._flows = flows
        self._loads = loads
        self._price_compute = price_compute  # of a job that starts to compute at a given time
        self._arrive = arrive
        self._fail = fail
        self._jobs: dict[int, _PeerJob] = {}  # by device
        self._waiters: dict[int, list[_PeerJob]] = {}  # by the device waited for
        self._sent: dict[int, list[Flow]] = {}  # by sender, those that are over among them
        self._newest: dict[int, tuple[int, float]] = {}  # device -> job and bytes of its newest message

    def start(
        self, jobs: Sequence[Job], interruptions: Sequence[Interruption] | None, refused: Collection[int] = ()
    ) -> None:
        """Send off all jobs of a round now; `refused`: devices that were asked too but cannot do their job.

        Raises ContractError if waits cannot be met.
        """
        _check_waits(jobs, refused)
        edges: list[tuple[int, int, float]] = []
        for job, interruption in zip(jobs, interruptions or [UNINTERRUPTED] * len(jobs), strict=True):
            inputs = {}
            for source in job.inputs:
                # before it ever trained, a device sends as many bytes as its listener would
                version, nbytes = self._newest.get(source) or (_UNTRAINED, job.prices.message_bytes)
                inputs[source] = ModelRef(1 + source, version)
                edges.append((source, job.device, nbytes))
            peer_job = _PeerJob(
                job, interruption, inputs, set(job.wait.peers).difference(refused), job.sent_s, job.prices.compute_s
            )
            self._jobs[job.device] = peer_job
            self._loads.begin(job.device, job, 0.0)  # a device that waits draws idle power, and may empty by that
            job.received = tuple(sorted(inputs.values()))  # messages that must not be forgotten until it computes
            self._sent[job.device] = [flow for flow in self._sent.get(job.device, ()) if not flow.over]
            for peer in peer_job.awaited:
                self._waiters.setdefault(peer, []).append(peer_job)
            self._foresee(peer_job)
        if edges:
            self._fetch(edges, jobs[0].nth if jobs[0].task.own_clock else jobs[0].round)
        for job in jobs:
            self._consider(self._jobs[job.device])

    def end(self, job: Job, through: bool) -> Usage:
        """Forget a job that is complete or ends early, tell the jobs that wait for it, and return its usage."""
        peer_job = self._jobs.pop(job.device)
        self._flows.stop(peer_job.flows)
        self._loads.end(job.device, job)
        usage = self._usage(peer_job, peer_job.flows)
        if peer_job.computed:
            self._newest[job.device] = (job.id, job.prices.message_bytes)
        if not through:
            self._cut_off(job.device)
        for waiter in self._waiters.pop(job.device, ()):
            self._tell(waiter, job, through)
        return usage

    def battery_empty(self, device: int) -> None:
        """Take note that a device is without power; what it has done at this very instant is done."""
        peer_job = self._jobs.get(device)
        if peer_job is None:  # it was sending what it made before
            self._cut_off(device)
        else:
            self._go(peer_job, "battery")

    def so_far(self, job: Job) -> Usage:
        """Return the usage of a job if it ended now, without side effects."""
        peer_job = self._jobs[job.device]
        return self._usage(peer_job, self._flows.so_far(peer_job.flows))

    def _usage(self, peer_job: _PeerJob, flows: Sequence[Flow]) -> Usage:
        """Return the usage of a job up to now; `flows`: to it, as of now."""
        job, now_s = peer_job.job, self._env.now
        fetched_s, start_s = (
            now_s if peer_job.missing else min(peer_job.fetched_s, now_s),
            min(peer_job.starts_s, now_s),
        )
        done = 1.0 if peer_job.computed else (now_s - start_s) / job.prices.compute_s if start_s < now_s else 0.0
        return Usage(
            seconds=(fetched_s - job.sent_s, now_s - start_s, 0.0),
            shares=(1.0, done, 1.0),
            air_s=(sum(flow.down_air_s for flow in flows), 0.0),
            wait_s=start_s - fetched_s,
            flows=flows,
        )

    # --- fetching and waiting ---------------------------------------------------------------------------------

    def _fetch(self, edges: Sequence[tuple[int, int, float]], round_: int) -> None:
        """Start the flows of all inputs of a round: (sender, receiver, bytes)."""
        sources, targets, sizes = np.array(edges).T
        for flow in self._flows.together(sources, targets, sizes.astype(np.float64), round_, self._there):
            self._expect(self._jobs[flow.target], flow)

    def _tell(self, waiter: _PeerJob, job: Job, through: bool) -> None:
        """Send a fresh message to a job that waits for it, or let it know that it will not come."""
        if waiter.job.ended or waiter.starts_s <= self._env.now:
            return
        if through:
            flow = self._flows.one(job.device, waiter.job.device, job.prices.message_bytes, job.round, self._there)
            self._expect(waiter, flow)
        else:
            waiter.awaited.discard(job.device)
        self._consider(waiter)

    def _expect(self, peer_job: _PeerJob, flow: Flow) -> None:
        """Take note of a flow to a job that has just started."""
        peer_job.flows.append(flow)
        self._sent.setdefault(flow.source, []).append(flow)
        if not flow.fresh:
            peer_job.missing += 1
        if flow.ends_s < inf:
            self._note_end(peer_job, flow)

    def _there(self, flow: Flow) -> None:
        peer_job = self._jobs[flow.target]
        self._note_end(peer_job, flow)
        self._consider(peer_job)

    def _note_end(self, peer_job: _PeerJob, flow: Flow) -> None:
        """Take note of when a message is there, which may lie ahead."""
        if flow.fresh:
            peer_job.awaited.discard(flow.source)
            insort(peer_job.came, (flow.ends_s, flow.source))
        else:
            peer_job.missing -= 1
            peer_job.fetched_s = max(peer_job.fetched_s, flow.ends_s)

    def _consider(self, peer_job: _PeerJob) -> None:
        """Plan anew when a job starts to compute, unless it does already."""
        if peer_job.missing or peer_job.starts_s <= self._env.now:
            return
        wait, came = peer_job.job.wait, peer_job.came
        need = len(wait.peers) if wait.need is None else wait.need
        ready_s = peer_job.fetched_s + wait.within_s
        if len(came) >= need or not peer_job.awaited:
            last = min(need, len(came))
            ready_s = min(ready_s, came[last - 1][0] if last else 0.0)
        self._plan(peer_job, max(ready_s, peer_job.fetched_s, self._env.now))

    def _plan(self, peer_job: _PeerJob, start_s: float) -> None:
        """Let a job compute from `start_s` on, unless a later plan says otherwise; inf: it is not known from when."""
        if start_s == peer_job.starts_s:
            return
        peer_job.starts_s = start_s
        if start_s == inf:
            return
        job, interruption = peer_job.job, peer_job.interruption
        self._price_compute(job, start_s)
        if job.device in self._loads:
            self._at(start_s, lambda: self._draw(peer_job) if peer_job.starts_s == start_s else None)
        self._at(
            start_s + job.prices.compute_s, lambda: self._computed(peer_job) if peer_job.starts_s == start_s else None
        )
        if interruption.phase == COMPUTATION:
            slower = job.prices.compute_s / peer_job.foreseen_s if peer_job.foreseen_s > 0 else 1.0
            crashes_s = start_s + slower * interruption.crashes_s  # after the same share of the work
            self._at(crashes_s, lambda: self._crash(peer_job) if peer_job.starts_s == start_s else None)

    def _draw(self, peer_job: _PeerJob) -> None:
        """Let a device that starts to compute draw what it takes."""
        job = peer_job.job
        if not job.ended and job.prices.compute_s > 0:
            self._loads.begin(job.device, job, job.prices.compute_j / job.prices.compute_s)

    def _computed(self, peer_job: _PeerJob) -> None:
        job = peer_job.job
        if job.ended:
            return
        peer_job.computed = True
        if peer_job.interruption.phase == UPLOAD and peer_job.interruption.crashes_s < inf:
            self._crash(peer_job)  # before anybody could have its message
            return
        fresh = [peer for at_s, peer in peer_job.came if at_s <= peer_job.starts_s][: job.wait.need]
        received = peer_job.inputs | {peer: ModelRef(1 + peer, self._newest[peer][0]) for peer in fresh}
        job.received = tuple(received[peer] for peer in sorted(received))
        self._arrive(job)

    # --- failures ---------------------------------------------------------------------------------------------

    def _foresee(self, peer_job: _PeerJob) -> None:
        """Let come what does not depend on when the job computes."""
        self._at(peer_job.interruption.leaves_s, lambda: self._go(peer_job, "offline"))
        if peer_job.interruption.phase in (SENT, DOWNLOAD):
            self._at(self._env.now + peer_job.interruption.crashes_s, lambda: self._crash(peer_job))

    def _crash(self, peer_job: _PeerJob) -> None:
        if not peer_job.job.ended:
            self._fail(peer_job.job, "crashed")

    def _go(self, peer_job: _PeerJob, outcome: Outcome) -> None:
        """Release a device. Its job may already be complete (even at this instant) and its model still in transit."""
        if peer_job.starts_s + peer_job.job.prices.compute_s <= self._env.now + ON_TIME_S:
            self._computed(peer_job)
        if peer_job.job.ended:
            self._cut_off(peer_job.job.device)
        else:
            self._fail(peer_job.job, outcome)

    def _cut_off(self, device: int) -> None:
        """End the messages that a device is sending; their receivers continue without them."""
        now_s = self._env.now
        under_way = [flow for flow in self._sent.pop(device, ()) if not flow.over and flow.ends_s > now_s]
        for flow in under_way:
            peer_job, known = self._jobs[flow.target], flow.ends_s < inf
            self._flows.stop([flow])
            if flow.fresh:
                peer_job.awaited.discard(device)
                peer_job.came = [entry for entry in peer_job.came if entry[1] != device]
            else:
                del peer_job.inputs[device]
                peer_job.missing -= not known
                ends_s = (other.ends_s for other in peer_job.flows if not other.fresh)
                peer_job.fetched_s = max(end_s for end_s in ends_s if end_s < inf)
            self._consider(peer_job)

    def _at(self, at_s: float, then: Callable[[], None]) -> None:
        if at_s < inf:
            self._env.timeout(max(0.0, at_s - self._env.now)).callbacks.append(lambda _: then())


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
