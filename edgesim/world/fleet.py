"""The fleet: arrays with one row a device, and the blocks that know how its links and CPUs behave."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from edgesim.config.plugin_fields import built
from edgesim.config.scenario import Cpu, FleetBlock, Scenario
from edgesim.config.units import draw
from edgesim.core.arrays import Arr, Ids, compact
from edgesim.core.clock_error import clock_factor
from edgesim.core.errors import ConfigError
from edgesim.core.limits import PROCESS_BYTES, check_memory
from edgesim.core.rng import Draws, Key, Purpose
from edgesim.world.batteries.base import Batteries
from edgesim.world.clocks.base import Clock, CpuSpeeds, WrongClock
from edgesim.world.clocks.flops import OneRate
from edgesim.world.compute.governors.cpu import CpuArrays, CpuWork
from edgesim.world.compute.governors.dvfs import Governor
from edgesim.world.compute.slowdowns.base import Slowdown
from edgesim.world.energy.base import Powers
from edgesim.world.links.base import OUTAGE, Links

_DEVICE_BYTES = 700  # of a run and its tables, measured with three million devices: 650

# Sub-streams of a fleet block; never renumber.
_CPU, _NETWORK, _ENERGY, _SLOWDOWN, _BATTERY = 1, 2, 3, 4, 5
_CLOCK, _PER_BYTE = 4, 5  # of a CPU; those before them are of its numbers


@dataclass(frozen=True, slots=True)
class DeviceBlock:
    """Devices of one kind, from id `first` on."""

    first: int
    count: int
    links: Links
    cpu: CpuArrays
    clock: Clock
    one_rate: OneRate  # of work of which only FLOPs are known
    per_byte_s: Arr  # seconds of a payload's byte at the highest frequency, shape (count,)
    governor: Governor
    slowdown: Slowdown
    new_batteries: Callable[[], Batteries] | None  # at the start of a run; None: they never empty

    @property
    def steady(self) -> bool:
        """True if transfers and computations take equally long at any time and for every job."""
        return self.links.steady and self.slowdown.steady

    def work(
        self, rows: Ids, flops: Arr, amounts: Mapping[str, Arr] | None, at: Any, moved_bytes: float = 0.0
    ) -> CpuWork:
        """Return the work of jobs `at` these places among all of `amounts`; see `Clock.work`.

        `moved_bytes`: of the payloads of each job, whose seconds follow the clock frequency.
        """
        if amounts is None:
            work = self.one_rate.work(rows, flops, None)
        else:
            work = self.clock.work(rows, flops, {kind: amount[at] for kind, amount in amounts.items()})
        if not moved_bytes:
            return work
        return work._replace(cycles=work.cycles + moved_bytes * self.per_byte_s[rows] * self.cpu.max_hz[rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """All devices; every array has shape (devices,) and is read-only. Speeds are nominal: at the highest frequency.

    `idle_w` flows all the time but while a device is not to be reached, when it draws `sleep_w`; the other powers are
    what an activity adds to it. `j_per_bit` is what the network, not the device, spends on a bit of its transfers.
    """

    kinds: tuple[str, ...]  # names of the blocks
    blocks: tuple[DeviceBlock, ...]
    kind: Ids  # index into kinds and blocks
    level: Ids
    flops_per_s: Arr
    up_bps: Arr
    down_bps: Arr
    latency_s: Arr
    j_per_bit: Arr
    idle_w: Arr
    sleep_w: Arr
    transmit_w: Arr
    receive_w: Arr
    memory_bytes: Arr  # inf: no limit
    steady: bool  # prices depend neither on time nor on draws
    impaired: bool  # the latency of some device's links varies, or packets get lost
    per_byte: bool  # some device takes time for each byte of its payloads
    loses_updates: bool  # some device's update may be lost on the air as a whole
    clock_share: float = 1.0  # largest share of its highest frequency that a governor may choose, within its bounds

    def __len__(self) -> int:
        return len(self.kind)

    def transfer_s(self, ids: Ids, nbytes: Arr, up: bool, now_s: Arr, draws: Draws) -> tuple[Arr, Arr]:
        """Return seconds of transfers that start at `now_s`, and those with the radio on, both of shape (k,)."""
        seconds, air_s = np.empty(len(ids)), np.empty(len(ids))
        for block, at, rows in self._by_block(ids):
            seconds[at], air_s[at] = block.links.transfer(rows, nbytes[at], up, now_s[at], _some(draws, at))
        return seconds, air_s

    def delay_s(self, ids: Ids, up: bool, draws: Draws) -> Arr:
        """Return the latencies of transfers, shape (k,), drawn where they vary."""
        delay_s: Arr = self.latency_s[ids]
        for block, at, rows in self._by_block(ids):
            if block.links.impaired:
                delay_s[at] = block.links.delay_s(rows, up, _some(draws, at))
        return delay_s

    def lost_updates(self, draws: Draws) -> np.ndarray:
        """Return True for each job whose whole update is lost on the air, shape (k,)."""
        lost = np.zeros(len(draws.ids), dtype=bool)
        for block, at, rows in self._by_block(draws.ids):
            if block.links.air is not None:
                some = _some(draws, at)
                uniform = Draws(some.key.at(OUTAGE), some.ids, some.nth).uniform(0)
                lost[at] = uniform < block.links.air.outage[rows]
        return lost

    def air_bytes(self, ids: Ids, nbytes: Arr, up: bool, draws: Draws) -> Arr:
        """Return the bytes that cross the air for so many bytes of payload, with those sent again, shape (k,)."""
        if not self.impaired:
            return nbytes
        air_bytes = np.array(nbytes)
        for block, at, rows in self._by_block(ids):
            if block.links.impaired:
                air_bytes[at] *= block.links.sendings(rows, nbytes[at], up, _some(draws, at))
        return air_bytes

    def compute(
        self,
        ids: Ids,
        flops: Arr,
        comm_s: Arr,
        deadline_s: float,
        now_s: Arr,
        draws: Draws,
        amounts: Mapping[str, Arr] | None = None,
        moved_bytes: float = 0.0,
        frequency_hz: Arr | None = None,
    ) -> tuple[Arr, Arr]:
        """Return seconds of computing that starts at `now_s` and the joules it adds to idle power, shape (k,).

        `comm_s`: seconds that the job needs besides; with `deadline_s` governors choose the frequency by them.
        `amounts`: of the kinds of work, if known; without them FLOPs count at one rate. `moved_bytes`: of the payloads
        of each job. `frequency_hz`: of each CPU; None: its governor chooses.
        """
        seconds, joules = np.empty(len(ids)), np.empty(len(ids))
        for block, at, rows in self._by_block(ids):
            cpu = block.cpu.rows(rows)
            work = block.work(rows, flops[at], amounts, at, moved_bytes)
            hz = block.governor.choose(work, comm_s[at], deadline_s, cpu) if frequency_hz is None else frequency_hz[at]
            if self.clock_share < 1.0:
                hz = np.minimum(hz, np.maximum(self.clock_share * cpu.max_hz, cpu.min_hz))
            busy_s = cpu.compute_s(work, hz)
            seconds[at] = block.slowdown.stretch(rows, busy_s, now_s[at], _some(draws, at))
            joules[at] = cpu.mean_w(work, hz) * seconds[at]
        return seconds, joules

    def work(self, ids: Ids, flops: Arr, amounts: Mapping[str, Arr] | None, moved_bytes: float = 0.0) -> CpuWork:
        """Return the work of jobs, of shape (k,); see `compute`."""
        cycles, memory_s = np.empty(len(ids)), np.empty(len(ids))
        for block, at, rows in self._by_block(ids):
            cycles[at], memory_s[at] = block.work(rows, flops[at], amounts, at, moved_bytes)
        return CpuWork(cycles, memory_s)

    def full_speed_s(self, ids: Ids, flops: Arr, amounts: Mapping[str, Arr] | None, moved_bytes: float = 0.0) -> Arr:
        """Return seconds of computing at the highest frequency, without slow-downs, shape (k,); see `compute`."""
        seconds = np.empty(len(ids))
        for block, at, rows in self._by_block(ids):
            work = block.work(rows, flops[at], amounts, at, moved_bytes)
            seconds[at] = work.cycles / block.cpu.max_hz[rows] + work.memory_s
        return seconds

    def full_speed_w(self, ids: Ids, flops: Arr, amounts: Mapping[str, Arr] | None, moved_bytes: float = 0.0) -> Arr:
        """Return the mean watts that computing adds to idle power at the highest frequency, shape (k,)."""
        watts = np.empty(len(ids))
        for block, at, rows in self._by_block(ids):
            cpu = block.cpu.rows(rows)
            watts[at] = cpu.mean_w(block.work(rows, flops[at], amounts, at, moved_bytes), cpu.max_hz)
        return watts

    def _by_block(self, ids: Ids) -> Iterator[tuple[DeviceBlock, Any, Ids]]:
        """Yield each block that has some of `ids`, where they are in `ids`, and their rows in the block."""
        if len(self.blocks) == 1:
            yield self.blocks[0], slice(None), ids
            return
        kinds = self.kind[ids]
        for kind in np.unique(kinds):
            at = np.flatnonzero(kinds == kind)
            block = self.blocks[kind]
            yield block, at, ids[at] - block.first


def _some(draws: Draws, at: Any) -> Draws:
    return Draws(draws.key, draws.ids[at], draws.nth[at])


def build_fleet(scenario: Scenario) -> Fleet:
    """Return the fleet of a scenario, all spreads drawn from the scenario's seed.

    Each column of each block has a stream of its own, so a larger count leaves the first devices as they were.
    Raises ConfigError if a distribution draws an impossible value.
    """
    devices = sum(block.count for block in scenario.fleet)
    check_memory("fleet.count", PROCESS_BYTES + devices * _DEVICE_BYTES, f"a fleet of {devices:,} devices")
    key = Key(scenario.seed).at(Purpose.FLEET)
    blocks: list[DeviceBlock] = []
    tables: list[Mapping[str, np.ndarray]] = []
    firsts = itertools.accumulate((block.count for block in scenario.fleet), initial=0)
    for index, (given, first) in enumerate(zip(scenario.fleet, firsts, strict=False)):
        block, columns = _block(scenario, given, index, first, key.at(index))
        blocks.append(block)
        tables.append(columns)
    joined: dict[str, Any] = {}
    for name in tables[0]:
        parts = [table[name] for table in tables]
        joined[name] = compact(parts[0] if len(parts) == 1 else np.concatenate(parts))
    return Fleet(
        kinds=tuple(block.name for block in scenario.fleet),
        blocks=tuple(blocks),
        steady=all(block.steady for block in blocks),
        impaired=any(block.links.impaired for block in blocks),
        per_byte=any(block.per_byte_s.any() for block in blocks),
        loses_updates=any(block.links.air is not None and block.links.air.outage.any() for block in blocks),
        **joined,
    )


def _block(
    scenario: Scenario, given: FleetBlock, index: int, first: int, key: Key
) -> tuple[DeviceBlock, Mapping[str, np.ndarray]]:
    n, path = given.count, f"fleet.{index}"
    cpu = _cpu_columns(given.cpu, n, key.at(_CPU), f"{path}.cpu")
    network, network_path = _own_or_common(given.network, scenario.network, f"{path}.network", "network")
    energy, energy_path = _own_or_common(given.energy, scenario.energy, f"{path}.energy", "energy")
    slowdown, slowdown_path = _own_or_common(given.slowdown, scenario.slowdown, f"{path}.slowdown", "slowdown")
    links = built(network, network_path, Links, network.value.build, n, key.at(_NETWORK), network_path)
    powers = built(energy, energy_path, Powers, energy.value.columns, n, cpu, key.at(_ENERGY), energy_path)
    arrays = _cpu_arrays(given.cpu, cpu, powers, f"{path}.cpu")
    given.cpu.governor.value.check(arrays, f"{path}.cpu.governor")
    clock, clock_path, speeds = given.cpu.clock, f"{path}.cpu.clock", CpuSpeeds(cpu["flops_per_s"], arrays.max_hz)
    own_clock = built(clock, clock_path, Clock, clock.value.build, n, speeds, key.at(_CPU, _CLOCK), clock_path)
    flops_per_s, draw_of_clocks = cpu["flops_per_s"], scenario.clock_draw
    if draw_of_clocks is not None and given.cpu.spread:
        board = given.cpu.board or given.name
        factor = clock_factor(draw_of_clocks, given.cpu.spread, board, scenario.network_of(given))
        own_clock, flops_per_s = WrongClock(own_clock, factor), flops_per_s / factor
    block = DeviceBlock(
        first=first,
        count=n,
        links=links,
        cpu=arrays,
        per_byte_s=compact(draw(given.cpu.per_byte, n, key.at(_CPU, _PER_BYTE).numpy(), f"{path}.cpu.per_byte")),
        clock=own_clock,
        one_rate=OneRate.of(CpuSpeeds(flops_per_s, arrays.max_hz)),
        governor=given.cpu.governor.value,
        slowdown=built(slowdown, slowdown_path, Slowdown, slowdown.value.build, n, key.at(_SLOWDOWN), slowdown_path),
        new_batteries=_batteries(given, powers.idle_w, key.at(_BATTERY), f"{path}.battery"),
    )
    return block, {
        "kind": np.full(n, index, dtype=np.int64),
        "level": np.full(n, given.level, dtype=np.int64),
        "flops_per_s": flops_per_s,
        "up_bps": links.up_bps,
        "down_bps": links.down_bps,
        "latency_s": links.latency_s,
        "j_per_bit": links.j_per_bit,
        "idle_w": powers.idle_w,
        "sleep_w": powers.sleep_w,
        "transmit_w": _with_radio(powers.transmit_w, links.transmit_w),
        "receive_w": _with_radio(powers.receive_w, links.receive_w),
        "memory_bytes": np.full(n, np.inf if given.memory is None else given.memory),
    }


def _with_radio(own_w: Arr, links_w: Arr | None) -> Arr:
    """Return powers of devices' radios, those of their links where the energy model has none, shape (n,)."""
    return own_w if links_w is None else np.where(own_w > 0, own_w, links_w)


