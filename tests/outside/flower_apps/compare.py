"""How far two runs of an app are apart, by all arrays and metrics that its server part sent and got."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isnan
from typing import Any

import numpy as np

from tests.outside.flower_apps.notes import Notes, Passed


@dataclass(frozen=True)
class Difference:
    """Largest absolute difference of two runs, with how much was compared."""

    largest: float  # inf: messages, nodes or names differ
    messages: int
    numbers: int
    where: str = ""  # of the largest one, if it is not 0


def difference(first: Notes, second: Notes, without: str = "") -> Difference:
    """Compare the messages to each node, and its replies, in their order. `without`: a record to leave out."""
    found = Difference(0.0, 0, 0)
    for way, ours, theirs in (("sent", first.sent, second.sent), ("got", first.got, second.got)):
        for node in sorted({each.node for each in (*ours, *theirs)}):
            at_node = [[each for each in messages if each.node == node] for messages in (ours, theirs)]
            found = _larger(found, _of(f"{way}, node {node}", *at_node, without))
    return found


def _larger(one: Difference, other: Difference) -> Difference:
    worse = other if other.largest > one.largest else one
    return Difference(worse.largest, one.messages + other.messages, one.numbers + other.numbers, worse.where)


def _of(way: str, ours: Sequence[Passed], theirs: Sequence[Passed], without: str) -> Difference:
    if len(ours) != len(theirs):
        return Difference(inf, 0, 0, f"{way}: {len(ours)} messages against {len(theirs)}")
    found = Difference(0.0, 0, 0)
    for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        if one[:2] != other[:2] or one.values.keys() != other.values.keys():
            return Difference(inf, 0, 0, f"{way} {place}: {one[:2]} {sorted(one.values)} against {other[:2]}")
        numbers = 0
        for name, value in one.values.items():
            if without and name.startswith(f"{without}/"):
                continue
            apart, count = _apart(value, other.values[name])
            numbers += count
            found = _larger(found, Difference(apart, 0, 0, f"{way}, {place}: {name}"))
        found = _larger(found, Difference(0.0, 1, numbers))
    return found


def _apart(one: Any, other: Any) -> tuple[float, int]:
    """Return the largest difference of two values, and the number of numbers in them. NaN equals NaN."""
    if isinstance(one, np.ndarray | float | int | list) and not isinstance(one, bool):
        ours, theirs = np.asarray(one), np.asarray(other)
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return inf, ours.size
        if np.array_equal(ours, theirs, equal_nan=ours.dtype.kind == "f"):
            return 0.0, ours.size
        if ours.dtype.kind not in "fiu":
            return inf, ours.size
        apart = float(np.max(np.abs(ours.astype(float) - theirs.astype(float))))
        return inf if isnan(apart) else apart, ours.size
    return 0.0 if one == other else inf, 0  # texts, bytes and truth values
