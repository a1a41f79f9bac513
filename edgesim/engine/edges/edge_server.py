"""An edge server: it takes a model from above, runs rounds over its devices, and hands its own model back.

A server of a tier above does the same over the edge servers below it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from math import inf
from typing import Any, Protocol

import simpy

from edgesim.config.sections import ServerTier
from edgesim.core.job import Completion, Job
from edgesim.core.learner import Learner, ServerStep
from edgesim.core.update import ModelRef
from edgesim.engine.edges.edge_servers import OrderReport
from edgesim.engine.rounds import check_closed_by
from edgesim.engine.server_queue import Merges
from edgesim.engine.session import Session


class EdgeLearning(Learner, Protocol):
    """The learner of an edge server."""

    def adopt(self, model: ModelRef, name: ModelRef) -> None:
        """Go on from a model of the aggregator above, which takes the place of its own under the name `name`."""


class CloudLearning(Learner, Protocol):
    """The learner of an aggregator above edge servers."""

    def hand_in(self, job: Job, edge: Any, samples: int) -> None:
        """Take the model that an edge server, by its learner, sends for an order; `samples`: behind it."""


class EdgeServer:
    """Runs its protocol over those below; to the protocol it is what closes rounds, as `Rounds` of a server alone.

    After so many rounds its model goes up, and it waits for the next order. Jobs that still run for it go on
    meanwhile. What is aggregated for an order that has been called off is given up when the next one begins.
    """

    def __init__(
        self,
        session: Session,
        above: CloudLearning,
        given: ServerTier,
        key: str,
        *,
        stopped: Callable[[], bool],
        gives_up: Callable[[], None],
    ) -> None:
        """`given`: its tier, which is at `key` of the scenario; `stopped`: whether the run has ended.

        `gives_up`: called if it will never close a round again.
        """
        assert session.edge is not None
        self.session = session
        self.node = session.edge.node
        self._above = above
        self._protocol = given.protocol.value
        self._rounds = given.rounds
        self._merges = Merges(session.world, session.setting, given.flops_per_s, given.workers, key, session.edge.index)
        self._run_has_stopped = stopped
        self._gives_up = gives_up
        self._gave_up = False
        self._report = OrderReport()
        self._adopted: tuple[ModelRef, ModelRef] | None = None  # the newest model from above, and its name here
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
        """Give the model to the learner of the aggregator above."""
        self._above.hand_in(job, self.session.learner, self._report.samples)

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
        session, given = self.session, self._job.base
        if self._adopted is not None and self._adopted[0] != given and self._adopted[1] == session.model:
            # no update has come since, and jobs that still run start from the model of this name
            session.model = session.model._replace(version=session.model.version + 1)
        self._adopted = given, session.model
        learner: Any = session.learner
        learner.adopt(given, session.model)

    # --- what protocols ask of rounds ---------------------------------------------------------------------------------

    def steer(self) -> None:
        """Do nothing: no controller chooses for edge servers."""

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
        session = self.session
        server_s = yield from self._merges.run(result, completions)
        session.close_round(result, completions)
        session.round += 1
        session.exchange = 0
        self._report += session.tally(completions)._replace(server_s=server_s)
        if self._job is None or self._report.rounds >= self._rounds:
            done, self._done, self._job = self._done, None, None
            if done is not None:
                done()
            yield from self._begin()

    def give_up(self, reason: str) -> None:
        """Take part no more, as no device ever can."""
        if not self._gave_up:
            self._gave_up = True
            self._gives_up()

    def settle(self) -> None:
        """Charge what it is at, as the run has ended."""
        self._merges.stop()
