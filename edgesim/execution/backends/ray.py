"""Train in processes of a Ray cluster, on this machine or on many, in parallel with the simulation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from edgesim.core.limits import PROCESS_BYTES, Count, check_memory
from edgesim.core.update import ModelState
from edgesim.execution.backends.compiling import Compiling
from edgesim.execution.backends.pooled import HeldModels, Item, Kind, PooledBackend
from edgesim.execution.ray_cluster import RayCluster, RayPool, check_installed
from edgesim.learning.train.trainer import Trainer


class RayBackend(PooledBackend):
    """Processes of a cluster, whose memory holds trainer, data and models once."""

    def __init__(self, trainer: Trainer, workers: int, cluster: RayCluster) -> None:
        import ray

        self._cluster = cluster
        pool = RayPool("backend", workers, _start, [trainer])
        super().__init__(
            trainer, workers, pool, HeldModels(ray.put, lambda reference: None)
        )  # freed with the last user

    def close(self) -> None:
        """Stop the work in progress, and leave the cluster."""
        super().close()
        self._cluster.close()

    def _give(self, item: Item, given: Any) -> None:
        references = self._models.places(item.models).values()
        self._pool.give(item, _work, (item.kind, given, item.models), *references)


# --- in a process of the cluster --------------------------------------------------------------------------------------

_TRAINER: list[Trainer] = []


def _start(trainer: Trainer) -> None:
    _TRAINER[:] = [trainer]


def _work(work: tuple[Kind, Any, Sequence[int]], *models: ModelState) -> Any:
    kind, given, names = work
    return kind(_TRAINER[0], given, dict(zip(names, models, strict=True)))


@dataclass(frozen=True, kw_only=True)
class Ray(Compiling):
    """Train in processes of a Ray cluster of one thread each, on this machine or on many."""

    workers: Count = 2  # jobs at a time, a process and thread each
    address: str | None = None  # of a running cluster, HOST:PORT or auto; None: RAY_ADDRESS, else this machine alone

    def check(self) -> None:
        """Raise ConfigError if Ray is not installed, or so many processes of this machine do not fit into memory."""
        check_installed("backend")
        if not self.address:
            check_memory("backend.workers", self.workers * PROCESS_BYTES, f"{self.workers:,} processes with PyTorch")

    def alone(self) -> dict[str, Any]:
        """Return the table of the backend with this process only, which gives the same results."""
        return {"name": "serial", "compile": self.compile}

    @property
    def processes(self) -> int:
        """Number of training processes beside this one."""
        return self.workers

    def open(self, make_trainer: Callable[[str], Trainer]) -> RayBackend:
        """Return the backend. Raises ConfigError if Ray is not installed, or does not answer at the address."""
        self.check()
        trainer = self.compiling(make_trainer("cpu"))
        cluster = RayCluster("backend", self.workers, self.address)
        try:
            return RayBackend(trainer, self.workers, cluster)
        except BaseException:
            cluster.close()
            raise


PLUGINS = {"ray": Ray}
