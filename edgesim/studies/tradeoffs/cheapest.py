"""Cheapest configuration that reaches a target by a deadline, from the typical values of each."""

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
    """A row for each configuration: its labels, and a number for each column; which statistic over seeds it is.

    It is the mean; where some run of any configuration never got there, the Kaplan-Meier median of them all, inf if it
    is more than any run has spent. NaN: a run has no such number at all.
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
    """Return the labels of each row as words for people, see `name_of`."""
    return [name_of({str(axis): str(label) for axis, label in row.items()}) for row in labels.to_dict("records")]


def name_of(labels: Mapping[str, str]) -> str:
    """Return labels as words for people, such as "method=fedavg,deadline=30_s"."""
    return ",".join(f"{axis}={label}" for axis, label in labels.items())


def cheapest(
    values: pd.DataFrame, goal: str, within: float, price: str, share: float = 0.5, confidence: float = 0.95
) -> pd.DataFrame:
    """Return a row for each configuration of a table from `values_of`, those that qualify first, the cheapest on top.

    `goal`: a column such as sim_time_s@0.8, of which `within` is the most that a run may need; `price`: the column that
    is to be low. A configuration qualifies if the share of all runs, over seeds, that stay within is at least `share`,
    with this confidence: the exact one-sided lower bound, given how many of the runs made do, is not below it. It is
    the confidence about each configuration by itself. A run that stopped before `within` without getting there counts
    as one that does not.
    Columns: the axes; runs; in_time; stopped, how many stopped before; share, share_at_least; the price, see `typical`;
    qualifies; cheapest. Raises ConfigError for shares that are not between 0 and 1.
    """
    for name, given in (("--share", share), ("--confidence", confidence)):
        if not 0 < given < 1:
            raise ConfigError(f"{name}: must be between 0 and 1, both excluded, got {given:g}")
    rows = []
    for labels, name, part in parts_of(values):
        if name == goal:
            needed, observed = part["value"].to_numpy(dtype=float), part["observed"].to_numpy(dtype=bool)
            counts = _counts(needed, observed, within)
            least = share_at_least(counts["in_time"], counts["runs"], confidence)
            in_time = {"share": counts["in_time"] / counts["runs"], "share_at_least": least}
            rows.append({**labels, **counts, **in_time, "qualifies": least >= share})
    prices = typical(summarised(values[values["column"] == price]), [price]).frame[price]
    found = pd.DataFrame(rows).assign(**{price: prices}).sort_values(price, kind="stable", na_position="last")
    found = found.sort_values("qualifies", ascending=False, kind="stable", ignore_index=True)
    first = (found.index == 0) & found["qualifies"] & np.isfinite(found[price])
    order = [name for name in found if name not in (price, "qualifies")] + [price, "qualifies"]
    return found[order].assign(cheapest=first)


def runs_needed(share: float, confidence: float) -> int:
    """Return how many runs, all in time, show that a share of runs is, with this confidence.

    If fewer are, none of n runs being late has a chance of share ** n at most, which has to be 1 - confidence or less.
    """
    runs = math.ceil(math.log(1 - confidence) / math.log(share))
    while share_at_least(runs, runs, confidence) < share:  # rounding
        runs += 1
    return runs


def _counts(needed: np.ndarray, observed: np.ndarray, within: float) -> dict[str, int]:
    stopped = ~observed & ~(needed >= within)
    return {"runs": len(needed), "in_time": int((observed & (needed <= within)).sum()), "stopped": int(stopped.sum())}
