"""Memory in use of a run and its processes, as Linux tells it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

from edgesim.core.limits import PROCESS_BYTES

_PROC = Path("/proc")


class Loaded(NamedTuple):
    """Share of this host that Python and its libraries take in a process before a scenario is built."""

    host_s: float = 0.0
    nbytes: int = PROCESS_BYTES

    @classmethod
    def here(cls) -> Loaded:
        """Return the processor seconds of this process so far, and its memory, if it has built no scenario yet."""
        return cls(time.process_time(), resident_bytes() or PROCESS_BYTES)


def resident_bytes() -> int | None:
    """Return the resident memory of this process and its descendants. None where the system does not tell it.

    Pages that processes share count once. Of mapped files, such as PyTorch's libraries, those of the process that has
    most of them count.
    """
    own_kb, files_kb, family = 0, 0, [os.getpid()]
    for pid in family:
        try:
            found = _sizes(pid, "status") | _sizes(pid, "smaps_rollup")
            below = [tid.joinpath("children").read_text().split() for tid in (_PROC / f"{pid}/task").iterdir()]
        except OSError:  # the process has just ended, or this is no Linux
            continue
        own_kb += found.get("Pss_Anon", 0) + found.get("Pss_Shmem", 0)
        files_kb = max(files_kb, found.get("RssFile", 0))
        family += [int(child) for children in below for child in children]
    return 1024 * (own_kb + files_kb) or None


def _sizes(pid: int, name: str) -> dict[str, int]:
    """Return the sizes in a file about a process, in kB."""
    rows = (line.split() for line in (_PROC / f"{pid}/{name}").read_text().splitlines())
    return {row[0].rstrip(":"): int(row[1]) for row in rows if len(row) == 3 and row[2] == "kB"}
