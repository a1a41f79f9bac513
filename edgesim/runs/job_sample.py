"""Costs of one job of each kind of device: the first exchange, asked of a sample of every fleet block and priced.

Loads no torch, and pandas only where tables are made.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from edgesim.core.job import DELIVERED, ON_TIME_S
from edgesim.core.rng import Draws, Key, Purpose
from edgesim.core.task import Plan
from edgesim.engine.pricing import Pricer
from edgesim.engine.reachability import Presence
from edgesim.engine.rounds import Observer
from edgesim.engine.selection.rules import All
from edgesim.engine.view import FleetView
from edgesim.execution.backends.null import NullBackend
from edgesim.runs.assembly import Assembly
from edgesim.runs.simulation import Silent, Simulation
from edgesim.world.availability.always import Always

if TYPE_CHECKING:
    import pandas as pd

_DEVICES = 2_000  # sampled devices of a fleet block, enough for means
_DRAWS, _JOBS = 20, 20_000  # most sampled jobs of a device and in total, where jobs of a device differ
_MEANS = ["flops", "down_bytes", "up_bytes", "seconds", "joules", "link_j"]


def timed(parts: Assembly, observer: Observer | None = None) -> Simulation:
    """Return a simulation of these parts without training, not started."""
    return Simulation(parts, NullBackend(), observer or Silent())


def of_everybody(start: Simulation) -> FleetView:
    """Return the view of a method in which exactly the sampled devices are reachable and idle, and all are selected.

    The sample is the first _DEVICES devices of each block that the training may ask.
    """
    parts = start.parts
    own, sampled = parts.setting.ids, np.zeros(len(parts.fleet), dtype=bool)
    for block in parts.fleet.blocks:
        first, beyond = np.searchsorted(own, [block.first, block.first + block.count])
        sampled[own[first : min(first + _DEVICES, beyond)]] = True
    others = ~sampled
    there = Presence(Always().build(len(others), Key(0), "availability"), None)
    view = start.trainings[0].asks_devices.view()
    at_work = int(others.sum())
    return replace(view, presence=there, busy=others, at_work=at_work, selection=All(), history=None, members=None)


def priced(parts: Assembly, plan: Plan) -> dict[str, Any]:
    """Return the prices of a plan by column, a value a job: device, submodel, flops, bytes, seconds, joules and link_j.

    `link_j`: joules of the network. Where jobs of a device differ, each job has one value per draw. Over shared links
    the prices hold for a job that has the links to itself.
    """
    ids = np.array([order.device for order in plan.orders], dtype=np.int64)
    pricer, key = Pricer(parts.fleet, parts.setting), Key(parts.scenario.seed).at(Purpose.CHANNEL)
    draws = 1 if parts.fleet.steady else max(1, min(_DRAWS, _JOBS // max(1, len(ids))))
    nths = (np.full_like(ids, nth) for nth in range(draws))
    of_draws = [pricer.prices(plan.orders, 0.0, Draws(key, ids, nth))._asdict() for nth in nths]
    prices = {name: np.concatenate([each[name] for each in of_draws]) for name in of_draws[0]}
    devices, overlaps = np.tile(ids, draws), np.tile([order.task.overlaps for order in plan.orders], draws)
    phases_s = np.stack([prices[name] for name in ("down_s", "compute_s", "up_s")])
    return {
        **prices,
        "device": devices,
        "submodel": [order.task.submodel.shape_id for order in plan.orders] * draws,
        "seconds": np.where(overlaps, phases_s.max(axis=0), phases_s.sum(axis=0)),
        "joules": np.stack([prices[name] for name in ("down_j", "compute_j", "up_j")]).sum(axis=0),
        "link_j": 8.0 * parts.fleet.j_per_bit[devices] * (prices["down_bytes"] + prices["up_bytes"]),
    }


def of_peers(jobs: pd.DataFrame) -> pd.DataFrame:
    """Return the same columns for the first round of a trial among peers, by its table of jobs.

    Only a trial shows which messages peers exchange and how long they wait. up_bytes and joules include the messages
    that peers sent to a job.
    """
    first: pd.DataFrame = jobs[(jobs["round"] == 0) & jobs["outcome"].isin(DELIVERED)]
    return first.assign(
        seconds=first["end_s"] - first["sent_s"],
        up_bytes=first["up_bytes"] + first["peer_bytes"],
        joules=first[["down_j", "compute_j", "up_j", "peer_j"]].sum(axis=1),
    )


def by_block(parts: Assembly, jobs: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each fleet block and part of the model: kind, level, devices, submodel, late_share and means.

    late_share: the share of jobs that take longer than a fixed deadline; NaN without a deadline.
    """
    import pandas as pd

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
