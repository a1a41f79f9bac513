"""Cheapest configuration that reaches a target by a deadline, and typical values of configurations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from edgesim.core.errors import ConfigError
from edgesim.studies.column import parse_column
from edgesim.studies.statistics import share_at_least
from edgesim.studies.values import axes_of, parts_of, summarised

Statistic: TypeAlias = Literal["mean", "km_median"]


class Typical(NamedTuple):
    """Typical numbers. `frame`: a row for each configuration with its labels, and a number for each column.

    `statistics`: the statistic over seeds by column. It is the mean, or, if a run of any configuration never reached
    the target, the Kaplan-Meier median for all of them (inf: more than any run has spent). NaN: a run has no such
    number at all.
    """

    frame: pd.DataFrame
    statistics: Mapping[str, Statistic]


def typical(rows: pd.DataFrame, columns: Sequence[str]) -> Typical:
    """Return one number for each configuration and column of a table from `summarised`.

    Raises ConfigError for a column that is named twice.
    """
    if twice := [column for column in columns if list(columns).count(column) > 1]:
        raise ConfigError(f"column {twice[0]!r}: is named twice")
    axes = axes_of(rows)
    frame = rows[rows["column"] == rows["column"].iloc[0]][axes].reset_index(drop=True)
    statistics: dict[str, Statistic] = {}
    for column in columns:
        part = rows[rows["column"] == column].reset_index(drop=True)
        all_there = bool((part["reached"] == part["runs"]).all())
        statistics[column] = "mean" if all_there or not parse_column(column).accumulates else "km_median"
        frame[column] = part[statistics[column]]
    return Typical(frame, statistics)


def names_of(labels: pd.DataFrame) -> list[str]:
    """Return the labels of each row as text, see `name_of`."""
    return [name_of({str(axis): str(label) for axis, label in row.items()}) for row in labels.to_dict("records")]


def name_of(labels: Mapping[str, str]) -> str:
    """Return labels as text, such as "method=fedavg,deadline=30_s"."""
    return ",".join(f"{axis}={label}" for axis, label in labels.items())


def cheapest(
    values: pd.DataFrame, goal: str, within: float, price: str, share: float = 0.5, confidence: float = 0.95
) -> pd.DataFrame:
    """Return a row for each configuration of a table from `values_of`, qualified ones first, sorted by price.

    `goal`: a column such as sim_time_s@0.8. `within`: the most of it that a run may need. `price`: the column to
    minimise. A configuration qualifies if at least `share` of its runs over seeds stay within, with this confidence:
    the exact one-sided lower bound of the share is at least `share`. The confidence holds for each configuration
    separately. A run that stopped before `within` without reaching the target counts as late.
    Columns: the axes; runs; in_time; stopped, the number of runs that stopped before; share, share_at_least; the price,
    see `typical`; qualifies; cheapest. Raises ConfigError for shares that are not between 0 and 1.
    """
    for name, given in (("--share", share), ("--confidence", confidence)):
        if not 0 < given < 1:
            raise ConfigError(f"{name}: must be between 0 and 1, both excluded, got {given:g}")
    rows = []
    for labels, name, part in parts_of(values):
        if name == goal:
            needed, observed = part["value"].to_numpy(dtype=float), part["observed"].to_numpy(dtype=bool)
            runs, in_time = len(needed), int((observed & (needed <= within)).sum())
            stopped = int((~observed & ~(needed >= within)).sum())
            least = share_at_least(in_time, runs, confidence)
            row = {**labels, "runs": runs, "in_time": in_time, "stopped": stopped, "share": in_time / runs}
            rows.append({**row, "share_at_least": least, "qualifies": least >= share})
    prices = typical(summarised(values[values["column"] == price]), [price]).frame[price]
    found = pd.DataFrame(rows).assign(**{price: prices}).sort_values(price, kind="stable", na_position="last")
    found = found.sort_values("qualifies", ascending=False, kind="stable", ignore_index=True)
    first = (found.index == 0) & found["qualifies"] & np.isfinite(found[price])
    order = [name for name in found if name not in (price, "qualifies")] + [price, "qualifies"]
    return found[order].assign(cheapest=first)


def runs_needed(share: float, confidence: float) -> int:
    """Return the number of runs, all in time, that show with this confidence that a share of runs is in time.

    If the true share were lower, n runs would all be in time with a probability of at most share ** n. This has to be
    1 - confidence or less.
    """
    runs = math.ceil(math.log(1 - confidence) / math.log(share))
    while share_at_least(runs, runs, confidence) < share:  # rounding
        runs += 1
    return runs
