"""The cells of a study that commands ask for, and where their runs lie."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgesim.studies.plan import Outlook
    from edgesim.studies.runs import Planned
    from edgesim.studies.study import Study


def looked_at(
    file: Path, only: list[str] | None, size: str, folder: Path | None, costs: bool = False
) -> tuple[Study, list[Outlook], list[str]]:
    """Return a study, what is to be done of its cells, and each warning about them once.

    Raises ConfigError if the folder has the runs of another study.
    """
    from edgesim.runs.warnings import once
    from edgesim.studies.plan import outlook
    from edgesim.studies.runs import check_owner

    loaded, planned = planned_of(file, only, size, folder)
    check_owner(*owned(file, size, folder))
    cells = outlook(planned, costs)
    return loaded, cells, once([each.planned.warnings for each in cells])


def owned(file: Path, size: str, folder: Path | None) -> tuple[Path, str]:
    """Return the folder of the runs of a study, and how it names the study."""
    from edgesim.studies.runs import folder_of, owner_of

    folder = folder or folder_of(file, size)
    return folder, owner_of(file, folder)


def planned_of(file: Path, only: list[str] | None, size: str, folder: Path | None) -> tuple[Study, list[Planned]]:
    """Return a study, and its cells as they are planned, with the trials of its search among them."""
    from edgesim.studies.runs import folder_of, plan
    from edgesim.studies.study import load_study, with_trials

    folder = folder or folder_of(file, size)
    study = with_trials(load_study(file), folder)
    return study, plan(study, file, size, only or [], folder)
