"""The page of a report: one self-contained file that needs no network, with the results first and the commands last."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs

from edgesim.files.atomic import write_text
from edgesim.reports.format import count, text
from edgesim.reports.html.answer import answer
from edgesim.reports.html.charts import (
    accuracy_charts,
    cost_charts,
    gantt_chart,
    lengths_chart,
    looks,
    lorenz_chart,
    phases,
    stacked_chart,
    target_chart,
    tradeoff_chart,
)
from edgesim.reports.html.content import Cell, ClockErrors, Entry, Findings, ReportTable, Section
from edgesim.reports.html.words import HATCHED, change, common, interval, is_accuracy, middle, number, p_text, words_of

_ASSETS = "edgesim.reports.html.assets"
# Marks of a legend on a field of 24 x 12; a line runs through the middle.
_SHAPES = {
    "circle": "M15 6a3 3 0 1 1-6 0a3 3 0 1 1 6 0Z",
    "square": "M9 3h6v6h-6Z",
    "diamond": "M12 2l4 4l-4 4l-4-4Z",
    "triangle-down": "M8 3h8l-4 7Z",
    "triangle-up": "M8 9h8l-4-7Z",
    "pentagon": "M12 2l4 3l-1.5 5h-5L8 5Z",
    "cross": "M10.7 2h2.6v2.7h2.7v2.6h-2.7v2.7h-2.6V7.3H8V4.7h2.7Z",
    "x": "M9 2l3 2.6L15 2l1.4 1.4L13.6 6l2.8 2.6L15 10l-3-2.6L9 10L7.6 8.6L10.4 6L7.6 3.4Z",
    "star": "M12 1.5l1.3 3h3.2l-2.6 2l1 3.2L12 7.9L9.1 9.7l1-3.2l-2.6-2h3.2Z",
}
_DASHES = {
    "solid": "",
    "dash": "6 3",
    "dashdot": "6 2 1.5 2",
    "dot": "2 2",
    "longdash": "9 3",
    "longdashdot": "9 2 2 2",
}


def write_report(findings: Findings, out: Path) -> Path:
    """Write the report as one HTML file and return its path. Raises ConfigError if it cannot be written."""
    write_text(out, rendered(findings))
    return out


def rendered(findings: Findings) -> str:
    """Return the page of a report, the same text for the same findings."""
    return (
        templates()
        .get_template("report.html")
        .render(
            findings=findings,
            badges=badges_of(findings.models),
            answer=answer(findings),
            sections=list(sections(findings)),
            style=Markup(asset("report.css")),
            script=Markup(asset("report.js")),
            plotly=Markup(get_plotlyjs()),
        )
    )


@cache
def templates() -> Environment:
    """Return the templates of pages, with the marks and dashes of legends."""
    environment = Environment(
        loader=FunctionLoader(asset), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        # Escaped, so that no text in the figure can close the script element around it.
        "plain_json": lambda chart: Markup(
            chart.figure.to_json().replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
        ),
        "with_code": lambda text: Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))),
    }
    environment.globals |= {"shapes": _SHAPES, "dashes": _DASHES}
    return environment


def asset(name: str) -> str:
    """Return the text of a file beside the templates of pages."""
    return (files(_ASSETS) / name).read_text(encoding="utf-8")


def badges_of(models: Iterable[tuple[str, str]]) -> list[str]:
    """Return a badge for each pair of a model that learns, which has the accuracy, and one that is charged."""
    return [f"accuracy: {learned}; costs: {charged}" for learned, charged in models]


# --- sections in reading order ------------------------------------------------------------------------------------

_LEVEL = ("devices", "what it is", "setting", "speed", "power", "rate", "trust", "source")  # headings of a level
_MOST_FOREST = 2  # charts of times to a target


def sections(findings: Findings) -> Iterator[Section]:
    """Yield the sections that have content."""
    settings = findings.settings
    legend = list(looks(settings).values())
    yield _results(findings)
    if tables := list(_levels(findings)):
        yield Section(name="compared", title="What was compared", tables=tables)
    if findings.clocks is not None:
        yield _clocks(findings.clocks, findings)
    if len(findings.points):
        yield Section(
            name="accuracy",
            title="Accuracy",
            text=[
                "Lines are means over the seeds, bands reach from the lowest run to the highest. Dashes are targets."
            ],
            legend=legend,
            charts=accuracy_charts(findings.points, settings, findings.targets, badges_of(findings.models)),
        )
    until = [name for name in findings.columns if "@" in name and (findings.summary["column"] == name).any()]
    reached = findings.summary.groupby("column")["reached"].sum()
    if shown := [name for name in until if reached[name] > 0][:_MOST_FOREST]:
        yield Section(
            name="targets",
            title="Time to the target",
            text=[
                "Dots are runs, and a number below a dot counts them. An open triangle is a run that ended before the "
                "target: it would have needed more. "
                "Diamonds are means over all runs, or medians if some did not arrive; lines are their 95 % intervals, "
                "one that ends in an arrow has no known end."
            ],
            charts=[
                target_chart(findings.values, findings.summary, name, settings, findings.currency) for name in shown
            ],
        )
    if findings.tradeoffs:
        yield Section(
            name="tradeoffs",
            title="Trade-offs",
            text=["A configuration is grey if another one is at least as good in both and better in one."],
            legend=legend,
            charts=[tradeoff_chart(each, settings, findings.currency) for each in findings.tradeoffs],
        )
    yield from _spent(findings, legend)
    if (slowest := findings.slowest) is not None:
        of = f"Of all rounds of all runs the longest is round {slowest.found.number} of {slowest.run}"
        which = f" ({slowest.setting})" if len(settings) > 1 else ""
        yield Section(
            name="slowest",
            title="The slowest round",
            text=[f"{of}{which}.", *slowest.lines],
            legend=phases(),
            charts=[gantt_chart(slowest)],
            after=["Hatched bars belong to jobs that did not deliver. The vertical line is the end of the round."],
        )
    yield from _made(findings)


def _results(findings: Findings) -> Section:
    """Return the section of the numbers of all settings, and of their differences from the baseline."""
    columns = [name for name in findings.columns if (findings.summary["column"] == name).any()]
    summary = {(row["setting"], row["column"]): row for row in findings.summary.to_dict("records")}
    several = len(findings.settings) > 1
    runs = findings.summary.groupby("setting")["runs"].max().reindex(list(findings.settings))
    rows = [[Cell(label), Cell(f"{runs[label]:.0f}", key=float(runs[label]))] for label in findings.settings]
    best: set[tuple[int, int]] = set()
    censored: set[tuple[int, int]] = set()
    for place, name in enumerate(columns):
        middles = findings.summary[findings.summary["column"] == name].set_index("setting")["middle"].astype(float)
        known = {str(label): float(value) for label, value in middles.items() if math.isfinite(value)}
        if "@" in name:
            censored |= {(at, 2 + place) for at, label in enumerate(findings.settings) if label not in known}
        for label, row in zip(findings.settings, rows, strict=True):
            row.append(_cell(name, common(known.values()), summary.get((label, name)), findings.currency))
        lower = findings.lower.get(name)
        tied = len(set(known.values())) == 1 < len(known)
        if several and lower is not None and known and not tied:
            extreme = (min if lower else max)(known.values())
            best |= {(findings.settings.index(label), 2 + place) for label, at in known.items() if at == extreme}
    shown = findings.summary[findings.summary["column"].isin(columns)]
    medians = [words_of(name) for name in dict.fromkeys(shown["column"][shown["statistic"] == "median"])]
    told = ["Means over the runs, in brackets their 95 % intervals."]
    if medians:
        told[0] += f" Kaplan-Meier medians, which count runs that did not reach the target: {', '.join(medians)}."
    if censored:
        told.append(f"{HATCHED}.")
    if several:
        told.append(
            f"Differences and p-values are against {findings.baseline}, paired by seed (Wilcoxon's signed-rank test), "
            "Holm-corrected for the comparisons of a column. The best of a column is in bold."
        )
    head = ", ".join(findings.axes) or "configuration"
    table = ReportTable(
        caption="Results of each configuration",
        head=[head, "runs", *map(words_of, columns)],
        rows=rows,
        numbers=1 + len(columns),
        sortable=several,
        best=frozenset(best),
        censored=frozenset(censored),
    )
    tables = [table, *([_differences(findings, head)] if len(findings.compared) else [])]
    return Section(name="results", title="Results", tables=tables, after=told)


def _cell(column: str, like: float, row: Mapping[Any, Any] | None, currency: str) -> Cell:
    if row is None or not row["reached"]:
        return Cell("not reached" if "@" in column else "–", key=math.nan)
    value, low, high = middle(row)
    small = []
    if row["runs"] > 1 and low < high and (known := interval(column, low, high, like, currency)):
        small.append(f"[{known}]")
    if row["reached"] < row["runs"]:
        small.append(f"{int(row['reached'])} of {int(row['runs'])} runs")
    if not math.isfinite(value):
        return Cell("not reached", small, math.nan)
    return Cell(number(column, value, like, currency), small, value)


def _differences(findings: Findings, head: str) -> ReportTable:
    """Return the table of differences from the baseline: amount and share, interval, p-value and common seeds."""
    against = {(row["setting"], row["column"]): row for row in findings.compared.to_dict("records")}
    columns = list(dict.fromkeys(findings.compared["column"]))
    rows = []
    for label in findings.settings:
        found = {name: against.get((label, name)) for name in columns}
        if any(found.values()):
            pairs = {int(row["pairs"]) for row in found.values() if row}
            seeds = Cell(f"{min(pairs)}", key=float(min(pairs)))
            rows.append([Cell(label), seeds, *(_difference(name, found[name], findings.currency) for name in columns)])
    return ReportTable(
        caption=f"Differences from {findings.baseline}",
        head=[head, "common seeds", *map(words_of, columns)],
        rows=rows,
        numbers=1 + len(columns),
        sortable=len(rows) > 1,
    )


def _difference(column: str, row: Mapping[Any, Any] | None, currency: str) -> Cell:
    if row is None or not math.isfinite(row["difference"]):
        return Cell("–", key=math.nan)
    moved, small = float(row["difference"]), []
    if moved == 0 and row["ties"] == row["pairs"]:
        return Cell("equal", key=0.0)
    of_share = is_accuracy(column)
    said = f"{100 * abs(moved):.1f}\u00a0points" if of_share else number(column, abs(moved), moved, currency)
    if not of_share and (share := change(float(row["ratio"]))):
        small.append(share)
    if math.isfinite(row["low"] + row["high"]) and (ends := interval(column, row["low"], row["high"], moved, currency)):
        small.append(f"[{ends.removesuffix('%') + 'points' if of_share else ends}]")
    if math.isfinite(row["restricted_to"]):
        small.append(f"up to {number(column, float(row['restricted_to']), None, currency)}")
    small += filter(None, [p_text(float(row["p_holm"]))])
    return Cell(f"{'+' if moved > 0 else '−'}{said}", small, moved)


def _levels(findings: Findings) -> Iterator[ReportTable]:
    """Yield a table for each axis that was compared, and one for the fleet: what its labels are."""
    for axis, levels in findings.levels.items():
        known = {key for level in levels for key in level.facts}
        if not known:
            continue
        heads = [head for head in _LEVEL if head in known]
        yield ReportTable(
            caption=f"Axis: {axis}" if axis else "The fleet of all configurations",
            head=[axis or "block", *heads],
            rows=[[Cell(level.name), *(Cell(level.facts.get(head, "–")) for head in heads)] for level in levels],
        )


def _clocks(clocks: ClockErrors, findings: Findings) -> Section:
    """Return the section on the intervals of the clocks' errors."""
    found = {(row["setting"], row["column"]): row for row in clocks.rows.to_dict("records")}
    columns = [name for name in findings.columns if (clocks.rows["column"] == name).any()]
    rows = []
    for label in findings.settings:
        row = [Cell(label)]
        for name in columns:
            of = found.get((label, name))
            like = common(clocks.rows["low"][clocks.rows["column"] == name].astype(float))
            ends = "" if of is None else interval(name, of["low"], of["high"], like, findings.currency)
            row.append(Cell(ends or "–", key=math.nan if of is None else float(of["median"])))
        rows.append(row)
    table = ReportTable(
        caption="90 % intervals of the clocks' errors",
        head=[", ".join(findings.axes) or "configuration", *map(words_of, columns)],
        rows=rows,
        numbers=len(columns),
        sortable=len(rows) > 1,
    )
    told = [
        "Predicted seconds of computing have an error, of which each device's clock has a spread. In "
        f"{clocks.draws} draws of these errors, the same for all configurations, nine of ten means over the runs lie "
        "in these intervals.",
        *clocks.notes,
    ]
    return Section(name="clocks", title="Errors of the devices' clocks", text=told, tables=[table] if columns else [])


