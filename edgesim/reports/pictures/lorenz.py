"""Inequality of spending among devices: Lorenz curves with their Gini coefficients."""

from __future__ import annotations

import numpy as np
import pandas as pd
import seaborn
from scipy.integrate import trapezoid

from edgesim.core.arrays import Arr
from edgesim.reports.figures import INK, Drawing, figure, legend_below, legend_in, looks, settings_of


def lorenz_curve(amounts: Arr) -> tuple[Arr, Arr]:
    """Return the share of devices, the thriftiest first, and their share of all amounts.

    Both are of shape (devices + 1,) and run from 0 to 1. If all amounts are 0, they count as equal.
    """
    ascending = np.sort(np.asarray(amounts, dtype=np.float64))
    devices = np.linspace(0.0, 1.0, len(ascending) + 1)
    total = ascending.sum()
    return devices, np.concatenate([[0.0], np.cumsum(ascending)]) / total if total > 0 else devices


def gini(amounts: Arr) -> float:
    """Return the Gini coefficient: twice the area between the Lorenz curve and the diagonal, from 0 to below 1."""
    return float(1.0 - 2.0 * trapezoid(*lorenz_curve(amounts)[::-1]))


def lorenz_of(devices: pd.DataFrame, setting: str, value: str) -> tuple[Arr, Arr, float]:
    """Return the mean over a setting's runs of their Lorenz curves, and of their Gini coefficients."""
    runs = [of_run[value].to_numpy() for _, of_run in devices[devices["setting"] == setting].groupby("run", sort=False)]
    curves = [lorenz_curve(amounts) for amounts in runs]
    at = np.unique(np.concatenate([shares for shares, _ in curves]))
    mean = np.mean([np.interp(at, *curve) for curve in curves], axis=0)
    return at, mean, float(np.mean([gini(amounts) for amounts in runs]))


def lorenz(devices: pd.DataFrame, value: str = "joules", words: str = "energy", width_in: float = 3.5) -> Drawing:
    """Return a picture of Lorenz curves, a line per setting, the mean of its runs.

    `devices`: a row per run and device, with setting, run and `value`. On the diagonal all devices spend the same.
    Raises ConfigError if there is nothing to draw.
    """
    labels = settings_of(devices, ["run", value])
    side = min(3.4, 0.9 * width_in)
    found = {label: lorenz_of(devices, label, value) for label in labels}
    names = [f"{label} (Gini {coefficient:.2f})" for label, (_, _, coefficient) in found.items()]
    with figure(width_in, side + legend_in(names, width_in)) as drawn:
        axis = drawn.subplots()
        axis.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
        handles = []
        for (at, mean, _), look in zip(found.values(), looks(len(labels), 0.8), strict=True):
            handles += axis.plot(at, mean, **look)
        axis.set(xlim=(0, 1), ylim=(0, 1), xlabel="share of devices", ylabel=f"share of {words}", box_aspect=1)
        seaborn.despine(ax=axis)
        legend_below(drawn, handles, names)
    return drawn
