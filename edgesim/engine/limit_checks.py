"""Refuses jobs of more seconds, bytes or joules than a run can add up, and names the key that is to blame."""

from __future__ import annotations

import numpy as np

from edgesim.config.scenario import Scenario
from edgesim.core.limits import check_amount
from edgesim.core.rng import Draws, Key
from edgesim.core.task import Order, Task
from edgesim.core.view import Setting
from edgesim.engine.pricing import Pricer, averaging_flops
from edgesim.engine.server_queue import check_merge_s
from edgesim.world.contention.network import SharedNetwork
from edgesim.world.fleet import Fleet


def check_finite(scenario: Scenario, fleet: Fleet, setting: Setting, shared: SharedNetwork | None) -> None:
    """Raise ConfigError if a job that trains the whole model, idle power meanwhile, or a merge would take too much.

    The slowest and the most powerful devices of each block are checked.
    """
    extremes = []
    for block in fleet.blocks:
        own = slice(block.first, block.first + block.count)
        extremes += [
            block.first + np.argmin(column[own]) for column in (fleet.flops_per_s, fleet.up_bps, fleet.down_bps)
        ]
        extremes += [block.first + np.argmax(column[own]) for column in (fleet.transmit_w, fleet.receive_w)]
    ids = np.unique(np.array(extremes, dtype=np.int64))
    draws = Draws(Key(scenario.seed), ids, np.zeros_like(ids))
    plain = Task(local_sgd=(scenario.training.local_sgd(0),))
    orders = [Order(device, plain) for device in ids.tolist()]
    prices = Pricer(fleet, setting).prices(orders, 0.0, draws)  # refuses those that are too much
    merge_flops = setting.devices * averaging_flops(orders[:1], setting)[0]
    server, updates_bytes = scenario.server, setting.devices * float(prices.message_bytes.max())
    check_merge_s("server.flops_per_s", merge_flops / server.flops_per_s)
    check_merge_s("server.per_byte", updates_bytes * server.per_byte)
    test_flops = server.test_samples * setting.cost_profile.forward_flops() if server.test_samples else 0.0
    check_amount("server.test_samples", "a test of the model", test_flops / server.flops_per_s, "s")
    for key, tier in () if scenario.edges is None else scenario.edges.tiers:
        check_merge_s(f"{key}.flops_per_s", merge_flops / tier.flops_per_s)
    with np.errstate(all="ignore"):
        job_s = float((prices.down_s + prices.compute_s + prices.up_s).max())
        for key, watts in {
            "energy.idle": fleet.idle_w.sum(),
            "energy.sleep": fleet.sleep_w.sum(),
            "server.idle": server.idle,
            "server.busy": server.busy,
        }.items():
            check_amount(key, f"the power of {job_s:g} s, as long as a job,", float(watts * job_s), "J")
        job_bytes = float((prices.down_bytes + prices.message_bytes).max())
        joules = float(8.0 * fleet.j_per_bit.max() * job_bytes)
        check_amount("network.energy_per_bit", f"carrying the {job_bytes:g} bytes of a job", joules, "J")
        if shared is not None and scenario.peers is None:
            most_bits = 8.0 * max(prices.down_bytes.max(), prices.up_bytes.max())
            for device in ids.tolist():
                slowest_bps = min(shared.alone_bps(0, 1 + device), shared.alone_bps(1 + device, 0))
                check_amount("topology", "a transfer", float(most_bits / slowest_bps), "s")
