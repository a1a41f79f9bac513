"""Numbers of the runs of a study, statistics over seeds, and the table of a study with published numbers.

A run that never reaches a target bounds its number from below: the number is censored.
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
from edgesim.studies.study import SEED, Study, StudyCell

_OWN = (SEED, "column", "value", "observed", "never")  # columns after the axes, in this order

# Columns that `summarised` adds to the axes, in the unit of the study column except for counts and shares.
STATISTICS = (
    *("column", "runs", "reached", "never", "mean", "median", "sd", "low", "high", "t_low", "t_high", "most"),
    *("km_median", "km_low", "km_high", "restricted_mean", "restricted_low", "restricted_high", "restricted_to"),
    *("share", "share_low", "share_high"),
)


def values_of(
    study: Study, runs: Iterable[tuple[StudyCell, Run]], columns: Sequence[str] | None = None
) -> pd.DataFrame:
    """Return a row for each run and column, by default for the columns of the study.

    Columns: the axes except the seed, as texts; seed, the label of that axis, "" without such an axis; column; value;
    observed; never. If a run did not reach a target, its value is the amount spent at the end of the run, and observed
    is False. never is True if it ended as nothing more could happen, such as without any device. If a run has no such
    number at all, its value is NaN and observed is False. Raises ConfigError if an axis has the name of another column.
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
    return frame.astype({"value": "float64", "observed": "bool", "never": "bool"})


def axes_of(frame: pd.DataFrame) -> list[str]:
    """Return the axes, without the seed, of a table of values or of statistics."""
    names = list(map(str, frame.columns))
    return names[: names.index(SEED if SEED in names else "column")]


