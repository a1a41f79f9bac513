"""Memory that training holds: what a step saves, and the whole of it by purpose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from pydantic import PlainSerializer

# Sorted, so that equal profiles give equal text whatever the hash seed of the process.
LayerNames = Annotated[frozenset[str], PlainSerializer(sorted, return_type=list[str])]


@dataclass(frozen=True, slots=True)
class SavedBytes:
    """Bytes that a training step keeps from forward for backward."""

    per_sample: int
    fixed: int  # whatever the batch
    upstream: LayerNames  # kept only if one of these layers is trained
    groups: tuple[str, ...] = ()


class MemoryNeed(NamedTuple):
    """Bytes held at the peak of a training step: at the end of forward, with room for all gradients."""

    weights: int  # parameters and buffers
    gradients: int
    optimiser: int
    activations: int  # kept for backward, the batch itself included where a gradient needs it

    @property
    def total(self) -> int:
        """Bytes of all four."""
        return sum(self)
