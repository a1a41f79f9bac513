"""Printed output of commands: tables on a terminal or for pages, and JSON."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgesim.cli.formats import latex, markdown
from edgesim.cli.grid import GridColumn, print_grid
from edgesim.core.metrics import ACCURACY
from edgesim.reports.format import divergence, heading, text

if TYPE_CHECKING:
    import pandas as pd

    from edgesim.reports.load import Run

_UNUSUAL = re.compile(r"[^\n -~]")
_OTHERS = {"energy_network_j": "network", "energy_server_j": "server"}  # joules beside those of the devices
_COSTS = {
    "sim_time_s": "simulated time",
    "energy_j": "energy",
    "active_j": "active",  # above idle power
    "idle_j": "idle",
    "participant_j": "participants",  # energy without the idle power of devices that were never asked
    **_OTHERS,
    "up_bytes": "up",
    "down_bytes": "down",
}


def print_runs(runs: Sequence[Run], style: str = "") -> None:
    """Print a row for each run, then a row for each run and target. For `style` see `print_table`."""
    from edgesim.reports.stats import summary, targets_table  # load pandas, which few of these commands need

    names = unique_names(runs)
    rows = [{"run": name} | summary(run) for run, name in zip(runs, names, strict=True)]
    shown = {
        "run": "run",
        "status": "status",
        "method": "method",
        "rounds": "rounds",
        "accuracy": "accuracy",
        "best_accuracy": "best",
    }
    own = dict.fromkeys(name for run in runs for name in (run.goal, *run.better) if name not in (ACCURACY, "loss"))
    if own and all(row["accuracy"] is None for row in rows):
        del shown["accuracy"], shown["best_accuracy"]
    shown |= {key: heading for name in own for key, heading in ((name, name), (f"best_{name}", "best"))}
    rows = [{key: row.get(key) for key in {**shown, **row}} for row in rows]
    costs = without_silent(_COSTS, rows)
    print_table(rows, shown | costs | {"host_s": "host time"}, style=style)
    for name, row in zip(names, rows, strict=True):
        if row["diverged"] and not style:
            print(f"{name}: {divergence(row['diverged'])}")
    targets = targets_table(runs)
    if not targets.empty:
        metric = {"metric": "metric"} if "metric" in targets else {}
        keep = {"run": "run", "status": "status", "method": "method", **metric, "target": "target", "round": "round"}
        title = f"when a target {'of a metric' if metric else 'accuracy'} was first reached"
        each = [name for run, name in zip(runs, names, strict=True) for _ in (*run.targets, *run.metric_targets)]
        named = targets.assign(run=each)
        print_table(named.to_dict("records"), keep | costs, title, keys=4 + len(metric), style=style)


def without_silent(headings: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the headings without energy accounts that spent nothing in any row."""
    return {name: head for name, head in headings.items() if name not in _OTHERS or any(row[name] for row in rows)}


def unique_names(runs: Sequence[Run]) -> list[str]:
    """Return the names of runs, or the paths of their folders where names repeat."""
    times = Counter(run.name for run in runs)
    return [run.name if times[run.name] == 1 else str(run.folder) for run in runs]


def print_frame(frame: pd.DataFrame, title: str | None = None) -> None:
    """Print a data frame with readable units, chosen by the names of its columns."""
    print_table(frame.to_dict("records"), {str(name): heading(str(name)) for name in frame}, title)


def print_table(
    rows: Iterable[Mapping[Any, Any]],
    columns: Mapping[str, str],
    title: str | None = None,
    keys: int = 1,
    style: str = "",
) -> None:
    """Print the named columns of rows under their headings, numbers on the right and missing values as a dash.

    `keys`: number of first columns that identify a row. If a table is too wide for the terminal, they are repeated in
    the next block. `style`: "markdown" or "latex" for pages, without a title.
    """
    cells = [[_cell(name, row[name]) for name in columns] for row in rows]
    if style:
        print({"markdown": markdown, "latex": latex}[style](list(columns.values()), cells), end="\n\n")
        return
    if title:
        print(title)
    texts = zip(*cells, strict=True) if cells else ([] for _ in columns)
    print_grid([GridColumn(head, list(each)) for head, each in zip(columns.values(), texts, strict=True)], keys)


def print_json(value: Any) -> None:
    """Print one JSON value to stdout. Infinities and NaN become strings, and control codes are escaped."""
    from edgesim.records.manifest import plain_json

    print(
        _UNUSUAL.sub(
            lambda found: found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1], plain_json(value)
        )
    )


def print_note(line: str) -> None:
    """Print a line to stderr, apart from results."""
    print(line, file=sys.stderr)


def _cell(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if _is_missing(value):
        return "-"
    if isinstance(value, float) and "accuracy" in name:
        return f"{value:.4f}"
    return text(name, value)


def _is_missing(value: Any) -> bool:
    if value is None or isinstance(value, int | float):
        return value is None or value != value  # NaN is not itself
    import pandas as pd

    return bool(pd.isna(value))
