"""Time and energy as one cost, over the weight theta of energy: of configurations, of runs, and as DA-DPFL counts.

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


class Prices(NamedTuple):
    """What a device's FLOPs and bytes cost it, where the ledger of a run is not to be asked."""

    flops_per_s: float
    link_bps: float
    busy_w: float
    transmit_w: float

    def seconds(self, flops: float, nbytes: float) -> tuple[float, float]:
        """Return how long the device computes, and how long its link is busy in one direction."""
        return compute_time_s(flops, self.flops_per_s), transfer_time_s(nbytes, self.link_bps)

    def cost(self, flops: float, nbytes: float, scaling: Scaling) -> RoundCost:
        """Return what a round of so much work and traffic costs by the paper's model."""
        compute_s, transfer_s = self.seconds(flops, nbytes)
        return round_cost(compute_s, transfer_s, self.busy_w * compute_s, self.transmit_w * transfer_s, scaling)


def at_thetas(cost: RoundCost, thetas: Sequence[float] = THETAS) -> dict[str, float]:
    """Return the total cost at some weights of energy, as "theta0.3"."""
    return {f"theta{theta:g}": total_cost(theta, *cost) for theta in thetas}


def crossings(costs: Mapping[str, RoundCost]) -> Iterator[dict[str, Any]]:
    """Yield who is cheaper than whom from which theta on: cheaper, than, from_theta."""
    for one, other in permutations(costs, 2):
        theta = crossing(costs[one], costs[other])
        if theta is not None and costs[one].energy_j < costs[other].energy_j:
            yield {"cheaper": one, "than": other, "from_theta": theta}


def cheapest_over_theta(costs: Mapping[str, RoundCost]) -> list[dict[str, Any]]:
    """Return who is cheapest of all from which theta to which, from 0 to 1: from_theta, to_theta, cheapest.

    Of several that cost the same the first is named. None: there are no costs.
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
    """Return what a run took, of all its rounds by its ledger: seconds, and joules for each of its devices."""
    devices = int((run.devices["device"] >= 0).sum())
    time_s = float((run.rounds["now_s"] - run.rounds["start_s"]).sum())
    return RoundCost(time_s, float(run.rounds["energy_j"].sum()) / devices)


def counted(run: Run, prices: Prices) -> pd.DataFrame:
    """Return what a device spent in a run, by all rounds of its tables and by the paper's count, its last round.

    Columns: flops, bytes, time_s, energy_j; the index says which count it is. The paper's count lengthens a round of
    peers by waiting, here as much as it did on average in this very run. With a server it counts the computing of those
    who are asked alone, and their messages once, shared among all devices. It is left out of runs whose devices do not
    compute at the speed of `prices`.
    """
    rounds, cost, times = _by_round(run, prices), spent(run), len(run.rounds)
    rows: list[tuple[float, ...]] = [(*rounds[["flops", "bytes"]].sum(), *cost)]
    if abs(run.jobs["compute_s"].sum() / compute_time_s(run.jobs["flops"].sum(), prices.flops_per_s) - 1) < 1e-6:
        last = rounds.iloc[-1]
        again = prices.cost(last["flops"], last["bytes"], _scaling(run, rounds, cost))
        rows.append(tuple(times * number for number in (last["flops"], last["bytes"], *again)))
    names = ["all rounds", f"last round x {times}"][: len(rows)]
    return pd.DataFrame(rows, names, ["flops", "bytes", "time_s", "energy_j"])


def _by_round(run: Run, prices: Prices) -> pd.DataFrame:
    """Return each round's FLOPs of a device that took part, bytes, and seconds if nobody waited.

    Bytes are, like the paper's, those that the busiest node receives: a peer, on the mean, or the server from all.
    """
    received = ("down_bytes", "mean") if run.manifest["scenario"]["peers"] else ("up_bytes", "sum")
    rounds = run.jobs.groupby("round").agg(flops=("flops", "mean"), bytes=received)
    return rounds.assign(active_s=[sum(prices.seconds(*row)) for row in rounds.itertuples(index=False)])


def _scaling(run: Run, rounds: pd.DataFrame, cost: RoundCost) -> Scaling:
    if run.manifest["scenario"]["peers"]:
        return Scaling(waiting=cost.time_s / rounds["active_s"].sum())
    devices = int((run.devices["device"] >= 0).sum())
    asked = (run.jobs["round"] == rounds.index[-1]).sum()
    return Scaling(compute_energy=asked / devices, transfer_energy=1 / devices)
