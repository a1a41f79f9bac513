"""Pareto fronts of configurations, and their knee points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from edgesim.core.errors import ConfigError
from edgesim.core.metrics import Better
from edgesim.studies.column import directions
from edgesim.studies.tradeoffs.cheapest import names_of, typical
from edgesim.studies.values import axes_of

_LEAST_KNEE = 1e-9  # relative to the width of the front


def front(rows: pd.DataFrame, columns: Sequence[str], better: Mapping[str, Better] | None = None) -> pd.DataFrame:
    """Return a row for each configuration of a table from `summarised`, over two or three columns.

    Columns: the axes; a number for each column, see `typical`; on_front; knee, at most one; dominated_by, the name of a
    configuration on the front that is at least as good in all columns and better in one, "" if there is none. A
    configuration without a number in a column, or that never reaches its target, is not on the front and has
    dominated_by "?". `better`: the better direction of columns that do not define it. Raises ConfigError for another
    number of columns.
    """
    if not 2 <= len(columns) <= 3:
        raise ConfigError(f"--column: a front needs two or three columns, got {len(columns)}")
    ways = directions(columns, better or {})
    frame = typical(rows, columns).frame
    signs = np.array([1.0 if ways[column] == "lower" else -1.0 for column in columns])
    losses = frame[list(columns)].to_numpy(dtype=float) * signs
    known = np.isfinite(losses).all(axis=1)
    dominated = np.array([any(_beats(other, each) for other in losses[known]) for each in losses], dtype=bool)
    on_front = known & ~dominated
    names = names_of(frame[axes_of(rows)])
    members = np.flatnonzero(on_front)
    by = [next((names[int(place)] for place in members if _beats(losses[place], each)), "") for each in losses]
    knees = np.zeros(len(frame), dtype=bool)
    knees[np.flatnonzero(on_front)] = knee(losses[on_front])
    return frame.assign(
        on_front=on_front, knee=knees, dominated_by=["?" if not ok else who for ok, who in zip(known, by, strict=True)]
    )


def knee(losses: np.ndarray) -> np.ndarray:
    """Return a mask of the knee of a front. `losses`: shape (points, columns), lower is better.

    Losses are scaled to 0 for the best and 1 for the worst point of the front in each column. The knee lies farthest
    from the plane through the points that are 1 in one column and 0 in the others, on the side of the ideal point 0. If
    no point lies on that side, as on a straight front or one that bends the other way, there is no knee.
    Source: Das, "On characterizing the knee of the Pareto curve based on normal-boundary intersection" (Structural
    Optimization 18, 1999). Difference: for three columns that paper takes the plane through the three best points, but
    two columns may share a best point. For two columns the line is the same.
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


def _beats(one: np.ndarray, other: np.ndarray) -> bool:
    return bool((one <= other).all() and (one < other).any())
