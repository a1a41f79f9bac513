"""Money and carbon of a run by item, round, device and kind of device."""

from __future__ import annotations

import pandas as pd

from edgesim.core.errors import ConfigError
from edgesim.records.run import RecordedRun
from edgesim.records.schema import COSTS, FIRST_EDGE_ROW, SERVER_ROW

KEYS = ("item", "round", "device", "kind")


def cost_by(run: RecordedRun, by: str) -> pd.DataFrame:
    """Return money and carbon for each item, round, device or kind of device, the most expensive first.

    Columns: `by`, and the columns of edgesim.records.schema.COSTS. Rounds count from 1 here and are in their order. The
    spending after the last closed round has no round (a missing value). Devices and kinds have their spending on jobs
    and idle time, the server its electricity and hours. Spending in flight when an interrupted run ends is in neither.
    Raises ConfigError if the run has no prices, or `by` is something else.
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
        edges = {row: f"edge server {FIRST_EDGE_ROW - row}" for row in sums["device"] if row <= FIRST_EDGE_ROW}
        names = edges | {SERVER_ROW: "server"}
        sums["device"] = sums["device"].map(lambda device: names.get(device, str(device)))
    return sums.sort_values(["cost", "co2e_g"], ascending=False, kind="stable").reset_index(drop=True)
