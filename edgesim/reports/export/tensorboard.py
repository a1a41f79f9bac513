"""Writes runs as TensorBoard logs whose time is simulated: an event file in a folder for each run.

The step of an event is its simulated time in milliseconds, as steps are whole numbers; its wall time is the simulated
time in seconds, so that "Relative" on TensorBoard's horizontal axis shows simulated hours. TensorBoard keeps numbers
with 32 bits. A run gives the same file each time, which replaces an older one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgesim.core.errors import ConfigError
from edgesim.files.atomic import whole_file
from edgesim.reports.export.exported import Exported, points, settings

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
