"""Export of runs: to trackers as series over simulated time, and their tables as CSV, Arrow or Parquet files.

TensorBoard: an event file in a folder for each run. The step of an event is its simulated time in milliseconds, as
steps are whole numbers. Its wall time is the simulated time in seconds, so that "Relative" on TensorBoard's horizontal
axis shows simulated hours. TensorBoard keeps numbers with 32 bits. A run gives the same file each time, which replaces
an older one.

MLflow: the step of a metric is its simulated time in seconds, rounded down, as steps are whole numbers. Its timestamp
is the simulated time in milliseconds, so that "Time (relative)" is exact. A run that the store already has is not added
again.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from edgesim.core.errors import ConfigError
from edgesim.files.atomic import whole_file
from edgesim.files.reading import in_short
from edgesim.files.tables import csv_text
from edgesim.records.schema import INT, REAL, TABLES, TEXT
from edgesim.reports.load import Run
from edgesim.reports.stats import JOULES, summary

# --- what is exported ------------------------------------------------------------------------------------------------

# Column of the table rounds -> name of its series.
_OF_ROUNDS = {f"total_{name}": f"spent/{name}" for name in (*JOULES, "up_bytes", "down_bytes", "flops")} | {
    name: f"round/{name}" for name in ("asked", "used", "late", "staleness_mean")
}
_OF_A_ROUND = -1  # the device of a metric of the whole round
_AT_END = (
    *("accuracy", "best_accuracy", "rounds", "sim_time_s", "energy_j", "active_j", "energy_network_j"),
    *("energy_server_j", "up_bytes", "down_bytes", "flops"),
)


class Point(NamedTuple):
    """A number at an instant of simulated time."""

    now_s: float
    series: str
    value: float


@dataclass(frozen=True)
class Exported:
    """A run with its name among the runs exported together, and its labels on a study's axes."""

    name: str
    run: Run
    axes: Mapping[str, str] = field(default_factory=dict)


def exported(runs: Sequence[Run]) -> list[Exported]:
    """Return runs named after their folders, or by their paths below the common folder where two names are equal."""
    times = Counter(run.name for run in runs)
    folders = [run.folder.resolve() for run in runs]
    above = Path(os.path.commonpath([folder.parent for folder in folders])) if folders else Path()
    names = [
        run.name if times[run.name] == 1 else folder.relative_to(above).as_posix()
        for run, folder in zip(runs, folders, strict=True)
    ]
    return [Exported(name, run) for name, run in zip(names, runs, strict=True)]


def points(run: Run) -> Iterator[Point]:
    """Yield the series of a run, each in the order of time. Numbers of a round are at its end.

    Series: accuracy/SPLIT and loss/SPLIT of evaluations, spent/* in joules, bytes and FLOPs since the start,
    round/number, round/length_s, round/asked and the like of each round, and metric/NAME, the method's metrics of whole
    rounds.
    """
    for row in run.evals.to_dict("records"):
        yield Point(row["now_s"], f"accuracy/{row['split']}", row["accuracy"])
        yield Point(row["now_s"], f"loss/{row['split']}", row["loss"])
    ended_s = dict(zip(run.rounds["round"], run.rounds["now_s"], strict=True))
    for row in run.rounds.to_dict("records"):
        now_s = row["now_s"]
        yield Point(now_s, "round/number", row["round"] + 1)
        yield Point(now_s, "round/length_s", now_s - row["start_s"])
        for column, series in _OF_ROUNDS.items():
            yield Point(now_s, series, row[column])
    whole = run.metrics[run.metrics["device"] == _OF_A_ROUND]
    for row in whole[whole["round"].isin(list(ended_s))].to_dict("records"):
        yield Point(ended_s[row["round"]], f"metric/{row['name']}", row["value"])


def settings(each: Exported) -> dict[str, str | int | float | bool]:
    """Return the settings of a run: its labels on axes, and the dotted keys of its scenario, blocks numbered from 0."""
    axes = {f"axis.{axis}": label for axis, label in each.axes.items()}
    return {**axes, **dict(_flat(each.run.manifest["scenario"], ""))}


def at_end(run: Run) -> dict[str, float]:
    """Return the results and the cost of a run at its end, without unknown numbers."""
    found = summary(run)
    return {name: float(found[name]) for name in _AT_END if found[name] is not None}


