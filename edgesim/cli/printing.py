"""Printed results of commands: tables that fit a terminal or a page, CSV, JSON, and notes beside them."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal

from edgesim.core.metrics import ACCURACY
from edgesim.files.reading import visible
from edgesim.reports.format import divergence, heading, plain, text

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
_SIGNS = {"±": r"\pm", "×": r"\times", "µ": r"\mu", "≥": r"\ge", "≤": r"\le", "−": "-", ">": ">", "<": "<"}
_IN_LATEX = str.maketrans({sign: f"${text}$" for sign, text in _SIGNS.items()} | {"–": "--", "\u00a0": "~"})
_GAP = 2  # spaces between columns
_SENTENCE = 24  # a cell with more characters and a space is a sentence, which may wrap
_NUMBER = re.compile(r"[-+]?(\d[\d.,]*(e[-+]?\d+)?|inf|nan)( ?[^\d\s]+)?( ± .*)?|-")


# --- runs --------------------------------------------------------------------------------------------------------


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
            print_prose(f"{name}: {divergence(row['diverged'])}")
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


# --- tables ---------------------------------------------------------------------------------------------------------


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

    rows = list(rows)
    sizes = {name: [abs(float(row[name])) for row in rows if isinstance(row[name], Real)] for name in columns}
    largest = {name: max(filter(math.isfinite, each), default=0.0) for name, each in sizes.items()}

    def cell(name: str, value: Any) -> str:
        if isinstance(value, str):
            return value
        if value is None or isinstance(value, int | float):
            missing = value is None or value != value  # NaN is not itself
        else:
            import pandas as pd

            missing = bool(pd.isna(value))
        if missing:
            return "-"
        return f"{value:.4f}" if isinstance(value, float) and "accuracy" in name else text(name, value, largest[name])

    cells = [[cell(name, row[name]) for name in columns] for row in rows]
    if style:
        print({"markdown": markdown, "latex": latex}[style](list(columns.values()), cells), end="\n\n")
        return
    if title:
        print_prose(title)
    texts = zip(*cells, strict=True) if cells else ([] for _ in columns)
    print_grid([GridColumn(head, list(each)) for head, each in zip(columns.values(), texts, strict=True)], keys)


def print_frame_as(frame: pd.DataFrame, style: str, title: str, keys: int, about: Mapping[str, Any]) -> None:
    """Print a frame as json beside `about`, as csv, markdown or latex, or for a terminal if `style` is "".

    `keys`: as in `print_table`.
    """
    if style == "json":
        print_json({**about, "rows": records(frame)})
    elif style == "csv":
        print_csv(frame)
    else:
        print_digits(frame, title, keys, style)


def print_csv(frame: pd.DataFrame) -> None:
    """Print a frame as CSV."""
    from edgesim.files.tables import csv_text

    print(csv_text(frame), end="")


def records(frame: pd.DataFrame) -> list[dict[Any, Any]]:
    """Return the rows of a frame for JSON, missing values as None."""
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


def print_digits(frame: pd.DataFrame, title: str, keys: int, style: str = "") -> None:
    """Print a frame with six digits of each number and a dash for a missing one. `style`: as in `print_table`."""
    shown = frame.astype(object)
    for name in frame.select_dtypes("float"):
        shown[name] = [None if value != value else digits(value) for value in frame[name]]
    for name in frame.select_dtypes("bool"):
        shown[name] = ["yes" if value else "" for value in frame[name]]
    print_table(shown.to_dict("records"), {str(name): str(name) for name in shown}, title, keys, style)


def digits(value: float) -> str:
    """Return whole numbers as they are, six digits of others."""
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e12 else plain(value, 6)


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table of texts."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def latex(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a LaTeX table of texts, with the rules of the package booktabs; signs stand in mathematics."""
    import pandas as pd

    frame = pd.DataFrame([list(row) for row in rows], columns=list(headings))
    return frame.to_latex(index=False, escape=True).rstrip().translate(_IN_LATEX)


# --- JSON and notes -------------------------------------------------------------------------------------------------


