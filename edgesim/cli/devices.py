"""The `devices` command: participation of devices in a run, and their times, bytes and energy."""

from __future__ import annotations

from edgesim.cli.show import print_json, print_table
from edgesim.reports.load import Run
from edgesim.reports.participation import participation

_SHARES = ("late_share", "took_part", "jobs_share")
_HEADINGS = {
    "device": "device", "kind": "kind", "devices": "devices", "took_part": "took part", "jobs": "jobs",
    "jobs_share": "of all jobs", "ok_jobs": "delivered", "late_jobs": "late", "late_share": "late share",
    "failed_jobs": "failed", "mean_down_s": "mean download", "mean_compute_s": "mean compute",
    "mean_up_s": "mean upload", "down_bytes": "down", "up_bytes": "up", "active_j": "active", "idle_j": "idle",
}  # fmt: skip


def print_participation(run: Run, each: bool = False, as_json: bool = False) -> None:
    """Print a row for each kind of device, or with `each` for each device: see `participation`."""
    found = participation(run, each)
    if as_json:
        rows = found.astype(object).where(found.notna(), None).to_dict("records")
        print_json({"status": run.status, "rounds": len(run.rounds), "devices" if each else "kinds": rows})
        return
    shown = found.astype(object)
    for name in _SHARES:
        shown[name] = [None if share != share else f"{share:.1%}" for share in found[name]]
    rounds = f"{len(run.rounds)} round{'s'[: len(run.rounds) != 1]}"
    columns = {name: heading for name, heading in _HEADINGS.items() if name in shown}
    print_table(shown.to_dict("records"), columns, f"{run.name}: {len(run.jobs)} jobs in {rounds}")
