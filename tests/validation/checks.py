"""What a validation item is made of: rows that set a number of edgesim beside the number it has to be."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from typing import Any, TypeAlias

Value: TypeAlias = float | int | str


@dataclass(frozen=True)
class Row:
    """A number or word that edgesim gave, the one expected, and how far apart they may be."""

    what: str
    expected: Value
    found: Value
    tolerance: float = 0.0
    relative: bool = False  # tolerance and error are shares of the expected number

    @property
    def error(self) -> float:
        """Distance of found and expected; inf between different words."""
        if isinstance(self.expected, str) or isinstance(self.found, str):
            return 0.0 if self.expected == self.found else inf
        return abs(self.found - self.expected) / (abs(self.expected) if self.relative else 1.0)

    @property
    def verdict(self) -> str:
        """The word "pass" or "FAIL"; not a number fails."""
        return "pass" if self.error <= self.tolerance else "FAIL"


@dataclass(frozen=True)
class Item:
    """One thing to be shown, what it is measured against, and how to get its rows."""

    title: str
    against: str
    rows: Callable[[], list[Row]]


def explained(rows: Callable[[], list[Row]]) -> str:
    """Return what the docstring of a function of rows says after its first line, without the last full stop."""
    return " ".join((rows.__doc__ or "").partition("\n")[2].split()).removesuffix(".")


def exact(what: str, expected: Value, found: Value) -> Row:
    """Return a row without any tolerance."""
    return Row(what, expected, found)


def close(what: str, expected: float, found: Any, tolerance: float = 1e-12) -> Row:
    """Return a row with a relative tolerance."""
    return Row(what, expected, float(found), tolerance, relative=True)


def within(what: str, expected: float, found: Any, tolerance: float) -> Row:
    """Return a row with an absolute tolerance."""
    return Row(what, expected, float(found), tolerance)


def worst(what: str, expected: Iterable[Any], found: Iterable[Any], tolerance: float, relative: bool = False) -> Row:
    """Return the row of the pair that is farthest apart; raises ValueError if there are not as many of each.

    Of pairs that differ by less than a thousandth of the tolerance the first is taken, so that last bits do not choose.
    """
    pairs = zip(expected, found, strict=True)
    rows = [Row(what, float(one), float(other), tolerance, relative) for one, other in pairs]
    return max(rows, key=lambda row: (row.verdict == "FAIL", round(row.error / tolerance, 3)))
