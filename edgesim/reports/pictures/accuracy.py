"""Accuracy, or another metric, against its cost: a line per setting, with a band over its seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import seaborn
from matplotlib.axes import Axes

from edgesim.core.errors import ConfigError
from edgesim.core.metrics import ACCURACY
from edgesim.reports.curves import mean_and_range
from edgesim.reports.figures import Drawing, folded, legend_below, looks, settings_of, style
from edgesim.reports.format import unit_for

QUANTITIES = {
    "sim_time_s": "simulated time",
    "energy_j": "energy of devices, idle included",
    "active_j": "energy of the devices above idle power",
    "participant_j": "energy without devices never asked",
    "energy_network_j": "energy of the network",
    "energy_server_j": "energy of the server",
    "traffic_bytes": "sent and received",
    "up_bytes": "uploaded",
    "down_bytes": "downloaded",
    "flops": "computed",
    "round": "round",
}
_PANEL_IN = (3.7, 3.0)


def accuracy(
    points: pd.DataFrame,
    against: Sequence[str] = ("sim_time_s",),
    targets: Sequence[float] = (),
    width_in: float | None = None,
    title: str = "",
    metric: str = ACCURACY,
) -> Drawing:
    """Return panels of test accuracy, or another metric, against each of `against`, side by side.

    Each setting has its own colour, dash and mark. `points`: a row per evaluation, with setting, run, the metric and
    the columns of `against`, ascending in a run. Several runs are drawn as their mean, with a band from the lowest to
    the highest, see `mean_and_range`. `targets` are dashed. `width_in`: inches of the whole figure. Raises ConfigError
    for an unknown x axis or nothing to draw.
    """
    unknown = [name for name in against if name not in QUANTITIES]
    if unknown:
        raise ConfigError(f"against: unknown {', '.join(unknown)} (known: {', '.join(QUANTITIES)})")
    labels = settings_of(points, ["run", metric, *against])
    curves = {
        label: [of_run for _, of_run in points[points["setting"] == label].groupby("run", sort=False)]
        for label in labels
    }
    width = width_in or _PANEL_IN[0] * len(against) + 0.6
    with style(_PANEL_IN[0] if width_in is None else width / len(against)):
        rows = folded(labels, width)[1]
        height = min(_PANEL_IN[1], 0.85 * width / len(against)) + 0.6 + 0.2 * rows + 0.3 * bool(title)
        drawn = Drawing(figsize=(width, height), layout="constrained")
        axes = drawn.subplots(1, len(against), sharey=True, squeeze=False)[0]
        each = looks(len(curves), min(1.0, width / len(against) / _PANEL_IN[0]))
        for axis, quantity in zip(axes, against, strict=True):
            _panel(axis, curves, quantity, targets, each, metric)
        axes[0].set_ylabel(f"test {metric}")
        if title:
            drawn.suptitle(title, fontsize="large")
        legend_below(drawn, axes[0].get_legend_handles_labels()[0], labels)
        drawn.draw_without_rendering()  # ticks are made when they are first drawn, in the style of that moment
        return drawn


def _panel(
    axis: Axes,
    curves: Mapping[str, Sequence[pd.DataFrame]],
    quantity: str,
    targets: Sequence[float],
    each: Sequence[Mapping[str, Any]],
    metric: str,
) -> None:
    unit = unit_for(quantity, max(of_run[quantity].max() for runs in curves.values() for of_run in runs))
    for (label, runs), look in zip(curves.items(), each, strict=True):
        line = mean_and_range(runs, quantity, metric)
        at = line[quantity] / unit.size
        axis.plot(at, line["mean"], label=label, **look)
        if len(runs) > 1:
            axis.fill_between(at, line["low"], line["high"], color=look["color"], alpha=0.18, linewidth=0)
    for target in targets:
        axis.axhline(target, color="0.45", linestyle="--", linewidth=0.9, zorder=1)
    words = QUANTITIES[quantity]
    axis.set(xlabel=f"{words} ({unit.symbol})" if unit.symbol else words, ylabel="")
    axis.set_xlim(left=0)
    seaborn.despine(ax=axis)
