"""Where do the joules go? Usage: python analysis/energy_breakdown.py RUN... [--out STEM]"""

from pathlib import Path

import seaborn
from matplotlib import rc_context
from matplotlib.figure import Figure

from edgesim.cli.look import opened
from edgesim.cli.main import run_script
from edgesim.reports.figures import PALETTE, STYLE, save
from edgesim.reports.format import unit_for
from edgesim.reports.stats import energy_by_kind

COMPONENTS = {"down_j": "download", "compute_j": "compute", "up_j": "upload", "idle_j": "idle", "sleep_j": "sleep"}


def main(runs: list[Path], out: Path = Path("energy_breakdown")) -> None:
    """Draw a panel a run: a bar for each kind of device, stacked by what the energy was spent on."""
    joules = [(run.name, energy_by_kind(run)) for run in map(opened, runs)]
    unit = unit_for("energy_j", max(frame.sum(axis=1).max() for _, frame in joules))
    colors = seaborn.color_palette(PALETTE, len(COMPONENTS))
    with rc_context(STYLE):
        figure = Figure(figsize=(0.6 + 3.4 * len(joules), 3.8), layout="constrained")
        axes = figure.subplots(1, len(joules), sharey=True, squeeze=False)[0]
        for axis, (name, frame) in zip(axes, joules, strict=True):
            scaled = frame.rename(columns=COMPONENTS) / unit.size
            scaled.plot.bar(stacked=True, ax=axis, color=colors, width=0.65, legend=False, rot=0, xlabel="")
            axis.set_title(name, fontsize="medium")
            axis.grid(visible=False, axis="x")
            seaborn.despine(ax=axis)
        axes[0].set_ylabel(f"energy ({unit.symbol})")
        figure.legend(
            *axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(COMPONENTS), frameon=False
        )
        for path in save(figure, out):
            print(path)


if __name__ == "__main__":
    run_script(main)
