"""Judges claims by results: reproduced, refuted, undecided, or not run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from edgesim.reports.load import Run
from edgesim.studies.claims.claim import (
    ELSEWHERE,
    Claim,
    ClaimsFile,
    DifferenceRule,
    NumberRule,
    OrderRule,
    PairRule,
    RatioRule,
    RecordedResult,
    Smaller,
    fitting,
    load_claims,
    results_of,
)
from edgesim.studies.column import parse_column
from edgesim.studies.runs import Planned, plan
from edgesim.studies.statistics import Interval, compare, student_interval
from edgesim.studies.study import SEED, Study, StudyCell, as_label, load_study
from edgesim.studies.values import axes_of, readings_of, values_of


class ClaimVerdict(StrEnum):
    """Verdict of runs on one effect, or on all effects of a claim, from the most to the least favourable.

    The whole interval agrees with the claim (REPRODUCED) or disagrees (REFUTED). Otherwise the mean decides: it lies
    within the tolerance (WITHIN), has the claimed order (ORDER), or neither (UNDECIDED).
    """

    REPRODUCED = "reproduced"
    WITHIN = "within on the mean"
    ORDER = "same order"
    UNDECIDED = "undecided"
    REFUTED = "refuted"


_AT_LEAST, _AT_MOST, _UNKNOWN = "at least", "at most", "not known, cut to"


class ClaimEffect(NamedTuple):
    """One number or one pair of a claim, with its verdict.

    about: labels. value: mean, difference or ratio over the seeds with the labels `seeds`. low, high: its 95 %
    interval, NaN if there is none. claimed: the published number, NaN if only an order was published. bound: "" or, if
    some runs ended before they reached the target, how the true value relates to this one.
    """

    about: str
    seeds: tuple[str, ...]
    value: float
    low: float
    high: float
    claimed: float
    bound: str
    verdict: ClaimVerdict


class Judgement(NamedTuple):
    """Effects that were run, the number of all effects (`of`), and the verdict; None if nothing was run.

    `together`: the mean over the numbers of a claim, each as a share of the published one. If all numbers are within a
    tolerance, so is this mean, and it varies less than they do. None if it cannot be computed. `learned`: some number
    depends on training.
    """

    effects: Sequence[ClaimEffect]
    of: int
    verdict: ClaimVerdict | None
    together: ClaimEffect | None = None
    learned: bool = True

    @property
    def as_claimed(self) -> int:
        """Number of effects that agree with the claim, at least on the mean."""
        return sum(each.verdict in _AGREES for each in self.effects)

    @property
    def few(self) -> str:
        """Words for runs that give no interval over seeds, "" if all numbers have more than one seed."""
        told = {each.seeds for each in self.effects if each.seeds != ("",)}  # other programs may need no seed
        if any(len(seeds) == 1 and "-" in seeds[0] for seeds in told):
            return "mean of seeds alone"
        if not any(len(seeds) == 1 for seeds in told):
            return ""
        return "one seed" if self.learned else "one run without training"


_AGREES = (ClaimVerdict.REPRODUCED, ClaimVerdict.WITHIN, ClaimVerdict.ORDER)


def judge(claim: Claim, study: Study, size: str, values: pd.DataFrame) -> Judgement:
    """Judge a claim by a table from `values_of` with its columns. `cells_for` gives the cells of the table."""
    rule = claim.rule
    assert rule is not None, "a claim with a study has a rule"
    groups = {tuple(cell.group.items()): cell.group for cell in study.cells(size)}.values()
    if isinstance(rule, NumberRule):
        cells = [(group, name) for group in groups if _is_meant(group, rule, study) for name in rule.columns]
        effects = [_number(rule, study, values, *each) for each in cells if _claimed(rule, study, *each) is not None]
    else:
        known = [dict(group) for group in groups if not _is_left_out(group, rule)]
        first = fitting(rule.first, study)
        effects = [
            _pair(rule, values, group, other)
            for group in known
            if _is_meant(group, rule, study) and first.items() <= group.items()
            for side in rule.others
            if (other := {**group, **fitting(side, study)}) in known
        ]
    found = [each for each in effects if each is not None]
    learned = any(parse_column(name).is_learned for name in rule.columns)
    together = _together(rule, study, values, cells) if isinstance(rule, NumberRule) and len(found) > 1 else None
    return _judgement(found, len(effects), learned, together)


def _judgement(found: Sequence[ClaimEffect], of: int, learned: bool, together: ClaimEffect | None = None) -> Judgement:
    """Return the judgement that follows from effects: the least favourable verdict."""
    told = [each.verdict for each in found]
    if together is not None and together.verdict == ClaimVerdict.REFUTED:
        told.append(ClaimVerdict.REFUTED)
    return Judgement(found, of, max(told, key=list(ClaimVerdict).index, default=None), together, learned)


def cells_for(claim: Claim, study: Study, size: str) -> list[StudyCell]:
    """Return the cells of a size whose runs the claim is judged by."""
    rule = claim.rule
    if rule is None:
        return []
    cells = [cell for cell in study.cells(size) if _is_meant(cell.group, rule, study)]
    if isinstance(rule, NumberRule):
        if rule.within is None or rule.value is not None:
            return cells
        return [
            each for each in cells if any(study.published_for(each.group, name) is not None for name in rule.columns)
        ]
    sides = [fitting(side, study) for side in (rule.first, *rule.others)]
    sides += [{**side, **rule.gap_to} for side in sides if rule.gap_to]
    return [cell for cell in cells if any(side.items() <= cell.labels.items() for side in sides)]


def _is_meant(group: Mapping[str, str], rule: NumberRule | PairRule, study: Study) -> bool:
    return fitting(rule.cell, study).items() <= group.items() and not _is_left_out(group, rule)


def _is_left_out(group: Mapping[str, str], rule: NumberRule | PairRule) -> bool:
    return bool(rule.leave_out) and rule.leave_out.items() <= group.items()


# --- numbers ----------------------------------------------------------------------------------------------------


def _number(
    rule: NumberRule, study: Study, values: pd.DataFrame, group: Mapping[str, str], column: str
) -> ClaimEffect | None:
    part = _part(values, group, column)
    if part.empty:
        return None
    reached = bool(part["observed"].all())
    words = [f"{axis}={label}" for axis, label in group.items() if axis not in rule.cell and len(study.axes[axis]) > 1]
    about = ", ".join([*words, column] if len(rule.columns) > 1 else words)
    numbers = part["value"].to_numpy(dtype=float)
    mean = float(numbers.mean())
    interval = student_interval(numbers)
    if len(numbers) == 1 and not parse_column(column).is_learned:  # one run determines a number that is not learned
        interval = Interval(mean, mean)
    if not reached:  # runs that reached the target may be the early ones; if none did, all of them are above
        low = interval.low if part["observed"].any() else mean
        interval = Interval(low, math.inf)
    claimed = _claimed(rule, study, group, column)
    assert claimed is not None, "cells without a claimed number are left out"
    verdict = _by_rule(rule, mean, interval, claimed, reached)
    bound = "" if reached else _AT_LEAST
    return ClaimEffect(about, tuple(part[SEED]), mean, *interval, claimed, bound, verdict)


def _by_rule(rule: NumberRule, value: float, interval: Interval, claimed: float, reached: bool = True) -> ClaimVerdict:
    if rule.within is not None:
        room = abs(claimed) * rule.within * (1 + 1e-9)
        return _inside(value if reached else math.inf, interval, claimed - room, claimed + room)
    side = 1 if rule.above is not None else -1
    return _beyond(side * (value - claimed), *_turned(Interval(*interval), side, claimed))


def _together(
    rule: NumberRule, study: Study, values: pd.DataFrame, cells: Sequence[tuple[Mapping[str, str], str]]
) -> ClaimEffect | None:
    """Return the mean over numbers of their shares of the published ones, seed by seed.

    None unless all numbers were reached by the same two or more seeds.
    """
    shares = []
    for group, column in cells:
        part, claimed = _part(values, group, column).set_index(SEED), _claimed(rule, study, group, column)
        if claimed and not part.empty:
            shares.append((part["value"] / claimed).where(part["observed"]))
    table = pd.concat(shares, axis=1) if shares and rule.within is not None else pd.DataFrame()
    if len(table) < 2 or table.isna().to_numpy().any():
        return None
    means = table.mean(axis=1).to_numpy(dtype=float)
    interval, mean, room = student_interval(means), float(means.mean()), float(rule.within or 0) * (1 + 1e-9)
    verdict = _inside(mean, interval, 1 - room, 1 + room)
    return ClaimEffect("all together", tuple(table.index), mean, *interval, 1.0, "", verdict)


def _claimed(rule: NumberRule, study: Study, group: Mapping[str, str], column: str) -> float | None:
    for told in (rule.value, rule.above, rule.below):
        if told is not None:
            return told
    return study.published_for(group, column)


# --- pairs ------------------------------------------------------------------------------------------------------


def _pair(
    rule: OrderRule | DifferenceRule | RatioRule,
    values: pd.DataFrame,
    group: Mapping[str, str],
    other: Mapping[str, str],
) -> ClaimEffect | None:
    one, two = (
        _compared(rule, values, side, column) for side, column in zip((group, other), rule.columns, strict=True)
    )
    seeds = [seed for seed in one.index if seed in two.index]
    if not seeds:
        return None
    sides = readings_of(one.loc[seeds]), readings_of(two.loc[seeds])
    found = compare(*sides)
    if isinstance(rule, RatioRule):
        value, interval = found.ratio, Interval(found.ratio_low, found.ratio_high)
    else:
        value, interval = found.difference, Interval(found.t_low, found.t_high)
    bound = ""
    if not math.isnan(found.restricted_to):  # beyond it one side, or both, were cut
        cut = [bool((~side.observed | (side.values > found.restricted_to)).any()) for side in sides]
        bound = _UNKNOWN if rule.gap_to or all(cut) else _AT_LEAST if cut[0] else _AT_MOST
    if len(seeds) == 1 and not bound and not any(parse_column(column).is_learned for column in rule.columns):
        interval = Interval(value, value)  # as of numbers
    shared = [f"{axis}={label}" for axis, label in group.items() if other[axis] == label and axis not in rule.cell]
    names = [
        " ".join(label for axis, label in side.items() if axis in rule.first) or column
        for side, column in zip((group, other), rule.columns, strict=True)
    ]
    about = ", ".join([*shared, f"{names[0]} against {names[1]}"])
    claimed = math.nan if isinstance(rule, OrderRule) else rule.value
    if isinstance(rule, OrderRule):
        side = 1 if rule.first_is == "higher" else -1
        verdict = _beyond(side * value, *_turned(interval, side, 0.0))
    elif bound:  # the size of a difference of censored runs is unknown, only its sign
        verdict = ClaimVerdict.UNDECIDED
    else:
        room = abs(claimed) * rule.within if isinstance(rule, RatioRule) else rule.within
        verdict = _inside(value, interval, claimed - room, claimed + room)
    return ClaimEffect(about, tuple(seeds), value, *interval, claimed, bound, verdict)


def _compared(rule: PairRule, values: pd.DataFrame, side: Mapping[str, str], column: str) -> pd.DataFrame:
    """Return the numbers of one side by seed: those of its cell, or how far they are below `gap_to`."""
    part = _part(values, side, column).set_index(SEED)
    if not rule.gap_to:
        return part
    bound = _part(values, {**side, **rule.gap_to}, column).set_index(SEED)
    part = part.loc[[seed for seed in part.index if seed in bound.index]]
    beside = bound.loc[part.index]
    both = beside["observed"] & part["observed"]
    return part.assign(value=beside["value"] - part["value"], observed=both, never=False)


def _turned(interval: Interval, side: int, zero: float) -> Interval:
    """Return an interval relative to `zero`, with its sign turned so that the claimed side is above 0."""
    ends = sorted(side * (each - zero) for each in interval)
    return Interval(*ends)


# --- both -------------------------------------------------------------------------------------------------------


def _beyond(value: float, low: float, high: float) -> ClaimVerdict:
    """Return the verdict on a claim that a number is above 0. low, high: its interval, NaN if there is none."""
    if low > 0:
        return ClaimVerdict.REPRODUCED
    if high < 0:
        return ClaimVerdict.REFUTED
    return ClaimVerdict.ORDER if value > 0 else ClaimVerdict.UNDECIDED


def _inside(value: float, interval: Interval, low: float, high: float) -> ClaimVerdict:
    """Return the verdict on a claim that a number lies between `low` and `high`."""
    if low <= interval.low and interval.high <= high:
        return ClaimVerdict.REPRODUCED
    if interval.high < low or interval.low > high:
        return ClaimVerdict.REFUTED
    return ClaimVerdict.WITHIN if low <= value <= high else ClaimVerdict.UNDECIDED


def _part(values: pd.DataFrame, group: Mapping[str, str], column: str) -> pd.DataFrame:
    """Return the rows of a group and column, without rows that are NaN."""
    chosen = (values["column"] == column) & values["value"].notna()
    for axis in axes_of(values):
        chosen &= values[axis] == as_label(group[axis])
    return values[chosen]


# (study file, size) -> name of a cell -> the cell and its run
Runs = dict[tuple[Path, str], Mapping[str, tuple[Planned, Run | None]]]

NOTHING = Judgement((), 0, None)  # judgement of a claim that was not run


@dataclass(frozen=True)
class Judged:
    """A claim, the study that it was judged by, and the judgement.

    `smaller`: the study is on a smaller scale than the paper. `made`: revisions and dates of the run folders used.
    `recorded`: the same of recorded results, whose run folders are gone. `hours`: estimated hours of the runs in one
    process of this host, None if unknown. `place`: the number of the chosen reading, from 1; 0 if the paper leaves one
    reading. `others`: the judgements of the other readings, in their order.
    """

    claim: Claim
    test: Smaller | None = None
    found: Judgement = NOTHING
    smaller: bool = False
    made: tuple[str, ...] = ()
    recorded: tuple[str, ...] = ()
    hours: float | None = None
    place: int = 0
    others: tuple[Judgement, ...] = ()


class Chapter(NamedTuple):
    """A paper with its judged claims. `folder`: the folder to which paths of studies are relative."""

    file: ClaimsFile
    folder: Path
    claims: Sequence[Judged]


class Court:
    """Judges claims. `runs`: folder with a folder for each study. `results`: recorded numbers of runs that are gone."""

    def __init__(self, runs: Path, results: Sequence[RecordedResult] = ()) -> None:
        self._folder = runs
        self._results = results
        self._study = cache(load_study)
        self._runs: Runs = {}
        self._host_s: dict[Path, float | None] = {}  # estimated seconds of runs

    def chapters(self, files: Iterable[Path], hours: bool = False) -> list[Chapter]:
        """Return the claims of files with their judgements. `hours`: also estimate the hours of runs that are missing.

        Raises ConfigError for an invalid file, before anything is judged.
        """
        loaded = [(path, load_claims(path, self._study)) for path in files]
        return [
            Chapter(file, path.parent, [self._judged(claim, path.parent, hours) for claim in file.claims])
            for path, file in loaded
        ]

    def results(self, files: Iterable[Path]) -> list[RecordedResult]:
        """Return the numbers of all run folders that claims are judged by, and the other recorded results."""
        found = {each.key: each for each in self._results}
        for path in files:
            for claim in load_claims(path, self._study).claims:
                others = [claim.under(each) for each in claim.readings if not each.is_chosen]
                for reading, test in ((each, test) for each in (claim, *others) for test in each.tests):
                    fresh = self._fresh(reading.by(test), path.parent / test.study, test.size)
                    found |= {each.key: each for each in fresh}
        return list(found.values())

    def _judged(self, claim: Claim, folder: Path, hours: bool) -> Judged:
        judged = self._under_one(claim, folder, hours)
        if not claim.readings:
            return judged
        place = next(place for place, each in enumerate(claim.readings, 1) if each.is_chosen)
        others = tuple(
            self._under_one(claim.under(each), folder, hours=False).found
            for each in claim.readings
            if not each.is_chosen
        )
        return replace(judged, place=place, others=others)

    def _under_one(self, claim: Claim, folder: Path, hours: bool) -> Judged:
        if claim.elsewhere and claim.number:
            told = [each for each in self._results if (each.study, each.size) == (claim.id, ELSEWHERE)]
            return Judged(claim, found=_of_program(claim.number, told), recorded=_made(told))
        of = 0
        for test in claim.tests:
            file = folder / test.study
            study = self._study(file)
            tested = claim.by(test)
            fresh = {each.key: each for each in self._fresh(tested, file, test.size)}
            groups = [cell.group for cell in cells_for(tested, study, test.size)]
            columns = tested.rule.columns if tested.rule else ()
            recorded_for = (each for each in self._results if (each.study, each.size) == (file.stem, test.size))
            kept = {each.key: each for each in recorded_for if each.column in columns and each.labels in groups} | fresh
            values = values_of(study, ())  # empty, with the columns
            if kept:
                axes = axes_of(values)
                # `never` is not recorded; what a run that gave up had spent is a lower bound all the same
                rows = [
                    (*map(each.labels.get, axes), each.seed, each.column, each.value, each.observed, False)
                    for each in kept.values()
                ]
                values = pd.DataFrame(rows, columns=values.columns)
            found = judge(tested, study, test.size, values)
            of = max(of, found.of)  # a smaller study may lack some pairs of the paper
            if found.verdict is not None:
                recorded = _made([each for key, each in kept.items() if key not in fresh])
                smaller = test != claim.tests[0]
                return Judged(claim, test, found._replace(of=of), smaller, _made(fresh.values()), recorded)
        if not (hours and claim.study and not claim.needs):
            return Judged(claim)
        test = claim.tests[0]
        file = folder / test.study
        cells = cells_for(claim, self._study(file), test.size)
        planned = self._of_size(file, test.size)
        return Judged(claim, hours=self._hours([planned[cell.name][0] for cell in cells]))

    def _fresh(self, claim: Claim, file: Path, size: str) -> Iterator[RecordedResult]:
        """Yield the numbers of existing runs."""
        assert claim.rule is not None, "a claim with a study has a rule"
        for cell in cells_for(claim, self._study(file), size):
            _, run = self._of_size(file, size)[cell.name]
            if run is not None:
                yield from results_of(file.stem, size, cell, run, dict.fromkeys(claim.rule.columns))

    def _of_size(self, file: Path, size: str) -> Mapping[str, tuple[Planned, Run | None]]:
        key = file, size
        if key not in self._runs:
            planned = plan(self._study(file), file, size, (), self._folder / file.stem / size)
            self._runs[key] = {each.cell.name: (each, each.kept()) for each in planned}
        return self._runs[key]

    def _hours(self, planned: Sequence[Planned]) -> float | None:
        """Return the hours of runs; one seed is estimated for all seeds. None if they cannot be estimated here."""
        from edgesim.studies.plan import outlook

        first = {tuple(each.cell.group.items()): each for each in reversed(planned)}
        todo = [each for each in first.values() if each.folder not in self._host_s]
        for each in outlook(todo, costs=True):
            self._host_s[each.planned.folder] = each.host_s
        seconds = [self._host_s[first[tuple(each.cell.group.items())].folder] for each in planned]
        known = [each for each in seconds if each is not None]
        return sum(known) / 3600 if known and len(known) == len(seconds) else None


def _of_program(rule: NumberRule, told: Sequence[RecordedResult]) -> Judgement:
    """Judge by numbers of a program outside studies.

    Columns NAME.low and NAME.high are the interval of NAME. Without them a number of a seed has none, and a number
    without a seed is exact.
    """
    known = {(each.cell, each.column): each.value for each in told}
    found = []
    for each in (one for name in rule.columns for one in told if one.column == name):
        lone = math.nan if each.seed else each.value
        ends = Interval(*(known.get((each.cell, f"{each.column}.{end}"), lone) for end in ("low", "high")))
        claimed = next(number for number in (rule.value, rule.above, rule.below) if number is not None)
        about = ", ".join(filter(None, [each.cell, each.column if len(rule.columns) > 1 else ""]))
        verdict = _by_rule(rule, each.value, ends, claimed)
        found.append(ClaimEffect(about, (each.seed,), each.value, *ends, claimed, "", verdict))
    return _judgement(found, len(found), learned=any(each.seed for each in told))


def _made(results: Iterable[RecordedResult]) -> tuple[str, ...]:
    """Return the revisions, dates and pages of results, each combination once."""
    texts = (", ".join(filter(None, [each.revision, each.date, each.source])) for each in results)
    return tuple(dict.fromkeys(texts))
