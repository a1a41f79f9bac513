"""Numbers of a finite field: updates as integers that can be masked, and the decoding of their sum."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def field_bits(bits: int, devices: int) -> int:
    """Return the bits of a field that holds the sum of n = `devices` integers of `bits` bits: bits + ceil(log2 n)."""
    return bits + (devices - 1).bit_length()


def quantised(moves: Tensor, clip: float, weight: float, bits: int, generator: torch.Generator | None) -> Tensor:
    """Return integers, int64, from -L to L = 2^(bits - 1) - 1: weight x move x L / clip, with moves limited to `clip`.

    `weight`: of the update, from 0 to 1. Numbers are rounded up or down at random, so that the mean is unbiased, or
    without a `generator` to the nearest integer. A move of 0 is always 0.
    """
    scaled = moves.double().clamp(-clip, clip) * (weight * levels(bits) / clip)
    if generator is None:
        return scaled.round().long()
    rounding = torch.rand(scaled.shape, generator=generator, dtype=torch.float64)
    return (scaled + rounding).floor().long()


def levels(bits: int) -> int:
    """Return the largest integer L that represents a move. It takes `bits` bits with its sign."""
    return int(2 ** (bits - 1) - 1)


def field_sum(vectors: Sequence[Tensor], bits: int) -> Tensor:
    """Return the sum of at least one vector of integers modulo 2^bits, as signed numbers of `bits` bits, int64.

    The server sees only this sum, because the masks of the vectors cancel modulo 2^bits. `bits`: at most 62.
    """
    size = 2**bits
    total = torch.zeros_like(vectors[0])
    for vector in vectors:
        total = (total + vector.remainder(size)).remainder(size)
    return torch.where(total >= size // 2, total - size, total)
