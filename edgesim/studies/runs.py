"""Runs the missing cells of a study, each in its own folder that appears complete or not at all.

A folder of runs remembers its study, so that no other study of the same name replaces its runs.
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
from edgesim.config.scenario import Scenario
from edgesim.core.errors import ConfigError, FolderBusy
from edgesim.execution.processes import Pool, ProcessPool
from edgesim.files.atomic import whole_file
from edgesim.files.own_code import told
from edgesim.files.reading import in_short, one_line, quoted, read_text
from edgesim.files.user_cache import made_anew
from edgesim.records.lock import hold
from edgesim.records.manifest import STAMP
from edgesim.records.schema import TABLES
from edgesim.records.writer import give_up
from edgesim.reports.load import Run, open_run
from edgesim.runs.fingerprint import common_stamp, stamp_of
from edgesim.runs.warnings import of_text
from edgesim.studies.order import Turns, apart, learning_of
from edgesim.studies.study import Study, StudyCell, with_trials

if TYPE_CHECKING:
    from edgesim.studies.shared import Common


_MARK = ".study"  # a file in the folder of runs that names their study


def owner_of(file: Path, folder: Path) -> str:
    """Return the name of a study file in a folder of runs: its path from there, so that both may move together."""
    return os.path.relpath(file.resolve(), folder.resolve())


def check_owner(folder: Path, owner: str) -> None:
    """Raise ConfigError if a folder has the runs of another study."""
    mark = folder / _MARK
    if not mark.exists():
        return
    found = read_text(mark, ConfigError).strip()
    if found != owner:
        ours, theirs = (_shown(folder, each) for each in (owner, found))
        raise ConfigError(
            f"{folder}: has the runs of {theirs}, which those of {ours} could replace; choose another folder with "
            f"--runs, or another name for the study. If the study has moved, remove {mark}"
        )


def claim(folder: Path, owner: str) -> None:
    """Let a folder remember its study. Raises ConfigError if it has the runs of another one, or cannot be written."""
    mark = folder / _MARK
    with hold(mark, wait=True):  # of two commands that start at once
        check_owner(folder, owner)
        if mark.exists():
            return
        try:
            with whole_file(mark) as growing:
                growing.write_text(owner, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{mark}: cannot be written: {error.strerror}") from error


def _shown(folder: Path, owner: str) -> str:
    study = owner.endswith(".toml")
    return in_short(os.path.relpath(folder.resolve() / owner)) if study else quoted(owner)


_QUESTION = ("scenario", "trains")  # what a run answers; the rest of a stamp is by what means it did


@dataclass(frozen=True)
class Planned:
    """A cell, its run folder, its scenario as a table that processes can hand on, and what the run depends on.

    `warnings`: about the scenario, as `validate` gives them.
    """

    cell: StudyCell
    folder: Path
    scenario: dict[str, Any]
    stamp: dict[str, Any]
    learning: str = ""  # equal in cells that are likely to train the same; "": it shares nothing
    warnings: tuple[str, ...] = ()

    def kept(self) -> Run | None:
        """Return the run that answers this cell, by whatever code or data; None if it is missing, other or broken."""
        found = _stamp_in(self.folder)
        same = found is not None and all(found.get(key) == self.stamp[key] for key in _QUESTION)
        return open_run(self.folder).views[0] if same else None

    def is_done(self) -> bool:
        """Return whether the folder holds this run, all of it, and nothing that its stamp names has changed."""
        found = _stamp_in(self.folder)
        return found is not None and self.stamp.items() <= found.items()


def folder_of(file: Path, size: str) -> Path:
    """Return where the runs of a study lie if nobody says otherwise, below the current folder."""
    return Path("runs") / "studies" / file.stem / size


def plan(study: Study, file: Path, size: str, only: Sequence[str], out: Path) -> list[Planned]:
    """Return the cells of a study in this size with their run folders below `out`; no data set is loaded.

    Those of a search are the trials that stand there. Raises ConfigError if there are none.
    """
    planned = []
    study = with_trials(study, out)
    for cell in study.cells(size, only):
        scenario = study.scenario(file.parent, cell, size)
        stamp, learning = stamp_of(scenario), learning_of(scenario)
        warnings = tuple(of_text(scenario, study.layers(file.parent, cell, size)))
        planned.append(Planned(cell, out / cell.name, _alone(scenario), stamp, learning, warnings))
    return planned


class Step(NamedTuple):
    """A cell that has ended, None at the start, with what went wrong ("": nothing); and those at work from then on.

    `elsewhere`: it has not ended, another process is at it.
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
    """Run cells in so many processes, one thread each; yield a step at the start and as each cell ends.

    `pool`: the processes, which have called `share`; None: this one, or some of this machine that end with the cells.
    A cell that another process is at is waited for at the end, and run if that has not made it. With `checkpoint_s` a
    cell is saved every so many seconds of the host; one that was cut off goes on, if nothing that its stamp names has
    changed. What cells have in common is computed once, unless they are to be `fresh`. Raises EdgesimError if a process
    died.
    """
    _COMMON.clear()
    step = partial(_run, checkpoint_s=checkpoint_s, fresh=fresh)
    busy = yield from _steps(apart(planned) if fresh else planned, workers, pool, step)
    yield from _steps(busy, workers, pool, partial(step, wait=True))


