"""What the commands print: tables for people, JSON for programs."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from edgesim.analysis.load import Run
from edgesim.analysis.readable import divergence, text
from edgesim.analysis.stats import summary, targets_table
from edgesim.records.writer import plain_json

_WIDE = 400  # a pipe has no width to keep to; a table takes only what it needs
_COSTS = {
    "sim_time_s": "simulated time",
    "energy_j": "energy",
    "active_j": "active",  # above idle power
    "idle_j": "idle",
    "participant_j": "participants",  # energy without the idle power of devices that were never asked
    "up_bytes": "up",
    "down_bytes": "down",
}


def print_runs(runs: Sequence[Run]) -> None:
    """Print a row a run, then a row for each run and target accuracy."""
    rows = [{"run": run.name} | summary(run) for run in runs]
    shown = {
        "run": "run",
        "status": "status",
        "method": "method",
        "rounds": "rounds",
        "accuracy": "accuracy",
        "best_accuracy": "best",
    }
    print_table(rows, shown | _COSTS | {"host_s": "host time"})
    for run, row in zip(runs, rows, strict=True):
        if row["diverged"]:
            print(f"{run.name}: {divergence(row['diverged'])}")
    targets = targets_table(runs)
    if not targets.empty:
        keep = {"run": "run", "status": "status", "method": "method", "target": "target", "round": "round"}
        print_table(targets.to_dict("records"), keep | _COSTS, title="when a target accuracy was first reached")


def print_frame(frame: pd.DataFrame, title: str | None = None) -> None:
    """Print a data frame with readable units, chosen by the names of its columns."""
    print_table(frame.to_dict("records"), {str(name): str(name) for name in frame}, title)


def print_table(rows: Iterable[Mapping[Any, Any]], columns: Mapping[str, str], title: str | None = None) -> None:
    """Print the named columns of some rows under their headings; numbers to the right, missing values as a dash."""
    cells = [{name: _cell(name, row[name]) for name in columns} for row in rows]
    table = Table(box=box.SIMPLE_HEAD)
    for name, heading in columns.items():
        numbers = all(cell[:1] in "-0123456789" for cell in (row[name] for row in cells))
        table.add_column(heading, justify="right" if numbers else "left")
    for row in cells:
        table.add_row(*row.values())
    console = Console(width=None if sys.stdout.isatty() else _WIDE, markup=False, highlight=False)
    if title:
        console.print(title)  # not the table's own title, which would be folded to the table's width
    console.print(table)


def print_json(value: Any) -> None:
    """Print one JSON value to stdout; infinities and NaN become strings."""
    print(plain_json(value))


def print_note(line: str) -> None:
    """Print a line to stderr, where it does not mix with results."""
    print(line, file=sys.stderr)


def first_line(part: Any) -> str:
    """Return the first line of a part's docstring."""
    return (inspect.getdoc(part) or "").partition("\n")[0]


def _cell(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None or pd.isna(value):
        return "-"
    if isinstance(value, float) and "accuracy" in name:
        return f"{value:.4f}"
    return text(name, value)
