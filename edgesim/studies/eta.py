"""Progress of a study, and an estimate of the remaining host time from the cells that have ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from edgesim.reports.format import text
from edgesim.reports.load import open_run
from edgesim.runs.host_memory import resident_bytes
from edgesim.studies.runs import Planned, Step


class HostTimes:
    """Host seconds of the runs of a study, by the labels of their cells and by whether they were trained."""

    def __init__(self, done: Iterable[Planned] = ()) -> None:
        self._of: dict[tuple[bool, str], list[float]] = {}
        self._learned = set[str]()  # `learning` of the cells that have ended
        for each in done:
            self.add(each)

    def add(self, done: Planned) -> None:
        """Add the time of a run that has ended."""
        manifest = open_run(done.folder).manifest
        trained = not done.learning or bool(manifest["known"]["jobs"])
        self._of.setdefault((trained, str(done.cell.group)), []).append(float(manifest["host_s"]))
        self._learned.add(done.learning)

    def left_s(
        self, cells: Sequence[Planned], workers: int, spent_s: Mapping[Path, float] | None = None
    ) -> float | None:
        """Return the estimated seconds of cells in `workers` processes; None if no run has ended yet.

        The estimate of a cell is the mean over cells that differ only in the seed, or else over all cells. Running
        cells that have already taken longer than this mean are part of it. Of cells that are likely to train the same,
        only the first takes the time of a trained cell. `spent_s`: seconds that cells have run for so far, by folder.
        """
        if not self._of:
            return None
        answered_s = self._all_s(False) or [0.0]
        usual_s = {False: answered_s, True: self._all_s(True) or answered_s}
        of_cells: list[tuple[list[float], float]] = []  # times of such cells, and the seconds spent so far
        learned = set(self._learned)
        for cell in cells:
            trains = not cell.learning or cell.learning not in learned
            learned.add(cell.learning)
            so_far_s = (spent_s or {}).get(cell.folder, 0.0)
            times_s = self._of.get((trains, str(cell.cell.group)))
            if times_s is None:
                times_s = usual_s[trains]
                if so_far_s > np.mean(times_s):
                    times_s.append(so_far_s)
            of_cells.append((times_s, so_far_s))
        each_s = [max(0.0, float(np.mean(times_s)) - so_far_s) for times_s, so_far_s in of_cells]
        return float(max([sum(each_s) / workers, *each_s]))

    def _all_s(self, trained: bool) -> list[float]:
        """Return the seconds of all runs that trained, or did not."""
        return [host_s for (kind, _), of_group in self._of.items() if kind == trained for host_s in of_group]


class StudyProgress:
    """Progress of the missing cells. `failed`: a line with name and reason for each cell that failed."""

    def __init__(
        self,
        missing: Sequence[Planned],
        done: Iterable[Planned],
        workers: int,
        clock_s: Callable[[], float] = time.perf_counter,
        memory_bytes: Callable[[], int | None] = resident_bytes,
    ) -> None:
        """`clock_s`: a host clock. `memory_bytes`: returns the memory in use, None if it is unknown."""
        self._clock_s = clock_s
        self._memory_bytes = memory_bytes
        self._began_s: dict[Path, float] = {}  # of the running cells
        self.failed: list[str] = []
        self._left = {each.folder: each for each in missing}
        self._cells = len(missing)
        self._times = HostTimes(done)
        self._workers = workers

    def take(self, step: Step) -> str:
        """Return a line about a step: the ended cell, running cells, cells left with their time, and memory."""
        now_s = self._clock_s()
        self._began_s = {each.folder: self._began_s.get(each.folder, now_s) for each in step.running}
        if step.ended and not step.elsewhere:
            del self._left[step.ended.folder]
            if step.fault:
                self.failed.append(f"{step.ended.cell.name}: {step.fault}")
            else:
                self._times.add(step.ended)
        parts = []
        if step.ended and step.elsewhere:
            parts.append(f"{step.ended.cell.name}: another process is at it, looked at again at the end")
        elif step.ended:
            failed = f" failed: {step.fault}" if step.fault else ""
            parts.append(f"{self._cells - len(self._left)} of {self._cells}: {step.ended.cell.name}{failed}")
        if self._left and step.running:
            parts.append(f"running: {', '.join(each.cell.name for each in step.running)}")
        if self._left:
            spent_s = {folder: now_s - began_s for folder, began_s in self._began_s.items()}
            left_s = self._times.left_s([*self._left.values()], self._workers, spent_s)
            about = "" if left_s is None else f", about {text('host_s', left_s)}"
            nbytes = self._memory_bytes()
            memory = "" if nbytes is None else f", memory {text('memory_bytes', nbytes)}"
            parts.append(f"{len(self._left)} left{about}{memory}")
        return "; ".join(parts)