def fault_of(error: Exception) -> str:
    """Return what went wrong as one line; what no user is told of otherwise, such as an error of a part, is shown."""
    if found := told(error):
        print(found.frames, end="", file=sys.stderr)
        return one_line(found.line)
    traceback.print_exception(error)
    return f"{type(error).__name__}: {in_short(error)}"


def _steps(
    cells: Sequence[Planned], workers: int, pool: Pool | None, run: Callable[[Planned], str | None]
) -> Generator[Step, None, list[Planned]]:
    """Yield the steps of one pass over cells, and return those that were left alone.

    `run` returns None for a cell that another process is at.
    """
    if not cells:
        return []
    if pool is None and workers > 1:
        pool = ProcessPool("--workers", workers, doing=name_of)
    turns = Turns(cells)
    yield from _in_turn(cells, turns, run) if pool is None else _at_once(cells, turns, pool, run)
    return [cells[place] for place in turns.left_alone]


def _in_turn(cells: Sequence[Planned], turns: Turns, run: Callable[[Planned], str | None]) -> Iterator[Step]:
    place = turns.next()
    yield Step(None, "", False, cells[:1])
    while place is not None:
        ended, fault = cells[place], run(cells[place])
        turns.end(place, elsewhere=fault is None)
        place = turns.next()
        yield Step(ended, fault or "", fault is None, [] if place is None else [cells[place]])


def _at_once(
    cells: Sequence[Planned], turns: Turns, pool: Pool, run: Callable[[Planned], str | None]
) -> Iterator[Step]:
    running: dict[int, Planned] = {}

    def hand_out() -> list[Planned]:
        while pool.has_room() and (place := turns.next()) is not None:
            running[place] = cells[place]
            pool.give(place, run, cells[place])
        return list(running.values())

    try:
        yield Step(None, "", False, hand_out())
        for place, fault in _ends(pool):
            turns.end(place, elsewhere=fault is None)
            yield Step(running.pop(place), fault or "", fault is None, hand_out())
    finally:
        pool.close()


def _ends(pool: Pool) -> Iterator[tuple[int, str | None]]:
    while ended := pool.take(wait=True):
        for place, fault in ended:
            if isinstance(fault, Exception):
                raise fault
            yield place, fault


def _alone(scenario: Scenario) -> dict[str, Any]:
    """Return a scenario as a table, whose training is done by one process: cells are what runs side by side."""
    backend = scenario.backend.value
    return scenario.canonical() | ({"backend": backend.alone()} if hasattr(backend, "alone") else {})


def _run(planned: Planned, checkpoint_s: float | None, fresh: bool, wait: bool = False) -> str | None:
    """Return what went wrong with a cell ("": nothing), None if another process is at it and was not waited for."""
    try:
        with hold(planned.folder, wait):
            if fresh or not planned.is_done():  # else another process has made it meanwhile
                _make(planned, checkpoint_s, fresh)
        return ""
    except FolderBusy:
        return None
    except OSError as error:
        return f"{planned.folder}: cannot be made: {error}"
    except Exception as error:
        return fault_of(error)


def growing_folder(folder: Path) -> Path:
    """Return where the run of a cell is written until it is done and takes its place, which may hold an older one."""
    return folder.parent / f".{folder.name}.growing"


def _make(planned: Planned, checkpoint_s: float | None, fresh: bool) -> None:
    from edgesim.execution.checkpoint import Checkpoint  # these load torch, which a look at finished runs does not need
    from edgesim.execution.result_cache import Answers
    from edgesim.runs.simulate import simulate

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
        common, scenario = _common(), load_scenario(planned.scenario)
        before = stamp_of(scenario)  # of the code that this process has
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


_COMMON: list[Common] = []  # what the cells of one `run_all` have in common, in each of its processes


def share(common: Common) -> None:
    """Let the cells that this process runs have this in common."""
    _COMMON[:] = [common]


def name_of(planned: Planned) -> str:
    """Return the name of a cell."""
    return planned.cell.name


def _common() -> Common:
    if not _COMMON:
        from edgesim.studies.shared import Common

        share(Common())
    return _COMMON[0]


def _stamp_in(folder: Path) -> dict[str, Any] | None:
    """Return the stamp of a finished run, None where a run is missing or half-written: no table is taken on trust."""
    try:
        stamp = dict(from_json(read_text(folder / STAMP, ConfigError)))
        run = open_run(folder)
        whole = run.manifest["status"] == "finished" and all(run.table(table) is not None for table in TABLES)
    except (ValueError, TypeError, ConfigError):  # no JSON, no table, no whole run
        return None
    return stamp if whole else None
