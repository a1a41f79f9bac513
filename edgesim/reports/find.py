"""Finds run folders: those named, those below a folder, those that a pattern matches."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from edgesim.core.errors import ConfigError
from edgesim.records.manifest import MANIFEST
from edgesim.reports.load import Run, open_run


def find_runs(named: Sequence[Path]) -> list[Run]:
    """Return the runs that some paths name, each once, in their order.

    A path is a run folder, a folder that has run folders anywhere below it, or a pattern such as "runs/fedpmt-*".
    What is found in a folder is in the order of names, numbers by size. Raises ConfigError if a path names no run.
    """
    found: dict[Path, Run] = {}
    for path in named:
        folders = list(_folders(path))
        if not folders:
            open_run(path)  # says what is missing
        for folder in folders:
            found.setdefault(folder.resolve(), open_run(folder))
    return list(found.values())


def _folders(path: Path) -> Iterator[Path]:
    if path.exists():
        yield from _below(path)
    elif any(sign in str(path) for sign in "*?["):
        matches = sorted(Path(path.anchor or ".").glob(str(path.relative_to(path.anchor))), key=_by_number)
        shown = (match for match in matches if not _has_hidden({*match.parts} - {*path.parts}))
        folders = [folder for match in shown for folder in _below(match)]
        if not folders:
            raise ConfigError(f"{path}: matches no run folder")
        yield from folders


def _below(path: Path) -> list[Path]:
    """Return a run folder itself, or all below a folder; hidden ones are not complete yet."""
    if (path / MANIFEST).is_file():
        return [path]
    inside = (file.parent for file in path.rglob(MANIFEST))
    shown = [folder for folder in inside if not _has_hidden(folder.relative_to(path).parts)]
    return sorted(shown, key=_by_number)


def _has_hidden(parts: Iterable[str]) -> bool:
    return any(part.startswith(".") for part in parts)


def _by_number(path: Path) -> list[tuple[int, str]]:
    """Return what sorts names with numbers in them by the numbers: seed=2 before seed=10."""
    pieces = re.split(r"(\d+)", str(path))
    return [(int(piece), "") if piece.isdigit() else (-1, piece) for piece in pieces]
