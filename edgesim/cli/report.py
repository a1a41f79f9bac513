"""The `report` command: one offline HTML file about a study or runs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgesim.cli.study import Runs
from edgesim.core.errors import ConfigError

if TYPE_CHECKING:
    from edgesim.reports.html.content import Findings


def report(
    what: Annotated[
        list[Path], typer.Argument(metavar="STUDY|RUN...", help="A study file (TOML), or run folders and patterns.")
    ],
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
    size: Annotated[str, typer.Option(metavar="quick|full", help="Size of the study.")] = "quick",
    only: Annotated[
        list[str] | None, typer.Option(metavar="CELL", help="Only cells such as method=fedavg. Repeatable.")
    ] = None,
    runs: Runs = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="LABELS", help="The baseline of comparisons, such as method=fedavg.")
    ] = None,
    title: Annotated[str, typer.Option(help="Title. Default: the name of the study.")] = "",
    question: Annotated[str, typer.Option(help="The question to answer. Default: the question of the study.")] = "",
) -> None:
    """Write one HTML file about a study or runs: the answer in words, charts, tables, commands to reproduce."""
    print(write(what, out, size, only, runs, baseline, title, question))


def write(
    what: Sequence[Path],
    out: Path,
    size: str,
    only: list[str] | None,
    runs: Path | None,
    baseline: str | None,
    title: str,
    question: str,
) -> Path:
    """Write the report of a study, or of run folders, and return its path.

    Raises ConfigError for several studies, for options that do not fit runs, and if the file cannot be written.
    """
    from edgesim.cli.out import check_file
    from edgesim.reports.html.page import write_report

    check_file(out)
    studies = [path for path in what if path.suffix == ".toml"]
    if studies and len(what) > 1:
        raise ConfigError(f"{what[0]} and {what[1]}: a report is of one study, or of runs")
    labels = parse_labels(baseline)
    if studies:
        return write_report(_of_study(studies[0], out, size, only, runs, labels, title, question), out)
    if only or runs or size != "quick":
        raise ConfigError("--only, --runs, --size: are for studies; of runs name the folders")
    return write_report(_of_runs(what, out, labels, title, question), out)


def parse_labels(given: str | None) -> dict[str, str] | None:
    """Return the labels in a text such as "method=fedavg,deadline=30_s". Raises ConfigError for other texts."""
    if given is None:
        return None
    pairs = [word.partition("=") for word in given.split(",")]
    if not all(axis.strip() and equals and label.strip() for axis, equals, label in pairs):
        raise ConfigError(f"--baseline: {given!r} are no labels; write for example method=fedavg")
    return {axis.strip(): label.strip() for axis, _, label in pairs}


def _of_study(
    file: Path, out: Path, size: str, only: list[str] | None, folder: Path | None, baseline: Mapping[str, str] | None,
    title: str, question: str,
) -> Findings:  # fmt: skip
    from edgesim.cli.study import made
    from edgesim.studies.report import findings_of

    found = made(file, only, size, folder)
    named = ["--size", size, *(word for each in only or [] for word in ("--only", each))]
    place = [] if folder is None else [str(folder)]
    run = ["edgesim", "study", "run", str(file), *named, *(["--runs", *place] if place else [])]
    report = ["edgesim", "report", str(file), *named, *(["--runs", *place] if place else []), "--out", str(out)]
    notes = [f"{found.told}."] if found.missing else []
    return findings_of(found.study, found.runs, [shlex.join(run), shlex.join(report)], baseline, title, question, notes)


def _of_runs(
    folders: Sequence[Path], out: Path, baseline: Mapping[str, str] | None, title: str, question: str
) -> Findings:
    from edgesim.cli.open_runs import all_opened
    from edgesim.studies.report import findings_of
    from edgesim.studies.settings import study_of

    runs = all_opened(folders)
    study, cells = study_of(runs)
    made = [
        shlex.join(["edgesim", *run.manifest["command"][1:]]) for run in runs if run.manifest.get("command")
    ]  # the first word is where the program lies
    report = shlex.join(["edgesim", "report", *map(str, folders), "--out", str(out)])
    return findings_of(study, cells, [*dict.fromkeys(made), report], baseline, title, question)
