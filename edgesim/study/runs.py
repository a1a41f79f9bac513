"""Makes the runs of a study that are missing, each in a folder of its own that appears complete or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from edgesim.analysis.load import Run, open_run
from edgesim.config.load import load_scenario
from edgesim.config.scenario import Scenario
from edgesim.errors import ConfigError, EdgesimError
from edgesim.reading import read_text
from edgesim.records.schema import TABLES
from edgesim.study.stamp import data_digest, stamp_of
from edgesim.study.study import Cell, Study

_STAMP = "study.json"
_QUESTION = ("scenario", "trains")  # what a run answers; the rest of a stamp is by what means it did


@dataclass(frozen=True)
class Planned:
    """A cell, its run folder, its scenario as a table that processes can hand on, and what the run depends on."""

    cell: Cell
    folder: Path
    scenario: dict[str, Any]
    stamp: dict[str, Any]

    def kept(self) -> Run | None:
        """Return the run that answers this cell, by whatever code or data; None if it is missing, other or broken."""
        found = _stamp_in(self.folder)
        same = found is not None and all(found.get(key) == self.stamp[key] for key in _QUESTION)
        return open_run(self.folder) if same else None

    def is_done(self) -> bool:
        """Return whether the folder holds this run, all of it, and nothing that its stamp names has changed."""
        found = _stamp_in(self.folder)
        return found is not None and self.stamp.items() <= found.items()


def plan(study: Study, file: Path, size: str, only: Sequence[str], out: Path) -> list[Planned]:
    """Return the cells of a study in this size with their run folders below `out`; no data set is loaded."""
    planned = []
    for cell in study.cells(size, only):
        scenario = study.scenario(file.parent, cell, size)
        planned.append(Planned(cell, out / cell.name, _alone(scenario), stamp_of(scenario)))
    return planned


def with_data(planned: Sequence[Planned]) -> list[Planned]:
    """Return the same with a digest of its data set in every stamp. Raises DataError if one cannot be loaded."""
    digests: dict[str, str | None] = {}
    stamped = []
    for each in planned:
        wanted = json.dumps(each.scenario["data"], sort_keys=True)
        if wanted not in digests:
            digests[wanted] = data_digest(load_scenario(each.scenario))
        stamped.append(Planned(each.cell, each.folder, each.scenario, {**each.stamp, "data": digests[wanted]}))
    return stamped


def run_all(
    planned: Sequence[Planned], workers: int = 1, checkpoint_s: float | None = None
) -> Iterator[tuple[Planned, str]]:
    """Run cells in so many processes, one thread each; yield each as it ends, with what went wrong ("": nothing).

    With `checkpoint_s` a cell is saved every so many seconds of the host; one that was cut off goes on, if nothing that
    its stamp names has changed. Raises EdgesimError if a process died.
    """
    if workers == 1:
        yield from ((each, _run(each, checkpoint_s)) for each in planned)
        return
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    try:
        futures = {pool.submit(_run, each, checkpoint_s): each for each in planned}
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BrokenProcessPool as error:
        raise EdgesimError("--workers: a process died; with too little memory use fewer") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _alone(scenario: Scenario) -> dict[str, Any]:
    """Return a scenario as a table; training on workers becomes training in its one process, with equal results."""
    trains = scenario.backend.value.trains
    return scenario.canonical() | ({"backend": {"name": "serial"}} if trains else {})


def _run(planned: Planned, checkpoint_s: float | None) -> str:
    from edgesim.checkpoint import Checkpoint  # these load torch, which a look at finished runs does not need
    from edgesim.simulation import simulate

    folder = planned.folder
    growing = folder.with_name(f".{folder.name}.growing")
    try:
        shutil.rmtree(growing, ignore_errors=True)  # left by a study that was killed
        checkpoint = None
        if checkpoint_s and planned.stamp["trains"]:
            checkpoint = Checkpoint.beside(folder, checkpoint_s, planned.stamp)
            if checkpoint.is_outdated():
                checkpoint.remove()
        run = simulate(load_scenario(planned.scenario), growing, checkpoint=checkpoint)
        if run.manifest["status"] != "finished":
            raise KeyboardInterrupt
        (growing / _STAMP).write_text(json.dumps(planned.stamp), encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        growing.rename(folder)
        if checkpoint:
            checkpoint.remove()
    except EdgesimError as error:
        return str(error)
    except OSError as error:
        return f"{folder}: cannot be written: {error.strerror}"
    finally:
        shutil.rmtree(growing, ignore_errors=True)
    return ""


def _stamp_in(folder: Path) -> dict[str, Any] | None:
    """Return the stamp of a finished run, None where a run is missing or half-written: no table is taken on trust."""
    try:
        stamp = dict(from_json(read_text(folder / _STAMP, ConfigError)))
        run = open_run(folder)
        whole = run.manifest["status"] == "finished" and all(run.table(table) is not None for table in TABLES)
    except (ValueError, TypeError, ConfigError):  # no JSON, no table, no whole run
        return None
    return stamp if whole else None
