"""Which settings waste neither time nor energy? Usage: python analysis/time_energy_pareto.py [STUDY] [--size SIZE]

Runs what is missing of the study, by default policies of frequency, power and bandwidth in a cell.
"""

from pathlib import Path
from typing import Annotated

import numpy as np
import seaborn
import typer

import edgesim
from edgesim.cli.main import run_script
from edgesim.reports.figures import GREY, INK, PALETTE, figure, save
from edgesim.studies.tradeoffs import front, names_of
from edgesim.studies.values import axes_of

STUDY = Path(__file__).parents[1] / "scenarios" / "studies" / "cell_policies.toml"


def main(
    study: Annotated[Path, typer.Argument()] = STUDY, size: str | None = None, x: str = "", y: str = "",
    out: Path = Path("time_energy_pareto"),
) -> None:  # fmt: skip
    """Print CSV, a row for each configuration, and draw the front. `x`, `y`: columns; default the study's first two.

    A number is the mean over the seeds or, where any run missed its target, the Kaplan-Meier median of all
    configurations. A configuration whose median is beyond all runs is printed as `inf` and not drawn.
    """
    result = edgesim.study(study).run(size=size)
    x, y = x or result.study.columns[0], y or result.study.columns[1]
    summary = result.summary()
    points = front(summary, [x, y])
    points["setting"] = names_of(points[axes_of(summary)])
    shown = points[["setting", x, y, "on_front", "knee", "dominated_by"]]
    print(shown.to_csv(index=False, float_format="%.6g"), end="")

    best = points[points["on_front"]].sort_values(x)
    with figure(5.4, 3.4) as drawn:
        axis = drawn.subplots()
        axis.plot(best[x], best[y], color=INK, linewidth=1, zorder=1)
        there = points[np.isfinite(points[[x, y]]).all(axis=1)]
        seaborn.scatterplot(there, x=x, y=y, hue="setting", style="setting", palette=PALETTE, s=45, ax=axis)
        dominated = there[~there["on_front"]]
        axis.scatter(dominated[x], dominated[y], s=130, facecolors="none", edgecolors=GREY)
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
        for path in save(drawn, out):
            print(path)


if __name__ == "__main__":
    run_script(main)