def summarised(values: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each column and combination of labels (all axes except the seed) of a table from `values_of`.

    Columns: the axes, and STATISTICS: runs; reached, the number of runs with a number; never, the number that ended
    short of the target as nothing more could happen; mean, median and sd (of a sample), NaN if any run has no number;
    low and high, the 95 % BCa interval of the mean; t_low and t_high, the same interval by Student's t; most, the
    largest value, whether or not the target was reached. For amounts spent until a target: km_median, km_low and
    km_high (inf: more than any run has spent), and the restricted mean with its BCa interval. It is restricted to
    restricted_to, up to which all numbers of the table are known, see `least_bound` (NaN: all runs reached the target).
    share: the share of runs with a number, with its exact 95 % interval.
    """
    bounds = bounds_of(values)
    rows = []
    for labels, name, part in parts_of(values):
        numbers, observed = readings_of(part)
        runs, reached, never = len(numbers), int(observed.sum()), int(part["never"].sum())
        row: dict[str, Any] = {**labels, "column": name, "runs": runs, "reached": reached, "never": never}
        row |= {"share": reached / runs, **_named("share", share_interval(reached, runs))}
        if reached == runs:
            deviation = float(np.std(numbers, ddof=1)) if runs > 1 else math.nan
            row |= {"mean": float(np.mean(numbers)), "median": float(np.median(numbers)), "sd": deviation}
            row |= _named("", bootstrap_interval([numbers])) | _named("t", student_interval(numbers))
        if not np.isnan(numbers).all():
            row["most"] = float(part["value"].max())
        if parse_column(name).accumulates and not np.isnan(numbers).any():
            middle, cut = median(numbers, observed), restricted_mean(numbers, bounds[name])
            row |= {"km_median": middle.value, "restricted_mean": cut.value, "restricted_to": cut.bound}
            row |= _named("km", middle[1:]) | _named("restricted", cut[1:3])
        rows.append(row)
    return pd.DataFrame(rows, columns=[*axes_of(values), *STATISTICS])


def bounds_of(values: pd.DataFrame) -> dict[str, float]:
    """Return for each column the number up to which all are known, see `least_bound`."""
    return {str(name): least_bound(*readings_of(part)) for name, part in values.groupby("column", sort=False)}


def with_one_interval(rows: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return rows of `summarised` or `compared` with one interval, low and high, and the name of its method.

    It is Student's t for fewer than ENOUGH_RUNS runs or pairs, else the BCa bootstrap; the name is "" without any
    interval.
    """
    counts = "runs" if "runs" in rows else "pairs"
    few = rows[counts] < ENOUGH_RUNS
    shown = rows.assign(**{end: rows[end].where(~few, rows[f"t_{end}"]) for end in ("low", "high")})
    there = few[shown["low"].notna()]
    name = "Student's t" if there.all() else "BCa bootstrap"
    if there.any() and not there.all():
        name = f"Student's t below {ENOUGH_RUNS} {counts}, else BCa bootstrap"
    return shown.drop(columns=["t_low", "t_high"]), name if len(there) else ""


def compared(
    values: pd.DataFrame,
    baseline: Mapping[str, str],
    column: str | Sequence[str],
    better: Mapping[str, Better] | None = None,
) -> pd.DataFrame:
    """Compare each combination of labels, paired by seed, with the combination that has the labels of `baseline`.

    Labels that `baseline` does not name are the same on both sides. So a baseline of one axis is compared within every
    combination of the other axes. Columns: the axes; column; pairs; unpaired, the seeds for which only one side has a
    number, as text; all fields of `Comparison`, each up to the bound of its own pairs; p_holm, Holm-corrected over all
    rows. `better`: the better direction of columns that do not define it.
    Raises ConfigError if no run has these labels, or if the better direction of a column is unknown.
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
    """Raise ConfigError, which begins with `where`, if a table of values has no run with one of these labels."""
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
    """Return pairs, unpaired and the fields of `Comparison` for two parts of a table of values, indexed by seed.

    `other` is None if the second part is missing.
    """
    mine = one[one["value"].notna()]
    theirs = mine.iloc[:0] if other is None else other[other["value"].notna()]
    seeds = [seed for seed in mine.index if seed in theirs.index]
    everything = dict.fromkeys([*one.index, *(() if other is None else other.index)])
    unpaired = ", ".join(str(seed) for seed in everything if seed not in seeds)
    found = compare(readings_of(mine.loc[seeds]), readings_of(theirs.loc[seeds]), higher_is_better, bound)
    return {"pairs": len(seeds), "unpaired": unpaired, **found._asdict()}


def parts_of(values: pd.DataFrame) -> Iterable[tuple[dict[str, str], str, pd.DataFrame]]:
    """Yield the labels, the column and the rows of each combination, in the order of the rows."""
    axes = axes_of(values)
    for key, part in values.groupby([*axes, "column"], sort=False):
        *labels, name = key
        yield dict(zip(axes, map(str, labels), strict=True)), str(name), part


def readings_of(part: pd.DataFrame) -> Readings:
    """Return the numbers of a part of a table of values; those of runs that would never reach the target are inf."""
    return Readings(part["value"].mask(part["never"], math.inf).to_numpy(), part["observed"].to_numpy(dtype=bool))


def _named(of: str, interval: Sequence[float]) -> dict[str, float]:
    return dict(zip([f"{of}_low".lstrip("_"), f"{of}_high".lstrip("_")], interval, strict=True))


def tabulate(study: Study, runs: Iterable[tuple[StudyCell, Run]]) -> pd.DataFrame:
    """Return a row for each column of the study and combination of labels (all axes except the seed).

    Columns: those of `summarised`; published, in the unit of the column; ratio, the mean over published. NaN: there is
    no such number. Raises ConfigError as `values_of`.
    """
    rows = summarised(values_of(study, runs))
    axes, table = axes_of(rows), rows.to_dict("records")
    found = [study.published_for({axis: row[axis] for axis in axes}, row["column"]) for row in table]
    rows = rows.assign(published=pd.Series(found, dtype="float64"))
    return rows.assign(ratio=rows["mean"] / rows["published"].where(rows["published"] != 0))


def pivoted(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a table from `tabulate` as texts: a row for each combination of labels, a column for each study column.

    A text has the mean over seeds, the standard deviation if there is one, and the published number in brackets. Where
    some runs did not reach the target, it has the Kaplan-Meier median, its lower bound, or "never", and the number of
    runs that reached it. Columns without a number in any run are left out.
    """
    labels = axes_of(rows)
    found = set(rows["column"][rows["most"].notna()])
    names = [name for name in rows["column"].unique() if name in found]
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows.to_dict("records"):
        lines.setdefault(tuple(row[label] for label in labels), {})[row["column"]] = _cell_text(row)
    table = [[*group, *(cells[name] for name in names)] for group, cells in lines.items()]
    return pd.DataFrame(table, columns=[*labels, *names])


def numbers(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the numbers that `pivoted` shows: a row for each combination of labels, a column for each study column.

    They are means, or Kaplan-Meier medians (which may be inf) where some runs never reached the target.
    """
    names = list(rows["column"].unique())
    labels = rows[axes_of(rows)].iloc[:: len(names)].reset_index(drop=True)
    shown = rows["mean"].fillna(rows["km_median"])
    return labels.join(pd.DataFrame(shown.to_numpy().reshape(-1, len(names)), columns=names))


def reordered(rows: pd.DataFrame, places: Sequence[int]) -> pd.DataFrame:
    """Return a table from `tabulate` with its combinations of labels in the order `places` of their old positions."""
    size = rows["column"].nunique()
    return rows.iloc[[place * size + i for place in places for i in range(size)]].reset_index(drop=True)


def _cell_text(row: Mapping[Any, Any]) -> str:
    if math.isnan(row["most"]):
        return ""
    published = "" if math.isnan(row["published"]) else f" ({_short(row['published'])})"
    if row["reached"] == row["runs"]:
        spread = "" if math.isnan(row["sd"]) else f" ± {plain(row['sd'], 2)}"
        return _short(row["mean"]) + spread + published
    middle = "" if math.isnan(row["km_median"]) else f"median {_short(row['km_median'])}, "
    if math.isinf(row["km_median"]):
        middle = "never, " if row["never"] > row["runs"] / 2 else f"> {_short(row['most'])}, "
    return f"{middle}{row['reached']} of {row['runs']} runs{published}"


def _short(value: float) -> str:
    """Return a whole number as it is, else four digits of a number below 10,000 and six of larger ones."""
    if value.is_integer() and abs(value) < 1e12:
        return f"{value:.0f}"
    return plain(value, 4 if abs(value) < 1e4 else 6)
