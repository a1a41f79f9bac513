"""Figures of accuracy from run folders, made without a display and without pyplot's global state."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from edgesim.core.errors import ConfigError
from edgesim.core.metrics import ACCURACY
from edgesim.records.run import RecordedRun
from edgesim.reports.curves import groups, mark, points_of
from edgesim.reports.figures import USUAL, Drawing, save
from edgesim.reports.pictures.accuracy import QUANTITIES, accuracy

AXES = {
    "time": "sim_time_s",
    "energy": "energy_j",
    "active": "active_j",
    "participants": "participant_j",
    "network": "energy_network_j",
    "server": "energy_server_j",
    "bytes": "traffic_bytes",
    "rounds": "round",
    "up": "up_bytes",
    "down": "down_bytes",
    "flops": "flops",
}


def plot_runs(
    runs: Sequence[RecordedRun],
    against: Sequence[str] = ("sim_time_s", "energy_j", "round"),
    out: Path = Path("accuracy"),
    formats: Sequence[str] = USUAL,
    width_in: float | None = None,
    labels: Sequence[str] = (),
    title: str = "",
    metric: str = ACCURACY,
) -> list[Path]:
    """Draw test accuracy, or another metric, against each of `against`, side by side. Return the files written.

    `out`: the file name, with or without an ending. `width_in`: inches of the whole figure. Each scenario has its own
    colour, dash and mark. Several seeds are drawn as their mean, with a band from the lowest to the highest, see
    `mean_and_range`. `labels`: names of the groups, in the order of their first runs, in place of those of `groups`.
    Raises ConfigError for an unknown x axis, no evaluation, a wrong number of labels, or a file that cannot be written.
    """
    return save(draw_runs(runs, against, width_in, labels, title, metric), out, formats)


def draw_runs(
    runs: Sequence[RecordedRun],
    against: Sequence[str] = ("sim_time_s", "energy_j", "round"),
    width_in: float | None = None,
    labels: Sequence[str] = (),
    title: str = "",
    metric: str = ACCURACY,
) -> Drawing:
    """Return the figure that `plot_runs` writes. `against` may also be names in AXES, such as time. Raises as it."""
    against = [AXES.get(name, name) for name in against]
    unknown = [name for name in against if name not in QUANTITIES]
    if unknown or not against:
        raise ConfigError(f"against: unknown {', '.join(unknown)} (known: {', '.join((*QUANTITIES, *AXES))})")
    metric = metric_to_draw(metric, runs)
    return accuracy(_points(runs, labels, metric), against, targets_of(runs, metric), width_in, title, metric)


def metric_to_draw(metric: str, runs: Sequence[RecordedRun]) -> str:
    """Return the metric to draw: if accuracy is asked for and all runs have the same goal, that goal."""
    goals = {run.goal for run in runs}
    return goals.pop() if metric == ACCURACY and len(goals) == 1 else metric


def targets_of(runs: Sequence[RecordedRun], metric: str) -> list[float]:
    """Return the targets of a metric in all runs, ascending."""
    if metric == ACCURACY:
        return sorted({target for run in runs for target in run.targets})
    return sorted({target for run in runs for name, target in run.metric_targets if name == metric})


def _points(runs: Sequence[RecordedRun], labels: Sequence[str], metric: str) -> pd.DataFrame:
    """Return the accuracy curves, each with the label of its group, which says if runs are several or unfinished."""
    found: dict[str, list[RecordedRun]] = {}
    for run, label in groups(runs).items():
        found.setdefault(label, []).append(run)
    if labels and len(labels) != len(found):
        raise ConfigError(f"--labels: {len(labels)} given for the {len(found)} groups {'; '.join(found)}")
    if len(set(labels)) < len(labels):
        raise ConfigError(f"--labels: some are given twice: {', '.join(labels)}")
    named = {label + mark(group): group for label, group in zip(labels or found, found.values(), strict=True)}
    curves_of = {label: [points_of(run) for run in group] for label, group in named.items()}
    with_it = {
        label: [each.dropna(subset=metric) for each in curves if metric in each] for label, curves in curves_of.items()
    }
    evaluated = {label: [each for each in curves if len(each)] for label, curves in with_it.items()}
    if not any(evaluated.values()):
        raise ConfigError(f"{', '.join(run.name for run in runs)}: no evaluation of the test split to plot")
    return pd.concat(
        each.assign(setting=f"{label} ({len(curves)} seeds)" if len(curves) > 1 else label, run=place)
        for label, curves in evaluated.items()
        for place, each in enumerate(curves)
    )
