"""Attacks of malicious devices on the labels that they train on, or on the update that they send."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Labels: TypeAlias = Literal["kept", "mirrored", "next"]


class Attack(NamedTuple):
    """Attack of a device in all of its jobs.

    `labels`: "mirrored" replaces label y of C classes by C - 1 - y, "next" replaces it by y + 1, and the last by 0.
    `factor`: the device multiplies its change of the model by this factor before it sends the model.
    """

    labels: Labels = "kept"
    factor: float = 1.0

    def relabelled(self, classes: int) -> list[int] | None:
        """Return the new label of each class. None: labels do not change."""
        if self.labels == "kept":
            return None
        return [classes - 1 - y if self.labels == "mirrored" else (y + 1) % classes for y in range(classes)]


HONEST = Attack()
