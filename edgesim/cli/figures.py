"""Commands that draw: `plot`, `gantt` and `study plot`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgesim.cli.look import ShownRun, all_opened
from edgesim.cli.options import FigureFile, Folders, RoundNumber, check_file, check_known, names_in
from edgesim.cli.study import CellsOfStudy
from edgesim.core.errors import ConfigError

if TYPE_CHECKING:
    from edgesim.reports.load import Run
    from edgesim.studies.study import Study, StudyCell

ACCURACY = "accuracy"


def plot(
    runs: Folders,
    file: FigureFile,
    kind: Annotated[
        str,
        typer.Option(metavar="KIND", help="accuracy, targets, pareto, energy, rounds, lorenz or topology."),
    ] = ACCURACY,
    against: Annotated[
        str | None,
        typer.Option(
            "--x",
            metavar="AXES",
            help="One or more of time, energy, active, participants, bytes, rounds, ... Default: time,energy,rounds.",
        ),
    ] = None,
    width: Annotated[
        str | None, typer.Option(help="Width of the figure, such as 8.5cm, or single or double columns of a journal.")
    ] = None,
    labels: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Labels of the settings. Default: their differences.")
    ] = None,
) -> None:
    """Plot runs: by default accuracy against time, energy and rounds, with mean and range over seeds."""
    from edgesim.reports.figures import COLUMNS_IN, parse_width
    from edgesim.reports.pictures import AXES, plot_runs
    from edgesim.studies.report import run_names, study_of

    width_in, found = parse_width(width), all_opened(runs)
    if kind in {ACCURACY, *(name for run in found for name in run.better)}:
        axes = [AXES[name] for name in names_in("--x", against or "time,energy,rounds", AXES)]
        out, chosen = file.checked(kind)
        names = run_names(found)
        given = [label.strip() for label in labels.split(",")] if labels else []
        usual = list(dict.fromkeys(names.values()))
        if given and len(given) != len(usual):
            raise ConfigError(f"--labels: {len(given)} given for the {len(usual)} groups {'; '.join(usual)}")
        if len(set(given)) < len(given):
            raise ConfigError(f"--labels: some are given twice: {', '.join(given)}")
        shown = dict(zip(usual, given or usual, strict=True))
        named = {run: shown[name] for run, name in names.items()}
        paths = plot_runs(found, axes, out, chosen, width_in, named, file.title, kind)
    else:
        if against or labels:
            raise ConfigError(f"--x, --labels: are for --kind {ACCURACY}")
        study, cells = study_of(found)
        paths = draw(kind, Wanted(study=study, runs=cells, width_in=width_in or COLUMNS_IN["single"]), file)
    for path in paths:
        print(path)


def gantt(
    shown: ShownRun,
    number: RoundNumber,
    out: Annotated[Path, typer.Option(help="File name without ending. A PNG and an SVG are written.")] = Path("round"),
) -> None:
    """Draw a timeline of one round, with the devices that held it up."""
    from edgesim.reports.figures import paths_of
    from edgesim.reports.pictures import plot_round

    for path in paths_of(out):
        check_file(path)
    for path in plot_round(shown.open(), number, out):
        print(path)


def plot_study(
    cells: CellsOfStudy,
    file: FigureFile,
    kind: Annotated[
        str,
        typer.Option(
            metavar="KIND", help="One of accuracy, targets, pareto, energy, cost, heat, rounds, lorenz, topology."
        ),
    ] = ACCURACY,
    x: Annotated[str, typer.Option(help="Axes for accuracy, a column for pareto, an axis of the study for heat.")] = "",
    y: Annotated[str, typer.Option(help="The second column or axis.")] = "",
    column: Annotated[str, typer.Option(help="The column for targets and heat. Default: the first that fits.")] = "",
    width: Annotated[
        str, typer.Option(metavar="single|double|W", help="Width of the figure: columns of a journal, or 9cm.")
    ] = "single",
) -> None:
    """Plot a study for a paper: statistics over seeds of its configurations."""
    from edgesim.reports.figures import parse_width

    width_in = parse_width(width)
    assert width_in is not None
    found = cells.made()
    wanted = Wanted(study=found.study, runs=found.runs, x=x, y=y, column=column, width_in=width_in)
    for path in draw(kind, wanted, file):
        print(path)


# --- figures by kind ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Contents of a figure: runs of a study with their cells, and names of columns or axes ("": the default)."""

    study: Study
    runs: Sequence[tuple[StudyCell, Run]]
    width_in: float
    x: str = ""
    y: str = ""
    column: str = ""

    @property
    def labels(self) -> dict[Run, str]:
        """Setting of each run."""
        from edgesim.studies.decision import label_of

        return {run: label_of(self.study, cell) for cell, run in self.runs}


