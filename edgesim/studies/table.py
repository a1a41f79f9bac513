"""The table of a study: each column over the seeds, beside what was published."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from edgesim.reports.load import Run
from edgesim.studies.column import parse_column
from edgesim.studies.study import Cell, Study

_CONFIDENCE = 0.95


def tabulate(study: Study, runs: Iterable[tuple[Cell, Run]]) -> pd.DataFrame:
    """Return a row for each column of the study and combination of labels of all axes but the seed.

    Columns: the axes; column; runs, and values: how many of them have one; mean, sd (of a sample), low and high (95 %
    interval of the mean by Student's t), all in the unit of the column; published, and ratio: mean over published.
    NaN: there is no such number.
    """
    groups: dict[tuple[str, ...], list[tuple[Cell, Run]]] = {}
    for cell, run in runs:
        groups.setdefault(tuple(cell.group.values()), []).append((cell, run))
    rows = [_row(study, members, column) for members in groups.values() for column in study.columns]
    return pd.DataFrame(rows)


def pivoted(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a table from `tabulate` as texts: a row for each combination of labels, a column for each of ours.

    Means over the seeds, with the standard deviation where there is one and in brackets what was published; if some
    runs have no such number, as they never got there, how many have. Columns without a number are left out.
    """
    labels = labels_of(rows)
    found = set(rows["column"][rows["mean"].notna()])
    names = [name for name in rows["column"].unique() if name in found]
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows.to_dict("records"):
        lines.setdefault(tuple(row[label] for label in labels), {})[row["column"]] = _cell(row)
    table = [[*group, *(cells[name] for name in names)] for group, cells in lines.items()]
    return pd.DataFrame(table, columns=[*labels, *names])


def labels_of(rows: pd.DataFrame) -> list[str]:
    """Return the names of the axes in a table from `tabulate`."""
    names = list(map(str, rows.columns))
    return names[: names.index("column")]


def means(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a table from `tabulate` as numbers: a row for each combination of labels, means in our columns."""
    names = list(rows["column"].unique())
    labels = rows[labels_of(rows)].iloc[:: len(names)].reset_index(drop=True)
    return labels.join(pd.DataFrame(rows["mean"].to_numpy().reshape(-1, len(names)), columns=names))


def reordered(rows: pd.DataFrame, places: Sequence[int]) -> pd.DataFrame:
    """Return a table from `tabulate` with its combinations of labels in another order, given by their old places."""
    size = rows["column"].nunique()
    return rows.iloc[[place * size + i for place in places for i in range(size)]].reset_index(drop=True)


def _cell(row: Mapping[Any, Any]) -> str:
    if math.isnan(row["mean"]):
        return ""
    spread = "" if math.isnan(row["sd"]) else f" ± {row['sd']:.2g}"
    reached = "" if row["values"] == row["runs"] else f", {row['values']} of {row['runs']} runs"
    published = "" if math.isnan(row["published"]) else f" ({_short(row['published'])})"
    return _short(row["mean"]) + spread + reached + published


def _short(value: float) -> str:
    """Return whole numbers as they are, four digits of what is small, six of bytes and operations."""
    if value.is_integer() and abs(value) < 1e12:
        return f"{value:.0f}"
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.6g}"


def mean_and_interval(values: Sequence[float]) -> dict[str, float]:
    """Return mean, sd, low and high of a sample; NaN where there are too few values."""
    n = len(values)
    mean = float(np.mean(values)) if n else math.nan
    sd = float(np.std(values, ddof=1)) if n > 1 else math.nan
    half = float(stats.t.ppf((1 + _CONFIDENCE) / 2, n - 1)) * sd / math.sqrt(n) if n > 1 else math.nan
    return {"mean": mean, "sd": sd, "low": mean - half, "high": mean + half}


def _row(study: Study, members: Sequence[tuple[Cell, Run]], column: str) -> dict[str, Any]:
    group = members[0][0].group
    found = [parse_column(column).of(run) for _, run in members]
    values = [value for value in found if value is not None]
    summary = mean_and_interval(values)
    published = _published(study, group, column)
    ratio = summary["mean"] / published if published else math.nan
    counts = {"column": column, "runs": len(found), "values": len(values)}
    return {**group, **counts, **summary, "published": published, "ratio": ratio}


def _published(study: Study, group: Mapping[str, str], column: str) -> float:
    fits = (p.value for p in study.published if p.column == column and p.cell.items() <= group.items())
    return next(fits, math.nan)
