"""Writes the results of all benchmarks as a page of the documentation, with charts, and as CSV."""

from __future__ import annotations

import csv
import io
import math
import re
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from rows import number

HEAD = """# Performance

Written on {date} by this command:

<!-- not run: it takes an hour -->
```sh
{command}
```

A chart shows ratios to a baseline of the same run: below 1 is less, in time or in memory. A dot is the median over
repeats, a line reaches from the lowest to the highest. The tables have the figures themselves. Contestants take turns,
because seconds differ from machine to machine and from hour to hour. The load before a benchmark, a mean of the last
minute, shows whether other processes were running, which skews results. The benchmark before it counts, too.
[Measure and gain speed](../howto/speed.md) says how to measure anew.
"""
FOLDERS = re.compile(r"(?<![\w./])/(?:[^/\s]+/)+")  # of an absolute path
COLUMNS = ("what", "figure", "unit", "ratio", "baseline")
CSV_COLUMNS = ("name", "value", "low", "high", "unit", "ratio", "ratio_low", "ratio_high", "baseline", "note")
MOST_OPEN = 12  # rows of a table that is not folded
LEFT, WIDE, LINE = 400, 320, 18  # of a chart: where its axis begins, how long it is, height of a row


def render(report: Mapping[str, Any], csv_file: str = "") -> str:
    """Return the page of a report as `python -m benchmarks --json` writes it.

    `csv_file`: path from the page to its rows as CSV.
    """
    words = shlex.join(_public(word) for word in report["host"]["command"])
    command = " \\\n    ".join(textwrap.wrap(words, 72, break_long_words=False, break_on_hyphens=False))
    head = HEAD.format(command=command, date=report["host"]["date"].partition("T")[0])
    quick = ["**Tiny sizes, to see that it works: these figures say nothing.**\n"] if report["quick"] else []
    sections = (_section(each, csv_file) for each in report["sections"])
    return "\n".join([head, *quick, _machine(report["host"]), *sections])


