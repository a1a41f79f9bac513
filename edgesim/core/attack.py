"""What a device does that wants to do harm: to the labels that it trains on, or to the update that it sends."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Labels: TypeAlias = Literal["kept", "mirrored", "next"]


class Attack(NamedTuple):
    """What an attacker does in all of its jobs.

    `labels` "mirrored": of C classes it takes C - 1 - y for y; "next": y + 1, and 0 for the last. `factor`: by which it
    multiplies how far it moved the model before it sends it.
    """

    labels: Labels = "kept"
    factor: float = 1.0

    def relabelled(self, classes: int) -> list[int] | None:
        """Return the label that each class gets; None: all keep theirs."""
        if self.labels == "kept":
            return None
        return [classes - 1 - y if self.labels == "mirrored" else (y + 1) % classes for y in range(classes)]


HONEST = Attack()
