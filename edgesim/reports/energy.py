"""Joules of a run by device, component, activity, job and round, and money and carbon by item, round and device."""

from __future__ import annotations

import pandas as pd

from edgesim.core.errors import ConfigError
from edgesim.records.run import RecordedRun
from edgesim.records.schema import COSTS, FIRST_EDGE_ROW, SERVER_ROW

KEYS = ["device", "component", "activity", "job", "round"]
KIND = "kind"  # of a device, follows from it
ACCOUNT = "account"  # owner of the joules, one of ACCOUNTS; follows from the component
ACCOUNTS = ("devices", "network", "server")  # of a run; edge servers count as server
_USE = KEYS[:3]
_NONE = -1  # job or round of joules that belong to none
_ROUNDING = 1e-12  # relative rounding error of an account, which sums over jobs in another order

# Column of the tables -> component and activity.
_JOB_USES = {"down_j": ("radio", "receive"), "compute_j": ("cpu", "compute"), "up_j": ("radio", "transmit")}
_DEVICE_USES = _JOB_USES | {"idle_j": ("base", "idle"), "sleep_j": ("base", "sleep")}
_RESTING = ("idle", "sleep")  # activities
_NETWORK_USE = {"link_j": ("network", "carry")}
_ACCOUNT_OF = {"network": "network", "server": "server", "edge": "server"}  # component -> account; all others: devices


def attribute_energy(run: RecordedRun) -> pd.DataFrame:
    """Return the joules of a run, one row for each device, component, activity, job and round that has any.

    Columns: device (-1: the server, below: edge servers), component (cpu, radio, base, network, edge, server), activity
    (compute, receive, transmit, idle, sleep, carry), job, round (from 0, as in the tables: the round that asked for the
    job or that the server worked for), joules. Job and round are -1 for joules that belong to none: idle and sleeping
    power, sending for jobs of other devices, work of edge servers, other sessions of the run, and in an interrupted run
    everything after the last closed round. The network's joules for a job's bytes are in a row of the job's device,
    although no device paid for them. Rows of the components network, edge and server belong to accounts of their own.
    All other rows are joules of the devices.
    """
    accounts = _long(run.devices.assign(job=_NONE, round=_NONE), _DEVICE_USES)
    accounts.loc[accounts["device"] == SERVER_ROW, "component"] = "server"
    accounts.loc[accounts["device"] <= FIRST_EDGE_ROW, "component"] = "edge"
    server = run.devices[run.devices["device"] == SERVER_ROW]
    added_w = (server["compute_j"] / server["busy_s"].where(server["busy_s"] > 0)).sum()  # above its idle power
    merges = run.rounds[["round"]].assign(device=SERVER_ROW, job=_NONE, component="server", activity="compute")
    known = pd.concat([_long(run.jobs, _JOB_USES), merges.assign(joules=added_w * run.rounds["server_s"])])
    rest = accounts.merge(known.groupby(_USE, as_index=False)["joules"].sum(), "left", _USE, suffixes=("", "_known"))
    left_j = rest["joules"] - rest["joules_known"].fillna(0.0)
    rest = rest.assign(joules=left_j.where(left_j.abs() > _ROUNDING * rest["joules"], 0.0))
    carried = _carried(run)
    others = [view for name in run.sessions if (view := run.session(name)).chosen != run.chosen]
    if others:  # the network's joules for jobs of other sessions, a row per device
        of_others = pd.concat(map(_carried, others)).assign(job=_NONE, round=_NONE)
        carried_for_others = of_others.groupby(KEYS, as_index=False)[["joules"]].sum()
    else:
        carried_for_others = carried.head(0)
    found = pd.concat([known, carried, carried_for_others, rest])[[*KEYS, "joules"]]
    return found[found["joules"] != 0].reset_index(drop=True)


def energy_by(run: RecordedRun, *keys: str) -> pd.DataFrame:
    """Return the joules of the devices and their shares for each value of some keys (the index), the largest first.

    Keys are columns of `attribute_energy`, `kind`, the name of a device's fleet block, or `account`. With the key
    `account` the rows of network and server are included, and a share is relative to its account. Raises ConfigError
    for another key, or none.
    """
    allowed = [*KEYS, KIND, ACCOUNT]
    wrong = [key for place, key in enumerate(keys) if key not in allowed or key in keys[:place]]
    if wrong or not keys:
        raise ConfigError(f"energy by {', '.join(keys) or 'nothing'}: must be some of {', '.join(allowed)}")
    found = attribute_energy(run).assign(**{ACCOUNT: _accounts})
    found[KIND] = found["device"].map(run.devices.set_index("device")["kind"])
    if ACCOUNT not in keys:
        found = found[found[ACCOUNT] == ACCOUNTS[0]]
    sums = found.groupby(list(keys))[["joules"]].sum().sort_values("joules", ascending=False, kind="stable")
    of_account = sums["joules"].groupby(ACCOUNT).transform("sum") if ACCOUNT in keys else sums["joules"].sum()
    return sums.assign(share=sums["joules"] / of_account)


