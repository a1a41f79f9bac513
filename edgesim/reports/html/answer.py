"""The answer of a report in words: the best setting of each column, its lead, and the certainty of that lead."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from edgesim.reports.format import count
from edgesim.reports.html.content import Contest, Effect, Findings
from edgesim.reports.html.words import (
    ALPHA,
    interval,
    is_accuracy,
    middle,
    number,
    p_text,
    percent,
    target_of,
    words_of,
)

_FIRST = {"sim_time_s": "first", "rounds": "in the fewest rounds", "cost": "at the lowest cost"}
_LEAST = {"energy_j": "energy", "co2e_g": "carbon", "traffic_bytes": "traffic"}
_MOST_CONTESTS = 4
FEWEST_PAIRS = 6  # with fewer Wilcoxon's test cannot give a p-value below 0.05


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


def verdict(findings: Findings) -> str:
    """Return the one line at the top of a report. It says if the clocks' errors may reverse the order."""
    line = _verdict(findings)
    if findings.contests and not findings.contests[0].order_is_sure:
        return f"{line} But {findings.contests[0].order}."
    return line


def _verdict(findings: Findings) -> str:
    if not findings.contests:
        return f"{count(len(findings.settings), 'configuration')}, and no number that says which is better."
    contest = findings.contests[0]
    if _is_unknown(_rows(contest)[0]):
        return f"{_lead(contest)}."
    if len(contest.ranking) == 1:
        return f"{_lead(contest)}: {number(contest.of, middle(_rows(contest)[0])[0])}."
    rival = _rows(contest)[1]
    if _is_unknown(rival):
        return f"{_lead(contest)}; the others did not get there in most runs."
    found = _compared(contest, rival["setting"])
    if _is_sure(found):
        return f"{_lead(contest)}, {_gap(contest, found)} than {rival['setting']}."
    if _is_equal(found):
        return f"{contest.ranking['setting'].iloc[0]} and {rival['setting']} are equal in {words_of(contest.of)}."
    if _excludes_0(found):
        return f"{_lead(contest)}, but the test does not confirm its lead over {rival['setting']}."
    return f"{_lead(contest)}, but its lead over {rival['setting']} may be luck."


def answers(findings: Findings) -> list[str]:
    """Return a sentence or more for each contest and each axis of two values, with their numbers."""
    told = []
    for contest in findings.contests[:_MOST_CONTESTS]:
        rows = _rows(contest)
        if _is_unknown(rows[0]):
            told.append(f"{_lead(contest)}.")
            continue
        value, low, high = middle(rows[0])
        runs = int(rows[0]["runs"])
        known = interval(contest.of, low, high) if runs > 1 else ""
        of = f"{rows[0]['statistic']} of {count(runs, 'run')}" if runs > 1 else "one run"
        around = f", 95 % interval {known}" if known else ""
        lines = [f"{_lead(contest)}: {number(contest.of, value)} ({of}{around})."]
        if len(rows) > 1:
            lines.append(_against(contest))
        if contest.order:
            lines.append(f"{contest.order[:1].upper()}{contest.order[1:]}.")
        short = [row for row in rows if "@" in contest.of and row["reached"] < row["runs"]]
        if short:
            those = "; ".join(f"{row['setting']} in {_reached(row)}" for row in short)
            lines.append(f"Not all runs got there: {those}.")
        told.append(" ".join(lines))
    return [*told, *map(effect_in_words, findings.effects)]


def effect_in_words(effect: Effect) -> str:
    """Return a sentence on the effect of an axis on a column, for each setting of the other axes.

    A change reads "12 s (20 %) less [95 % interval 8 to 16 s, 3 common seeds]". The interval is of the amount less, or
    more, so that it contains the number before it.
    """
    each = []
    for found in effect.against.to_dict("records"):
        moved = float(found["difference"])
        if not math.isfinite(moved):
            each.append(f"{found['setting']} not known")
            continue
        if moved == 0:
            each.append(f"{found['setting']} the same")
            continue
        low, high = sorted(float(found[end]) * (1 if moved > 0 else -1) for end in ("low", "high"))
        known = f"95 % interval {interval(effect.of, low, high)}, " if math.isfinite(low + high) else ""
        share = f" ({abs(found['ratio'] - 1):.0%})".replace("%", "\u00a0%") if math.isfinite(found["ratio"]) else ""
        way = "more" if moved > 0 else "less"
        of, bound = count(int(found["pairs"]), "common seed"), float(found["restricted_to"])
        cut = f", runs that did not get there counted with {number(effect.of, bound)}" if math.isfinite(bound) else ""
        each.append(f"{found['setting']} {number(effect.of, abs(moved))}{share} {way} [{known}{of}{cut}]")
    return f"{effect.axis} {effect.label} instead of {effect.base}, {words_of(effect.of)}: {'; '.join(each)}."