_APART = {"energy_network_j": "network", "energy_server_j": "server"}


def _spent(findings: Findings, legend: list[Entry]) -> Iterator[Section]:
    """Yield the sections on energy, devices, rounds and money."""
    settings = findings.settings
    if len(findings.energy):
        chart, entries = stacked_chart(findings.energy, "activity", "joules", "energy", "energy")
        tables = []
        if findings.accounts[list(_APART)].to_numpy().any():
            names = {"energy_j": "devices", **_APART}
            means = findings.accounts.groupby("setting", sort=False)[list(names)].mean()
            like = {name: common(means[name].astype(float)) for name in names}
            rows = [
                [Cell(str(label)), *(Cell(number(name, row[name], like[name]), key=row[name]) for name in names)]
                for label, row in means.iterrows()
            ]
            accounts = ReportTable(
                caption="Energy of devices, network and server: none of the three contains another",
                head=["configuration", *names.values()],
                rows=rows,
                numbers=len(names),
                sortable=len(means) > 1,
            )
            tables.append(accounts)
        told = ["Energy is that of the devices, here and in all other sections. Means over the runs."]
        yield Section(name="energy", title="Energy", text=told, legend=entries, charts=[chart], tables=tables)
    spread = [lorenz_chart(findings.devices, settings)] if len(findings.energy) else []
    lengths = [lengths_chart(findings.lengths, settings)] if len(findings.lengths) else []
    if spread or lengths:
        yield Section(name="devices", title="Devices and rounds", legend=legend, charts=[*spread, *lengths])
    if not len(findings.costs):
        return
    if charts := cost_charts(findings.costs, settings, findings.currency):
        told = ["Lines are the first run of each configuration at typical prices, bands reach from low to high prices."]
        yield Section(name="cost", title="Cost and carbon", text=told, legend=legend, charts=charts)
    if findings.cost_items["cost"].any():
        words = f"cost ({findings.currency})"
        chart, items = stacked_chart(findings.cost_items, "item", "cost", "cost-items", words)
        yield Section(
            name="cost-by-item",
            title="What the money is for",
            text=["Means over the runs, at typical prices."],
            legend=items,
            charts=[chart],
        )


