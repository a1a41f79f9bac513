"""Formats runs, tables and numbers for notebooks and terminals: 2.78 h instead of 1e4 s, 10 kJ instead of 1e4 J."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from edgesim.files.reading import visible

if TYPE_CHECKING:
    from rich.table import Table


class DisplayUnit(NamedTuple):
    """A unit in which numbers are shown, and its size in base units (s, J, bytes, FLOP, ...)."""

    symbol: str
    size: float

    def after(self, words: str) -> str:
        """Return words with the unit behind them: "energy (kJ)"."""
        return f"{words} ({self.symbol})" if self.symbol else words


def _prefixed(symbol: str, prefixes: str) -> tuple[DisplayUnit, ...]:
    sizes = {"n": 1e-9, "µ": 1e-6, "m": 1e-3, " ": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
    return tuple(DisplayUnit(f"{prefix}{symbol}".strip(), sizes[prefix]) for prefix in prefixes)


def _clock(minute: float) -> tuple[DisplayUnit, ...]:
    return DisplayUnit("min", minute), DisplayUnit("h", 60 * minute), DisplayUnit("days", 1440 * minute)


_UNITS = {
    ("flops_per_s",): _prefixed("FLOP/s", " MGTPE"),
    ("flops",): _prefixed("FLOP", " MGTPE"),
    ("_s", "seconds"): (*_prefixed("s", "nµm "), *_clock(60)),
    ("minutes",): (DisplayUnit("s", 1 / 60), *_clock(1)),
    ("_j", "joules"): _prefixed("J", "nµm kMGT"),
    ("_w",): _prefixed("W", "µm kMG"),
    ("_bytes",): _prefixed("B", " kMGTPE"),
    ("_bps",): _prefixed("bit/s", " kMGT"),
    ("_hz",): _prefixed("Hz", " kMG"),
}
_PLAIN = (DisplayUnit("", 1),)
_WORDS = {
    "sim_time_s": "simulated time",
    "energy_j": "energy",
    "energy_network_j": "network energy",
    "energy_server_j": "server energy",
    "link_j": "network energy",
    "joules": "energy",
    "seconds": "time",
    "flops": "computation",
    "best_accuracy": "best",
}
_SUFFIX = re.compile(r"_(s|j|w|bytes|minutes|bps|hz)$")


def heading(column: str) -> str:
    """Return the name of a column in words, without its unit, which is shown with the numbers."""
    return _WORDS.get(column) or _SUFFIX.sub("", column).replace("_", " ")


def unit_for(column: str, largest: float) -> DisplayUnit:
    """Return the unit in which `largest` base units, a value of this column, is a short number.

    It is the largest unit in which the number is at least 2, rounds to 1 ("1 Mbit/s" for 1000 kbit/s), or is at least 1
    for units up to the base unit. A column without a unit suffix gets the unit "" of size 1.
    """
    units = next((units for suffixes, units in _UNITS.items() if column.endswith(suffixes)), _PLAIN)
    base = next(unit for unit in units if unit.size == 1)
    if largest == 0 or not math.isfinite(largest):
        return base
    sizes = [(unit, largest / unit.size) for unit in units]
    fit = [unit for unit, size in sizes if size >= (1 if unit.size <= 1 else 2) or _short(size) == "1"]
    return max(fit, key=lambda unit: unit.size, default=units[0])


def unit_beside(column: str, value: float, largest: float) -> DisplayUnit:
    """Return the unit of a value in a table or range whose largest value is given, both in base units.

    It is the unit of the largest value, or a smaller one for a value that would be below 1 in it.
    """
    unit = unit_for(column, largest)
    return unit if not value or abs(value) >= unit.size else unit_for(column, abs(value))


def text(column: str, value: float | None, largest: float | None = None) -> str:
    """Return a value of a column with its unit, three significant digits ("3.42 h"), or a dash for None.

    `largest`: the largest absolute value in the same table or range; see `unit_beside`.
    """
    if value is None:
        return "-"
    unit = unit_beside(column, value, abs(value) if largest is None else largest)
    return f"{_short(value / unit.size)} {unit.symbol}".rstrip()


def texts(column: str, values: Iterable[float]) -> list[str]:
    """Return values that stand together as `text`, in the unit of the largest."""
    values = list(values)
    largest = max(filter(math.isfinite, map(abs, values)), default=0.0)
    return [text(column, each, largest) for each in values]


def span(column: str, low: float, high: float) -> str:
    """Return a range of a column: "1.39 to 4.87 Mbit/s", "18.8 s to 4.87 min", or one value if both are shown alike."""
    largest = max(abs(low), abs(high))
    ends, units = texts(column, (low, high)), [unit_beside(column, each, largest) for each in (low, high)]
    if ends[0] == ends[1]:
        return ends[0]
    first = _short(low / units[0].size) if units[0] == units[1] else ends[0]
    return f"{first} to {ends[1]}"


def _short(number: float) -> str:
    return f"{number:.0f}" if abs(number) >= 100 else f"{number:.3g}"


def plain(value: float, digits: int) -> str:
    """Return a number with this many significant digits, without an exponent below 1e15."""
    short = f"{value:.{digits}g}"
    return f"{float(short):.0f}" if "e+" in short and abs(value) < 1e15 else short


def count(number: int, noun: str) -> str:
    """Return a number with its noun: "1 run", "3 runs"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def divergence(found: Mapping[str, Any]) -> str:
    """Return the entry of a manifest about a run that diverged in words. Rounds count from 1."""
    left_out = f"{found['left_out']} of {found['of']} updates were not finite and left out"
    if found["loss"] is not None:
        left_out = f"the test loss was {float(found['loss']):.3g}" + (f", {left_out}" if found["left_out"] else "")
    return f"diverged in round {found['round'] + 1}: {left_out}"


def lost_runs(manifests: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield which of several runs, by name, diverged or gave up: "1 of 2 runs gave up: seed=2"."""
    for key, words in (("diverged", "diverged"), ("gave_up", "gave up")):
        if those := [name for name, manifest in manifests.items() if manifest.get(key)]:
            yield f"{len(those)} of {len(manifests)} runs {words}: {'; '.join(those)}"


Rows = Sequence[Sequence[str]]


def html_table(title: str, headings: Sequence[str], rows: Rows, note: str = "") -> str:
    """Return a table as HTML, with its texts escaped."""
    head = f"<thead><tr>{''.join(f'<th>{escape(each)}</th>' for each in headings)}</tr></thead>" if headings else ""
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    below = f"<p>{escape(note)}</p>" if note else ""
    return f"<table><caption>{escape(title)}</caption>{head}<tbody>{body}</tbody></table>{below}"


def rich_table(title: str, headings: Sequence[str], rows: Rows, note: str = "") -> Table:
    """Return a table that rich prints, with its texts taken literally and not as markup."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(visible(title)), caption=Text(note) if note else None, show_header=bool(headings))
    for heading in headings or [""] * max(map(len, rows), default=0):
        table.add_column(Text(visible(heading)))
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row))
    return table
