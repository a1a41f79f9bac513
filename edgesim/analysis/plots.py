"""Figures from run folders, made without a display and without pyplot's global state."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import seaborn
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from edgesim.analysis.load import Run
from edgesim.analysis.readable import unit_for
from edgesim.analysis.stats import curve
from edgesim.errors import ConfigError
from edgesim.records.whole import whole_file

STYLE = seaborn.axes_style("whitegrid") | {
    "grid.color": "0.92",
    "axes.edgecolor": "0.6",
    "svg.hashsalt": "edgesim",  # the same figure gives the same file
    "svg.fonttype": "none",
}
PALETTE = "colorblind"
_QUANTITIES = {
    "sim_time_s": "simulated time",
    "energy_j": "energy, idle power included",
    "active_j": "energy above idle power",
    "participant_j": "energy without devices never asked",
    "up_bytes": "uploaded",
    "down_bytes": "downloaded",
    "flops": "computed",
    "round": "round",
}


def plot_runs(
    runs: Sequence[Run],
    against: Sequence[str] = ("sim_time_s", "energy_j", "round"),
    out: Path = Path("accuracy"),
) -> list[Path]:
    """Draw test accuracy against each of `against`, side by side; return the PNG and the SVG written.

    `out` is the file name without its ending. A colour stands for a scenario and method; seeds of one scenario share
    it. Raises ConfigError for an unknown x axis, no evaluation, or a file that cannot be written.
    """
    unknown = [name for name in against if name not in _QUANTITIES]
    if unknown:
        raise ConfigError(f"against: unknown {', '.join(unknown)} (known: {', '.join(_QUANTITIES)})")
    points = pd.concat([curve(run).assign(run=str(run.folder), group=group) for run, group in groups(runs).items()])
    if points.empty:
        raise ConfigError(f"{', '.join(run.name for run in runs)}: no evaluation of the test split to plot")
    targets = sorted({target for run in runs for target in run.targets})
    with rc_context(STYLE):
        figure = Figure(figsize=(0.6 + 3.7 * len(against), 3.8), layout="constrained")
        axes = figure.subplots(1, len(against), sharey=True, squeeze=False)[0]
        for axis, quantity in zip(axes, against, strict=True):
            _panel(axis, points, quantity, targets)
        axes[0].set_ylabel("test accuracy")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False)
        return save(figure, out)


def save(figure: Figure, out: Path) -> list[Path]:
    """Write OUT.png and OUT.svg and return their paths. Raises ConfigError if that is not possible."""
    FigureCanvasAgg(figure)
    if out.name in ("", ".."):
        raise ConfigError(f"--out: {str(out)!r} is no file name")
    written = [out.with_name(f"{out.name}.{ending}") for ending in ("png", "svg")]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        for path, metadata in zip(written, ({}, {"Date": None}), strict=True):
            with whole_file(path) as growing:
                figure.savefig(growing, format=path.suffix[1:], dpi=160, metadata=metadata)
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written: {error}") from error
    return written


def groups(runs: Sequence[Run]) -> dict[Run, str]:
    """Return a label for each run, equal for runs whose scenarios differ in the seed and backend at most.

    A group with runs that did not finish says so.

    The label is the method's name if that tells the groups apart, else the name, or else the path, of the group's first
    run.
    """
    members: dict[str, list[Run]] = {}
    for run in runs:
        rest = {key: value for key, value in run.manifest["scenario"].items() if key not in ("seed", "backend")}
        members.setdefault(json.dumps(rest, sort_keys=True), []).append(run)
    firsts = [group[0] for group in members.values()]
    times = Counter(label for first in firsts for label in {first.method, first.name})
    labels = [
        next((label for label in (first.method, first.name) if times[label] == 1), str(first.folder))
        for first in firsts
    ]
    return {run: label + _mark(group) for label, group in zip(labels, members.values(), strict=True) for run in group}


def _mark(group: Sequence[Run]) -> str:
    """Return how runs of a group ended that did not finish, as " (interrupted)" or " (1 of 3 interrupted)"."""
    others = Counter(run.status for run in group if not run.finished)
    of_all = "" if len(group) == 1 else f" of {len(group)}"
    marks = [f"{number}{of_all} {status}" if of_all else status for status, number in others.items()]
    return f" ({', '.join(marks)})" if marks else ""


def _panel(axis: Axes, points: pd.DataFrame, quantity: str, targets: Sequence[float]) -> None:
    unit = unit_for(quantity, points[quantity].max())
    scaled = points.assign(**{quantity: points[quantity] / unit.size})
    seaborn.lineplot(
        scaled,
        x=quantity,
        y="accuracy",
        hue="group",
        units="run",
        estimator=None,
        palette=PALETTE,
        linewidth=1.4,
        ax=axis,
    )
    if (legend := axis.get_legend()) is not None:
        legend.remove()  # the figure has one for all panels
    for target in targets:
        axis.axhline(target, color="0.45", linestyle="--", linewidth=0.9, zorder=1)
    label = _QUANTITIES[quantity]
    axis.set(xlabel=f"{label} ({unit.symbol})" if unit.symbol else label, ylabel="")
    axis.set_xlim(left=0)
    seaborn.despine(ax=axis)
