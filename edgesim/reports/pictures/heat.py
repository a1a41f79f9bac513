"""Heat map: a number of every combination of two axes of a study, as colour and as text."""

from __future__ import annotations

import numpy as np
import pandas as pd
import seaborn

from edgesim.core.errors import ConfigError
from edgesim.reports.figures import Drawing, figure, shortened
from edgesim.reports.format import unit_for

_COLOURS = "cividis"  # equal steps in grey, and the same for colour-blind readers


def heat(cells: pd.DataFrame, x: str, y: str, value: str, words: str = "", width_in: float = 3.5) -> Drawing:
    """Return a heat map with a field for each pair of labels. A field without a number, or target, has a dash.

    `cells`: a row per pair, with the columns `x`, `y` (labels, in the order in which they stand) and `value`, which
    names its unit. inf: the target was not reached. Raises ConfigError if there is nothing to draw, or a pair
    comes twice.
    """
    missing = [name for name in (x, y, value) if name not in cells]
    cells = cells if missing else cells.assign(**{value: cells[value].where(np.isfinite(cells[value]))})
    if missing or cells.empty or cells[value].notna().sum() == 0:
        lacks = f"the frame lacks {', '.join(missing)}" if missing else "there is nothing to draw"
        raise ConfigError(f"picture: {lacks}")
    if cells.duplicated([x, y]).any():
        raise ConfigError(f"picture: several numbers for one pair of {x} and {y}; choose cells with --only")
    columns, rows = (list(dict.fromkeys(cells[name].astype(str))) for name in (x, y))
    grid = cells.astype({x: str, y: str}).pivot(index=y, columns=x, values=value).reindex(index=rows, columns=columns)
    unit = unit_for(value.partition("@")[0], float(grid.abs().max().max()))
    numbers = grid.to_numpy(dtype=float) / unit.size
    texts = np.array([[f"{number:.3g}" for number in row] for row in numbers])
    with figure(width_in, max(1.6, 0.9 + 0.3 * len(rows))) as drawn:
        axis = drawn.subplots()
        # text is small where it has to be: three digits in a field
        size = min(8.0, 72 * 0.62 * width_in / len(columns) / 3.2)
        frame = pd.DataFrame(numbers, index=[shortened(row, 16) for row in rows], columns=columns)
        look = {"linewidths": 0.8, "linecolor": "white", "annot_kws": {"fontsize": size}}
        label = f"{words or value} ({unit.symbol})" if unit.symbol else words or value
        seaborn.heatmap(frame, ax=axis, annot=texts, fmt="", cmap=_COLOURS, cbar_kws={"label": label}, **look)
        for row, column in np.argwhere(np.isnan(numbers)):  # seaborn writes nothing there
            axis.text(column + 0.5, row + 0.5, "–", ha="center", va="center", fontsize=size, color="0.3")
        axis.set(xlabel=x, ylabel=y)
        axis.tick_params(length=0)
        axis.set_yticklabels(axis.get_yticklabels(), rotation=0)
    return drawn
