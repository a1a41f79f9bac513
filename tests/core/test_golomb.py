"""Golomb's code of index sets: its length against all sets, the paper's formula and the entropy; reading it back."""

from __future__ import annotations

import math
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgesim.core import golomb
from edgesim.core.rng import Key

KEY = Key(3)


def text(indices: list[int], b: int) -> str:
    """Return the code of ascending indices as text, gap by gap: quotient in ones, a zero, the remainder."""
    gaps = [after - before - 1 for before, after in pairwise([-1, *indices])]
    return "".join("1" * (gap >> b) + "0" + (f"{gap % 2**b:0{b}b}" if b else "") for gap in gaps)


def test_a_code_by_hand() -> None:
    """Gaps 3, 0 and 9 with b = 2: 0|11, 0|00 and 110|01."""
    assert text([3, 4, 14], 2) == "011" + "000" + "11001"


@pytest.mark.parametrize(("count", "size", "b"), [(1, 100, 6), (5, 100, 4), (1, 1000, 9), (38, 100, 1), (99, 100, 0)])
def test_the_parameter(count: int, size: int, b: int) -> None:
    """1 + floor(log2(ln 0.618 / ln(1 - p))): at 1 % log2(0.4812 / 0.01005) = 5.58."""
    assert golomb.parameter(count, size) == b
    assert max(0, 1 + math.floor(math.log2(math.log((math.sqrt(5) - 1) / 2) / math.log(1 - count / size)))) == b


@pytest.mark.parametrize(("count", "size"), [(2, 8), (3, 9), (7, 7), (1, 10), (5, 12), (1, 1)])
def test_the_mean_over_all_sets(count: int, size: int) -> None:
    """Counted for each set of so many indices."""
    b = golomb.parameter(count, size)
    lengths = [len(text(list(chosen), b)) for chosen in combinations(range(size), count)]
    assert golomb.mean_bits(count, size) == pytest.approx(np.mean(lengths), rel=1e-12)


@pytest.mark.parametrize("share", [0.001, 0.01, 0.05, 0.25])
def test_the_papers_bits_of_an_index(share: float) -> None:
    """Sattler et al.: b* + 1 / (1 - (1 - p)^(2^b*)) for a geometric gap; at 1 % 6 + 2.108."""
    size, b = 10**6, golomb.parameter(round(share * 10**6), 10**6)
    assert golomb.mean_bits(round(share * size), size) / (share * size) == pytest.approx(
        b + 1 / (1 - (1 - share) ** 2**b), rel=1e-3
    )


def test_one_percent_is_coded_within_one_percent_of_the_entropy() -> None:
    """Real codes of 16634 of 1663370 indices that all lie in the first tenth, by five seeds."""
    size, count = 1_663_370, 16_634
    entropy = sum(math.log2((size - i) / (count - i)) for i in range(count))  # log2 of the number of sets
    assert golomb.entropy_bits(count, size) == pytest.approx(entropy, rel=1e-9)
    indices = np.random.default_rng(0).choice(size // 10, count, replace=False)
    lengths = [8 * len(golomb.written(indices, size, KEY.at(word))) for word in range(5)]
    assert 1.0 < golomb.mean_bits(count, size) / entropy < 1.004
    assert all(1.0 < length / entropy < 1.01 for length in lengths)
    assert np.mean(lengths) == pytest.approx(golomb.mean_bits(count, size), rel=2e-3)


@given(size=st.integers(1, 300), share=st.floats(0, 1), seed=st.integers(0, 2**32 - 1))
def test_a_code_says_the_set(size: int, share: float, seed: int) -> None:
    """It is what a few lines write, in the order that the seed draws; and is read again."""
    count = max(1, math.ceil(share * size))
    indices = np.random.default_rng(seed).permutation(size)[:count]
    code = golomb.written(indices, size, KEY.at(seed))
    order = KEY.at(seed).numpy().permutation(size).tolist()
    bits = text(sorted(order.index(index) for index in indices.tolist()), golomb.parameter(count, size))
    assert code == bytes(int(bits[i : i + 8].ljust(8, "0"), 2) for i in range(0, len(bits), 8))
    assert golomb.read(code, count, size, KEY.at(seed)).tolist() == sorted(indices.tolist())
