"""When, where and by whom a run was made: what its manifest says beside the scenario, and no result depends on."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

_PACKAGES = ("edgesim", "torch", "torchvision", "numpy", "simpy", "pandas", "pydantic")
_GIT = (
    *("git", "-c", "core.fsmonitor=false"),  # which may name a program that `git status` would run
    *("--no-optional-locks", "status", "--porcelain=v2", "--branch", "--untracked-files=no"),
)
_PATIENCE_S = 5


def provenance(command: Sequence[str] | None) -> dict[str, Any]:
    """Return `date` (UTC, ISO 8601), `command` (None: from Python), `git`, `versions` and `host_cpus`."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": None if command is None else list(command),
        "git": git_state(),
        "versions": {**{name: version(name) for name in _PACKAGES}, "python": platform.python_version()},
        "host_cpus": os.cpu_count(),
    }


def process() -> dict[str, Any]:
    """Return who this is: `pid` and `host`."""
    return {"pid": os.getpid(), "host": platform.node()}


def git_state() -> dict[str, Any] | None:
    """Return `revision` of the current folder and whether it is `dirty`: tracked files have changed since.

    None where there is no git, no repository, no commit yet, or no answer in time.
    """
    try:
        done = subprocess.run(_GIT, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=_PATIENCE_S)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.splitlines()
    revision = next((line.split()[-1] for line in lines if line.startswith("# branch.oid ")), "(initial)")
    if done.returncode or revision == "(initial)":
        return None
    return {"revision": revision, "dirty": any(not line.startswith("#") for line in lines)}
