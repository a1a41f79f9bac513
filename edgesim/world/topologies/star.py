"""Who can talk to whom."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Star:
    """Every device has its own link to the one server."""


PARTS = {"star": Star}
