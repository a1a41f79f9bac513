"""The table of a study: each column over the seeds, beside what was published."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from edgesim.reports.load import Run
from edgesim.reports.readable import plain
from edgesim.studies.study import Cell, Study
from edgesim.studies.values import axes_of, summarised, values_of


def tabulate(study: Study, runs: Iterable[tuple[Cell, Run]]) -> pd.DataFrame:
    """Return a row for each column of the study and combination of labels of all axes but the seed.

    Columns: those of `summarised`, all in the unit of the column; published, and ratio: mean over published. NaN: there
    is no such number. Raises ConfigError as `values_of`.
    """
    rows = summarised(values_of(study, runs))
    axes = axes_of(rows)
    published = [
        _published(study, {axis: row[axis] for axis in axes}, row["column"]) for row in rows.to_dict("records")
    ]
    rows = rows.assign(published=published)
    return rows.assign(ratio=rows["mean"] / rows["published"].where(rows["published"] != 0))


def pivoted(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a table from `tabulate` as texts: a row for each combination of labels, a column for each of ours.

    Means over the seeds, with the standard deviation where there is one and in brackets what was published. Where some
    runs never got there, the Kaplan-Meier median, or what it is above of, and how many did. Columns that no run has are
    left out.
    """
    labels = axes_of(rows)
    found = set(rows["column"][rows["most"].notna()])
    names = [name for name in rows["column"].unique() if name in found]
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows.to_dict("records"):
        lines.setdefault(tuple(row[label] for label in labels), {})[row["column"]] = _cell(row)
    table = [[*group, *(cells[name] for name in names)] for group, cells in lines.items()]
    return pd.DataFrame(table, columns=[*labels, *names])


def numbers(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the numbers that `pivoted` shows: a row for each combination of labels, a column for each of ours.

    Means; Kaplan-Meier medians, inf among them, where some runs never got there.
    """
    names = list(rows["column"].unique())
    labels = rows[axes_of(rows)].iloc[:: len(names)].reset_index(drop=True)
    shown = rows["mean"].fillna(rows["km_median"])
    return labels.join(pd.DataFrame(shown.to_numpy().reshape(-1, len(names)), columns=names))


def reordered(rows: pd.DataFrame, places: Sequence[int]) -> pd.DataFrame:
    """Return a table from `tabulate` with its combinations of labels in another order, given by their old places."""
    size = rows["column"].nunique()
    return rows.iloc[[place * size + i for place in places for i in range(size)]].reset_index(drop=True)


def _cell(row: Mapping[Any, Any]) -> str:
    if math.isnan(row["most"]):
        return ""
    published = "" if math.isnan(row["published"]) else f" ({_short(row['published'])})"
    if row["reached"] == row["runs"]:
        spread = "" if math.isnan(row["sd"]) else f" ± {plain(row['sd'], 2)}"
        return _short(row["mean"]) + spread + published
    return f"{_middle(row)}{row['reached']} of {row['runs']} runs{published}"


def _middle(row: Mapping[Any, Any]) -> str:
    """Return what is known of the middle of runs of which some never got there."""
    if math.isnan(row["km_median"]):
        return ""
    above = math.isinf(row["km_median"])
    return f"> {_short(row['most'])}, " if above else f"median {_short(row['km_median'])}, "


def _short(value: float) -> str:
    """Return whole numbers as they are, four digits of what is small, six of bytes and operations."""
    if value.is_integer() and abs(value) < 1e12:
        return f"{value:.0f}"
    return plain(value, 4 if abs(value) < 1e4 else 6)


def _published(study: Study, group: Mapping[str, str], column: str) -> float:
    fits = (p.value for p in study.published if p.column == column and p.cell.items() <= group.items())
    return next(fits, math.nan)
