"""Numbers of a finite field: how updates become integers that can be masked, and what their sum says."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def field_bits(bits: int, devices: int) -> int:
    """Return the bits of a field in which the sum of so many integers of `bits` bits fits: bits + ceil(log2 n)."""
    return bits + (devices - 1).bit_length()


def quantised(moves: Tensor, clip: float, weight: float, bits: int, generator: torch.Generator | None) -> Tensor:
    """Return integers, int64, from -L to L = 2^(bits - 1) - 1: weight x move x L / clip, moves cut off at `clip`.

    `weight`: of the update, from 0 to 1. They are rounded up or down at random, so that the mean is right, or without
    a `generator` to the nearest. A move of 0 is always 0.
    """
    scaled = moves.double().clamp(-clip, clip) * (weight * levels(bits) / clip)
    if generator is None:
        return scaled.round().long()
    rounding = torch.rand(scaled.shape, generator=generator, dtype=torch.float64)
    return (scaled + rounding).floor().long()


def levels(bits: int) -> int:
    """Return the largest integer L that stands for a move: it takes `bits` bits with its sign."""
    return int(2 ** (bits - 1) - 1)


def field_sum(vectors: Sequence[Tensor], bits: int) -> Tensor:
    """Return the sum of vectors of integers modulo 2^bits, as signed numbers of so many bits, int64; at least one.

    Nobody sees more of the vectors, whose masks cancel modulo 2^bits. `bits`: at most 62.
    """
    size = 2**bits
    total = torch.zeros_like(vectors[0])
    for vector in vectors:
        total = (total + vector.remainder(size)).remainder(size)
    return torch.where(total >= size // 2, total - size, total)
