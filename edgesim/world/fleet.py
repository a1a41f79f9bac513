"""The fleet as arrays: one row a device, one column a physical quantity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgesim.config.scenario import Cpu, FleetBlock, Scenario
from edgesim.contracts import Arr, Ids
from edgesim.rng import Key, Purpose
from edgesim.units import draw

# Sub-streams of a fleet block; never renumber.
_CPU, _NETWORK, _ENERGY = 1, 2, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """All devices; every array has shape (devices,) and is read-only.

    `idle_w` flows all the time; the other powers are what an activity adds to it.
    """

    kinds: tuple[str, ...]  # names of the fleet blocks
    kind: Ids  # index into kinds
    level: Ids
    flops_per_s: Arr
    up_bps: Arr
    down_bps: Arr
    latency_s: Arr
    idle_w: Arr
    compute_w: Arr
    transmit_w: Arr
    receive_w: Arr

    def __len__(self) -> int:
        return len(self.kind)

    def compute_s(self, ids: Ids, flops: Arr) -> Arr:
        """Return seconds, shape (k,), that devices `ids` need for `flops` at their sustained speed."""
        seconds: Arr = flops / self.flops_per_s[ids]
        return seconds

    def transfer_s(self, bps: Arr, latency_s: Arr, nbytes: Arr) -> tuple[Arr, Arr]:
        """Return seconds of a transfer and the seconds of it that the radio is on, both of shape (k,)."""
        air_s = 8.0 * nbytes / bps
        return latency_s + air_s, air_s


def build_fleet(scenario: Scenario) -> Fleet:
    """Return the fleet of a scenario, all spreads drawn from the scenario's seed.

    Each column of each block has a stream of its own, so a larger count leaves the first devices as they were.
    Raises ConfigError if a distribution draws an impossible value.
    """
    key = Key(scenario.seed).at(Purpose.FLEET)
    blocks = [_block(scenario, block, i, key.at(i)) for i, block in enumerate(scenario.fleet)]
    columns: dict[str, Any] = {name: _joined([b[name] for b in blocks]) for name in blocks[0]}
    return Fleet(kinds=tuple(block.name for block in scenario.fleet), **columns)


def _block(scenario: Scenario, block: FleetBlock, index: int, key: Key) -> Mapping[str, np.ndarray]:
    n = block.count
    cpu = _cpu_columns(block.cpu, n, key.at(_CPU), f"fleet.{index}.cpu")
    network, network_path = _own_or_common(block.network, scenario.network, f"fleet.{index}.network", "network")
    energy, energy_path = _own_or_common(block.energy, scenario.energy, f"fleet.{index}.energy", "energy")
    return {
        "kind": np.full(n, index, dtype=np.int64),
        "level": np.full(n, block.level, dtype=np.int64),
        "flops_per_s": cpu["flops_per_s"],
        **network.value.columns(n, key.at(_NETWORK), network_path),
        **energy.value.columns(n, cpu, key.at(_ENERGY), energy_path),
    }


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return one read-only column; a value common to all devices takes the memory of one."""
    column = parts[0] if len(parts) == 1 else np.concatenate(parts)
    if (column == column[0]).all():
        return np.broadcast_to(column[0], column.shape)
    column.setflags(write=False)
    return column


def _own_or_common(own: Any, common: Any, own_path: str, common_path: str) -> tuple[Any, str]:
    return (common, common_path) if own is None else (own, own_path)


def _cpu_columns(cpu: Cpu, n: int, key: Key, path: str) -> Mapping[str, Arr]:
    """Return flops_per_s, frequency_hz (NaN if unknown) and cores, each of shape (n,)."""
    frequency_hz = np.full(n, np.nan)
    if cpu.frequency is not None:
        frequency_hz = draw(cpu.frequency, n, key.at(0).numpy(), f"{path}.frequency")
    cores = np.full(n, float(cpu.cores))
    if cpu.flops_per_s is not None:
        flops_per_s = draw(cpu.flops_per_s, n, key.at(1).numpy(), f"{path}.flops_per_s")
    else:
        efficiency = draw(cpu.efficiency, n, key.at(2).numpy(), f"{path}.efficiency")
        flops_per_s = frequency_hz * cpu.flops_per_cycle * cores * efficiency
    return {"flops_per_s": flops_per_s, "frequency_hz": frequency_hz, "cores": cores}
