"""Frequencies, powers and hertz of the jobs of a round, as the scenario's policy chooses them."""

from __future__ import annotations

import numpy as np

from edgesim.core.arrays import Arr, Ids
from edgesim.core.job import JobChoice, Prices
from edgesim.world.compute.governors.cpu import CpuWork
from edgesim.world.fleet import Fleet
from edgesim.world.resources.base import Demands, DeviceTraits, Resources, chosen


class Allotment:
    """Choices of a policy for the jobs of one cell."""

    def __init__(self, policy: Resources, fleet: Fleet) -> None:
        """`fleet`: all of whose devices share a band."""
        airs = [block.links.air for block in fleet.blocks if block.links.air is not None]
        rows = [
            (
                block.cpu.min_hz,
                block.cpu.max_hz,
                block.cpu.cores * block.cpu.capacitance,
                air.up_snr_hz / air.power_w,
                air.power_w,
                air.efficiency,
            )
            for block, air in zip(fleet.blocks, airs, strict=True)
        ]
        self._devices = DeviceTraits(*(np.concatenate(column) for column in zip(*rows, strict=True)))
        self._policy = policy
        self._fleet = fleet
        self._band_hz = airs[0].spectrum.up_hz

    def of(self, ids: Ids, prices: Prices[Arr], work: CpuWork) -> list[JobChoice]:
        """Return the choices for jobs that are sent together to distinct devices.

        `prices`: as if nothing was chosen, of which downloads and latencies count; `work`: of the whole jobs. Raises
        ContractError unless the policy keeps its contract.
        """
        devices = self._devices.rows(ids)
        # each downlink alone in the cell: one after the other they all end by the sum, however the band is divided
        down_s = float((prices.down_s - prices.down_latency_s).sum()) + prices.down_latency_s
        demands = Demands(
            devices,
            cycles=np.maximum(work.cycles, 1.0),
            bits=np.maximum(8.0 * prices.message_bytes, 1.0),
            other_s=down_s + work.memory_s + prices.up_latency_s,
            band_hz=self._band_hz,
        )
        choices = chosen(self._policy, demands)
        drawn_w = self._fleet.transmit_w[ids] + (choices.power_w - devices.power_w) / devices.efficiency
        columns = (*choices, drawn_w, demands.rate_bps(choices))
        return [JobChoice(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
