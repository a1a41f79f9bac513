"""Cost of reaching a target: a row per setting, with censored runs, which did not reach it, marked."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import seaborn
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from edgesim.reports.figures import INK, Drawing, figure, legend_below, legend_in, looks, settings_of, shortened
from edgesim.reports.format import unit_for

_MARKS = {"a run": "o", "a run that ended before the target": ">", "median and 95 % interval": "D"}


def time_to_target(
    values: pd.DataFrame, summary: pd.DataFrame, quantity: str = "sim_time_s", words: str = "", width_in: float = 3.5
) -> Drawing:
    """Return a forest plot of the cost of a target, a row per setting, the first on top.

    `values`: a row per run, with setting, value (for a run that did not reach the target, the cost at its end) and
    observed (True if it reached it). `summary`: a row per setting, with setting, km_median, km_low and km_high, where
    an unknown number is NaN or inf. A run is a dot, a censored run an open triangle that points towards its target. An
    interval without a known end runs off to the right. `quantity` names the unit, `words` the axis. Raises ConfigError
    if there is nothing to draw.
    """
    labels = settings_of(values, ["value", "observed"])
    settings_of(summary, ["km_median", "km_low", "km_high"])
    spent = pd.concat([values["value"], *(summary[name] for name in ("km_median", "km_low", "km_high"))])
    largest = float(spent[np.isfinite(spent)].max())
    unit = unit_for(quantity, largest)
    names = [shortened(label, 18 if width_in < 5 else 34) for label in labels]
    lines = sum(name.count("\n") + 1 for name in names)
    marks = [name for name, mark in _MARKS.items() if mark != ">" or not values["observed"].all()]
    with figure(
        width_in, 0.75 + 0.3 * len(labels) + 0.13 * (lines - len(labels)) + legend_in(marks, width_in)
    ) as drawn:
        axis = drawn.subplots()
        edge = 1.08 * largest / unit.size
        for row, (label, look) in enumerate(zip(labels, looks(len(labels)), strict=True)):
            place = len(labels) - 1 - row
            colour, runs = look["color"], values[values["setting"] == label]
            reached = runs["observed"]
            arrived, censored = runs[reached], runs[~reached & runs["value"].notna()]
            axis.scatter(
                arrived["value"] / unit.size, [place - 0.17] * len(arrived), s=13, color=colour, alpha=0.75, linewidth=0
            )
            axis.scatter(
                censored["value"] / unit.size, [place - 0.17] * len(censored),
                s=24, marker=">", facecolor="none", edgecolor=colour, linewidth=0.9,
            )  # fmt: skip
            for each in summary[summary["setting"] == label].to_dict("records"):
                ends = (each["km_low"] / unit.size, each["km_high"] / unit.size)
                _interval(axis, each["km_median"] / unit.size, ends, place, edge, colour)
            axis.annotate(
                f"{int(reached.sum())}/{len(reached)}",
                (1.01, place), xycoords=("axes fraction", "data"), va="center", fontsize=7, color=INK,
            )  # fmt: skip
        axis.set_yticks(range(len(labels)), names[::-1])
        axis.set(ylim=(-0.6, len(labels) - 0.4), xlim=(0, edge))
        axis.set_xlabel(f"{words or 'until the target'} ({unit.symbol})" if unit.symbol else words or quantity)
        axis.grid(visible=False, axis="y")
        seaborn.despine(ax=axis, left=True)
        handles = []
        for name in marks:
            mark = _MARKS[name]
            mark_style: dict[str, Any] = {"linestyle": "-" if mark == "D" else "none", "markersize": 5}
            if mark == ">":
                mark_style["markerfacecolor"] = "none"
            handles.append(Line2D([], [], color=INK, marker=mark, **mark_style))
        legend_below(drawn, handles, marks)
    return drawn


def _interval(axis: Axes, median: float, ends: tuple[float, float], place: int, edge: float, colour: object) -> None:
    """Draw a median with its interval, which ends in an arrow if its upper end is not known."""
    low, high = ends
    if not math.isfinite(median) and not math.isfinite(low):
        return
    begin = low if math.isfinite(low) else median
    if math.isfinite(high):
        axis.plot([begin, high], [place + 0.1] * 2, color=colour, linewidth=1.4, solid_capstyle="butt")
    else:
        look = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.4, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 7}
        axis.annotate("", (edge, place + 0.1), (begin, place + 0.1), arrowprops=look)
    if math.isfinite(median):
        axis.plot([median], [place + 0.1], marker="D", markersize=5, color=colour, markeredgecolor="white")
