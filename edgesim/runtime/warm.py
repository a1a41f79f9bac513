"""Starts to load what worker processes need, before a scenario is read and anything else is loaded."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgesim.core.errors import EdgesimError
from edgesim.files.reading import read_text

_ON_PROCESSES = "workers"  # name of the backend


def warm_up_for(source: Any, overrides: Sequence[str] = (), workers: int | None = None) -> None:
    """Do so if it looks as if a scenario will train on workers; what is wrong with it is told of later.

    `source`: a file, a mapping, or something else, of which nothing is known. `workers`: asked for beside it.
    """
    if workers or _asked_in(overrides) or _asks(source):
        from edgesim.runtime.processes import is_loading_main, warm_up

        if not is_loading_main():  # a worker whose parent's script starts runs as it is loaded
            warm_up()


def _asked_in(overrides: Any) -> bool:
    texts = overrides if isinstance(overrides, list | tuple) else ()
    return any(isinstance(each, str) and each.startswith("backend") and _ON_PROCESSES in each for each in texts)


def _asks(source: Any) -> bool:
    if isinstance(source, str | Path):
        try:
            source = tomllib.loads(read_text(Path(source)))
        except (EdgesimError, OSError, ValueError, RecursionError):
            return False
    backend = source.get("backend") if isinstance(source, Mapping) else None
    return (backend.get("name") if isinstance(backend, Mapping) else backend) == _ON_PROCESSES
