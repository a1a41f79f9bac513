"""Matrices of low rank: a step of subspace iteration from a basis that is kept.

Source: Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression" (2019), algorithm 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

_NOTHING = 1e-10  # of a column's length: what is left of one that depends on those before it, in double precision


def factors(matrix: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """Return P of shape (n, r) and Q of shape (m, r), so that P Q^T is near a matrix of shape (n, m).

    `basis`: shape (m, r). P has orthonormal columns, or zeros where the matrix has less than rank r, and spans what the
    matrix makes of the basis; P Q^T is the matrix projected there. In double precision.
    """
    exact = matrix.double()
    p = orthonormal(exact @ basis.double())
    return p.to(matrix.dtype), (exact.T @ p).to(matrix.dtype)


def orthonormal(columns: Tensor) -> Tensor:
    """Return a matrix whose columns are orthonormal and span those given, by Gram-Schmidt in its modified form.

    A column that depends on those before it becomes 0.
    """
    result = columns.clone()
    for place in range(columns.shape[1]):
        column = result[:, place]
        for before in range(place):
            column -= (result[:, before] @ column) * result[:, before]
        norm = torch.linalg.vector_norm(column)
        there = norm > _NOTHING * torch.linalg.vector_norm(columns[:, place])
        result[:, place] = column / norm if there else torch.zeros_like(column)
    return result


def warm(known: Tensor | None, each: int, rank: int, generator: torch.Generator) -> Tensor:
    """Return a basis of shape (each, rank): the columns that are known, and drawn ones in place of those that are 0.

    `known`: shape (rank, each); None: none. Drawn numbers are standard normal.
    """
    drawn = torch.randn(rank, each, generator=generator)
    return (drawn if known is None else torch.where(known.any(dim=1, keepdim=True), known, drawn)).T
