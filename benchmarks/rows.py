"""What a benchmark gives: rows of figures beside those of a baseline. How contestants take turns, and how it is run."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypeAlias

from edgesim.core.errors import EdgesimError

Figures: TypeAlias = Mapping[str, float]  # measure -> value
QUICK_REPEATS = 1


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure: the median over repeats, or the best, with the lowest and the highest of them.

    `ratio`: to the same figure of the baseline, below 1 is less; its spread is that of the ratios within a repeat. None
    if nothing is a baseline, as for the baseline's own row, where `baseline` is None too.
    """

    name: str
    value: float
    low: float
    high: float
    unit: str
    baseline: str | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    note: str

    def __str__(self) -> str:
        """Return a line of a table for a terminal."""
        spread = "" if self.low == self.high else f"({number(self.low)} - {number(self.high)})"
        ratio = "" if self.ratio is None else f"  {number(self.ratio):>6} x {self.baseline}"
        return f"{self.name:56}{number(self.value):>9} {self.unit:6}{spread:>20}{ratio}"


class LeftOut(NamedTuple):
    """What was not measured, and why."""

    name: str
    reason: str

    def __str__(self) -> str:
        """Return a line for a terminal."""
        return f"{self.name}: left out: {self.reason}"


Found: TypeAlias = Row | LeftOut


def number(value: float) -> str:
    """Return a number to three digits, and whole ones from a hundred on."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def in_turns(
    contestants: Mapping[str, Callable[[], Figures]], repeats: int, warm_ups: int = 0
) -> dict[str, list[Figures]]:
    """Return the figures of each contestant, one a repeat. They take turns, so that a busy machine disturbs all alike.

    `warm_ups`: turns before those that count.
    """
    found: dict[str, list[Figures]] = {name: [] for name in contestants}
    for turn in range(-warm_ups, repeats):
        for name, work in contestants.items():
            figures = work()
            if turn >= 0:
                found[name].append(figures)
    return found


def timed(work: Callable[[], object]) -> Callable[[], Figures]:
    """Return work that is measured in seconds of the wall clock: its figure is "s"."""

    def measured() -> Figures:
        start_s = time.perf_counter()
        work()
        return {"s": time.perf_counter() - start_s}

    return measured


def of(found: Mapping[str, Sequence[Figures]], measure: str) -> dict[str, list[float]]:
    """Return one measure of every contestant that has it."""
    return {name: [each[measure] for each in figures] for name, figures in found.items() if measure in figures[0]}


def compared(
    found: Mapping[str, Sequence[float]],
    baseline: str,
    unit: str,
    note: str | Mapping[str, str],
    *,
    about: str = "",
    fit: Callable[[Sequence[float]], float] = median,
) -> Iterator[Row]:
    """Yield a row for each contestant: its values, and their ratios to the baseline's of the same repeat.

    `about` comes before every name; `note`: a sentence for all, or one for each. `fit`: makes one number of many, `min`
    for the best; then the ratio is that of the best ones.
    """
    base = found.get(baseline)
    for name, values in found.items():
        prefix = f"{about}: " if about else ""
        row = Row(
            name=f"{prefix}{name}",
            value=fit(values),
            low=min(values),
            high=max(values),
            unit=unit,
            note=note if isinstance(note, str) else note[name],
        )
        yield row if base is None or name == baseline else _beside(row, values, base, baseline, fit)


def _beside(
    row: Row, values: Sequence[float], base: Sequence[float], baseline: str, fit: Callable[[Sequence[float]], float]
) -> Row:
    ratios = [value / other for value, other in zip(values, base, strict=True)]
    ratio = fit(values) / fit(base) if fit is min else fit(ratios)
    figures = {"ratio": ratio, "ratio_low": min(ratios), "ratio_high": max(ratios)}
    return Row(**{**asdict(row), **figures, "baseline": baseline})


# --- the command line of one benchmark ------------------------------------------------------------------------------


def alone(rows: Callable[..., Iterable[Found]], quick: Mapping[str, Any]) -> None:
    """Run a benchmark with the words of the command line: its parameters are options; print its rows as they come.

    `quick`: its parameters with `--quick`, when it also repeats nothing. `--json` names a file to write the rows to.
    What edgesim refuses is one line, with exit code 2.
    """
    given = vars(_options(rows).parse_args())
    file, is_quick = given.pop("json", None), given.pop("quick", False)
    once = {"repeats": QUICK_REPEATS} if "repeats" in inspect.signature(rows).parameters else {}
    chosen = {**({**once, **quick} if is_quick else {}), **given}
    found = []
    try:
        for each in rows(**chosen):
            print(each, flush=True)
            found.append(each)
    except EdgesimError as error:
        print("error:", " ".join(str(error).splitlines()), file=sys.stderr)
        sys.exit(2)
    if file is not None:
        file.write_text(json.dumps(as_json(found), indent=1) + "\n", encoding="utf-8")


def as_json(found: Iterable[Found]) -> dict[str, list[dict[str, Any]]]:
    """Return `rows` and `left_out`, as plain values."""
    found = list(found)
    return {
        "rows": [asdict(each) for each in found if isinstance(each, Row)],
        "left_out": [each._asdict() for each in found if isinstance(each, LeftOut)],
    }


def _options(rows: Callable[..., object]) -> argparse.ArgumentParser:
    """Return the options of a benchmark: one for each parameter, of its default's type; several values: a tuple."""
    doc = inspect.getdoc(sys.modules["__main__"])
    options = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, argument_default=argparse.SUPPRESS
    )
    for name, parameter in inspect.signature(rows).parameters.items():
        default = parameter.default
        many = isinstance(default, tuple)
        kind = type(default[0] if many else default)
        shown = " ".join(map(str, default)) if many else default
        options.add_argument(
            f"--{name.replace('_', '-')}", type=kind, nargs="+" if many else None, help=f"default: {shown}"
        )
    options.add_argument("--quick", action="store_true", help="tiny sizes, one repeat: to see that it works")
    options.add_argument("--json", type=Path, metavar="FILE", help="write the rows to this file")
    return options
