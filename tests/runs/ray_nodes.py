"""A Ray cluster of two nodes of one CPU each, both on this machine, that tests are connected to."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

_MEMORY_BYTES = 100_000_000  # of each node, for what processes share: containers may have little


class Nodes(NamedTuple):
    """A cluster, and the node of it that may be killed."""

    cluster: Any
    second: Any

    def kill(self) -> None:
        """Kill the second node, as if its machine had lost power."""
        self.cluster.remove_node(self.second, allow_graceful=False)


@contextmanager
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    """Start two nodes and connect to them."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="ray-")  # sockets lie there, whose paths have to be short
    (Path(folder) / "ray").mkdir()  # where Ray writes below RAY_TMPDIR which cluster was started last
    for name, value in {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "RAY_TMPDIR": folder}.items():
        monkeypatch.setenv(name, value)
    given = {"num_cpus": 1, "object_store_memory": _MEMORY_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={**given, "temp_dir": folder})
    try:
        nodes = Nodes(cluster, cluster.add_node(num_cpus=1, object_store_memory=_MEMORY_BYTES))
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        yield nodes
    finally:
        ray.shutdown()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Ray takes it
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
