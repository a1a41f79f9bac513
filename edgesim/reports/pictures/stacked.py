"""Spending by activity: a stacked bar per setting."""

from __future__ import annotations

import numpy as np
import pandas as pd
import seaborn
from matplotlib.patches import Patch

from edgesim.reports.figures import (
    HATCHES,
    INK,
    Drawing,
    colours,
    figure,
    legend_below,
    legend_in,
    settings_of,
    shortened,
)
from edgesim.reports.format import unit_for

ACTIVITIES = ("compute", "transmit", "receive", "idle", "sleep")  # of devices, as `attribute_energy` names them


def parts_of(spent: pd.DataFrame, part: str, value: str) -> pd.DataFrame:
    """Return the mean spending on each part over the runs of a setting: settings by parts, in the order of a legend.

    `spent`: with setting, run, `part` and `value`. A run without a row of a part spent nothing on it.
    """
    sums = spent.groupby(["setting", "run", part], sort=False)[value].sum().unstack(fill_value=0)
    means = sums.groupby(level="setting", sort=False).mean()
    known = [name for name in ACTIVITIES if name in means.columns]
    return means[[*known, *(name for name in means.columns if name not in known)]]


def stacked(
    spent: pd.DataFrame,
    part: str = "activity",
    value: str = "joules",
    words: str = "energy",
    bands: pd.DataFrame | None = None,
    width_in: float = 3.5,
) -> Drawing:
    """Return a picture with a bar per setting, its parts beside each other, the mean over the setting's runs.

    `spent`: see `parts_of`. `value` names the unit, `words` the axis. `bands`: setting, low and high of the whole bar,
    such as a total at low and high prices. Raises ConfigError if there is nothing to draw.
    """
    labels = settings_of(spent, ["run", part, value])
    means = parts_of(spent, part, value).loc[labels]
    totals = means.sum(axis=1)
    most = max(float(totals.max()), 0.0 if bands is None else float(bands["high"].max()))
    unit = unit_for(value, most)
    names = [shortened(label, 18 if width_in < 5 else 34) for label in labels]
    kinds = list(map(str, means.columns))
    with figure(width_in, 0.65 + 0.34 * len(labels) + legend_in(kinds, width_in)) as drawn:
        axis = drawn.subplots()
        places = np.arange(len(labels))[::-1]
        left = np.zeros(len(labels))
        patches = []
        for i, (name, colour) in enumerate(zip(kinds, colours(len(kinds)), strict=True)):
            width = means[name].to_numpy() / unit.size
            look = {"facecolor": colour, "edgecolor": "white", "hatch": HATCHES[i % len(HATCHES)], "linewidth": 0.4}
            axis.barh(places, width, 0.68, left, label=name, **look)
            patches.append(Patch(**look))
            left += width
        if bands is not None:
            of_labels, ends = bands.set_index("setting").loc[labels], totals.to_numpy()
            beside = np.maximum(0.0, [ends - of_labels["low"].to_numpy(), of_labels["high"].to_numpy() - ends])
            axis.errorbar(
                ends / unit.size, places, xerr=beside / unit.size, fmt="none", color=INK, linewidth=1, capsize=2
            )
        axis.set_yticks(places, names)
        axis.set_xlabel(f"{words} ({unit.symbol})" if unit.symbol else words)
        axis.set_xlim(0, 1.04 * most / unit.size if most > 0 else 1.0)
        axis.grid(visible=False, axis="y")
        seaborn.despine(ax=axis, left=True)
        legend_below(drawn, patches, kinds)
    return drawn
