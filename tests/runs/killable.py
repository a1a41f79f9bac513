"""The command line in a process that writes its run folder after every round and, if told to, kills itself.

EDGESIM_KILLED_AT=N: at its Nth change to a file or folder below the current one, just before it. So a test reaches the
instants between two changes, which a kill from outside seldom hits. Worker processes that write do so too.
"""

from __future__ import annotations

import os
import signal
import sys
from itertools import count
from pathlib import Path
from typing import Any

_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree", "sqlite3.connect"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def die_at(change: int) -> None:
    """Let this process kill itself at its so-manieth change to the disk."""
    here, changes = Path.cwd(), count(1)

    def look(event: str, given: tuple[Any, ...]) -> None:
        is_change = event in _CHANGES or (event == "open" and isinstance(given[2], int) and given[2] & _WRITES)
        is_path = is_change and isinstance(given[0], str | os.PathLike)
        if is_path and Path.cwd().joinpath(given[0]).is_relative_to(here) and next(changes) == change:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(look)


if at := int(os.environ.get("EDGESIM_KILLED_AT", "0")):
    die_at(at)

if __name__ == "__main__":
    from edgesim.cli.main import main
    from edgesim.runs import recording

    recording._EVERY_S, recording._SHARE = 0.0, float("inf")
    main()
