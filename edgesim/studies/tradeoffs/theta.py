"""Time and energy as one cost with weight theta of energy, for configurations, for runs, and as DA-DPFL counts.

Source: DA-DPFL paper, eq. (5): (1 - theta) x seconds + theta x joules, at 1 dollar each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, permutations
from typing import Any, NamedTuple

import pandas as pd

from edgesim.reports.cost import (
    RoundCost,
    Scaling,
    compute_time_s,
    crossing,
    round_cost,
    total_cost,
    transfer_time_s,
)
from edgesim.reports.load import Run

THETAS = (0.0, 0.1, 0.2, 0.3, 0.5, 1.0)


class DeviceRates(NamedTuple):
    """Speed, link and powers of a device, to price FLOPs and bytes without the ledger of a run."""

    flops_per_s: float
    link_bps: float
    busy_w: float
    transmit_w: float

    def seconds(self, flops: float, nbytes: float) -> tuple[float, float]:
        """Return the seconds of computing, and the seconds for which the link is busy in one direction."""
        return compute_time_s(flops, self.flops_per_s), transfer_time_s(nbytes, self.link_bps)

    def cost(self, flops: float, nbytes: float, scaling: Scaling) -> RoundCost:
        """Return the cost of a round with this work and traffic by the paper's model."""
        compute_s, transfer_s = self.seconds(flops, nbytes)
        return round_cost(compute_s, transfer_s, self.busy_w * compute_s, self.transmit_w * transfer_s, scaling)


def at_thetas(cost: RoundCost, thetas: Sequence[float] = THETAS) -> dict[str, float]:
    """Return the total cost at some weights of energy, as "theta0.3"."""
    return {f"theta{theta:g}": total_cost(theta, *cost) for theta in thetas}


def crossings(costs: Mapping[str, RoundCost]) -> Iterator[dict[str, Any]]:
    """Yield each pair with the theta from which the first is cheaper: cheaper, than, from_theta."""
    for one, other in permutations(costs, 2):
        theta = crossing(costs[one], costs[other])
        if theta is not None and costs[one].energy_j < costs[other].energy_j:
            yield {"cheaper": one, "than": other, "from_theta": theta}


def cheapest_over_theta(costs: Mapping[str, RoundCost]) -> list[dict[str, Any]]:
    """Return the ranges of theta, from 0 to 1, with the cheapest name in each: from_theta, to_theta, cheapest.

    Of equal costs the first is named. Without costs the list is empty.
    """
    if not costs:
        return []
    ends = sorted({0.0, 1.0, *(pair["from_theta"] for pair in crossings(costs))})
    found: list[dict[str, Any]] = []
    for low, high in pairwise(ends):
        best = min(costs, key=lambda name: total_cost((low + high) / 2, *costs[name]))
        if found and found[-1]["cheapest"] == best:
            found[-1]["to_theta"] = high
        else:
            found.append({"from_theta": low, "to_theta": high, "cheapest": best})
    return found


def spent(run: Run) -> RoundCost:
    """Return the cost of a run by its ledger, over all rounds: seconds, and joules per device."""
    devices = int((run.devices["device"] >= 0).sum())
    time_s = float((run.rounds["now_s"] - run.rounds["start_s"]).sum())
    return RoundCost(time_s, float(run.rounds["energy_j"].sum()) / devices)


def counted(run: Run, prices: DeviceRates) -> pd.DataFrame:
    """Return the cost of a device in a run by two counts: all rounds, and the last round as in the paper.

    Columns: flops, bytes, time_s, energy_j. The index names the count. The paper's count lengthens a round of peers by
    waiting, here by the average factor of this run. With a server it counts only the computing of devices that were
    asked, and their messages once, shared among all devices. This count is missing if devices do not compute at the
    speed of `prices`. Bytes are, like the paper's, those that the busiest node receives: a peer on the mean, or the
    server from all.
    """
    cost, times, devices = spent(run), len(run.rounds), int((run.devices["device"] >= 0).sum())
    peers = run.manifest["scenario"]["peers"]
    rounds = run.jobs.groupby("round").agg(
        flops=("flops", "mean"), bytes=("down_bytes", "mean") if peers else ("up_bytes", "sum")
    )
    rows: list[tuple[float, ...]] = [(*rounds[["flops", "bytes"]].sum(), *cost)]
    if abs(run.jobs["compute_s"].sum() / compute_time_s(run.jobs["flops"].sum(), prices.flops_per_s) - 1) < 1e-6:
        last = rounds.iloc[-1]
        if peers:  # active: seconds of a round without waiting
            active_s = pd.Series([sum(prices.seconds(*row)) for row in rounds.itertuples(index=False)]).sum()
            scaling = Scaling(waiting=cost.time_s / active_s)
        else:
            asked = (run.jobs["round"] == rounds.index[-1]).sum()
            scaling = Scaling(compute_energy=asked / devices, transfer_energy=1 / devices)
        again = prices.cost(last["flops"], last["bytes"], scaling)
        rows.append(tuple(times * number for number in (last["flops"], last["bytes"], *again)))
    names = ["all rounds", f"last round x {times}"][: len(rows)]
    return pd.DataFrame(rows, names, ["flops", "bytes", "time_s", "energy_j"])