def draw(kind: str, wanted: Wanted, file: FigureFile) -> list[Path]:
    """Draw a figure and return the files. Raises ConfigError for an unknown kind, or if there is nothing to draw."""
    from edgesim.reports.figures import save

    check_known("--kind", kind, KINDS)
    out, formats = file.checked(kind)
    figure = KINDS[kind](wanted)
    if file.title:
        figure.suptitle(file.title, fontsize="large")
    return save(figure, out, formats)


def _accuracy(wanted: Wanted) -> Any:
    from edgesim.reports.figure_numbers import accuracy_points
    from edgesim.reports.pictures import AXES, accuracy, metric_to_draw, targets_of

    names = names_in("--x", wanted.x or ("time" if wanted.width_in < 5 else "time,energy,rounds"), AXES)
    points = accuracy_points(wanted.labels)
    runs = [run for _, run in wanted.runs]
    metric = metric_to_draw(ACCURACY, runs)
    if points.empty or points[metric].isna().all():
        raise ConfigError(f"{wanted.study.name}: no evaluation of the test split to plot")
    against = [AXES[name] for name in names]
    return accuracy(points, against, targets_of(runs, metric), wanted.width_in, metric=metric)


def _targets(wanted: Wanted) -> Any:
    from edgesim.reports.html.words import target_of, words_of
    from edgesim.reports.pictures import time_to_target

    until = [wanted.column] if wanted.column else [name for name in wanted.study.columns if "@" in name]
    if not until:
        raise ConfigError(f"--kind targets: {wanted.study.name} has no target; set evaluation.targets or name a column")
    values, rows = _statistics(wanted, until)
    reached = set(values["column"][values["observed"]])
    quantity = next(filter(reached.__contains__, until), until[0]).partition("@")[0]
    alike = [name for name in until if name.partition("@")[0] == quantity]
    alike.sort(key=lambda name: (target_of(name) or math.inf, name))
    shown = [name for name in alike if name in reached] or alike[:1]
    missed = [words_of(name).partition(" to ")[2] for name in alike if name not in shown]
    note = f"no run reached {', '.join(missed)}" if missed else ""
    return time_to_target(values, rows, shown, wanted.width_in, note)


def _pareto(wanted: Wanted) -> Any:
    from edgesim.reports.html.words import words_of
    from edgesim.reports.pictures import pareto
    from edgesim.studies.report import front_points

    settings = list(dict.fromkeys(wanted.labels.values()))
    if len(settings) == 1:
        raise ConfigError(f"--kind pareto: compares configurations, got one ({settings[0]})")
    given = [name for name in (wanted.x, wanted.y) if name]
    rows = _statistics(wanted, list(dict.fromkeys([*wanted.study.columns, *given])))[1]
    known = rows[rows["middle"].map(math.isfinite) & (rows["most"] > 0)].groupby("column")["setting"].nunique()
    usual = [name for name in wanted.study.columns if known.get(name, 0) > 1 and _better(name)]
    usual.sort(key=lambda name: ("@" not in name, -known[name]))
    x = _column(wanted, wanted.x or next(iter(usual), ""), "--x", lambda _: False)
    until = x.partition("@")[2]
    usual.sort(key=lambda name: (not until or name.partition("@")[2] != until, _better(name) != "higher"))
    y = wanted.y or next((name for name in usual if name.partition("@")[0] != x.partition("@")[0]), "")
    _column(wanted, y, "--y", lambda _: False)
    points = front_points(wanted.study, rows, x, y)
    if points.empty:
        raise ConfigError(f"{wanted.study.name}: no configuration has both {x} and {y}")
    return pareto(points, x, y, words_of(x), words_of(y), wanted.width_in)


