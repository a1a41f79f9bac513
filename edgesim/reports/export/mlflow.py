"""Writes runs to an MLflow tracking store, with simulated time as the step.

The step of a metric is its simulated time in seconds, rounded down, as steps are whole numbers; its timestamp is the
simulated time in milliseconds, so that "Time (relative)" is exact. A run that the store already has is not added again.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

import pandas as pd

from edgesim.core.errors import ConfigError
from edgesim.files.reading import in_short
from edgesim.reports.export.exported import Exported, at_end, points, settings

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
            for batch in _batches((Metric(*numbers) for numbers in _metrics(each)), _BATCH):
                client.log_batch(run_id, metrics=batch)
            # The tag of a complete run comes last, so that a run that was cut off is added again.
            client.set_tag(run_id, _TAG, manifest["sha256"])
            end_ms = None if start_ms is None else start_ms + round(1000 * manifest["host_s"])
            client.set_terminated(run_id, "FINISHED" if each.run.finished else "FAILED", end_time=end_ms)
    except MlflowException as error:
        raise ConfigError(f"--to mlflow: {address}: {in_short(error)}") from error
    return [address, *skipped]


def _metrics(each: Exported) -> Iterator[tuple[str, float, int, int]]:
    """Yield the name, value, timestamp in milliseconds and step in seconds of each number of a run."""
    last_s = 0.0
    for point in points(each.run):
        last_s = max(last_s, point.now_s)
        yield _name(point.series), float(point.value), round(1000 * point.now_s), math.floor(point.now_s)
    end = at_end(each.run)
    end_s = max(last_s, end["sim_time_s"])
    for name, value in end.items():
        yield f"end/{name}", value, round(1000 * end_s), math.floor(end_s)


def _batches(items: Iterable[Item], most: int) -> Iterator[list[Item]]:
    left = iter(items)
    while batch := list(islice(left, most)):
        yield batch


def _name(text: str) -> str:
    return _NO_NAME.sub("_", text)
