"""The section of edge servers: aggregators between devices and server, with rounds, speed and power of their own."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from annotated_types import Le, MinLen
from pydantic import BeforeValidator, Field, Strict
from pydantic import model_validator as validator

from edgesim.config.plugin_fields import Chosen, PartOf, refusal_at
from edgesim.config.strict_table import StrictTable
from edgesim.config.units import FlopsPerSecondOrInf, JoulesPerBit, Watts
from edgesim.core.numbers import Count

Assignment: TypeAlias = Literal["neighbours", "column", "nearest", "balanced", "labels"]
Handover: TypeAlias = Literal["old", "new", "lost"]


def _listed(given: Any) -> Any:
    return given if isinstance(given, list | tuple) else [given]


_Failures: TypeAlias = Annotated[
    tuple[Annotated[Chosen, PartOf("failure")], ...], Strict(False), BeforeValidator(_listed)
]
_Point: TypeAlias = Annotated[tuple[float, float], Strict(False)]


class Edges(StrictTable):
    """Edge servers of `topology = tree`, each of which trains its devices in rounds of its own.

    The scenario's `selection` says whom each edge server asks, its `protocol` how the server waits for them. An edge
    server's model counts as the samples behind it.
    """

    rounds: Annotated[Count, Le(1_000)] = 1  # of an edge server, before it sends its model: kappa_2 of HierFAVG
    protocol: Annotated[Chosen, PartOf("protocol")] = Field(default="sync", validate_default=True)  # of the devices
    asked: Annotated[Chosen, PartOf("selection")] = Field(default="all", validate_default=True)  # edge servers a round
    assignment: Assignment = "neighbours"  # which devices hang on which edge server
    positions: Annotated[tuple[_Point, ...], Strict(False), MinLen(1)] | None = None  # of edge servers, for "nearest"
    mobility: Annotated[Chosen, PartOf("mobility")] | None = None  # None: devices stay where they are
    handover: Handover = "old"  # who gets the update of a device that moved meanwhile
    flops_per_s: FlopsPerSecondOrInf = float("inf")  # speed of an edge server; inf: its work takes no time
    workers: Count = 1  # of an edge server: each as fast, at work on the updates of an aggregation at once
    idle: Watts = 0.0  # of an edge server, all the time
    busy: Watts = 0.0  # while it computes
    energy_per_bit: JoulesPerBit = 0.0  # of what crosses the links between edge servers and server
    failures: _Failures = ()  # of each edge server: restarts

    @validator(mode="after")
    def _busy_is_more(self) -> Edges:
        if self.flops_per_s < float("inf") and self.busy < self.idle:  # else it is never busy
            raise refusal_at("busy", f"must be at least idle, {self.idle:g} W, got {self.busy:g} W", self.busy)
        return self

    @validator(mode="after")
    def _positions_where_needed(self) -> Edges:
        if (self.positions is None) == (self.assignment == "nearest"):
            needs = "needs positions" if self.positions is None else "alone takes positions"
            raise refusal_at("positions", f"assignment 'nearest' {needs}, assignment is {self.assignment!r}", None)
        return self
