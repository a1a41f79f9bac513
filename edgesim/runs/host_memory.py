"""Memory of a run and its processes: in use, as Linux tells it, and needed, by the price list."""

from __future__ import annotations

import os
import time
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from edgesim.core.backend import CHUNK
from edgesim.core.limits import PROCESS_BYTES
from edgesim.core.price_list import F32_BYTES, CostProfile
from edgesim.core.task import Submodel

if TYPE_CHECKING:
    from edgesim.runs.assembly import Assembly

_PROC = Path("/proc")
# Memory, measured: of the process that worker processes are forked from, and of each of them beside its network.
_FORKING_BYTES, _FORKED_BYTES = 300_000_000, 45_000_000


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


def needed_bytes(parts: Assembly, jobs: float) -> int:
    """Return main memory in bytes beside that of Python and its libraries.

    It holds data set, partition, worker processes, models, and networks at work. All processes share the base of the
    network. The server holds its model and the messages of a round, and devices those that they keep. A network holds
    the weights received, and the memory of training or of evaluating, whichever is more. Devices that are trained in
    one call hold as many.
    """
    held = (parts.data.nbytes if parts.data else 0) + sum(
        shard.nbytes for shard in (parts.split.train if parts.split else ())
    )
    backend, cost_profile, training = parts.scenario.backend.value, parts.network.cost_profile, parts.setting.training
    if not backend.trains:
        return held
    base_bytes = sum(layer.base_bytes for layer in cost_profile.layers)  # which processes share
    held += base_bytes
    model, sgd = model_bytes(parts), training.local_sgd(0)
    untrained = Submodel(frozen=frozenset(cost_profile.layer_names))
    evaluating = cost_profile.memory_bytes(untrained, CHUNK).total
    of_step = cost_profile.memory_bytes(Submodel(), sgd.batch, sgd.moments, sgd.scratch).total
    others, method = backend.processes, parts.scenario.method.value
    together = max(1, ceil(jobs / max(1, others))) if backend.stacks else 1
    network = max(model + evaluating, together * (model + of_step)) - base_bytes
    keeps = method.needs.device_state != "none" or method.needs.peers is not None
    models = 1 + jobs + (parts.setting.devices if keeps else 0)
    forked = _FORKING_BYTES + others * _FORKED_BYTES if others else 0
    return int(held + forked + models * model + max(1, others) * network)


def model_bytes(parts: Assembly) -> int:
    """Return the bytes of a model with its buffers, without the base."""
    cost_profile: CostProfile = parts.network.cost_profile
    return F32_BYTES * sum(layer.params + layer.buffers for layer in cost_profile.layers)
