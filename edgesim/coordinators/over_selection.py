"""Over-selection: more devices are asked than needed, and the slowest are not waited for."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from annotated_types import Ge

from edgesim.contracts import Learner
from edgesim.coordinators.exchange import Policy, run_rounds
from edgesim.engine.engine import Engine
from edgesim.engine.rounds import Rounds
from edgesim.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class OverSelection:
    """A round ends with the first `keep` updates; the other devices are cancelled, charged up to then.

    The scenario's selection says how many are asked, commonly 1.3 times as many.
    Source: Bonawitz et al., "Towards Federated Learning at Scale: System Design" (2019), section 2.2.
    """

    protocol: ClassVar[str] = "deadline"
    deadline_s: ClassVar[float] = float("inf")
    keep: Annotated[int, Ge(1)]

    def check(self, devices: int, asked: int) -> None:
        """Raise ConfigError unless more devices are asked than kept."""
        if self.keep > asked:
            raise ConfigError(f"coordinator.keep: must be at most the {asked} devices asked a round, found {self.keep}")

    def run(self, engine: Engine, rounds: Rounds, learner: Learner) -> Generator[Any, Any, None]:
        """Run rounds until stopped; one SimPy process for the whole fleet."""
        return run_rounds(engine, rounds, learner, _First(self.keep))


class _First(Policy):
    """Closes a round with the first `keep` updates."""

    def __init__(self, keep: int) -> None:
        self._keep = keep

    def enough(self, asked: int) -> int:
        """Return how many updates close a round."""
        return self._keep


PARTS = {"over_selection": OverSelection}