def _lead(contest: Contest) -> str:
    best, column = _rows(contest)[0], contest.of
    quantity, target = column.partition("@")[0], target_of(column)
    if _is_unknown(best):
        if target is None:
            return f"Nothing is known of {words_of(column)}"
        who = "No configuration reached" if len(contest.ranking) > 1 else f"{best['setting']} did not reach"
        return f"{who} {percent(target)} test accuracy in most of its runs"
    if len(contest.ranking) == 1:
        return f"{best['setting']}: {words_of(column)}"
    if target is not None:
        how = _FIRST.get(quantity) or f"with the least {_LEAST.get(quantity, words_of(quantity))}"
        return f"{best['setting']} reaches {percent(target)} {how}"
    extreme = "highest" if not contest.lower else "lowest"
    return f"{best['setting']} has the {extreme} {words_of(column)}"


def _against(contest: Contest) -> str:
    """Return a sentence that compares the best setting with the next one, seed by seed."""
    best, rival = _rows(contest)[:2]
    if _is_unknown(rival):
        return f"No other got there in most of its runs; {rival['setting']} did in {_reached(rival)}."
    found = _compared(contest, rival["setting"])
    if found is None or int(found["pairs"]) < 2:
        apart = abs(middle(rival)[0] - middle(best)[0])
        beside = f"{_amount(contest, apart)} {_word(contest)}"
        return f"That is {beside} than {rival['setting']}; with one common seed the difference may be luck."
    if _is_equal(found):
        return f"Seed by seed {rival['setting']} has the same ({count(int(found['pairs']), 'common seed')})."
    if (found["difference"] > 0) != contest.lower and found["difference"] != 0:
        return f"On average over seeds, though, {rival['setting']} is ahead: it may be luck ({_known(contest, found)})."
    gap = f"Seed by seed that is {_gap(contest, found)} than {rival['setting']} on average"
    if _is_sure(found):
        return f"{gap} ({_known(contest, found)})."
    if _excludes_0(found):
        few = int(found["pairs"]) < FEWEST_PAIRS
        why = (
            f"with fewer than {FEWEST_PAIRS} common seeds no test can confirm it"
            if few
            else "the test does not confirm it"
        )
        return f"{gap}; {why} ({_known(contest, found)})."
    return f"{gap}, which may be luck ({_known(contest, found)})."


def _known(contest: Contest, found: Mapping[Any, Any]) -> str:
    """Return the evidence for a difference: its interval, its p-value and the number of common seeds."""
    low, high = sorted(float(found[name]) * (1 if contest.lower else -1) for name in ("low", "high"))
    between = ""
    if math.isfinite(low + high):
        between = f"95 % interval {interval(contest.of, low, high)}"
        between = between.removesuffix("%") + "percentage points" if is_accuracy(contest.of) else between
    seeds = count(int(found["pairs"]), "common seed")
    return ", ".join(filter(None, [between, p_text(found["p_holm"]), seeds]))


def _gap(contest: Contest, found: Mapping[Any, Any] | None) -> str:
    """Return the lead of the best in words: "12 min (26 %) sooner", "1.3 percentage points more"."""
    assert found is not None
    share = ""
    if not is_accuracy(contest.of) and math.isfinite(found["ratio"]) and found["ratio"] > 0:
        share = f" ({abs(1 - 1 / found['ratio']):.0%})".replace("%", "\u00a0%")
    return f"{_amount(contest, abs(float(found['difference'])))}{share} {_word(contest)}"


def _word(contest: Contest) -> str:
    if contest.of.startswith("sim_time_s@"):
        return "sooner"
    return "less" if contest.lower else "more"


def _amount(contest: Contest, value: float) -> str:
    sign = "−" if value < 0 else ""
    if is_accuracy(contest.of):
        return f"{sign}{100 * abs(value):.1f} percentage points"
    return f"{sign}{number(contest.of, abs(value))}"


def _is_sure(found: Mapping[Any, Any] | None) -> bool:
    """Tell whether a difference is significant, both by its test and by its interval."""
    return found is not None and bool(found["p_holm"] < ALPHA) and _excludes_0(found)


def _excludes_0(found: Mapping[Any, Any] | None) -> bool:
    """Tell whether the 95 % interval of a difference lies on one side of 0."""
    return found is not None and bool(found["low"] * found["high"] > 0)


def _is_equal(found: Mapping[Any, Any] | None) -> bool:
    """Tell whether both settings have the same number in every common seed, of which there are several."""
    return found is not None and int(found["pairs"]) > 1 and found["ties"] == found["pairs"]


def _reached(row: Mapping[Any, Any]) -> str:
    return f"{int(row['reached'])} of {int(row['runs'])} runs"


def _compared(contest: Contest, setting: str) -> Mapping[Any, Any] | None:
    found = contest.against[contest.against["setting"] == setting].to_dict("records")
    return found[0] if found else None


def _rows(contest: Contest) -> list[dict[Any, Any]]:
    return contest.ranking.to_dict("records")


def _is_unknown(row: Mapping[Any, Any]) -> bool:
    """Tell whether the middle of a row is not known, as for a target that half of the runs did not reach."""
    return not math.isfinite(middle(row)[0])
