"""A run in the trace-event format, which ui.perfetto.dev and chrome://tracing show as a timeline.

A process stands for a device or the server, a thread for one of its resources; durations are complete events ("X"),
quantities of the whole fleet are counters ("C"). Source: "Trace Event Format" of the Chromium project.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from edgesim.core.errors import ConfigError
from edgesim.core.job import DELIVERED
from edgesim.files.atomic import whole_file
from edgesim.records.schema import SERVER_ROW
from edgesim.reports.critical_path import ROUNDING_S, phase_intervals_s, round_row, rounds_of
from edgesim.reports.load import Run

Event: TypeAlias = dict[str, Any]
_Intervals: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray]  # start_ns, end_ns, amount, all of shape (k,)

_MOST_S = 9.2e9  # what nanoseconds in 64 bits reach
_JOBS, _RADIO, _PROCESSOR = 1, 2, 3
_DEVICE_TRACKS = {_JOBS: "jobs", _RADIO: "radio", _PROCESSOR: "processor"}
_SERVER_TRACKS = {_JOBS: "rounds", _PROCESSOR: "processor"}


class _Phase(NamedTuple):
    name: str
    track: int
    amount: str  # columns of the jobs table
    joules: str


_PHASES = (
    _Phase("download", _RADIO, "down_bytes", "down_j"),
    _Phase("compute", _PROCESSOR, "flops", "compute_j"),
    _Phase("upload", _RADIO, "up_bytes", "up_j"),
)


_TRANSFERS = [i for i, phase in enumerate(_PHASES) if phase.track == _RADIO]


class _Window(NamedTuple):
    """The stretch of simulated time that is shown, in nanoseconds."""

    start_ns: int
    end_ns: int


def write_trace(run: Run, out: Path, rounds: tuple[int, int] | None = None, devices: int | None = None) -> Path:
    """Write the trace of a run as JSON, an event a line, and return its path; for the options see `trace_events`.

    Raises ConfigError if a round did not close or the file cannot be written.
    """
    lines = ",\n".join(json.dumps(event, allow_nan=False) for event in trace_events(run, rounds, devices))
    about = json.dumps({"run": run.name, "method": run.method, "seed": run.seed})
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        text = f'{{"displayTimeUnit": "ms", "otherData": {about}, "traceEvents": [\n{lines}\n]}}\n'
        with whole_file(out) as growing:
            growing.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written: {error}") from error
    return out


def trace_events(run: Run, between: tuple[int, int] | None = None, devices: int | None = None) -> list[Event]:
    """Return the events of a run: first the names (metadata), then all else in the order of time.

    `between`: only jobs that ended in these rounds, first and last, counted from 1, and counters from the start of the
    first to the end of the last. `devices`: only the spans of so many devices, those longest at work in that time;
    counters are of the whole fleet all the same. Raises ConfigError if one of these rounds did not close, or if the
    run lasts more than 292 years.

    Times are simulated microseconds, exact to the nanosecond. The process of device i has the id i + 2 and that of the
    server 1, since viewers keep 0 for themselves. A job has its phases inside it on the track `jobs`; what they take of
    `radio` and `processor` is shown again there. Joules are above idle power; those of an aborted job were really
    spent. Counters: power (watts by activity, even within a phase; what peers spend on sending to a job flows until it
    computes; idle is the mean over the run, asleep included), devices at work, transfers on the links, completions that
    wait for their round to close, and the accuracy of each evaluated split.

    A transfer is on the links from the start of a download or upload, latency included, to its end. It counts as
    delayed if its job lost time on shared links, all along and in both directions, as the tables tell only the job's
    sum. The delayed ones are the links' queue; both series together are all transfers in flight.
    """
    jobs, rounds = run.jobs, run.rounds
    if (end_s := _end_s(jobs, rounds)) > _MOST_S:
        raise ConfigError(f"{run.folder}: lasts {end_s:g} s; a timeline can show {_MOST_S:g} s")
    window, rows = _window(jobs, rounds, between)
    place = rounds_of(jobs, rounds)
    shown = jobs if between is None else jobs[(place >= rows.start) & (place < rows.stop)]
    if devices is not None:
        shown = shown[shown["device"].isin(_longest_at_work(shown, devices))]
    kinds = dict(zip(run.devices["device"].tolist(), run.devices["kind"].tolist(), strict=True))
    timed = [
        *_server_spans(rounds.iloc[rows]),
        *_job_spans(shown),
        *_counter("power of the fleet (W)", _power(jobs, run.devices, window, end_s)),
        *_counter("devices at work", _at_work(jobs, window)),
        *_counter("transfers on the links", _on_links(jobs, window)),
        *_counter("completions waiting for their merge", _waiting(jobs, rounds, place, window)),
        *_accuracies(run.evals, window),
    ]
    timed.sort(key=lambda event: (event["ts"], -event.get("dur", 0.0)))  # what contains comes before what is inside
    return [*_names(sorted(set(shown["device"].tolist())), kinds), *timed]


# --- what is shown ------------------------------------------------------------------------------------------


def _window(jobs: pd.DataFrame, rounds: pd.DataFrame, between: tuple[int, int] | None) -> tuple[_Window, slice]:
    """Return the time shown, and the rows of the merges in it."""
    if between is None:
        return _Window(0, _ns(_end_s(jobs, rounds))), slice(0, len(rounds))
    first, last = (round_row(rounds, number) for number in between)
    ends_s = rounds["start_s"].iloc[first], rounds["now_s"].iloc[last]
    return _Window(*(_ns(end_s) for end_s in ends_s)), slice(first, last + 1)


def _end_s(jobs: pd.DataFrame, rounds: pd.DataFrame) -> float:
    return float(max([0.0, *jobs["end_s"].nlargest(1), *rounds["now_s"].nlargest(1)]))


def _longest_at_work(jobs: pd.DataFrame, count: int) -> list[int]:
    """Return the `count` devices with the most seconds in jobs; of equal ones those of the lowest id."""
    busy_s = (jobs["end_s"] - jobs["sent_s"]).groupby(jobs["device"]).sum()
    return [int(device) for device in busy_s.sort_values(ascending=False, kind="stable").index[:count]]


# --- names --------------------------------------------------------------------------------------------------


def _names(devices: Sequence[int], kinds: Mapping[int, str]) -> Iterable[Event]:
    yield from _named(SERVER_ROW, "server", _SERVER_TRACKS)
    for device in devices:
        yield from _named(device, f"device {device} ({kinds[device]})", _DEVICE_TRACKS)


def _named(device: int, name: str, tracks: Mapping[int, str]) -> Iterable[Event]:
    pid = _pid(device)
    yield {"ph": "M", "name": "process_name", "pid": pid, "tid": _tid(pid, _JOBS), "args": {"name": name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": _tid(pid, _JOBS), "args": {"sort_index": pid}}
    for track, what in tracks.items():
        tid = _tid(pid, track)
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": what}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": track}}


def _pid(device: int) -> int:
    return device + 2


def _tid(pid: int, track: int) -> int:
    return pid * (len(_DEVICE_TRACKS) + 1) + track  # viewers want ids of threads to differ between processes, too


# --- spans --------------------------------------------------------------------------------------------------


def _job_spans(jobs: pd.DataFrame) -> Iterable[Event]:
    starts, stops = (times.tolist() for times in _phase_intervals(jobs))
    sent, ends = (_ns_of(jobs[column].to_numpy()).tolist() for column in ("sent_s", "end_s"))
    for job, begins, halts, sent_ns, end_ns in zip(jobs.to_dict("records"), starts, stops, sent, ends, strict=True):
        outcome = "" if job["outcome"] == "ok" else f" ({job['outcome']})"
        about = {name: job[name] for name in ("job", "outcome", "base_version", "flops", "down_bytes", "up_bytes")}
        about |= {"round": job["round"] + 1, "joules": sum(job[phase.joules] for phase in _PHASES)}
        name = f"{job['task']} {job['submodel']}{outcome}"
        yield _span(job["device"], _JOBS, "job", name, sent_ns, end_ns, about)
        for phase, start_ns, stop_ns in zip(_PHASES, begins, halts, strict=True):
            if stop_ns > start_ns:
                spent = {phase.amount: job[phase.amount], "joules": job[phase.joules]}
                yield _span(job["device"], _JOBS, "phase", phase.name, start_ns, stop_ns, spent)
                yield _span(job["device"], phase.track, "resource", phase.name, start_ns, stop_ns, {"job": job["job"]})


def _server_spans(rounds: pd.DataFrame) -> Iterable[Event]:
    bounds = _ns_of(np.column_stack([rounds["start_s"], rounds["now_s"] - rounds["server_s"], rounds["now_s"]]))
    for merge, (start_ns, closed_ns, end_ns) in zip(rounds.to_dict("records"), bounds.tolist(), strict=True):
        about = {name: merge[name] for name in ("version", "asked", "used", "late", "flops", "energy_j", "active_j")}
        yield _span(SERVER_ROW, _JOBS, "round", f"round {merge['round'] + 1}", start_ns, end_ns, about)
        if end_ns > closed_ns:
            yield _span(SERVER_ROW, _JOBS, "phase", "merge", closed_ns, end_ns, {})
            yield _span(SERVER_ROW, _PROCESSOR, "resource", "merge", closed_ns, end_ns, {"round": merge["round"] + 1})


def _span(device: int, track: int, kind: str, name: str, start_ns: int, end_ns: int, args: Event) -> Event:
    pid = _pid(device)
    when = {"ts": start_ns / 1000, "dur": (end_ns - start_ns) / 1000}
    return {"ph": "X", "cat": kind, "name": name, "pid": pid, "tid": _tid(pid, track), **when, "args": args}


# --- counters -----------------------------------------------------------------------------------------------


def _power(jobs: pd.DataFrame, devices: pd.DataFrame, window: _Window, end_s: float) -> pd.DataFrame:
    starts, ends = _phase_intervals(jobs)
    trades = ((jobs["peer_bytes"] > 0) & (jobs["up_bytes"] > 0)).to_numpy()  # both ways pass in the phase of the upload
    fetched = np.where(trades, ends[:, 2], starts[:, 1])
    starts[trades, 0], ends[trades, 0] = starts[trades, 2], ends[trades, 2]
    joules = jobs[[phase.joules for phase in _PHASES]].to_numpy(dtype=np.float64)
    seconds = (ends - starts) / 1e9
    watts = np.divide(joules, seconds, out=np.zeros_like(joules), where=seconds > 0)
    fetching_s = (fetched - starts[:, 0]) / 1e9
    peers_w = np.divide(jobs["peer_j"].to_numpy(), fetching_s, out=np.zeros(len(jobs)), where=fetching_s > 0)
    idle_j = devices.loc[devices["device"] >= 0, ["idle_j", "sleep_j"]].to_numpy().sum()
    idle_w = np.array([idle_j / end_s if end_s > 0 else 0.0])
    whole = (np.array([window.start_ns]), np.array([window.end_ns]), idle_w)
    series = {"idle": whole, "upload to peers": (starts[:, 0], fetched, peers_w)}
    return _levels(series | _by_phase(starts, ends, watts), window)


def _at_work(jobs: pd.DataFrame, window: _Window) -> pd.DataFrame:
    starts, ends = _phase_intervals(jobs)
    return _levels(_by_phase(starts, ends, np.ones(starts.shape)), window)


def _on_links(jobs: pd.DataFrame, window: _Window) -> pd.DataFrame:
    starts, ends = (times[:, _TRANSFERS] for times in _phase_intervals(jobs))
    delayed = (jobs["link_wait_s"] > ROUNDING_S).to_numpy()
    series = {"delayed": delayed, "not delayed": ~delayed}
    return _levels({name: _intervals(starts[some], ends[some]) for name, some in series.items()}, window)


def _intervals(starts: np.ndarray, ends: np.ndarray) -> _Intervals:
    """Return intervals that count one each, whatever the shape of their bounds."""
    return starts.ravel(), ends.ravel(), np.ones(starts.size)


def _waiting(jobs: pd.DataFrame, rounds: pd.DataFrame, place: np.ndarray, window: _Window) -> pd.DataFrame:
    merged = jobs["outcome"].isin(DELIVERED).to_numpy() & (place < len(rounds))
    ends = _ns_of((rounds["now_s"] - rounds["server_s"]).to_numpy())[place[merged]]
    starts = _ns_of(jobs["end_s"].to_numpy()[merged])
    return _levels({"completions": _intervals(starts, ends)}, window)


def _phase_intervals(jobs: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return start and end of the phases of each job in nanoseconds, both of shape (jobs, 3)."""
    begin_s, end_s = phase_intervals_s(jobs)
    return _ns_of(begin_s), _ns_of(end_s)


