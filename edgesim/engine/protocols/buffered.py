"""The asynchronous protocol: devices work without rounds, and the server merges as updates come in."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, replace
from enum import Enum, auto
from math import inf
from typing import Any, ClassVar, Literal

import simpy

from edgesim.core.errors import ConfigError
from edgesim.core.job import DELIVERED, Completion
from edgesim.core.limits import MOST_JOBS, Count, CountOrZero, NonNegativeNumber, PositiveNumber, check_steps
from edgesim.engine.inbox import Inbox
from edgesim.engine.rounds import Rounds
from edgesim.engine.session import Session
from edgesim.engine.view import FleetView
from edgesim.engine.watchdog import Watchdog

_USUAL_A = {"constant": 0.0, "polynomial": 0.5, "hinge": 10.0}  # those of FedAsync's experiments


@dataclass(frozen=True, kw_only=True)
class Buffered:
    """`concurrency` devices work at a time; the server merges every `buffer` updates (1: each as it arrives).

    The server takes ended jobs one by one, those of one instant in the order of their devices, and fills the place of
    each at once: with an idle device that the scenario's selection allows ("random"), or the same one ("same", or
    another if it cannot). Who fails at the very instant of being asked is left alone until the next merge.
    An update's staleness is the number of merges since its device got the model, when the server takes it. It counts
    with weight 1 ("constant"), (staleness + 1)^-`a` ("polynomial", `a` is 0.5 unless given), or 1 up to a staleness
    of `b` and 1 / (`a` (staleness - b) + 1) beyond ("hinge", 10); above `max_staleness` it is discarded.
    Source: Xie et al., "Asynchronous Federated Optimization" (2019), section 5; Nguyen et al., "Federated Learning
    with Buffered Asynchronous Aggregation" (2022), algorithm 1.
    """

    protocol: ClassVar[str] = "buffered"
    deadline_s: ClassVar[float] = inf
    concurrency: Count
    buffer: Count = 10
    staleness: Literal["constant", "polynomial", "hinge"] = "polynomial"  # how it lowers an update's weight
    a: PositiveNumber | None = None
    b: NonNegativeNumber = 4.0
    max_staleness: CountOrZero | None = None
    reassign: Literal["random", "same"] = "random"  # who takes the place of a device that ended

    def check(self, devices: int, asked: int) -> None:
        """Raise ConfigError if more devices are to work at a time than there are."""
        if self.concurrency > devices:
            raise ConfigError(
                f"protocol.concurrency: must be at most the {devices} devices of the fleet, found {self.concurrency}"
            )
        check_steps("protocol.buffer", self.buffer, "a merge of so many updates", most=MOST_JOBS)

    def with_fewer(self, updates: int, devices: int) -> tuple[Buffered, float]:
        """Return this protocol with a buffer of so many updates at most, and how many of its merges make one here."""
        fewer = min(self.buffer, updates)
        return replace(self, buffer=fewer), self.buffer / fewer

    def weight(self, staleness: int) -> float:
        """Return what an update counts."""
        a = self.a or _USUAL_A[self.staleness]
        if self.staleness == "polynomial":
            return float((staleness + 1.0) ** -a)
        if self.staleness == "hinge" and staleness > self.b:
            return 1.0 / (a * (staleness - self.b) + 1.0)
        return 1.0

    def run(self, session: Session, rounds: Rounds) -> Generator[Any, Any, None]:
        """Run until stopped; one SimPy process for the whole fleet."""
        return _Run(self, session, rounds).run()


class _State(Enum):
    """What the server does next."""

    FILL = auto()  # the free places with idle devices
    WAIT = auto()  # for a job to end, or for a device to come
    TAKE = auto()  # the next ended job
    AGGREGATE = auto()  # the buffer


class _Run:
    """One run of the protocol: what the server knows of jobs that have ended, and are not aggregated.

    States: FILL -> TAKE or WAIT; WAIT -> TAKE, or FILL if no job ended; TAKE -> AGGREGATE if the buffer is full, else
    FILL; AGGREGATE -> FILL.
    """

    def __init__(self, rule: Buffered, session: Session, rounds: Rounds) -> None:
        self._rule = rule
        self._session = session
        self._rounds = rounds
        self._watchdog = Watchdog(rounds.end)
        self._inbox: Inbox = session.new_inbox()
        self._queue: deque[Completion] = deque()  # ended, not taken yet: they keep their places
        self._first: int | None = None  # who is asked first for the next free place, if the same device takes it again
        self._ended: list[Completion] = []  # taken since the last aggregation
        self._updates: list[int] = []  # places in it of the updates that the server has
        self._losses = 0  # restarts of the server that this takes account of
        self._failed_at_once: set[int] = set()  # devices left alone until the next aggregation
        self._most_places = max(rule.buffer, rule.concurrency)
        self._most_stale = inf if rule.max_staleness is None else rule.max_staleness

    def run(self) -> Generator[Any, Any, None]:
        """Go from state to state until stopped."""
        state = _State.FILL
        while not self._rounds.stopped:
            if state is _State.FILL:
                yield from self._session.turn()
                state = self._fill()
            elif state is _State.WAIT:
                since_s = self._session.now_s
                if (event := self._wait()) is not None:
                    yield event
                state = self._next_job(since_s)
            elif state is _State.TAKE:
                state = self._take(self._queue.popleft())
            else:
                yield from self._aggregate()
                state = _State.FILL

    # --- FILL ---------------------------------------------------------------------------------------------------

    def _fill(self) -> _State:
        """Ask idle devices until every place is taken, or nobody can be asked."""
        session, first = self._session, self._first
        self._collect()
        session.presence.new_occasion()
        while not self._rounds.stopped and (places := self._free_places()) > 0:
            view = self._view(places, first)
            if not view.free_places:
                break
            jobs = session.dispatch(session.learner.plan(view), to=self._inbox)
            session.learner.start(jobs)
            session.exchange += 1
            self._watchdog.check_memory(session.nobody_fits)
            self._collect()  # devices without the memory answer at once
            first = None
        return _State.TAKE if self._queue else _State.WAIT

    def _free_places(self) -> int:
        return self._rule.concurrency - len(self._session.running) - len(self._queue)

    def _view(self, places: int, first: int | None) -> FleetView:
        """Return what the method may know, and whom it may ask: at most so many."""
        if not self._queue and not self._failed_at_once:
            return self._session.view(places, first)
        hidden = (*self._failed_at_once, *(completion.job.device for completion in self._queue))
        return self._session.view(places, None if first in self._failed_at_once else first, hidden)

    def _collect(self) -> None:
        if len(self._inbox):
            self._queue.extend(self._inbox.take())
        if self._session.visitors:
            self._queue.extend(self._session.take_visitors())

    # --- WAIT ---------------------------------------------------------------------------------------------------

    def _wait(self) -> simpy.Event | None:
        """Return an event that fires when a job ends or a device comes for a place that nobody can take now.

        None if neither will: the run ends, or whoever failed at once is asked again.
        """
        session, now_s = self._session, self._session.now_s
        running = len(session.running)
        free = running < self._rule.concurrency
        comes_s = session.presence.wait_s(now_s) if free else inf  # until somebody comes who is not there now
        others = free and session.others_at_work  # whose devices this session may ask when they are done
        self._watchdog.look(running > 0 or others)
        if self._rounds.stopped:
            return None
        if others:
            session.wants_devices = True
            ends = session.world.any_end()  # of jobs of this session too
            return ends if comes_s == inf else session.env.any_of([session.env.timeout(comes_s), ends])
        if running or comes_s < inf:
            return self._inbox.until(1, within_s=comes_s)
        self._watchdog.nobody_comes(failing=bool(self._failed_at_once))
        return None

    def _next_job(self, since_s: float) -> _State:
        """Return what to do after waiting since then: whoever failed before may be asked again if no job ended."""
        if self._session.now_s > since_s:
            self._watchdog.time_passed()
        self._collect()
        if self._queue:
            return _State.TAKE
        self._failed_at_once.clear()
        self._first = None
        return _State.FILL

    # --- TAKE ---------------------------------------------------------------------------------------------------

    def _take(self, completion: Completion) -> _State:
        """Put an update into the buffer, or forget a job that brought none."""
        session, device = self._session, completion.job.device
        completion = self._as_taken(completion)
        took_time = completion.ended_s > completion.job.sent_s
        self._first = device if self._rule.reassign == "same" else None
        self._ended.append(completion)
        full = False
        if completion.outcome in DELIVERED:
            self._updates.append(len(self._ended) - 1)
            full = self._held() >= self._rule.buffer
        else:
            session.learner.cancel([completion])
            if not took_time:
                self._failed_at_once.add(device)
        self._watchdog.take_job(took_time, self._most_places, full)
        return _State.AGGREGATE if full else _State.FILL

    def _as_taken(self, completion: Completion) -> Completion:
        """Return a completion with its staleness and weight: lost if the server lost it since, or too stale."""
        session = self._session
        if session.server_buffer.losses:
            completion = session.server_buffer.with_losses([completion])[0]
        job, ended_s, outcome, _, computed, _ = completion
        staleness = session.staleness(job)
        if outcome in DELIVERED and staleness > self._most_stale:
            session.server_buffer.release([completion], "stale")
            outcome = "stale"
        return Completion(job, ended_s, outcome, staleness, computed, self._rule.weight(staleness))

    def _held(self) -> int:
        """Return how many updates the server still has; forget the jobs of those that it lost."""
        buffer = self._session.server_buffer
        if buffer.losses == self._losses:
            return len(self._updates)
        self._losses = buffer.losses
        now = buffer.with_losses([self._ended[place] for place in self._updates])
        for place, completion in zip(self._updates, now, strict=True):
            self._ended[place] = completion
        self._updates = [place for place in self._updates if self._ended[place].outcome in DELIVERED]
        self._session.learner.cancel([completion for completion in now if completion.outcome not in DELIVERED])
        return len(self._updates)

    # --- AGGREGATE ----------------------------------------------------------------------------------------------

    def _aggregate(self) -> Generator[Any, Any, None]:
        """Aggregate the buffer; whoever failed at once may be asked again."""
        session = self._session
        ended, self._ended, self._updates = self._ended, [], []
        self._watchdog.buffer_emptied()
        result = session.learner.aggregate(ended, session.view())
        session.server_buffer.release(ended)
        yield from self._rounds.close(result, ended, "buffer")
        self._failed_at_once.clear()


PLUGINS = {"buffered": Buffered}
