"""Which method is ahead after a given simulated time? Usage: python analysis/accuracy_vs_time.py RUN... [--out STEM]"""

from pathlib import Path

from edgesim.cli.look import opened
from edgesim.cli.main import run_script
from edgesim.reports.pictures import plot_runs


def main(runs: list[Path], out: Path = Path("accuracy_vs_time")) -> None:
    """Draw test accuracy against simulated time, in one panel."""
    for path in plot_runs([opened(folder) for folder in runs], against=["sim_time_s"], out=out):
        print(path)


if __name__ == "__main__":
    run_script(main)
