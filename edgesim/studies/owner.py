"""Ownership of a folder of runs: it remembers its study, so that no other one of that name replaces its runs."""

from __future__ import annotations

import os
from pathlib import Path

from edgesim.core.errors import ConfigError
from edgesim.files.atomic import whole_file
from edgesim.files.reading import in_short, quoted, read_text
from edgesim.records.lock import hold

_MARK = ".study"  # a file in the folder of runs that names their study


def owner_of(file: Path, folder: Path) -> str:
    """Return the name of a study file in a folder of runs: its path from there, so that both may move together."""
    return os.path.relpath(file.resolve(), folder.resolve())


def check_owner(folder: Path, owner: str) -> None:
    """Raise ConfigError if a folder has the runs of another study."""
    mark = folder / _MARK
    if not mark.exists():
        return
    found = read_text(mark, ConfigError).strip()
    if found != owner:
        ours, theirs = (_shown(folder, each) for each in (owner, found))
        raise ConfigError(
            f"{folder}: has the runs of {theirs}, which those of {ours} could replace; choose another folder with "
            f"--runs, or another name for the study. If the study has moved, remove {mark}"
        )


def claim(folder: Path, owner: str) -> None:
    """Let a folder remember its study. Raises ConfigError if it has the runs of another one, or cannot be written."""
    mark = folder / _MARK
    with hold(mark, wait=True):  # of two commands that start at once
        check_owner(folder, owner)
        if mark.exists():
            return
        try:
            with whole_file(mark) as growing:
                growing.write_text(owner, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{mark}: cannot be written: {error.strerror}") from error


def _shown(folder: Path, owner: str) -> str:
    study = owner.endswith(".toml")
    return in_short(os.path.relpath(folder.resolve() / owner)) if study else quoted(owner)
