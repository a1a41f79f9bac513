"""The page of a run or study that may still go on: progress, accuracy so far, the latest round and stragglers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from plotly.offline import get_plotlyjs

from edgesim.reports.critical_path import attributed, explain
from edgesim.reports.figure_numbers import accuracy_points, round_bars
from edgesim.reports.format import count, divergence, text
from edgesim.reports.html.charts import accuracy_charts, gantt_chart, looks, phases
from edgesim.reports.html.content import Cell, ReportTable, Section, SlowestRound
from edgesim.reports.html.local_server import Resource
from edgesim.reports.html.page import asset, badges_of, templates
from edgesim.reports.load import Run
from edgesim.reports.participation import participation
from edgesim.reports.stats import curve

DRAWN = ("devices", "rounds", "evals", "jobs", "metrics")  # tables that the page shows
_MOST_STRAGGLERS = 10


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Progress of a run in words. `share`: the part that is done, None if it is not known. `facts`: by their names."""

    title: str
    status: str
    share: float | None
    facts: Mapping[str, str]


def assets_of_page() -> dict[str, Resource]:
    """Return the files that the page of `live_page` loads, by path."""
    return {
        "/report.css": Resource(asset("report.css"), "text/css"),
        "/live.css": Resource(asset("live.css"), "text/css"),
        "/plotly.js": Resource(get_plotlyjs(), "text/javascript"),
        "/report.js": Resource(asset("report.js"), "text/javascript"),
        "/live.js": Resource(asset("live.js"), "text/javascript"),
    }


def live_page(
    title: str,
    every_s: float,
    progress: Sequence[Progress] = (),
    sections: Iterable[Section] = (),
    notes: Iterable[str] = (),
) -> Resource:
    """Return the page, which asks for itself every `every_s` seconds and redraws what has changed.

    `notes`: lines below the title.
    """
    page = templates().get_template("live.html")
    parts = {"progress": progress, "sections": list(sections), "notes": list(notes)}
    return Resource(page.render(title=title, every_s=every_s, **parts), "text/html")


def notes_of(run: Run) -> Iterator[str]:
    """Yield what went wrong in a run, a line each: the loss of its process, a divergence, its warnings."""
    if run.status == "cut off":
        yield "The process that ran this was killed. The tables end with its last write."
    for view in run.views:
        if found := view.manifest.get("diverged"):
            yield f"{view.name} {divergence(found)}."
    for line in run.manifest.get("warnings", ()):
        yield f"Warning: {line}."


def sections_of(runs: Sequence[Run], title: str) -> Iterator[Section]:
    """Yield the sections on the sessions of a run, whose tables DRAWN are read. Raises ConfigError as they do."""
    labels = {run: run.chosen or run.method for run in runs}
    names = {run: run.chosen or title for run in runs}
    points = accuracy_points(labels).dropna(subset="accuracy")
    if len(points):
        shown = list(dict.fromkeys(points["setting"]))
        models = [(run.learned_by, run.charged_as) for run in runs if run.charged_as]
        targets = sorted({target for run in runs for target in run.targets})
        yield Section(
            name="accuracy",
            title="Accuracy",
            text=["Accuracy on the test data. Dashed lines are targets."] if targets else [],
            legend=list(looks(shown).values()),
            charts=accuracy_charts(points, shown, targets, badges_of(dict.fromkeys(models))),
        )
    else:
        yield Section(name="accuracy", title="Accuracy", text=[_without_accuracy(run) for run in runs])
    latest = []
    for run in runs:
        if len(run.rounds):
            number = int(run.rounds["round"].iloc[-1]) + 1
            lines = explain(run, number).splitlines()
            latest.append(SlowestRound(run=names[run], setting=run.method, lines=lines, found=round_bars(run, number)))
    if not latest:
        yield Section(name="round", title="The latest round", text=["No round has closed yet."])
        return
    yield Section(
        name="round",
        title="The latest round",
        text=[line if len(runs) == 1 else f"{each.run}: {line}" for each in latest for line in each.lines],
        legend=phases(),
        charts=[replace(gantt_chart(each), name=f"gantt-{place}") for place, each in enumerate(latest)],
        after=["Hatched bars belong to jobs that did not deliver. The vertical line is the end of the round."],
    )
    tables = [_stragglers(run, names[run]) for run in runs if len(run.rounds)]
    yield Section(name="stragglers", title="Stragglers", tables=tables)


def _without_accuracy(run: Run) -> str:
    """Return a sentence on a run without an accuracy: it comes later, or the run has another goal."""
    points = curve(run)
    if points.empty:
        return "No model has been evaluated yet."
    values, best = points[run.goal], "max" if run.better[run.goal] == "higher" else "min"
    return f"The goal is {run.goal}, now {values.iloc[-1]:.4g} and at best {values.agg(best):.4g}. It has no accuracy."


def _stragglers(run: Run, name: str) -> ReportTable:
    """Return the devices that were last in most rounds or late most often."""
    each = participation(run, each=True).set_index("device")
    last = attributed(run.jobs, run.rounds)["critical_device"].value_counts()
    each["last"] = last.reindex(each.index, fill_value=0)
    held_up = each[each["last"] + each["late_jobs"] > 0]
    worst = held_up.sort_values(["last", "late_jobs"], ascending=False, kind="stable").head(_MOST_STRAGGLERS)
    rows = []
    for device, row in worst.iterrows():
        times = [row[f"mean_{phase}_s"] for phase in ("down", "compute", "up")]
        counts = [f"{row['last']:.0f}", f"{row['late_jobs']:.0f}", f"{row['jobs']:.0f}"]
        known = ["–" if time_s != time_s else text("_s", float(time_s)) for time_s in times]
        rows.append([Cell(f"{row['kind']} {device}"), *map(Cell, counts), *map(Cell, known)])
    caption = f"Devices that were last in most of {count(len(run.rounds), 'round')} of {name}, or late most often"
    head = ["device", "rounds as last", "late jobs", "jobs", "mean download", "mean computing", "mean upload"]
    return ReportTable(caption=caption, head=head, rows=rows, numbers=len(head) - 1)