def split_energy(run: RecordedRun) -> dict[str, float]:
    """Return the joules of a run by account, named as in the table rounds, and their sum, energy_total_j.

    Keys: energy_j (of the devices) with its parts active_j, idle_j and participant_j, energy_network_j and
    energy_server_j.
    """
    every, devices = attribute_energy(run), run.devices
    of_account = every.groupby(_accounts(every))["joules"].sum().reindex(ACCOUNTS, fill_value=0.0)
    found = every[_accounts(every) == ACCOUNTS[0]]
    energy_j, idle = float(found["joules"].sum()), found["activity"].isin(_RESTING)
    idle_j = float(found["joules"][idle].sum())
    never_asked = found["device"].isin(devices["device"][(devices["jobs"] == 0) & (devices["device"] >= 0)])
    bystanders_j = float(found["joules"][idle & never_asked].sum())
    return {
        "energy_j": energy_j,
        "active_j": energy_j - idle_j,
        "idle_j": idle_j,
        "participant_j": energy_j - bystanders_j,
        "energy_network_j": float(of_account["network"]),
        "energy_server_j": float(of_account["server"]),
        "energy_total_j": float(of_account.sum()),
    }


def _accounts(found: pd.DataFrame) -> pd.Series[str]:
    """Return the account of each row of `attribute_energy`."""
    accounts: pd.Series[str] = found["component"].map(_ACCOUNT_OF).fillna(ACCOUNTS[0])
    return accounts


def _carried(run: RecordedRun) -> pd.DataFrame:
    """Return the network's joules for each job, and for each order of an edge server."""
    orders = run.edges.assign(device=FIRST_EDGE_ROW - run.edges["edge"], job=_NONE)
    return pd.concat([_long(run.jobs, _NETWORK_USE), _long(orders, _NETWORK_USE)])


def _long(table: pd.DataFrame, uses: dict[str, tuple[str, str]]) -> pd.DataFrame:
    """Return one row for each row of a table and column of `uses`."""
    parts = [
        table[["device", "job", "round"]].assign(component=component, activity=activity, joules=table[column])
        for column, (component, activity) in uses.items()
    ]
    return pd.concat(parts)


_COST_KEYS = ("item", "round", "device", "kind")


def cost_by(run: RecordedRun, by: str) -> pd.DataFrame:
    """Return money and carbon for each item, round, device or kind of device, the most expensive first.

    Columns: `by`, and the columns of edgesim.records.schema.COSTS. Rounds count from 1 here and are in their order. The
    spending after the last closed round has no round (a missing value). Devices and kinds have their spending on jobs
    and idle time, the server its electricity and hours. Spending in flight when an interrupted run ends is in neither.
    Raises ConfigError if the run has no prices, or `by` is something else.
    """
    if by not in _COST_KEYS:
        raise ConfigError(f"--by: must be one of {', '.join(_COST_KEYS)}, got {by!r}")
    if not run.is_priced:
        raise ConfigError(
            f"{run.folder}: has no prices; replay it with some: edgesim replay {run.folder} --set prices=..."
        )
    table = run.costs if by in ("item", "round") else run.devices
    sums = table.groupby(by, sort=by == "round")[list(COSTS)].sum().reset_index()
    if by == "round":
        number = sums["round"].astype("Int64")
        return sums.assign(round=number.where(number >= 0) + 1)
    if by == "device":
        kinds = zip(run.devices["device"], run.devices["kind"], strict=True)
        edges = {row: f"{kind} server {FIRST_EDGE_ROW - row}" for row, kind in kinds if row <= FIRST_EDGE_ROW}
        names = edges | {SERVER_ROW: "server"}
        sums["device"] = sums["device"].map(lambda device: names.get(device, str(device)))
    return sums.sort_values(["cost", "co2e_g"], ascending=False, kind="stable").reset_index(drop=True)
