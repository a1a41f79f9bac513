"""Disciplines of shared links from outside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgesim.core.limits import PositiveShare
from edgesim.world.contention.base import DisciplinePart, SharedLinks
from edgesim.world.contention.fair import FairLinks


@dataclass(frozen=True, kw_only=True)
class Derated(DisciplinePart):
    """Fair shares of the `efficiency` of each link."""

    efficiency: PositiveShare = 0.5

    def links(self, capacity_bps: Mapping[Any, float]) -> SharedLinks:
        """Return links without a transfer."""
        return FairLinks({link: self.efficiency * bps for link, bps in capacity_bps.items()})


@dataclass(frozen=True, kw_only=True)
class NoLinks(DisciplinePart):
    """A discipline that gives something else."""

    def links(self, capacity_bps: Mapping[Any, float]) -> Any:
        """Return the links alone."""
        return list(capacity_bps)
