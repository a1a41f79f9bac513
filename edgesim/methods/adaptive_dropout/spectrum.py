"""Eigenvalues of a symmetric matrix that is known only by its products, and their share below the first gap.

Source: G. H. Golub and G. Meurant, "Matrices, Moments and Quadrature" (1994), for masses of eigenvalues by Lanczos'
method; "Efficient Federated Learning with Heterogeneous Data and Adaptive Dropout", arXiv 2507.10430, for the gap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from edgesim.core.arrays import Arr
from edgesim.core.price_list import CostProfile
from edgesim.core.task import Submodel

Product: TypeAlias = Callable[[Tensor], Tensor]  # a vector, shape (n,), times the matrix

_NOISE = 100.0  # times the precision of a number: the length of a vector that is only rounding


class Spectrum(NamedTuple):
    """Eigenvalues, or Ritz values that stand for several, ascending, shape (k,).

    `masses`: the share of all eigenvalues that each value stands for, shape (k,), sum 1. `residual`: the largest
    possible error of the value of largest magnitude, over this magnitude; inf where a number was not finite.
    """

    values: Arr
    masses: Arr
    residual: float = 0.0


def lanczos(product: Product, start: Tensor, steps: int) -> Spectrum:
    """Return Ritz values of a symmetric matrix after `steps` products, with their masses from `start`, shape (n,).

    If the entries of `start` are random signs, the masses are those of the eigenvalues in expectation. Fewer steps are
    taken if no new direction is found. Every vector is made orthogonal to all before it, twice, because rounding
    remains after once.
    """
    steps = min(steps, len(start))
    basis = start.new_empty(steps, len(start))
    noise = _NOISE * torch.finfo(start.dtype).eps
    diagonal, beside = list[float](), list[float]()
    vector = start / torch.linalg.vector_norm(start)
    for step in range(steps):
        basis[step] = vector
        known, moved = basis[: step + 1], product(vector)
        diagonal.append(float(torch.dot(vector, moved)))
        for _ in range(2):  # as products of matrices, which PyTorch's FLOP counter counts
            moved = moved - (known.T @ (known @ moved.unsqueeze(1))).squeeze(1)
        beside.append(float(torch.linalg.vector_norm(moved)))
        if not math.isfinite(beside[-1] + diagonal[-1]):
            return Spectrum(np.array([math.nan]), np.ones(1), math.inf)
        if beside[-1] <= noise * max(map(abs, diagonal + beside[:-1])):
            beside[-1] = 0.0
            break
        vector = moved / beside[-1]
    # the spectrum of the tridiagonal matrix; the last number of `beside` leads out of it
    off = np.diag(np.array(beside)[:-1], 1)
    values, vectors = np.linalg.eigh(np.diag(np.array(diagonal)) + off + off.T)
    largest = int(np.argmax(np.abs(values)))
    error, size = beside[-1] * abs(vectors[-1, largest]), abs(values[largest])
    return Spectrum(values, vectors[0] ** 2, float(error / size) if size > 0 else 0.0)


def dense(product: Product, like: Tensor) -> Spectrum:
    """Return all eigenvalues of a symmetric matrix, from its product with every unit vector; `like`: shape (n,)."""
    size = len(like)
    matrix = torch.stack([product(unit) for unit in torch.eye(size, dtype=like.dtype, device=like.device)]).double()
    if not bool(matrix.isfinite().all()):
        return Spectrum(np.array([math.nan]), np.ones(1), math.inf)
    values: Arr = torch.linalg.eigvalsh((matrix + matrix.T) / 2).cpu().numpy()
    return Spectrum(values, np.full(size, 1 / size))


def mean_of(spectra: Sequence[Spectrum]) -> Spectrum:
    """Return the mean of the spectra of several starts; its residual is the largest of theirs."""
    values = np.concatenate([each.values for each in spectra])
    masses = np.concatenate([each.masses for each in spectra]) / len(spectra)
    order = np.argsort(values, kind="stable")
    return Spectrum(values[order], masses[order], max(each.residual for each in spectra))


def share_below_gap(spectrum: Spectrum, lipschitz: float, zero: float = 1e-3) -> float:
    """Return the mass of the eigenvalues up to the first gap of more than 4 `lipschitz`; 1 if there is none.

    Eigenvalues of at most `zero` times the largest magnitude count as zero: they are left out, and the masses of the
    others sum to 1. Source: arXiv 2507.10430, m_k / h_k.
    """
    size = np.abs(spectrum.values)
    counts = size > zero * size.max()
    values, masses = spectrum.values[counts], spectrum.masses[counts]
    gaps = np.flatnonzero(np.diff(values) > 4 * lipschitz)
    return float(masses[: gaps[0] + 1].sum() / masses.sum()) if len(gaps) else 1.0


# --- what it costs ----------------------------------------------------------------------------------------------


def product_flops(cost_profile: CostProfile, submodel: Submodel) -> float:
    """Return the FLOPs per sample of one product with the Hessian of a submodel's trained layers, which are the last.

    The backward pass through a layer's weight gradient x^T g and input gradient g W takes two products for each. The
    backward pass through its forward pass takes these two once more. This makes 2 weight gradients and 4 input
    gradients per layer, without input gradients where no layer before it is trained. Two exceptions are PyTorch's own.
    A first convolution gets one unneeded input gradient, which is counted. A strided convolution computes unused rows,
    which are not counted.
    """
    trained = frozenset(cost_profile.layer_names) - submodel.frozen
    flops = 3.0 * sum(work.backward_flops for work in cost_profile.products if not trained.isdisjoint(work.upstream))
    for layer in cost_profile.layers:
        inner, own = not trained.isdisjoint(layer.upstream), layer.name in trained
        flops += 2.0 * layer.weight_grad_flops * own
        flops += layer.input_grad_flops * (4.0 * inner or own * layer.reuses_weights)
    return flops


def lanczos_flops(size: int, steps: int) -> float:
    """Return the FLOPs of `lanczos` except its products: a step takes four with the matrix of the vectors so far."""
    steps = min(steps, size)
    return 4.0 * size * steps * (steps + 1)


def dense_flops(size: int) -> float:
    """Return the FLOPs of `dense` except its products: the reduction to a tridiagonal matrix, 4 n^3 / 3."""
    return float(4 * size**3 // 3)
