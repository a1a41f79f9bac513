"""Writes what all benchmarks found as a page of the documentation."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Mapping
from typing import Any

from rows import number

HEAD = """# Performance

Written on {date} by
`{command}`.

Every figure stands beside that of a baseline of the same run, and contestants take turns, as seconds differ from
machine to machine and from hour to hour. A figure is the median over repeats, in brackets the lowest and the highest. A
ratio is the figure over the baseline's: below 1 is less, in time or in memory. The load before a benchmark, a mean of
the last minute, tells whether others computed, who disturb contestants unequally; the benchmark before it counts, too.
[Measure and gain speed](../howto/speed.md) says how to measure anew.
"""
FOLDERS = re.compile(r"(?<![\w./])/(?:[^/\s]+/)+")  # of an absolute path
COLUMNS = "| what | figure | unit | ratio | baseline | meaning |\n|---|---|---|---|---|---|"


def render(report: Mapping[str, Any]) -> str:
    """Return the page of a report as `python -m benchmarks --json` writes it."""
    command = shlex.join(_public(word) for word in report["host"]["command"])
    head = HEAD.format(command=command, date=report["host"]["date"].partition("T")[0])
    quick = ["**Tiny sizes, to see that it works: these figures say nothing.**\n"] if report["quick"] else []
    return "\n".join([head, *quick, _machine(report["host"]), *map(_section, report["sections"])])


def _public(text: str) -> str:
    """Return a text without the folders of this machine."""
    return FOLDERS.sub("", text)


def _machine(host: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {found}" for name, found in host["versions"].items() if name != "edgesim")
    return (
        textwrap.fill(
            f"Machine: {host['cpu']}, {host['cores_to_use']} of {host['cores']} cores, {host['memory_gib']} GiB, "
            f"{host['system']}. "
            f"edgesim {host['versions']['edgesim']}; {versions}.\n",
            120,
            break_on_hyphens=False,
        )
        + "\n"
    )


def _section(section: Mapping[str, Any]) -> str:
    rows = [COLUMNS, *map(_line, section["rows"]), ""] if section["rows"] else []
    left_out = [f"- Left out: {each['name']}: {_public(each['reason'])}" for each in section["left_out"]]
    git, day = section["git"], section["date"].partition("T")[0]
    revision = "" if git is None else f", revision {git['revision'][:10]}{' with changes' if git['dirty'] else ''}"
    took = f"{section['seconds']:,.0f} s on {day}{revision}"
    program = f"`benchmarks/{section['name']}.py`, {took}; load before it {section['load']}."
    about = f"{section['about']}\n\n{program}"
    return "\n".join([f"## {section['title']}", "", about, "", *rows, *left_out, *([""] if left_out else [])])


def _line(row: Mapping[str, Any]) -> str:
    ratio = _with_spread(row["ratio"], row["ratio_low"], row["ratio_high"])
    cells = (
        *(row["name"], _with_spread(row["value"], row["low"], row["high"]), row["unit"], ratio),
        *(row["baseline"] or "", row["note"]),
    )
    return f"| {' | '.join(cells)} |"


def _with_spread(value: float | None, low: float, high: float) -> str:
    if value is None:
        return ""
    return number(value) if low == high else f"{number(value)} ({number(low)} - {number(high)})"
