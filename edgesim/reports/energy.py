"""Where the joules of a run went: device, component, activity, job and round of each."""

from __future__ import annotations

import pandas as pd

from edgesim.core.errors import ConfigError
from edgesim.records.schema import FIRST_EDGE_ROW, SERVER_ROW
from edgesim.reports.load import Run

KEYS = ["device", "component", "activity", "job", "round"]
KIND = "kind"  # of a device, follows from it
_ACCOUNT = KEYS[:3]
_NONE = -1  # job or round of joules that belong to none
_ROUNDING = 1e-12  # of an account, which sums over jobs in another order

# Column of the tables -> component and activity.
_JOB_USES = {
    "down_j": ("radio", "receive"),
    "compute_j": ("cpu", "compute"),
    "up_j": ("radio", "transmit"),
}
_DEVICE_USES = _JOB_USES | {"idle_j": ("base", "idle"), "sleep_j": ("base", "sleep")}
_RESTING = ("idle", "sleep")  # activities
_NETWORK_USE = {"link_j": ("network", "carry")}


def attribute_energy(run: Run) -> pd.DataFrame:
    """Return the joules of a run, one row for each device, component, activity, job and round that has any.

    Columns: device (-1: the server, below: edge servers), component (cpu, radio, base, network, edge, server), activity
    (compute, receive, transmit, idle, sleep, carry), job, round (from 0, as in the tables: the one that asked for the
    job or that the server worked for), joules. Job and round are -1 where joules belong to none: idle and asleep, what
    a device sent for jobs of others, what edge servers worked, and in an interrupted run all after the last closed
    round. What the network spent on a job's
    bytes stands with the job's device, although no device paid for it. All rows add up to the energy of the run.
    """
    accounts = _long(run.devices.assign(job=_NONE, round=_NONE), _DEVICE_USES)
    accounts.loc[accounts["device"] == SERVER_ROW, "component"] = "server"
    accounts.loc[accounts["device"] <= FIRST_EDGE_ROW, "component"] = "edge"
    known = pd.concat([_long(run.jobs, _JOB_USES), _of_the_server(run)])
    rest = accounts.merge(
        known.groupby(_ACCOUNT, as_index=False)["joules"].sum(), "left", _ACCOUNT, suffixes=("", "_known")
    )
    left_j = rest["joules"] - rest["joules_known"].fillna(0.0)
    rest = rest.assign(joules=left_j.where(left_j.abs() > _ROUNDING * rest["joules"], 0.0))
    carried = [_long(run.jobs, _NETWORK_USE), _long(_as_jobs(run.edges), _NETWORK_USE)]
    found = pd.concat([known, *carried, rest])[[*KEYS, "joules"]]
    return found[found["joules"] != 0].reset_index(drop=True)


def energy_by(run: Run, *keys: str) -> pd.DataFrame:
    """Return joules and share of the run's energy for each value of some keys (the index), the largest first.

    Keys are columns of `attribute_energy`, and `kind`, the name of a device's fleet block, or server. Raises
    ConfigError for another key, or none.
    """
    wrong = [key for place, key in enumerate(keys) if key not in [*KEYS, KIND] or key in keys[:place]]
    if wrong or not keys:
        raise ConfigError(f"energy by {', '.join(keys) or 'nothing'}: must be some of {', '.join([*KEYS, KIND])}")
    found = attribute_energy(run)
    found[KIND] = found["device"].map(run.devices.set_index("device")["kind"])
    sums = found.groupby(list(keys))[["joules"]].sum().sort_values("joules", ascending=False, kind="stable")
    return sums.assign(share=sums["joules"] / sums["joules"].sum())


def split_energy(run: Run) -> dict[str, float]:
    """Return the joules of a run, split as in the table rounds: energy_j, active_j, idle_j, participant_j."""
    found, devices = attribute_energy(run), run.devices
    energy_j, idle = float(found["joules"].sum()), found["activity"].isin(_RESTING)
    idle_j = float(found["joules"][idle].sum())
    never_asked = found["device"].isin(devices["device"][(devices["jobs"] == 0) & (devices["device"] >= 0)])
    bystanders_j = float(found["joules"][idle & never_asked].sum())
    return {
        "energy_j": energy_j,
        "active_j": energy_j - idle_j,
        "idle_j": idle_j,
        "participant_j": energy_j - bystanders_j,
    }


def _as_jobs(edges: pd.DataFrame) -> pd.DataFrame:
    """Return the orders of edge servers with the columns of jobs that say whose they are."""
    return edges.assign(device=FIRST_EDGE_ROW - edges["edge"], job=_NONE)


def _of_the_server(run: Run) -> pd.DataFrame:
    """Return what the server's work for each round added to its idle power."""
    server = run.devices[run.devices["device"] == SERVER_ROW]
    watts = (server["compute_j"] / server["busy_s"].where(server["busy_s"] > 0)).sum()
    joules = watts * run.rounds["server_s"]
    rounds = run.rounds[["round"]].assign(device=SERVER_ROW, job=_NONE, component="server", activity="compute")
    return rounds.assign(joules=joules)


def _long(table: pd.DataFrame, uses: dict[str, tuple[str, str]]) -> pd.DataFrame:
    """Return a row for each row of a table and column of `uses`."""
    parts = [
        table[["device", "job", "round"]].assign(component=component, activity=activity, joules=table[column])
        for column, (component, activity) in uses.items()
    ]
    return pd.concat(parts)
