"""A run in a process of its own that writes its folder after every round and waits after the fifth."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

# A run that writes its folder after every round, and waits after the fifth until there is a file "go".
_WAITING = """
import sys, time
from pathlib import Path
from edgesim.cli.main import main
from edgesim.runs import recording

recording._EVERY_S, recording._SHARE = 0.0, float("inf")
really = recording.Recording.round_closed

def round_closed(self, info):
    really(self, info)
    while info["round"] == 5 and not Path("go").exists():
        time.sleep(0.01)

recording.Recording.round_closed = round_closed
sys.argv[0] = "edgesim"
main()
"""


def waiting_run(*words: str) -> subprocess.Popen[str]:
    """Start a run that waits after its fifth round, in the current folder."""
    return subprocess.Popen([sys.executable, "-c", _WAITING, "run", *words], text=True,
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)  # fmt: skip


def begun(folder: Path) -> None:
    """Return once a run has written its folder for the first time."""
    for _ in range(6000):
        if (folder / "manifest.json").exists():
            return
        time.sleep(0.01)
    raise TimeoutError(f"no run in {folder}")
