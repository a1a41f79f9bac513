"""The answer of a report: the effect of each axis or the best setting, its certainty, tiles, and grids of numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import pandas as pd

from edgesim.reports.format import count
from edgesim.reports.html.content import AxisEffects, Bar, Contest, Findings, FirstScreen, Grid, SeedsNeeded, Tile
from edgesim.reports.html.words import (
    ALPHA,
    HATCHED,
    common,
    interval,
    is_accuracy,
    middle,
    number,
    percent,
    target_of,
    unit_of,
    words_of,
)

# A difference is confirmed by test and interval, has an interval without 0 but too few seeds for the test, may be luck,
# or is 0 in every seed.
Certainty: TypeAlias = Literal["confirmed", "few seeds", "luck", "equal"]
_Row: TypeAlias = Mapping[Any, Any]
_VERBS = {"sim_time_s": "takes", "cost": "costs", "co2e_g": "emits", "traffic_bytes": "sends", "rounds": "needs"}
_MOST = {"settings": 4, "labels": 4, "cells": 40, "columns": 4, "contests": 3}  # that are named or drawn
_EVEN = 0.05  # relative; an effect that differs by less between the labels of the other axes is the same for all
_COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def ranked(summary: pd.DataFrame, column: str, lower: bool) -> pd.DataFrame:
    """Return the rows of a summary of one column, the best first. Settings without a known number come last.

    Columns until a target are sorted by the middle, then by the share of runs that reached it, then by the restricted
    mean, as a setting whose median is not known reaches it in less than half of its runs.
    """
    rows = summary[summary["column"] == column]
    middles = [middle(row)[0] for row in rows.to_dict("records")]
    known = rows.assign(_middle=[value if math.isfinite(value) else math.nan for value in middles])
    keys, ascending = ["_middle"], [lower]
    if "@" in column:
        keys, ascending = [*keys, "share", "restricted_mean"], [*ascending, False, True]
    return known.sort_values(keys, ascending=ascending, na_position="last", kind="stable").drop(columns="_middle")


def certainty(found: _Row, needed: int) -> Certainty:
    """Return the certainty of a difference. `found`: a row as in `Findings.compared`. `needed`: see `SeedsNeeded`."""
    pairs = int(found["pairs"])
    if pairs and found["ties"] == pairs:
        return "equal"
    if pairs > 1 and not found["low"] * found["high"] > 0:
        return "luck"
    if pairs < needed:
        return "few seeds"
    return "confirmed" if found["p_holm"] < ALPHA else "luck"


def not_worse(contest: Contest, needed: int) -> list[str]:
    """Return the best setting of a contest, and those whose distance from it may be luck; none if none has a number."""
    best = _rows(contest)[0]
    if _is_unknown(best):
        return []
    known = {row["setting"] for row in _rows(contest) if not _is_unknown(row)}
    rest = contest.against.to_dict("records")
    near = [row["setting"] for row in rest if certainty(row, needed) in ("luck", "equal") and row["setting"] in known]
    return [best["setting"], *near]


def answer(findings: Findings) -> FirstScreen:
    """Return the first screen of a report."""
    told = _Told(findings)
    first, *others = told.verdict()
    return FirstScreen(
        first=first,
        told=[*others, *told.unreached()],
        confidence=list(told.confidence()),
        tiles=[told.tile(contest) for contest in findings.contests[: _MOST["contests"]]],
        grids=list(grids(findings)),
    )


class _Told:
    """Sentences about the findings of a report. Those of `verdict` begin with the one in bold."""

    def __init__(self, findings: Findings) -> None:
        self.findings = findings

    # --- numbers ---------------------------------------------------------------------------------------------------

    def amount(self, column: str, value: float, like: float | None = None) -> str:
        """Return a number of a column with its unit, for a difference of accuracies in points."""
        return number(column, value, like, self.findings.currency)

    def moved(self, column: str, found: _Row, like: float | None = None) -> str:
        """Return the size of a difference. It has the unit of `like` unless it is too small for that."""
        size = abs(float(found["difference"]))
        if is_accuracy(column):
            return f"{100 * size:.1f}\u00a0points"
        small = like is not None and size < unit_of(column, like).size
        return self.amount(column, size, None if small else like)

    def within(self, column: str, found: _Row, like: float | None = None) -> str:
        """Return the interval of the size of a difference in brackets, with the sign of the words around it, or ""."""
        low, high = sorted(float(found[end]) * (1 if found["difference"] > 0 else -1) for end in ("low", "high"))
        if not math.isfinite(low + high) or low == high:
            return ""
        size = abs(float(found["difference"]))
        small = like is not None and size < unit_of(column, like).size
        ends = interval(column, low, high, size if like is None or small else like, self.findings.currency)
        ends = ends.removesuffix("%") + "points" if is_accuracy(column) else ends
        return f" [{ends}]" if ends else ""

    def around(self, column: str, row: _Row) -> str:
        """Return the middle of a row of a summary with its interval in brackets."""
        value, low, high = middle(row)
        several = row["runs"] > 1 and low < high
        known = interval(column, low, high, value, self.findings.currency) if several else ""
        return self.amount(column, value) + (f" [{known}]" if known else "")

    def gap(self, column: str, found: _Row) -> str:
        """Return a difference in words, "takes 12.1 min (26 %) less", for the setting of the row against the other."""
        less = found["difference"] < 0
        share = ""
        if not is_accuracy(column) and math.isfinite(found["ratio"]) and found["ratio"] > 0:
            share = f" ({abs(found['ratio'] - 1):.0%})".replace("%", "\u00a0%")
        return f"{_verb(column)} {self.moved(column, found)}{share} {'less' if less else 'more'}"

    # --- the verdict -----------------------------------------------------------------------------------------------

    def verdict(self) -> Iterator[str]:
        """Yield the sentences of the verdict, the one in bold first."""
        findings = self.findings
        if not findings.contests:
            yield f"{count(len(findings.settings), 'configuration')}, and no number says which is better."
            return
        contest = findings.contests[0]
        rows, column = _rows(contest), contest.of
        goal = target_of(column)
        if _is_unknown(rows[0]) and goal is None:
            yield f"Nothing is known of {words_of(column)}."
        elif _is_unknown(rows[0]):
            who = "No configuration reached" if len(rows) > 1 else f"{_capital(rows[0]['setting'])} did not reach"
            yield f"{who} {percent(goal or 0.0)} test accuracy in most of its runs."
            gains = [each for each in findings.contests if not each.lower and not _is_unknown(_rows(each)[0])]
            for each in gains[:1]:
                best = _rows(each)[0]
                yield f"{_capital(best['setting'])} came closest: {words_of(each.of)} {self.around(each.of, best)}."
        elif len(rows) == 1:
            yield f"{_capital(self._reaches(column, rows[0]['setting'], rows[0]))}."
            others = [(each.of, _rows(each)[0]) for each in findings.contests[1 : _MOST["contests"]]]
            for of, row in others:
                if not _is_unknown(row):
                    yield f"{_capital(words_of(of))}: {self.around(of, row)}."
        elif findings.effects is not None:
            yield from self._of_axes(findings.effects)
        else:
            yield from self._of_one_axis()

    def _reaches(self, column: str, setting: str, row: _Row) -> str:
        goal, known = target_of(column), self.around(column, row)
        if goal is not None and column.startswith("sim_time_s@"):
            return f"{setting} {_agree(setting, 'reaches')} {percent(goal)} in {known}"
        if is_accuracy(column):
            return f"{setting} {_agree(setting, 'has')} {words_of(column)} {known}"
        until = f" until {percent(goal)}" if goal is not None else ""
        return f"{setting} {_agree(setting, _verb(column))} {known}{until}"

    def _of_axes(self, effects: AxisEffects) -> Iterator[str]:
        """Yield the order of the axes, a sentence on the effect of each, and the best setting."""
        axes = list(dict.fromkeys(effects.rows["axis"]))
        sure = [axis for axis in axes if any(self._matters(row) for row in _of(effects.rows, axis))]
        if not sure:
            yield "No axis has an effect beyond luck."
        elif effects.alike and len(sure) > 1:
            yield f"{_capital(sure[0])} and {sure[1]} matter alike."
        else:
            yield f"{_capital(sure[0])} first{''.join(f', then {axis}' for axis in sure[1:])}."
        for axis in axes:
            yield self._effect(effects, axis)
        contest = self.findings.choice[0]
        best, *near = not_worse(contest, self.findings.seeds.needed)
        row = next(row for row in _rows(contest) if row["setting"] == best)
        close = f". {_capital(_listed(near))} may be as good" if near else ""
        yield f"Of all, {self._reaches(contest.of, best, row)}{close}."

    def _matters(self, row: _Row) -> bool:
        return certainty(row, self.findings.seeds.needed) in ("confirmed", "few seeds")

    def _effect(self, effects: AxisEffects, axis: str) -> str:
        """Return a sentence on the labels of an axis: "Raspberry Pi 5 instead of Raspberry Pi 4 saves 9.3 min ..."."""
        rows, column = _of(effects.rows, axis), effects.of
        largest = sorted(rows, key=lambda row: (not self._matters(row), -abs(row["difference"])))[: _MOST["labels"]]
        told = [row for row in largest if self._matters(row)] or largest
        shown = [row for row in rows if row in told]
        luck = [row["label"] for row in rows if row not in shown and not self._matters(row)]
        clauses: list[str] = []
        for row in shown:
            instead = f" instead of {row['base']}" if row is shown[0] else ""
            first = axis == effects.rows["axis"].iloc[0] and not clauses and not is_accuracy(column)
            of = f" of {self.amount(column, effects.at_base)}" if first else ""
            clauses.append(f"{row['label']}{instead} {self._change(effects, row, of)}{self._elsewhere(effects, row)}")
        same = all(_is_even(row) for row in shown) and any(row["difference"] for row in shown) and shown[0]["others"]
        everywhere = f", with any {_listed(shown[0]['others'])}" if same else ""
        others = f" With {_listed(luck)} the difference may be luck." if luck else ""
        return f"{_capital('; '.join(clauses) if len(clauses) > 2 else ' and '.join(clauses))}{everywhere}.{others}"

    def _change(self, effects: AxisEffects, row: _Row, of: str) -> str:
        column, like = effects.of, effects.at_base
        if not math.isfinite(row["difference"]):
            return "has no common seed with it"
        if certainty(row, self.findings.seeds.needed) == "equal":
            return "changes nothing"
        if row["difference"] == 0:
            return "changes nothing on average"
        better = (row["difference"] < 0) == effects.lower
        verb = ("saves" if better else _verb(column)) if effects.lower else ("gains" if better else "loses")
        more = " more" if effects.lower and not better else ""
        luck = ", which may be luck" if not self._matters(row) else ""
        cut = ""
        if math.isfinite(row["restricted_to"]):
            cut = f", counting at most {self.amount(column, row['restricted_to'])} a run"
        said = f"{self.moved(column, row, like)}{more}{of if better else ''}{self.within(column, row, like)}"
        return f"{_agree(row['label'], verb)} {said}{cut}{luck}"

    def _elsewhere(self, effects: AxisEffects, row: _Row) -> str:
        """Return in brackets how an effect differs between the labels of the other axes, or "" if it does not."""
        if _is_even(row) or not math.isfinite(row["least"]):
            return ""
        ends = sorted((row["least"], row["most"]), key=lambda end: end * row["difference"])
        sizes = [self.moved(effects.of, {"difference": end}, effects.at_base) for end in ends]
        if ends[0] * ends[1] < 0:
            return f" (but up to {sizes[0]} the other way with another {_listed(row['others'], 'or')})"
        return f" ({sizes[0]} to {sizes[1]}, depending on {_listed(row['others'])})"

    def _of_one_axis(self) -> Iterator[str]:
        """Yield the best setting, and why: the first column that tells it from all others, or that none does."""
        rounds = [(contest, not_worse(contest, self.findings.seeds.needed)) for contest in self.findings.choice]
        contest, left = rounds[-1]
        alike: dict[frozenset[str], list[str]] = {}  # settings -> columns that do not tell them apart
        for each, near in rounds:
            if len(near) > 1:
                alike.setdefault(frozenset(near), []).append(words_of(each.of))
        order = self.findings.settings.index
        reasons = [
            f"{_capital(_listed(columns))} {'does' if len(columns) == 1 else 'do'} not tell "
            f"{_listed(sorted(near, key=order), most=_MOST['settings'])} apart."
            for near, columns in alike.items()
        ]
        if len(left) == 1:
            yield f"{_capital(left[0])}."
            yield from reasons
            yield self._lead(contest)
        else:
            base = self.findings.baseline
            open_ = ", until more seeds say otherwise"
            yield f"{_capital(base)}{open_}." if base in left else f"{_capital(_listed(left, 'or'))}."
            yield from reasons
        yield from self._against_base(rounds[0][1])

    def _lead(self, contest: Contest) -> str:
        """Return a sentence on the number of the best setting, and its lead over the next."""
        best, *others = _rows(contest)
        said = _capital(self._reaches(contest.of, best["setting"], best))
        if not others:
            return f"{said}."
        rival = others[0]
        if _is_unknown(rival):
            return f"{said}. The others did not reach it in most of their runs."
        ahead = _ahead(contest, rival["setting"])
        if not int(ahead["pairs"]):
            return f"{said}, the next, {rival['setting']}, {self.amount(contest.of, middle(rival)[0])}."
        gap = self.gap(contest.of, ahead).replace(f"{_verb(contest.of)} ", "")
        return f"{said}, {gap} than {rival['setting']}{self.within(contest.of, ahead)}."

    def _against_base(self, near: Sequence[str]) -> Iterator[str]:
        """Yield a sentence on each good setting if the baseline is worse, else on each worse than the baseline."""
        contest, base = self.findings.contests[0], self.findings.baseline
        compared = self.findings.compared[self.findings.compared["column"] == contest.of]
        next_best = _rows(contest)[1]["setting"] if len(near) == 1 else ""
        for found in compared.to_dict("records"):
            told = (found["setting"] in near) != (base in near) and next_best not in (base, found["setting"])
            if told and math.isfinite(found["difference"]) and self._matters(found):
                gap = _agree(found["setting"], self.gap(contest.of, found))
                yield f"{_capital(found['setting'])} {gap} than {base}{self.within(contest.of, found)}."

    def unreached(self) -> Iterator[str]:
        """Yield a sentence on runs that ended before the target of the first column."""
        for contest in self.findings.contests[:1]:
            rows = [row for row in _rows(contest) if "@" in contest.of and row["reached"] < row["runs"]]
            if rows and len(_rows(contest)) > 1:
                those = [f"{row['setting']} in {int(row['reached'])} of {int(row['runs'])} runs" for row in rows]
                yield f"Some runs did not reach the target. It was reached by {_listed(those, most=_MOST['settings'])}."

    # --- confidence ------------------------------------------------------------------------------------------------

    def confidence(self) -> Iterator[str]:
        """Yield a sentence on what the seeds show, and one on each clock that needs care."""
        findings = self.findings
        if findings.contests and not _is_unknown(_rows(findings.contests[0])[0]):
            yield self._seeds(findings.contests[0], findings.seeds)
            if findings.contests[0].order:
                yield f"{_capital(findings.contests[0].order)}."
        named = [level for levels in findings.levels.values() for level in levels if level.caution]
        for caution in dict.fromkeys(level.caution for level in named):
            who = _listed(list(dict.fromkeys(level.name for level in named if level.caution == caution)))
            yield f"{who}: {caution}."

    def _seeds(self, contest: Contest, seeds: SeedsNeeded) -> str:
        rows, findings = _rows(contest), self.findings
        runs = min(int(row["runs"]) for row in rows)
        if runs > 1 and all(middle(row)[1] == middle(row)[2] for row in rows):
            return f"All {runs} seeds give the same numbers, so luck plays no part."
        many = _capital(_counted(seeds.pairs, "seed"))
        if len(rows) == 1:
            return "One run: another seed gives another number." if runs == 1 else f"Brackets: 95 % over {runs} seeds."
        command = f": {seeds.command}" if seeds.command else ""
        more = f" {_capital(_counted(seeds.needed))} can{command}."
        if seeds.pairs < 2:
            return f"{many} cannot tell a difference from luck.{more}"
        test = f"Wilcoxon's paired test, Holm-corrected for {count(seeds.tests, 'comparison')}"
        if seeds.pairs < seeds.needed:
            bound = f"no p-value can be below {seeds.least_p:.2g}" if seeds.least_p < 1 else "every p-value is 1"
            return f"{many} cannot confirm any difference: {bound} ({test}).{more}"
        clauses = []
        decided = [each.of for each in findings.choice[-1:] if len(not_worse(each, seeds.needed)) == 1]
        for column in dict.fromkeys([contest.of, *decided]):
            compared = findings.compared[findings.compared["column"] == column].to_dict("records")
            sure = sum(certainty(row, seeds.needed) == "confirmed" for row in compared)
            which = "all" if sure == len(compared) else f"{sure or 'none'} of"
            of = "the difference" if sure == len(compared) == 1 else f"{which} {count(len(compared), 'difference')}"
            clauses.append(f"{of} in {words_of(column)}")
        return f"{many} confirm {_listed(clauses)} from {findings.baseline} ({test}, p < {ALPHA:g})."

    # --- tiles -----------------------------------------------------------------------------------------------------

    def tile(self, contest: Contest) -> Tile:
        """Return the best setting of a contest with its number and its lead."""
        best, *others = _rows(contest)
        extreme = f"{'Least' if contest.lower else 'Highest'} " if others else ""
        title = _capital(f"{extreme}{words_of(contest.of)}")
        if _is_unknown(best):
            return Tile(title=title, value="not reached", who="", lead="in most runs of any configuration")
        value, low, high = middle(best)
        shown = self.amount(contest.of, value)
        if not others:
            ends = interval(contest.of, low, high, value, self.findings.currency) if low < high else ""
            return Tile(title=title, value=shown, who=best["setting"], lead=f"95 % interval {ends}" if ends else "")
        near = not_worse(contest, self.findings.seeds.needed)[1:]
        if near:
            lead = f"{_listed(near, most=2)} may be as good"
        elif _is_unknown(others[0]):
            lead = "the others mostly did not reach it"
        else:
            ahead = _ahead(contest, others[0]["setting"])
            gap = self.gap(contest.of, ahead).replace(f"{_verb(contest.of)} ", "")
            lead = f"{gap} than {others[0]['setting']}" if int(ahead["pairs"]) else ""
        return Tile(title=title, value=shown, who=best["setting"], lead=lead)


# --- grids ----------------------------------------------------------------------------------------------------------


def grids(findings: Findings) -> Iterator[Grid]:
    """Yield a grid over the axes for each of the first contests. The last axis, if it is short, has the columns."""
    several = {axis: names for axis, names in findings.axes.items() if len(names) > 1}
    if not 1 < len(findings.settings) <= _MOST["cells"] or not several:
        return
    short = [axis for axis in list(several)[1:] if len(several[axis]) <= _MOST["columns"]]
    across = several[short[-1]] if short else {"": ""}
    down = [axis for axis in several if not short or axis != short[-1]]
    for contest in findings.contests[: _MOST["contests"]]:
        rows = _rows(contest)
        known = [abs(middle(row)[0]) for row in rows if not _is_unknown(row)]
        best = middle(rows[0])[0]
        cells: dict[str, dict[str, Bar]] = {}
        for row in sorted(rows, key=lambda row: findings.settings.index(row["setting"])):
            value = middle(row)[0]
            there = math.isfinite(value)
            shown = number(contest.of, value, common(known), findings.currency) if there else "not reached"
            share = abs(value) / max(known) if there and max(known) else float(not there)
            bar = Bar(text=shown, share=share, open=not there, best=there and value == best)
            name = ", ".join(several[axis][str(row[axis])] for axis in down)
            cells.setdefault(name, {})[str(row[short[-1]]) if short else ""] = bar
        missed = f"{HATCHED}." if any(bar.open for bars in cells.values() for bar in bars.values()) else ""
        yield Grid(
            title=_capital(words_of(contest.of)),
            head=list(across.values()) if short else (),
            rows=[(name, [bars.get(label) for label in across]) for name, bars in cells.items()],
            hatching=missed,
        )


# --- words ----------------------------------------------------------------------------------------------------------


def _verb(column: str) -> str:
    quantity = column.partition("@")[0]
    return _VERBS.get(quantity) or ("uses" if quantity.endswith("_j") else "has")


def _agree(setting: str, said: str) -> str:
    """Return words that begin with a verb so that it fits a setting such as "5 phones", which is a plural."""
    if not re.match(r"(?!1 )\d+ [^,]*s\b", setting):
        return said
    verb, _, rest = said.partition(" ")
    plural = {"has": "have", "reaches": "reach"}.get(verb, verb.removesuffix("s"))
    return f"{plural} {rest}".rstrip()


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _counted(number: int, noun: str = "") -> str:
    said = _COUNTS[number] if number < len(_COUNTS) else str(number)
    return f"{said} {noun}{'' if number == 1 else 's'}" if noun else said


def _listed(names: Sequence[str], word: str = "and", most: int = 99) -> str:
    """Return names as a list in words. Beyond `most` the others are counted. Semicolons part names with commas."""
    shown = [*names[:most], *([f"{len(names) - most} others"] if len(names) > most + 1 else names[most:])]
    if len(shown) == 1:
        return shown[0]
    comma = "; " if any(", " in name for name in shown) else ", "
    return f"{comma.join(shown[:-1])}{';' if comma == '; ' else ''} {word} {shown[-1]}"


def _ahead(contest: Contest, rival: str) -> dict[Any, Any]:
    """Return the row of a rival of a contest as a comparison of the best with it."""
    [found] = contest.against[contest.against["setting"] == rival].to_dict("records")
    ratio = 1 / found["ratio"] if found["ratio"] else math.nan
    return found | {"difference": -found["difference"], "low": -found["high"], "high": -found["low"], "ratio": ratio}


def _is_even(row: _Row) -> bool:
    return bool(abs(row["most"] - row["least"]) <= _EVEN * abs(row["difference"]))


def _of(rows: pd.DataFrame, axis: str) -> list[dict[Any, Any]]:
    return rows[rows["axis"] == axis].to_dict("records")


def _rows(contest: Contest) -> list[dict[Any, Any]]:
    return contest.ranking.to_dict("records")


def _is_unknown(row: _Row) -> bool:
    """Tell whether the middle of a row is not known, as for a target that half of the runs did not reach."""
    return not math.isfinite(middle(row)[0])
