"""When does each configuration reach its targets? Usage: python analysis/completion_time.py RUN... [--out STEM]"""

from pathlib import Path

import numpy as np
import pandas as pd
import seaborn
from scipy.stats import CensoredData, ecdf

from edgesim.cli.look import opened
from edgesim.cli.main import run_script
from edgesim.core.errors import ConfigError
from edgesim.reports.figures import PALETTE, figure, save
from edgesim.studies.decision import CONFIGURATION
from edgesim.studies.report import study_of
from edgesim.studies.values import summarised, values_of

COSTS = ["rounds", "sim_time_s", "energy_j", "active_j", "participant_j", "up_bytes"]
SHOWN = [CONFIGURATION, "target", "cost", "runs", "reached", "median", "km_low", "km_high"]


def still_short(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the Kaplan-Meier curve of runs: seconds, and the share short of the target.

    `runs`: columns value, observed and never, see `values_of`. A run that ended before the target is censored: it
    counts as long as it went on, or to the end of the curve if it would never have reached the target.
    """
    until = runs["value"].mask(runs["never"], runs["value"].max())
    curve = ecdf(CensoredData(until[runs["observed"]], right=until[~runs["observed"]])).sf
    return pd.DataFrame({"seconds": np.append(0.0, curve.quantiles), "share": np.append(1.0, curve.probabilities)})


def main(runs: list[Path], out: Path = Path("completion_time")) -> None:
    """Print CSV, a row for each configuration, target and cost, and draw a panel of curves for each target.

    The median is Kaplan and Meier's, with its 95 % interval, `km_low` to `km_high`. There is no mean, because one over
    the runs that reached the target would be too low (docs/explanation/statistics.md). An end `inf` is more than any
    run has spent.
    """
    study, cells = study_of([opened(folder) for folder in runs])
    targets = [name.partition("@")[2] for name in study.columns if name.startswith("sim_time_s@")]
    if not targets:
        raise ConfigError("these runs have no target; name some in evaluation.targets of the scenario")
    values = values_of(study, cells, [f"{cost}@{target}" for target in targets for cost in COSTS])
    if values["value"].isna().all():
        raise ConfigError("these runs evaluated nothing, so it is not known when they reached a target")
    rows = summarised(values)
    rows[["cost", "target"]] = rows["column"].str.split("@", n=1, expand=True)
    rows["median"] = rows["km_median"].map("{:.6g}".format).replace("inf", "not reached")
    print(rows[SHOWN].to_csv(index=False, float_format="%.6g"), end="")

    with figure(0.4 + 3.2 * len(targets), 3.0) as drawn:
        for axis, target in zip(np.ravel(drawn.subplots(1, len(targets), sharey=True)), targets, strict=True):
            known = values[values["column"] == f"sim_time_s@{target}"].dropna(subset="value")
            by_configuration = known.groupby(CONFIGURATION, sort=False)[["value", "observed", "never"]]
            curves = by_configuration.apply(still_short).reset_index()
            seaborn.lineplot(
                curves, x="seconds", y="share", hue=CONFIGURATION, style=CONFIGURATION, palette=PALETTE,
                drawstyle="steps-post", estimator=None, ax=axis,
            )  # fmt: skip
            axis.set(title=f"target {target}", xlabel="simulated time (s)", ylabel="runs short of it", ylim=(0, 1.02))
        for path in save(drawn, out):
            print(path)


if __name__ == "__main__":
    run_script(main)
