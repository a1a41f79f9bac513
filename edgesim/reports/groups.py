"""Groups of runs that differ in nothing but their seed, with their labels and accuracy curves."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import pandas as pd

from edgesim.records.run import RecordedRun
from edgesim.reports.stats import curve

AnyRun = TypeVar("AnyRun", bound=RecordedRun)
_SEEDS = ("seed", "backend", "name")  # keys in which runs of one group may differ
_LONGEST = 60  # characters of a label


def points_of(run: RecordedRun) -> pd.DataFrame:
    """Return the accuracy curve of a run, see `curve`, with the bytes of both directions as traffic_bytes."""
    points = curve(run)
    return points.assign(traffic_bytes=points["up_bytes"] + points["down_bytes"])


def value_text(section: str, part: str, key: str, value: Any) -> str:
    """Return a value of a scenario as a label has it: a number in base units, a list as JSON."""
    number = isinstance(value, float) and float(f"{value:g}") == value
    return f"{value:g}" if number else value if isinstance(value, str) else json.dumps(value)


def groups(runs: Sequence[AnyRun], say: Callable[[str, str, str, Any], str] = value_text) -> dict[AnyRun, str]:
    """Return a label for each run, equal for runs whose scenarios differ in seed, name and backend at most.

    The label has the differences between groups: the names of parts, and other keys with their values. Without a
    difference it is the method's name. If it were too long, it is the name, or else the path, of the group's first run.
    `say` words a value from its section, the name of its part, its key and itself, different values differently.
    """
    members: dict[str, list[AnyRun]] = {}
    for run in runs:
        rest = {key: value for key, value in run.manifest["scenario"].items() if key not in _SEEDS}
        members.setdefault(json.dumps(rest, sort_keys=True), []).append(run)
    firsts = [group[0] for group in members.values()]
    differing = _differences([first.manifest["scenario"] for first in firsts], say)
    names = Counter(first.name for first in firsts)
    labels = [
        label
        if len(label := text or first.method) <= _LONGEST
        else first.name
        if names[first.name] == 1
        else str(first.folder)
        for text, first in zip(differing, firsts, strict=True)
    ]
    return {run: label for label, group in zip(labels, members.values(), strict=True) for run in group}


def mark(group: Sequence[RecordedRun]) -> str:
    """Return a note on runs of a group that did not finish, such as " (interrupted)" or " (1 of 3 interrupted)"."""
    others = Counter(run.status for run in group if not run.finished)
    of_all = "" if len(group) == 1 else f" of {len(group)}"
    marks = [f"{number}{of_all} {status}" if of_all else status for status, number in others.items()]
    return f" ({', '.join(marks)})" if marks else ""


def _differences(scenarios: Sequence[Mapping[str, Any]], say: Callable[[str, str, str, Any], str]) -> list[str]:
    """Return, for each scenario, its differences from the others in words."""
    flat = [_flat({key: value for key, value in scenario.items() if key not in _SEEDS}, say) for scenario in scenarios]
    names = [
        {key.removesuffix(".name"): value for key, value in each.items() if key.endswith(".name")} for each in flat
    ]
    told: list[dict[str, str]] = [{} for _ in flat]
    for key in dict.fromkeys(key for each in flat for key in each):
        section = key.rpartition(".")[0]
        for place, each in enumerate(flat):
            # keys of a part are compared among scenarios with the same part only
            alike = [
                i
                for i in range(len(flat))
                if key.endswith(".name") or names[i].get(section) == names[place].get(section)
            ]
            if key in each and len({flat[i].get(key) for i in alike}) > 1:
                told[place][key] = each[key]
    labels = []
    for each in told:
        words = []
        for key in sorted(each, key=lambda key: (key != "method.name", not key.endswith(".name"))):
            if key.endswith(".name"):
                words.append(each[key])
                continue
            short = key.rpartition(".")[2]
            alike_short = {other for all_told in told for other in all_told if other.rpartition(".")[2] == short}
            words.append(f"{key if len(alike_short) > 1 else short} = {each[key]}")
        labels.append(", ".join(words))
    return labels


def _flat(table: Mapping[str, Any], say: Callable[[str, str, str, Any], str], above: str = "") -> dict[str, str]:
    """Return the values of nested tables as text, by dotted keys."""
    found: dict[str, str] = {}
    for key, value in table.items():
        path = f"{above}.{key}" if above else key
        if isinstance(value, Mapping):
            found |= _flat(value, say, path)
        else:
            found[path] = say(above, str(table.get("name") or ""), key, value)
    return found
