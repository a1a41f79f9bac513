"""Export of a run to trackers: its settings, and series of numbers over simulated time."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from edgesim.reports.load import Run
from edgesim.reports.stats import summary

# Column of the table rounds -> name of its series.
_OF_ROUNDS = {
    "total_energy_j": "spent/energy_j",
    "total_active_j": "spent/active_j",
    "total_idle_j": "spent/idle_j",
    "total_participant_j": "spent/participant_j",
    "total_energy_network_j": "spent/energy_network_j",
    "total_energy_server_j": "spent/energy_server_j",
    "total_up_bytes": "spent/up_bytes",
    "total_down_bytes": "spent/down_bytes",
    "total_flops": "spent/flops",
    "asked": "round/asked",
    "used": "round/used",
    "late": "round/late",
    "staleness_mean": "round/staleness_mean",
}
_OF_A_ROUND = -1  # the device of a metric of the whole round
_AT_END = (
    "accuracy",
    "best_accuracy",
    "rounds",
    "sim_time_s",
    "energy_j",
    "active_j",
    "energy_network_j",
    "energy_server_j",
    "up_bytes",
    "down_bytes",
    "flops",
)


class Point(NamedTuple):
    """A number at an instant of simulated time."""

    now_s: float
    series: str
    value: float


@dataclass(frozen=True)
class Exported:
    """A run with its name among the runs exported together, and its labels on a study's axes."""

    name: str
    run: Run
    axes: Mapping[str, str] = field(default_factory=dict)


def exported(runs: Sequence[Run]) -> list[Exported]:
    """Return runs named after their folders, or by their paths below the common folder where two names are equal."""
    times = Counter(run.name for run in runs)
    folders = [run.folder.resolve() for run in runs]
    above = Path(os.path.commonpath([folder.parent for folder in folders])) if folders else Path()
    names = [
        run.name if times[run.name] == 1 else folder.relative_to(above).as_posix()
        for run, folder in zip(runs, folders, strict=True)
    ]
    return [Exported(name, run) for name, run in zip(names, runs, strict=True)]


def points(run: Run) -> Iterator[Point]:
    """Yield the series of a run, each in the order of time. Numbers of a round are at its end.

    Series: accuracy/SPLIT and loss/SPLIT of evaluations, spent/* in joules, bytes and FLOPs since the start,
    round/number, round/length_s, round/asked and the like of each round, and metric/NAME, the method's metrics of whole
    rounds.
    """
    for row in run.evals.to_dict("records"):
        yield Point(row["now_s"], f"accuracy/{row['split']}", row["accuracy"])
        yield Point(row["now_s"], f"loss/{row['split']}", row["loss"])
    ended_s = dict(zip(run.rounds["round"], run.rounds["now_s"], strict=True))
    for row in run.rounds.to_dict("records"):
        now_s = row["now_s"]
        yield Point(now_s, "round/number", row["round"] + 1)
        yield Point(now_s, "round/length_s", now_s - row["start_s"])
        for column, series in _OF_ROUNDS.items():
            yield Point(now_s, series, row[column])
    whole = run.metrics[run.metrics["device"] == _OF_A_ROUND]
    for row in whole[whole["round"].isin(list(ended_s))].to_dict("records"):
        yield Point(ended_s[row["round"]], f"metric/{row['name']}", row["value"])


def settings(each: Exported) -> dict[str, str | int | float | bool]:
    """Return the settings of a run: its labels on axes, and the dotted keys of its scenario, blocks numbered from 0."""
    axes = {f"axis.{axis}": label for axis, label in each.axes.items()}
    return {**axes, **dict(_flat(each.run.manifest["scenario"], ""))}


def at_end(run: Run) -> dict[str, float]:
    """Return the results and the cost of a run at its end, without unknown numbers."""
    found = summary(run)
    return {name: float(found[name]) for name in _AT_END if found[name] is not None}


def _flat(value: Any, key: str) -> Iterator[tuple[str, str | int | float | bool]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(inner, f"{key}.{name}".lstrip("."))
    elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        for place, item in enumerate(value):
            yield from _flat(item, f"{key}.{place}")
    elif isinstance(value, str | bool | int | float):
        yield key, value
    elif value is not None:
        yield key, json.dumps(value)
