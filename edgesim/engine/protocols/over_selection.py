"""Over-selection: the server asks more devices than it needs and does not wait for the slowest."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar

from edgesim.core.errors import ConfigError
from edgesim.core.limits import Count
from edgesim.core.protocol import RoundProtocol
from edgesim.engine.protocols.exchange import Policy, run_rounds
from edgesim.engine.rounds import Rounds
from edgesim.engine.session import Session


@dataclass(frozen=True, kw_only=True)
class OverSelection(RoundProtocol):
    """A round ends with the first `keep` updates; the other devices are cancelled, charged up to then.

    The scenario's selection sets the number of devices asked, commonly 1.3 times as many.
    Source: Bonawitz et al., "Towards Federated Learning at Scale: System Design" (2019), section 2.2.
    """

    protocol: ClassVar[str] = "deadline"
    keep: Count

    def check(self, devices: int, asked: int) -> None:
        """Raise ConfigError unless more devices are asked than kept."""
        if self.keep > asked:
            raise ConfigError(f"protocol.keep: must be at most the {asked} devices asked a round, found {self.keep}")

    def run(self, session: Session, rounds: Rounds) -> Generator[Any, Any, None]:
        """Run rounds until stopped; one SimPy process for the whole fleet."""
        return run_rounds(session, rounds, _First(self.keep))


class _First(Policy):
    """Closes a round with the first `keep` updates."""

    def __init__(self, keep: int) -> None:
        self._keep = keep

    def enough(self, asked: int) -> int:
        """Return the number of updates that close a round."""
        return self._keep


PLUGINS = {"over_selection": OverSelection}
