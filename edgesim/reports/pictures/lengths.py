"""Lengths of rounds: the share of rounds that are done within a time."""

from __future__ import annotations

import pandas as pd
import seaborn

from edgesim.reports.figures import Drawing, figure, legend_below, legend_in, looks, settings_of
from edgesim.reports.format import unit_for

_WIDE = 50.0  # longest over shortest length above which the axis is logarithmic


def round_lengths(rounds: pd.DataFrame, width_in: float = 3.5) -> Drawing:
    """Return a picture of the lengths of rounds, a line per setting, all of its runs together.

    `rounds`: a row per round, with setting and length_s. Raises ConfigError if there is nothing to draw.
    """
    labels = settings_of(rounds, ["length_s"])
    longest, shortest = float(rounds["length_s"].max()), float(rounds["length_s"].min())
    unit = unit_for("_s", longest)
    with figure(width_in, min(2.8, 0.66 * width_in) + legend_in(labels, width_in)) as drawn:
        axis = drawn.subplots()
        handles = []
        for label, look in zip(labels, looks(len(labels)), strict=True):
            lengths = rounds["length_s"][rounds["setting"] == label].to_numpy() / unit.size
            line = axis.ecdf(lengths, color=look["color"], linestyle=look["linestyle"], linewidth=1.4, label=label)
            handles.append(line)
        if shortest > 0 and longest / shortest > _WIDE:
            axis.set_xscale("log")
        else:
            axis.set_xlim(left=0)
        axis.set(xlabel=f"length of a round ({unit.symbol})", ylabel="share of rounds", ylim=(0, 1.02))
        seaborn.despine(ax=axis)
        legend_below(drawn, handles, labels)
    return drawn
