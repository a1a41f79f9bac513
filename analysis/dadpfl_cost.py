"""Which method costs least if joules count more, or less? Usage: python analysis/dadpfl_cost.py [RUN...] [--out STEM]

Draws and prints (1 - theta) x seconds + theta x joules of a round for every method in Table II of the DA-DPFL paper
(docs/data/dadpfl_table_2.csv), and the theta from which on DA-DPFL is cheaper than each: its Figs. 3 and 4. Of runs it
does so for what all their rounds really took; of those of `dadpfl_gpu` devices also for the FLOPs and bytes of the last
round times the number of rounds, which is how the paper counts, although the last round of DA-DPFL is the cheapest.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import seaborn
import typer
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from edgesim.cli.look import opened
from edgesim.cli.main import run_script
from edgesim.config import device_profiles
from edgesim.reports.figures import PALETTE, STYLE, save
from edgesim.reports.load import Run
from edgesim.studies.tradeoffs import SCALINGS, DeviceRates, RoundCost, at_thetas, counted, crossings

TABLE_2 = Path(__file__).parents[1] / "docs" / "data" / "dadpfl_table_2.csv"
DATASETS = {"CIFAR10": "C10", "CIFAR100": "C100"}
SCALING_OF = {
    **dict.fromkeys(("FedAvg", "Ditto", "FedDST"), "server_based"),
    **dict.fromkeys(("DA-DPFL_Dir", "DA-DPFL_Pat"), "waiting"),
}
_SPEC = device_profiles.find("dadpfl_gpu")
GPU = DeviceRates(_SPEC.flops_per_s, _SPEC.si["down"], _SPEC.si["busy"], _SPEC.si["transmit"])


def show(rows: Iterable[Mapping[str, Any]], digits: str = "%.4f") -> None:
    """Print rows, if there are any, as CSV, and an empty line."""
    if table := list(rows):
        print(pd.DataFrame(table).to_csv(index=False, float_format=digits))


# --- the paper's table ------------------------------------------------------------------------------------------


def published(dataset: str) -> dict[str, tuple[float, float, RoundCost]]:
    """Return a method's seconds of computing and of sending in a round, and their cost, from Table II."""
    column, found = DATASETS[dataset], {}
    for row in pd.read_csv(TABLE_2, comment="#").to_dict("records"):
        method, spent = row["table2_method"], (row[f"{column}_FLOP_1e12"] * 1e12, row[f"{column}_Com_MB"] * 1e6)
        found[method] = (*GPU.seconds(*spent), GPU.cost(*spent, SCALINGS[SCALING_OF.get(method, "none")]))
    return found


def print_published(dataset: str) -> dict[str, list[RoundCost]]:
    """Print the costs and crossings of a data set as CSV; return the costs."""
    found = published(dataset)
    costs = {method: cost for method, (_, _, cost) in found.items()}
    table = [
        {"dataset": dataset, "method": method, "T_comp_s": compute_s, "T_comm_s": transfer_s}
        | {"C_time": cost.time_s, "C_energy": cost.energy_j, **at_thetas(cost)}
        for method, (compute_s, transfer_s, cost) in found.items()
    ]
    show(table)
    show(pair for pair in crossings(costs) if str(pair["cheaper"]).startswith("DA-DPFL"))
    return {method: [cost] for method, cost in costs.items()}


# --- runs -------------------------------------------------------------------------------------------------------


def print_runs(runs: Sequence[Run]) -> dict[str, list[RoundCost]]:
    """Print the costs of runs and their crossings as CSV; return the costs by both counts."""
    tables = {run.name: counted(run, GPU) for run in runs}
    costs = {name: [RoundCost(*row) for row in table[["time_s", "energy_j"]].values] for name, table in tables.items()}
    show(
        ({"run": name, "counted": count, **row, **at_thetas(cost)}
         for name, table in tables.items() for (count, row), cost in zip(table.iterrows(), costs[name], strict=True)),
        "%.6g",
    )  # fmt: skip
    for place, count in enumerate(("all rounds", "last round")):
        known = {name: counts[place] for name, counts in costs.items() if place < len(counts)}
        show({"counted": count, **pair} for pair in crossings(known))
    return costs


def draw(axis: Axes, title: str, costs: Mapping[str, Sequence[RoundCost]]) -> None:
    """Draw a straight line a cost, the second of each name dashed; names with the same costs share theirs."""
    names: dict[str, list[str]] = {}
    for name, lines in costs.items():
        names.setdefault(" ".join(f"{number:.6g}" for cost in lines for number in cost), []).append(name)
    for alike, color in zip(names.values(), seaborn.color_palette(PALETTE, len(names)), strict=True):
        for cost, style, label in zip(costs[alike[0]], ("-", "--"), (", ".join(alike), None), strict=False):
            axis.plot((0, 1), cost, style, color=color, linewidth=1.4, label=label)
    axis.set(title=title, xlabel="theta: weight of energy", xlim=(0, 1), ylim=(0, None))
    axis.legend(frameon=False, fontsize="small")
    seaborn.despine(ax=axis)


def main(runs: Annotated[list[Path] | None, typer.Argument()] = None, out: Path = Path("dadpfl_cost")) -> None:
    """Print the tables and draw a panel for each data set, and one for the runs."""
    panels = {dataset: print_published(dataset) for dataset in DATASETS}
    if runs:
        panels["runs (dashed: by their last round)"] = print_runs([opened(folder) for folder in runs])
    with rc_context(STYLE):
        figure = Figure(figsize=(0.6 + 4.6 * len(panels), 4.2), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axis, (title, costs) in zip(axes, panels.items(), strict=True):
            draw(axis, title, costs)
        axes[0].set_ylabel("(1 - theta) x seconds + theta x joules")
        for path in save(figure, out):
            print(path)


if __name__ == "__main__":
    run_script(main)
