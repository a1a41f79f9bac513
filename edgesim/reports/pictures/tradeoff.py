"""Two quantities of every setting, with those on the front joined and those that another one dominates in grey."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import seaborn
from matplotlib.axes import Axes

from edgesim.reports.figures import GREY, Drawing, figure, legend_below, legend_in, looks, settings_of
from edgesim.reports.format import unit_for


def pareto(
    points: pd.DataFrame, x: str, y: str, x_words: str = "", y_words: str = "", width_in: float = 3.5
) -> Drawing:
    """Return settings by two of their quantities, with intervals as crosses.

    `points`: a row a setting, with setting, `x`, `y`, front (whether no other one is better in both) and, if there are
    intervals, `x`_low, `x`_high, `y`_low and `y`_high. The front is joined in the order of `x`. `x` and `y` name the
    units, their words the axes. Raises ConfigError if there is nothing to draw.
    """
    known = points.dropna(subset=[name for name in (x, y) if name in points])
    labels = settings_of(known, [x, y, "front"])
    units = {name: unit_for(name.partition("@")[0], float(known[name].max())) for name in (x, y)}
    front = known[known["front"]].sort_values(x, kind="stable")
    names = [
        label if on_front else f"{label} (dominated)" for label, on_front in zip(labels, known["front"], strict=True)
    ]
    with figure(width_in, min(3.2, 0.72 * width_in) + legend_in(names, width_in)) as drawn:
        axis = drawn.subplots()
        joined = axis.plot(front[x] / units[x].size, front[y] / units[y].size, color="0.4", linewidth=0.9, zorder=1)
        joined[0].set_gid("front")
        handles = [
            _point(axis, row, (x, y), (units[x].size, units[y].size), look)
            for row, look in zip(known.to_dict("records"), looks(len(known)), strict=True)
        ]
        for name, words, put in ((x, x_words, axis.set_xlabel), (y, y_words, axis.set_ylabel)):
            symbol = units[name].symbol
            put(f"{words or name} ({symbol})" if symbol else words or name)
        axis.margins(0.1)
        seaborn.despine(ax=axis)
        legend_below(drawn, handles, names)
    return drawn


def _point(
    axis: Axes,
    row: Mapping[Any, Any],
    names: tuple[str, str],
    sizes: tuple[float, float],
    look: Mapping[str, Any],
) -> Any:
    """Draw a setting with its intervals and return its mark."""
    colour = look["color"] if row["front"] else GREY
    x, y = (row[name] / size for name, size in zip(names, sizes, strict=True))
    ends = [
        [[abs(row.get(f"{name}_{end}", row[name]) - row[name]) / size] for end in ("low", "high")]
        for name, size in zip(names, sizes, strict=True)
    ]
    axis.errorbar(x, y, xerr=ends[0], yerr=ends[1], color=colour, linewidth=0.8, fmt="none", zorder=2)
    [mark] = axis.plot(
        x, y, linestyle="none", color=colour, marker=look["marker"], markersize=6, markeredgecolor="white", zorder=3
    )
    return mark
