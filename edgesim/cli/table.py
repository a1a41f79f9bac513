"""The `table` command: what runs reached and what it took, for people, pages and programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from edgesim.cli import show
from edgesim.cli.formats import order
from edgesim.cli.open_runs import all_opened
from edgesim.files.tables import csv_text
from edgesim.reports.load import Run
from edgesim.reports.stats import costs_of, summary


def print_runs_as(folders: Sequence[Path], style: str, sort: str | None) -> None:
    """Print the runs that some paths name as `style`: csv, json, markdown, latex or, if it is "", for a terminal.

    Raises ConfigError if a path names no run, or `sort` no column.
    """
    runs = all_opened(folders)
    if sort:
        runs = [runs[place] for place in order(flat(runs), sort)]
    if style == "csv":
        print(csv_text(flat(runs)), end="")
    elif style == "json":
        show.print_json({"runs": [_about(run) | summary(run) for run in runs]})
    else:
        show.print_runs(runs, style)


def flat(runs: Sequence[Run]) -> pd.DataFrame:
    """Return a row a run: run, folder, seed, its summary, and its costs until each target, as in sim_time_s@0.75."""
    rows = []
    for run in runs:
        found = summary(run)
        targets = found.pop("targets")
        until = {
            f"{'rounds' if name == 'round' else name}@{target}": (costs or {}).get(name)
            for target, costs in targets.items()
            for name in costs_of(run)
        }
        rows.append(_about(run) | found | until)
    return pd.DataFrame(rows).convert_dtypes()


def _about(run: Run) -> dict[str, object]:
    return {"run": run.name, "folder": str(run.folder), "seed": run.seed}
