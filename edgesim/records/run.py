"""A run as its folder recorded it: how run folders are found, and their manifest, tables and weights; no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

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

_LOOKS = 5  # attempts to read a running run, whose states last for seconds


@dataclass(frozen=True)
class RecordedRun:
    """A run. Tables are read on first use. Columns and units are those of edgesim.records.schema.

    For a run of several sessions, `session` returns one of them as a run of its own. Only its `devices`, joules and
    money are those of the whole world. Without this choice, rounds, jobs and everything derived from them are refused.
    """

    folder: Path
    chosen: str | None = None  # name of one session; None: all

    @classmethod
    def open(cls, path: str | Path, tables: Iterable[str] = TABLES) -> Self:
        """Return the run in a folder. Raises ConfigError if it is not a run folder or a table is missing.

        If the run is still running, these tables (default: all) are read at once, so that they are of one moment. Its
        status is then "running".
        """
        folder = Path(path)
        manifest = read_manifest(folder) if (folder / MANIFEST).is_file() else {}
        wanted = [MANIFEST, *(name for table in TABLES for name in files_of(table, manifest))]
        missing = [name for name in wanted if not lies(folder, name)]
        if missing:
            raise ConfigError(f"{folder}: not a run folder: no {', '.join(missing)}")
        for _ in range(_LOOKS):
            run = cls(folder)
            try:
                if run.manifest.get("status") == RUNNING:
                    run.read(tables)
                break
            except ConfigError:  # the next state may have replaced files in between
                continue
        return run

    @classmethod
    def find(cls, named: Iterable[Path]) -> list[Self]:
        """Return the runs that some paths name, each once, in their order.

        A path is a run folder, a folder that has run folders anywhere below it, or a pattern such as "runs/fedpmt-*".
        Runs found in a folder are in the order of names, numbers by size. Hidden folders, which are not complete yet,
        are left out. Raises ConfigError if a path names no run.
        """
        found: dict[Path, Self] = {}
        for path in named:
            is_pattern = not path.exists() and any(sign in str(path) for sign in "*?[")
            tops = [path]
            if is_pattern:
                matches = sorted(Path(path.anchor or ".").glob(str(path.relative_to(path.anchor))), key=_by_number)
                tops = [match for match in matches if not _has_hidden({*match.parts} - {*path.parts})]
            folders = []
            for top in tops:
                below = sorted((file.parent for file in top.rglob(MANIFEST)), key=_by_number)
                shown = [folder for folder in below if not _has_hidden(folder.relative_to(top).parts)]
                folders += [top] if (top / MANIFEST).is_file() else shown
            if not folders and is_pattern:
                raise ConfigError(f"{path}: matches no run folder")
            if not folders:
                cls.open(path)  # raises with what is missing
            for folder in folders:
                found.setdefault(folder.resolve(), cls.open(folder))
        return list(found.values())

    @property
    def name(self) -> str:
        """Return the folder's name, which differs among runs of one scenario, and then the session's name."""
        own = self.folder.resolve().name
        return own if self.chosen is None else f"{own}:{self.chosen}"

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """Return the content of manifest.json: scenario, versions, status, host seconds, the SHA-256 of each file.

        The status of a run that was killed, for example by SIGKILL, is "cut off". A session has its own scenario,
        reason to stop and totals. Raises ConfigError if the manifest is damaged.
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
    def views(self) -> tuple[Self, ...]:
        """Return the sessions of the run as runs. A run of one training, or a session, returns only itself."""
        return (self,) if self.chosen or len(self.sessions) == 1 else tuple(map(self.session, self.sessions))

    def session(self, name: str) -> Self:
        """Return one session of the run as a run. Raises ConfigError if it has no session of this name."""
        whole = self._of or self
        if name not in whole.sessions:
            raise ConfigError(f"{whole.name}: has no session {quoted(name)} (there are {', '.join(whole.sessions)})")
        if len(whole.sessions) == 1:
            return whole
        found = type(self)(self.folder, name)
        vars(found)["_of"] = whole
        return found

    @cached_property
    def _of(self) -> Self | None:
        """The run to which this session belongs; None for a whole run."""
        return None if self.chosen is None else type(self)(self.folder)

    @property
    def status(self) -> str:
        """Return the status in the manifest: finished, interrupted, failed, ..."""
        return str(self.manifest.get("status", "of unknown status"))

    @property
    def finished(self) -> bool:
        """Tell whether the run came to its end, so that its numbers are complete."""
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
        """Return the name of the model that was trained."""
        return str(self.manifest["scenario"]["model"]["name"])

    @cached_property
    def is_priced(self) -> bool:
        """Tell whether the scenario has prices, so that money and carbon are known."""
        return bool(self.manifest["scenario"].get("prices"))

    @cached_property
    def currency(self) -> str:
        """Return the currency of the run's prices; "" if it has no prices in money."""
        return str(self.manifest.get("currency") or "")

    @cached_property
    def charged_as(self) -> str | None:
        """Return in words the model whose seconds, bytes and joules are charged; None: the trained model itself."""
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
        """Return "higher" or "lower", whichever is better, for each evaluated metric, accuracy and loss included."""
        return {"accuracy": "higher", "loss": "lower", **self.manifest.get("metrics", {})}

    @cached_property
    def jobs(self) -> pd.DataFrame:
        """Return one row per job."""
        return self._own("jobs")

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """Return one row per closed round."""
        return self._own("rounds")

    @cached_property
    def evals(self) -> pd.DataFrame:
        """Return one row per evaluation and split."""
        return self._own("evals")

    @cached_property
    def devices(self) -> pd.DataFrame:
        """Return one row per device, the server as device -1."""
        return self.table("devices")

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """Return one row per value of a metric of the method."""
        return self._own("metrics")

    @cached_property
    def costs(self) -> pd.DataFrame:
        """Return one row per item of money or carbon and closed round; none without prices."""
        return self._own("costs")

    @cached_property
    def edges(self) -> pd.DataFrame:
        """Return one row per order of the server to an edge server; none without edge servers."""
        return self._own("edges")

    @property
    def saved_weights(self) -> list[str]:
        """Return the names that `weights` accepts; none after a run that trained nothing."""
        names = (name.removesuffix(".safetensors") for name in self.manifest["files"] if name.endswith(".safetensors"))
        before = self._before_weights
        return sorted(name.removeprefix(before) for name in names if name.startswith(before))

    @property
    def _before_weights(self) -> str:
        """Prefix of the names of the weights; "": the weights of all sessions, or there are no sessions."""
        if self.chosen is None and len(self.sessions) > 1:
            return ""
        return f"{self.chosen or self.sessions[0]}." if self.manifest.get("sessions") else ""

    def weights(self, which: str = "final") -> dict[str, np.ndarray]:
        """Return the saved global model "final" or "best", arrays by name.

        In a run of several sessions the names are "NAME.final" and "NAME.best". Raises ConfigError if
        the model was not saved or cannot be read.
        """
        path = self.folder / f"{self._before_weights}{which}.safetensors"
        if which not in self.saved_weights:
            raise ConfigError(f"{path}: not saved; this run has {', '.join(self.saved_weights) or 'no weights'}")
        content = self._content(path.name)
        with reading(path, "safetensors file", ConfigError):
            return dict(load(content))

    def __repr__(self) -> str:
        try:
            said = f"{self.method}, seed {self.seed}, {self.status} after {self.manifest['rounds']} rounds"
        except ConfigError as error:
            return f"<run {self.name!r} that cannot be read: {error}>"
        return f"<run {self.name!r}: {said}; in {self.folder}>"

    def table(self, table: str) -> pd.DataFrame:
        """Return a table by name. For a run of several sessions it has the rows of all of them.

        Raises ConfigError if its file is damaged, or contradicts the other tables.
        """
        if self._of is not None:
            rows = self._of.table(table)
            return rows[rows["session"] == self.chosen].reset_index(drop=True) if "session" in rows else rows
        if table not in self._read:
            names = files_of(table, self.manifest)
            if names:
                frame = read_table(table, {self.folder / name: self._content(name) for name in names})
                check_devices(table, frame, frame if table == "devices" else self.devices, self.folder / names[-1])
                if table == "evals":
                    check_rounds(frame, self.table("rounds"), self.folder / names[-1])
            else:
                frame = pd.DataFrame({name: pd.Series(dtype=dtype) for name, dtype in TABLES[table].items()})
            self._read[table] = frame
        return self._read[table]

    def read(self, tables: Iterable[str] = TABLES) -> None:
        """Read tables now, by default all. Raises the errors of `table`."""
        for table in tables:
            self.table(table)

    @cached_property
    def _read(self) -> dict[str, pd.DataFrame]:
        """Tables that have been read, by name."""
        return {}

    @cached_property
    def derived(self) -> dict[str, pd.DataFrame]:
        """Return tables that others worked out from those of the run and keep here, by name."""
        return {}

    def _own(self, table: str) -> pd.DataFrame:
        """Return the rows of the only or chosen session. Raises ConfigError if there are several and none is chosen."""
        if self.chosen is None and len(self.sessions) > 1:
            raise ConfigError(f"{self.name}: has the sessions {', '.join(self.sessions)}; look at one of them")
        return self.table(table)

    def _content(self, name: str) -> bytes:
        with reading(self.folder / name, "file", ConfigError):
            return read_file(self.folder, name, self.manifest["files"])


def _has_hidden(parts: Iterable[str]) -> bool:
    return any(part.startswith(".") for part in parts)


def _by_number(path: Path) -> list[tuple[int, str]]:
    """Return a sort key that orders names by the numbers in them: seed=2 before seed=10."""
    pieces = re.split(r"(\d+)", str(path))
    return [(int(piece), "") if piece.isdigit() else (-1, piece) for piece in pieces]