def _by_phase(starts: np.ndarray, ends: np.ndarray, amounts: np.ndarray) -> dict[str, _Intervals]:
    return {phase.name: (starts[:, i], ends[:, i], amounts[:, i]) for i, phase in enumerate(_PHASES)}


def _levels(series: Mapping[str, _Intervals], window: _Window) -> pd.DataFrame:
    """Return the sum of the intervals at work, a column a series, a row a nanosecond (index) at which it changes.

    The first row is at the start of the window and the last one, all zero, at its end.
    """
    changes = [pd.DataFrame(0.0, index=list(window), columns=list(series))]
    for name, (starts, ends, amounts) in series.items():
        begin, end = np.clip(starts, *window), np.clip(ends, *window)
        changes += [pd.DataFrame({name: values}, at) for at, values in ((begin, amounts), (end, -amounts))]
    levels: pd.DataFrame = pd.concat(changes).fillna(0.0).groupby(level=0).sum().cumsum()
    return levels.round(9) + 0.0  # sums leave 1e-16 W where nothing is at work; + 0.0 as -0.0 would be printed


def _counter(name: str, levels: pd.DataFrame) -> Iterable[Event]:
    for at_ns, values in zip(levels.index.tolist(), levels.to_dict("records"), strict=True):
        yield {"ph": "C", "name": name, "pid": _pid(SERVER_ROW), "ts": at_ns / 1000, "args": values}


def _accuracies(evals: pd.DataFrame, window: _Window) -> Iterable[Event]:
    scores = evals.set_index(_ns_of(evals["now_s"].to_numpy())).dropna(subset="accuracy")
    for split, shown in scores.loc[window.start_ns : window.end_ns].groupby("split"):
        yield from _counter(f"accuracy ({split})", shown[["accuracy"]])


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _ns_of(seconds: np.ndarray) -> np.ndarray:
    return np.rint(seconds * 1e9).astype(np.int64)
