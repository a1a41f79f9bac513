"""Do peers wait as long as they should? Usage: python analysis/dadpfl_waiting.py [--rounds 1000]

Runs scenarios/dadpfl_waiting.toml once for each row of docs/data/dadpfl_waiting.csv, a reference for Figs. 8 and 9 of
the DA-DPFL paper, and prints a Markdown table of both. A number too far from its reference is bold, and the exit code
1.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer

import edgesim
from edgesim.cli.main import run_script
from edgesim.execution.backends.null import NullBackend
from edgesim.runs.assembly import assemble
from edgesim.runs.simulation import Silent, Simulation

ROOT = Path(__file__).parents[1]
REFERENCE_ROUNDS = 10_000
DEVICES = 100
NUMBERS = ["mean_max_wait", "p_now", "mean_wait", "p_mean", "p_peak"]


def reference() -> pd.DataFrame:
    """Return the reference, one row a setting."""
    return pd.read_csv(ROOT / "docs" / "data" / "dadpfl_waiting.csv", comment="#")


def measured(row: Mapping[str, Any], rounds: int) -> dict[str, float]:
    """Return the numbers of a row as edgesim has them; waits are in units of one training.

    `p_now`: share of devices that start at once; `p_mean`: mean share that trains at a time; `p_peak`: mean over rounds
    of the largest share that starts together.
    """
    settings = {"peers.degree": row["M"], "method.reuse": row["N"], "method.wait_select": row["wait_select"]}
    overrides = [f"{key}={value}" for key, value in {**settings, "stop.rounds": rounds}.items()]
    simulation = Simulation(
        assemble(edgesim.load(ROOT / "scenarios" / "dadpfl_waiting.toml", overrides)), NullBackend(), Silent()
    )
    simulation.run()
    jobs = simulation.tables["jobs"].frame().sort_values(["round", "device"])
    waits = np.rint(jobs["wait_s"].to_numpy()).astype(int).reshape(rounds, DEVICES)
    return {
        "mean_max_wait": waits.max(axis=1).mean(),
        "p_now": (waits == 0).mean(),
        "mean_wait": waits.mean(),
        "p_mean": (1.0 / (1.0 + waits.max(axis=1))).mean(),
        "p_peak": np.mean([np.bincount(of_round).max() / DEVICES for of_round in waits]),
    }


def tolerances(row: Mapping[str, Any], rounds: int) -> dict[str, float]:
    """Return how far each number may be from its reference, which has errors of its own.

    Four standard errors of the mean of the longest wait, and of a share of 1 / (M + 1); else 3 %.
    """
    now = 1.0 / (1.0 + row["M"])
    return {
        **{name: 0.03 * row[name] for name in NUMBERS},
        "mean_max_wait": 4.0 * row["sd_max_wait"] * np.sqrt(1.0 / rounds + 1.0 / REFERENCE_ROUNDS),
        "p_now": 4.0 * np.sqrt(now * (1.0 - now) / (rounds * DEVICES)),
    }


def expected(row: Mapping[str, Any]) -> dict[str, float]:
    """Return what the numbers of a row should be; `p_now` in closed form: a device is the first of M + 1."""
    return {**{name: row[name] for name in NUMBERS}, "p_now": 1.0 / (1.0 + row["M"])}


def line(row: Mapping[str, Any], rounds: int) -> str:
    """Return a row of the table: each number as measured, and as it should be."""
    found, right, within = measured(row, rounds), expected(row), tolerances(row, rounds)
    marks = {name: "**" if abs(found[name] - right[name]) > within[name] else "" for name in NUMBERS}
    cells = [f"{marks[name]}{found[name]:.4g} ({right[name]:.4g}){marks[name]}" for name in NUMBERS]
    return f"| {row['M']} | {row['N']} | {row['wait_select']} | {' | '.join(cells)} |"


def main(rounds: Annotated[int, typer.Option(min=1)] = 1_000) -> None:
    """Print the table."""
    print(f"| M | N | wait_select | {' | '.join(NUMBERS)} |\n|{'---|' * (3 + len(NUMBERS))}")
    too_far = False
    for row in reference().to_dict("records"):
        print(cells := line(row, rounds), flush=True)
        too_far |= "**" in cells
    raise typer.Exit(code=int(too_far))


if __name__ == "__main__":
    run_script(main)
