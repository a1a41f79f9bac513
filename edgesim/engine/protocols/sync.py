"""Synchronous protocol: the server waits for every device asked. Rounds among peers are synchronous, too."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar

from edgesim.engine.protocols.exchange import Policy, run_rounds
from edgesim.engine.rounds import Rounds
from edgesim.engine.session import Session


@dataclass(frozen=True, kw_only=True)
class Sync:
    """Every round waits for all devices that were asked."""

    protocol: ClassVar[str] = "sync"
    deadline_s: ClassVar[float] = float("inf")

    def check(self, devices: int, asked: int) -> None:
        """Accept every fleet."""

    def run(self, session: Session, rounds: Rounds) -> Generator[Any, Any, None]:
        """Run rounds until stopped; one SimPy process for the whole fleet."""
        return run_rounds(session, rounds, Policy())


PLUGINS = {"sync": Sync}
