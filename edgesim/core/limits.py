"""Ranges of numbers that scenarios may contain, and limits of work and memory that are checked before a run begins."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Annotated, TypeAlias

from annotated_types import Ge, Gt, Le
from pydantic import AfterValidator, FiniteFloat

from edgesim.core.errors import ConfigError

MOST_STEPS = (
    10_000  # of what is gone through one by one for a job, a transfer or a round that shares links: ten seconds
)
MOST_LOOKS = 100_000  # for devices, in a row without finding one
MOST_JOBS = 1_000_000  # in one merge
MOST_AMOUNT = 1e100  # of a value with a unit, and of the seconds, bytes and joules of a job: sums stay finite
PROCESS_BYTES = 450_000_000  # of a Python process that has loaded PyTorch with its CUDA libraries, measured
_CGROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def check_steps(key: str, steps: float, what: str, most: int = MOST_STEPS) -> None:
    """Raise ConfigError that names `key` if something needs more steps than there is time for; nan is too many."""
    if not steps <= most:
        raise ConfigError(f"{key}: {what} would take about {steps:.2g} steps, there may be {most:,} at most")


def check_amount(key: str, what: str, value: float, unit: str) -> None:
    """Raise ConfigError that names `key` if something takes more of a unit than a run can add up; nan is too much."""
    if not value <= MOST_AMOUNT:
        raise ConfigError(f"{key}: {what} takes {value:.6g} {unit}, must be at most {MOST_AMOUNT:g}")


def check_memory(key: str, nbytes: float, what: str) -> None:
    """Raise ConfigError that names `key` if something needs more bytes than this process may have at all."""
    most = memory_bytes()
    if not nbytes <= most:
        raise ConfigError(
            f"{key}: {what} would take about {nbytes / 1e9:.3g} GB of memory, {most / 1e9:.3g} GB are here"
        )


def memory_bytes() -> float:
    """Return the bytes of memory that this process can have: of the machine, or less where it is limited."""
    limits = [float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES")]
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        soft, _ = resource.getrlimit(kind)
        limits += [float(soft)] if soft != resource.RLIM_INFINITY else []
    for file in _CGROUPS:
        text = file.read_text().strip() if file.is_file() else ""
        limits += [float(text)] if text.isdecimal() else []
    return min(limits)


MOST_COUNT = 2**31 - 1  # of samples, steps, pixels: no product of two of them leaves 64 bits

MOST_FACTOR = 1e30  # of tensors, whose float32 ends at 3.4e38: Adam divides a rate by 1 - beta1, a mean by samples


def _for_tensors(value: float) -> float:
    """Return a factor of tensors. Raises ValueError if float32 might not hold it or its multiples."""
    if value > MOST_FACTOR:
        raise ValueError(f"must be at most {MOST_FACTOR:g}, which float32 can still multiply, got {value:g}")
    return value


PositiveNumber: TypeAlias = Annotated[FiniteFloat, Gt(0)]
NonNegativeNumber: TypeAlias = Annotated[FiniteFloat, Ge(0)]
PositiveFactor: TypeAlias = Annotated[PositiveNumber, AfterValidator(_for_tensors)]  # of tensors, such as a rate
NonNegativeFactor: TypeAlias = Annotated[NonNegativeNumber, AfterValidator(_for_tensors)]
Count: TypeAlias = Annotated[int, Ge(1), Le(MOST_COUNT)]
Depth: TypeAlias = Annotated[int, Ge(1), Le(100)]  # of layers, which are built and measured one by one; GPT-3 has 96
CountOrZero: TypeAlias = Annotated[int, Ge(0), Le(MOST_COUNT)]
PositiveShare: TypeAlias = Annotated[float, Gt(0), Le(1)]
Share: TypeAlias = Annotated[float, Ge(0), Le(1)]  # 0 too, so that a sweep can begin with nothing
