"""Runs the cells of a study in processes of a Ray cluster."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from edgesim.config.load import load_scenario
from edgesim.config.scenario import Scenario
from edgesim.core.errors import ConfigError, EdgesimError
from edgesim.execution.ray_cluster import RayCluster, RayPool, RayRows, rows_here
from edgesim.learning.data.dataset import Dataset
from edgesim.runs.assembly import load_data
from edgesim.studies.runs import Planned, name_of, share
from edgesim.studies.shared import Common, text_of


@contextmanager
def ray_pool(planned: Sequence[Planned], workers: int, address: str | None) -> Iterator[RayPool]:
    """Context of `workers` processes of a cluster that run cells for `run_all`. At its end the cluster is left.

    `planned`: one or more cells with absolute run folders in one common folder. All machines have to see this folder,
    else EdgesimError is raised. The memory of the cluster holds each data set once. Raises ConfigError as RayCluster.
    """
    with closing(RayCluster("--backend ray", workers, address)):
        folder = planned[0].folder.parent
        with _mark(folder) as mark, rows_here(folder) as rows:
            given = mark, _put_data(planned), rows
            with closing(RayPool("--backend ray", workers, start, given, name_of)) as pool:
                pool.begin()
                yield pool


@contextmanager
def _mark(folder: Path) -> Iterator[Path]:
    """Context of a file that shows other machines whether they see the same folder."""
    mark = folder / f".seen-{os.urandom(16).hex()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        mark.touch()
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be made: {error.strerror}") from error
    try:
        yield mark
    finally:
        mark.unlink(missing_ok=True)


def _put_data(planned: Sequence[Planned]) -> dict[str, Any]:
    """Put the data sets of cells into the memory of the cluster, and return their references by key."""
    import ray

    scenarios = {text_of(each.scenario["data"]): each.scenario for each in planned}
    found = {}
    for name, scenario in scenarios.items():
        with suppress(EdgesimError):  # the cell itself reports the error
            found[name] = ray.put(load_data(load_scenario(scenario)))
    return found


# --- in a process of the cluster --------------------------------------------------------------------------------------


def start(mark: Path, data: Mapping[str, Any], rows: RayRows) -> None:
    """Check that this machine sees the folder of the runs, and share data sets and cached results with the cluster."""
    if not mark.exists():
        raise EdgesimError(
            f"{mark.parent}: machine {platform.node()} does not see this folder; runs of a study on Ray lie on a file "
            "system that all machines share (--out)"
        )

    def load(scenario: Scenario) -> Dataset | None:
        import ray

        name = text_of(scenario.canonical()["data"])
        found: Dataset | None = ray.get(data[name]) if name in data else load_data(scenario)
        return found

    share(Common(load, rows))