def _energy(wanted: Wanted) -> Any:
    from edgesim.reports.figure_numbers import energy_by_activity
    from edgesim.reports.pictures import stacked

    spent = energy_by_activity(wanted.labels)
    if spent.empty:
        raise ConfigError(f"--kind energy: {wanted.study.name} has no energy; set energy")
    return stacked(spent, width_in=wanted.width_in)


def _cost(wanted: Wanted) -> Any:
    from edgesim.reports.figure_numbers import cost_by_item
    from edgesim.reports.pictures import stacked

    spent = cost_by_item(wanted.labels)
    if spent.empty:
        raise ConfigError(f"{wanted.study.name}: has no prices")
    return stacked(spent, "item", "cost", f"cost ({wanted.runs[0][1].currency})", wanted.width_in)


def _heat(wanted: Wanted) -> Any:
    import pandas as pd

    from edgesim.config.display_names import axis_name, display_name
    from edgesim.reports.html.words import words_of
    from edgesim.reports.pictures import heat
    from edgesim.studies.values import axes_of

    column = _column(wanted, wanted.column, "--column", lambda _: True)
    rows = _statistics(wanted, [column])[1]
    axes = axes_of(rows)
    x = _axis(axes, wanted.x, "--x", "")
    y = _axis(axes, wanted.y, "--y", x)
    names = (x, y) if axis_name(x) == axis_name(y) else (axis_name(x), axis_name(y))
    shown = {name: [display_name(label) for label in rows[axis]] for name, axis in zip(names, (x, y), strict=True)}
    cells = pd.DataFrame({**shown, column: rows["middle"]})
    return heat(cells, *names, column, words_of(column), wanted.width_in)


def _rounds(wanted: Wanted) -> Any:
    from edgesim.reports.figure_numbers import lengths_of_rounds
    from edgesim.reports.pictures import round_lengths

    return round_lengths(lengths_of_rounds(wanted.labels), wanted.width_in)


def _lorenz(wanted: Wanted) -> Any:
    from edgesim.reports.figure_numbers import energy_by_device
    from edgesim.reports.pictures import lorenz

    return lorenz(energy_by_device(wanted.labels), width_in=wanted.width_in)


def _topology(wanted: Wanted) -> Any:
    from edgesim.config.load import load_scenario
    from edgesim.config.plugins import only_looking
    from edgesim.reports.pictures import topology
    from edgesim.runs.topology import topology_of

    with only_looking():  # modules that a study names itself have been imported
        scenario = load_scenario(wanted.runs[0][1].manifest["scenario"])
    return topology(*topology_of(scenario), wanted.width_in)


KINDS: Mapping[str, Callable[[Wanted], Any]] = {
    ACCURACY: _accuracy,
    "targets": _targets,
    "pareto": _pareto,
    "energy": _energy,
    "cost": _cost,
    "heat": _heat,
    "rounds": _rounds,
    "lorenz": _lorenz,
    "topology": _topology,
}


# --- data of the figures -----------------------------------------------------------------------------------------


def _statistics(wanted: Wanted, columns: Sequence[str]) -> tuple[Any, Any]:
    """Return the values of columns, and their statistics over seeds, both with the setting."""
    from edgesim.studies.decision import with_setting
    from edgesim.studies.report import with_middle
    from edgesim.studies.values import summarised, values_of

    values = values_of(wanted.study, wanted.runs, columns)
    rows = with_middle(summarised(values), columns)
    return with_setting(values, wanted.study), with_setting(rows, wanted.study)


def _better(column: str) -> str | None:
    from edgesim.studies.column import parse_column

    return parse_column(column).better


def _column(wanted: Wanted, given: str, option: str, usual: Callable[[str], bool]) -> str:
    """Return the given column, or else the first column of the study for which `usual` is True."""
    from edgesim.studies.column import parse_column

    found = given or next((name for name in wanted.study.columns if usual(name)), "")
    if not found:
        raise ConfigError(f"{option}: the study has no column that fits ({', '.join(wanted.study.columns)}); name one")
    parse_column(found)
    return found


def _axis(axes: Sequence[str], given: str, option: str, other: str) -> str:
    found = given or next((axis for axis in axes if axis != other), "")
    if found not in axes or found == other:
        known = ", ".join(axes) or "none"
        raise ConfigError(
            f"{option}: a heat map has two axes of a study beside the seed, got {found!r} (axes: {known})"
        )
    return found
