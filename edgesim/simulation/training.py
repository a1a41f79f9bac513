"""One of the trainings of a simulation: what it is made of, its tables, and how it begins and ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from edgesim.core.arrays import Arr
from edgesim.core.backend import Backend
from edgesim.engine.edges.cloud import CloudRounds
from edgesim.engine.rounds import Observer, Rounds
from edgesim.engine.session import Session, dispatcher_of
from edgesim.engine.sessions import SessionProcess
from edgesim.engine.world import World
from edgesim.files.loaded_code import Unidentified
from edgesim.files.warn import warn_once
from edgesim.records.table import Table, new_tables
from edgesim.runtime.learner import FederatedLearner
from edgesim.runtime.memo import Memo, NewRounds
from edgesim.runtime.own_clocks import OwnClockLearner
from edgesim.runtime.tree_learner import CloudLearner
from edgesim.simulation.assembly import Assembly
from edgesim.simulation.objectives import metrics_of
from edgesim.simulation.released import Released, Releasing
from edgesim.simulation.server_step import method_of_server
from edgesim.simulation.tree import Tree

if TYPE_CHECKING:
    from edgesim.runtime.answers import Answers
    from edgesim.runtime.checkpoint import Checkpoint


class _Named:
    """An observer that tells another one of rounds, and whose they are."""

    def __init__(self, observer: Observer, session: str) -> None:
        self._observer = observer
        self._session = session

    def round_closed(self, info: Mapping[str, Any]) -> None:
        self._observer.round_closed({**info, "session": self._session})


class Training:
    """A training in a world: learner, session, rounds and tables."""

    def __init__(
        self,
        world: World,
        parts: Assembly,
        backend: Backend,
        observer: Observer,
        spent: Callable[[], Mapping[str, Arr]],
        checkpoint: Checkpoint | None = None,
        answers: Answers | None = None,
        *,
        alone: bool = True,
    ) -> None:
        """`spent`: gives what the devices have spent so far; `alone`: there are no other trainings in the world.

        For the others see `Simulation`.
        """
        scenario = parts.scenario
        self.parts = parts
        self.name = scenario.session_name
        self.tables: dict[str, Table] = new_tables()
        self.process: SessionProcess | None = None  # None: it has not begun
        self.released = Released()  # the rows before those that the tables hold
        self.learner = _learner(parts, backend, checkpoint, answers)
        self.tree: Tree | None = None  # None: no edge servers
        if isinstance(self.learner, CloudLearner):
            self.tree = Tree(parts, world, self.learner, self.tables)
        self.session = self._only_session(world, alone) if self.tree is None else self.tree.session
        named: Observer = _Named(observer, self.name) if scenario.session else observer
        self.releasing = Releasing(self, NewRounds(named, self.learner.memo))
        self.rounds = (CloudRounds if self.tree else Rounds)(
            self.session,
            stop=scenario.stop,
            evaluation=scenario.evaluation,
            server=scenario.server,
            observer=self.releasing,
            spent=spent,
            better=metrics_of(scenario),
        )
        start_s = scenario.session[0].start if scenario.session else 0.0
        self._begin = partial(
            SessionProcess, self.session, self.rounds, scenario.protocol.value, scenario.stop, start_s, self.tree
        )

    def _only_session(self, world: World, alone: bool) -> Session:
        """Return the session of a server, or of peers, without edge servers."""
        parts, scenario = self.parts, self.parts.scenario
        return Session(
            world,
            learner=self.learner,
            setting=parts.setting,
            tables=self.tables,
            selection=scenario.selection.value,
            peers=None if scenario.peers is None else scenario.peers.value,
            key=parts.session_key,
            dispatcher=dispatcher_of(world, parts.setting, parts.session_word),
            alone=alone,
        )

    @property
    def asks_devices(self) -> Session:
        """A session that asks devices: of the server, or with edge servers of the first of them."""
        return self.session if self.tree is None else self.tree.sessions[0]

    def begin(self) -> SessionProcess:
        """Start the protocol and the timers of its stop rules in the world, whose clock has not started."""
        self.process = self._begin()
        return self.process


def _learner(
    parts: Assembly, backend: Backend, checkpoint: Checkpoint | None, answers: Answers | None
) -> FederatedLearner:
    method, key = method_of_server(parts.scenario), parts.session_key
    own_clocks = getattr(parts.scenario.protocol.value, "own_clocks", False)
    kind: type[FederatedLearner] = OwnClockLearner if own_clocks else FederatedLearner
    kind = kind if parts.scenario.edges is None else CloudLearner
    if not backend.trains:
        return kind(method, backend, parts.setting, key, None)
    from edgesim.learning.models.build import model_state_of  # these load torch
    from edgesim.runtime.saved_memo import SavedMemo
    from edgesim.simulation.facts import facts_of, world_of

    memo = Memo()
    try:
        if checkpoint or answers:
            memo = SavedMemo(facts_of(parts), world_of(parts), method, answers, checkpoint)
    except Unidentified as error:
        memo.not_kept = f"{error}: nothing is taken from earlier runs or kept for later ones"
        warn_once(memo.not_kept)
    learner = kind(method, backend, parts.setting, key, model_state_of(parts.module), parts.make_tools(), memo)
    if checkpoint:
        checkpoint.check(learner.state, method)
    return learner
