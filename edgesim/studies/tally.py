"""How far a study is, and how long the rest will take on this host, by the cells that have ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from edgesim.reports.load import open_run
from edgesim.reports.readable import text
from edgesim.studies.runs import Planned, Step


class HostTimes:
    """Host seconds of the runs of a study, by the labels of their cells."""

    def __init__(self, done: Iterable[Planned] = ()) -> None:
        self._of_group: dict[str, list[float]] = {}
        for each in done:
            self.add(each)

    def add(self, done: Planned) -> None:
        """Take the time of a run that has ended."""
        host_s = float(open_run(done.folder).manifest["host_s"])
        self._of_group.setdefault(str(done.cell.group), []).append(host_s)

    def left_s(self, cells: Sequence[Planned], workers: int) -> float | None:
        """Return about how long cells will take, so many at a time; None if no run has ended yet.

        A cell is thought to take as long as those of other seeds did, or as all did if there is none.
        """
        if not self._of_group:
            return None
        of_all = [host_s for times in self._of_group.values() for host_s in times]
        each_s = [np.mean(self._of_group.get(str(cell.cell.group), of_all)) for cell in cells]
        return float(max([sum(each_s) / workers, *each_s]))


class Tally:
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
