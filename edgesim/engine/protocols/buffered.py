"""Asynchronous protocol: devices work without rounds, and the server aggregates updates as they arrive."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, ClassVar, Literal

from edgesim.core.errors import ConfigError
from edgesim.core.job import DELIVERED, Completion
from edgesim.core.limits import MOST_JOBS, Count, CountOrZero, NonNegativeNumber, PositiveNumber, check_steps
from edgesim.core.protocol import RoundProtocol
from edgesim.engine.protocols.without_rounds import WithoutRounds
from edgesim.engine.rounds import Rounds
from edgesim.engine.session import Session

_USUAL_A = {"constant": 0.0, "polynomial": 0.5, "hinge": 10.0}  # those of FedAsync's experiments


@dataclass(frozen=True, kw_only=True)
class Buffered(RoundProtocol):
    """Asynchronous: `concurrency` devices work at a time, and the server aggregates every `buffer` updates.

    With a buffer of 1 it aggregates each update as it arrives. The server takes ended jobs one by one, those of one
    instant in the order of their devices. It fills each free place at once: with an idle device that the scenario's
    selection allows ("random"), or with the same device ("same", or another if it cannot). A device that fails at the
    very instant of being asked is left alone until the next aggregation.
    The staleness of an update is the number of aggregations since its device got the model, when the server takes the
    update. The update counts with weight 1 ("constant"), (staleness + 1)^-`a` ("polynomial", `a` is 0.5 unless given),
    or 1 up to a staleness of `b` and 1 / (`a` (staleness - b) + 1) beyond ("hinge", `a` is 10). An update staler than
    `max_staleness` is discarded.
    Source: Xie et al., "Asynchronous Federated Optimization" (2019), section 5; Nguyen et al., "Federated Learning
    with Buffered Asynchronous Aggregation" (2022), algorithm 1.
    """

    protocol: ClassVar[str] = "buffered"
    concurrency: Count
    buffer: Count = 10
    staleness: Literal["constant", "polynomial", "hinge"] = "polynomial"  # how staleness lowers the weight of an update
    a: PositiveNumber | None = None
    b: NonNegativeNumber = 4.0
    max_staleness: CountOrZero | None = None
    reassign: Literal["random", "same"] = "random"  # the device that takes a free place

    def check(self, devices: int, asked: int) -> None:
        """Raise ConfigError if more devices are to work at a time than there are."""
        if self.concurrency > devices:
            raise ConfigError(
                f"protocol.concurrency: must be at most the {devices} devices of the fleet, found {self.concurrency}"
            )
        check_steps("protocol.buffer", self.buffer, "a merge of so many updates", most=MOST_JOBS)

    def with_fewer(self, updates: int, devices: int) -> tuple[Buffered, float]:
        """Return this protocol with a buffer of at most `updates`, and how many of its buffers fill one of this."""
        fewer = min(self.buffer, updates)
        return replace(self, buffer=fewer), self.buffer / fewer

    def weight(self, staleness: int) -> float:
        """Return the weight of an update."""
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
    """Next step of the server."""

    FILL = auto()  # free places with idle devices
    WAIT = auto()  # for a job to end, or for a device to arrive
    TAKE = auto()  # the next ended job
    AGGREGATE = auto()  # the buffer


class _Run(WithoutRounds):
    """One run of the protocol.

    States: FILL -> TAKE or WAIT; WAIT -> TAKE, or FILL if no job ended; TAKE -> AGGREGATE if the buffer is full, else
    FILL; AGGREGATE -> FILL. Jobs in the queue keep their places until the server takes them.
    """

    def __init__(self, rule: Buffered, session: Session, rounds: Rounds) -> None:
        super().__init__(session, rounds)
        self._rule = rule
        self._first: int | None = None  # device that is asked first for the next free place, with reassign = "same"
        self._updates: list[int] = []  # places in `ended` of the updates that the server has
        self._losses = 0  # restarts of the server that `_updates` takes account of
        self._failed_at_once: set[int] = set()  # devices left alone until the next aggregation

    def run(self) -> Generator[Any, Any, None]:
        """Go from state to state until stopped."""
        session, state = self.session, _State.FILL
        while not self.rounds.stopped:
            if state is _State.FILL:
                yield from session.turn()
                state = self._fill()
            elif state is _State.WAIT:
                since_s = session.now_s
                is_free = len(session.running) < self._rule.concurrency
                event = self.wait(is_free=is_free, is_failing=bool(self._failed_at_once))
                if event is not None:
                    yield event
                if session.now_s > since_s:
                    self.watchdog.time_passed()
                self._collect()
                if self.queue:
                    state = _State.TAKE
                else:  # devices that failed before may be asked again
                    self._failed_at_once.clear()
                    self._first, state = None, _State.FILL
            elif state is _State.TAKE:
                state = self._take(self.queue.popleft())
            else:
                self._updates = []
                yield from self.aggregate("buffer")
                self._failed_at_once.clear()
                state = _State.FILL

    def _fill(self) -> _State:
        """Ask idle devices until every place is taken, or no device can be asked."""
        session, first = self.session, self._first
        self._collect()
        session.presence.new_occasion()
        while not self.rounds.stopped:
            places = self._rule.concurrency - len(session.running) - len(self.queue)
            if places <= 0:
                break
            if not self.queue and not self._failed_at_once:
                view = session.view(places, first)
            else:
                hidden = (*self._failed_at_once, *(completion.job.device for completion in self.queue))
                view = session.view(places, None if first in self._failed_at_once else first, hidden)
            if not view.free_places:
                break
            jobs = session.dispatch(session.learner.plan(view), to=self.inbox)
            session.learner.start(jobs)
            session.exchange += 1
            self.watchdog.check_memory(session.nobody_fits)
            self._collect()  # devices without the memory answer at once
            first = None
        return _State.TAKE if self.queue else _State.WAIT

    def _collect(self) -> None:
        if len(self.inbox):
            self.queue.extend(self.inbox.take())
        if self.session.visitors:
            self.queue.extend(self.session.take_visitors())

    def _take(self, completion: Completion) -> _State:
        """Put an update into the buffer, or forget a job without an update. The server may have lost it since."""
        session, buffer, rule = self.session, self.session.server_buffer, self._rule
        if buffer.losses:
            completion = buffer.with_losses([completion])[0]
        job, ended_s, outcome, _, computed, _ = completion
        staleness = session.staleness(job)
        if outcome in DELIVERED and rule.max_staleness is not None and staleness > rule.max_staleness:
            buffer.release([completion], "stale")
            outcome = "stale"
        completion = Completion(job, ended_s, outcome, staleness, computed, rule.weight(staleness))
        took_time = ended_s > job.sent_s
        self._first = job.device if rule.reassign == "same" else None
        self.ended.append(completion)
        full = False
        if outcome in DELIVERED:
            self._updates.append(len(self.ended) - 1)
            if buffer.losses != self._losses:
                self._forget_lost()
            full = len(self._updates) >= rule.buffer
        else:
            session.learner.cancel([completion])
            if not took_time:
                self._failed_at_once.add(job.device)
        self.watchdog.take_job(took_time, max(rule.buffer, rule.concurrency), full)
        return _State.AGGREGATE if full else _State.FILL

    def _forget_lost(self) -> None:
        """Forget updates that a restart of the server has lost, with their jobs."""
        buffer = self.session.server_buffer
        self._losses = buffer.losses
        now = buffer.with_losses([self.ended[place] for place in self._updates])
        for place, completion in zip(self._updates, now, strict=True):
            self.ended[place] = completion
        self._updates = [place for place in self._updates if self.ended[place].outcome in DELIVERED]
        self.session.learner.cancel([completion for completion in now if completion.outcome not in DELIVERED])


PLUGINS = {"buffered": Buffered}
