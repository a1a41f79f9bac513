"""The price, or the value of an axis, at which two configurations cost the same."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd

from edgesim.core.errors import ConfigError
from edgesim.studies.statistics import bootstrap_interval
from edgesim.studies.study import SEED
from edgesim.studies.tradeoffs.cheapest import name_of
from edgesim.studies.values import axes_of, check_labels, parts_of

_NUMBER = re.compile(r"(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)_?(?P<unit>.*)")


class BreakEven(NamedTuple):
    """Value at which two configurations cost the same, with its 95 % BCa interval over the seeds that both have.

    at is NaN if there is no such value; the cheaper configuration is then cheaper everywhere. low and high are NaN if
    the seeds disagree on which configuration spends more, because the interval then has no end. cheaper_below,
    cheaper_above: "one", "other", or "same".
    """

    at: float
    low: float
    high: float
    cheaper_below: str
    cheaper_above: str


def break_even(fixed: np.ndarray, rate: np.ndarray) -> BreakEven:
    """Return the price at which fixed + price x rate is 0 on the mean. The price may be negative.

    fixed, rate: differences of the first configuration minus the second by seed, shape (n,), in the units of their
    columns.
    """
    with np.errstate(all="ignore"):
        at = float(_price(fixed, rate))
    more = float(np.mean(rate))
    if more == 0:
        who = _cheaper(float(np.mean(fixed)))
        return BreakEven(math.nan, math.nan, math.nan, who, who)
    spread = bootstrap_interval([rate])
    low, high = bootstrap_interval([fixed, rate], _price) if spread.low * spread.high > 0 else (math.nan, math.nan)
    return BreakEven(at, low, high, _cheaper(-more), _cheaper(more))


def over_price(
    values: pd.DataFrame, one: Mapping[str, str], other: Mapping[str, str], fixed: str, rate: str
) -> pd.DataFrame:
    """Return the price of a unit of `rate` at which two configurations of a table from `values_of` cost the same.

    Cost is column `fixed` + price x column `rate`. `one` and `other` are the labels in which the configurations differ.
    There is a row for each combination of the other axes. Columns: these axes, pairs, and `BreakEven`. Raises
    ConfigError if a run never reached its target, because a cost then has no mean, or if no seed is common to both.
    """
    rows = []
    for group, parts in _pairs(values, one, other, (fixed, rate)):
        differences = [_difference(*parts[column], group).to_numpy(dtype=float) for column in (fixed, rate)]
        pairs = {"pairs": len(differences[0])}
        rows.append({**group, **pairs, **break_even(*differences)._asdict()})
    return pd.DataFrame(rows)


def over_axis(
    values: pd.DataFrame, one: Mapping[str, str], other: Mapping[str, str], column: str, axis: str
) -> pd.DataFrame:
    """Return the values of an axis at which a column is the same for two configurations of a table from `values_of`.

    The labels of the axis must be numbers in one unit. Between neighbours the column is interpolated linearly. Columns:
    the other axes that both have in common; pairs; between, the labels; `BreakEven`, in the unit of the labels. Without
    a crossing there is no row. Raises ConfigError as `over_price`, and for an axis whose labels are no numbers.
    """
    if axis not in axes_of(values) or axis in {*one, *other}:
        allowed = ", ".join(name for name in axes_of(values) if name not in {*one, *other})
        raise ConfigError(f"--over: {axis!r} is no axis that the two have in common (allowed: {allowed or 'none'})")
    labels = list(map(str, dict.fromkeys(values[axis])))
    matches = {label: _NUMBER.fullmatch(label) for label in labels}
    units = {match["unit"] if match else None for match in matches.values()}
    if None in units or len(units) > 1:
        raise ConfigError(f"--over: labels of axis {axis!r} must be numbers, all in one unit, got {', '.join(labels)}")
    places = {label: float(match["number"]) for label, match in matches.items() if match}
    lines: dict[tuple[tuple[str, str], ...], dict[str, pd.Series]] = {}
    for group, parts in _pairs(values, one, other, (column,)):
        label = group.pop(axis)
        lines.setdefault(tuple(group.items()), {})[label] = _difference(*parts[column], {**group, axis: label})
    rows = [
        {**dict(group), **found}
        for group, line in lines.items()
        for found in _crossings({label: line[label] for label in sorted(line, key=places.__getitem__)}, places)
    ]
    names = [*(dict(next(iter(lines), ()))), "pairs", "between", *BreakEven._fields]
    return pd.DataFrame(rows, columns=names)


def _price(fixed: np.ndarray, rate: np.ndarray, axis: int = -1) -> np.ndarray:
    return np.asarray(-np.mean(fixed, axis=axis) / np.mean(rate, axis=axis))


def _cheaper(difference: float) -> str:
    return "same" if difference == 0 else "one" if difference < 0 else "other"


_Parts = dict[str, tuple[pd.DataFrame, pd.DataFrame]]


def _pairs(
    values: pd.DataFrame, one: Mapping[str, str], other: Mapping[str, str], columns: tuple[str, ...]
) -> list[tuple[dict[str, str], _Parts]]:
    """Return both sides of each column, for each combination of labels that both configurations have."""
    for labels, where in ((one, "--between"), (other, "--and")):
        check_labels(values, labels, where)
    if one.keys() != other.keys() or one == other:
        raise ConfigError(
            f"--and: must have other labels of the same axes as --between {name_of(one)}, got {name_of(other)}"
        )
    parts = {(*group.values(), name): part.set_index(SEED) for group, name, part in parts_of(values)}
    axes, found = axes_of(values), []
    for *here, name in parts:
        group = dict(zip(axes, here, strict=True))
        if name != columns[0] or not one.items() <= group.items():
            continue
        there = (*{**group, **other}.values(),)
        if (*there, name) in parts:
            sides = {column: (parts[*here, column], parts[*there, column]) for column in columns}
            found.append(({axis: label for axis, label in group.items() if axis not in one}, sides))
    if not found:
        raise ConfigError(
            f"--between: no runs of {name_of(one)} and {name_of(other)} have their other labels in common"
        )
    return found


def _difference(one: pd.DataFrame, other: pd.DataFrame, group: Mapping[str, str]) -> pd.Series:
    """Return the differences of two parts by the seeds that both have."""
    seeds = [seed for seed in one.index if seed in other.index]
    where = f" of {name_of(group)}" if group else ""
    if not seeds:
        raise ConfigError(f"--between: the two have no seed in common{where}")
    both = pd.concat([one.loc[seeds], other.loc[seeds]])
    if not both["observed"].all():
        missing = int((~both["observed"]).sum())
        raise ConfigError(
            f"column {both['column'].iloc[0]!r}: {missing} of {len(both)} runs{where} have no such number; "
            "take one that all runs have, such as a total"
        )
    mine, theirs = one["value"].loc[seeds], other["value"].loc[seeds]
    return mine - theirs


def _crossings(line: Mapping[str, pd.Series], places: Mapping[str, float]) -> list[dict[str, object]]:
    """Return the places at which the line through the means of differences, in ascending order, crosses 0."""
    labels, found = list(line), []
    for left, right in pairwise(labels):
        seeds = [seed for seed in line[left].index if seed in line[right].index]
        before, after = (line[label].loc[seeds].to_numpy(dtype=float) for label in (left, right))
        if not len(seeds):
            continue
        starts, ends = float(np.mean(before)), float(np.mean(after))
        if not (starts * ends < 0 or ends == 0 or (starts == 0 and left == labels[0])):  # only the first may start at 0
            continue
        slope = (after - before) / (places[right] - places[left])
        at = break_even(before, slope)
        shift = places[left]
        moved = at._replace(at=at.at + shift, low=at.low + shift, high=at.high + shift)
        found.append({"pairs": len(seeds), "between": f"{left} and {right}", **moved._asdict()})
    return found
