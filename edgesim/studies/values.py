"""Numbers of a study's runs, statistics over its seeds, and its table beside published numbers.

Runs that never reach a target bound its number from below.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from edgesim.core.errors import ConfigError
from edgesim.core.metrics import Better
from edgesim.reports.format import plain
from edgesim.reports.load import Run
from edgesim.studies.column import directions, parse_column
from edgesim.studies.statistics import (
    ENOUGH_RUNS,
    Comparison,
    Readings,
    bootstrap_interval,
    compare,
    holm,
    least_bound,
    median,
    restricted_mean,
    share_interval,
    student_interval,
)
from edgesim.studies.study import SEED, Cell, Study

_OWN = (SEED, "column", "value", "observed")  # behind the axes, in this order

# What `summarised` adds to the axes, all in the unit of the column but counts and shares.
STATISTICS = (
    *("column", "runs", "reached", "mean", "median", "sd", "low", "high", "t_low", "t_high", "most"),
    *("km_median", "km_low", "km_high", "restricted_mean", "restricted_low", "restricted_high", "restricted_to"),
    *("share", "share_low", "share_high"),
)


def values_of(study: Study, runs: Iterable[tuple[Cell, Run]], columns: Sequence[str] | None = None) -> pd.DataFrame:
    """Return a row a run and column, by default of the columns of the study.

    Columns: the axes but the seed, as texts; seed, the label of that axis, "" if there is none; column; value;
    observed. What a run did not reach is not observed, and its value is what had been spent at the end of the run. What
    a run does not have at all is NaN and not observed. Raises ConfigError for an axis with the name of another column.
    """
    if taken := [axis for axis in study.axes if axis in (*STATISTICS, *_OWN) and axis != SEED]:
        raise ConfigError(f"axes.{taken[0]}: is a name of its own in tables; rename the axis of the study")
    axes = [axis for axis in study.axes if axis != SEED]
    parsed = {name: parse_column(name) for name in (study.columns if columns is None else columns)}
    rows = [
        (*cell.group.values(), cell.labels.get(SEED, ""), name, *column.reading(run))
        for cell, run in runs
        for name, column in parsed.items()
    ]
    frame = pd.DataFrame(rows, columns=[*axes, *_OWN])
    return frame.astype({"value": "float64", "observed": "bool"})


def axes_of(frame: pd.DataFrame) -> list[str]:
    """Return the axes of a table of values, or of statistics over them, without the seed."""
    names = list(map(str, frame.columns))
    return names[: names.index(SEED if SEED in names else "column")]


def summarised(values: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each combination of labels of all axes but the seed, and column, from `values_of`.

    Columns: the axes, and STATISTICS: runs; reached, how many of them have a number; mean, median and sd (of a
    sample), NaN where a run has none; low and high, the 95 % BCa interval of the mean; t_low and t_high, the same by
    Student's t; most, the largest number, reached or spent without; of what is spent until a target km_median, km_low
    and km_high (inf: more than any run has spent), and the mean up to restricted_to, the least that any run of the
    table had spent without arriving (NaN: all arrived), with its BCa interval; share of runs that have a number, with
    its exact 95 % interval.
    """
    bounds = bounds_of(values)
    rows = [
        {**labels, "column": name, **_statistics(part, bounds[name], parse_column(name).accumulates)}
        for labels, name, part in parts_of(values)
    ]
    return pd.DataFrame(rows, columns=[*axes_of(values), *STATISTICS])


def bounds_of(values: pd.DataFrame) -> dict[str, float]:
    """Return for each column the least that any run of a table had spent without arriving; inf if all arrived."""
    return {str(name): least_bound(*_readings(part)) for name, part in values.groupby("column", sort=False)}


def few_runs(rows: pd.DataFrame) -> str:
    """Return what to know of BCa intervals in a table from `summarised` or `compared`; "": there are enough runs."""
    counts = "runs" if "runs" in rows else "pairs"
    runs = [int(count) for count in rows[counts][rows["low"].notna()]]
    if not runs or min(runs) >= ENOUGH_RUNS:
        return ""
    return (
        f"low, high (BCa): of fewer than {ENOUGH_RUNS} {counts} they cover less than 93 % of normal means; "
        "t_low, t_high cover 95 %"
    )


