"""Methods and rules that break a promise of the seams in edgesim.core in one place each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from edgesim.core.arrays import Ids
from edgesim.core.protocol import RoundProtocol
from edgesim.core.rng import Key
from edgesim.core.selection import Selection
from edgesim.core.task import Task
from edgesim.methods.fedavg import FedAvg
from edgesim.world.peers.regular import Ring


@dataclass(frozen=True, kw_only=True)
class Wrong(FedAvg):
    """FedAvg, but for what one of its functions gives."""

    function: str = "aggregate"
    gives: str = "nothing"

    def plan(self, *arguments: Any) -> Any:
        """Return a plan or a list."""
        plan = super().plan(*arguments)
        if self.function != "plan":
            return plan
        return (
            list(plan.orders) if self.gives == "list" else plan._replace(orders=(plan.orders[0]._replace(device=77),))
        )

    def local(self, task: Task) -> Any:
        """Return a rule or nothing."""
        return None if self.function == "local" else super().local(task)

    def aggregate(self, *arguments: Any) -> Any:
        """Return what `gives` says."""
        merged = super().aggregate(*arguments)
        if self.function != "aggregate":
            return merged
        if self.gives == "dict":
            return merged._asdict()
        return merged._replace(metrics={"mood": "good"})


@dataclass(frozen=True, kw_only=True)
class Chooses(Selection):
    """Devices by number, whoever is idle."""

    everybody: ClassVar[bool] = False
    ids: tuple[float, ...]

    def choose(self, idle: Ids, level: Ids, key: Key) -> Any:
        """Return the numbers."""
        return np.array([int(i) if i == int(i) else i for i in self.ids])


@dataclass(frozen=True, kw_only=True)
class OnlyChecks(Selection):
    """A rule that chooses nothing."""

    def check(self, level: Ids) -> None:
        """Accept every fleet."""


@dataclass(frozen=True, kw_only=True)
class OnlyRuns(RoundProtocol):
    """A protocol that does not say which protocol it is."""

    def run(self, session: Any, rounds: Any) -> Any:
        """Do nothing."""


@dataclass(frozen=True, kw_only=True)
class Redrawn(Ring):
    """A graph with a field in the place of a property."""

    redrawn: bool
