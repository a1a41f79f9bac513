"""Runs the missing cells of a study, each in its own folder, which appears only when it is complete.

A mark in the folder of runs names the study, so that another study of the same name cannot replace the runs.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic_core import from_json

from edgesim.config.load import load_scenario
from edgesim.core.errors import ConfigError, FolderBusy
from edgesim.execution.processes import Pool, ProcessPool
from edgesim.files.atomic import write_text
from edgesim.files.own_code import told
from edgesim.files.reading import in_short, one_line, quoted, read_text
from edgesim.files.user_cache import made_anew
from edgesim.records.lock import hold
from edgesim.records.manifest import STAMP
from edgesim.records.writer import give_up
from edgesim.reports.load import Run, open_run
from edgesim.runs.fingerprint import common_stamp, stamp_of
from edgesim.runs.warnings import of_text
from edgesim.studies.order import Turns, apart, learning_of
from edgesim.studies.study import Study, StudyCell, with_trials

if TYPE_CHECKING:
    from edgesim.studies.shared import Common


_MARK = ".study"  # file in the folder of runs that names the study


def owner_of(file: Path, folder: Path) -> str:
    """Return the path of a study file relative to a folder of runs, so that both may move together."""
    return os.path.relpath(file.resolve(), folder.resolve())


def check_owner(folder: Path, owner: str) -> None:
    """Raise ConfigError if a folder contains the runs of another study."""
    mark = folder / _MARK
    if not mark.exists():
        return
    found = read_text(mark, ConfigError).strip()
    if found != owner:
        ours, theirs = (
            in_short(os.path.relpath(folder.resolve() / each)) if each.endswith(".toml") else quoted(each)
            for each in (owner, found)
        )
        raise ConfigError(
            f"{folder}: has the runs of {theirs}, which those of {ours} could replace; choose another folder with "
            f"--runs, or another name for the study. If the study has moved, remove {mark}"
        )


def claim(folder: Path, owner: str) -> None:
    """Mark a folder with its study. Raises ConfigError if it has runs of another study, or cannot be written."""
    mark = folder / _MARK
    with hold(mark, wait=True):  # two commands may start at once
        check_owner(folder, owner)
        if not mark.exists():
            write_text(mark, owner)


_QUESTION = ("scenario", "trains")  # keys of a stamp that identify the question; the others tell code and data


@dataclass(frozen=True)
class Planned:
    """A cell with its run folder, its scenario as a table, and the stamp of all that the run depends on.

    `warnings`: the warnings that `validate` gives about the scenario.
    """

    cell: StudyCell
    folder: Path
    scenario: dict[str, Any]
    stamp: dict[str, Any]
    learning: str = ""  # equal in cells that are likely to train the same; "": shares nothing
    warnings: tuple[str, ...] = ()

    def kept(self) -> Run | None:
        """Return the existing run of this scenario, made by any code or data; None if it is missing or broken."""
        found = _stamp_in(self.folder)
        same = found is not None and all(found.get(key) == self.stamp[key] for key in _QUESTION)
        return open_run(self.folder).views[0] if same else None

    def is_done(self) -> bool:
        """True if the folder has this complete run and nothing in its stamp has changed."""
        found = _stamp_in(self.folder)
        return found is not None and self.stamp.items() <= found.items()

    def is_current(self) -> bool:
        """True if nothing in the stamp of a run that was kept has changed. Its tables are not read again."""
        return self.stamp.items() <= dict(from_json(read_text(self.folder / STAMP, ConfigError))).items()


def folder_of(file: Path, size: str) -> Path:
    """Return the default folder for the runs of a study, below the current folder."""
    return Path("runs") / "studies" / file.stem / size


def plan(study: Study, file: Path, size: str, only: Sequence[str], out: Path) -> list[Planned]:
    """Return the cells of a study in this size, with run folders below `out`, without loading any data set.

    Cells of a search are the trials recorded in `out`. Raises ConfigError if there are none.
    """
    planned = []
    study = with_trials(study, out)
    for cell in study.cells(size, only):
        scenario = study.scenario(file.parent, cell, size)
        stamp, learning = stamp_of(scenario), learning_of(scenario)
        warnings = tuple(of_text(scenario, study.layers(file.parent, cell, size)))
        backend = scenario.backend.value
        table = scenario.canonical()
        if (alone := backend.alone()) is not None:  # cells run in parallel, so each one trains in a single process
            table |= {"backend": alone}
        planned.append(Planned(cell, out / cell.name, table, stamp, learning, warnings))
    return planned


class Step(NamedTuple):
    """A step of running a study: the cell that ended (None at the start), its fault ("" if none), and running cells.

    `elsewhere`: the cell has not ended, because another process is running it.
    """

    ended: Planned | None
    fault: str
    elsewhere: bool
    running: Sequence[Planned]


def run_all(
    planned: Sequence[Planned],
    workers: int = 1,
    checkpoint_s: float | None = None,
    fresh: bool = False,
    pool: Pool | None = None,
) -> Iterator[Step]:
    """Run cells in `workers` processes with one thread each. Yield a step at the start and whenever a cell ends.

    `pool`: processes that have called `share`. With None, this process or new processes of this machine run the cells.
    If another process is running a cell, this one waits for it after all other cells, and runs the cell if the other
    process has not completed it. `checkpoint_s`: host seconds between checkpoints of a cell. An interrupted cell
    continues from its checkpoint if nothing in its stamp has changed. Without `fresh`, shared results are computed
    once. Raises EdgesimError if a process died.
    """
    _COMMON.clear()
    step = partial(_run, checkpoint_s=checkpoint_s, fresh=fresh)
    busy = yield from _steps(apart(planned) if fresh else planned, workers, pool, step)
    yield from _steps(busy, workers, pool, partial(step, wait=True))


def fault_of(error: Exception) -> str:
    """Return an error as one line. The traceback of an unexpected error, such as one in a part, is printed."""
    if found := told(error):
        print(found.frames, end="", file=sys.stderr)
        return one_line(found.line)
    traceback.print_exception(error)
    return f"{type(error).__name__}: {in_short(error)}"


def _steps(
    cells: Sequence[Planned], workers: int, pool: Pool | None, run: Callable[[Planned], str | None]
) -> Generator[Step, None, list[Planned]]:
    """Yield the steps of one pass over cells; return the cells that another process is running.

    `run` returns None for such a cell.
    """
    if not cells:
        return []
    if pool is None and workers > 1:
        pool = ProcessPool("--workers", workers, doing=name_of)
    turns = Turns(cells)
    if pool is not None:
        with closing(pool):
            yield from _in_parallel(cells, turns, pool, run)
        return [cells[place] for place in turns.left_alone]
    place = turns.next()
    yield Step(None, "", False, cells[:1])
    while place is not None:
        ended, fault = cells[place], run(cells[place])
        turns.end(place, elsewhere=fault is None)
        place = turns.next()
        yield Step(ended, fault or "", fault is None, [] if place is None else [cells[place]])
    return [cells[place] for place in turns.left_alone]


def _in_parallel(
    cells: Sequence[Planned], turns: Turns, pool: Pool, run: Callable[[Planned], str | None]
) -> Iterator[Step]:
    running: dict[int, Planned] = {}

    def hand_out() -> list[Planned]:
        while pool.has_room() and (place := turns.next()) is not None:
            running[place] = cells[place]
            pool.give(place, run, cells[place])
        return list(running.values())

    yield Step(None, "", False, hand_out())
    while ended := pool.take(wait=True):
        for place, fault in ended:
            if isinstance(fault, Exception):
                raise fault
            turns.end(place, elsewhere=fault is None)
            yield Step(running.pop(place), fault or "", fault is None, hand_out())


def _run(planned: Planned, checkpoint_s: float | None, fresh: bool, wait: bool = False) -> str | None:
    """Run a cell and return its fault, "" if there is none. None: another process runs it, and `wait` is False."""
    try:
        with hold(planned.folder, wait):
            if fresh or not planned.is_done():  # another process may have completed it
                _make(planned, checkpoint_s, fresh)
        return ""
    except FolderBusy:
        return None
    except OSError as error:
        return f"{planned.folder}: cannot be made: {error}"
    except Exception as error:
        return fault_of(error)


def growing_folder(folder: Path) -> Path:
    """Return the folder where a run is written before it replaces the run folder."""
    return folder.parent / f".{folder.name}.growing"


def _make(planned: Planned, checkpoint_s: float | None, fresh: bool) -> None:
    from edgesim.execution.checkpoint import Checkpoint  # these load torch; finished runs do not need it
    from edgesim.execution.result_cache import Answers
    from edgesim.runs.simulate import simulate
    from edgesim.studies.shared import Common

    folder = planned.folder
    growing, aside = growing_folder(folder), folder.with_name(f".{folder.name}.old")
    try:
        shutil.rmtree(growing, ignore_errors=True)  # left by a study that was killed
        if aside.exists() and not folder.exists():
            aside.rename(folder)
        checkpoint = None
        if checkpoint_s and planned.stamp["trains"]:
            checkpoint = Checkpoint.beside(folder, checkpoint_s, planned.stamp)
            if checkpoint.is_outdated():
                checkpoint.remove()
        if not _COMMON:
            share(Common())
        common, scenario = _COMMON[0], load_scenario(planned.scenario)
        before = stamp_of(scenario)  # the code that this process has loaded
        with made_anew(fresh), closing(Answers(folder.parent, reads=not fresh, rows=common.rows)) as answers:
            run = simulate(
                scenario, growing, checkpoint=checkpoint, answers=answers, load=common.load, build=common.build,
                warnings=planned.warnings,
            )  # fmt: skip
        if run.manifest["status"] != "finished":
            raise KeyboardInterrupt
        data = {key: value for key, value in planned.stamp.items() if key == "data"}
        stamp = {**common_stamp(before, stamp_of(scenario)), **data}
        (growing / STAMP).write_text(json.dumps(stamp), encoding="utf-8")
        give_up(aside, folder)  # left by a study that was killed
        if folder.exists():
            folder.rename(aside)
        growing.rename(folder)
        give_up(aside, folder)
        if checkpoint:
            checkpoint.remove()
    finally:
        shutil.rmtree(growing, ignore_errors=True)


_COMMON: list[Common] = []  # shared by the cells of one `run_all` in this process


def share(common: Common) -> None:
    """Set the data and networks that cells in this process share."""
    _COMMON[:] = [common]


def name_of(planned: Planned) -> str:
    """Return the name of a cell."""
    return planned.cell.name


def _stamp_in(folder: Path) -> dict[str, Any] | None:
    """Return the stamp of a finished run; None if the run is missing or incomplete. All its tables are read."""
    try:
        stamp = dict(from_json(read_text(folder / STAMP, ConfigError)))
        run = open_run(folder)
        run.read()
    except (ValueError, TypeError, ConfigError):  # invalid JSON, no table, or an incomplete run
        return None
    return stamp if run.finished else None
