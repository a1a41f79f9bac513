"""Critical path of each round: the job that ended last and how its seconds split, as a table and in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
import pandas as pd

from edgesim.core.errors import ConfigError
from edgesim.core.job import DELIVERED, ON_TIME_S
from edgesim.core.work import interval_factor
from edgesim.records.run import RecordedRun
from edgesim.reports.format import count, span, text
from edgesim.reports.participation import KINDS_OF_END, by_kind

NOBODY = -1  # device of a round in which no device was at work
_SHARES = ["down_s", "compute_s", "up_s", "link_wait_s"]
ROUNDING_S = 1e-6  # shorter waits are rounding errors


def attributed(jobs: pd.DataFrame, rounds: pd.DataFrame) -> pd.DataFrame:
    """Return the rounds table with the columns critical_*, which hold the result of `attribute` for each round."""
    if rounds.empty:
        return rounds.assign(critical_device=NOBODY, **{f"critical_{name}": 0.0 for name in (*_SHARES, "wait_s")})
    found = attribute(jobs, rounds).drop(columns=["round", "server_s"]).add_prefix("critical_")
    return rounds.assign(**{str(name): values.to_numpy() for name, values in found.items()})


def attribute(jobs: pd.DataFrame, rounds: pd.DataFrame) -> pd.DataFrame:
    """Return one row per closed round: the device whose job ended last, and where the seconds went.

    Columns: round, device (of the last job of the critical path; -1: no device was at work), down_s, compute_s, up_s,
    link_wait_s (waiting for a shared link), wait_s (for peers, other devices or a deadline), server_s. The seconds of
    a row add up to now_s - start_s of its round. A job that was sent out before its round began, as under protocols
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
    """Return the jobs of every round's critical path, one row per job, in the order of time.

    The path is followed backwards from the end of the round. It starts at the job that ended last. Among jobs that
    ended at the same time, a job that was not broken off goes first, then the lowest device. The job before it is the
    one that ended last by the time at which this one was sent, and so on until the start of the round. A round of
    several exchanges therefore has one job for each.

    Columns: round, job, device, start_s and end_s within the round, and the seconds in between as down_s, compute_s,
    up_s and link_wait_s. Seconds missing in this sum are the wait for peers. Waits for a shared link are taken from
    both transfers of a job in proportion to their lengths, as the tables do not tell them apart.
    """
    place = rounds_of(jobs, rounds)
    broken_off = jobs["lacked_s"] > 0  # such as jobs that were cancelled as the last update needed came
    order = np.lexsort((jobs["device"], broken_off, -jobs["end_s"], -place))  # from the last round to the first
    order = order[place[order] < len(rounds)]
    begin_of_round_s = rounds["start_s"].tolist()
    picked: list[int] = []
    within, at_s = -1, inf
    columns = (place[order], jobs["sent_s"].to_numpy()[order], jobs["end_s"].to_numpy()[order])
    for position, (round_, sent_s, ended_s) in enumerate(zip(*(each.tolist() for each in columns), strict=True)):
        if round_ != within:
            within, at_s = round_, inf
        if at_s > begin_of_round_s[round_] and ended_s <= at_s and sent_s < at_s:
            picked.append(position)
            at_s = sent_s
    chosen = order[np.array(picked, dtype=np.int64)][::-1]

    path, merges = jobs.iloc[chosen], rounds.iloc[place[chosen]]  # of each job the row of its round
    start_s, closed_s = merges["start_s"].to_numpy(), (merges["now_s"] - merges["server_s"]).to_numpy()
    begin_s, end_s = (np.clip(times_s, start_s[:, None], closed_s[:, None]) for times_s in phase_intervals_s(path))
    down_s, compute_s, up_s = (end_s - begin_s).T
    transfers_s = (path["down_s"] + path["up_s"]).to_numpy()
    waited_s = path["link_wait_s"].to_numpy()
    waiting = np.divide(waited_s, transfers_s, out=np.zeros(len(path)), where=transfers_s > 0)
    return pd.DataFrame(
        {
            "round": merges["round"].to_numpy(),
            "job": path["job"].to_numpy(),
            "device": path["device"].to_numpy(),
            "start_s": begin_s[:, 0],
            "end_s": np.clip(path["end_s"].to_numpy(), start_s, closed_s),
            "down_s": down_s * (1 - waiting),
            "compute_s": compute_s,
            "up_s": up_s * (1 - waiting),
            "link_wait_s": (down_s + up_s) * waiting,
        }
    )


