"""Run folders of hand-made tables."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from edgesim.records.manifest import MANIFEST, sealed
from edgesim.records.schema import LATER_COLUMNS, TABLES, conform
from edgesim.records.table import Table
from edgesim.records.writer import taken
from edgesim.reports.critical_path import attributed
from edgesim.reports.load import Run, open_run

_OTHER_ACCOUNTS = [name for name in TABLES["rounds"] if name.endswith(("energy_network_j", "energy_server_j"))]


class _Filled(Table):
    """A table whose rows may lack columns: then there is no money, no carbon, no edge server, and only devices spend.

    Columns that a row lacks are the last ones, and those of the accounts of network and server.
    """

    def append(self, row: tuple[Any, ...]) -> int:
        """Add one row."""
        if len(row) == len(self.columns):
            return super().append(row)
        given = dict(zip([name for name in self.columns if name not in _OTHER_ACCOUNTS], row, strict=False))
        rest = LATER_COLUMNS | dict.fromkeys(_OTHER_ACCOUNTS, 0.0)
        return super().append(tuple(given[name] if name in given else rest[name] for name in self.columns))


def new_tables() -> dict[str, Table]:
    """Return an empty table for every table of the schema, by name; rows of runs without prices may be short."""
    return {name: _Filled(name) for name in TABLES}


def whole(tables: Mapping[str, Table]) -> dict[str, pd.DataFrame]:
    """Return the frames of tables as a run folder holds them."""
    frames = {name: table.frame() for name, table in tables.items()}
    frames["rounds"] = attributed(frames["jobs"], frames["rounds"])
    return {name: conform(name, frame, "tables") for name, frame in frames.items()}


def write_run(folder: Path, tables: Mapping[str, pd.DataFrame], manifest: Mapping[str, Any], weights: Any) -> None:
    """Write a new run folder: what `taken` does for a run that is written once, at its end."""
    with taken(folder) as run:
        run.write(tables, manifest, weights)


def write(folder: Path, tables: Mapping[str, Table], manifest: Mapping[str, Any], weights: Any = None) -> Run:
    """Write tables as a run folder and open it; what a manifest has to say is added to this one."""
    write_run(folder, whole(tables), manifest_of(manifest), weights or {})
    return open_run(folder)


def manifest_of(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest with what one has to say added."""
    scenario = {"seed": 1, "method": {"name": "fedavg"}, "evaluation": {"targets": []}, **manifest.get("scenario", {})}
    return {"status": "finished", "rounds": 0, "host_s": 0.0, **manifest, "scenario": scenario}


def seal_again(folder: Path) -> None:
    """Let the manifest of a run folder agree with its files and itself, after somebody has changed them."""
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    manifest.pop("sha256", None)
    files = [path for path in folder.iterdir() if path.suffix in (".parquet", ".safetensors")]
    manifest["files"] = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    (folder / MANIFEST).write_text(sealed(manifest, manifest["files"]), encoding="utf-8")
