"""What a run depends on, as hashes. A run is made anew when one of them is another."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import edgesim
from edgesim.config.scenario import Scenario
from edgesim.files.kept import digest_of_files

# Keys of a scenario from which nothing follows that is trained, but only when a run ends and what it keeps.
REPORTING = ("name", "stop", "evaluation", "weights", "backend", "prices")
_SOURCES = {".py", ".toml"}  # code and the device catalogue


def stamp_of(scenario: Scenario) -> dict[str, Any]:
    """Return what decides the results of a scenario, but for its data set.

    Keys: scenario (its digest), trains (two backends differ in nothing else), version and source of edgesim, and
    files: a hash of all files that the scenario names, the module of a part from outside included.
    """
    return {
        "scenario": scenario.digest(),
        "trains": bool(scenario.backend.value.trains),
        "version": version("edgesim"),
        "source": source_digest(),
        "files": named_files_digest(scenario.canonical()),
    }


def named_files_digest(table: Any) -> str:
    """Return a hash of all files that a resolved table names, the module of a plug-in from outside included."""
    return digest_of_files(sorted({path for text in _strings(table) for path in _files(text)}))


def data_digest(scenario: Scenario) -> str | None:
    """Return the SHA-256 of the data set as it is loaded, None without one. Raises DataError if it cannot be."""
    return None if scenario.data is None else str(scenario.data.value.load().digest)


@cache
def source_digest() -> str:
    """Return the SHA-256 of the package's own files, their names included."""
    folder = Path(edgesim.__file__).parent
    return digest_of_files(sorted(path for path in folder.rglob("*") if path.suffix in _SOURCES), folder)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from _strings(item)


def _files(text: str) -> Iterator[Path]:
    """Yield the file that a string of a resolved scenario stands for: an absolute path, or a "module:Class"."""
    module = sys.modules.get(text.partition(":")[0]) if ":" in text else None
    path = Path(getattr(module, "__file__", None) or text)
    if path.is_absolute() and path.is_file():
        yield path
