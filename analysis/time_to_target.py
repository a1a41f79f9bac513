"""Cost of each target accuracy over the seeds. Usage: python analysis/time_to_target.py RUN..."""

import math
from pathlib import Path

from edgesim.cli.look import opened
from edgesim.cli.main import run_script
from edgesim.studies.report import study_of
from edgesim.studies.values import summarised, values_of

COSTS = ["rounds", "sim_time_s", "energy_j", "active_j", "participant_j", "up_bytes"]
SHOWN = ["configuration", "target", "cost", "runs", "reached", "median", "km_low", "km_high"]


def main(runs: list[Path]) -> None:
    """Print CSV: for each configuration, target and cost the runs, those that reached it, and a median.

    It is the Kaplan-Meier median with its 95 % interval, `km_low` to `km_high`. A run that ended before the target
    counts as censored, because a mean over the runs that succeeded would be too low (docs/explanation/statistics.md).
    An end `inf` is more than any run has spent.
    """
    study, cells = study_of([opened(folder) for folder in runs])
    targets = [name.partition("@")[2] for name in study.columns if name.startswith("sim_time_s@")]
    rows = summarised(values_of(study, cells, [f"{cost}@{target}" for target in targets for cost in COSTS]))
    rows[["cost", "target"]] = rows["column"].str.split("@", n=1, expand=True)
    rows["median"] = ["not reached" if math.isinf(value) else f"{value:.6g}" for value in rows["km_median"]]
    print(rows[SHOWN].to_csv(index=False, float_format="%.6g"), end="")


if __name__ == "__main__":
    run_script(main)
