"""The commands that draw: `plot`, `study plot` and `gantt`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgesim.cli.out import check_file
from edgesim.cli.pictures import ACCURACY, Wanted, draw
from edgesim.core.errors import ConfigError
from edgesim.files.reading import quoted


def plot(
    folders: Sequence[Path],
    kind: str,
    out: Path | None,
    against: str | None,
    formats: str | None,
    width: str | None,
    labels: str | None,
    title: str,
) -> list[Path]:
    """Draw a picture of runs; return the files. Of accuracy and other metrics `against` names the axes, with commas.

    Raises ConfigError for what is no kind, axis, format or width, and before anything is drawn if it cannot be written.
    """
    from edgesim.cli.open_runs import all_opened
    from edgesim.reports.figures import COLUMNS_IN, parse_formats, parse_width, paths_of
    from edgesim.reports.plots import AXES, plot_runs

    out, width_in = out or Path(kind), parse_width(width)
    runs_there = all_opened(folders)
    metrics = {ACCURACY, *(name for run in runs_there for name in run.better)}
    if kind not in metrics:
        from edgesim.studies.settings import study_of

        if against or labels:
            raise ConfigError(f"--x, --labels: are for --kind {ACCURACY}")
        study, runs = study_of(runs_there)
        single = COLUMNS_IN["single"]
        wanted = Wanted(study=study, runs=runs, x="", y="", column="", width_in=width_in or single)
        return draw(kind, wanted, out, formats, title)
    names = [name.strip() for name in (against or "time,energy,rounds").split(",")]
    wrong = [name for place, name in enumerate(names) if name not in AXES or name in names[:place]]
    if wrong:
        raise ConfigError(f"--x: {quoted(wrong[0])} is unknown or given twice (known: {', '.join(AXES)}, with commas)")
    chosen = parse_formats(formats or (out.suffix[1:] if out.suffix[1:] in ("png", "svg", "pdf") else None))
    for path in paths_of(out, chosen):
        check_file(path)
    named = [label.strip() for label in labels.split(",")] if labels else []
    return plot_runs(runs_there, [AXES[name] for name in names], out, chosen, width_in, named, title, kind)


def plot_study(
    file: Path,
    kind: str,
    only: list[str] | None,
    size: str,
    folder: Path | None,
    columns: tuple[str, str, str],
    width: str,
    out: Path | None,
    formats: str | None,
    title: str,
) -> list[Path]:
    """Draw a picture of a study; `columns`: what --x, --y and --column name. Return the files; raises as `plot`."""
    from edgesim.cli.study import made
    from edgesim.reports.figures import parse_width

    width_in = parse_width(width)
    assert width_in is not None
    found = made(file, only, size, folder)
    x, y, column = columns
    wanted = Wanted(study=found.study, runs=found.runs, x=x, y=y, column=column, width_in=width_in)
    return draw(kind, wanted, out or Path(kind), formats, title)


def gantt(folder: Path, number: int, out: Path, session: str | None = None) -> list[Path]:
    """Draw a round, 1 for the first; return the files. Raises ConfigError before that if they cannot be written.

    `session`: whose round, of a run of several.
    """
    from edgesim.cli.open_runs import one_session
    from edgesim.reports.figures import paths_of
    from edgesim.reports.gantt import plot_round

    for path in paths_of(out):
        check_file(path)
    return plot_round(one_session(folder, session), number, out)
