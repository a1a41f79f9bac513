"""What the runs of a study say of a claim: an effect for each number or pair that it is about, and a verdict on all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import pandas as pd

from edgesim.studies.claims.claim import Claim, Difference, Number, Order, Pair, Ratio, fitting
from edgesim.studies.column import parse_column
from edgesim.studies.keys import as_label
from edgesim.studies.statistics.intervals import Interval, student_interval
from edgesim.studies.statistics.paired import Readings, compare
from edgesim.studies.study import SEED, Cell, Study
from edgesim.studies.values import axes_of


class Verdict(StrEnum):
    """What runs say, of one effect or of all that a claim is about."""

    REPRODUCED = "reproduced"
    ORDER = "same order"
    UNDECIDED = "undecided"
    REFUTED = "refuted"


class Effect(NamedTuple):
    """One number, or one pair. `about`: the labels; `value`: the mean, difference or ratio over `seeds`, their labels.

    low, high: its 95 % interval, NaN if there is none; `claimed`: what was published, NaN where only an order is.
    `bound`: the value is one that runs had spent without getting there, so that it is more.
    """

    about: str
    seeds: tuple[str, ...]
    value: float
    low: float
    high: float
    claimed: float
    bound: bool
    verdict: Verdict


class Judgement(NamedTuple):
    """The effects that there are, of how many, and the verdict on all; None: nothing was run."""

    effects: Sequence[Effect]
    of: int
    verdict: Verdict | None

    @property
    def as_claimed(self) -> int:
        """Return how many effects are as the claim has them, if only on the mean."""
        return sum(each.verdict in (Verdict.REPRODUCED, Verdict.ORDER) for each in self.effects)


def judge(claim: Claim, study: Study, size: str, values: pd.DataFrame) -> Judgement:
    """Return what a table from `values_of`, of the columns of a claim, says of it; see `cells_for` for its cells."""
    rule = claim.rule
    assert rule is not None, "a claim with a study has a rule"
    groups = {tuple(cell.group.items()): cell.group for cell in study.cells(size)}.values()
    if isinstance(rule, Number):
        cells = [(group, name) for group in groups if _is_meant(group, rule, study) for name in rule.columns]
        effects = [_number(rule, study, values, *each) for each in cells if _claimed(rule, study, *each) is not None]
    else:
        effects = [_pair(rule, values, *each) for each in _pairs(rule, study, groups)]
    found = [each for each in effects if each is not None]
    return Judgement(found, len(effects), _of_all(found))


def cells_for(claim: Claim, study: Study, size: str) -> list[Cell]:
    """Return the cells of a size that a claim is judged by."""
    rule = claim.rule
    if rule is None:
        return []
    cells = [cell for cell in study.cells(size) if _is_meant(cell.group, rule, study)]
    if isinstance(rule, Number):
        if rule.within is None or rule.value is not None:
            return cells
        return [each for each in cells if any(_published(study, each.group, name) is not None for name in rule.columns)]
    sides = [fitting(side, study) for side in (rule.first, *rule.others)]
    return [cell for cell in cells if any(side.items() <= cell.labels.items() for side in sides)]


def _of_all(effects: Sequence[Effect]) -> Verdict | None:
    """Return the verdict on all effects: the least favourable, as a claim is about all of them."""
    order = [Verdict.REPRODUCED, Verdict.ORDER, Verdict.UNDECIDED, Verdict.REFUTED]
    return max((each.verdict for each in effects), key=order.index, default=None)


def _is_meant(group: Mapping[str, str], rule: Number | Pair, study: Study) -> bool:
    """Return whether a claim is about the cells of a group."""
    return fitting(rule.cell, study).items() <= group.items() and not _is_left_out(group, rule)


def _is_left_out(group: Mapping[str, str], rule: Number | Pair) -> bool:
    return bool(rule.leave_out) and rule.leave_out.items() <= group.items()


# --- numbers ----------------------------------------------------------------------------------------------------


def _number(rule: Number, study: Study, values: pd.DataFrame, group: Mapping[str, str], column: str) -> Effect | None:
    part = _part(values, group, column)
    if part.empty:
        return None
    reached = bool(part["observed"].all())
    about = _about(group, study, rule.cell, column if len(rule.columns) > 1 else "")
    numbers = part["value"].to_numpy(dtype=float)
    mean = float(numbers.mean())
    interval = _interval(numbers, column)
    if not reached:  # each run that got there may be an early one; if none did, none of them is below
        low = interval.low if part["observed"].any() else mean
        interval = Interval(low, math.inf)
    claimed = _claimed(rule, study, group, column)
    assert claimed is not None, "cells without a claimed number are left out"
    if rule.within is not None:
        room = abs(claimed) * rule.within * (1 + 1e-9)
        verdict = _inside(mean if reached else math.inf, interval, claimed - room, claimed + room)
    else:
        side = 1 if rule.above is not None else -1
        verdict = _beyond(side * (mean - claimed), *_turned(Interval(*interval), side, claimed))
    return Effect(about, tuple(part[SEED]), mean, *interval, claimed, not reached, verdict)


def _claimed(rule: Number, study: Study, group: Mapping[str, str], column: str) -> float | None:
    for told in (rule.value, rule.above, rule.below):
        if told is not None:
            return told
    return _published(study, group, column)


def _published(study: Study, group: Mapping[str, str], column: str) -> float | None:
    for entry in study.published:
        if entry.column == column and entry.cell.items() <= group.items():
            return entry.value
    return None


def _interval(numbers: np.ndarray, column: str) -> Interval:
    """Return the interval of a mean; one run says all of a number that does not follow from training."""
    if len(numbers) == 1 and not parse_column(column).is_learned:
        return Interval(float(numbers[0]), float(numbers[0]))
    return student_interval(numbers)


# --- pairs ------------------------------------------------------------------------------------------------------


def _pairs(
    rule: Pair, study: Study, groups: Iterable[Mapping[str, str]]
) -> list[tuple[Mapping[str, str], Mapping[str, str]]]:
    """Return the groups of both sides of each pair, those of the study."""
    known = [dict(group) for group in groups if not _is_left_out(group, rule)]
    first = fitting(rule.first, study)
    return [
        (group, other)
        for group in known
        if _is_meant(group, rule, study) and first.items() <= group.items()
        for side in rule.others
        if (other := {**group, **fitting(side, study)}) in known
    ]


def _pair(
    rule: Order | Difference | Ratio, values: pd.DataFrame, group: Mapping[str, str], other: Mapping[str, str]
) -> Effect | None:
    one, two = (
        _part(values, side, column).set_index(SEED) for side, column in zip((group, other), rule.columns, strict=True)
    )
    seeds = [seed for seed in one.index if seed in two.index]
    if not seeds:
        return None
    found = compare(_readings(one.loc[seeds]), _readings(two.loc[seeds]))
    bound = not math.isnan(found.restricted_to)
    if isinstance(rule, Ratio):
        value, interval = found.ratio, Interval(found.ratio_low, found.ratio_high)
    else:
        value, interval = found.difference, Interval(found.t_low, found.t_high)
    about = _of_pair(rule, group, other)
    claimed = math.nan if isinstance(rule, Order) else rule.value
    if isinstance(rule, Order):
        side = 1 if rule.first_is == "higher" else -1
        verdict = _beyond(side * value, *_turned(interval, side, 0.0))
    elif bound:  # of runs that were cut off the size of a difference is not known, only whose is larger
        verdict = Verdict.UNDECIDED
    else:
        room = abs(claimed) * rule.within if isinstance(rule, Ratio) else rule.within
        verdict = _inside(value, interval, claimed - room, claimed + room)
    return Effect(about, tuple(seeds), value, *interval, claimed, bound, verdict)


def _of_pair(rule: Pair, group: Mapping[str, str], other: Mapping[str, str]) -> str:
    """Return what a pair is about: the labels that it shares and the claim leaves open, and who stands against whom."""
    shared = [f"{axis}={label}" for axis, label in group.items() if other[axis] == label and axis not in rule.cell]
    sides = [
        " ".join(label for axis, label in side.items() if axis in rule.first) or column
        for side, column in zip((group, other), rule.columns, strict=True)
    ]
    return ", ".join([*shared, f"{sides[0]} against {sides[1]}"])


def _turned(interval: Interval, side: int, zero: float) -> Interval:
    """Return an interval from a number on, so that the claimed side is above 0."""
    ends = sorted(side * (each - zero) for each in interval)
    return Interval(*ends)


# --- both -------------------------------------------------------------------------------------------------------


def _beyond(value: float, low: float, high: float) -> Verdict:
    """Return the verdict on a number that is claimed to be above 0, and its interval; NaN: there is none."""
    if low > 0:
        return Verdict.REPRODUCED
    if high < 0:
        return Verdict.REFUTED
    return Verdict.ORDER if value > 0 else Verdict.UNDECIDED


def _inside(value: float, interval: Interval, low: float, high: float) -> Verdict:
    """Return the verdict on a number that is claimed to lie between two others."""
    if low <= value <= high:
        return Verdict.REPRODUCED
    return Verdict.REFUTED if interval.high < low or interval.low > high else Verdict.UNDECIDED


def _part(values: pd.DataFrame, group: Mapping[str, str], column: str) -> pd.DataFrame:
    """Return the rows of a group and column that have a number."""
    chosen = (values["column"] == column) & values["value"].notna()
    for axis in axes_of(values):
        chosen &= values[axis] == as_label(group[axis])
    return values[chosen]


def _readings(part: pd.DataFrame) -> Readings:
    return Readings(part["value"].to_numpy(dtype=float), part["observed"].to_numpy(dtype=bool))


def _about(group: Mapping[str, str], study: Study, fixed: Mapping[str, str], column: str) -> str:
    """Return the labels of a group that a claim leaves open, and the column if there are several."""
    open_axes = [f"{axis}={label}" for axis, label in group.items() if axis not in fixed and len(study.axes[axis]) > 1]
    return ", ".join([*open_axes, *filter(None, [column])])