_FLEET = {
    "kind": "kind",
    "devices": "devices",
    "jobs": "jobs",
    "late_share": "late",
    "mean_down_s": "mean download",
    "mean_compute_s": "mean computing",
    "mean_up_s": "mean upload",
    "active_j": "energy above idle",
}


def _made(findings: Findings) -> Iterator[Section]:
    """Yield the sections on fleet, scenario, methods and commands."""
    rows = []
    for row in findings.fleet.to_dict("records"):
        cells = [Cell(str(row["kind"]))]
        for name in list(_FLEET)[1:]:
            value = row[name]
            if value != value:
                cells.append(Cell("–"))
            elif name.endswith("share"):
                cells.append(Cell(f"{value:.1%}".replace("%", "\u00a0%")))
            else:
                cells.append(Cell(text(name, float(value))))
        rows.append(cells)
    fleet = ReportTable(
        caption=f"Devices by kind, and what they did in {findings.made[0].run}",
        head=list(_FLEET.values()),
        rows=rows,
        numbers=len(_FLEET) - 1,
    )
    left_out = ", without keys at their defaults"
    scenario = ReportTable(
        caption=f"What all runs have in common{left_out}" if len(findings.made) > 1 else f"The scenario{left_out}",
        head=["key", "value"],
        rows=[[Cell(key), Cell(value)] for key, value in findings.scenario],
    )
    yield Section(name="setting", title="Fleet and scenario", tables=[fleet, scenario])
    if findings.parts:
        yield Section(
            name="methods",
            title="Methods and models",
            text=["What the runs are made of, as edgesim's catalogue describes it."],
            parts=findings.parts,
        )
    versions = sorted({f"{name} {version}" for made in findings.made for name, version in made.versions.items()})
    runs = ReportTable(
        caption=f"{count(len(findings.made), 'run')}: the digest is that of the scenario",
        head=["run", "configuration", "seed", "status", "date", "digest"],
        rows=[
            [Cell(made.run), Cell(made.setting), Cell(made.seed), Cell(made.status), Cell(made.date), Cell(made.digest)]
            for made in findings.made
        ],
    )
    yield Section(
        name="reproduce",
        title="How to reproduce",
        text=[
            "The same commands with the same versions give the same tables, bit for bit.",
            *([f"Made with {', '.join(versions)}."] if versions else []),
        ],
        code=findings.commands,
        tables=[runs],
    )
