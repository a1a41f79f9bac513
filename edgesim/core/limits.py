"""Ranges of numbers that scenarios may contain, and limits of work and memory that are checked before a run begins."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Annotated, TypeAlias

from annotated_types import Ge, Gt, Le
from pydantic import AfterValidator, FiniteFloat

from edgesim.core.errors import ConfigError

# Steps of a loop for one job, one transfer or one round that shares links: ten seconds.
MOST_STEPS = 10_000
MOST_LOOKS = 100_000  # consecutive searches for devices without a result
MOST_JOBS = 1_000_000  # jobs in one merge
MOST_AMOUNT = 1e100  # largest value with a unit, and largest seconds, bytes and joules of a job: sums stay finite
PROCESS_BYTES = 450_000_000  # memory of a Python process that has loaded PyTorch with its CUDA libraries, measured
_CGROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def check_steps(key: str, steps: float, what: str, most: int = MOST_STEPS) -> None:
    """Raise ConfigError that names `key` if something needs more steps than allowed. nan counts as too many."""
    if not steps <= most:
        raise ConfigError(f"{key}: {what} would take about {steps:.2g} steps, there may be {most:,} at most")


def check_amount(key: str, what: str, value: float, unit: str) -> None:
    """Raise ConfigError that names `key` if an amount is larger than a run can add up. nan counts as too large."""
    if not value <= MOST_AMOUNT:
        raise ConfigError(f"{key}: {what} takes {value:.6g} {unit}, must be at most {MOST_AMOUNT:g}")


def check_memory(key: str, nbytes: float, what: str) -> None:
    """Raise ConfigError that names `key` if something needs more bytes than this process may have."""
    most = memory_bytes()
    if not nbytes <= most:
        raise ConfigError(
            f"{key}: {what} would take about {nbytes / 1e9:.3g} GB of memory, {most / 1e9:.3g} GB are here"
        )


def memory_bytes() -> float:
    """Return the bytes of memory that this process can have: the machine's memory, or a lower limit."""
    limits = [float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES")]
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        soft, _ = resource.getrlimit(kind)
        limits += [float(soft)] if soft != resource.RLIM_INFINITY else []
    for file in _CGROUPS:
        text = file.read_text().strip() if file.is_file() else ""
        limits += [float(text)] if text.isdecimal() else []
    return min(limits)


MOST_COUNT = 2**31 - 1  # samples, steps, pixels: the product of two counts fits into 64 bits

MOST_FACTOR = 1e30  # factor of tensors, as float32 ends at 3.4e38 and Adam divides a rate by 1 - beta1


def _for_tensors(value: float) -> float:
    """Return a factor of tensors. Raises ValueError if float32 might not hold the factor or its multiples."""
    if value > MOST_FACTOR:
        raise ValueError(f"must be at most {MOST_FACTOR:g}, which float32 can still multiply, got {value:g}")
    return value


PositiveNumber: TypeAlias = Annotated[FiniteFloat, Gt(0)]
NonNegativeNumber: TypeAlias = Annotated[FiniteFloat, Ge(0)]
PositiveFactor: TypeAlias = Annotated[PositiveNumber, AfterValidator(_for_tensors)]  # of tensors, such as a rate
NonNegativeFactor: TypeAlias = Annotated[NonNegativeNumber, AfterValidator(_for_tensors)]
Count: TypeAlias = Annotated[int, Ge(1), Le(MOST_COUNT)]
Depth: TypeAlias = Annotated[int, Ge(1), Le(100)]  # number of layers, each built and measured; GPT-3 has 96
CountOrZero: TypeAlias = Annotated[int, Ge(0), Le(MOST_COUNT)]
PositiveShare: TypeAlias = Annotated[float, Gt(0), Le(1)]
Share: TypeAlias = Annotated[float, Ge(0), Le(1)]  # includes 0, so that a sweep can begin there
