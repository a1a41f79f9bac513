"""The sections of a report, in the order in which it is read: what was found first, how it was made last."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from edgesim.reports.format import text
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
from edgesim.reports.html.content import Cell, Entry, Findings, Section, Table
from edgesim.reports.html.words import change, count, interval, is_accuracy, middle, number, p_text, words_of

_MOST_FOREST = 2  # charts of times to a target


def sections(findings: Findings) -> Iterator[Section]:
    """Yield the sections that there is something to say in."""
    legend = list(looks(findings.settings).values())
    yield _results(findings)
    if len(findings.points):
        charts = accuracy_charts(findings.points, findings.settings, findings.targets)
        yield Section(
            name="accuracy",
            title="Accuracy",
            text=[
                "Lines are means over the seeds, bands reach from the lowest run to the highest. Dashes are targets."
            ],
            legend=legend,
            charts=charts,
        )
    if forest := _targets(findings, legend):
        yield forest
    if findings.tradeoffs:
        yield Section(
            name="tradeoffs",
            title="Trade-offs",
            text=["A configuration is grey if another one is at least as good in both and better in one."],
            legend=legend,
            charts=[tradeoff_chart(each, findings.settings) for each in findings.tradeoffs],
        )
    yield from _spent(findings, legend)
    if findings.slowest is not None:
        yield _slowest(findings, legend)
    yield _setting(findings)
    if findings.parts:
        yield Section(
            name="methods",
            title="Methods and models",
            text=["What the runs are made of, as edgesim's catalogue describes it."],
            parts=findings.parts,
        )
    yield _reproduce(findings)


# --- results ----------------------------------------------------------------------------------------------------


def _results(findings: Findings) -> Section:
    columns = [name for name in findings.columns if (findings.summary["column"] == name).any()]
    summary = {(row["setting"], row["column"]): row for row in findings.summary.to_dict("records")}
    against = {(row["setting"], row["column"]): row for row in findings.compared.to_dict("records")}
    largest = {name: _largest(findings, name) for name in columns}
    rows = [
        [Cell(label), Cell(_runs(findings, label), key=_runs_key(findings, label)),
         *(_cell(name, largest[name], summary.get((label, name)), against.get((label, name))) for name in columns)]
        for label in findings.settings
    ]  # fmt: skip
    several = len(findings.settings) > 1
    told = [_how(findings, columns)]
    if several:
        told.append(
            f"Changes and p-values are against {findings.baseline}, paired by seed (Wilcoxon's signed-rank test), "
            "corrected after Holm for being several. The best of a column is in bold."
        )
    table = Table(
        caption="Results of each configuration" + (f", compared with {findings.baseline}" if several else ""),
        head=[findings.axes or "configuration", "runs", *map(words_of, columns)],
        rows=rows,
        numbers=1 + len(columns),
        sortable=several,
        best=frozenset(_best(findings, columns)),
    )
    return Section(name="results", title="Results", tables=[table], after=told)


def _how(findings: Findings, columns: list[str]) -> str:
    """Return how the numbers of the table came about."""
    shown = findings.summary[findings.summary["column"].isin(columns)]
    medians = [words_of(name) for name in dict.fromkeys(shown["column"][shown["statistic"] == "median"])]
    said = "Means over the runs, in brackets their 95 % intervals."
    if medians:
        said += f" Kaplan-Meier medians, which count runs that never got there: {', '.join(medians)}."
    return said


def _runs(findings: Findings, label: str) -> str:
    return f"{_runs_key(findings, label):.0f}"


def _runs_key(findings: Findings, label: str) -> float:
    return float(findings.summary["runs"][findings.summary["setting"] == label].max())


def _cell(column: str, largest: float, row: Mapping[Any, Any] | None, against: Mapping[Any, Any] | None) -> Cell:
    if row is None or not row["reached"]:
        return Cell("not reached" if "@" in column else "–", key=math.nan)
    value, low, high = middle(row)
    reached = f"{int(row['reached'])} of {int(row['runs'])} runs" if row["reached"] < row["runs"] else ""
    known = interval(column, low, high, largest) if row["runs"] > 1 and low < high else ""
    compared = "" if against is None else _compared(column, against)
    small = [line for line in (f"[{known}]" if known else "", reached, compared) if line]
    if not math.isfinite(value):
        return Cell("not reached", small, math.nan)
    return Cell(number(column, value, largest), small, value)


def _compared(column: str, against: Mapping[Any, Any]) -> str:
    if against["difference"] == 0:
        return "equal"
    moved = change(float(against["ratio"]))
    if is_accuracy(column) and math.isfinite(against["difference"]):
        points = 100 * float(against["difference"])
        moved = f"{'+' if points >= 0 else '−'}{abs(points):.1f}\u00a0points"
    return ", ".join(filter(None, [moved, p_text(float(against["p_holm"]))]))


def _largest(findings: Findings, column: str) -> float:
    """Return the largest middle of a column, for all of its numbers to be in one unit."""
    known = findings.summary["middle"][findings.summary["column"] == column]
    return max((abs(value) for value in known if math.isfinite(value)), default=0.0)


def _best(findings: Findings, columns: list[str]) -> Iterator[tuple[int, int]]:
    """Yield the row and column of the best cells."""
    if len(findings.settings) < 2:
        return
    for place, column in enumerate(columns):
        lower = findings.lower.get(column)
        rows = findings.summary[findings.summary["column"] == column].to_dict("records")
        known = {row["setting"]: middle(row)[0] for row in rows if math.isfinite(middle(row)[0])}
        if lower is None or not known or len(set(known.values())) == 1 < len(known):
            continue
        best = (min if lower else max)(known.values())
        yield from ((findings.settings.index(label), 2 + place) for label, value in known.items() if value == best)


def _targets(findings: Findings, legend: list[Entry]) -> Section | None:
    until = [name for name in findings.columns if "@" in name and (findings.summary["column"] == name).any()]
    reached = findings.summary.groupby("column")["reached"].sum()
    shown = [name for name in until if reached[name] > 0][:_MOST_FOREST]
    if not shown:
        return None
    return Section(
        name="targets",
        title="Time to the target",
        text=[
            "Dots are runs. An open triangle is a run that ended before the target: it would have needed more. "
            "Diamonds are means over all runs, or medians if some did not arrive; lines are their 95 % intervals, one "
            "that ends in an arrow has no known end."
        ],
        legend=legend,
        charts=[target_chart(findings.values, findings.summary, name, findings.settings) for name in shown],
    )


# --- what it took -----------------------------------------------------------------------------------------------


def _spent(findings: Findings, legend: list[Entry]) -> Iterator[Section]:
    if len(findings.energy):
        chart, entries = stacked_chart(findings.energy, "activity", "joules", "energy", "energy", findings.settings)
        told = ["Energy is that of the devices, here and in all other sections. Means over the runs."]
        apart = [_accounts(findings)] if findings.accounts[list(_APART)].to_numpy().any() else []
        yield Section(name="energy", title="Energy", text=told, legend=entries, charts=[chart], tables=apart)
    spread = [lorenz_chart(findings.devices, findings.settings)] if len(findings.energy) else []
    lengths = [lengths_chart(findings.lengths, findings.settings)] if len(findings.lengths) else []
    if spread or lengths:
        yield Section(name="devices", title="Devices and rounds", legend=legend, charts=[*spread, *lengths])
    if len(findings.costs):
        yield from _priced(findings, legend)


_APART = {"energy_network_j": "network", "energy_server_j": "server"}


def _accounts(findings: Findings) -> Table:
    """Return the mean joules of devices, network and server of each setting."""
    names = {"energy_j": "devices", **_APART}
    means = findings.accounts.groupby("setting", sort=False)[list(names)].mean()
    largest = {name: float(means[name].max()) for name in names}
    return Table(
        caption="Energy of devices, network and server: none of the three contains another",
        head=["configuration", *names.values()],
        rows=[
            [Cell(str(label)), *(Cell(number(name, row[name], largest[name]), key=row[name]) for name in names)]
            for label, row in means.iterrows()
        ],
        numbers=len(names),
        sortable=len(means) > 1,
    )


def _priced(findings: Findings, legend: list[Entry]) -> Iterator[Section]:
    charts = cost_charts(findings.costs, findings.settings, findings.currency)
    text_ = ["Lines are the first run of each configuration at typical prices, bands reach from low to high prices."]
    if charts:
        yield Section(name="cost", title="Cost and carbon", text=text_, legend=legend, charts=charts)
    if findings.cost_items["cost"].any():
        words = f"cost ({findings.currency})"
        chart, items = stacked_chart(findings.cost_items, "item", "cost", "cost-items", words, findings.settings)
        yield Section(
            name="cost-by-item",
            title="What the money is for",
            text=["Means over the runs, at typical prices."],
            legend=items,
            charts=[chart],
        )


def _slowest(findings: Findings, legend: list[Entry]) -> Section:
    slowest = findings.slowest
    assert slowest is not None
    of = f"Of all rounds of all runs the longest is round {slowest.number} of {slowest.run}"
    which = f" ({slowest.setting})" if len(findings.settings) > 1 else ""
    return Section(
        name="slowest",
        title="The slowest round",
        text=[f"{of}{which}.", *slowest.lines],
        legend=phases(),
        charts=[gantt_chart(slowest)],
        after=["Hatched bars belong to jobs that did not deliver. The vertical line is the end of the round."],
    )


# --- how it was made --------------------------------------------------------------------------------------------

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


def _setting(findings: Findings) -> Section:
    rows = [
        [Cell(str(row["kind"])), *(_fleet_cell(name, row[name]) for name in list(_FLEET)[1:])]
        for row in findings.fleet.to_dict("records")
    ]
    run = findings.made[0].run
    fleet = Table(
        caption=f"Devices by kind, and what they did in {run}",
        head=list(_FLEET.values()),
        rows=rows,
        numbers=len(_FLEET) - 1,
    )
    scenario = Table(
        caption="What all runs have in common" if len(findings.made) > 1 else "The scenario",
        head=["key", "value"],
        rows=[[Cell(key), Cell(value)] for key, value in findings.scenario],
    )
    return Section(name="setting", title="Fleet and scenario", tables=[fleet, scenario])


def _fleet_cell(name: str, value: Any) -> Cell:
    if value != value:
        return Cell("–")
    return Cell(f"{value:.1%}".replace("%", "\u00a0%") if name.endswith("share") else text(name, float(value)))


def _reproduce(findings: Findings) -> Section:
    rows = [
        [Cell(made.run), Cell(made.setting), Cell(made.seed), Cell(made.status), Cell(made.date), Cell(made.digest)]
        for made in findings.made
    ]
    versions = sorted({f"{name} {version}" for made in findings.made for name, version in made.versions.items()})
    told = [f"Made with {', '.join(versions)}."] if versions else []
    runs = Table(
        caption=f"{count(len(rows), 'run')}: the digest is that of the scenario",
        head=["run", "configuration", "seed", "status", "date", "digest"],
        rows=rows,
    )
    return Section(
        name="reproduce",
        title="How to reproduce",
        text=["The same commands with the same versions give the same tables, bit for bit.", *told],
        code=findings.commands,
        tables=[runs],
    )
