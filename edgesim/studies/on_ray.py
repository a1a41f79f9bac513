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
    """Give processes of a cluster that run cells, so many at a time, for `run_all`; leave the cluster in the end.

    `planned`: one or more, their folders absolute and in one folder, which all machines have to see: EdgesimError is
    raised for one that does not. Data sets lie in the memory of the cluster, each once. Raises ConfigError as
    RayCluster does.
    """
    with closing(RayCluster("--backend ray", workers, address)):
        folder = planned[0].folder.parent
        with _mark(folder) as mark, rows_here(folder) as rows:
            given = mark, _data_of(planned), rows
            with closing(RayPool("--backend ray", workers, start, given, name_of)) as pool:
                pool.begin()
                yield pool


@contextmanager
def _mark(folder: Path) -> Iterator[Path]:
    """Give a file in a folder by which other machines can tell that they see the same one."""
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


def _data_of(planned: Sequence[Planned]) -> dict[str, Any]:
    """Lay the data sets of cells into the memory of the cluster; return what refers to them, by what names them."""
    import ray

    scenarios = {text_of(each.scenario["data"]): each.scenario for each in planned}
    found = {}
    for name, scenario in scenarios.items():
        with suppress(EdgesimError):  # the cell says it where it is run
            found[name] = ray.put(load_data(load_scenario(scenario)))
    return found


# --- in a process of the cluster --------------------------------------------------------------------------------------


def start(mark: Path, data: Mapping[str, Any], rows: RayRows) -> None:
    """Check that this machine sees the folder of the runs; let its cells share data sets and answers with all."""
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
