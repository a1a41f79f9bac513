"""Permanent pruning: the weights that a layer can spare, the rounds of pruning, and the distance that a model moved.

Source: DA-DPFL paper, sparse-to-sparser training and its vote. Diao et al., "Pruning Deep Neural Networks from a
Sparsity Perspective" (ICLR 2023) for the PQ index.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import islice, takewhile
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from edgesim.learning.submodel.masks import SLACK

Clock: TypeAlias = Literal["paper", "authors"]
Distance: TypeAlias = Literal["squared", "norms"]

_TIMES = 21  # number of pruning times that the authors' code computes


class PQ(NamedTuple):
    """Rule for the number of weights that a layer can spare, by the PQ index of norms 0 < `p` < `q`. See `spared`."""

    p: float = 0.5
    q: float = 1.0
    gamma: float = 1.0
    eta: float = 0.0
    beta: float = 0.9


def pq_index(weights: Tensor, p: float, q: float) -> float:
    """Return 1 - d^(1/q - 1/p) ||w||_p / ||w||_q of d weights: 0 if all have one magnitude, near 1 if most are zero.

    `weights`: any shape, finite, not all zero.
    """
    sizes = weights.abs().double()
    sizes = sizes / sizes.max()  # any multiple has the same index, and now no power overflows or underflows
    # Means instead of sums include the factor of d. Logarithms, because a small p makes numbers beyond a float's range.
    logs = [math.log(float(sizes.pow(x).mean())) / x for x in (p, q)]
    return max(0.0, 1 - math.exp(logs[0] - logs[1]))


def needed(weights: Tensor, rule: PQ) -> float:
    """Return the number of needed weights among d: d (1 + eta)^(-q / (q - p)) (1 - I)^(p q / (q - p)) with index I.

    `weights`: as for `pq_index`.
    Difference: the paper prints the last exponent as p / (q - p), which is the same for q = 1.
    """
    p, q, _, eta, _ = rule
    share = (1 + eta) ** (-q / (q - p)) * (1 - pq_index(weights, p, q)) ** (p * q / (q - p))
    return weights.numel() * float(share)


def spared(weights: Tensor, rule: PQ) -> int:
    """Return the number of a layer's weights to remove. One weight always stays. It is 0 if the weights are not finite.

    The number is a share gamma of the weights that are not needed, at most a share beta of all, rounded down.
    """
    d = weights.numel()
    if d < 2 or not 0 < float(weights.abs().max()) < math.inf:
        return 0
    most = min(rule.gamma * (d - needed(weights, rule)), rule.beta * d)
    return min(d - 1, math.floor(most + SLACK))


def pruning_rounds(start: int, end: int, clock: Clock, b: float, c: float, most: int) -> list[int]:
    """Return the rounds, counted from 1, in which devices prune: the first `most` after `start` and before `end`.

    "paper": sums of the gaps ceil((start + b) / c^i), i = 0, 1, ... "authors": the times of their code, of which the
    first is the round after `start`. `c` is above 0. Above 1 the gaps shrink until every round prunes.
    """
    times = _by_the_paper(start, b, c) if clock == "paper" else _by_the_code(start, b, c)
    before_end = takewhile(lambda t: t < end, times)
    return list(islice((t for t in before_end if t > start), most))


def _by_the_paper(start: int, b: float, c: float) -> Iterator[int]:
    total, gap = 0, start + b
    while True:
        total += max(1, math.ceil(gap - SLACK))
        gap /= c
        yield total


def _by_the_code(start: int, b: float, c: float) -> Iterator[int]:
    total, gap = 2, start - 1
    for _ in range(_TIMES):
        total += gap
        gap = max(1, round((gap + b) / c))  # halves to the even number
        yield total


def distance(params: Mapping[str, Tensor], first: Mapping[str, Tensor], how: Distance) -> float:
    """Return the distance of parameters from the first ones.

    "squared": the squared norm of the difference. "norms": the sum over tensors of the norms of their differences.
    """
    squares = [float(torch.sum((t.cpu().double() - first[name].cpu().double()) ** 2)) for name, t in params.items()]
    return math.fsum(squares) if how == "squared" else math.fsum(map(math.sqrt, squares))


def change(now: float, before: float, first: float) -> float:
    """Return the change of a device's distance in a round, relative to its distance in the first round.

    It is 1 if the distance in the first round is 0.
    """
    return abs(now - before) / first if first else 1.0