def compared(
    values: pd.DataFrame,
    baseline: Mapping[str, str],
    column: str | Sequence[str],
    better: Mapping[str, Better] | None = None,
) -> pd.DataFrame:
    """Return how each combination of labels does, seed by seed, against that with the labels of `baseline` instead.

    Labels that `baseline` does not name are the same on both sides, so that an axis may be held against its baseline
    everywhere. Columns: the axes; column; pairs; unpaired, the seeds that only one side has a number for, as text; all
    of `Comparison`, each up to the bound of its own pairs; p_holm, corrected over all rows. `better`: by column, of
    those that do not say so themselves.
    Raises ConfigError if no run has these labels, or which numbers are better is not known.
    """
    names = [column] if isinstance(column, str) else list(column)
    parts = {(*labels.values(), name): part.set_index(SEED) for labels, name, part in parts_of(values)}
    axes = axes_of(values)
    check_labels(values, baseline, "--baseline")
    ways = directions(names, better or {})
    rows = []
    for *labels, name in parts:
        group = dict(zip(axes, labels, strict=True))
        if name not in names or baseline.items() <= group.items():
            continue
        other = parts.get((*({**group, **baseline}).values(), name))
        higher = ways[name] == "higher"
        rows.append({**group, "column": name, **against(parts[*labels, name], other, higher)})
    found = pd.DataFrame(rows, columns=[*axes, "column", "pairs", "unpaired", *Comparison._fields])
    return found.assign(p_holm=holm(list(found["p_value"])))


def check_labels(values: pd.DataFrame, labels: Mapping[str, str], where: str) -> None:
    """Raise ConfigError, which begins with `where`, if no run of a table of values has one of these labels."""
    axes = axes_of(values)
    for axis, label in labels.items():
        if axis not in axes:
            raise ConfigError(f"{where}: {axis!r} is no axis that is compared (allowed: {', '.join(axes) or 'none'})")
        if label not in set(values[axis]):
            known = ", ".join(map(str, dict.fromkeys(values[axis])))
            raise ConfigError(f"{where}: no run has {axis}={label} ({axis}: {known})")


def against(
    one: pd.DataFrame, other: pd.DataFrame | None, higher_is_better: bool, bound: float = math.inf
) -> dict[str, Any]:
    """Return pairs, unpaired and a `Comparison` over the seeds, the index, of two parts of a table of values.

    `other` is None if there is no such part.
    """
    mine = one[one["value"].notna()]
    theirs = mine.iloc[:0] if other is None else other[other["value"].notna()]
    seeds = [seed for seed in mine.index if seed in theirs.index]
    everything = dict.fromkeys([*one.index, *(() if other is None else other.index)])
    unpaired = ", ".join(str(seed) for seed in everything if seed not in seeds)
    found = compare(_readings(mine.loc[seeds]), _readings(theirs.loc[seeds]), higher_is_better, bound)
    return {"pairs": len(seeds), "unpaired": unpaired, **found._asdict()}


def parts_of(values: pd.DataFrame) -> Iterable[tuple[dict[str, str], str, pd.DataFrame]]:
    """Yield the labels, the column and the rows of each combination, in the order of the rows."""
    axes = axes_of(values)
    for key, part in values.groupby([*axes, "column"], sort=False):
        *labels, name = key
        yield dict(zip(axes, map(str, labels), strict=True)), str(name), part


def _readings(part: pd.DataFrame) -> Readings:
    return Readings(part["value"].to_numpy(dtype=float), part["observed"].to_numpy(dtype=bool))


def _statistics(part: pd.DataFrame, bound: float, accumulates: bool) -> dict[str, Any]:
    values, observed = _readings(part)
    reached = int(observed.sum())
    share = {"share": reached / len(values), **_named("share", share_interval(reached, len(values)))}
    found: dict[str, Any] = {"runs": len(values), "reached": reached, **share}
    if reached == len(values):
        found |= {"mean": float(np.mean(values)), "median": float(np.median(values)), "sd": _deviation(values)}
        found |= _named("", bootstrap_interval([values])) | _named("t", student_interval(values))
    if not np.isnan(values).all():
        found["most"] = float(np.nanmax(values))
    if accumulates and not np.isnan(values).any():
        middle, cut = median(values, observed), restricted_mean(values, bound)
        found |= {"km_median": middle.value, "restricted_mean": cut.value, "restricted_to": cut.bound}
        found |= _named("km", middle[1:]) | _named("restricted", cut[1:3])
    return found


def _deviation(values: np.ndarray) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def _named(of: str, interval: Sequence[float]) -> dict[str, float]:
    return dict(zip([f"{of}_low".lstrip("_"), f"{of}_high".lstrip("_")], interval, strict=True))


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
