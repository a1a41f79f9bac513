"""Pruning by the PQ index, its rounds and the vote against the numbers of given vectors and closed forms.

Source: DA-DPFL paper and its authors' published code; Diao et al. (2023).
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from edgesim.learning.submodel import masks
from edgesim.learning.submodel.pruning import PQ, change, distance, needed, pq_index, pruning_rounds, spared

SMALL = [0.1, -0.4, 0.25, 0.8, -0.05, 0.3, -0.6]
TINY = [1e-3, -2e-3, 1e-3, 5e-3, -4, 2e-3, 1e-3, -1e-3, 3, 1e-3]
MIXED = [0.01, 0.02, -0.03, 0.5, -0.8, 0.9, 0.05, -0.04, 0.02, 1.2]
NORMAL = np.random.default_rng(0).standard_normal(1000).tolist()


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


# --- how many ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "rule", "index", "r", "count"),
    [
        (SMALL, PQ(), 0.135737, 6.049842, 0),
        (SMALL, PQ(gamma=0.9), 0.135737, 6.049842, 0),
        (SMALL, PQ(gamma=0.9, eta=1), 0.135737, 1.512461, 4),
        ([1, 1, 1, 1], PQ(), 0, 4, 0),
        ([1, 1, 1, 1], PQ(gamma=0.9, eta=1), 0, 1, 2),
        (TINY, PQ(), 0.766110, 2.338905, 7),
        (TINY, PQ(gamma=0.9), 0.766110, 2.338905, 6),
        (TINY, PQ(gamma=0.9, eta=1), 0.766110, 0.584726, 8),
        (MIXED, PQ(), 0.400741, 5.992593, 4),
        (MIXED, PQ(gamma=0.9), 0.400741, 5.992593, 3),
        (NORMAL, PQ(), 0.151488, 848.512486, 151),
        (NORMAL, PQ(gamma=0.9), 0.151488, 848.512486, 136),
        (SMALL, PQ(p=1, q=2), 0.179114, 4.716981, 2),
        (TINY, PQ(p=1, q=2), 0.556396, 1.967845, 8),
    ],
)
def test_how_many_a_layer_can_spare(weights, rule, index, r, count):
    """Index, weights needed, weights that go; for p = 1 and q = 2 the paper's exponent would need 5.746205."""
    assert pq_index(tensor(weights), rule.p, rule.q) == pytest.approx(index, abs=1e-6)
    assert needed(tensor(weights), rule) == pytest.approx(r, abs=1e-6)
    assert spared(tensor(weights), rule) == count


def test_the_smallest_go():
    weights = tensor([*MIXED, 0.0])
    mask = torch.tensor([True] * 10 + [False])
    kept = masks.without_smallest(weights, mask, 4)
    assert (mask & ~kept).nonzero().flatten().tolist() == [0, 1, 2, 8]
    assert not kept[10]


def test_at_most_beta_and_never_the_last():
    """Of one large weight among small ones nearly all could go; of one alone, of zeros or what diverged nothing."""
    one_large = tensor([1.0, *[1e-9] * 99])
    assert spared(one_large, PQ()) == 90
    assert spared(one_large, PQ(beta=1.0, eta=1e6)) == 99
    assert [spared(tensor(w), PQ()) for w in ([3.0], [0.0, 0.0], [1.0, math.nan], [1.0, math.inf])] == [0, 0, 0, 0]


def test_the_index_has_no_unit():
    """It is that of any multiple, as small or large as numbers get."""
    for scale in (1e-300, 1e300):
        assert pq_index(tensor(MIXED) * scale, 0.5, 1) == pytest.approx(0.400741, abs=1e-6)


