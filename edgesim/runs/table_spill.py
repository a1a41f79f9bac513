"""Move final rows of a training's tables to the run folder, so that the tables in memory stay short.

Kept in memory of moved rows: the number of jobs of each device, their joules, and the critical paths of rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from edgesim.core.arrays import Ids
from edgesim.core.errors import ConfigError
from edgesim.core.job import DELIVERED
from edgesim.engine.rounds import Observer
from edgesim.records.schema import PART_ROWS, TABLES
from edgesim.records.table import Table

if TYPE_CHECKING:
    import pandas as pd

    from edgesim.records.writer import Part, RunFolder
    from edgesim.runs.training import RunningTraining


@dataclass(frozen=True)
class JobCounts:
    """Number of jobs of each device, number of delivered jobs, and the joules of all jobs."""

    jobs: Ids  # shape (devices,)
    ok_jobs: Ids  # shape (devices,)
    joules: float

    @classmethod
    def of(cls, jobs: Table, since: int, until: int | None, devices: int) -> JobCounts:
        """Return the counts of the rows from `since` to `until`, exclusive (None: to the end)."""
        import pandas as pd  # slow to import; checking a scenario does not need it

        device = jobs.column("device", since, until)
        delivered = pd.Series(jobs.column("outcome", since, until)).isin(DELIVERED).to_numpy()
        joules = sum(jobs.column(name, since, until).sum() for name in ("down_j", "compute_j", "up_j", "peer_j"))
        asked, ok = (np.bincount(some, minlength=devices) for some in (device, device[delivered]))
        return cls(asked, ok, float(joules))

    def __add__(self, more: JobCounts) -> JobCounts:
        return JobCounts(self.jobs + more.jobs, self.ok_jobs + more.ok_jobs, self.joules + more.joules)


@dataclass(frozen=True)
class Released:
    """Rows that are no longer in the tables: their parts in the run folder, and sums over them.

    It is replaced as a whole, so that a run that is cut off at any instant has every row once.
    """

    parts: Mapping[str, tuple[Part, ...]] = field(default_factory=lambda: dict.fromkeys(TABLES, ()))
    counts: JobCounts | None = None  # of the jobs in parts; None: no jobs there
    # Rounds that no later job can belong to, with their critical paths; they follow the rounds in parts.
    rounds: pd.DataFrame | None = None
    jobs: pd.DataFrame | None = None  # jobs in parts that belong to a later round than these
    limit_s: float = -np.inf  # end of the last of these rounds, in simulated seconds
    round: int = -1  # number of the last of these rounds

    def rows(self, table: str) -> int:
        """Return the number of released rows of a table."""
        waiting = 0 if table != "rounds" or self.rounds is None else len(self.rounds)
        return PART_ROWS * len(self.parts[table]) + waiting

    def frames(self, tables: Mapping[str, Table], committed_only: bool) -> dict[str, pd.DataFrame]:
        """Return the rows that follow those in parts; rounds have their critical paths."""
        from edgesim.reports.critical_path import attributed  # loads pandas

        rest = {name: table.frame(committed_only, since=self.rows(name)) for name, table in tables.items()}
        rounds = attributed(self._open_jobs(rest["jobs"]), rest["rounds"])
        return {**rest, "rounds": _joined(self.rounds, rounds)}

    def job_counts(self, jobs: Table, devices: int, committed_only: bool = False) -> JobCounts:
        """Return the counts of all jobs, released or not; `committed_only`: without those after the last commit."""
        until = jobs.committed if committed_only else None
        held = JobCounts.of(jobs, self.rows("jobs"), until, devices)
        return held if self.counts is None else self.counts + held

    def with_part(self, table: str, part: Part) -> Released:
        """Return a copy with another part."""
        return replace(self, parts={**self.parts, table: (*self.parts[table], part)})

    def with_jobs(self, part: Part, jobs: Table, devices: int) -> Released:
        """Return a copy with `part`, which holds the next jobs of this table."""
        since = self.rows("jobs")
        until = since + PART_ROWS
        counts = JobCounts.of(jobs, since, until, devices)
        counts = counts if self.counts is None else self.counts + counts
        open_jobs = self._open_jobs(jobs.frame(since=since, until=until))
        return replace(self.with_part("jobs", part), counts=counts, jobs=open_jobs)

    def with_rounds(self, tables: Mapping[str, Table]) -> Released:
        """Return a copy with the committed rounds that no later job can belong to."""
        from edgesim.reports.critical_path import attributed, round_limits_s  # loads pandas

        rounds = tables["rounds"].frame(committed_only=True, since=self.rows("rounds"))
        limits_s = round_limits_s(rounds)
        # Jobs end in the order of their rows, and a round commits all jobs that ended before it was closed.
        count = int(np.searchsorted(limits_s, rounds["now_s"].iloc[-1])) if len(rounds) else 0
        if not count:
            return self
        jobs = self._open_jobs(tables["jobs"].frame(committed_only=True, since=self.rows("jobs")))
        found = _joined(self.rounds, attributed(jobs, rounds[:count]))
        now = replace(
            self, rounds=found, limit_s=float(limits_s[count - 1]), round=int(rounds["round"].iloc[count - 1])
        )
        return replace(now, jobs=None if self.jobs is None else now._still_open(self.jobs))

    def without_rounds(self, part: Part) -> Released:
        """Return a copy whose first rounds have moved to `part`."""
        assert self.rounds is not None
        return replace(self.with_part("rounds", part), rounds=self.rounds[PART_ROWS:].reset_index(drop=True))

    def _open_jobs(self, jobs: pd.DataFrame) -> pd.DataFrame:
        """Return the released jobs of open rounds, followed by the jobs of open rounds among `jobs`, the next rows."""
        return _joined(self.jobs, self._still_open(jobs))

    def _still_open(self, jobs: pd.DataFrame) -> pd.DataFrame:
        if self.round < 0:
            return jobs
        return jobs[(jobs["end_s"] > self.limit_s) | (jobs["round"] > self.round)]


class Releasing:
    """An observer that moves final rows to the run folder, part by part, and passes rounds on to another observer."""

    def __init__(self, training: RunningTraining, observer: Observer) -> None:
        self.folder: RunFolder | None = None  # where rows are moved; None: they stay in memory
        self._training = training
        self._observer = observer
        self._due = dict.fromkeys(training.tables, PART_ROWS)  # committed rows in memory at which a part is due

    def round_closed(self, info: Mapping[str, Any]) -> None:
        """Move rows that fill a part, then tell the observer."""
        if self.folder is not None:
            for name in self._due:
                if self._held(name) >= self._due[name]:
                    self._release(name, self.folder)
        self._observer.round_closed(info)

    def _held(self, name: str) -> int:
        return self._training.tables[name].committed - PART_ROWS * len(self._training.released.parts[name])

    def _release(self, name: str, folder: RunFolder) -> None:
        training = self._training
        with suppress(ConfigError):  # such as a full disk: the rows stay here, and the last write raises the error
            if name in ("jobs", "rounds"):
                training.released = training.released.with_rounds(training.tables)
                training.tables["rounds"].release(training.released.rows("rounds"))
            if name != "rounds":
                self._release_rows(name, folder)
            while name == "rounds" and (rounds := training.released.rounds) is not None and len(rounds) >= PART_ROWS:
                part = self._part(folder, "rounds", rounds[:PART_ROWS])
                training.released = training.released.without_rounds(part)
        held = self._held(name)
        self._due[name] = held + PART_ROWS // 4 if held >= PART_ROWS else PART_ROWS  # retry once there are more rows

    def _release_rows(self, name: str, folder: RunFolder) -> None:
        training, table = self._training, self._training.tables[name]
        buffers = [each.server_buffer for each in training.sessions if each.rows is table]
        amendable = [row for buffer in buffers if (row := buffer.first_row) is not None]  # rows that may still change
        final = min([table.committed, *amendable])
        while final - (since := training.released.rows(name)) >= PART_ROWS:
            part = self._part(folder, name, table.frame(since=since, until=since + PART_ROWS))
            if name == "jobs":
                training.released = training.released.with_jobs(part, table, len(training.parts.fleet))
            else:
                training.released = training.released.with_part(name, part)
            table.release(since + PART_ROWS)

    def _part(self, folder: RunFolder, name: str, rows: pd.DataFrame) -> Part:
        return folder.add_part(name, rows.assign(session=self._training.name))


def _joined(first: pd.DataFrame | None, second: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd  # slow to import, as above

    some = [frame for frame in (first, second) if frame is not None and len(frame)]
    return pd.concat(some, ignore_index=True) if len(some) > 1 else (some or [second])[0]
