"""Low-rank approximation of matrices: one step of subspace iteration from a kept basis.

Source: Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression" (2019), algorithm 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

_NOTHING = 1e-10  # share of a column's norm that rounding leaves if it depends on earlier columns, double precision


def factors(matrix: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """Return P of shape (n, r) and Q of shape (m, r), so that P Q^T approximates a matrix of shape (n, m).

    `basis`: shape (m, r). P has orthonormal columns, or zeros if the rank of the matrix is below r, and spans the
    matrix times the basis. P Q^T is the projection of the matrix onto this span. Computed in double precision.
    """
    exact = matrix.double()
    p = orthonormal(exact @ basis.double())
    return p.to(matrix.dtype), (exact.T @ p).to(matrix.dtype)


def orthonormal(columns: Tensor) -> Tensor:
    """Return a matrix of orthonormal columns with the same span, by the modified Gram-Schmidt process.

    A column that depends on earlier columns becomes 0.
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
    """Return a basis of shape (each, rank): the known columns, with drawn columns in place of zero columns.

    `known`: shape (rank, each), or None if no column is known. Drawn numbers are standard normal.
    """
    drawn = torch.randn(rank, each, generator=generator)
    return (drawn if known is None else torch.where(known.any(dim=1, keepdim=True), known, drawn)).T
