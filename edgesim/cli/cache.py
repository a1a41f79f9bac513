"""The `cache` command: shows or deletes cached results."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from edgesim.cli.show import print_json, print_table
from edgesim.core.errors import ConfigError
from edgesim.files import user_cache
from edgesim.reports.format import text


def show_cache(folder: Path, prune: bool, as_json: bool) -> None:
    """Print what a folder of runs keeps, or remove it. Raises ConfigError if it is no folder."""
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder")
    from edgesim.execution.result_cache import Answers  # loads torch

    with closing(Answers(folder)) as answers:
        held = answers.held()
        if prune:
            answers.remove()
    row = held._asdict()
    if as_json:
        print_json({"folder": str(answers.folder), **row, "removed": prune})
        return
    headings = {"answers": "answers", "models": "models", "snapshots": "snapshots", "nbytes": "size"}
    print_table([row | {"nbytes": text("disk_bytes", held.nbytes)}], headings, str(answers.folder))
    if prune:
        print("removed")


def show_user_cache(prune: bool, as_json: bool) -> None:
    """Print what all runs of this user share, by kind, or remove it."""
    found = user_cache.held()
    if prune:
        user_cache.prune()
    if as_json:
        print_json(
            {
                "folder": str(user_cache.cache_folder()),
                "kept": [{"kind": kind, **held._asdict()} for kind, held in found.items()],
                "removed": prune,
            }
        )
        return
    headings = {"kind": "kind", "files": "files", "nbytes": "size"}
    rows = [
        {"kind": kind, "files": held.files, "nbytes": text("disk_bytes", held.nbytes)} for kind, held in found.items()
    ]
    print_table(rows, headings, str(user_cache.cache_folder()))
    if prune:
        print("removed")
