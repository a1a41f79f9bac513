"""Commands that draw conclusions from a study: comparisons, trade-offs, claims of papers, and the HTML report."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from edgesim.cli.look import all_opened
from edgesim.cli.options import Draws, Only, StudyFolder, TableStyle, check_file, seconds_of, write_text
from edgesim.cli.printing import print_frame_as, print_note
from edgesim.cli.study import CellsOfStudy, MadeRuns, clocks_of
from edgesim.core.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

Columns = Annotated[
    list[str] | None,
    typer.Option("--column", metavar="COLUMN", help="A column, of the study or any other. Repeatable."),
]
OneColumn = Annotated[str, typer.Option("--column", metavar="COLUMN", help="A column, of the study or any other.")]

_RUNS = Path("runs/studies")


@dataclass(frozen=True, kw_only=True)
class Directions:
    """Columns whose better direction the command line gives."""

    higher: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="A column, such as metric.NAME, whose high numbers are better."),
    ] = None
    lower: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="A column, such as metric.NAME, whose low numbers are better."),
    ] = None

    @property
    def by_column(self) -> dict[str, Literal["higher", "lower"]]:
        """Better direction of each named column."""
        found: dict[str, Literal["higher", "lower"]] = dict.fromkeys(self.higher or (), "higher")
        return found | dict.fromkeys(self.lower or (), "lower")


def _made(cells: CellsOfStudy) -> MadeRuns:
    """Return the existing runs of a study. Each missing cell is named on stderr, because it affects the decision."""
    found = cells.made()
    for name in found.missing:
        print_note(f"missing: {name}")
    return found


def _print_rows(found: MadeRuns, form: str, rows: pd.DataFrame, title: str, keys: int, **about: Any) -> None:
    """Print rows under the name and size of a study. `form`, `keys`, `about`: as in `print_frame_as`."""
    whole = {"study": found.study.name, "size": found.size, "missing": list(found.missing), **about}
    print_frame_as(rows, form, f"{found.study.name} ({found.size}){title}", keys, whole)


def _is_finite(cost: Sequence[float]) -> bool:
    return all(abs(number) < float("inf") for number in cost)


def compare(
    cells: CellsOfStudy,
    style: TableStyle,
    better: Directions,
    baseline: Annotated[str, typer.Option(metavar="LABELS", help="The baseline, such as method=fedavg.")],
    column: Columns = None,
    intervals: Draws = None,
) -> None:
    """Compare configurations with a baseline, paired by seed: difference, ratio, wins and p-values.

    --intervals: also tell which orders depend on the clocks' errors. Both sides have the same draws.
    """
    from edgesim.studies.clock_intervals import SURE
    from edgesim.studies.column import parse_column
    from edgesim.studies.statistics import least_p
    from edgesim.studies.study import read_labels
    from edgesim.studies.tradeoffs import name_of
    from edgesim.studies.values import axes_of, compared, values_of, with_one_interval

    form = style.name
    labels, found = read_labels("--baseline", baseline), _made(cells)
    ways = better.by_column
    columns = column or [name for name in found.study.columns if name in ways or parse_column(name).better]
    if others := [name for name in found.study.columns if not column and name not in columns]:
        print_note(f"{', '.join(others)}: not compared; add --higher or --lower to say which direction is better")
    values = values_of(found.study, found.runs, columns)
    rows, axes = compared(values, labels, columns, ways), axes_of(values)
    drawn, told = clocks_of(found, columns, intervals), list[str]()
    if drawn:
        sides = [(row, {**{axis: row[axis] for axis in axes}, **labels}) for row in rows.to_dict("records")]
        shares = [
            drawn.order_holds([row[axis] for axis in axes], list(other.values()), row["column"], row["difference"])
            for row, other in sides
        ]
        rows = rows.assign(order_holds=shares)
        for (row, other), share in zip(sides, shares, strict=True):
            if share < SURE:
                one = name_of({axis: row[axis] for axis in axes})
                told.append(f"{row['column']}: {drawn.order_in_words(one, name_of(other), share)}")
    shown, title = rows, f", against {baseline}"
    if form not in ("json", "csv"):  # leave out columns that follow from others, or are empty
        empty = [name for name in ("unpaired", "unsure") if not rows[name].astype(bool).any()]
        derived = ["wins", "losses", "ties", "ratio_low", "ratio_high"]
        shown, interval = with_one_interval(rows)
        shown = shown.drop(columns=[*empty, *derived]).dropna(axis="columns", how="all")
        title += f"; low to high: 95 % interval of the difference by {interval}" if interval else ""
    _print_rows(found, form, shown, title, len(axes) + 1, baseline=labels)
    if not form and drawn:
        sure = f"every known order holds in {SURE:.0%} or more of {intervals} draws of the clocks' errors"
        print("\n".join(told) or sure)
    pairs = [int(count) for count in rows["pairs"] if count]
    if pairs and least_p(min(pairs)) > 0.05:
        print_note(
            f"with {min(pairs)} pair{'s'[: min(pairs) != 1]} no p-value can be below {least_p(min(pairs)):g}; add seeds"
        )


def front(
    cells: CellsOfStudy,
    style: TableStyle,
    better: Directions,
    column: Columns = None,
) -> None:
    """Print the Pareto front of configurations in two or three columns, and its knee."""
    from edgesim.studies.tradeoffs import front as front_of
    from edgesim.studies.tradeoffs import typical
    from edgesim.studies.values import axes_of, summarised, values_of

    form = style.name
    found, columns = _made(cells), column or []
    rows = summarised(values_of(found.study, found.runs, list(dict.fromkeys(columns))))
    points = front_of(rows, columns, better.by_column)
    statistics = dict(typical(rows, columns).statistics)
    over = ", ".join(f"{name} ({statistic})" for name, statistic in statistics.items())
    _print_rows(found, form, points, f", {over}", len(axes_of(rows)), statistics=statistics)


def cheapest(
    cells: CellsOfStudy,
    style: TableStyle,
    by: Annotated[str, typer.Option(metavar="COLUMN", help="The column to minimise, such as energy_j@0.8.")],
    reach: Annotated[
        str, typer.Option(metavar="TARGET", help="The accuracy to reach, as after @ in a column: 0.8, 0.8~5.")
    ],
    within: Annotated[str, typer.Option(metavar="TIME", help='The simulated time limit, such as "2 h".')],
    share: Annotated[float, typer.Option(help="The share of runs that has to be in time.")] = 0.5,
    confidence: Annotated[float, typer.Option(help="Confidence that the share is reached.")] = 0.95,
) -> None:
    """Print the configurations that reach a target in time with the requested confidence, the cheapest first."""
    from edgesim.studies.tradeoffs import cheapest as cheapest_of
    from edgesim.studies.tradeoffs import names_of, runs_needed
    from edgesim.studies.values import axes_of, values_of

    form = style.name
    within_s, goal = seconds_of("--within", within), f"sim_time_s@{reach}"
    found = _made(cells)
    values = values_of(found.study, found.runs, list(dict.fromkeys([goal, by])))
    rows = cheapest_of(values, goal, within_s, by, share, confidence)
    axes, asked = axes_of(values), {"goal": goal, "within_s": within_s, "share": share, "confidence": confidence}
    _print_rows(found, form, rows, f", {goal} within {within}", len(axes), **asked)
    if form:
        return
    surely = f"{100 * share:g} % of runs in time, with {100 * confidence:g} % confidence"
    winner = rows[rows["cheapest"]]
    if len(winner):
        print(f"cheapest with {surely}: {names_of(winner[axes])[0] or 'the only one'}")
    else:
        print(f"no configuration has {surely}; this needs {runs_needed(share, confidence)} runs or more, all in time")


def budget(
    cells: CellsOfStudy,
    style: TableStyle,
    target: Annotated[
        str, typer.Option(metavar="TARGET", help="The accuracy to reach, as after @ in a column: 0.8, 0.8~5.")
    ],
    of: Annotated[
        str, typer.Option(metavar="COLUMN", help="The column that is limited, such as energy_j.")
    ] = "sim_time_s",
    share: Annotated[float, typer.Option(help="Probability with which a run reaches the target in the budget.")] = 0.8,
    confidence: Annotated[float, typer.Option(help="Confidence that the probability is reached.")] = 0.95,
) -> None:
    """Print the smallest budget with which runs reach a target with a probability, by configuration.

    The budget is an order statistic of the runs over seeds, and holds for any distribution of what runs need.
    """
    from edgesim.reports.format import text
    from edgesim.studies.tradeoffs import budgets, name_of
    from edgesim.studies.values import axes_of, values_of

    form, goal = style.name, f"{of}@{target}"
    found = _made(cells)
    values = values_of(found.study, found.runs, [goal])
    rows, axes = budgets(values, goal, share, confidence), axes_of(values)
    asked = {"goal": goal, "share": share, "confidence": confidence}
    _print_rows(found, form, rows, f", {goal}", len(axes), **asked)
    if form:
        return
    surely = f"{100 * share:g} % of runs, with {100 * confidence:g} % confidence"
    for row in rows.to_dict("records"):
        which = name_of({axis: row[axis] for axis in axes}) or "the only configuration"
        if row["order"] == 0:
            print(f"{which}: {row['runs']} runs cannot show {surely}; this needs {row['runs_needed']} or more")
        elif row["budget"] == float("inf"):
            missed = row["runs"] - row["reached"]
            print(f"{which}: no budget of these runs serves {surely}, {missed} of {row['runs']} missed the target")
        else:
            print(f"{which}: {text(of, row['budget'])} serves {surely}")


def theta(
    cells: CellsOfStudy,
    style: TableStyle,
    time: Annotated[str, typer.Option(metavar="COLUMN", help="The column of seconds.")] = "sim_time_s",
    energy: Annotated[str, typer.Option(metavar="COLUMN", help="The column of joules.")] = "energy_j",
    at: Annotated[list[float] | None, typer.Option("--theta", help="A weight of energy, 0 to 1. Repeatable.")] = None,
) -> None:
    """Print the cost (1 - theta) x seconds + theta x joules by theta, and the cheapest configuration in each range."""
    import pandas as pd

    from edgesim.studies.tradeoffs import THETAS, RoundCost, at_thetas, cheapest_over_theta, names_of, typical
    from edgesim.studies.values import axes_of, summarised, values_of

    form = style.name
    found = _made(cells)
    rows = summarised(values_of(found.study, found.runs, [time, energy]))
    points, axes = typical(rows, [time, energy]), axes_of(rows)
    costs = [RoundCost(*pair) for pair in points.frame[[time, energy]].to_numpy(dtype=float)]
    names = names_of(points.frame[axes])
    lines = [at_thetas(cost, at or THETAS) if _is_finite(cost) else {} for cost in costs]
    table = points.frame.join(pd.DataFrame(lines))
    known = {name: cost for name, cost in zip(names, costs, strict=True) if _is_finite(cost)}
    ranges = cheapest_over_theta(known)
    _print_rows(found, form, table, "", len(axes), statistics=dict(points.statistics), cheapest=ranges)
    if not form:
        for each in ranges:
            print(f"cheapest from theta {each['from_theta']:.4g} to {each['to_theta']:.4g}: {each['cheapest']}")


def sensitivity(
    cells: CellsOfStudy,
    style: TableStyle,
    column: OneColumn,
    base: Annotated[
        str | None, typer.Option(metavar="LABELS", help="Base labels. Default: the first label of each axis.")
    ] = None,
) -> None:
    """Print the effect of each axis on a column: differences from a base, the largest swing first."""
    from edgesim.studies.study import read_labels
    from edgesim.studies.tradeoffs import of_cut, tornado
    from edgesim.studies.values import values_of

    form = style.name
    labels, found = read_labels("--base", base) if base else {}, _made(cells)
    values = values_of(found.study, found.runs, [column])
    rows = tornado(values, column, labels)
    _print_rows(found, form, rows, f", {column}", 2, column=column)
    if note := of_cut(values, column, labels):
        print_note(note)


def break_even(
    cells: CellsOfStudy,
    style: TableStyle,
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
) -> None:
    """Print the price, or the value of an axis, at which two configurations cost the same."""
    from edgesim.studies.study import read_labels
    from edgesim.studies.tradeoffs import over_axis, over_price
    from edgesim.studies.values import values_of

    if (per is None) == (over is None):
        raise ConfigError("--per, --over: give one of them")
    form = style.name
    sides = read_labels("--between", between), read_labels("--and", other)
    found = _made(cells)
    if per is not None:
        rows = over_price(values_of(found.study, found.runs, [column, per]), *sides, column, per)
    else:
        rows = over_axis(values_of(found.study, found.runs, [column]), *sides, column, str(over))
    what = f"{column} + price x {per}" if per else f"{column} over {over}"
    title, keys = f", {what}: {between} (one) and {other} (other)", max(1, list(rows).index("pairs"))
    _print_rows(found, form, rows, title, keys, one=sides[0], other=sides[1])
    if rows.empty and not form:
        print("the two are never equal")


# --- claims and reports ---------------------------------------------------------------------------------------------


def claims(
    files: Annotated[list[Path], typer.Argument(metavar="CLAIMS...", help="Claims files (TOML), one for each paper.")],
    runs: Annotated[Path, typer.Option(help="Folder of the runs, with a folder STUDY/SIZE for each study.")] = _RUNS,
    results: Annotated[
        Path | None, typer.Option(help="A CSV file of numbers of runs without folders: see docs/howto/claims.md.")
    ] = None,
    record: Annotated[
        bool, typer.Option("--record", help="First write the numbers of existing runs to --results.")
    ] = False,
    hours: Annotated[bool, typer.Option("--hours", help="Estimate the hours of missing runs on this host.")] = False,
    out: Annotated[Path | None, typer.Option(help="The Markdown file to write. Default: print the page.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Also write a row for each claim to this CSV file.")] = None,
) -> None:
    """Judge claims of papers by finished runs, from reproduced to refuted, and write a page."""
    from edgesim.studies.claims.claim import read_results, written
    from edgesim.studies.claims.judge import Court
    from edgesim.studies.claims.page import as_csv, outcomes, page

    if record and results is None:
        raise ConfigError("--record: needs --results, the file to write")
    if out:
        check_file(out)
    if csv:
        check_file(csv, "--csv")
    kept = read_results(results) if results and (results.exists() or not record) else []
    court = Court(runs, kept)
    if record and results:
        check_file(results, "--results")
        write_text(results, written(court.results(files)), "--results")
    chapters = court.chapters(files, hours)
    command = ["edgesim", "study", "claims", *map(str, files)]  # that writes the same page
    command += ["--runs", str(runs)] if runs != _RUNS else []
    command += ["--results", str(results)] if results else []
    command += ["--hours"] if hours else []
    command += ["--out", str(out)] if out else []
    command += ["--csv", str(csv)] if csv else []
    text = page(chapters, shlex.join(command), os.path.relpath(csv, out.parent if out else ".") if csv else "")
    if csv:
        write_text(csv, as_csv(chapters), "--csv")
    if out is None:
        print(text, end="")
        return
    write_text(out, text)
    print_note(f"{out}: " + ", ".join(f"{count} {name}" for name, count in outcomes(chapters).items()))


def report(
    what: Annotated[
        list[Path], typer.Argument(metavar="STUDY|RUN...", help="A study file (TOML), or run folders and patterns.")
    ],
    place: StudyFolder,
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
    only: Only = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="LABELS", help="The baseline of comparisons, such as method=fedavg.")
    ] = None,
    title: Annotated[str, typer.Option(help="Title. Default: the name of the study.")] = "",
    question: Annotated[str, typer.Option(help="The question to answer. Default: the question of the study.")] = "",
    intervals: Draws = None,
) -> None:
    """Write one HTML file about a study or runs: the answer in words, charts, tables, commands to reproduce."""
    from edgesim.reports.html.page import write_report
    from edgesim.studies.report import findings_of, study_of
    from edgesim.studies.study import read_labels

    check_file(out)
    studies = [path for path in what if path.suffix == ".toml"]
    if studies and len(what) > 1:
        raise ConfigError(f"{what[0]} and {what[1]}: a report covers one study, or runs")
    labels = None if baseline is None else read_labels("--baseline", baseline)
    notes: list[str] = []
    if studies:
        found = CellsOfStudy(study=studies[0], only=only, size=place.size, folder=place.folder).made()
        study, cells = found.study, found.runs
        chosen = ["--size", place.size, *(word for each in only or [] for word in ("--only", each))]
        chosen += [] if place.folder is None else ["--runs", str(place.folder)]
        commands = [shlex.join(["edgesim", "study", "run", str(studies[0]), *chosen])]
        again = ["edgesim", "report", str(studies[0]), *chosen, "--out", str(out)]
        notes += [f"{found.told}."] if found.missing else []
    else:
        if only or place != StudyFolder():
            raise ConfigError("--only, --runs, --size: are for studies; name run folders alone")
        runs = all_opened(what)
        study, cells = study_of(runs)
        made = (run.manifest.get("command") for run in runs)  # its first word is where the program lies
        commands = list(dict.fromkeys(shlex.join(["edgesim", *words[1:]]) for words in made if words))
        again = ["edgesim", "report", *map(str, what), "--out", str(out)]
    if intervals:
        again += ["--intervals", str(intervals)]
    commands += [shlex.join(again)]
    print(write_report(findings_of(study, cells, commands, labels, title, question, notes, intervals or 0), out))
