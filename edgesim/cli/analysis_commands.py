"""Commands that compare configurations of a study: differences, Pareto fronts, break-even prices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgesim.cli.checkpoint import seconds_of
from edgesim.cli.claims import claims
from edgesim.cli.formats import AsCsv, AsJson, AsLatex, AsMarkdown, one_of
from edgesim.cli.frames import print_frame_as
from edgesim.cli.study import MadeRuns, Only, Runs, SizeName, StudyFile, made
from edgesim.core.errors import ConfigError

if TYPE_CHECKING:
    from edgesim.core.metrics import Better

Columns = Annotated[
    list[str] | None,
    typer.Option("--column", metavar="COLUMN", help="A column, of the study or any other. Repeatable."),
]
OneColumn = Annotated[str, typer.Option("--column", metavar="COLUMN", help="A column, of the study or any other.")]
Higher = Annotated[
    list[str] | None,
    typer.Option(metavar="COLUMN", help="A column, such as metric.NAME, whose high numbers are better."),
]
Lower = Annotated[
    list[str] | None,
    typer.Option(metavar="COLUMN", help="A column, such as metric.NAME, whose low numbers are better."),
]


def compare(
    study: StudyFile,
    baseline: Annotated[str, typer.Option(metavar="LABELS", help="The baseline, such as method=fedavg.")],
    column: Columns = None,
    higher: Higher = None,
    lower: Lower = None,
    only: Only = None,
    size: SizeName = "quick",
    folder: Runs = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    as_markdown: AsMarkdown = False,
    as_latex: AsLatex = False,
) -> None:
    """Compare configurations with a baseline, paired by seed: difference, ratio, wins and p-values."""
    from edgesim.cli.show import print_note
    from edgesim.studies.column import parse_column
    from edgesim.studies.statistics import least_p
    from edgesim.studies.study import read_labels
    from edgesim.studies.values import axes_of, compared, few_runs, values_of

    style = one_of(json=as_json, csv=as_csv, markdown=as_markdown, latex=as_latex)
    labels, found = read_labels("--baseline", baseline), _made(study, only, size, folder)
    ways = _told(higher, lower)
    columns = column or [name for name in found.study.columns if name in ways or parse_column(name).better]
    if others := [name for name in found.study.columns if not column and name not in columns]:
        print_note(
            f"{', '.join(others)}: not compared, as more or less is not known to be better; say --higher or --lower"
        )
    values = values_of(found.study, found.runs, columns)
    rows = compared(values, labels, columns, ways)
    shown = rows
    if style not in ("json", "csv"):  # leave out columns that follow from others, or are empty
        empty = [name for name in ("unpaired", "unsure") if not rows[name].astype(bool).any()]
        derived = ["wins", "losses", "ties", "ratio_low", "ratio_high"]
        shown = rows.drop(columns=[*empty, *derived]).dropna(axis="columns", how="all")
    title = f"{found.study.name} ({size}), against {baseline}"
    print_frame_as(shown, style, title, len(axes_of(values)) + 1, _about(found, size, baseline=labels))
    if not style and (note := few_runs(rows)):
        print(note)
    pairs = [int(count) for count in rows["pairs"] if count]
    if pairs and least_p(min(pairs)) > 0.05:
        print_note(
            f"with {min(pairs)} pair{'s'[: min(pairs) != 1]} no p-value can be below {least_p(min(pairs)):g}; add seeds"
        )


def front(
    study: StudyFile,
    column: Columns = None,
    higher: Higher = None,
    lower: Lower = None,
    only: Only = None,
    size: SizeName = "quick",
    folder: Runs = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    as_markdown: AsMarkdown = False,
    as_latex: AsLatex = False,
) -> None:
    """Print the Pareto front of configurations in two or three columns, and its knee."""
    from edgesim.studies.tradeoffs.cheapest import typical
    from edgesim.studies.tradeoffs.pareto import front as front_of
    from edgesim.studies.values import axes_of, summarised, values_of

    style = one_of(json=as_json, csv=as_csv, markdown=as_markdown, latex=as_latex)
    found, columns = _made(study, only, size, folder), column or []
    rows = summarised(values_of(found.study, found.runs, list(dict.fromkeys(columns))))
    points = front_of(rows, columns, _told(higher, lower))
    statistics = dict(typical(rows, columns).statistics)
    over = ", ".join(f"{name} ({statistic})" for name, statistic in statistics.items())
    title = f"{found.study.name} ({size}), {over}"
    print_frame_as(points, style, title, len(axes_of(rows)), _about(found, size, statistics=statistics))


def cheapest(
    study: StudyFile,
    by: Annotated[str, typer.Option(metavar="COLUMN", help="The column to minimise, such as energy_j@0.8.")],
    reach: Annotated[
        str, typer.Option(metavar="TARGET", help="The accuracy to reach, as after @ in a column: 0.8, 0.8~5.")
    ],
    within: Annotated[str, typer.Option(metavar="TIME", help='The simulated time limit, such as "2 h".')],
    share: Annotated[float, typer.Option(help="The share of runs that has to be in time.")] = 0.5,
    confidence: Annotated[float, typer.Option(help="Confidence that the share is reached.")] = 0.95,
    only: Only = None,
    size: SizeName = "quick",
    folder: Runs = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    as_markdown: AsMarkdown = False,
    as_latex: AsLatex = False,
) -> None:
    """Print the configurations that reach a target in time with the requested confidence, the cheapest first."""
    from edgesim.studies.tradeoffs.cheapest import cheapest as cheapest_of
    from edgesim.studies.tradeoffs.cheapest import names_of, runs_needed
    from edgesim.studies.values import axes_of, values_of

    style = one_of(json=as_json, csv=as_csv, markdown=as_markdown, latex=as_latex)
    within_s, goal = seconds_of("--within", within), f"sim_time_s@{reach}"
    found = _made(study, only, size, folder)
    values = values_of(found.study, found.runs, list(dict.fromkeys([goal, by])))
    rows = cheapest_of(values, goal, within_s, by, share, confidence)
    axes, asked = axes_of(values), {"goal": goal, "within_s": within_s, "share": share, "confidence": confidence}
    title = f"{found.study.name} ({size}), {goal} within {within}"
    print_frame_as(rows, style, title, len(axes), _about(found, size, **asked))
    if style:
        return
    surely = f"{100 * share:g} % of runs in time, with {100 * confidence:g} % confidence"
    winner = rows[rows["cheapest"]]
    if len(winner):
        print(f"cheapest with {surely}: {names_of(winner[axes])[0] or 'the only one'}")
    else:
        print(f"none has {surely}; it takes {runs_needed(share, confidence)} runs or more, all in time")


def theta(
    study: StudyFile,
    time: Annotated[str, typer.Option(metavar="COLUMN", help="The column of seconds.")] = "sim_time_s",
    energy: Annotated[str, typer.Option(metavar="COLUMN", help="The column of joules.")] = "energy_j",
    at: Annotated[list[float] | None, typer.Option("--theta", help="A weight of energy, 0 to 1. Repeatable.")] = None,
    only: Only = None,
    size: SizeName = "quick",
    folder: Runs = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    as_markdown: AsMarkdown = False,
    as_latex: AsLatex = False,
) -> None:
    """Print the cost (1 - theta) x seconds + theta x joules by theta, and the cheapest configuration in each range."""
    import pandas as pd

    from edgesim.reports.cost import RoundCost
    from edgesim.studies.tradeoffs.cheapest import names_of, typical
    from edgesim.studies.tradeoffs.theta import THETAS, at_thetas, cheapest_over_theta
    from edgesim.studies.values import axes_of, summarised, values_of

    style = one_of(json=as_json, csv=as_csv, markdown=as_markdown, latex=as_latex)
    found = _made(study, only, size, folder)
    rows = summarised(values_of(found.study, found.runs, [time, energy]))
    points, axes = typical(rows, [time, energy]), axes_of(rows)
    costs = [RoundCost(*pair) for pair in points.frame[[time, energy]].to_numpy(dtype=float)]
    names = names_of(points.frame[axes])
    lines = [at_thetas(cost, at or THETAS) if _is_finite(cost) else {} for cost in costs]
    table = points.frame.join(pd.DataFrame(lines))
    known = {name: cost for name, cost in zip(names, costs, strict=True) if _is_finite(cost)}
    ranges = cheapest_over_theta(known)
    about = _about(found, size, statistics=dict(points.statistics), cheapest=ranges)
    print_frame_as(table, style, f"{found.study.name} ({size})", len(axes), about)
    if not style:
        for each in ranges:
            print(f"cheapest from theta {each['from_theta']:.4g} to {each['to_theta']:.4g}: {each['cheapest']}")


def sensitivity(
    study: StudyFile,
    column: OneColumn,
    base: Annotated[
        str | None, typer.Option(metavar="LABELS", help="Base labels. Default: the first label of each axis.")
    ] = None,
    only: Only = None,
    size: SizeName = "quick",
    folder: Runs = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    as_markdown: AsMarkdown = False,
    as_latex: AsLatex = False,
) -> None:
    """Print the effect of each axis on a column: differences from a base, the largest swing first."""
    from edgesim.cli.show import print_note
    from edgesim.studies.study import read_labels
    from edgesim.studies.tradeoffs.sensitivity import of_cut, tornado
    from edgesim.studies.values import values_of

    style = one_of(json=as_json, csv=as_csv, markdown=as_markdown, latex=as_latex)
    labels, found = read_labels("--base", base) if base else {}, _made(study, only, size, folder)
    values = values_of(found.study, found.runs, [column])
    rows = tornado(values, column, labels)
    print_frame_as(rows, style, f"{found.study.name} ({size}), {column}", 2, _about(found, size, column=column))
    if note := of_cut(values, column, labels):
        print_note(note)


def break_even(
    study: StudyFile,
    between: Annotated[str, typer.Option(metavar="LABELS", help="One configuration, such as method=fedavg.")],
    other: Annotated[
        str, typer.Option("--and", metavar="LABELS", help="Another configuration: other labels of the same axes.")
    ],
    column: OneColumn,
    per: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Find the price at which --column + price x this column is equal."),
    ] = None,
    over: Annotated[
        str | None, typer.Option(metavar="AXIS", help="Find the value of this axis at which --column is equal.")
    ] = None,
    only: Only = None,
    size: SizeName = "quick",
    folder: Runs = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    as_markdown: AsMarkdown = False,
    as_latex: AsLatex = False,
) -> None:
    """Print the price, or the value of an axis, at which two configurations cost the same."""
    from edgesim.studies.study import read_labels
    from edgesim.studies.tradeoffs.break_even import over_axis, over_price
    from edgesim.studies.values import values_of

    if (per is None) == (over is None):
        raise ConfigError("--per, --over: give one of them")
    style = one_of(json=as_json, csv=as_csv, markdown=as_markdown, latex=as_latex)
    sides = read_labels("--between", between), read_labels("--and", other)
    found = _made(study, only, size, folder)
    if per is not None:
        rows = over_price(values_of(found.study, found.runs, [column, per]), *sides, column, per)
    else:
        rows = over_axis(values_of(found.study, found.runs, [column]), *sides, column, str(over))
    what = f"{column} + price x {per}" if per else f"{column} over {over}"
    title = f"{found.study.name} ({size}), {what}: {between} (one) and {other} (other)"
    keys = list(rows).index("pairs")
    print_frame_as(rows, style, title, max(1, keys), _about(found, size, one=sides[0], other=sides[1]))
    if rows.empty and not style:
        print("the two are never equal")


_COMMANDS: Mapping[str, Callable[..., None]] = {
    "compare": compare,
    "front": front,
    "cheapest": cheapest,
    "theta": theta,
    "sensitivity": sensitivity,
    "break-even": break_even,
    "claims": claims,
}


def add_to(app: typer.Typer) -> None:
    """Add these commands to those about studies."""
    for name, command in _COMMANDS.items():
        app.command(name)(command)


def _made(study: Any, only: list[str] | None, size: str, folder: Any) -> MadeRuns:
    """Return the runs of a study. Each missing cell is named on stderr, because it affects the decision."""
    from edgesim.cli.show import print_note

    found = made(study, only, size, folder)
    for name in found.missing:
        print_note(f"missing: {name}")
    return found


def _about(found: MadeRuns, size: str, **more: Any) -> dict[str, Any]:
    return {"study": found.study.name, "size": size, "missing": list(found.missing), **more}


def _told(higher: Sequence[str] | None, lower: Sequence[str] | None) -> dict[str, Better]:
    told: dict[str, Better] = dict.fromkeys(higher or (), "higher")
    return told | dict.fromkeys(lower or (), "lower")


def _is_finite(cost: Sequence[float]) -> bool:
    return all(abs(number) < float("inf") for number in cost)
