"""The machine and the versions that figures belong to."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from edgesim.runs.recording import provenance

GIB = 2.0**30
_CPUINFO = Path("/proc/cpuinfo")  # of Linux


def host(command: Sequence[str]) -> dict[str, Any]:
    """Return date, command, revision and versions, processor, cores, memory and system."""
    facts = provenance(command)
    cores = facts.pop("host_cpus")
    return {
        **facts,
        "cpu": _cpu_model(),
        "cores": cores,
        "cores_to_use": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / GIB, 1),
        "system": platform.platform(),
    }


def _cpu_model() -> str:
    lines = _CPUINFO.read_text(encoding="utf-8").splitlines() if _CPUINFO.exists() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or platform.machine())
