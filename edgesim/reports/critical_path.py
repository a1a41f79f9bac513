"""Critical path of each round: the job that ended last, and how its seconds split; and the same in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
import pandas as pd

from edgesim.core.errors import ConfigError
from edgesim.core.job import DELIVERED, ON_TIME_S
from edgesim.reports.format import text
from edgesim.reports.load import Run
from edgesim.reports.participation import KINDS_OF_END, by_kind

NOBODY = -1  # device of a round in which nobody was at work
_SHARES = ["down_s", "compute_s", "up_s", "link_wait_s"]
_LINK = ["round", "job", "device", "start_s", "end_s", *_SHARES]
ROUNDING_S = 1e-6  # shorter waits are what rounding leaves


def attributed(jobs: pd.DataFrame, rounds: pd.DataFrame) -> pd.DataFrame:
    """Return the merges with the columns critical_*: what `attribute` says of each round, as run folders keep it."""
    found = attribute(jobs, rounds).drop(columns=["round", "server_s"]).add_prefix("critical_")
    return rounds.assign(**{str(name): values.to_numpy() for name, values in found.items()})


def attribute(jobs: pd.DataFrame, rounds: pd.DataFrame) -> pd.DataFrame:
    """Return one row a closed round: the device whose job ended last, and where the seconds went.

    Columns: round, device (of the last job of the critical path; -1: nobody was at work), down_s, compute_s, up_s,
    link_wait_s (waiting for a shared link), wait_s (for peers, for others or for a deadline), server_s. The seconds of
    a row add up to now_s - start_s of its merge. A job that was sent out before its round began, as under protocols
    without rounds, counts from the round's start.
    """
    path = critical_jobs(jobs, rounds)
    by_round = path.groupby("round")
    spent = by_round[_SHARES].sum().reindex(rounds["round"], fill_value=0.0)
    device = by_round["device"].last().reindex(rounds["round"], fill_value=NOBODY)
    server_s = rounds["server_s"].to_numpy()
    room_s = np.maximum(0.0, (rounds["now_s"] - rounds["start_s"]).to_numpy() - server_s)
    spent_s = spent.sum(axis=1).to_numpy()
    # Late on a large clock, differences of instants are coarse: the path may pass the room it has by a rounding error.
    fitting = np.divide(room_s, spent_s, out=np.ones(len(rounds)), where=spent_s > room_s)
    waiting_s = np.maximum(0.0, room_s - spent_s)
    frame: pd.DataFrame = spent.mul(fitting, axis=0).assign(wait_s=waiting_s, server_s=server_s).reset_index()
    frame.insert(1, "device", device.to_numpy())
    return frame


def critical_jobs(jobs: pd.DataFrame, rounds: pd.DataFrame) -> pd.DataFrame:
    """Return the jobs of every round's critical path, one row a job, in the order of time.

    The path is followed backwards from the end of the round: the job that ended last (of several one that was not
    broken off, and the one of the lowest device), then the one that ended last by the time this was sent, until the
    start of the round. So a round of several exchanges has one job for each. Columns: round, job, device, start_s and
    end_s within the round, and the seconds in between as down_s, compute_s, up_s and link_wait_s; what is missing it
    waited for its peers. Waits for a shared link are taken from both transfers of a job in proportion to their
    lengths, as the tables do not tell them apart.
    """
    place = rounds_of(jobs, rounds)
    broken_off = jobs["lacked_s"] > 0  # such as those that were cancelled as the last update needed came
    order = np.lexsort((jobs["device"], broken_off, -jobs["end_s"], -place))  # from the last round to the first
    order = order[place[order] < len(rounds)]
    chosen = order[_backwards(jobs.iloc[order], place[order], rounds["start_s"].to_numpy())][::-1]
    return _shares(jobs.iloc[chosen], rounds.iloc[place[chosen]])


def rounds_of(jobs: pd.DataFrame, rounds: pd.DataFrame) -> np.ndarray:
    """Return the row of the merge in whose round each job ended, int64, shape (jobs,).

    Jobs that no closed round waited for get len(merges): those of a round that never closed, and those cut off when
    the run stopped.
    """
    by_time = np.searchsorted(round_limits_s(rounds), jobs["end_s"])
    asked_in = np.searchsorted(rounds["round"], jobs["round"])
    stopped = (jobs["outcome"] == "stopped").to_numpy()
    return np.where(stopped, len(rounds), np.maximum(by_time, asked_in))


def round_limits_s(rounds: pd.DataFrame) -> np.ndarray:
    """Return the instants up to which jobs count as ended before their round was closed, float64, shape (rounds,)."""
    closed_s = (rounds["now_s"] - rounds["server_s"]).to_numpy()
    limits_s: np.ndarray = closed_s + ON_TIME_S + 4 * np.spacing(closed_s)
    return limits_s


def phase_intervals_s(jobs: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return when download, computing and upload of each job began and when they ended, both of shape (jobs, 3).

    Between download and computing lies the wait for messages of peers.
    """
    lengths_s = jobs[["down_s", "wait_s", "compute_s", "up_s"]].to_numpy(dtype=np.float64)
    sent_s = jobs[["sent_s"]].to_numpy(dtype=np.float64)
    bounds_s = sent_s + np.hstack([np.zeros_like(sent_s), np.cumsum(lengths_s, axis=1)])
    bounds_s = np.minimum(bounds_s, jobs[["end_s"]].to_numpy(dtype=np.float64))  # a sum may pass it by rounding
    return bounds_s[:, [0, 2, 3]], bounds_s[:, [1, 3, 4]]