@pytest.mark.parametrize("p", [1e-3, 1e-6])
def test_the_index_of_a_small_p(p):
    """Towards p = 0 the mean of order p becomes the geometric one, whatever powers of ten lie on the way."""
    sizes = np.abs(MIXED)
    geometric = np.exp(np.log(sizes).mean())
    assert pq_index(tensor(MIXED), p, 1) == pytest.approx(1 - geometric / sizes.mean(), abs=2 * p)
    assert pq_index(tensor([*MIXED, 0.0]), p, 1) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    ("draw", "limit"),
    [
        # E|x|^a is 2^(a/2) Gamma((a + 1) / 2) / sqrt(pi) for normal x, Gamma(a + 1) for x of Laplace's distribution
        ("standard_normal", 1 - (2**0.25 * math.gamma(0.75) / math.sqrt(math.pi)) ** 2 / math.sqrt(2 / math.pi)),
        ("laplace", 1 - math.gamma(1.5) ** 2),
    ],
)
def test_the_index_of_distributions(draw, limit):
    """0.152787 and 0.214602: of 200,000 weights, closer than 1 %."""
    weights = getattr(np.random.default_rng(1), draw)(size=200_000)
    assert pq_index(torch.from_numpy(weights), 0.5, 1) == pytest.approx(limit, rel=0.01)


# --- when -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "b", "c", "end", "first", "size"),
    [
        (100, 0, 1.3, 500, [177, 237, 283, 319, 346, 367, 383, 396, 406, 414, 420, 425, 429, 432, 434, 436, 438], 78),
        (150, 0, 1.3, 500, [266, 355, 424, 477], 4),
        (20, 0, 1.3, 100, [36, 48, 58, 66, 72, 77, 81, 84, 86, 88, 90, *range(91, 100)], 20),
        (10, 2, 2, 40, [12, 18, 21, *range(23, 40)], 20),
        (10, 0, 1, 41, [20, 30, 40], 3),
        (10, 0, 0.5, 100, [30, 70], 2),
    ],
)
def test_rounds_of_the_paper(start, b, c, end, first, size):
    """Sums of gaps 100, 77, 60, ... from round 0; then every round; for c of 1 or less gaps stay or grow."""
    found = pruning_rounds(start, end, "paper", b, c, most=1000)
    assert found[: len(first)] == first
    assert len(found) == size
    assert pruning_rounds(start, end, "paper", b, c, most=3) == first[:3]


def test_rounds_of_the_authors():
    """2 + the running sums of 99, 76, 58, ..., 21 of them at most; those from the end on do not come."""
    times = [101, 177, 235, 280, 315, 342, 363, 379, 391, 400, 407, 412, 416, 419, 421, 423, 425, 427, 429, 431, 433]
    assert pruning_rounds(100, 500, "authors", 0, 1.3, most=1000) == times
    assert pruning_rounds(100, 407, "authors", 0, 1.3, most=1000) == times[:10]


def test_gaps_stay_whole():
    """However fast they shrink: at least a round."""
    assert pruning_rounds(3, 9, "paper", 0, 1e300, most=9) == [4, 5, 6, 7, 8]
    assert pruning_rounds(3, 9, "authors", 0, 1e300, most=9) == [4, 5, 6, 7, 8]


# --- who has settled --------------------------------------------------------------------------------------------


def test_changes():
    """Of distances 4, 7, 8.5, 8.6, 8.58 over the first of them; no distance at all is a change of 1."""
    distances = [0.0, 4.0, 7.0, 8.5, 8.6, 8.58]
    changes = [change(now, before, 4.0) for before, now in pairwise(distances)]
    assert changes == pytest.approx([1, 0.75, 0.375, 0.025, 0.005])
    assert change(0.0, 0.0, 0.0) == 1.0


@pytest.mark.parametrize(("how", "expected"), [("squared", 29.0), ("norms", 7.0)])
def test_distances(how, expected):
    """(1, 0) -> (4, 4) and 2 -> 0: 9 + 16 + 4, or 5 + 2."""
    first = {"a": torch.tensor([1.0, 0.0]), "b": torch.tensor([2.0])}
    assert distance({"a": torch.tensor([4.0, 4.0]), "b": torch.tensor([0.0])}, first, how) == pytest.approx(expected)
