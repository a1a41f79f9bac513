"""Participation of devices in a run: sums and means of jobs by kind of device, and by device."""

from __future__ import annotations

import pandas as pd

from edgesim.core.job import DELIVERED
from edgesim.records.run import RecordedRun

KINDS_OF_END = {"ok_jobs": "delivered", "late_jobs": "late", "failed_jobs": "failed"}
_TIMES = ["down_s", "compute_s", "up_s"]
_SPENT = ["down_j", "compute_j", "up_j", "idle_j", "sleep_j"]


def by_kind(jobs: pd.DataFrame, devices: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each kind of device with any of these jobs, in the order of the fleet.

    Columns: kind, jobs, those of KINDS_OF_END, late_share, and mean_down_s, mean_compute_s and mean_up_s over jobs that
    delivered.
    """
    kinds = devices.set_index("device")["kind"]
    found = _sums(jobs, jobs["device"].map(kinds).rename("kind"))
    order = [kind for kind in dict.fromkeys(kinds) if kind in found.index]
    return found.loc[order].reset_index()


def participation(run: RecordedRun, each: bool = False) -> pd.DataFrame:
    """Return a row for each kind of device, or with `each` for each device, in the order of the fleet.

    Columns: kind, devices (with `each`: device instead), jobs, ok_jobs, late_jobs, failed_jobs (the three and the jobs
    at work when the run ended add up to jobs), late_share (of jobs), mean_down_s, mean_compute_s and mean_up_s (over
    jobs that delivered), took_part (the share of devices with a job; with `each` the share of closed rounds that asked
    the device), jobs_share (of all jobs), down_bytes, up_bytes, active_j (receiving, computing and sending) and idle_j
    (sleep included). The server has no row. Shares and means of nothing are NaN.
    """
    fleet = run.devices[run.devices["device"] >= 0]
    groups = ["device"] if each else ["kind"]
    kinds = fleet.set_index("device")["kind"]
    key = run.jobs["device"] if each else run.jobs["device"].map(kinds).rename("kind")
    spent = fleet.assign(active_j=fleet[_SPENT[:3]].sum(axis=1), idle_j=fleet[_SPENT[3:]].sum(axis=1))
    known = spent.groupby(groups, sort=False)[["down_bytes", "up_bytes", "active_j", "idle_j"]].sum()
    found = _sums(run.jobs, key).reindex(known.index)
    counts = ["jobs", *KINDS_OF_END]
    found[counts] = found[counts].fillna(0).astype("int64")
    if each:
        found.insert(0, "kind", kinds)
        asked = run.jobs[run.jobs["round"].isin(run.rounds["round"])].groupby("device")["round"].nunique()
        found["took_part"] = asked.reindex(known.index, fill_value=0) / (len(run.rounds) or float("nan"))
    else:
        found.insert(0, "devices", fleet.groupby(groups, sort=False).size())
        found["took_part"] = (
            run.jobs.groupby(key)["device"].nunique().reindex(known.index, fill_value=0) / found["devices"]
        )
    found["jobs_share"] = found["jobs"] / (len(run.jobs) or float("nan"))
    return found.join(known).reset_index()


def _sums(jobs: pd.DataFrame, key: pd.Series) -> pd.DataFrame:
    """Return the numbers of jobs by ending for each value of `key` (index), and mean seconds of jobs that delivered."""
    ok, late = jobs["outcome"].isin(DELIVERED), jobs["outcome"] == "late"
    ends = {"ok_jobs": ok, "late_jobs": late, "failed_jobs": ~ok & ~late & (jobs["outcome"] != "stopped")}
    counts = pd.DataFrame({"jobs": True, **ends}, index=jobs.index).groupby(key).sum().astype("int64")
    means = jobs[_TIMES].where(ok).groupby(key).mean().add_prefix("mean_")
    return counts.assign(late_share=counts["late_jobs"] / counts["jobs"]).join(means)