def _batteries(given: FleetBlock, idle_w: Arr, key: Key, path: str) -> Callable[[], Batteries] | None:
    if given.battery is None or given.battery.value.plugged_in:
        return None
    build = partial(built, given.battery, path, Batteries, given.battery.value.build, idle_w, key, path)
    build()  # so that impossible values are found now
    return build


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


def _cpu_arrays(given: Cpu, cpu: Mapping[str, Arr], powers: Powers, path: str) -> CpuArrays:
    """Return the CPUs as governors know them. An unknown frequency counts as 1 Hz, which cannot be changed.

    Raises ConfigError if the lowest frequency is above the highest of a device.
    """
    max_hz = np.where(np.isnan(cpu["frequency_hz"]), 1.0, cpu["frequency_hz"])
    min_hz = max_hz if given.min_frequency is None else np.full(len(max_hz), given.min_frequency)
    if (above := min_hz > max_hz).any():
        found = f"{max_hz[above][0]:g} Hz" if given.frequency is not None else "none given"
        raise ConfigError(f"{path}.min_frequency: must be at most frequency, {found}, got {given.min_frequency:g} Hz")
    share = np.broadcast_to(powers.memory_share, max_hz.shape)
    return CpuArrays(
        min_hz=compact(min_hz),
        max_hz=compact(max_hz),
        cores=compact(cpu["cores"]),
        capacitance=compact(powers.capacitance),
        static_w=compact(powers.static_w),
        memory_share=compact(share),
        curve=powers.curve,
    )
