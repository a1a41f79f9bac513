"""Numbers as people read them: hours instead of 1e4 s, kJ instead of 1e4 J. The unit follows from the name's suffix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Unit(NamedTuple):
    """A unit and how many base units (s, J, bytes, FLOP) it stands for."""

    symbol: str
    size: float


_UNITS = {
    ("_s", "seconds"): (Unit("s", 1), Unit("min", 60), Unit("h", 3600), Unit("days", 86400)),
    ("_j", "joules"): (Unit("J", 1), Unit("kJ", 1e3), Unit("MJ", 1e6), Unit("GJ", 1e9)),
    ("_bytes",): (Unit("B", 1), Unit("kB", 1e3), Unit("MB", 1e6), Unit("GB", 1e9), Unit("TB", 1e12)),
    ("flops",): (Unit("FLOP", 1), Unit("MFLOP", 1e6), Unit("GFLOP", 1e9), Unit("TFLOP", 1e12), Unit("PFLOP", 1e15)),
}
_PLAIN = (Unit("", 1),)


def unit_for(column: str, largest: float) -> Unit:
    """Return the unit in which `largest` base units, a value of this column, is a short number (2 of the unit or more).

    A column without a unit suffix gets the unit "" of size 1.
    """
    units = next((units for suffixes, units in _UNITS.items() if column.endswith(suffixes)), _PLAIN)
    return max((unit for unit in units if largest >= 2 * unit.size), key=lambda unit: unit.size, default=units[0])


def text(column: str, value: float | None) -> str:
    """Return a value of a column with its unit, three significant digits ("3.42 h"), or a dash for None."""
    if value is None:
        return "-"
    unit = unit_for(column, abs(value))
    return f"{_three(value / unit.size)} {unit.symbol}".rstrip()


def divergence(found: Mapping[str, Any]) -> str:
    """Return in words what a manifest says of a run that diverged; rounds count from 1."""
    left_out = f"{found['left_out']} of {found['of']} updates were not finite and left out"
    if found["loss"] is not None:
        left_out = f"the test loss was {float(found['loss']):.3g}" + (f", {left_out}" if found["left_out"] else "")
    return f"diverged in round {found['round'] + 1}: {left_out}"


def _three(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
