"""What `explain` says about a round, and the range of rounds that `trace` is given."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pandas as pd

from edgesim.analysis.critical_path import ROUNDING_S, attribute, critical_jobs, next_to_end, round_row, rounds_of
from edgesim.analysis.load import Run
from edgesim.analysis.readable import text
from edgesim.errors import ConfigError
from edgesim.records.schema import DELIVERED

_SPLIT = {"down_s": "download", "compute_s": "compute", "up_s": "upload", "link_wait_s": "waiting for a shared link"}
_DOING = {"up_s": "uploading", "compute_s": "computing", "down_s": "downloading"}  # from the last to the first
_FAILURES_TOLD = 5


def parse_rounds(given: str) -> tuple[int, int]:
    """Return the first and last round of a text such as "3:5" or "4". Raises ConfigError for anything else."""
    match = re.fullmatch(r"([1-9]\d*)(?::([1-9]\d*))?", given)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if last < first:
        raise ConfigError(f"--rounds: {given!r} is not a range of rounds; write for example 3:5, counted from 1")
    return first, last


def explain(run: Run, number: int) -> str:
    """Return, in a few lines, why a round took as long as it did; `number` is 1 for the first round.

    Told are: its length; the device that decided it (of each exchange), how its time splits, and how long the round
    would have been without it, had nothing else changed; waiting and the server's work; who did not deliver and how
    far they got. Raises ConfigError if the round did not close.
    """
    row = round_row(run.merges, number)
    jobs = run.jobs[rounds_of(run.jobs, run.merges) == row]
    merge, share = run.merges.iloc[row], attribute(run.jobs, run.merges).iloc[row]
    path = critical_jobs(jobs, run.merges).to_dict("records")
    length_s = float(merge["now_s"] - merge["start_s"])
    name = _namer(run)
    lines = [f"Round {number} took {text('_s', length_s)}; {merge['used']:.0f} of {merge['asked']:.0f} jobs merged."]
    if not path:
        lines.append("No device was at work.")
    for step, link in enumerate(path, 1):
        label = f"Exchange {step} of {len(path)}: " if len(path) > 1 else ""
        lines.append(label + _decided(link, jobs, name) + " " + _without(link, jobs, length_s, name))
    if share["wait_s"] > ROUNDING_S:
        lines.append(f"{text('_s', share['wait_s'])} passed in waiting for others or the deadline.")
    if share["server_s"] > 0:
        lines.append(f"The server's work took {text('_s', share['server_s'])}.")
    return "\n".join([*lines, *_failures(jobs[~jobs["outcome"].isin(DELIVERED)], name)])


def _namer(run: Run) -> Callable[[int], str]:
    kinds = dict(zip(run.devices["device"], run.devices["kind"], strict=True))
    return lambda device: f"device {device} ({kinds[device]})"


def _decided(link: Mapping[Any, Any], jobs: pd.DataFrame, name: Callable[[int], str]) -> str:
    outcome = jobs.loc[jobs["job"] == link["job"], "outcome"].item()
    how = "" if outcome == "ok" else f" (outcome: {outcome})"
    split = ", ".join(f"{what} {text('_s', link[column])}" for column, what in _SPLIT.items() if link[column] > 0)
    return f"{_begin(name(link['device']))} decided it{how}: {split or 'no time at all'}."


def _without(link: Mapping[Any, Any], jobs: pd.DataFrame, length_s: float, name: Callable[[int], str]) -> str:
    other = next_to_end(jobs, link["job"])
    if other.empty:
        return "No other device was asked with it."
    saved_s = link["end_s"] - other["end_s"].item()
    rival = name(other["device"].item())
    if saved_s <= 0:
        return f"Without it the round would have taken as long ({rival})."
    took, less = text("_s", length_s - saved_s), text("_s", saved_s)
    return f"Without it the round would have taken {took}, {less} less ({rival})."


def _failures(failed: pd.DataFrame, name: Callable[[int], str]) -> Iterable[str]:
    """Yield a line for each outcome: who ended so, and how far they got; the nearest to delivery first."""
    for outcome, jobs in failed.groupby("outcome"):
        furthest = jobs.sort_values([*_DOING, "device"], ascending=[False] * len(_DOING) + [True])
        told = [
            f"{name(job['device'])} after {_reached(job)}" for job in furthest.head(_FAILURES_TOLD).to_dict("records")
        ]
        more = [f"{len(jobs) - len(told)} more"] if len(jobs) > len(told) else []
        yield f"{_begin(str(outcome).replace('_', ' '))}: {'; '.join([*told, *more])}."


def _reached(job: Mapping[Any, Any]) -> str:
    column = next((column for column in _DOING if job[column] > 0), "down_s")
    return f"{text('_s', job[column])} of {_DOING[column]}"


def _begin(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