def _flat(value: Any, key: str) -> Iterator[tuple[str, str | int | float | bool]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(inner, f"{key}.{name}".lstrip("."))
    elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        for place, item in enumerate(value):
            yield from _flat(item, f"{key}.{place}")
    elif isinstance(value, str | bool | int | float):
        yield key, value
    elif value is not None:
        yield key, json.dumps(value)


# --- TensorBoard -----------------------------------------------------------------------------------------------------

FILE = "events.out.tfevents.0.edgesim"  # TensorBoard looks for the third word
_VERSION = "brain.Event:2"  # of the format, in the first event of a file


def write_tensorboard(runs: Sequence[Exported], out: Path) -> list[Path]:
    """Write a log for each run in a folder of its name below `out`. Return the files.

    Raises OSError if a file cannot be written, and ConfigError if tensorboard is not installed.
    """
    try:
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError as error:
        raise ConfigError('--to tensorboard: it is not installed; pip install "edgesim[tensorboard]"') from error
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    files = []
    for each in runs:
        path = out / each.name / FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        begin, end_s = _hyperparameters(each), 0.0
        events = [Event(wall_time=0.0, file_version=_VERSION), Event(wall_time=0.0, summary=begin)]
        for point in sorted(points(each.run), key=lambda point: point.now_s):
            end_s = point.now_s
            value = Summary.Value(tag=point.series, simple_value=point.value)
            events.append(Event(wall_time=end_s, step=round(1000 * end_s), summary=Summary(value=[value])))
        events.append(Event(wall_time=end_s, summary=Summary(value=[_session_end(each.run.finished, end_s)])))
        with whole_file(path) as growing, growing.open("wb") as file:
            records = RecordWriter(file)
            for event in events:
                records.write(event.SerializeToString())
        files.append(path)
    return files


def _hyperparameters(each: Exported) -> Any:
    """Return the summary with the settings of a run, the same bytes in every process."""
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb

    found = hparams_pb(settings(each), trial_id=each.name, start_time_secs=0.0)
    data = found.value[0].metadata.plugin_data
    data.content = HParamsPluginData.FromString(data.content).SerializeToString(deterministic=True)  # has a map
    return found


def _session_end(finished: bool, end_s: float) -> Any:
    """Return the summary value for the end of a run. TensorBoard's own function for it needs TensorFlow."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import api_pb2, metadata
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo

    status = api_pb2.STATUS_SUCCESS if finished else api_pb2.STATUS_FAILURE
    content = HParamsPluginData(session_end_info=SessionEndInfo(status=status, end_time_secs=end_s))
    about = metadata.create_summary_metadata(content)
    return Summary.Value(tag=metadata.SESSION_END_INFO_TAG, metadata=about, tensor=metadata.NULL_TENSOR)


# --- MLflow ----------------------------------------------------------------------------------------------------------

Item = TypeVar("Item")

DATABASE = "mlflow.db"
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)  # of a server or a database
_TAG = "edgesim.manifest"  # the SHA-256 of a run's manifest, which identifies an exported run
_BATCH = 500  # numbers per request; a server takes at most 1,000
_MOST_PARAMS = 100  # parameters per request
_LONGEST = 500  # characters of a parameter; every store takes this length
_NO_NAME = re.compile(r"[^\w./ -]")  # characters that names of metrics and parameters must not have


def is_address(out: str) -> bool:
    """Tell whether a text is the address of a tracking store, and not a folder."""
    return bool(_ADDRESS.match(out))


def write_mlflow(runs: Sequence[Exported], out: str, experiment: str) -> list[str]:
    """Add runs to an experiment of a tracking store. Return its address, and a line for each run that was there.

    `out`: the address of a store, or a folder, which then gets a database. Raises ConfigError if mlflow is not
    installed or the store refuses a request.
    """
    try:
        from mlflow.entities import Metric, Param
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise ConfigError('--to mlflow: it is not installed; pip install "edgesim[mlflow]"') from error
    address, artifacts = out, None
    if not is_address(out):
        folder = Path(os.path.realpath(out))
        folder.mkdir(parents=True, exist_ok=True)
        address, artifacts = f"sqlite:///{folder / DATABASE}", (folder / "artifacts").as_uri()
    skipped = []
    try:
        client = MlflowClient(tracking_uri=address)
        found = client.get_experiment_by_name(experiment)
        id_ = found.experiment_id if found else client.create_experiment(experiment, artifact_location=artifacts)
        for each in runs:
            manifest = each.run.manifest
            if client.search_runs([id_], f"tags.`{_TAG}` = '{manifest['sha256']}'", max_results=1):
                skipped.append(f"{each.name}: is there already")
                continue
            start_ms = round(1000 * pd.Timestamp(manifest["date"]).timestamp()) if "date" in manifest else None
            tags = {"edgesim.folder": str(each.run.folder), "edgesim.status": each.run.status}
            run_id = client.create_run(id_, start_time=start_ms, tags=tags, run_name=each.name).info.run_id
            params = (Param(_name(key), str(value)[:_LONGEST]) for key, value in settings(each).items())
            for some in _batches(params, _MOST_PARAMS):
                client.log_batch(run_id, params=some)
            found, now_s = at_end(each.run), 0.0
            metrics = []
            for point in points(each.run):
                now_s, ms, step = max(now_s, point.now_s), round(1000 * point.now_s), math.floor(point.now_s)
                metrics.append(Metric(_name(point.series), float(point.value), ms, step))
            end_s = max(now_s, found["sim_time_s"])
            end = round(1000 * end_s), math.floor(end_s)
            metrics += [Metric(f"end/{name}", value, *end) for name, value in found.items()]
            for batch in _batches(metrics, _BATCH):
                client.log_batch(run_id, metrics=batch)
            # The tag of a complete run comes last, so that a run that was cut off is added again.
            client.set_tag(run_id, _TAG, manifest["sha256"])
            end_ms = None if start_ms is None else start_ms + round(1000 * manifest["host_s"])
            client.set_terminated(run_id, "FINISHED" if each.run.finished else "FAILED", end_time=end_ms)
    except MlflowException as error:
        raise ConfigError(f"--to mlflow: {address}: {in_short(error)}") from error
    return [address, *skipped]


def _batches(items: Iterable[Item], most: int) -> Iterator[list[Item]]:
    left = iter(items)
    while batch := list(islice(left, most)):
        yield batch


def _name(text: str) -> str:
    return _NO_NAME.sub("_", text)


# --- tables ----------------------------------------------------------------------------------------------------------

RUN = "run"  # the first column of every table
_TYPES = {INT: pa.int64(), REAL: pa.float64(), TEXT: pa.string()}
_SETTINGS = {"key": TEXT, "value": TEXT}
ENDINGS = {"csv": ".csv", "arrow": ".arrow", "parquet": ".parquet"}  # of files, by form


class _Sink(Protocol):
    def write_table(self, table: pa.Table) -> None: ...

    def close(self) -> None: ...


class _Csv:
    """A CSV file to which tables are appended. Numbers keep all their digits."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._file = path.open("w", encoding="utf-8", newline="")
        self._file.write(csv_text(schema.empty_table().to_pandas()))

    def write_table(self, table: pa.Table) -> None:
        self._file.write(csv_text(table.to_pandas(), header=False))

    def close(self) -> None:
        self._file.close()


_OPEN: Mapping[str, Callable[[Path, pa.Schema], _Sink]] = {
    "csv": _Csv,
    "arrow": lambda path, schema: pa.ipc.new_file(str(path), schema),
    "parquet": lambda path, schema: pq.ParquetWriter(str(path), schema),
}


def write_tables(runs: Sequence[Exported], about: pd.DataFrame, out: Path, form: str) -> list[Path]:
    """Write jobs, rounds, evals, devices and metrics of some runs, their settings, and `about` as the table "runs".

    `about`: a row per run. `form`: csv, arrow (also called Feather) or parquet. One run is read at a time. Raises
    OSError if a file cannot be written, and ConfigError if a run is damaged.
    """
    out.mkdir(parents=True, exist_ok=True)
    files = []
    for table, columns in TABLES.items():
        rows = ((each.name, each.run.table(table)) for each in runs)
        files.append(_write(out, form, table, columns, rows))
    keys = (
        (each.name, pd.DataFrame([(key, str(value)) for key, value in settings(each).items()], columns=list(_SETTINGS)))
        for each in runs
    )
    files.append(_write(out, form, "settings", _SETTINGS, keys))
    found = pa.Table.from_pandas(about, preserve_index=False)
    path = out / f"runs{ENDINGS[form]}"
    with whole_file(path) as growing, _opened(form, growing, found.schema) as sink:
        sink.write_table(found)
    return [*files, path]


def _write(
    out: Path, form: str, name: str, columns: Mapping[str, str], frames: Iterator[tuple[str, pd.DataFrame]]
) -> Path:
    schema = pa.schema([(RUN, pa.string()), *((column, _TYPES[dtype]) for column, dtype in columns.items())])
    path = out / f"{name}{ENDINGS[form]}"
    with whole_file(path) as growing, _opened(form, growing, schema) as sink:
        for run, frame in frames:
            sink.write_table(pa.Table.from_pandas(frame.assign(**{RUN: run}), schema=schema, preserve_index=False))
    return path


def _opened(form: str, path: Path, schema: Any) -> AbstractContextManager[_Sink]:
    return closing(_OPEN[form](path, schema))
