"""Money and carbon of a run by item, and seconds and joules of a round as one weighted cost.

Source of the weighted cost: DA-DPFL paper, cost model: compute seconds = inefficiency x FLOPs / speed,
transfer seconds = 8 x bytes / rate, joules = seconds x power of the activity, total =
(1 - theta) x seconds + theta x joules at 1 dollar each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import NamedTuple

import pandas as pd

from edgesim.core.errors import ConfigError
from edgesim.records.run import RecordedRun
from edgesim.records.schema import COSTS, FIRST_EDGE_ROW, SERVER_ROW

KEYS = ("item", "round", "device", "kind")


def currency_of(run: RecordedRun) -> str:
    """Return the currency of a run's prices, or "" if it has no prices in money."""
    return str(run.manifest.get("currency") or "")


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


class RoundCost(NamedTuple):
    """Seconds and joules of one round."""

    time_s: float
    energy_j: float


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Factors by which a comparison corrects the spending of one device in a round; 1 = unchanged."""

    compute_energy: float = 1.0
    transfer_energy: float = 1.0
    waiting: float = 1.0  # on the whole time

    def __post_init__(self) -> None:
        for name, factor in asdict(self).items():
            if not factor > 0:
                raise ConfigError(f"scaling.{name}: must be above 0, got {factor!r}")


# Differs from the paper, which draws curves and prints no factors: these are inferred from its text.
SCALINGS: Mapping[str, Scaling] = {
    "none": Scaling(),
    # 10 of 100 devices train, and 10 instead of 1,000 models move
    "server_based": Scaling(compute_energy=0.10, transfer_energy=0.01),
    # mean longest wait in DA-DPFL if each of 100 devices has 10 neighbours and waits for up to 10 of them
    "waiting": Scaling(waiting=17.0406),
}


def compute_time_s(flops: float, flops_per_s: float, inefficiency: float = 1.0) -> float:
    """Return the seconds of `flops` at the peak speed; `inefficiency`: measured over theoretical seconds."""
    return inefficiency * flops / flops_per_s


def transfer_time_s(nbytes: float, bps: float) -> float:
    """Return the seconds that `nbytes` take at `bps` bit/s."""
    return 8.0 * nbytes / bps


def round_cost(
    compute_s: float, transfer_s: float, compute_j: float, transfer_j: float, scaling: Scaling = SCALINGS["none"]
) -> RoundCost:
    """Return the seconds and joules of a round from one device's computation and transfer under a scaling."""
    energy_j = scaling.compute_energy * compute_j + scaling.transfer_energy * transfer_j
    return RoundCost(scaling.waiting * (compute_s + transfer_s), energy_j)


def total_cost(theta: float, time_s: float, energy_j: float) -> float:
    """Return (1 - theta) x seconds + theta x joules. Raises ConfigError unless 0 <= theta <= 1."""
    if not 0.0 <= theta <= 1.0:
        raise ConfigError(f"theta: must be between 0 (time alone) and 1 (energy alone), got {theta!r}")
    return (1.0 - theta) * time_s + theta * energy_j


def crossing(one: RoundCost, other: RoundCost) -> float | None:
    """Return the theta, between 0 and 1, at which both cost the same; None if one of them is never dearer."""
    later_s, saved_j = one.time_s - other.time_s, other.energy_j - one.energy_j
    return later_s / (later_s + saved_j) if later_s * saved_j > 0 else None
