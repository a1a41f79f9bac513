"""Pareto fronts: the configurations that nothing beats in all columns at once, and where the front bends most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from edgesim.core.errors import ConfigError
from edgesim.core.metrics import Better
from edgesim.studies.column import directions
from edgesim.studies.tradeoffs.cheapest import names_of, typical
from edgesim.studies.values import axes_of

_LEAST_KNEE = 1e-9  # of the front's own width


def front(rows: pd.DataFrame, columns: Sequence[str], better: Mapping[str, Better] | None = None) -> pd.DataFrame:
    """Return a row for each configuration of a table from `summarised`, over two or three columns.

    Columns: the axes; a number for each column, see `typical`; on_front; knee, at most one; dominated_by, the name of a
    configuration on the front that is at least as good in all columns and better in one, "" if there is none. Who has
    no number in a column, or never gets there, is not on the front and has dominated_by "?".
    `better`: of columns that do not say so themselves. Raises ConfigError for another number of columns.
    """
    if not 2 <= len(columns) <= 3:
        raise ConfigError(f"--column: a front needs two or three columns, got {len(columns)}")
    ways = directions(columns, better or {})
    frame = typical(rows, columns).frame
    signs = np.array([1.0 if ways[column] == "lower" else -1.0 for column in columns])
    losses = frame[list(columns)].to_numpy(dtype=float) * signs
    known = np.isfinite(losses).all(axis=1)
    on_front = known & ~_dominated(losses, known)
    names = names_of(frame[axes_of(rows)])
    by = [names[place] if place is not None else "" for place in _by_whom(losses, on_front)]
    knees = np.zeros(len(frame), dtype=bool)
    knees[np.flatnonzero(on_front)] = knee(losses[on_front])
    return frame.assign(
        on_front=on_front, knee=knees, dominated_by=["?" if not ok else who for ok, who in zip(known, by, strict=True)]
    )


def knee(losses: np.ndarray) -> np.ndarray:
    """Return which point of a front is its knee, as booleans; losses of shape (points, columns), the less the better.

    Losses are scaled to 0 for the best and 1 for the worst point of the front in each column. The knee lies farthest
    from the plane through the points that are 1 in one column and 0 in the others, on the side of the ideal point, 0 in
    all. There is none if no point lies on that side, as on a straight front, or one that bends the other way.
    Source: Das, "On characterizing the knee of the Pareto curve based on normal-boundary intersection" (Structural
    Optimization 18, 1999). Differs: for three columns the plane is not that through the three best points, as two
    columns may share theirs; for two columns it is the same line.
    """
    found = np.zeros(len(losses), dtype=bool)
    if len(losses) < 3:
        return found
    width = np.ptp(losses, axis=0)
    if not (width > 0).all():
        return found
    inside = 1.0 - ((losses - losses.min(axis=0)) / width).sum(axis=1)
    if inside.max() > _LEAST_KNEE:
        found[int(inside.argmax())] = True
    return found


def _dominated(losses: np.ndarray, known: np.ndarray) -> np.ndarray:
    return np.array([any(_beats(other, each) for other in losses[known]) for each in losses], dtype=bool)


def _beats(one: np.ndarray, other: np.ndarray) -> bool:
    return bool((one <= other).all() and (one < other).any())


def _by_whom(losses: np.ndarray, on_front: np.ndarray) -> list[int | None]:
    """Return for each point the first of the front that beats it, None if there is none."""
    members = np.flatnonzero(on_front)
    return [next((int(place) for place in members if _beats(losses[place], each)), None) for each in losses]
