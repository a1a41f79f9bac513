"""The synchronous protocol: ask, wait for everybody, merge."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar

from edgesim.contracts import Learner
from edgesim.coordinators.exchange import run_rounds
from edgesim.engine.engine import Engine
from edgesim.engine.rounds import Rounds


@dataclass(frozen=True, kw_only=True)
class Sync:
    """Every round waits for all devices asked."""

    protocol: ClassVar[str] = "sync"
    deadline_s: ClassVar[float] = float("inf")

    def run(self, engine: Engine, rounds: Rounds, learner: Learner) -> Generator[Any, Any, None]:
        """Run rounds until stopped; one SimPy process for the whole fleet."""
        return run_rounds(engine, rounds, learner, self.deadline_s)


PARTS = {"sync": Sync}
