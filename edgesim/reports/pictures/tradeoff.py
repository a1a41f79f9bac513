"""Two quantities of every setting, with the Pareto front joined and dominated settings in grey."""

from __future__ import annotations

from typing import Any

import pandas as pd
import seaborn

from edgesim.reports.figures import GREY, Drawing, figure, legend_below, legend_in, looks, settings_of
from edgesim.reports.format import unit_for


def pareto(
    points: pd.DataFrame, x: str, y: str, x_words: str = "", y_words: str = "", width_in: float = 3.5
) -> Drawing:
    """Return a picture of settings by two of their quantities, with intervals as crosses.

    `points`: a row per setting, with setting, `x`, `y`, front (True if no other is better in both) and, if there are
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
        handles = []
        for row, look in zip(known.to_dict("records"), looks(len(known)), strict=True):
            colour = look["color"] if row["front"] else GREY
            at_x, at_y = (row[name] / units[name].size for name in (x, y))
            ends = [
                [[abs(row.get(f"{name}_{end}", row[name]) - row[name]) / units[name].size] for end in ("low", "high")]
                for name in (x, y)
            ]
            axis.errorbar(at_x, at_y, xerr=ends[0], yerr=ends[1], color=colour, linewidth=0.8, fmt="none", zorder=2)
            style: dict[str, Any] = {"marker": look["marker"], "markersize": 6, "markeredgecolor": "white"}
            handles += axis.plot(at_x, at_y, linestyle="none", color=colour, zorder=3, **style)
        for name, words, put in ((x, x_words, axis.set_xlabel), (y, y_words, axis.set_ylabel)):
            symbol = units[name].symbol
            put(f"{words or name} ({symbol})" if symbol else words or name)
        axis.margins(0.1)
        seaborn.despine(ax=axis)
        legend_below(drawn, handles, names)
    return drawn
