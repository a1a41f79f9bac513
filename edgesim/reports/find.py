"""Finds run folders by name, below a folder, or by a pattern."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from edgesim.core.errors import ConfigError
from edgesim.records.manifest import MANIFEST
from edgesim.reports.load import Run, open_run


def find_runs(named: Sequence[Path]) -> list[Run]:
    """Return the runs that some paths name, each once, in their order.

    A path is a run folder, a folder that has run folders anywhere below it, or a pattern such as "runs/fedpmt-*".
    Runs found in a folder are in the order of names, numbers by size. Raises ConfigError if a path names no run.
    """
    found: dict[Path, Run] = {}
    for path in named:
        folders: list[Path] = []
        if path.exists():
            folders = _below(path)
        elif any(sign in str(path) for sign in "*?["):
            matches = sorted(Path(path.anchor or ".").glob(str(path.relative_to(path.anchor))), key=_by_number)
            shown = (match for match in matches if not _has_hidden({*match.parts} - {*path.parts}))
            folders = [folder for match in shown for folder in _below(match)]
            if not folders:
                raise ConfigError(f"{path}: matches no run folder")
        if not folders:
            open_run(path)  # raises with what is missing
        for folder in folders:
            found.setdefault(folder.resolve(), open_run(folder))
    return list(found.values())


def _below(path: Path) -> list[Path]:
    """Return a run folder itself, or all run folders below a folder but hidden ones, which are not complete yet."""
    if (path / MANIFEST).is_file():
        return [path]
    inside = (file.parent for file in path.rglob(MANIFEST))
    shown = [folder for folder in inside if not _has_hidden(folder.relative_to(path).parts)]
    return sorted(shown, key=_by_number)


def _has_hidden(parts: Iterable[str]) -> bool:
    return any(part.startswith(".") for part in parts)


def _by_number(path: Path) -> list[tuple[int, str]]:
    """Return a sort key that orders names by the numbers in them: seed=2 before seed=10."""
    pieces = re.split(r"(\d+)", str(path))
    return [(int(piece), "") if piece.isdigit() else (-1, piece) for piece in pieces]
