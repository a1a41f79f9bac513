"""A run in the trace-event format, which ui.perfetto.dev and chrome://tracing show as a timeline.

A process stands for a device or the server, a thread for one of its resources. Durations are complete events ("X"),
quantities of the whole fleet are counters ("C"). Source: "Trace Event Format" of the Chromium project.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from edgesim.core.errors import ConfigError
from edgesim.core.job import DELIVERED
from edgesim.files.atomic import write_text
from edgesim.records.run import RecordedRun
from edgesim.records.schema import SERVER_ROW
from edgesim.reports.critical_path import ROUNDING_S, phase_intervals_s, round_row, rounds_of

Event: TypeAlias = dict[str, Any]
_Intervals: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray]  # start_ns, end_ns, amount, all of shape (k,)

_MOST_S = 9.2e9  # about the largest time that 64 bits hold in nanoseconds
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
    """The part of simulated time that is shown, in nanoseconds."""

    start_ns: int
    end_ns: int


def write_trace(run: RecordedRun, out: Path, rounds: tuple[int, int] | None = None, devices: int | None = None) -> Path:
    """Write the trace of a run as JSON, one event per line, and return its path.

    `rounds` and `devices` limit what is shown, as in `trace_events`.

    Raises ConfigError if a round did not close or the file cannot be written.
    """
    lines = ",\n".join(json.dumps(event, allow_nan=False) for event in trace_events(run, rounds, devices))
    about = json.dumps({"run": run.name, "method": run.method, "seed": run.seed})
    write_text(out, f'{{"displayTimeUnit": "ms", "otherData": {about}, "traceEvents": [\n{lines}\n]}}\n')
    return out


def trace_events(run: RecordedRun, between: tuple[int, int] | None = None, devices: int | None = None) -> list[Event]:
    """Return the events of a run: first the names (metadata), then all other events in the order of time.

    `between`: the first and the last round to show, counted from 1. Only jobs that ended in these rounds are shown,
    and counters run from the start of the first to the end of the last. `devices`: show only the spans of the N devices
    that were longest at work in that time. Counters always cover the whole fleet. Raises ConfigError if one of these
    rounds did not close, or if the run lasts more than 292 years.

    Times are simulated microseconds, exact to the nanosecond. The process of device i has the id i + 2 and the server
    the id 1, since viewers keep 0 for themselves. On the track `jobs` a job contains its phases. The same phases are
    shown again on the tracks `radio` and `processor`. Joules are above idle power. An aborted job shows the joules
    that it spent.

    Counters: power (watts by activity, constant within a phase), devices at work, transfers on the links, completions
    that wait for their round to close, and the accuracy of each evaluated split. In the power counter the joules that
    peers spend on sending to a job are spread over the time until the job computes, and idle power is the mean over the
    run, sleep included.

    A transfer is on the links from the start of a download or upload, latency included, to its end. It counts as
    delayed if its job lost time on shared links. That holds for both of the job's transfers in full, as the tables have
    only the job's sum. The delayed transfers are the links' queue. Both series together are all transfers in flight.
    """
    jobs, rounds = run.jobs, run.rounds
    end_s = float(max([0.0, *jobs["end_s"].nlargest(1), *rounds["now_s"].nlargest(1)]))
    if end_s > _MOST_S:
        raise ConfigError(f"{run.folder}: lasts {end_s:g} s; a timeline can show {_MOST_S:g} s")
    place = rounds_of(jobs, rounds)
    if between is None:
        window, shown, closed = _Window(0, _ns(end_s)), jobs, rounds
    else:
        first, last = (round_row(rounds, number) for number in between)
        window = _Window(_ns(rounds["start_s"].iloc[first]), _ns(rounds["now_s"].iloc[last]))
        shown, closed = jobs[(place >= first) & (place <= last)], rounds.iloc[first : last + 1]
    if devices is not None:
        busy_s = (shown["end_s"] - shown["sent_s"]).groupby(shown["device"]).sum()
        busiest = busy_s.sort_values(ascending=False, kind="stable").index[:devices]
        shown = shown[shown["device"].isin(busiest)]

    names = [*_named(SERVER_ROW, "server", _SERVER_TRACKS)]
    kinds = dict(zip(run.devices["device"].tolist(), run.devices["kind"].tolist(), strict=True))
    for device in sorted(set(shown["device"].tolist())):
        names += _named(device, f"device {device} ({kinds[device]})", _DEVICE_TRACKS)

    timed: list[Event] = []
    bounds = _ns_of(np.column_stack([closed["start_s"], closed["now_s"] - closed["server_s"], closed["now_s"]]))
    for merge, (start_ns, closed_ns, end_ns) in zip(closed.to_dict("records"), bounds.tolist(), strict=True):
        about = {name: merge[name] for name in ("version", "asked", "used", "late", "flops", "energy_j", "active_j")}
        number = merge["round"] + 1
        timed.append(_span(SERVER_ROW, _JOBS, "round", f"round {number}", start_ns, end_ns, about))
        if end_ns > closed_ns:
            timed.append(_span(SERVER_ROW, _JOBS, "phase", "merge", closed_ns, end_ns, {}))
            timed.append(_span(SERVER_ROW, _PROCESSOR, "resource", "merge", closed_ns, end_ns, {"round": number}))
    timed += _job_spans(shown)

    timed += _counter("power of the fleet (W)", _power(jobs, run.devices, window, end_s))
    starts, ends = _phase_intervals(jobs)
    timed += _counter("devices at work", _levels(_by_phase(starts, ends, np.ones(starts.shape)), window))
    delayed = (jobs["link_wait_s"] > ROUNDING_S).to_numpy()
    transfers = {
        name: _intervals(starts[some][:, _TRANSFERS], ends[some][:, _TRANSFERS])
        for name, some in (("delayed", delayed), ("not delayed", ~delayed))
    }
    timed += _counter("transfers on the links", _levels(transfers, window))
    merged = jobs["outcome"].isin(DELIVERED).to_numpy() & (place < len(rounds))
    closed_at = _ns_of((rounds["now_s"] - rounds["server_s"]).to_numpy())[place[merged]]
    completions = {"completions": _intervals(_ns_of(jobs["end_s"].to_numpy()[merged]), closed_at)}
    timed += _counter("completions waiting for their merge", _levels(completions, window))
    scores = run.evals.set_index(_ns_of(run.evals["now_s"].to_numpy())).dropna(subset="accuracy")
    for split, of_split in scores.loc[window.start_ns : window.end_ns].groupby("split"):
        timed += _counter(f"accuracy ({split})", of_split[["accuracy"]])

    timed.sort(key=lambda event: (event["ts"], -event.get("dur", 0.0)))  # a span comes before those inside it
    return [*names, *timed]


# --- names --------------------------------------------------------------------------------------------------


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
    return pid * (len(_DEVICE_TRACKS) + 1) + track  # viewers need thread ids that are unique across processes


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


def _intervals(starts: np.ndarray, ends: np.ndarray) -> _Intervals:
    """Return intervals of amount 1 with these bounds, which are flattened."""
    return starts.ravel(), ends.ravel(), np.ones(starts.size)


def _phase_intervals(jobs: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return the starts and ends of the phases of each job in nanoseconds, both of shape (jobs, 3)."""
    begin_s, end_s = phase_intervals_s(jobs)
    return _ns_of(begin_s), _ns_of(end_s)


