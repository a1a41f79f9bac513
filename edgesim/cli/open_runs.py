"""Opens runs for commands that show them.

None that did not finish, or is charged for another network, is shown without a word about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgesim.cli.show import print_note
from edgesim.core.errors import ConfigError
from edgesim.reports.find import find_runs
from edgesim.reports.load import Run, open_run


def opened(folder: Path) -> Run:
    """Return the run in a folder, and say on stderr if it did not finish. Raises ConfigError as `open_run` does."""
    run = open_run(folder)
    _tell(run)
    return run


def one_session(folder: Path, name: str | None) -> Run:
    """Return the run in a folder, of several sessions the one of this name; say on stderr if it did not finish.

    Raises ConfigError as `open_run` and `Run.session` do, and if there are several and none is named.
    """
    run = open_run(folder)
    if name is None and len(run.sessions) > 1:
        raise ConfigError(f"{folder}: has the sessions {', '.join(run.sessions)}; name one with --session")
    run = run if name is None else run.session(name)
    _tell(run)
    return run


def all_opened(paths: Sequence[Path]) -> list[Run]:
    """Return the runs that some paths name, each session of a run of several; say on stderr which did not finish.

    Raises as `find_runs`.
    """
    runs = [view for run in find_runs(paths) for view in run.views]
    for run in runs:
        _tell(run)
    return runs


def _tell(run: Run) -> None:
    if run.charged_as:
        print_note(f"{run.name}: learned by {run.learned_by}, charged as {run.charged_as}")
    if not run.finished:
        rounds = len(run.table("rounds"))
        print_note(f"{run.name}: {run.status} after {rounds} round{'s'[: rounds != 1]}; what is shown ends there")
