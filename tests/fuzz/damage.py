"""Ways in which files are damaged: by a disk, by a transfer that broke off, by an editor, by a stranger."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tests.records.written import seal_again

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


def damage(file: Path, case: int, seed: int) -> str:
    """Damage a file in its place, as `damaged` does or in a way of `_PLACED`; return how."""
    draw = np.random.default_rng([seed, case, 1])
    if (place := int(draw.integers(10))) < len(_PLACED):
        way = _PLACED[place]
        size = 2 ** int(draw.choice((30, 40)))  # one fits into memory, one does not
        way(file, size)
        return f"{way.__name__.removeprefix('_')} {size}"
    way_of_bytes, left = damaged(file.read_bytes(), case, seed)
    file.write_bytes(left)
    return way_of_bytes


def restore(file: Path, content: bytes) -> None:
    """Give a file its content again, whatever lies there."""
    file.unlink()
    file.write_bytes(content)


def _pipe(file: Path, size: int) -> None:
    file.unlink()
    os.mkfifo(file)


def _endless(file: Path, size: int) -> None:
    os.truncate(file, max(size, file.stat().st_size))  # zeros beyond the old content take no room on the disk


def _hollow(file: Path, size: int) -> None:
    file.write_bytes(b"")
    os.truncate(file, size)


_PLACED: tuple[Callable[[Path, int], None], ...] = (_pipe, _endless, _hollow)


# --- run folders, edited by hand, with digests that fit -----------------------------------------------------------

ODD: tuple[Any, ...] = ([1], {"a": "b"}, "x\u0007y", "", 1e300, -1e300, None, True, -3, 10**30)


def edited(file: Path, case: int, seed: int) -> str:
    """Edit one value of the manifest or of a table of a run folder, and the digests with it; return the edit."""
    draw = np.random.default_rng([seed, case])
    if file.suffix == ".json":
        manifest = json.loads(file.read_text())
        known = ("files", "parts", "sha256", *(["scenario"] if case % 4 else []))  # it has the most keys by far
        keys = [key for key in _keys(manifest) if key[0] not in known]
        *above, last = keys[draw.integers(len(keys))]
        within = manifest
        for each in above:
            within = within[each]
        place = int(draw.integers(len(ODD) + 1))
        if place < len(ODD):
            within[last] = ODD[place]
        else:
            del within[last]
        file.write_text(json.dumps(manifest))
        way = f"{'.'.join(map(str, [*above, last]))} = {'gone' if place == len(ODD) else ODD[place]!r}"
    else:
        frame = pd.read_parquet(file)
        name = str(draw.choice(list(frame.columns)))
        odd = (1e300, -1e300, 1e59, 2**62, -(2**62), 0, "x\u0007y")[draw.integers(7)]
        row = int(draw.integers(max(len(frame), 1)))
        values = frame[name].tolist()
        values[row : row + 1] = [odd]
        if isinstance(odd, str) or frame[name].dtype == object or not pd.api.types.is_numeric_dtype(frame[name]):
            values = [str(value) for value in values]
        elif pd.api.types.is_integer_dtype(frame[name]) and isinstance(odd, float):
            values = [float(value) for value in values]
        kept = frame.iloc[: len(values)] if len(frame) else frame.reindex([0])
        kept.assign(**{name: values}).to_parquet(file, index=False)
        way = f"{name} {row} = {odd!r}"
    seal_again(file.parent)
    return way


def _keys(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value in a tree of JSON but its root; of a list only that of its first item."""
    if above:
        yield above
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, item in items:
        yield from _keys(item, (*above, key))
