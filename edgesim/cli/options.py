"""Options of commands, each said once, the groups of them that commands share, and how their texts are read.

A command has a group as one parameter. `with_groups` gives typer the single options.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from edgesim.config.plugins import known_names, meant
from edgesim.core.errors import ConfigError
from edgesim.files.reading import quoted

if TYPE_CHECKING:
    import pandas as pd

    from edgesim.reports.compare import Tolerance

OneRun = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
Folders = Annotated[
    list[Path], typer.Argument(metavar="RUN...", help="Run folders, folders with run folders, or patterns.")
]
InSession = Annotated[
    str | None, typer.Option("--session", metavar="NAME", help="The session to show, if the run has several.")
]
RoundNumber = Annotated[int, typer.Option("--round", min=1, help="The round to show, from 1.")]
# With fewer draws none lies outside of a 90 % interval.
Draws = Annotated[
    int | None,
    typer.Option("--intervals", min=20, metavar="DRAWS", help="Show 90 % intervals over draws of the clocks' errors."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Train again, and replace cached results and finished cells.")]
CheckpointInterval = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help='Interval of checkpoints of training, such as "10 min". The same command resumes from the last.',
    ),
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="K=V", help="Override a key of the scenario. Repeatable.")
]
SortBy = Annotated[
    str | None, typer.Option("--sort", metavar="COLUMN", help="Sort by a column of --csv; -COLUMN: the largest first.")
]
Only = Annotated[
    list[str] | None, typer.Option(metavar="CELL", help="Only cells such as method=fedavg,seed=1. Repeatable.")
]
Tolerances = Annotated[
    list[str] | None,
    typer.Option(
        "--tolerance",
        metavar="COLUMN=VALUE",
        help='Allowed difference of a column: "energy_j=1 %", "accuracy=0.01" or "energy_j=1 % or 5". Repeatable.',
    ),
]


# --- groups ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ScenarioFile:
    """A scenario file and changes of its keys."""

    scenario: Annotated[Path, typer.Argument(metavar="SCENARIO", help="A scenario file (TOML).")]
    set_: Overrides = None

    @property
    def overrides(self) -> list[str]:
        """Changes as they were written."""
        return self.set_ or []


@dataclass(frozen=True, kw_only=True)
class RunOutput:
    """Replacement and output of one run."""

    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run that is in the run folder.")] = False
    fresh: Fresh = False
    as_json: AsJson = False
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress, and print only the run folder.")] = False


@dataclass(frozen=True, kw_only=True)
class TableStyle:
    """Format of a printed table."""

    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, numbers in SI units and to their last digit.")] = (
        False
    )
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print a table for a Markdown page.")] = False
    as_latex: Annotated[bool, typer.Option("--latex", help="Print a table for LaTeX (booktabs).")] = False
    as_json: AsJson = False

    @property
    def name(self) -> str:
        """One of csv, markdown, latex, json, or "" for a terminal. Raises ConfigError if several are given."""
        names = [option.removeprefix("as_") for option, given in asdict(self).items() if given]
        if len(names) > 1:
            raise ConfigError(f"{', '.join(f'--{name}' for name in names)}: give one of them")
        return "".join(names)


@dataclass(frozen=True, kw_only=True)
class StudyFolder:
    """Size of a study, and where its runs are."""

    size: Annotated[str, typer.Option(metavar="quick|full", help="Size of the study.")] = "quick"
    folder: Annotated[
        Path | None, typer.Option("--runs", help="Folder of the runs of the study. Default: runs/studies/STUDY/SIZE.")
    ] = None

    def folder_of(self, study: Path) -> Path:
        """Return the folder of the runs of a study file."""
        from edgesim.studies.runs import folder_of

        return self.folder or folder_of(study, self.size)


@dataclass(frozen=True, kw_only=True)
class CellTraining:
    """Training of the cells of a study."""

    workers: Annotated[
        int, typer.Option(min=1, help="Number of cells in parallel, each in a process with one thread.")
    ] = 1
    checkpoint: CheckpointInterval = None
    fresh: Fresh = False


@dataclass(frozen=True, kw_only=True)
class FigureFile:
    """File of a figure, and its title."""

    out: Annotated[
        Path | None, typer.Option(help="The file. Without an ending, a PNG and an SVG. Default: the kind.")
    ] = None
    formats: Annotated[
        str | None, typer.Option("--format", metavar="FORMATS", help="One or more of png, svg, pdf, with commas.")
    ] = None
    title: Annotated[str, typer.Option(help="Title above the figure.")] = ""

    def checked(self, kind: str) -> tuple[Path, tuple[str, ...]]:
        """Return file and formats of a figure. Raises ConfigError if it cannot be written."""
        from edgesim.reports.figures import FORMATS, parse_formats, paths_of

        out = self.out or Path(kind)
        formats = parse_formats(self.formats or (out.suffix[1:] if out.suffix[1:] in FORMATS else None))
        for path in paths_of(out, formats):
            check_file(path)
        return out, formats


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that has the fields of its groups as parameters of its own, as typer reads them."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []
    for name, given in inspect.signature(command).parameters.items():
        if name in groups:
            kinds = get_type_hints(groups[name], include_extras=True)
            found = [(each.name, each.default, kinds[each.name]) for each in fields(groups[name])]
        else:
            found = [(name, given.default, hints[name])]
        for option, default, kind in found:
            usual = inspect.Parameter.empty if default is MISSING else default
            parameters.append(inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=usual, annotation=kind))

    @functools.wraps(command)
    def called(**given: Any) -> None:
        made = {
            name: group(**{each.name: given.pop(each.name) for each in fields(group)}) for name, group in groups.items()
        }
        command(**made, **given)

    vars(called).update(
        __signature__=inspect.Signature(parameters),
        __annotations__={each.name: each.annotation for each in parameters},
    )
    return called


# --- texts of options --------------------------------------------------------------------------------------------


def seconds_of(option: str, given: str) -> float:
    """Return a time in seconds. A number without a unit is in seconds. Raises ConfigError for other texts."""
    from pydantic import TypeAdapter, ValidationError

    from edgesim.config.units import Seconds, reason

    value: float | str = given
    with suppress(ValueError):
        value = float(given)
    try:
        return TypeAdapter[float](Seconds).validate_python(value)
    except ValidationError as error:
        raise ConfigError(f"{option}: {reason(error)}") from error


def checkpoint_s(given: str | None) -> float | None:
    """Return the seconds between checkpoints, None without --checkpoint. Raises ConfigError for other texts."""
    return None if given is None else seconds_of("--checkpoint", given)


def check_known(option: str, name: str, known: Collection[str]) -> None:
    """Raise ConfigError that offers the nearest name unless a name is known."""
    if name not in known:
        raise ConfigError(f"{option}: unknown {quoted(name)}{meant(name, known)} (known: {', '.join(known)})")


def names_in(option: str, given: str, known: Collection[str]) -> list[str]:
    """Return the names in a text such as "time,energy". Raises ConfigError if one is unknown or given twice."""
    names = [name.strip() for name in given.split(",")]
    if wrong := [name for place, name in enumerate(names) if name not in known or name in names[:place]]:
        known_names = ", ".join(known)
        raise ConfigError(f"{option}: {quoted(wrong[0])} is unknown or given twice (known: {known_names}, with commas)")
    return names


def order(frame: pd.DataFrame, column: str) -> list[int]:
    """Return the places of the rows of a frame in the order of a column, missing values last; -COLUMN: descending.

    Rows that are equal keep their order. Raises ConfigError that offers the nearest if there is no such column.
    """
    import pandas as pd

    name = column.removeprefix("-")
    if name not in frame:
        known = [str(each) for each in frame]
        raise ConfigError(f"--sort: no column {quoted(name)}{meant(name, known)} ({known_names(known, '--csv')})")
    values = frame[name].reset_index(drop=True)
    if pd.to_numeric(values, errors="coerce").notna().equals(values.notna()):
        values = pd.to_numeric(values)  # labels such as 10 and 9 are texts
    return list(values.sort_values(ascending=name == column, kind="stable", na_position="last").index)


def tolerances_of(given: Sequence[str]) -> dict[str, Tolerance]:
    """Return tolerances by column. Raises ConfigError for another text, or for a column that is named twice."""
    from edgesim.reports.compare import parse_tolerance

    found: dict[str, Tolerance] = {}
    for text in given:
        column, sign, value = (part.strip() for part in text.partition("="))
        if not (column and sign):
            raise ConfigError(f'--tolerance: must be COLUMN=VALUE, such as "energy_j=1 %", got {quoted(text)}')
        if column in found:
            raise ConfigError(f"--tolerance: {quoted(column)} is given twice")
        try:
            found[column] = parse_tolerance(value)
        except ValueError as error:
            raise ConfigError(f"--tolerance: {column}: {error}") from error
    return found


# --- files to write ----------------------------------------------------------------------------------------------


def check_file(out: Path, option: str = "--out") -> None:
    """Raise ConfigError unless a file can be written at `out`, in an existing folder."""
    if out.name in ("", ".."):
        raise ConfigError(f"{option}: {str(out)!r} is no file name")
    folder = Path(os.path.realpath(out)).parent  # unlike `resolve` it continues at a link to itself
    if not folder.is_dir():
        raise ConfigError(f"{option}: {out.parent} is not a folder")
    if out.is_dir() or not os.access(out if out.exists() else folder, os.W_OK):
        raise ConfigError(f"{option}: {out} cannot be written")


def check_new_file(out: Path, option: str) -> None:
    """Raise ConfigError, as `check_file`, also where a file could not replace what is at `out`."""
    check_file(out, option)
    if out.exists() and not out.is_file():
        raise ConfigError(f"{option}: {out} is no regular file")
    if not os.access(Path(os.path.realpath(out)).parent, os.W_OK):
        raise ConfigError(f"{option}: {out} cannot be written")


def write_text(out: Path, text: str, option: str = "--out") -> None:
    """Write a whole file, or leave what is there. Raises ConfigError if it cannot be written."""
    from edgesim.files.atomic import whole_file

    try:
        with whole_file(Path(os.path.realpath(out))) as growing:
            growing.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{option}: {out} cannot be written: {error.strerror}") from error