def _by_phase(starts: np.ndarray, ends: np.ndarray, amounts: np.ndarray) -> dict[str, _Intervals]:
    return {phase.name: (starts[:, i], ends[:, i], amounts[:, i]) for i, phase in enumerate(_PHASES)}


def _levels(series: Mapping[str, _Intervals], window: _Window) -> pd.DataFrame:
    """Return the sum of the active intervals: one column per series, one row per nanosecond (index) of a change.

    The first row is at the start of the window. The last row is at its end and all zero.
    """
    changes = [pd.DataFrame(0.0, index=list(window), columns=list(series))]
    for name, (starts, ends, amounts) in series.items():
        begin, end = np.clip(starts, *window), np.clip(ends, *window)
        changes += [pd.DataFrame({name: values}, at) for at, values in ((begin, amounts), (end, -amounts))]
    levels: pd.DataFrame = pd.concat(changes).fillna(0.0).groupby(level=0).sum().cumsum()
    return levels.round(9) + 0.0  # rounds sums of 1e-16 W to 0; + 0.0 turns -0.0 into 0.0


def _counter(name: str, levels: pd.DataFrame) -> Iterable[Event]:
    for at_ns, values in zip(levels.index.tolist(), levels.to_dict("records"), strict=True):
        yield {"ph": "C", "name": name, "pid": _pid(SERVER_ROW), "ts": at_ns / 1000, "args": values}


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _ns_of(seconds: np.ndarray) -> np.ndarray:
    return np.rint(seconds * 1e9).astype(np.int64)
