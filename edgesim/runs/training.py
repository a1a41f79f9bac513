"""Trainings of a simulation: the parts of each, its tables, its start and its end."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from edgesim.config.plugin_fields import built
from edgesim.config.scenario import Scenario, SessionTable
from edgesim.config.validate import refuse, shared_devices
from edgesim.core.arrays import Arr
from edgesim.core.backend import Backend
from edgesim.core.errors import ConfigError, EdgesimError
from edgesim.engine.batteries import FleetBatteries
from edgesim.engine.rounds import Observer, Rounds
from edgesim.engine.session import Session, dispatcher_of
from edgesim.engine.sessions import SessionProcess
from edgesim.engine.world import World
from edgesim.execution.app_learner import AppLearner, CallBackend
from edgesim.execution.async_peers import OwnClockLearner
from edgesim.execution.hierarchical import CloudLearner
from edgesim.execution.learner import FederatedLearner
from edgesim.execution.memo import Memo, NewRounds
from edgesim.files.loaded_code import Unidentified
from edgesim.files.user_cache import warn_once
from edgesim.records.table import Table, new_tables
from edgesim.runs.assembly import Assembly, Build, Load, assemble, build_network, load_data, method_of_server
from edgesim.runs.objectives import metrics_of
from edgesim.runs.table_spill import Released, Releasing
from edgesim.runs.tree import Tree

if TYPE_CHECKING:
    from edgesim.execution.checkpoint import Checkpoint
    from edgesim.execution.result_cache import Answers
    from edgesim.learning.data.dataset import Dataset


def assemble_all(scenario: Scenario, load: Load = load_data, build: Build = build_network) -> tuple[Assembly, ...]:
    """Build the parts of each training of a scenario; all share the world of the first. Raises as `assemble`.

    A data set that several sessions use is loaded once. An error names its session if there are several.
    """
    known: dict[str, Dataset | None] = {}

    def once(alone: Scenario) -> Dataset | None:
        name = repr(alone.data and alone.data.table())
        if name not in known:
            known[name] = load(alone)
        return known[name]

    found: list[Assembly] = []
    for place, alone in enumerate(scenario.trainings):
        try:
            parts = assemble(alone, once, build)
        except EdgesimError as error:
            if len(scenario.session) < 2:
                raise
            key = re.split(r"[.:]", str(error), maxsplit=1)[0]
            dot = "." if key in SessionTable.model_fields else ": "
            raise type(error)(f"session.{place}{dot}{error}") from error
        if found:
            world = found[0]
            parts = replace(
                parts, fleet=world.fleet, shared=world.shared, availability=world.availability,
                failures=world.failures, market=world.market,
            )  # fmt: skip
        found.append(replace(parts, of_all=scenario))
    if len(found) > 1:
        trainings = [(parts.scenario, parts.setting.ids) for parts in found]
        refuse(shared_devices(trainings, FleetBatteries(found[0].fleet).__contains__))
    return tuple(found)


def open_backends(all_parts: tuple[Assembly, ...], closes: ExitStack) -> list[Backend]:
    """Open a backend for each training; `closes` will close them."""
    chosen = all_parts[0].scenario.backend
    if all_parts[0].scenario.app is not None:
        return [closes.enter_context(closing(CallBackend(chosen.value.processes)))]
    found = (built(chosen, "backend", Backend, chosen.value.open, parts.make_trainer) for parts in all_parts)
    return [closes.enter_context(closing(each)) for each in found]


class _Named:
    """An observer that adds the name of the session to each round and passes it on."""

    def __init__(self, observer: Observer, session: str) -> None:
        self._observer = observer
        self._session = session

    def round_closed(self, info: Mapping[str, Any]) -> None:
        self._observer.round_closed({**info, "session": self._session})


class RunningTraining:
    """A training in a world: its learner, session, rounds and tables."""

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
        """`spent`: returns the spending of the devices so far; `alone`: no other training shares the world.

        For the other arguments see `Simulation`.
        """
        scenario = parts.scenario
        self.parts = parts
        self.name = scenario.session_name
        self.tables: dict[str, Table] = new_tables()
        self.process: SessionProcess | None = None  # None: not started
        self.released = Released()  # rows that have left the tables for the run folder
        self.learner = _learner(parts, backend, checkpoint, answers)
        self.tree: Tree | None = None  # None: no edge servers
        if isinstance(self.learner, CloudLearner):
            self.tree = Tree(parts, world, self.learner, self.tables)
            self.session: Session = self.tree.session
        else:
            self.session = Session(
                world,
                learner=self.learner,
                setting=parts.setting,
                tables=self.tables,
                selection=scenario.selection.value,
                peers=None if scenario.peers is None else scenario.peers.value,
                key=parts.session_key,
                dispatcher=dispatcher_of(
                    world,
                    parts.setting,
                    parts.session_word,
                    None if scenario.resources is None else scenario.resources.value,
                ),
                alone=alone,
            )
        named: Observer = _Named(observer, self.name) if scenario.session else observer
        self.releasing = Releasing(self, NewRounds(named, self.learner.memo))
        self.rounds = Rounds(
            self.session,
            stop=scenario.stop,
            evaluation=scenario.evaluation,
            server=scenario.server,
            observer=self.releasing,
            spent=spent,
            better=metrics_of(scenario),
            controller=None if scenario.controller is None else scenario.controller.value,
        )
        start_s = scenario.session[0].start if scenario.session else 0.0
        self._begin = partial(
            SessionProcess, self.session, self.rounds, scenario.protocol.value, scenario.stop, start_s, self.tree
        )

    @property
    def sessions(self) -> list[Session]:
        """Sessions of all aggregators, the server's last."""
        return [*([] if self.tree is None else self.tree.sessions), self.session]

    @property
    def asks_devices(self) -> Session:
        """A session that asks devices: the server's, or with edge servers the session of the first."""
        return self.sessions[0]

    def begin(self) -> SessionProcess:
        """Start the protocol and the timers of its stop rules in the world, whose clock has not started."""
        self.process = self._begin()
        return self.process


def _learner(
    parts: Assembly, backend: Backend, checkpoint: Checkpoint | None, answers: Answers | None
) -> FederatedLearner | AppLearner:
    if parts.scenario.app is not None:
        if checkpoint:
            raise ConfigError(
                "--checkpoint: a run of an app goes on from its cached calls, if the same command is repeated"
            )
        given = (parts.scenario.app.value, backend, len(parts.fleet), parts.session_key)
        if answers is None:
            return AppLearner(*given)
        from edgesim.runs.cache_identity import facts_of_app  # loads torch

        return AppLearner(*given, answers, facts_of_app)
    method, key = method_of_server(parts.scenario), parts.session_key
    own_clocks = parts.scenario.protocol.value.own_clocks
    kind: type[FederatedLearner] = OwnClockLearner if own_clocks else FederatedLearner
    kind = kind if parts.scenario.edges is None else CloudLearner
    if not backend.trains:
        return kind(method, backend, parts.setting, key, None)
    from edgesim.execution.result_cache import SavedMemo
    from edgesim.learning.models.build import model_state_of  # these imports load torch
    from edgesim.runs.cache_identity import facts_of, world_of

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