def as_csv(report: Mapping[str, Any]) -> str:
    """Return the rows of all benchmarks of a report as CSV."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("benchmark", *CSV_COLUMNS))
    for section in report["sections"]:
        rows.writerows((section["name"], *(row[column] for column in CSV_COLUMNS)) for row in section["rows"])
    return text.getvalue()


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


def _section(section: Mapping[str, Any], csv_file: str) -> str:
    left_out = [f"- Left out: {each['name']}: {_public(each['reason'])}" for each in section["left_out"]]
    git, day = section["git"], section["date"].partition("T")[0]
    revision = "" if git is None else f", revision {git['revision'][:10]}{' with changes' if git['dirty'] else ''}"
    took = f"{section['seconds']:,.0f} s on {day}{revision}"
    program = f"`benchmarks/{section['name']}.py`, {took}; load before it {section['load']}."
    about = f"{section['about']}\n\n{program}"
    rows = [*_chart(section["rows"]), *_tables(section["rows"], csv_file)] if section["rows"] else []
    return "\n".join([f"## {section['title']}", "", about, "", *rows, *left_out, *([""] if left_out else [])])


class _Place(NamedTuple):
    """Where a row named "group, figure: contestant" stands in the tables of a section: one for each group."""

    group: str
    figure: str
    contestant: str


def _places(rows: Sequence[Mapping[str, Any]]) -> list[_Place]:
    """Return the places of the rows of a long table, none if their names have no such parts or it is a short one."""
    found = []
    for row in rows:
        about, colon, contestant = row["name"].partition(": ")
        group, comma, figure = about.partition(", ")
        found.append(_Place(group, figure, contestant) if colon and comma else None)
    places = [place for place in found if place]
    several = len({place.group for place in places}) < len({place[:2] for place in places})
    return places if len(places) == len(rows) > MOST_OPEN and several else []


def _tables(rows: Sequence[Mapping[str, Any]], csv_file: str) -> Iterator[str]:
    """Yield the lines of a table for each group, a row a contestant and a column a figure, or of one table of all."""
    places = _places(rows)
    if not places:
        yield from _table(rows, csv_file)
        return
    row_of = dict(zip(places, rows, strict=True))
    notes = dict.fromkeys((place.figure, row["note"]) for place, row in row_of.items())
    meanings = list(dict.fromkeys(note for _, note in notes))
    yield from meanings if len(meanings) == 1 else (f"- *{figure}*: {note}" for figure, note in notes)
    baselines = dict.fromkeys(row["baseline"] for row in rows if row["baseline"])
    if baselines:
        yield f"\nIn brackets: the ratio to {' or '.join(baselines)}."
    for group in dict.fromkeys(place.group for place in places):
        own = {place: row for place, row in row_of.items() if place.group == group}
        units = {place.figure: row["unit"] for place, row in own.items()}
        headings = (f"{figure} ({unit})" if unit else figure for figure, unit in units.items())
        yield f"\n**{group}**\n\n| | {' | '.join(headings)} |\n|{'---|' * (1 + len(units))}"
        for contestant in dict.fromkeys(place.contestant for place in own):
            cells = (_short(own.get(_Place(group, figure, contestant))) for figure in units)
            yield f"| {contestant} | {' | '.join(cells)} |"
    yield f"\n[All rows as CSV]({csv_file}), with the lowest and the highest of each.\n" if csv_file else ""


def _short(row: Mapping[str, Any] | None) -> str:
    """Return a figure with its ratio, as a cell of a table."""
    if row is None:
        return ""
    return number(row["value"]) + (f" ({number(row['ratio'])})" if row["ratio"] else "")


def _table(rows: Sequence[Mapping[str, Any]], csv_file: str) -> Iterator[str]:
    """Yield the lines of a table with filters. A sentence that explains several rows stands once, above it."""
    notes = list(dict.fromkeys(row["note"] for row in rows))
    numbered = len(notes) > 1
    yield from [f"{place}. {note}" for place, note in enumerate(notes, 1)] if numbered else notes
    yield ""
    folded = len(rows) > MOST_OPEN
    if folded:
        yield f"<details markdown>\n<summary>{len(rows)} figures</summary>\n"
    select = f' data-select="{len(COLUMNS)},{len(COLUMNS) + 1}"' if numbered else f' data-select="{len(COLUMNS)}"'
    link = f' data-csv="{csv_file}"' if csv_file else ""
    yield f'<div class="filtered" markdown{select}{link}>\n'
    headings = (*COLUMNS, "meaning") if numbered else COLUMNS
    yield f"| {' | '.join(headings)} |\n|{'---|' * len(headings)}"
    for row in rows:
        ratio = _with_spread(row["ratio"], row["ratio_low"], row["ratio_high"])
        cells = [
            row["name"],
            _with_spread(row["value"], row["low"], row["high"]),
            row["unit"],
            ratio,
            row["baseline"] or "",
        ]
        yield f"| {' | '.join([*cells, str(notes.index(row['note']) + 1)] if numbered else cells)} |"
    yield "\n</div>\n" + ("</details>\n" if folded else "")


def _chart(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of a drawing of ratios on a logarithmic axis: of a long table those with its first note."""
    shown = [row for row in rows if row["ratio"]]
    if len(shown) > 2 * MOST_OPEN:
        shown = [row for row in shown if row["note"] == shown[0]["note"]]
    if not shown:
        return
    low = min(1.0, *(row["ratio_low"] for row in shown))
    high = max(1.0, *(row["ratio_high"] for row in shown))
    first, last = math.floor(math.log2(low)), max(math.ceil(math.log2(high)), math.floor(math.log2(low)) + 1)

    def across(ratio: float) -> float:
        return LEFT + WIDE * (math.log2(ratio) - first) / (last - first)

    bottom = LINE * len(shown) + 4
    said = escape(f"Ratios to the baseline, {number(low)} to {number(high)}, of {len(shown)} rows of the table below")
    yield "<figure class='chart'>"
    yield f'<svg viewBox="0 0 740 {bottom + 22}" role="img" aria-label="{said}" font-size="12" fill="currentColor">'
    for power in range(first, last + 1, math.ceil((last - first) / 8)):
        x, style = across(2.0**power), 'opacity="0.9" stroke-width="2"' if power == 0 else 'opacity="0.25"'
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{bottom}" stroke="currentColor" {style}/>'
        yield f'<text x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">{number(2.0**power)}</text>'
    for place, row in enumerate(shown):
        y, ends = LINE * place + 12, [across(row[key]) for key in ("ratio_low", "ratio_high")]
        yield f'<text x="{LEFT - 10}" y="{y + 4}" text-anchor="end">{escape(row["name"])}</text>'
        yield f'<line x1="{ends[0]:.1f}" x2="{ends[1]:.1f}" y1="{y}" y2="{y}" stroke="#0072b2" stroke-width="3"/>'
        yield f'<circle cx="{across(row["ratio"]):.1f}" cy="{y}" r="4.5" fill="#0072b2" stroke="#fff"/>'
    yield "</svg>\n</figure>\n"


def _with_spread(value: float | None, low: float, high: float) -> str:
    if value is None:
        return ""
    shown = number(low), number(high)
    return number(value) if shown[0] == shown[1] else f"{number(value)} ({shown[0]} - {shown[1]})"
