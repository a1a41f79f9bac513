"""What the money and carbon of a run went to."""

from __future__ import annotations

import pandas as pd

from edgesim.core.errors import ConfigError
from edgesim.records.schema import COSTS, FIRST_EDGE_ROW, SERVER_ROW
from edgesim.reports.load import Run

KEYS = ("item", "round", "device", "kind")


def currency_of(run: Run) -> str:
    """Return the currency of a run's prices; "" if it has none in money."""
    return str(run.manifest.get("currency") or "")


def cost_by(run: Run, by: str) -> pd.DataFrame:
    """Return money and carbon for each item, round, device or kind of device, the most expensive first.

    Columns: `by`, and those of edgesim.records.schema.COSTS. Rounds count from 1 here and stand in their order; what
    was spent after the last closed round has none. Devices and kinds have what they spent on jobs and idle, the server
    its electricity and hours; what is on its way when an interrupted run ends is in neither. Raises ConfigError if the
    run has no prices, or `by` is something else.
    """
    if by not in KEYS:
        raise ConfigError(f"--by: must be one of {', '.join(KEYS)}, got {by!r}")
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
        sums["device"] = sums["device"].map(_whose)
    return sums.sort_values(["cost", "co2e_g"], ascending=False, kind="stable").reset_index(drop=True)


def _whose(device: int) -> str:
    if device <= FIRST_EDGE_ROW:
        return f"edge server {FIRST_EDGE_ROW - device}"
    return "server" if device == SERVER_ROW else str(device)
