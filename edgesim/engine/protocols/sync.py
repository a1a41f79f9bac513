"""Synchronous protocol: the server waits for every device asked. Rounds among peers are synchronous, too."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar

from edgesim.core.protocol import RoundProtocol
from edgesim.engine.protocols.exchange import Policy, run_rounds
from edgesim.engine.rounds import Rounds
from edgesim.engine.session import Session


@dataclass(frozen=True, kw_only=True)
class Sync(RoundProtocol):
    """Every round waits for all devices that were asked."""

    protocol: ClassVar[str] = "sync"

    def run(self, session: Session, rounds: Rounds) -> Generator[Any, Any, None]:
        """Run rounds until stopped; one SimPy process for the whole fleet."""
        return run_rounds(session, rounds, Policy())


PLUGINS = {"sync": Sync}
