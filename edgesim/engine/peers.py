"""Jobs of peers: a device fetches messages of others, waits for those still to come, computes, and its message exists.

All inputs start to flow when the round does. Computing begins once they are there and the wait is settled. A message
that others wait for flows to them as soon as it exists.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from math import inf

import numpy as np
import simpy

from edgesim.contracts import Job, ModelRef, Outcome
from edgesim.engine.fate import COMPUTE, DOWN, SENDING, UNHARMED, UP, Fate
from edgesim.engine.flows import Flow, Flows
from edgesim.engine.spending import Spending
from edgesim.engine.transfers import ON_TIME_S
from edgesim.errors import ContractError

_UNTRAINED = -1  # version of the message that a device has before it ever trained


@dataclass(slots=True, eq=False)
class _Visit:
    """Where a job of a peer is."""

    job: Job
    fate: Fate
    inputs: dict[int, ModelRef]  # messages that existed when the round started, by sender
    awaited: set[int]  # peers of whose fresh messages nothing is known yet
    fetched_s: float  # when all inputs are there, as far as is known
    foreseen_s: float  # what computing was to take when the job was sent
    missing: int = 0  # inputs of which that is not known
    came: list[tuple[float, int]] = field(default_factory=list)  # when fresh messages are there, and whose
    flows: list[Flow] = field(default_factory=list)  # to this job
    starts_s: float = inf  # computing; as planned, until it does
    computed: bool = False


class Peers:
    """Carries the jobs of a round among peers; calls `arrive` when one is through, else `fail`."""

    def __init__(
        self,
        env: simpy.Environment,
        flows: Flows,
        price_compute: Callable[[Job, float], None],
        arrive: Callable[[Job], None],
        fail: Callable[[Job, Outcome], None],
    ) -> None:
        self._env = env
        self._flows = flows
        self._price_compute = price_compute  # of a job that starts to compute at a given time
        self._arrive = arrive
        self._fail = fail
        self._visits: dict[int, _Visit] = {}  # by device
        self._waiters: dict[int, list[_Visit]] = {}  # by the device waited for
        self._sent: dict[int, list[Flow]] = {}  # by sender, those that are over among them
        self._newest: dict[int, tuple[int, int]] = {}  # device -> job and bytes of its newest message

    def start(self, jobs: Sequence[Job], fates: Sequence[Fate] | None, refused: Collection[int] = ()) -> None:
        """Send off all jobs of a round now; `refused`: devices that were asked too but cannot do their job.

        Raises ContractError if waits cannot be met.
        """
        _check_waits(jobs, refused)
        edges: list[tuple[int, int, int]] = []
        for job, fate in zip(jobs, fates or [UNHARMED] * len(jobs), strict=True):
            inputs = {}
            for source in job.inputs:
                # before it ever trained, a device sends as many bytes as its listener would
                version, nbytes = self._newest.get(source) or (_UNTRAINED, job.up_bytes)
                inputs[source] = ModelRef(1 + source, version)
                edges.append((source, job.device, nbytes))
            visit = _Visit(job, fate, inputs, set(job.wait.peers).difference(refused), job.sent_s, job.compute_s)
            self._visits[job.device] = visit
            self._sent[job.device] = [flow for flow in self._sent.get(job.device, ()) if not flow.over]
            for peer in visit.awaited:
                self._waiters.setdefault(peer, []).append(visit)
            self._foresee(visit)
        if edges:
            self._fetch(edges, jobs[0].round)
        for job in jobs:
            self._consider(self._visits[job.device])

    def end(self, job: Job, through: bool) -> Spending:
        """Forget a job, through or broken off, and tell those who wait for it; return what it spent up to now."""
        visit = self._visits.pop(job.device)
        self._flows.stop(visit.flows)
        spent = self._spending(visit, visit.flows)
        if visit.computed:
            self._newest[job.device] = (job.id, job.up_bytes)
        if not through:
            self._cut_off(job.device)
        for waiter in self._waiters.pop(job.device, ()):
            self._tell(waiter, job, through)
        return spent

    def so_far(self, job: Job) -> Spending:
        """Return what a job would have spent if it were broken off now; asking changes nothing."""
        visit = self._visits[job.device]
        return self._spending(visit, self._flows.so_far(visit.flows))

    def _spending(self, visit: _Visit, flows: Sequence[Flow]) -> Spending:
        """Return what a job has spent up to now; `flows`: to it, as of now."""
        job, now_s = visit.job, self._env.now
        fetched_s, start_s = now_s if visit.missing else min(visit.fetched_s, now_s), min(visit.starts_s, now_s)
        done = 1.0 if visit.computed else (now_s - start_s) / job.compute_s if start_s < now_s else 0.0
        return Spending(
            seconds=(fetched_s - job.sent_s, now_s - start_s, 0.0),
            shares=(1.0, done, 1.0),
            air_s=(sum(flow.down_air_s for flow in flows), 0.0),
            wait_s=start_s - fetched_s,
            flows=flows,
        )

    # --- fetching and waiting ---------------------------------------------------------------------------------

    def _fetch(self, edges: Sequence[tuple[int, int, int]], round_: int) -> None:
        """Start the flows of all inputs of a round: (sender, receiver, bytes)."""
        sources, targets, sizes = np.array(edges).T
        for flow in self._flows.together(sources, targets, sizes.astype(np.float64), round_, self._there):
            self._expect(self._visits[flow.target], flow)

    def _tell(self, waiter: _Visit, job: Job, through: bool) -> None:
        """Send a fresh message to a job that waits for it, or let it know that it will not come."""
        if waiter.job.ended or waiter.starts_s <= self._env.now:
            return
        if through:
            flow = self._flows.one(job.device, waiter.job.device, job.up_bytes, job.round, self._there)
            self._expect(waiter, flow)
        else:
            waiter.awaited.discard(job.device)
        self._consider(waiter)

    def _expect(self, visit: _Visit, flow: Flow) -> None:
        """Take note of a flow to a job that has just started."""
        visit.flows.append(flow)
        self._sent.setdefault(flow.source, []).append(flow)
        if not flow.fresh:
            visit.missing += 1
        if flow.ends_s < inf:
            self._note_end(visit, flow)

    def _there(self, flow: Flow) -> None:
        visit = self._visits[flow.target]
        self._note_end(visit, flow)
        self._consider(visit)

    def _note_end(self, visit: _Visit, flow: Flow) -> None:
        """Take note of when a message is there, which may lie ahead."""
        if flow.fresh:
            visit.awaited.discard(flow.source)
            insort(visit.came, (flow.ends_s, flow.source))
        else:
            visit.missing -= 1
            visit.fetched_s = max(visit.fetched_s, flow.ends_s)

    def _consider(self, visit: _Visit) -> None:
        """Plan anew when a job starts to compute, unless it does already."""
        if visit.missing or visit.starts_s <= self._env.now:
            return
        wait, came = visit.job.wait, visit.came
        need = len(wait.peers) if wait.need is None else wait.need
        ready_s = visit.fetched_s + wait.within_s
        if len(came) >= need or not visit.awaited:
            last = min(need, len(came))
            ready_s = min(ready_s, came[last - 1][0] if last else 0.0)
        self._plan(visit, max(ready_s, visit.fetched_s, self._env.now))

    def _plan(self, visit: _Visit, start_s: float) -> None:
        """Let a job compute from `start_s` on, unless a later plan says otherwise; inf: it is not known from when."""
        if start_s == visit.starts_s:
            return
        visit.starts_s = start_s
        if start_s == inf:
            return
        job, fate = visit.job, visit.fate
        self._price_compute(job, start_s)
        self._at(start_s + job.compute_s, lambda: self._computed(visit) if visit.starts_s == start_s else None)
        if fate.phase == COMPUTE:
            slower = job.compute_s / visit.foreseen_s if visit.foreseen_s > 0 else 1.0
            crashes_s = start_s + slower * fate.crashes_s  # after the same share of the work
            self._at(crashes_s, lambda: self._crash(visit) if visit.starts_s == start_s else None)

    def _computed(self, visit: _Visit) -> None:
        job = visit.job
        if job.ended:
            return
        visit.computed = True
        if visit.fate.phase == UP and visit.fate.crashes_s < inf:
            self._crash(visit)  # before anybody could have its message
            return
        fresh = [peer for at_s, peer in visit.came if at_s <= visit.starts_s][: job.wait.need]
        received = visit.inputs | {peer: ModelRef(1 + peer, self._newest[peer][0]) for peer in fresh}
        job.received = tuple(received[peer] for peer in sorted(received))
        self._arrive(job)

    # --- failures ---------------------------------------------------------------------------------------------

    def _foresee(self, visit: _Visit) -> None:
        """Let come what does not depend on when the job computes."""
        self._at(visit.fate.leaves_s, lambda: self._leave(visit))
        if visit.fate.phase in (SENDING, DOWN):
            self._at(self._env.now + visit.fate.crashes_s, lambda: self._crash(visit))

    def _crash(self, visit: _Visit) -> None:
        if not visit.job.ended:
            self._fail(visit.job, "crashed")

    def _leave(self, visit: _Visit) -> None:
        """Let a device go, which may have done its job, be it at this very instant, and be sending what it made."""
        if visit.starts_s + visit.job.compute_s <= self._env.now + ON_TIME_S:
            self._computed(visit)
        if visit.job.ended:
            self._cut_off(visit.job.device)
        else:
            self._fail(visit.job, "offline")

    def _cut_off(self, device: int) -> None:
        """Break off what a device is sending; whoever would have received it goes on without."""
        now_s = self._env.now
        under_way = [flow for flow in self._sent.pop(device, ()) if not flow.over and flow.ends_s > now_s]
        for flow in under_way:
            visit, known = self._visits[flow.target], flow.ends_s < inf
            self._flows.stop([flow])
            if flow.fresh:
                visit.awaited.discard(device)
                visit.came = [entry for entry in visit.came if entry[1] != device]
            else:
                del visit.inputs[device]
                visit.missing -= not known
                ends_s = (other.ends_s for other in visit.flows if not other.fresh)
                visit.fetched_s = max(end_s for end_s in ends_s if end_s < inf)
            self._consider(visit)

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
