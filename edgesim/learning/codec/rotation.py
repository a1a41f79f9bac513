"""Random rotations that spread large numbers over all: signs drawn at random, then a Hadamard matrix.

Source: Konecny et al., "Federated Learning: Strategies for Improving Communication Efficiency" (2016), section 4;
Suresh et al., "Distributed Mean Estimation with Limited Communication" (2017), section 4.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def rotated(vector: Tensor, generator: torch.Generator) -> Tensor:
    """Return H D x for signs D drawn from the generator, of the vector's shape (n,).

    The papers fill x up with zeros to a power of 2, and these zeros would have to be sent. Here H has a Hadamard matrix
    on its diagonal for each power of 2 in n, the largest first. H is still orthogonal and symmetric.
    """
    return _hadamard(vector * _signs(vector, generator))


def turned_back(vector: Tensor, generator: torch.Generator) -> Tensor:
    """Return the original of a vector that `rotated` returned: D H y. The generator must draw the same signs."""
    return _hadamard(vector) * _signs(vector, generator)


def _signs(vector: Tensor, generator: torch.Generator) -> Tensor:
    return 2.0 * torch.randint(0, 2, vector.shape, generator=generator).to(vector.dtype) - 1.0


def _hadamard(vector: Tensor) -> Tensor:
    """Return the product of a vector with the orthonormal matrix of Hadamard blocks."""
    result, start = torch.empty_like(vector), 0
    for size in (1 << place for place in reversed(range(vector.numel().bit_length()))):
        if vector.numel() & size:  # a Walsh-Hadamard transform
            block, half = vector[start : start + size], 1
            while half < size:
                pairs = block.view(-1, 2, half)
                block = torch.stack((pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]), 1).flatten()
                half *= 2
            result[start : start + size] = block / math.sqrt(size)
            start += size
    return result
