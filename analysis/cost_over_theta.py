"""Which setting is cheapest if joules count more? Usage: python analysis/cost_over_theta.py [STUDY] [--size SIZE]

The cost is (1 - theta) x seconds + theta x joules, as in the DA-DPFL paper. Runs what is missing of the study, by
default policies of frequency, power and bandwidth in a cell.
"""

from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import seaborn
import typer

import edgesim
from edgesim.cli.main import run_script
from edgesim.core.errors import ConfigError
from edgesim.reports.figures import PALETTE, figure, save
from edgesim.studies.tradeoffs import RoundCost, at_thetas, cheapest_over_theta, names_of, typical
from edgesim.studies.values import axes_of

STUDY = Path(__file__).parents[1] / "scenarios" / "studies" / "cell_policies.toml"


def main(
    study: Annotated[Path, typer.Argument()] = STUDY, size: str | None = None, seconds: str = "", joules: str = "",
    out: Path = Path("cost_over_theta"),
) -> None:  # fmt: skip
    """Print two tables as CSV and draw a line for each configuration.

    The tables have the cost at some thetas, and the cheapest configuration in each range of theta. `seconds`, `joules`:
    columns; default the study's first two. A number is the mean over the seeds or, where any run missed its target, the
    Kaplan-Meier median of all configurations. Those whose median is beyond all runs have no cost.
    """
    result = edgesim.study(study).run(size=size)
    columns = [seconds or result.study.columns[0], joules or result.study.columns[1]]
    summary = result.summary()
    found = typical(summary, columns).frame
    names = names_of(found[axes_of(summary)])
    costs = {name: RoundCost(*row) for name, row in zip(names, found[columns].to_numpy(), strict=True)}
    costs = {name: cost for name, cost in costs.items() if np.isfinite(cost).all()}
    if not costs:
        raise ConfigError(f"{study}: no configuration has both {columns[0]} and {columns[1]}")
    table = pd.DataFrame([{"setting": name, **at_thetas(cost)} for name, cost in costs.items()])
    print(table.to_csv(index=False, float_format="%.6g"))
    print(pd.DataFrame(cheapest_over_theta(costs)).to_csv(index=False, float_format="%.4g"), end="")

    ends = pd.DataFrame(
        [{"setting": name, "theta": theta, "cost": cost[theta]} for name, cost in costs.items() for theta in (0, 1)]
    )
    with figure(5.4, 3.4) as drawn:
        axis = drawn.subplots()
        seaborn.lineplot(ends, x="theta", y="cost", hue="setting", style="setting", palette=PALETTE, ax=axis)
        axis.set(xlabel="theta: weight of energy", ylabel="(1 - theta) s + theta J", xlim=(0, 1), ylim=(0, None))
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
        for path in save(drawn, out):
            print(path)


if __name__ == "__main__":
    run_script(main)
