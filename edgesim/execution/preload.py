"""Start loading the modules of worker processes before a scenario is read."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgesim.core.errors import EdgesimError
from edgesim.files.reading import read_text

# Names of backends with processes, and their keys that may switch processes off, so that nothing is loaded early.
_ON_PROCESSES: Mapping[str, Sequence[str]] = {"workers": (), "cohort": ("workers", "device")}
_OTHER = re.compile(r"backend(\.name)?\s*=")


def warm_up_for(source: Any, overrides: Any = (), workers: int | None = None) -> None:
    """Start loading if a scenario looks as if it trained in processes; its errors are reported later.

    `source`: a file or a mapping; anything else is ignored. `workers`: number of workers asked for separately.
    """
    if isinstance(overrides, Mapping):
        overrides = [f"{key}={value}" for key, value in overrides.items()]
    texts = overrides if isinstance(overrides, list | tuple) else ()
    named = [each for each in texts if isinstance(each, str) and each.startswith("backend")]
    other = any(_OTHER.match(each) for each in named)  # the scenario's own backend does not count
    if workers or any(name in each for each in named for name in _ON_PROCESSES) or (not other and _asks(source)):
        from edgesim.execution.processes import is_loading_main, warm_up

        if not is_loading_main():  # a worker that still loads its parent's script must start nothing
            warm_up()


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
