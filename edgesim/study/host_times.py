"""How long the cells of a study take on this host, by those that have ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from edgesim.analysis.load import open_run
from edgesim.study.runs import Planned


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
