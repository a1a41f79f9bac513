"""The synchronous protocol: ask, wait for everybody, merge. Rounds among peers are synchronous too."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar

from edgesim.contracts import Learner
from edgesim.coordinators.exchange import Policy, run_rounds
from edgesim.engine.engine import Engine
from edgesim.engine.rounds import Rounds


@dataclass(frozen=True, kw_only=True)
class Sync:
    """Every round waits for all devices asked."""

    protocol: ClassVar[str] = "sync"
    deadline_s: ClassVar[float] = float("inf")

    def check(self, devices: int, asked: int) -> None:
        """Accept every fleet."""

    def run(self, engine: Engine, rounds: Rounds, learner: Learner) -> Generator[Any, Any, None]:
        """Run rounds until stopped; one SimPy process for the whole fleet."""
        return run_rounds(engine, rounds, learner, Policy())


PARTS = {"sync": Sync}
