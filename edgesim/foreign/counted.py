"""Amounts of one call of a user's code, and what to say if nothing was seen of its work."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Counted:
    """Amounts of one call of a user's code.

    Operations of torch in the thread of the call are seen, and those of backward passes, which CPUs run in the same
    thread. Other threads, worker processes and other libraries (NumPy, scikit-learn, XGBoost) are not.
    """

    flops: float  # of products, as edgesim's price lists count them
    memory_bytes: int  # most bytes alive at once of tensors that the call made or read
    made_bytes: int  # most bytes alive at once of tensors that the call made
    read_bytes: int  # most bytes alive at once of tensors made elsewhere that the call read, such as weights
    steps: int  # of optimisers
    samples: int | None  # that data loaders of torch gave; None: none gave any, or their number is not known
    # CPU seconds of all threads of the process, those of the counter included, and of child processes that ended. Sleep
    # and waiting take none. Calls at the same time in one process cannot be told apart.
    host_s: float
    work: Mapping[str, float] = field(default_factory=dict)  # by kind, see edgesim.core.work; empty if not asked for


def unseen_work(counted: Counted, trained: bool) -> str | None:
    """Return a warning in one line if a training did no FLOPs, else None. `trained`: the call was a training."""
    if counted.flops or not trained:
        return None
    return (
        "0 FLOPs: the training takes no simulated time. Work of NumPy, scikit-learn or XGBoost is not seen, nor that "
        "of other threads and processes. host_seconds = true prices by the CPU seconds of this machine"
    )


def cpu_s() -> float:
    """Return the CPU seconds so far of this process and of its child processes that ended."""
    ended = os.times()
    return time.process_time() + ended.children_user + ended.children_system
