"""Reads a run folder. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from safetensors.numpy import load

from edgesim.core.errors import ConfigError
from edgesim.core.job import ONE_SESSION
from edgesim.core.metrics import ACCURACY, Better
from edgesim.files.reading import quoted, reading
from edgesim.records.checked import check_devices, check_rounds, read_table
from edgesim.records.manifest import MANIFEST, RUNNING, files_of, lies, read_file, read_manifest
from edgesim.records.schema import TABLES

if TYPE_CHECKING:
    from rich.table import Table

    from edgesim.reports.figures import Drawing

_LOOKS = 5  # at a run that goes on: each of its states is there for seconds


@dataclass(frozen=True)
class Run:
    """A run. Tables are read when first asked for; columns and units are those of edgesim.records.schema.

    Of a run of several sessions `session` gives one, of which all is told as of a run; only `devices`, and joules and
    money, are those of the whole world. Without that choice rounds, jobs and what follows from them are refused.
    """

    folder: Path
    chosen: str | None = None  # the session that is looked at; None: all

    @property
    def name(self) -> str:
        """Return the folder's name: unlike the scenario's it tells runs of one scenario apart. Then the session's."""
        own = self.folder.resolve().name
        return own if self.chosen is None else f"{own}:{self.chosen}"

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """Return what manifest.json says: scenario, versions, status, host seconds, the SHA-256 of each file.

        The status of a run that ended without a word, as by SIGKILL, is "cut off". Of a session its scenario, reason to
        stop and totals are its own. Raises ConfigError if it is damaged.
        """
        if self._of is not None:
            whole = self._of.manifest
            return {**whole, **whole["sessions"][self.chosen]}
        whole = read_manifest(self.folder)
        sessions = whole.get("sessions") or {}
        return {**whole, **next(iter(sessions.values()))} if len(sessions) == 1 else whole

    @cached_property
    def sessions(self) -> tuple[str, ...]:
        """Return the names of the trainings of the run, in the order of its scenario."""
        return tuple((self.manifest if self._of is None else self._of.manifest).get("sessions") or (ONE_SESSION,))

    @property
    def views(self) -> tuple[Run, ...]:
        """Return each session of the run, or of a run of one training, as of a session, the run itself."""
        return (self,) if self.chosen or len(self.sessions) == 1 else tuple(map(self.session, self.sessions))

    def session(self, name: str) -> Run:
        """Return the run as one of its sessions saw it. Raises ConfigError if it has no session of this name."""
        whole = self._of or self
        if name not in whole.sessions:
            raise ConfigError(f"{whole.name}: has no session {quoted(name)} (there are {', '.join(whole.sessions)})")
        if len(whole.sessions) == 1:
            return whole
        found = Run(self.folder, name)
        vars(found)["_of"] = whole
        return found

    @cached_property
    def _of(self) -> Run | None:
        """The run whose session this is; None: it is a run."""
        return None if self.chosen is None else Run(self.folder)

    @property
    def status(self) -> str:
        """Return how far the run got, as its manifest says: finished, interrupted, failed, ..."""
        return str(self.manifest.get("status", "of unknown status"))

    @property
    def finished(self) -> bool:
        """Return whether the run came to its end, so that its numbers are those of the whole run."""
        return self.status == "finished"

    @cached_property
    def method(self) -> str:
        """Return the method's name."""
        return str(self.manifest["scenario"]["method"]["name"])

    @cached_property
    def seed(self) -> int:
        """Return the seed that the scenario fixed."""
        return int(self.manifest["scenario"]["seed"])

    @cached_property
    def learned_by(self) -> str:
        """Return the name of the network that learned."""
        return str(self.manifest["scenario"]["model"]["name"])

    @cached_property
    def is_priced(self) -> bool:
        """Return whether the scenario has prices, so that money and carbon are known."""
        return bool(self.manifest["scenario"].get("prices"))

    @cached_property
    def charged_as(self) -> str | None:
        """Return what seconds, bytes and joules are those of, in words, where that is not the network that learned."""
        return self.manifest.get("charged_as")

    @cached_property
    def targets(self) -> tuple[float, ...]:
        """Return the scenario's target accuracies, as fractions."""
        return tuple(float(target) for target in self.manifest["scenario"]["evaluation"]["targets"])

    @cached_property
    def metric_targets(self) -> tuple[tuple[str, float], ...]:
        """Return the scenario's other targets, as pairs of a metric and its value."""
        targets = self.manifest["scenario"]["evaluation"].get("metric_targets", {})
        return tuple((name, float(value)) for name, values in targets.items() for value in values)

    @cached_property
    def goal(self) -> str:
        """Return the metric by which models of the run are compared."""
        return str(self.manifest.get("goal", ACCURACY))

    @cached_property
    def better(self) -> dict[str, Better]:
        """Return which numbers are better of all metrics that were evaluated, accuracy and loss among them."""
        return {"accuracy": "higher", "loss": "lower", **self.manifest.get("metrics", {})}

    @cached_property
    def jobs(self) -> pd.DataFrame:
        """Return one row a job."""
        return self._own("jobs")

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """Return one row a closed round."""
        return self._own("rounds")

    @cached_property
    def evals(self) -> pd.DataFrame:
        """Return one row an evaluation and split."""
        return self._own("evals")

    @cached_property
    def devices(self) -> pd.DataFrame:
        """Return one row a device, the server as device -1."""
        return self.table("devices")

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """Return one row a metric of the method."""
        return self._own("metrics")

    @cached_property
    def costs(self) -> pd.DataFrame:
        """Return one row an item and closed round that money or carbon went to; none without prices."""
        return self._own("costs")

    @cached_property
    def edges(self) -> pd.DataFrame:
        """Return one row an order of the server to an edge server; none without edge servers."""
        return self._own("edges")

    def accuracy_curve(self, split: str = "test") -> pd.DataFrame:
        """Return a row an evaluation: rounds done, what had been spent by then, loss, accuracy and metrics of a split.

        Columns: round, sim_time_s, energy_j, active_j, idle_j, participant_j, energy_network_j, energy_server_j,
        up_bytes, down_bytes, flops, loss, accuracy, and those of the objective by name. `split`: test, or with
        `evaluation.personal` also personal and personal_worst; of a split that was not evaluated there are no rows.
        """
        from edgesim.reports.stats import curve

        return curve(self, split)

    def until(self, target: float, for_good: bool = False, metric: str = ACCURACY) -> dict[str, Any] | None:
        """Return what it took until a test accuracy or metric was first reached, or from when on it stayed, by name.

        Keys: round (rounds done), sim_time_s, energy_j, active_j, idle_j, participant_j, energy_network_j,
        energy_server_j, up_bytes, down_bytes. None if the run did not get there.
        """
        from edgesim.reports.stats import curve, first_crossing, last_crossing

        return (last_crossing if for_good else first_crossing)(curve(self), target, metric, self.better[metric])

    def summary(self) -> dict[str, Any]:
        """Return the run in one object of plain numbers, as `edgesim table --json` prints it.

        Keys: method, status, rounds, accuracy, best_accuracy, sim_time_s, energy_j, active_j, idle_j, participant_j,
        energy_network_j, energy_server_j, up_bytes, down_bytes, flops, host_s, diverged, targets.
        """
        from edgesim.reports.stats import summary

        return summary(self)

    def energy_by_activity(self) -> pd.Series[float]:
        """Return joules of the devices by activity, the largest first: compute, receive, transmit, idle, sleep."""
        return self.energy_by("activity")["joules"]

    def energy_by(self, *keys: str) -> pd.DataFrame:
        """Return joules of the devices and their shares by one or several keys (the index), the largest first.

        Keys: device, kind, component, activity, job, round; the latter two count from 0, and are -1 where joules belong
        to none. With the key account there are also the rows of the network and the server (device -1), and shares are
        those of an account. Raises ConfigError for another key.
        """
        from edgesim.reports.energy import energy_by

        return energy_by(self, *keys)

    def participation(self, each: bool = False) -> pd.DataFrame:
        """Return a row a kind of device, or with `each` a row a device: jobs, late share, mean times, bytes, joules."""
        from edgesim.reports.participation import participation

        return participation(self, each)

    @property
    def saved_weights(self) -> list[str]:
        """Return the names that `weights` accepts; none after a run that trained nothing."""
        names = (name.removesuffix(".safetensors") for name in self.manifest["files"] if name.endswith(".safetensors"))
        before = self._before_weights
        return sorted(name.removeprefix(before) for name in names if name.startswith(before))

    @property
    def _before_weights(self) -> str:
        """What the names of the weights begin with; "": those of all sessions are meant, or it has none."""
        if self.chosen is None and len(self.sessions) > 1:
            return ""
        return f"{self.chosen or self.sessions[0]}." if self.manifest.get("sessions") else ""

    def weights(self, which: str = "final") -> dict[str, np.ndarray]:
        """Return the saved global model "final" or "best", arrays by name; of a run of sessions "NAME.final".

        Raises ConfigError if it was not saved or cannot be read.
        """
        path = self.folder / f"{self._before_weights}{which}.safetensors"
        if which not in self.saved_weights:
            raise ConfigError(f"{path}: not saved; this run has {', '.join(self.saved_weights) or 'no weights'}")
        content = self._content(path.name)
        with reading(path, "safetensors file", ConfigError):
            return dict(load(content))

    def plot(self, against: Sequence[str] = ("time", "energy", "rounds"), title: str = "") -> Drawing:
        """Return a figure of test accuracy against each of `against`, side by side, which notebooks show.

        They are time, energy, active, participants, bytes, up, down, flops, rounds. `savefig` of the figure writes it.
        Raises ConfigError for any other, and if nothing was evaluated.
        """
        from edgesim.reports.plots import draw_runs

        return draw_runs([self], against, title=title)

    def __repr__(self) -> str:
        try:
            said = f"{self.method}, seed {self.seed}, {self.status} after {self.manifest['rounds']} rounds"
        except ConfigError as error:
            return f"<run {self.name!r} that cannot be read: {error}>"
        return f"<run {self.name!r}: {said}; in {self.folder}>"

    def __rich__(self) -> Table:
        from edgesim.reports.format import facts_of, rich_table

        return rich_table(self.name, [], facts_of(self))

    def _repr_html_(self) -> str:
        from edgesim.reports.format import facts_of, html_table

        return html_table(self.name, [], facts_of(self))

    def table(self, table: str) -> pd.DataFrame:
        """Return a table by name, of a run of several sessions with the rows of all of them.

        Raises ConfigError if its file is damaged, or does not go with the others.
        """
        if self._of is not None:
            rows = self._of.table(table)
            return rows[rows["session"] == self.chosen].reset_index(drop=True) if "session" in rows else rows
        if table not in self._read:
            self._read[table] = self._whole(table)
        return self._read[table]

    def read(self, tables: Iterable[str]) -> None:
        """Read tables now. Raises ConfigError as `table`."""
        for table in tables:
            self.table(table)

    @cached_property
    def _read(self) -> dict[str, pd.DataFrame]:
        """The tables that have been read."""
        return {}

    def _own(self, table: str) -> pd.DataFrame:
        """Return the rows of the one session. Raises ConfigError if there are several, and none is chosen."""
        if self.chosen is None and len(self.sessions) > 1:
            raise ConfigError(f"{self.name}: has the sessions {', '.join(self.sessions)}; look at one of them")
        return self.table(table)

    def _whole(self, table: str) -> pd.DataFrame:
        names = files_of(table, self.manifest)
        if not names:
            return pd.DataFrame({name: pd.Series(dtype=dtype) for name, dtype in TABLES[table].items()})
        frame = read_table(table, {self.folder / name: self._content(name) for name in names})
        check_devices(table, frame, frame if table == "devices" else self.devices, self.folder / names[-1])
        if table == "evals":
            check_rounds(frame, self.table("rounds"), self.folder / names[-1])
        return frame

    def _content(self, name: str) -> bytes:
        with reading(self.folder / name, "file", ConfigError):
            return read_file(self.folder, name, self.manifest["files"])


def open_run(path: str | Path, tables: Iterable[str] = TABLES) -> Run:
    """Return the run in a folder. Raises ConfigError if it is not a run folder or a table is missing.

    Of a run that goes on these tables, or all, are read at once, so that they are of one moment; its status is
    "running".
    """
    folder = Path(path)
    _check_complete(folder)
    for _ in range(_LOOKS):
        run = Run(folder)
        try:
            if run.manifest.get("status") == RUNNING:
                run.read(tables)
            break
        except ConfigError:  # it may have gone on between two files
            continue
    return run


def _check_complete(folder: Path) -> None:
    """Raise ConfigError if a folder has no manifest, or not the tables that it names."""
    has_manifest = (folder / MANIFEST).is_file()
    manifest = read_manifest(folder) if has_manifest else {}
    wanted = [MANIFEST, *(name for table in TABLES for name in files_of(table, manifest))]
    missing = [name for name in wanted if not lies(folder, name)]
    if missing:
        raise ConfigError(f"{folder}: not a run folder: no {', '.join(missing)}")