def next_to_end(jobs: pd.DataFrame, job: int) -> pd.DataFrame:
    """Return the job, as a frame of one row, that ended last among those sent out together with `job`.

    Of several it is the one of the lowest device; the frame is empty if `job` was sent out alone.
    """
    own = jobs[jobs["job"] == job].iloc[0]
    others: pd.DataFrame = jobs[
        (jobs["round"] == own["round"]) & (jobs["sent_s"] == own["sent_s"]) & (jobs["job"] != job)
    ]
    return others.sort_values(["end_s", "device"], ascending=[False, True]).head(1)


def late_jobs(jobs: pd.DataFrame, rounds: pd.DataFrame, row: int) -> pd.DataFrame:
    """Return the jobs at work at the deadline of the round in this row of the merges, the nearest to its end first.

    Columns: those of jobs, but lacked_s counts from the deadline: what they still needed then, whether they were broken
    off or went on. There is no row if the round did not end by its deadline.
    """
    merge = rounds.iloc[row]
    closed_s = merge["now_s"] - merge["server_s"]
    of_round = jobs[jobs["round"] == merge["round"]]
    of_round = of_round[of_round["sent_s"] == of_round["sent_s"].max()]  # of the exchange that was cut off
    went_on = of_round["end_s"] > closed_s + ON_TIME_S
    broken_off = (of_round["outcome"] == "late") & (of_round["lacked_s"] > 0)
    late: pd.DataFrame = of_round[(went_on | broken_off) & (merge["closed_by"] == "deadline")]
    after_s = np.maximum(0.0, late["end_s"] - closed_s)
    late = late.assign(lacked_s=late["lacked_s"] + after_s)
    return late.sort_values(["lacked_s", "device"])


def round_row(rounds: pd.DataFrame, number: int) -> int:
    """Return the row of the round `number`, 1 for the first one. Raises ConfigError if it did not close."""
    rows = np.flatnonzero(rounds["round"] == number - 1)
    if not len(rows):
        known = f"rounds 1 to {len(rounds)}" if len(rounds) else "no closed round"
        raise ConfigError(f"--round: the run has {known}, found {number}")
    return int(rows[0])