def rounds_of(jobs: pd.DataFrame, rounds: pd.DataFrame) -> np.ndarray:
    """Return the row in the rounds table of the round in which each job ended, int64, shape (jobs,).

    Jobs of a round that never closed, and jobs cut off when the run stopped, get len(rounds).
    """
    by_time = np.searchsorted(round_limits_s(rounds), jobs["end_s"])
    asked_in = np.searchsorted(rounds["round"], jobs["round"])
    stopped = (jobs["outcome"] == "stopped").to_numpy()
    return np.where(stopped, len(rounds), np.maximum(by_time, asked_in))


def round_limits_s(rounds: pd.DataFrame) -> np.ndarray:
    """Return the latest instants at which a job still ends before its round is closed, float64, shape (rounds,)."""
    closed_s = (rounds["now_s"] - rounds["server_s"]).to_numpy()
    limits_s: np.ndarray = closed_s + ON_TIME_S + 4 * np.spacing(closed_s)
    return limits_s


def phase_intervals_s(jobs: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return the starts and the ends of download, computing and upload of each job, both of shape (jobs, 3).

    The wait for messages of peers lies between download and computing.
    """
    lengths_s = jobs[["down_s", "wait_s", "compute_s", "up_s"]].to_numpy(dtype=np.float64)
    sent_s = jobs[["sent_s"]].to_numpy(dtype=np.float64)
    bounds_s = sent_s + np.hstack([np.zeros_like(sent_s), np.cumsum(lengths_s, axis=1)])
    bounds_s = np.minimum(bounds_s, jobs[["end_s"]].to_numpy(dtype=np.float64))  # a sum may pass it by rounding
    return bounds_s[:, [0, 2, 3]], bounds_s[:, [1, 3, 4]]


def next_to_end(jobs: pd.DataFrame, job: int) -> pd.DataFrame:
    """Return the job, as a frame of one row, that ended last among the jobs sent out together with `job`.

    If several ended last, it is the one of the lowest device. The frame is empty if `job` was sent out alone.
    """
    own = jobs[jobs["job"] == job].iloc[0]
    others: pd.DataFrame = jobs[
        (jobs["round"] == own["round"]) & (jobs["sent_s"] == own["sent_s"]) & (jobs["job"] != job)
    ]
    return others.sort_values(["end_s", "device"], ascending=[False, True]).head(1)


def late_jobs(jobs: pd.DataFrame, rounds: pd.DataFrame, row: int) -> pd.DataFrame:
    """Return the jobs at work at the deadline of the round in this row of the table, the nearest to its end first.

    The columns are those of jobs, but lacked_s counts from the deadline: the seconds that the job still needed then,
    whether it was broken off or went on. There is no row if the round did not end by its deadline.
    """
    merge = rounds.iloc[row]
    closed_s = merge["now_s"] - merge["server_s"]
    of_round = jobs[jobs["round"] == merge["round"]]
    of_round = of_round[of_round["sent_s"] == of_round["sent_s"].max()]  # jobs of the exchange that was cut off
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


_SPLIT = {"down_s": "download", "compute_s": "compute", "up_s": "upload", "link_wait_s": "waiting for a shared link"}
_DOING = {"up_s": "uploading", "compute_s": "computing", "down_s": "downloading"}  # from the last to the first
_MOST_TOLD = 5
_LAST = {
    "all": "All jobs had ended; {who} was the last{how}: {split}.",
    "minimum": "After its deadline of {deadline} it went on for the minimum; {who} was the last{how}: {split}.",
    "enough": "It had the {used} updates that it keeps; {who} brought the last of them: {split}.",
    "buffer": "The buffer was full; {who} brought the last update: {split}.",
    "tier": "All jobs of a tier had ended; {who} was the last{how}: {split}.",
    "other": "{who} was the last to end{how}: {split}.",
}


def explain(run: RecordedRun, number: int, intervals: bool = False) -> str:
    """Return a few lines on why a round took as long as it did. `number` is 1 for the first round.

    They give the length of the round, the device or deadline that ended it, and how the time of the last device splits.
    They say how long the round would have been without that device, where the tables tell. Waiting, the server's work,
    the devices that did not deliver with their progress, and a line for each kind of device follow. With `intervals`
    each computation of the critical path has the 90 % interval of its clock's error. Raises ConfigError if the round
    did not close, or if no clock has a spread.
    """
    told = _Told.of(run, number)
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
    lines.append(_ending(told))
    on_path = told.jobs[told.jobs["job"].isin([link["job"] for link in told.path])]
    for_peers_s = min(float(on_path["wait_s"].sum()), told.wait_s)
    rest_s = told.wait_s - for_peers_s - told.unasked_s
    if for_peers_s > ROUNDING_S:
        lines.append(f"{text('_s', for_peers_s)} passed in waiting for messages of peers.")
    if rest_s > ROUNDING_S:
        whom = "the deadline" if merge["closed_by"] == "deadline" else "others"
        lines.append(f"{text('_s', rest_s)} passed in waiting for {whom}.")
    if merge["server_s"] > 0:
        lines.append(f"The server's work took {text('_s', merge['server_s'])}.")
    lines = [_begin(line) for line in lines]

    delivered_or_told = {*DELIVERED, *([] if told.late.empty else ["late"])}
    failed = told.jobs[~told.jobs["outcome"].isin(delivered_or_told)]
    for outcome, jobs in failed.groupby("outcome"):
        nearest = jobs.sort_values([*_DOING, "device"], ascending=[False] * len(_DOING) + [True])
        reached = [
            f"{told.name(job['device'])} after {_reached(job)}" for job in nearest.head(_MOST_TOLD).to_dict("records")
        ]
        more = [f"{len(jobs) - len(reached)} more"] if len(jobs) > len(reached) else []
        lines.append(f"{_begin(str(outcome).replace('_', ' '))}: {'; '.join([*reached, *more])}.")

    kinds = by_kind(told.jobs, run.devices).to_dict("records")
    for row in kinds if len(kinds) > 1 else []:
        ends = ", ".join(f"{row[name]} {what}" for name, what in KINDS_OF_END.items() if row[name])
        times = ", ".join(f"{what} {text('_s', row[f'mean_{name}'])}" for name, what in list(_SPLIT.items())[:3])
        means = f"; mean {times}" if row["ok_jobs"] else ""
        lines.append(f"{row['kind']}: {count(row['jobs'], 'job')} ({ends}){means}.")
    return "\n".join([*lines, *(_clock_lines(run, told) if intervals else ())])


def _clock_lines(run: RecordedRun, told: _Told) -> list[str]:
    """Return a line for each computation of the critical path, with the closed form of its interval."""
    fleet = run.manifest["scenario"]["fleet"]
    spreads = np.repeat([block["cpu"].get("spread", 0.0) for block in fleet], [block["count"] for block in fleet])
    if not spreads.any():
        raise ConfigError(f"--intervals: no device of {run.name} has a spread")
    lines = []
    for link in told.path:
        if link["device"] < 0 or not link["compute_s"]:
            continue
        factor = interval_factor(float(spreads[link["device"]]))
        took_s = link["compute_s"]
        lines.append(
            f"{_begin(told.name(link['device']))} computed for {text('_s', took_s)}, in nine of ten draws of its "
            f"clock's error {span('_s', took_s / factor, took_s * factor)} (x/: {factor:.3g})."
        )
    return lines


@dataclass(frozen=True)
class _Told:
    """Facts about a round from which its lines are written."""

    merge: Mapping[Any, Any]
    jobs: pd.DataFrame  # jobs that ended in the round
    path: list[dict[Any, Any]]  # its critical jobs
    late: pd.DataFrame  # jobs at work at its deadline
    by_rounds: bool  # False: jobs of any time follow each other
    length_s: float
    unasked_s: float  # before the first device could be asked
    wait_s: float  # of the critical path, `unasked_s` included
    alone: bool  # the end of one job does not depend on other jobs
    name: Callable[[int], str]

    @classmethod
    def of(cls, run: RecordedRun, number: int) -> _Told:
        """Return the facts of round `number`. Raises ConfigError if it did not close."""
        row = round_row(run.rounds, number)
        jobs = run.jobs[rounds_of(run.jobs, run.rounds) == row]
        merge = run.rounds.iloc[row].to_dict()
        asked = run.jobs[run.jobs["round"] == merge["round"]]
        by_rounds = merge["closed_by"] not in ("buffer", "tier", "other")
        unasked_s = float(asked["sent_s"].min() - merge["start_s"]) if by_rounds and len(asked) else 0.0
        kinds = dict(zip(run.devices["device"], run.devices["kind"], strict=True))
        among_peers = run.manifest["scenario"].get("peers") is not None
        return cls(
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


def _ending(told: _Told) -> str:
    """Return the sentence on what ended the round, and on how long it would have been without that."""
    closed_by, late = told.merge["closed_by"], told.late
    if closed_by == "deadline":
        lacking = [
            f"{told.name(job['device'])} lacked {text('_s', job['lacked_s'])} after {_reached(job)}"
            for job in late.head(_MOST_TOLD).to_dict("records")
        ]
        more = [f"{len(late) - len(lacking)} more"] if len(late) > len(lacking) else []
        line = (
            f"The deadline of {text('_s', told.merge['deadline_s'])} ended it, with {count(len(late), 'job')} late: "
            f"{'; '.join([*lacking, *more])}."
        )
        if len(late) > 1:
            return f"{line} Without any one of them it would have taken as long."
        if late.empty:
            return line
        closed_s = told.merge["now_s"] - told.merge["server_s"]
        return line + _without(told, {"job": late["job"].item(), "end_s": closed_s})
    if not told.path:
        if closed_by == "buffer":
            return "The buffer was full of updates that had come before."
        return "No device was at work."
    link = told.path[-1]
    outcome = told.jobs.loc[told.jobs["job"] == link["job"], "outcome"].item()
    line = _LAST[closed_by].format(
        who=told.name(link["device"]),
        how="" if outcome == "ok" else f" (outcome: {outcome})",
        split=_split(link),
        used=f"{told.merge['used']:.0f}",
        deadline=text("_s", told.merge["deadline_s"]),
    )
    return line + (_without(told, link) if closed_by == "all" else _next(told, link))


def _without(told: _Told, link: Mapping[Any, Any]) -> str:
    """Return a sentence on the round without a job that ended at `end_s`, or on the next job if that is not known."""
    if len(told.path) > 1 or not told.alone:
        return _next(told, link)
    other = next_to_end(_together(told), link["job"])
    if other.empty:
        return " No other device was asked with it."
    saved_s = link["end_s"] - other["end_s"].item()
    rival = told.name(other["device"].item())
    # without its update the server's work would take another time
    what = "the devices" if told.merge["server_s"] > 0 else "the round"
    if saved_s <= 0:
        return f" Without it {what} would have taken as long ({rival})."
    took, less = text("_s", told.length_s - told.merge["server_s"] - saved_s), text("_s", saved_s)
    return f" Without it {what} would have taken {took}, {less} less ({rival})."


def _next(told: _Told, link: Mapping[Any, Any]) -> str:
    """Return a sentence on the job that ended next to a critical job, before or after it; "" without rounds."""
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
    """Return the jobs of the round together with those at work at its deadline."""
    return pd.concat([told.jobs, told.late[~told.late["job"].isin(told.jobs["job"])]])


def _split(link: Mapping[Any, Any]) -> str:
    split = [f"{what} {text('_s', link[column])}" for column, what in _SPLIT.items() if link[column] > ROUNDING_S]
    return ", ".join(split) or "no time at all"


def _reached(job: Mapping[Any, Any]) -> str:
    column = next((column for column in _DOING if job[column] > 0), "down_s")
    return f"{text('_s', job[column])} of {_DOING[column]}"


def _begin(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