def print_json(value: Any) -> None:
    """Print one JSON value to stdout. Infinities and NaN become strings, and control codes are escaped."""
    from edgesim.records.manifest import plain_json

    print(
        _UNUSUAL.sub(
            lambda found: found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1], plain_json(value)
        )
    )


def print_prose(text: str) -> None:
    """Print lines of prose. A terminal gets each line wrapped between words, a pipe gets it whole."""
    width = _terminal_width()
    for line in text.splitlines():
        print(line if width is None else textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False))


def print_note(line: str) -> None:
    """Print a line to stderr, apart from results."""
    print(line, file=sys.stderr)


def warn(lines: Sequence[str]) -> None:
    """Print warnings to stderr, a line each."""
    for line in lines:
        print_note(f"warning: {line}")


# --- tables in a terminal -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GridColumn:
    """A column of texts under a heading."""

    heading: str
    cells: Sequence[str]

    @property
    def is_numeric(self) -> bool:
        """True if all cells are numbers, with or without a unit, or dashes."""
        return all(_NUMBER.fullmatch(cell) for cell in self.cells)

    @property
    def widest(self) -> int:
        """Width in characters without wrapping."""
        return max(map(_width, (self.heading, *self.cells)))

    @property
    def narrowest(self) -> int:
        """Smallest width in characters: its longest number, name or word of a sentence."""
        needed = []
        for cell in self.cells:
            is_sentence = not self.is_numeric and " " in cell and _width(cell) > _SENTENCE
            needed += _words(cell) if is_sentence else [cell]
        return max(map(_width, (*_words(self.heading), *needed)))


def print_grid(columns: Sequence[GridColumn], keys: int = 1, width: int | None = None) -> None:
    """Print columns side by side. If they do not fit, print blocks that each begin with the first `keys` columns.

    `width`: characters of a line, by default of the terminal. A pipe has no limit.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    width = width or _terminal_width()
    columns = [GridColumn(visible(each.heading), list(map(visible, each.cells))) for each in columns]
    for block in blocks(columns, keys, width):
        sizes = widths(block, width)
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
        for column, size in zip(block, sizes, strict=True):
            side: Literal["right", "left"] = "right" if column.is_numeric else "left"
            table.add_column(column.heading, justify=side, width=size, overflow="fold")
        for row in zip(*(column.cells for column in block), strict=True):
            table.add_row(*row)
        whole = sum(sizes) + _GAP * len(block)  # lines may be wider than the terminal if a name is
        Console(width=whole, markup=False, highlight=False, emoji=False).print(table)
        print()


def blocks(columns: Sequence[GridColumn], keys: int, width: int | None) -> list[list[GridColumn]]:
    """Return columns in the fewest blocks that fit the width, each with the first `keys` columns in front."""
    key, rest = list(columns[:keys]), columns[keys:]
    found = [list(key)]
    for column in rest:
        block = [*found[-1], column]
        least = sum(each.narrowest for each in block) + _GAP * (len(block) - 1)
        if width is not None and len(found[-1]) > len(key) and least > width:
            found.append(list(key))
        found[-1].append(column)
    return found


def widths(columns: Sequence[GridColumn], width: int | None) -> list[int]:
    """Return the width of each column. Sentences and headings share the width that numbers and names leave."""
    found = [column.widest for column in columns]
    if width is None:
        return found
    least = [column.narrowest for column in columns]
    excess = sum(found) + _GAP * (len(columns) - 1) - width
    while excess > 0 and found != least:  # the widest column that can wrap gives a character
        place = max((i for i in range(len(columns)) if found[i] > least[i]), key=lambda i: found[i])
        found[place] -= 1
        excess -= 1
    return found


def _terminal_width() -> int | None:
    """Return the characters of a line of the terminal, None if standard output is a pipe or a file."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _width(text: str) -> int:
    from rich.cells import cell_len  # not before `main` has put the current folder last: it may have a module rich

    return cell_len(text)


def _words(text: str) -> list[str]:
    return text.split() or [""]