def _backwards(jobs: pd.DataFrame, place: np.ndarray, start_s: np.ndarray) -> np.ndarray:
    """Return the positions of the critical jobs, int64.

    Jobs of a round lie together, the last to end first; `place` is the round of each, `start_s` when rounds began.
    """
    picked: list[int] = []
    within, at_s = -1, inf
    times = zip(place.tolist(), jobs["sent_s"].tolist(), jobs["end_s"].tolist(), strict=True)
    begin_s = start_s.tolist()
    for position, (round_, sent, end) in enumerate(times):
        if round_ != within:
            within, at_s = round_, inf
        if at_s > begin_s[round_] and end <= at_s and sent < at_s:
            picked.append(position)
            at_s = sent
    return np.array(picked, dtype=np.int64)


def _shares(jobs: pd.DataFrame, rounds: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of critical jobs, each with the merge of its round in the same position."""
    start_s, closed_s = rounds["start_s"].to_numpy(), (rounds["now_s"] - rounds["server_s"]).to_numpy()
    begin_s, end_s = (np.clip(times_s, start_s[:, None], closed_s[:, None]) for times_s in phase_intervals_s(jobs))
    down_s, compute_s, up_s = (end_s - begin_s).T
    transfers_s = (jobs["down_s"] + jobs["up_s"]).to_numpy()
    waited_s = jobs["link_wait_s"].to_numpy()
    waiting = np.divide(waited_s, transfers_s, out=np.zeros(len(jobs)), where=transfers_s > 0)
    values = (
        rounds["round"].to_numpy(),
        jobs["job"].to_numpy(),
        jobs["device"].to_numpy(),
        begin_s[:, 0],
        np.clip(jobs["end_s"].to_numpy(), start_s, closed_s),
        down_s * (1 - waiting),
        compute_s,
        up_s * (1 - waiting),
        (down_s + up_s) * waiting,
    )
    return pd.DataFrame(dict(zip(_LINK, values, strict=True)))


_SPLIT = {"down_s": "download", "compute_s": "compute", "up_s": "upload", "link_wait_s": "waiting for a shared link"}
_DOING = {"up_s": "uploading", "compute_s": "computing", "down_s": "downloading"}  # from the last to the first
_MOST_TOLD = 5
_LAST = {
    "all": "All jobs had ended; {who} was the last{how}: {split}.",
    "minimum": "After its deadline of {deadline} it went on for the minimum; {who} was the last{how}: {split}.",
    "enough": "It had the {used} updates that it keeps; {who} brought the last of them: {split}.",
    "buffer": "The buffer was full; {who} brought the last update: {split}.",
    "other": "{who} was the last to end{how}: {split}.",
}


def explain(run: Run, number: int) -> str:
    """Return, in a few lines, why a round took as long as it did; `number` is 1 for the first round.

    Told are: its length; what ended it, be it a device or the deadline, and how the time of the last device splits;
    how long the round would have been without it, where that follows from the tables; waiting and the server's work;
    who did not deliver and how far they got; a line for each kind of device. Raises ConfigError if the round did not
    close.
    """
    told = _told(run, number)
    merge = told.merge
    length = text("_s", told.length_s)
    lines = [f"Round {number} took {length}; {merge['used']:.0f} of {merge['asked']:.0f} jobs merged."]
    if told.unasked_s > ROUNDING_S:
        lines.append(f"Nobody could be asked for the first {text('_s', told.unasked_s)}.")
    lines += [
        f"Exchange {step} of {len(told.path)}: {told.name(link['device'])} was the last: {_split(link)}."
        f"{_next(told, link)}"
        for step, link in enumerate(told.path[:-1] if told.by_rounds else [], 1)
    ]
    lines += [*_ending(told), *_waits(told)]
    if merge["server_s"] > 0:
        lines.append(f"The server's work took {text('_s', merge['server_s'])}.")
    late = {} if told.late.empty else {"late"}
    failed = told.jobs[~told.jobs["outcome"].isin({*DELIVERED, *late})]
    return "\n".join([*map(_begin, lines), *_failures(failed, told.name), *_kinds(run, told.jobs)])


@dataclass(frozen=True)
class _Told:
    """What the lines about a round are made of."""

    merge: Mapping[Any, Any]
    jobs: pd.DataFrame  # that ended in it
    path: list[dict[Any, Any]]  # its critical jobs
    late: pd.DataFrame  # at its deadline
    by_rounds: bool
    length_s: float
    unasked_s: float  # before somebody could be asked
    wait_s: float  # of the critical path, `unasked_s` included
    alone: bool  # the end of one job does not depend on those of others
    name: Callable[[int], str]


def _told(run: Run, number: int) -> _Told:
    row = round_row(run.rounds, number)
    jobs = run.jobs[rounds_of(run.jobs, run.rounds) == row]
    merge = run.rounds.iloc[row].to_dict()
    asked = run.jobs[run.jobs["round"] == merge["round"]]
    by_rounds = merge["closed_by"] not in ("buffer", "other")  # else jobs of any time follow each other
    unasked_s = float(asked["sent_s"].min() - merge["start_s"]) if by_rounds and len(asked) else 0.0
    kinds = dict(zip(run.devices["device"], run.devices["kind"], strict=True))
    among_peers = run.manifest["scenario"].get("peers") is not None
    return _Told(
        merge=merge,
        jobs=jobs,
        path=critical_jobs(jobs, run.rounds).to_dict("records"),
        late=late_jobs(run.jobs, run.rounds, row),
        by_rounds=by_rounds,
        length_s=float(merge["now_s"] - merge["start_s"]),
        unasked_s=unasked_s,
        wait_s=float(attribute(run.jobs, run.rounds)["wait_s"].iloc[row]),
        alone=not among_peers and unasked_s <= ROUNDING_S and not (asked["link_wait_s"] > ROUNDING_S).any(),
        name=lambda device: f"device {device} ({kinds[device]})",
    )


# --- what ended it ------------------------------------------------------------------------------------------


def _ending(told: _Told) -> Iterator[str]:
    if told.merge["closed_by"] == "deadline":
        yield from _deadline(told)
    elif not told.path:
        waiting = "The buffer was full of updates that had come before." if told.merge["closed_by"] == "buffer" else ""
        yield waiting or "No device was at work."
    else:
        link = told.path[-1]
        outcome = told.jobs.loc[told.jobs["job"] == link["job"], "outcome"].item()
        line = _LAST[told.merge["closed_by"]].format(
            who=told.name(link["device"]),
            how="" if outcome == "ok" else f" (outcome: {outcome})",
            split=_split(link),
            used=f"{told.merge['used']:.0f}",
            deadline=text("_s", told.merge["deadline_s"]),
        )
        yield line + (_without(told, link) if told.merge["closed_by"] == "all" else _next(told, link))


def _deadline(told: _Told) -> Iterator[str]:
    lacking = [
        f"{told.name(job['device'])} lacked {text('_s', job['lacked_s'])} after {_reached(job)}"
        for job in told.late.head(_MOST_TOLD).to_dict("records")
    ]
    more = [f"{len(told.late) - len(lacking)} more"] if len(told.late) > len(lacking) else []
    ended = f"The deadline of {text('_s', told.merge['deadline_s'])} ended it"
    yield f"{ended}, with {_count(len(told.late), 'job')} late: {'; '.join([*lacking, *more])}." + _without_late(told)


def _without_late(told: _Told) -> str:
    """Return what the round would have taken without one of its late jobs, had nothing else changed."""
    if len(told.late) > 1:
        return " Without any one of them it would have taken as long."
    if told.late.empty:
        return ""
    return _without(told, {"job": told.late["job"].item(), "end_s": told.merge["now_s"] - told.merge["server_s"]})


def _without(told: _Told, link: Mapping[Any, Any]) -> str:
    """Return what the round would have taken without a job that ended at `end_s`; only who came next if unknown."""
    if len(told.path) > 1 or not told.alone:
        return _next(told, link)
    other = next_to_end(_together(told), link["job"])
    if other.empty:
        return " No other device was asked with it."
    saved_s = link["end_s"] - other["end_s"].item()
    rival = told.name(other["device"].item())
    # the server's work is another one without its update
    what = "the devices" if told.merge["server_s"] > 0 else "the round"
    if saved_s <= 0:
        return f" Without it {what} would have taken as long ({rival})."
    took, less = text("_s", told.length_s - told.merge["server_s"] - saved_s), text("_s", saved_s)
    return f" Without it {what} would have taken {took}, {less} less ({rival})."


def _next(told: _Told, link: Mapping[Any, Any]) -> str:
    """Return who ended next before a critical job, or would have next after it; nothing without rounds."""
    if not told.by_rounds:
        return ""
    other = next_to_end(_together(told), link["job"])
    if other.empty:
        return " No other device was asked with it."
    cancelled = told.jobs[(told.jobs["outcome"] == "late") & (told.jobs["lacked_s"] > 0)]
    if told.merge["closed_by"] in ("enough", "minimum") and link is told.path[-1] and len(cancelled):
        first = cancelled.sort_values(["lacked_s", "device"]).iloc[0]
        return f" Next would have been {told.name(first['device'])}, which lacked {text('_s', first['lacked_s'])}."
    before_s = link["end_s"] - other["end_s"].item()
    when = f"{text('_s', before_s)} before" if before_s > ROUNDING_S else "at the same time"
    return f" Next to end was {told.name(other['device'].item())}, {when}."


def _together(told: _Told) -> pd.DataFrame:
    """Return the jobs of the round with those that its deadline found at work."""
    return pd.concat([told.jobs, told.late[~told.late["job"].isin(told.jobs["job"])]])


def _split(link: Mapping[Any, Any]) -> str:
    split = [f"{what} {text('_s', link[column])}" for column, what in _SPLIT.items() if link[column] > 0]
    return ", ".join(split) or "no time at all"


# --- everything else ----------------------------------------------------------------------------------------


def _waits(told: _Told) -> Iterator[str]:
    on_path = told.jobs[told.jobs["job"].isin([link["job"] for link in told.path])]
    for_peers_s = min(float(on_path["wait_s"].sum()), told.wait_s)
    rest_s = told.wait_s - for_peers_s - told.unasked_s
    if for_peers_s > ROUNDING_S:
        yield f"{text('_s', for_peers_s)} passed in waiting for messages of peers."
    if rest_s > ROUNDING_S:
        whom = "the deadline" if told.merge["closed_by"] == "deadline" else "others"
        yield f"{text('_s', rest_s)} passed in waiting for {whom}."


def _failures(failed: pd.DataFrame, name: Callable[[int], str]) -> Iterable[str]:
    """Yield a line for each outcome: who ended so, and how far they got; the nearest to delivery first."""
    for outcome, jobs in failed.groupby("outcome"):
        furthest = jobs.sort_values([*_DOING, "device"], ascending=[False] * len(_DOING) + [True])
        told = [f"{name(job['device'])} after {_reached(job)}" for job in furthest.head(_MOST_TOLD).to_dict("records")]
        more = [f"{len(jobs) - len(told)} more"] if len(jobs) > len(told) else []
        yield f"{_begin(str(outcome).replace('_', ' '))}: {'; '.join([*told, *more])}."


def _kinds(run: Run, jobs: pd.DataFrame) -> Iterable[str]:
    """Yield a line for each kind of device, if the round had jobs of several: how they ended, and their mean times."""
    found = by_kind(jobs, run.devices)
    if len(found) < 2:
        return
    for row in found.to_dict("records"):
        ends = ", ".join(f"{row[name]} {what}" for name, what in KINDS_OF_END.items() if row[name])
        times = ", ".join(f"{what} {text('_s', row[f'mean_{name}'])}" for name, what in list(_SPLIT.items())[:3])
        means = f"; mean {times}" if row["ok_jobs"] else ""
        yield f"{row['kind']}: {_count(row['jobs'], 'job')} ({ends}){means}."


def _reached(job: Mapping[Any, Any]) -> str:
    column = next((column for column in _DOING if job[column] > 0), "down_s")
    return f"{text('_s', job[column])} of {_DOING[column]}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _begin(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
