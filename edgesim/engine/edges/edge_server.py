"""An edge server: it takes the server's model, runs rounds over its devices, and hands its own model back."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from math import inf
from typing import Any, Protocol

import simpy

from edgesim.core.job import DELIVERED, Completion, Job
from edgesim.core.learner import Learner, ServerStep
from edgesim.core.update import ModelRef
from edgesim.engine.edges.edge_servers import OrderReport
from edgesim.engine.rounds import check_closed_by
from edgesim.engine.server_queue import Merges
from edgesim.engine.session import Session


class EdgeLearning(Learner, Protocol):
    """The learner of an edge server."""

    def adopt(self, model: ModelRef) -> None:
        """Go on from the server's model, which takes the place of its own."""


class CloudLearning(Learner, Protocol):
    """The learner of a server above edge servers."""

    def hand_in(self, job: Job, edge: Any, samples: int) -> None:
        """Take the model that an edge server, by its learner, sends for an order; `samples`: behind it."""


class EdgeServer:
    """Runs its protocol over its devices; to the protocol it is what closes rounds, as `Rounds` of a server alone.

    After so many rounds its model goes to the server, and it waits for the next order. Devices that still work for it
    go on meanwhile. What is aggregated for an order that has been called off is given up when the next one begins.
    """

    def __init__(
        self,
        session: Session,
        cloud: CloudLearning,
        *,
        protocol: Any,
        rounds: int,
        flops_per_s: float,
        workers: int,
        stopped: Callable[[], bool],
        gives_up: Callable[[int], None],
    ) -> None:
        """`stopped`: whether the run has ended; `gives_up`: told its place if it will never close a round again."""
        assert session.edge is not None
        self.session = session
        self.index = session.edge.index
        self.node = session.edge.node
        self._cloud = cloud
        self._protocol = protocol
        self._rounds = rounds
        self._merges = Merges(session.world, session.setting, flops_per_s, workers, "edges", self.index)
        self._run_has_stopped = stopped
        self._gives_up = gives_up
        self._gave_up = False
        self._report = OrderReport()
        self._job: Job | None = None  # the order it works on
        self._done: Callable[[], None] | None = None
        self._next: tuple[Job, Callable[[], None]] | None = None  # order, that it has not begun with
        self._asked: simpy.Event | None = None  # fires when there is one

    # --- orders -----------------------------------------------------------------------------------------------------

    def take(self, job: Job, done: Callable[[], None]) -> None:
        """Begin with an order as soon as the round at hand is closed; see edgesim.engine.edges.edge_servers.Worker."""
        self._next = job, done
        if self._asked is not None:
            asked, self._asked = self._asked, None
            asked.succeed()

    def drop(self, job: Job) -> None:
        """Forget an order."""
        if self._next is not None and self._next[0] is job:
            self._next = None
        if self._job is job:
            self._job = self._done = None

    def report(self) -> OrderReport:
        """Return the work done for the current order."""
        return self._report

    def hand_in(self, job: Job) -> None:
        """Give the model to the learner of the server."""
        self._cloud.hand_in(job, self.session.learner, self._report.samples)

    def run(self) -> Generator[Any, Any, None]:
        """Take order after order; one SimPy process."""
        yield from self._begin()
        yield from self._protocol.run(self.session, self)

    def _begin(self) -> Iterator[simpy.Event]:
        """Wait for an order, and begin with it."""
        while self._next is None:
            self._asked = self.session.env.event()
            yield self._asked
        (self._job, self._done), self._next = self._next, None
        self._report = OrderReport()
        learner: Any = self.session.learner
        learner.adopt(self._job.base)

    # --- what protocols ask of rounds ---------------------------------------------------------------------------------

    @property
    def stopped(self) -> bool:
        """True once there is nothing more to do."""
        return self._gave_up or self._run_has_stopped()

    def close(
        self,
        result: ServerStep,
        completions: Sequence[Completion],
        closed_by: str = "other",
        deadline_s: float = inf,
    ) -> Generator[simpy.Event, Any, None]:
        """Charge the work of an aggregation; after the last round of an order hand the model over and wait for one."""
        check_closed_by(closed_by)
        session, used = self.session, [each for each in completions if each.outcome in DELIVERED]
        server_s = yield from self._merges.run(result, completions)
        session.close_round(result, completions)
        session.round += 1
        session.exchange = 0
        self._count(completions, used, server_s)
        if self._job is None or self._report.rounds >= self._rounds:
            done, self._done, self._job = self._done, None, None
            if done is not None:
                done()
            yield from self._begin()

    def end(self, reason: str) -> None:
        """Give up: no device can take part any more, ever."""
        if not self._gave_up:
            self._gave_up = True
            self._gives_up(self.index)

    def settle(self) -> None:
        """Charge what it is at, as the run has ended."""
        self._merges.stop()

    def _count(self, completions: Sequence[Completion], used: Sequence[Completion], server_s: float) -> None:
        before, samples = self._report, self.session.setting.samples
        self._report = OrderReport(
            rounds=before.rounds + 1,
            asked=before.asked + len(completions),
            used=before.used + len(used),
            late=before.late + sum(each.outcome == "late" for each in completions),
            staleness=before.staleness + sum(each.staleness for each in used),
            samples=before.samples + sum(int(samples[each.job.device]) for each in used),
            server_s=before.server_s + server_s,
        )
