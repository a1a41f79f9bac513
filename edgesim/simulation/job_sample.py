"""What one job costs each kind of device: the first exchange, asked of a sample of every fleet block and priced."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from edgesim.core.job import DELIVERED, ON_TIME_S
from edgesim.core.rng import Draws, Key, Purpose
from edgesim.core.task import Plan
from edgesim.engine.presence import Presence
from edgesim.engine.pricing import Pricer
from edgesim.engine.rounds import Observer
from edgesim.engine.selection.rules import All
from edgesim.engine.view import FleetView
from edgesim.runtime.backends.null import NullBackend
from edgesim.simulation.assembly import Assembly
from edgesim.simulation.run import Silent, Simulation
from edgesim.world.availability.always import Always

_DEVICES = 2_000  # of a fleet block are looked at: enough for means
_DRAWS, _JOBS = 20, 20_000  # jobs of each device, and in all, where jobs of a device differ
_MEANS = ["flops", "down_bytes", "up_bytes", "seconds", "joules", "link_j"]


def timed(parts: Assembly, observer: Observer | None = None) -> Simulation:
    """Return a run of these parts that has not begun and trains nothing."""
    return Simulation(parts, NullBackend(), observer or Silent())


def of_everybody(start: Simulation) -> FleetView:
    """Return what a method would see if the sampled devices, and nobody else, were there, idle, and all chosen."""
    others = ~_first_of_blocks(start.parts)
    there = Presence(Always().build(len(others), Key(0), "availability"), None)
    view = start.trainings[0].asks_devices.view()
    at_work = int(others.sum())
    return replace(view, presence=there, busy=others, at_work=at_work, selection=All(), history=None, members=None)


def priced(parts: Assembly, plan: Plan) -> pd.DataFrame:
    """Return the prices of a plan, a row a job: device, part, flops, bytes, seconds, joules, the network's as link_j.

    Where jobs of a device differ there are several of each, one for each draw. Over shared links these are the prices
    of a job that has them to itself.
    """
    ids = np.array([order.device for order in plan.orders], dtype=np.int64)
    pricer, key = Pricer(parts.fleet, parts.setting), Key(parts.scenario.seed).at(Purpose.CHANNEL)
    draws = 1 if parts.fleet.steady else max(1, min(_DRAWS, _JOBS // max(1, len(ids))))
    of_draws = [pricer.prices(plan.orders, 0.0, Draws(key, ids, np.full_like(ids, nth))) for nth in range(draws)]
    prices = pd.concat([pd.DataFrame(each._asdict()) for each in of_draws], ignore_index=True)
    devices = np.tile(ids, draws)
    return prices.assign(
        device=devices,
        submodel=[order.task.submodel.shape_id for order in plan.orders] * draws,
        seconds=prices[["down_s", "compute_s", "up_s"]].sum(axis=1),
        joules=prices[["down_j", "compute_j", "up_j"]].sum(axis=1),
        link_j=8.0 * parts.fleet.j_per_bit[devices] * (prices["down_bytes"] + prices["up_bytes"]),
    )


def of_peers(trial: Simulation) -> pd.DataFrame:
    """Return the same of the first round of a trial, as what peers exchange and wait for shows only there.

    up_bytes and joules are with what peers sent to a job, and spent on that.
    """
    jobs = trial.tables["jobs"].frame()
    first: pd.DataFrame = jobs[(jobs["round"] == 0) & jobs["outcome"].isin(DELIVERED)]
    return first.assign(
        seconds=first["end_s"] - first["sent_s"],
        up_bytes=first["up_bytes"] + first["peer_bytes"],
        joules=first[["down_j", "compute_j", "up_j", "peer_j"]].sum(axis=1),
    )


def by_block(parts: Assembly, jobs: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each fleet block and part of the model: kind, level, devices, part, late_share and means.

    late_share: of the jobs, those that take longer than a fixed deadline; NaN if there is none.
    """
    kind = parts.fleet.kind[jobs["device"]]
    limit_s = parts.setting.deadline_s
    late = jobs["seconds"] > limit_s + ON_TIME_S
    groups = jobs.assign(block=kind, late_share=late.astype(float)).groupby(["block", "submodel"])
    means = groups[[*_MEANS, "late_share"]].mean()
    block = means.index.get_level_values("block")
    seen = jobs.groupby(kind)["device"].nunique().reindex(block).to_numpy()
    devices: pd.Series = groups["device"].nunique() * np.bincount(parts.fleet.kind[parts.setting.ids])[block] / seen
    found = pd.DataFrame(
        {
            "kind": [parts.fleet.kinds[each] for each in block],
            "level": [parts.scenario.fleet[each].level for each in block],
            "devices": np.rint(devices.to_numpy()).astype(np.int64),
            "submodel": means.index.get_level_values("submodel"),
        }
    )
    found = found.join(means.reset_index(drop=True))
    return found if np.isfinite(limit_s) else found.assign(late_share=np.nan)


def _first_of_blocks(parts: Assembly) -> np.ndarray:
    """Return a mask, shape (devices,), of the first _DEVICES devices of each block that the training may ask."""
    own, mask = parts.setting.ids, np.zeros(len(parts.fleet), dtype=bool)
    for block in parts.fleet.blocks:
        first, beyond = np.searchsorted(own, [block.first, block.first + block.count])
        mask[own[first : min(first + _DEVICES, beyond)]] = True
    return mask
