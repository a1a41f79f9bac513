"""How far can a second be trusted? Usage: python analysis/device_clock.py [RUN...] [--device NAME]

Compares measured training steps with the clock that a fit without their family of networks gives. Then times runs again
with errors of this kind, without training them anew.
"""

from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import seaborn
import typer

from edgesim.cli.look import opened
from edgesim.cli.main import run_script
from edgesim.core.errors import ConfigError
from edgesim.reports.figures import INK, PALETTE, figure, save
from edgesim.runs.retiming import quantiles, retimed
from edgesim.world.clocks.fit import left_out, seconds_per_unit

MEASURED = Path(__file__).parents[1] / "benchmarks" / "devices"
KEYS = ["model", "input", "batch", "trained"]
KINDS = ["flops", "bytes", "conv_bytes", "depthwise_flops", "depthwise_channels", "forward_pointwise_flops"]
KINDS += ["operations", "update_bytes", "samples"]  # a sample: a JPEG image is loaded


def steps(device: str) -> pd.DataFrame:
    """Return measured and predicted seconds of the steps of a board. Raises ConfigError for another device.

    A prediction comes from a fit to the steps of all other families. docs/explanation/device_times.md also takes the
    cost of an operation from another device, and the Pi 5's terms from the Pi 4, so its errors differ slightly.
    """
    rows = pd.read_csv(MEASURED / "raspberry_pi.csv")
    if device not in set(rows["device"]):
        raise ConfigError(f"--device: {device!r} has no measured steps (known: {', '.join(rows['device'].unique())})")
    work = pd.read_csv(MEASURED / "work.csv").query("library == 'timm'").drop(columns="family")
    rows = rows[rows["device"] == device].merge(work, on=KEYS, validate="one_to_one")
    rows["samples"] = rows["batch"]
    amounts, seconds = rows[KINDS].to_numpy(float), rows["seconds"].to_numpy(float)
    predicted = left_out(amounts, rows["family"], lambda seen: seconds_per_unit(amounts[seen], seconds[seen]))
    return rows[["family", "model", "seconds"]].assign(predicted=predicted, off=predicted / seconds - 1)


def main(
    runs: Annotated[list[Path] | None, typer.Argument()] = None, device: str = "raspberry_pi_4",
    draws: Annotated[int, typer.Option(min=20)] = 200, out: Path = Path("device_clock"),
) -> None:  # fmt: skip
    """Print CSV and draw both comparisons.

    The first table has the errors of each family, worst first. The second has the total seconds of each run, and their
    90 % interval over draws of the clocks' errors. All runs have the same draws.
    """
    measured = steps(device)
    error = measured["off"].abs()
    families = measured.assign(error=error, within_25=error <= 0.25).groupby("family")
    table = families.agg(steps=("error", "size"), mean_error=("error", "mean"), within_25=("within_25", "mean"))
    print(f"# {device}: mean error {error.mean():.1%}, {(error <= 0.25).mean():.1%} of {len(error)} within 25 %")
    print(table.sort_values("mean_error", ascending=False).to_csv(float_format="%.3g"))

    again = {}
    for run in map(opened, runs or []):
        again[run.name] = np.array([each.rounds["now_s"].iloc[-1] for each in retimed(run, draws).runs])
    if again:
        rows = [{"run": name, **quantiles(totals_s)._asdict()} for name, totals_s in again.items()]
        print(pd.DataFrame(rows).to_csv(index=False, float_format="%.6g"))

    with figure(3.6 * (1 + bool(again)), 3.2) as drawn:
        axes = np.ravel(drawn.subplots(1, 1 + bool(again)))
        seaborn.scatterplot(measured, x="seconds", y="predicted", hue="family", s=18, legend=False, ax=axes[0])
        ends = np.array([measured["seconds"].min(), measured["seconds"].max()])
        axes[0].fill_between(ends, 0.75 * ends, 1.25 * ends, color=INK, alpha=0.1, linewidth=0)
        axes[0].plot(ends, ends, color=INK, linewidth=0.8)
        axes[0].set(xscale="log", yscale="log", xlabel="measured step (s)", ylabel="predicted (s); band: 25 %")
        if again:
            seaborn.histplot(pd.DataFrame(again), palette=PALETTE, element="step", bins=24, ax=axes[1])
            axes[1].set(xlabel="simulated seconds of the run", ylabel="draws of the clocks' errors")
        for path in save(drawn, out):
            print(path)


if __name__ == "__main__":
    run_script(main)
