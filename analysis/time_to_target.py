"""What does a target accuracy take, as a mean over seeds? Usage: python analysis/time_to_target.py RUN..."""

from pathlib import Path

import pandas as pd

from edgesim.cli.look import opened
from edgesim.cli.main import run_script
from edgesim.reports.groups import groups
from edgesim.reports.stats import targets_table

COSTS = ["round", "sim_time_s", "energy_j", "active_j", "participant_j", "up_bytes"]


def main(runs: list[Path]) -> None:
    """Print CSV: for each scenario and target the runs, how many reached it, and mean costs if all of them did.

    A mean over the runs that succeeded would be too low: docs/explanation/statistics.md.
    """
    labels = groups([opened(folder) for folder in runs])
    table = pd.concat([targets_table([run]).assign(scenario=label) for run, label in labels.items()])
    by_target = table.groupby(["scenario", "target"])
    counts = by_target["round"].agg(runs="size", reached="count")
    means = by_target[COSTS].mean().where(counts["reached"] == counts["runs"])
    print(counts.join(means).to_csv(float_format="%.6g"), end="")


if __name__ == "__main__":
    run_script(main)
