"""How far a study is, and how long the rest will take on this host, by the cells that have ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from edgesim.reports.format import text
from edgesim.reports.load import open_run
from edgesim.studies.runs import Planned, Step


class HostTimes:
    """Host seconds of the runs of a study, by the labels of their cells and by whether they were trained."""

    def __init__(self, done: Iterable[Planned] = ()) -> None:
        self._of: dict[tuple[bool, str], list[float]] = {}
        self._learned = set[str]()  # what cells that ended have learned
        for each in done:
            self.add(each)

    def add(self, done: Planned) -> None:
        """Take the time of a run that has ended."""
        manifest = open_run(done.folder).manifest
        trained = not done.learning or bool(manifest["known"]["jobs"])
        self._of.setdefault((trained, str(done.cell.group)), []).append(float(manifest["host_s"]))
        self._learned.add(done.learning)

    def left_s(self, cells: Sequence[Planned], workers: int) -> float | None:
        """Return about how long cells will take, so many at a time; None if no run has ended yet.

        A cell is thought to take as long as those of other seeds did, or as all did if there is none; of cells that are
        likely to train the same only the first as long as one that was trained, the others as one that was not.
        """
        if not self._of:
            return None
        usual_s = {False: self._mean_s(False), True: self._mean_s(True) or self._mean_s(False)}
        each_s = []
        learned = set(self._learned)
        for cell in cells:
            trains = not cell.learning or cell.learning not in learned
            learned.add(cell.learning)
            each_s.append(np.mean(self._of.get((trains, str(cell.cell.group)), usual_s[trains])))
        return float(max([sum(each_s) / workers, *each_s]))

    def _mean_s(self, trained: bool) -> float:
        """Return the mean over all runs of a kind, 0 if none has ended."""
        times = [host_s for (kind, _), of_group in self._of.items() if kind == trained for host_s in of_group]
        return float(np.mean(times)) if times else 0.0


class StudyProgress:
    """What has become of the cells that were missing. `failed`: a line for each that failed, its name and why."""

    def __init__(self, missing: Sequence[Planned], done: Iterable[Planned], workers: int) -> None:
        self.failed: list[str] = []
        self._left = {each.folder: each for each in missing}
        self._cells = len(missing)
        self._times = HostTimes(done)
        self._workers = workers

    def take(self, step: Step) -> str:
        """Return a line about a step: what has ended, what is at work, how many are left and about how long."""
        if step.ended and not step.elsewhere:
            del self._left[step.ended.folder]
            if step.fault:
                self.failed.append(f"{step.ended.cell.name}: {step.fault}")
            else:
                self._times.add(step.ended)
        return "; ".join(part for part in (self._ended(step), *self._ahead(step.running)) if part)

    def _ended(self, step: Step) -> str:
        if step.ended is None:
            return ""
        name = step.ended.cell.name
        if step.elsewhere:
            return f"{name}: another process is at it, looked at again at the end"
        count = f"{self._cells - len(self._left)} of {self._cells}"
        return f"{count}: {name}{f' failed: {step.fault}' if step.fault else ''}"

    def _ahead(self, running: Sequence[Planned]) -> list[str]:
        if not self._left:
            return []
        left_s = self._times.left_s([*self._left.values()], self._workers)
        about = "" if left_s is None else f", about {text('host_s', left_s)}"
        names = ", ".join(each.cell.name for each in running)
        return [names and f"running: {names}", f"{len(self._left)} left{about}"]
