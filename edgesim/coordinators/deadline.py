"""Synchronous rounds with a deadline."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar

from edgesim.contracts import Learner
from edgesim.coordinators.exchange import run_rounds
from edgesim.engine.engine import Engine
from edgesim.engine.rounds import Rounds
from edgesim.units import Seconds


@dataclass(frozen=True, kw_only=True)
class Deadline:
    """A round ends when all have answered, at the latest `deadline` seconds after the model was sent out.

    An arrival exactly at the deadline counts; later ones are cancelled, charged up to then and discarded.
    Source: FedPMT paper, experiments "with constraint".
    """

    protocol: ClassVar[str] = "deadline"
    deadline: Seconds

    @property
    def deadline_s(self) -> float:
        """Seconds of a round, at most."""
        return self.deadline

    def run(self, engine: Engine, rounds: Rounds, learner: Learner) -> Generator[Any, Any, None]:
        """Run rounds until stopped; one SimPy process for the whole fleet."""
        return run_rounds(engine, rounds, learner, self.deadline)


PARTS = {"deadline": Deadline}
