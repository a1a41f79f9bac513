"""Decision from the numbers of a study: effects of axes, the best setting of each column, and the seeds it takes."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from edgesim.config.display_names import axis_name, display_name, level_name
from edgesim.reports.html.answer import not_worse, ranked
from edgesim.reports.html.content import AxisEffects, Contest, SeedsNeeded
from edgesim.studies.clock_intervals import SURE, ClockIntervals
from edgesim.studies.statistics import least_p, pairs_needed, told_interval
from edgesim.studies.study import SEED, Study, StudyCell
from edgesim.studies.tradeoffs import tornado
from edgesim.studies.values import axes_of, compared

CONFIGURATION = "configuration"  # the axis of runs without a study
_MOST_CONTESTS = 4


def label_of(study: Study, cell: StudyCell) -> str:
    """Return the name of a setting for readers: those of its labels, with the axis before or behind a number."""
    named = cell.group or {"study": study.name}
    return ", ".join(level(axis, label) for axis, label in named.items())


def level(axis: str, label: str) -> str:
    """Return the name of a label for readers. A configuration of runs without a study has several words."""
    if axis == CONFIGURATION:
        return ", ".join(map(display_name, label.split(", ")))
    return label if axis == "study" else level_name(axis, label)


def with_setting(frame: pd.DataFrame, study: Study) -> pd.DataFrame:
    """Return a frame with a column `setting` that joins the labels of all axes."""
    axes = axes_of(frame)
    rows = zip(*(frame[axis].astype(str) for axis in axes), strict=True)
    labels = [dict(zip(axes, row, strict=True)) for row in rows] if axes else [{} for _ in range(len(frame))]
    settings = [label_of(study, StudyCell(each, ())) for each in labels]
    return frame.assign(setting=settings)


@dataclass(frozen=True)
class ComparedSettings:
    """Values of a study, their summary with middles, and the better direction of each column (None: not known)."""

    study: Study
    values: pd.DataFrame
    summary: pd.DataFrame
    groups: Mapping[str, Mapping[str, str]]  # setting -> labels
    lower: Mapping[str, bool | None]

    def against(self, setting: str, column: str, among: Sequence[str] = ()) -> pd.DataFrame:
        """Return all settings, or those `among`, compared with one. low and high are those of `told_interval`."""
        values = with_setting(self.values, self.study)
        kept = self.values[values["setting"].isin(among)] if among else self.values
        rows = with_setting(compared(kept, self.groups[setting], column), self.study)
        ends = [told_interval(row, row["pairs"]) for row in rows.to_dict("records")]
        return rows.assign(low=[end.low for end in ends], high=[end.high for end in ends])

    def contest(self, column: str, among: Sequence[str] = ()) -> Contest:
        """Return the ranking of all settings, or of those `among`, in a column with a known direction."""
        lower = bool(self.lower[column])
        kept = self.summary[self.summary["setting"].isin(among)] if among else self.summary
        ranking = ranked(kept, column, lower)
        return Contest(
            of=column,
            lower=lower,
            ranking=ranking,
            against=self.against(ranking["setting"].iloc[0], column, among),
        )

    def contests(self) -> list[Contest]:
        """Return the contests in the first columns, one for each quantity. Columns that no run reached come last."""
        known = {name: self.summary["middle"][self.summary["column"] == name].map(math.isfinite) for name in self.lower}
        until = any("@" in name for name in self.lower)
        found: list[Contest] = []
        seen: set[str] = set()
        for name in sorted(self.lower, key=lambda name: (until and "@" not in name, not known[name].any())):
            quantity = name.partition("@")[0].removeprefix("best_")
            if self.lower[name] is None or quantity in seen or len(found) == _MOST_CONTESTS:
                continue
            equal = self.summary["middle"][self.summary["column"] == name].nunique(dropna=False) == 1
            if len(self.groups) > 1 and equal and known[name].any():
                continue
            seen.add(quantity)
            found.append(self.contest(name))
        return found

    def choice(self, contests: Sequence[Contest], needed: int) -> list[Contest]:
        """Return the contests that lead to a choice, each among the settings that the one before did not tell apart.

        They end with one setting, or with the last column of the kind of the first: until a target, or at the end.
        """
        rounds = list(contests[:1])
        for contest in contests[1:]:
            left = not_worse(rounds[-1], needed)
            if len(left) < 2:
                break
            if ("@" in contest.of) == ("@" in rounds[0].of):
                rounds.append(self.contest(contest.of, left))
        return rounds

    def effects(self, column: str, base: str, against_base: pd.DataFrame) -> AxisEffects | None:
        """Return the effects of the axes on a column from a base setting, in the order of `tornado`.

        `against_base`: all settings compared with the base. None for fewer than two axes that vary, or if the column
        has no number at the base.
        """
        group = self.groups[base]
        at = self.summary[(self.summary["setting"] == base) & (self.summary["column"] == column)]["middle"].iloc[0]
        found = tornado(self.values, column, group)
        if found["axis"].nunique() < 2 or not math.isfinite(at):
            return None
        settings = [
            label_of(self.study, StudyCell({**group, row["axis"]: row["label"]}, ()))
            for row in found.to_dict("records")
        ]
        largest = found.assign(setting=settings, size=found["difference"].abs())
        largest = largest.sort_values("size", ascending=False, kind="stable").drop_duplicates("axis")
        first, second = (largest[largest["axis"] == axis] for axis in list(dict.fromkeys(found["axis"]))[:2])
        alike = False
        if first["difference"].iloc[0] * second["difference"].iloc[0] > 0:
            pair = [first["setting"].iloc[0], second["setting"].iloc[0]]
            [apart] = self.against(pair[1], column, pair).to_dict("records")
            alike = bool(apart["low"] * apart["high"] <= 0)
        of_base = against_base.set_index("setting")[["ties", "p_holm"]]
        axes = axes_of(self.values)
        shown = [
            {
                **row,
                **of_base.loc[setting].to_dict(),
                "setting": setting,
                "axis": axis_name(row["axis"]),
                "label": level(row["axis"], row["label"]),
                "base": level(row["axis"], group[row["axis"]]),
                "others": [axis_name(axis) for axis in axes if axis != row["axis"] and axis in set(found["axis"])],
            }
            for row, setting in zip(found.to_dict("records"), settings, strict=True)
        ]
        lower = bool(self.lower[column])
        return AxisEffects(of=column, lower=lower, base=base, at_base=at, rows=pd.DataFrame(shown), alike=alike)


def with_order(contest: Contest, groups: Mapping[str, Mapping[str, str]], drawn: ClockIntervals) -> Contest:
    """Return a contest with the share of draws in which the best is ahead of the next."""
    if len(contest.ranking) < 2:
        return contest
    best, rival = contest.ranking["setting"].iloc[:2]
    middles = contest.ranking["middle"].iloc[:2]
    one, other = (list(groups[label].values()) for label in (best, rival))
    share = drawn.order_holds(one, other, contest.of, float(middles.iloc[0] - middles.iloc[1]))
    if math.isnan(share):
        return contest
    return replace(contest, order=drawn.order_in_words(best, rival, share), order_is_sure=share >= SURE)


def seeds_needed(study: Study, against_base: pd.DataFrame, command: str) -> SeedsNeeded:
    """Return the number of seeds that can confirm a difference. `against_base`: see `ComparedSettings.effects`.

    `command`: the command line that makes the runs, "edgesim study run FILE --size SIZE ..." for a study.
    """
    pairs = int(against_base["pairs"].min()) if len(against_base) else 1
    tests = max(1, len(against_base))
    needed = pairs_needed(tests)
    words, more = shlex.split(command), ""
    if CONFIGURATION not in study.axes and words[:3] == ["edgesim", "study", "run"] and "--size" in words:
        place = words.index("--size") + 1
        enough = (size for size in study.sizes if len({cell.labels[SEED] for cell in study.cells(size)}) >= needed)
        if SEED in study.axes and (size := next(enough, None)):
            more = f"`{shlex.join([*words[:place], size])}`"
        else:
            seeds = ", ".join(map(str, range(1, needed + 1)))
            more = f"write `seed = [{seeds}]` into {words[3]}, then `{shlex.join(words[: place + 1])}`"
    least = min(1.0, tests * least_p(pairs)) if pairs else 1.0
    return SeedsNeeded(pairs=pairs, tests=tests, least_p=least, needed=needed, command=more)
