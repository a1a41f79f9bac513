"""Ways in which files are damaged: by a disk, by a transfer that broke off, by an editor."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Way = Callable[[bytearray, np.random.Generator], bytearray]


def _truncated(data: bytearray, draw: np.random.Generator) -> bytearray:
    return data[: draw.integers(len(data))]


def _flipped(data: bytearray, draw: np.random.Generator) -> bytearray:
    for place in draw.integers(len(data), size=draw.integers(1, 4)):
        data[place] ^= 1 << int(draw.integers(8))
    return data


def _inserted(data: bytearray, draw: np.random.Generator) -> bytearray:
    place = draw.integers(len(data) + 1)
    return data[:place] + draw.bytes(int(draw.integers(1, 9))) + data[place:]


def _removed(data: bytearray, draw: np.random.Generator) -> bytearray:
    place = draw.integers(len(data))
    return data[:place] + data[place + int(draw.integers(1, 9)) :]


def _zeroed(data: bytearray, draw: np.random.Generator) -> bytearray:
    place = int(draw.integers(len(data)))
    end = min(len(data), place + int(draw.integers(1, 513)))
    data[place:end] = bytes(end - place)
    return data


def _swapped(data: bytearray, draw: np.random.Generator) -> bytearray:
    a, b, c = sorted(int(place) for place in draw.integers(len(data) + 1, size=3))
    return data[:a] + data[b:c] + data[a:b] + data[c:]


def _retyped(data: bytearray, draw: np.random.Generator) -> bytearray:
    """One to three characters of a text, or bytes, are others that numbers and words are made of."""
    for place in draw.integers(len(data), size=draw.integers(1, 4)):
        data[place] = int(draw.choice(list(_TYPED)))
    return data


def _repeated(data: bytearray, draw: np.random.Generator) -> bytearray:
    """A line comes twice, or is lost."""
    lines = data.split(b"\n")
    place, times = int(draw.integers(len(lines))), 2 * int(draw.integers(2))
    return bytearray(b"\n").join([*lines[:place], *times * [lines[place]], *lines[place + 1 :]])


_TYPED = b"0123456789-.,+eE_ \"'[]{}=#naif"
_WAYS: tuple[Way, ...] = (_truncated, _flipped, _inserted, _removed, _zeroed, _swapped, _retyped, _repeated)
WAYS: dict[str, Way] = {way.__name__.removeprefix("_"): way for way in _WAYS}


def damaged(data: bytes, case: int, seed: int) -> tuple[str, bytes]:
    """Return how the content of a file was damaged, and what is left of it; a case is always the same."""
    draw = np.random.default_rng([seed, case])
    name = list(WAYS)[draw.integers(len(WAYS))]
    return name, bytes(WAYS[name](bytearray(data), draw))
