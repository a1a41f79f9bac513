"""Checks of the manifest and the tables of a run folder, made once, where they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, StringConstraints, ValidationError
from pydantic_core import from_json

from edgesim.core.errors import ConfigError, demand_of
from edgesim.core.job import SESSION_NAME
from edgesim.files.reading import in_short, quoted, reading
from edgesim.files.tables import column_names, read_columns
from edgesim.records.schema import CLOSED_BY, INT, REAL, SERVER_ROW, TABLES, TEXT, conform

_DATE = r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:[0-5]\d([+]00:00)?$"  # ISO 8601
_MOST = 1e60  # limit of seconds, joules, bytes and FLOPs: products of two of them are finite
_Number = Annotated[FiniteFloat, Field(ge=-_MOST, le=_MOST)]


class _Open(BaseModel):
    """A table whose declared keys are checked. Other keys are allowed and ignored."""

    model_config = ConfigDict(extra="allow", strict=True)


class _Method(_Open):
    name: str


class _Evaluation(_Open):
    targets: list[FiniteFloat]
    metric_targets: dict[str, list[FiniteFloat]] = {}  # older runs have none


class _Coordinator(_Open):
    deadline: FiniteFloat | None = None
    rule: str = "fixed"


class _Scenario(_Open):
    seed: int
    method: _Method
    evaluation: _Evaluation
    protocol: _Coordinator = Field(default_factory=_Coordinator)


class _Session(_Open):
    """Keys of one of several trainings in a manifest. A run with one training has them at the top."""

    scenario: _Scenario | None = None
    rounds: int = 0
    stop_reason: str | None = None
    gave_up: bool = False  # older runs do not say
    forward_macs: _Number | None = None
    goal: str = "accuracy"
    metrics: dict[str, Literal["lower", "higher"]] = Field(default_factory=dict)  # older runs have none
    charged_as: str | None = None
    model: dict[str, int] | None = None
    diverged: dict[str, int | float | str | None] | None = None
    known: dict[str, int | None] = Field(default_factory=dict)
    totals: dict[str, _Number | None] | None = None


class _Manifest(_Session):
    scenario: _Scenario
    status: str
    rounds: int
    host_s: _Number
    files: dict[str, str]
    parts: dict[str, list[str]] = Field(default_factory=dict)
    sha256: str = Field(min_length=64, max_length=64)
    name: str | None = None
    digest: str = ""
    currency: str | None = None
    date: Annotated[str, StringConstraints(pattern=_DATE)] | None = None
    command: list[str] | None = None
    versions: dict[str, str | None] = Field(default_factory=dict)
    warnings: list[str] = Field(default_factory=list)
    sessions: dict[Annotated[str, StringConstraints(pattern=SESSION_NAME)], _Session] = Field(default_factory=dict)


def parse_manifest(text: str, path: Path) -> dict[str, Any]:
    """Return the content of a manifest. Raises ConfigError with the key at fault if it is not the manifest of a run."""
    try:
        found = from_json(text)
    except ValueError as error:
        raise ConfigError(f"{path}: not valid JSON: {in_short(error)}") from error
    try:
        _Manifest.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        got = "" if first["type"] == "missing" else f", got {quoted(first['input'])}"
        key = f"{'.'.join(map(str, first['loc']))}: ".removeprefix(": ")
        raise ConfigError(f"{path}: not the manifest of a run: {key}{in_short(demand_of(first))}{got}") from error
    return dict(found)


# --- tables -----------------------------------------------------------------------------------------------------

_ONCE: Mapping[str, Sequence[str]] = {
    "jobs": ["session", "job"],
    "rounds": ["session", "round"],
    "evals": ["session", "round", "split"],
    "devices": ["device"],
}
_ROUNDING_S = 1e-6  # differences of sums may be this far below 0
_ENDLESS = {"deadline_s"}  # may be inf
_CHOICES: Mapping[str, Mapping[str, Sequence[str]]] = {"rounds": {"closed_by": CLOSED_BY}}
_NEED_NOT_BE_NUMBERS = {"loss", "accuracy", "value"}  # NaN for a model that diverged, or by choice of a method
# Pairs of columns in ascending order.
_ORDER: Mapping[str, Sequence[tuple[str, str]]] = {"jobs": [("sent_s", "end_s")], "rounds": [("start_s", "now_s")]}
_RISING: Mapping[str, Sequence[str]] = {"rounds": ["now_s"]}  # from row to row of a session
_DEVICES: Mapping[str, str] = {"jobs": "device", "rounds": "critical_device"}


def read_table(table: str, files: Mapping[Path, bytes]) -> pd.DataFrame:
    """Return a table of a run, with columns and types of the schema, from the contents of its files in their order.

    Raises ConfigError that names the file if one is damaged, and the column or row if no run writes it like this.
    """
    frames = []
    for path, content in files.items():
        wanted = [name for name in column_names(path, ConfigError, content) if name in TABLES[table]]
        found = read_columns(path, wanted, ConfigError, content)
        for name in wanted:
            column, dtype = found[name], TABLES[table][name]
            kind = column.type
            fits = {
                INT: pa.types.is_integer(kind),
                REAL: pa.types.is_floating(kind),
                TEXT: pa.types.is_string(kind) or pa.types.is_large_string(kind),
            }[dtype]
            gaps = column.null_count and dtype != REAL  # nan is written as a gap
            if not fits or gaps:
                got = f"{in_short(kind)}{' with gaps' if gaps else ''}"
                raise ConfigError(f"{path}: column {name} must be {dtype}, found {got}")
        with reading(path, "table", ConfigError):
            frames.append(conform(table, found.to_pandas(ignore_metadata=True, use_threads=False), str(path)))
    frame = frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)
    _check_values(table, frame, list(files)[-1])
    return frame


def _check_values(table: str, frame: pd.DataFrame, path: Path) -> None:
    """Raise ConfigError with the row at fault unless the values of a table are possible in a run.

    A job, round or device has one row, and an evaluation has one per round and split. Rounds are numbered from 0.
    Seconds, joules, bytes and FLOPs are numbers of at most 1e60. Time does not run backwards.
    """
    for name, dtype in TABLES[table].items():
        if dtype == REAL and name not in _NEED_NOT_BE_NUMBERS:
            least, bound = (-_ROUNDING_S, " of at least 0") if name.endswith("_s") else (-np.inf, "")
            values = frame[name].to_numpy()  # many small tables are read: a column of pandas takes ten times as long
            number = np.abs(values) <= _MOST
            if name in _ENDLESS:
                number |= np.isposinf(values)
            fits = number & (values >= least)
            _require(fits, frame, path, [name], f"must be a finite number{bound}, at most {_MOST:g}")
    for name, allowed in _CHOICES.get(table, {}).items():
        _require(frame[name].isin(allowed), frame, path, [name], f"must be one of {', '.join(allowed)}")
    keys = list(_ONCE.get(table, ()))
    if keys:
        _require(~frame.duplicated(keys), frame, path, keys, "must come once")
    if table == "rounds":
        counted = frame["round"] == frame.groupby("session").cumcount()
        _require(counted, frame, path, ["round"], "must count from 0 in each session")
    for first, second in _ORDER.get(table, ()):
        _require(frame[first] <= frame[second], frame, path, [first, second], "must not go backwards")
    for name in _RISING.get(table, ()):
        falls = frame.groupby("session")[name].diff() < 0
        _require(~falls, frame, path, [name], "must not fall from row to row")


def check_rounds(frame: pd.DataFrame, rounds: pd.DataFrame, path: Path) -> None:
    """Raise ConfigError with the row at fault if evaluations name a round other than -1 that the rounds table lacks."""
    closed = rounds["session"].value_counts().reindex(frame["session"], fill_value=0).to_numpy()
    _require(
        frame["round"].between(-1, closed - 1), frame, path, ["round"], "must be -1 or a round of the rounds table"
    )


def check_devices(table: str, frame: pd.DataFrame, devices: pd.DataFrame, path: Path) -> None:
    """Raise ConfigError with the row at fault if a table names a device that the devices table lacks."""
    if name := _DEVICES.get(table):
        known = frame[name].isin(devices["device"]) | (frame[name] == SERVER_ROW)
        _require(known, frame, path, [name], "must be a device of the devices table")


def _require(good: Any, frame: pd.DataFrame, path: Path, names: Sequence[str], needs: str) -> None:
    fits = np.asarray(good, dtype=bool)
    if not fits.all():
        row = int(fits.argmin())
        found = ", ".join(quoted(frame[name].tolist()[row]) for name in names)
        raise ConfigError(f"{path} row {row + 1}: {', '.join(names)} {needs}, got {found}")
