"""Starts to load what worker processes need, before a scenario is read and anything else is loaded."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgesim.core.errors import EdgesimError
from edgesim.files.reading import read_text

# Names of backends, and keys of theirs that may say that there will be no processes: then it is too early to tell.
_ON_PROCESSES: Mapping[str, Sequence[str]] = {"workers": (), "cohort": ("workers", "device")}


def warm_up_for(source: Any, overrides: Any = (), workers: int | None = None) -> None:
    """Do so if it looks as if a scenario will train on processes; what is wrong with it is told of later.

    `source`: a file, a mapping, or something else, of which nothing is known. `workers`: asked for beside it.
    """
    if workers or _asked_in(overrides) or _asks(source):
        from edgesim.execution.processes import is_loading_main, warm_up

        if not is_loading_main():  # a worker whose parent's script starts runs as it is loaded
            warm_up()


def _asked_in(overrides: Any) -> bool:
    if isinstance(overrides, Mapping):
        overrides = [f"{key}={value}" for key, value in overrides.items()]
    texts = overrides if isinstance(overrides, list | tuple) else ()
    named = [each for each in texts if isinstance(each, str) and each.startswith("backend")]
    return any(name in each for each in named for name in _ON_PROCESSES)


def _asks(source: Any) -> bool:
    if isinstance(source, str | Path):
        try:
            source = tomllib.loads(read_text(Path(source)))
        except (EdgesimError, OSError, ValueError, RecursionError):
            return False
    backend = source.get("backend") if isinstance(source, Mapping) else None
    given = backend if isinstance(backend, Mapping) else {"name": backend}
    name = given.get("name")
    return isinstance(name, str) and name in _ON_PROCESSES and not any(key in given for key in _ON_PROCESSES[name])
