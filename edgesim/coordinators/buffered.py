"""The asynchronous protocol: devices work without rounds, and the server merges as updates come in."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, replace
from math import inf
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge

from edgesim.contracts import DELIVERED, Arrival, Learner
from edgesim.coordinators.exchange import MOST_LOOKS, NOBODY_FITS, NOBODY_LEFT, nobody_seen
from edgesim.engine.engine import Engine
from edgesim.engine.inbox import Inbox
from edgesim.engine.rounds import Rounds
from edgesim.engine.view import FleetView
from edgesim.errors import ConfigError
from edgesim.limits import MOST_JOBS, check_steps
from edgesim.numbers import Count, NonNegativeNumber, PositiveNumber

_USUAL_A = {"constant": 0.0, "polynomial": 0.5, "hinge": 10.0}  # those of FedAsync's experiments
_MOST_TRIES = 1_000  # in a row without any time passing: then it will never pass
_ALL_FAIL = f"{_MOST_TRIES} times in a row all devices that are there failed at the instant of being asked"
_MOST_FILLS = 1_000  # of all places or of the buffer, by jobs that took time: without a merge, there will be none


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
    max_staleness: Annotated[int, Ge(0)] | None = None
    reassign: Literal["random", "same"] = "random"  # who takes the place of a device that ended

    def check(self, devices: int, asked: int) -> None:
        """Raise ConfigError if more devices are to work at a time than there are."""
        if self.concurrency > devices:
            raise ConfigError(
                f"coordinator.concurrency: must be at most the {devices} devices of the fleet, found {self.concurrency}"
            )
        check_steps("coordinator.buffer", self.buffer, "a merge of so many updates", most=MOST_JOBS)

    def weight(self, staleness: int) -> float:
        """Return what an update counts."""
        a = self.a or _USUAL_A[self.staleness]
        if self.staleness == "polynomial":
            return float((staleness + 1.0) ** -a)
        if self.staleness == "hinge" and staleness > self.b:
            return 1.0 / (a * (staleness - self.b) + 1.0)
        return 1.0

    def run(self, engine: Engine, rounds: Rounds, learner: Learner) -> Generator[Any, Any, None]:
        """Run until stopped; one SimPy process for the whole fleet."""
        return _Run(self, engine, rounds, learner).run()


class _Run:
    """One run of the protocol: what the server knows of jobs that are not at work any more, and not merged."""

    def __init__(self, rule: Buffered, engine: Engine, rounds: Rounds, learner: Learner) -> None:
        self._rule = rule
        self._engine = engine
        self._rounds = rounds
        self._learner = learner
        self._inbox: Inbox = engine.new_inbox()
        self._queue: deque[Arrival] = deque()  # ended, not taken yet: they keep their places
        self._full = False  # the buffer is; then there are updates to merge before anything else
        self._left: int | None = None  # whose place was the last to become free, if it goes to the same device
        self._ended: list[Arrival] = []  # taken since the last merge
        self._places: list[int] = []  # in it, of updates that the server has
        self._losses = 0  # restarts of the server that this takes account of
        self._took_time = 0  # how many of those ended did
        self._vain: set[int] = set()  # devices left alone, as they failed at once
        self._tries = 0  # at one instant, without anybody at work
        self._looks = 0  # in a row, without anybody at work
        self._most_stale = inf if rule.max_staleness is None else rule.max_staleness
        self._most_time = _MOST_FILLS * max(rule.buffer, rule.concurrency)

    def run(self) -> Generator[Any, Any, None]:
        """Fill the places, wait for a job to end, take it, merge when the buffer is full; again until stopped."""
        self._fill()
        while not self._rounds.stopped:
            if self._full:
                yield from self._merge()
                self._fill(self._left)
            elif self._queue:
                self._serve(self._queue.popleft())
            elif len(self._inbox):
                self._queue.extend(self._inbox.take())
            else:
                yield from self._wait()

    def _serve(self, arrival: Arrival) -> None:
        """Take an ended job and fill its place, the latter not before a merge if one is due."""
        self._take(arrival)
        self._left = arrival.job.device if self._rule.reassign == "same" else None
        if not self._full:
            self._fill(self._left)

    def _serve_alone(self, arrival: Arrival) -> bool:
        """Do so for a job that ends alone; return whether to wait on: nothing to merge, and all places taken again."""
        self._queue.append(arrival)
        while self._queue and not self._full and not self._rounds.stopped:
            self._serve(self._queue.popleft())
        return not self._full and len(self._engine.running) == self._rule.concurrency

    def _fill(self, first: int | None = None) -> None:
        """Ask idle devices until every place is taken, beginning with `first` if it can be asked."""
        engine = self._engine
        if len(self._inbox):
            self._queue.extend(self._inbox.take())
        engine.presence.new_occasion()
        while not self._rounds.stopped and (places := self._places_free()) > 0:
            view = self._view(places, first)
            if not view.free_places:
                return
            jobs = engine.dispatch(self._learner.plan(view), to=self._inbox)
            self._learner.start(jobs)
            engine.exchange += 1
            if engine.nobody_fits:
                self._rounds.end(NOBODY_FITS)
            if len(self._inbox):
                self._queue.extend(self._inbox.take())  # who lacks the memory answers at once
            first = None

    def _places_free(self) -> int:
        return self._rule.concurrency - len(self._engine.running) - len(self._queue)

    def _view(self, places: int, first: int | None) -> FleetView:
        """Return what the method may know, and whom it may ask: at most so many."""
        view = self._engine.view(places, None if first in self._vain else first)
        if not self._queue and not self._vain:
            return view
        hidden = [*self._vain, *(arrival.job.device for arrival in self._queue)]
        return replace(view, hidden=tuple(hidden))

    def _wait(self) -> Generator[Any, Any, None]:
        """Wait until a job ends or a free place may be filled that nobody can take now; end the run if neither will."""
        engine, since_s = self._engine, self._engine.now_s
        free = self._rule.concurrency > len(engine.running)
        chance_s = engine.presence.wait_s(engine.now_s) if free else inf
        alone = None if free or not engine.one_by_one else self._serve_alone
        ended = False
        self._looks = 0 if engine.running else self._looks + 1
        if self._looks >= MOST_LOOKS:
            self._rounds.end(nobody_seen(self._looks))
        elif engine.running or chance_s < inf:
            ended = yield self._inbox.until(1, within_s=chance_s, alone=alone)
            self._tries = self._tries if engine.now_s == since_s else 0
        elif self._vain and self._tries < _MOST_TRIES:
            self._tries += 1
        else:
            self._rounds.end(_ALL_FAIL if self._vain else NOBODY_LEFT)
        if not ended and not len(self._inbox):  # but somebody may have come
            self._vain.clear()
            self._fill()

    def _take(self, arrival: Arrival) -> None:
        """Put an update into the buffer, or forget a job that brought none."""
        engine = self._engine
        if engine.held.losses:
            arrival = engine.held.look([arrival])[0]
        staleness = engine.model.version - arrival.job.base.version
        if arrival.outcome in DELIVERED and staleness > self._most_stale:
            engine.held.release([arrival], "stale")
            arrival = arrival._replace(outcome="stale")
        weight = self._rule.weight(staleness)
        self._ended.append(
            Arrival(arrival.job, arrival.arrived_s, arrival.outcome, staleness, arrival.computed, weight)
        )
        self._took_time += arrival.arrived_s > arrival.job.sent_s
        if arrival.outcome in DELIVERED:
            self._places.append(len(self._ended) - 1)
            self._full = self._updates() >= self._rule.buffer
        else:
            self._learner.cancel([arrival])
            if arrival.arrived_s == arrival.job.sent_s:
                self._vain.add(arrival.job.device)
        if not self._full and self._took_time >= self._most_time:
            self._rounds.end(f"{self._took_time} jobs in a row did not fill the buffer")

    def _merge(self) -> Generator[Any, Any, None]:
        ended, self._ended, self._places, self._took_time = self._ended, [], [], 0
        self._full = False
        result = self._learner.merge(ended, self._engine.view())
        self._engine.held.release(ended)
        yield from self._rounds.close(result, ended, self._learner, "buffer")
        self._vain.clear()

    def _updates(self) -> int:
        """Return how many updates the server still has; forget the jobs of those that it lost."""
        if self._engine.held.losses == self._losses:
            return len(self._places)
        self._losses = self._engine.held.losses
        now = self._engine.held.look([self._ended[place] for place in self._places])
        for place, arrival in zip(self._places, now, strict=True):
            self._ended[place] = arrival
        self._places = [place for place in self._places if self._ended[place].outcome in DELIVERED]
        self._learner.cancel([arrival for arrival in now if arrival.outcome not in DELIVERED])
        return len(self._places)


PARTS = {"buffered": Buffered}
