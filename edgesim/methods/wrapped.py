"""A method around another method, which does all that the outer method does not replace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edgesim.core.job import Job
from edgesim.core.method import Aggregate, LocalRule, Method, Needs, ServerContext, ServerSet
from edgesim.core.peer_graph import PeerGraph
from edgesim.core.rng import Key
from edgesim.core.task import Order, Plan, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, Turn, View


@dataclass(frozen=True, kw_only=True)
class Wrapped(Method):
    """A method that does everything as the inner `method` does. Subclasses replace parts of it."""

    method: Method

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        """Needs of the method."""
        return self.method.needs

    @property
    def label(self) -> str:
        """Name of the method's class, for error messages."""
        return self.method.label

    @property
    def modules(self) -> frozenset[str]:
        """Modules of the inner method."""
        return self.method.modules

    @property
    def server_set(self) -> ServerSet | None:
        """Samples of the method's server."""
        return self.method.server_set

    @property
    def needs_training(self) -> bool:
        """True if the method's plans are not known without training."""
        return self.method.needs_training

    @property
    def sees_exchanges(self) -> bool:
        """True if the method handles exchanges."""
        return self.method.sees_exchanges

    @property
    def needs_classes(self) -> str:
        """Reason of the method."""
        return self.method.needs_classes

    @property
    def no_server_optimizer(self) -> str:  # type: ignore[override]
        """Reason of the method."""
        return self.method.no_server_optimizer

    @property
    def no_update_encoding(self) -> str:  # type: ignore[override]
        """Reason of the method."""
        return self.method.no_update_encoding

    @property
    def uses_kept_model(self) -> bool:  # type: ignore[override]
        """True if the method's devices use the model that they keep."""
        return self.method.uses_kept_model

    @property
    def loop(self) -> str:
        """Name of the user's function that trains in place of the method's local SGD."""
        return self.method.loop

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the method's first state."""
        return self.method.init(setting, key)

    def check_peers(self, graph: PeerGraph) -> None:
        """Raise ConfigError if the method cannot work with the peer graph."""
        self.method.check_peers(graph)

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Return the method's orders."""
        return self.method.plan(state, view, key)

    def task(self, view: View) -> Task:
        """Return the method's task."""
        return self.method.task(view)

    def local(self, task: Task) -> LocalRule:
        """Return the method's rule."""
        return self.method.local(task)

    def next_order(self, state: Any, turn: Turn, key: Key) -> Order:
        """Return the method's order."""
        return self.method.next_order(state, turn, key)

    def traded(
        self, first: ModelState, mine: ModelState | None, theirs: ModelState | None
    ) -> tuple[ModelState, ModelState]:
        """Return the kept states by the method."""
        return self.method.traded(first, mine, theirs)

    def joined(self, first: ModelState, device_state: ModelState | None, trained: ModelState | None) -> Any:
        """Return the kept state by the method."""
        return self.method.joined(first, device_state, trained)

    def aggregate(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the method's aggregate."""
        return self.method.aggregate(state, global_model, updates, server, key)

    def merge_flops(self, updates: int, setting: Setting) -> float:
        """Return the method's FLOPs."""
        return self.method.merge_flops(updates, setting)

    def merge_flops_of(self, tasks: Sequence[Task], setting: Setting) -> float:
        """Return the method's FLOPs, plus the FLOPs that `merge_flops` adds to the method's."""
        beside = self.merge_flops(len(tasks), setting) - self.method.merge_flops(len(tasks), setting)
        return self.method.merge_flops_of(tasks, setting) + beside

    def foreseen(self, state: Any, jobs: Sequence[Job | Update], setting: Setting) -> Any:
        """Return the method's state without training."""
        return self.method.foreseen(state, jobs, setting)

    def on_exchange(self, state: Any, updates: Sequence[Update], server: ServerContext, key: Key) -> Any:
        """Return the method's state after an exchange."""
        return self.method.on_exchange(state, updates, server, key)

    def personal_model(self, global_model: ModelState, device_state: ModelState | None) -> ModelState:
        """Return the method's model of a device."""
        return self.method.personal_model(global_model, device_state)
