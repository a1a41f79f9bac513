"""The commands that draw: `plot` and `gantt`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgesim.cli.out import check_file
from edgesim.core.errors import ConfigError
from edgesim.files.reading import quoted


def plot(
    folders: Sequence[Path],
    out: Path,
    against: str,
    formats: str | None,
    width: str | None,
    labels: str | None,
    title: str,
) -> list[Path]:
    """Draw accuracy against the axes named in `against`, with commas; return the files.

    Raises ConfigError for what is no axis, format or width, and before anything is drawn if it cannot be written.
    """
    from edgesim.cli.opened import all_opened
    from edgesim.reports.figures import parse_formats, parse_width, paths_of
    from edgesim.reports.plots import AXES, plot_runs

    names = [name.strip() for name in against.split(",")]
    wrong = [name for place, name in enumerate(names) if name not in AXES or name in names[:place]]
    if wrong:
        raise ConfigError(f"--x: {quoted(wrong[0])} is unknown or given twice (known: {', '.join(AXES)}, with commas)")
    chosen = parse_formats(formats or (out.suffix[1:] if out.suffix[1:] in ("png", "svg", "pdf") else None))
    width_in = parse_width(width)
    for path in paths_of(out, chosen):
        check_file(path)
    named = [label.strip() for label in labels.split(",")] if labels else []
    return plot_runs(all_opened(folders), [AXES[name] for name in names], out, chosen, width_in, named, title)


def gantt(folder: Path, number: int, out: Path) -> list[Path]:
    """Draw a round, 1 for the first; return the files. Raises ConfigError before that if they cannot be written."""
    from edgesim.cli.opened import opened
    from edgesim.reports.figures import paths_of
    from edgesim.reports.gantt import plot_round

    for path in paths_of(out):
        check_file(path)
    return plot_round(opened(folder), number, out)
