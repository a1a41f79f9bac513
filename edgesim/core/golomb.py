"""Golomb's code of an index set: the gaps between indices, each as a quotient in unary and b bits of remainder.

Indices are numbered in an order drawn anew for each message from a seed that both sides have. So all sets of one size
are equally likely, and the mean length is known before anything is trained.

Source: Golomb, "Run-length encodings" (1966); Sattler et al., "Robust and Communication-Efficient Federated Learning
from Non-i.i.d. Data" (2019), equation (15), algorithms 3 and 4, of which the drawn order is no part.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from edgesim.core.rng import Key

_LEAST_TERM = 1e-15  # terms of the mean quotient below it are negligible


def parameter(count: int, size: int) -> int:
    """Return b* = 1 + floor(log2(ln(phi - 1) / ln(1 - p))) for a share p = count / size, at least 0; 0 < p <= 1."""
    if count >= size:
        return 0
    golden = (math.sqrt(5.0) + 1.0) / 2.0
    return max(0, 1 + math.floor(math.log2(math.log(golden - 1.0) / math.log1p(-count / size))))


@lru_cache(maxsize=1024)
def mean_bits(count: int, size: int) -> float:
    """Return the mean length in bits over all sets of `count` of the indices 0 ... size - 1.

    A gap is at least t for a share C(size - t, count) / C(size, count) of the sets, so the mean of floor(gap / 2^b) is
    the sum of this share over t = 2^b, 2 2^b, ...
    """
    b = parameter(count, size)
    quotient, at_least = 0.0, 2**b
    while at_least <= size - count:
        term = math.exp(_log_choices(count, size - at_least) - _log_choices(count, size))
        quotient += term
        at_least += 2**b
        if term < _LEAST_TERM:
            break
    return count * (1 + b + quotient)


def entropy_bits(count: int, size: int) -> float:
    """Return the lower bound of the mean bits of any code of these sets: log2 C(size, count)."""
    return _log_choices(count, size) / math.log(2.0)


def written(indices: np.ndarray, size: int, key: Key) -> bytes:
    """Return the code of an index set, padded to whole bytes.

    `indices`: distinct, in [0, size), shape (count,), in any order. `key`: key of the random order.
    """
    b = parameter(len(indices), size)
    places = np.empty(size, np.int64)
    places[_order(size, key)] = np.arange(size)
    gaps = np.diff(np.sort(places[indices]), prepend=-1) - 1
    quotients = gaps >> b
    lengths = quotients + 1 + b
    starts = np.cumsum(lengths) - lengths
    bits = np.zeros(int(lengths.sum()), np.uint8)
    unary = np.repeat(starts - (np.cumsum(quotients) - quotients), quotients) + np.arange(quotients.sum())
    bits[unary] = 1  # a zero ends each unary number
    for place in range(b):
        bits[starts + quotients + 1 + place] = gaps >> (b - 1 - place) & 1
    return np.packbits(bits).tobytes()


def read(code: bytes, count: int, size: int, key: Key) -> np.ndarray:
    """Return the index set of a code, ascending, int64, shape (count,)."""
    b = parameter(count, size)
    bits = np.unpackbits(np.frombuffer(code, np.uint8))
    zeros = np.flatnonzero(bits == 0)
    gaps, start = np.empty(count, np.int64), 0
    weights = 1 << np.arange(b - 1, -1, -1)
    for place in range(count):
        end = int(zeros[np.searchsorted(zeros, start)])
        gaps[place] = (end - start << b) + int(bits[end + 1 : end + 1 + b] @ weights)
        start = end + 1 + b
    return np.sort(_order(size, key)[np.cumsum(gaps + 1) - 1])


def _log_choices(count: int, size: int) -> float:
    return math.lgamma(size + 1) - math.lgamma(count + 1) - math.lgamma(size - count + 1)


def _order(size: int, key: Key) -> np.ndarray:
    return key.numpy().permutation(size)
