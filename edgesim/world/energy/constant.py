"""Energy models of constant power per activity. Activities add to the idle power, which flows all the time.

Computing adds static_w + capacitance x f^3 x cores watts; see edgesim.world.compute.governors.cpu.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgesim.config.units import Distribution, PerDevice, Watts, draw
from edgesim.core.arrays import Arr
from edgesim.core.errors import ConfigError
from edgesim.core.limits import PositiveNumber, Share
from edgesim.core.rng import Key
from edgesim.world.energy.base import EnergyPart, Powers


@dataclass(frozen=True, kw_only=True)
class NoEnergy(EnergyPart):
    """Nothing consumes energy."""

    def columns(self, n: int, cpu: Mapping[str, Arr], key: Key, path: str) -> Powers:
        """Return powers of 0."""
        nothing = np.zeros(n)
        return Powers(nothing, nothing, nothing, nothing, nothing, nothing)


@dataclass(frozen=True, kw_only=True)
class Radio(EnergyPart):
    """Common powers of the models: idle power, and the powers that transmitting and receiving add to it.

    `sleep`: power of a device that cannot be reached, instead of idle power. None: idle power.
    `memory_share`: for a clock that knows seconds of memory.
    """

    idle: PerDevice[Watts] = 0.0  # drawn all the time
    sleep: PerDevice[Watts] | None = None
    transmit: PerDevice[Watts] = 0.0  # added to idle while bits are sent
    receive: PerDevice[Watts] = 0.0  # added to idle while bits are received
    memory_share: PerDevice[Share] = 1.0  # of the power that computing adds, drawn while it waits for memory

    def shared(self, n: int, key: Key, path: str) -> dict[str, Any]:
        """Return idle_w, sleep_w, transmit_w, receive_w and memory_share of n devices, each of shape (n,)."""
        idle_w = draw(self.idle, n, key.at(0).numpy(), f"{path}.idle")
        return {
            "idle_w": idle_w,
            "sleep_w": idle_w if self.sleep is None else draw(self.sleep, n, key.at(5).numpy(), f"{path}.sleep"),
            "transmit_w": draw(self.transmit, n, key.at(1).numpy(), f"{path}.transmit"),
            "receive_w": draw(self.receive, n, key.at(2).numpy(), f"{path}.receive"),
            "memory_share": draw(self.memory_share, n, key.at(6).numpy(), f"{path}.memory_share"),
        }


@dataclass(frozen=True, kw_only=True)
class CpuEnergy(Radio):
    """Dynamic energy of a CPU: capacitance x f^2 joules per cycle and busy core, on top of idle power.

    Cycles are busy seconds x f, so computing adds capacitance x f^3 x cores watts.
    Source: the usual model of mobile-edge computing; 1e-28 J s^2 is its most common effective capacitance.
    `static`: power of the CPU while it computes, independent of its frequency.
    """

    capacitance: PositiveNumber = 1e-28  # J s^2
    static: PerDevice[Watts] = 0.0

    def columns(self, n: int, cpu: Mapping[str, Arr], key: Key, path: str) -> Powers:
        """Return the powers of n devices. Raises ConfigError if the CPU has no frequency."""
        if np.isnan(cpu["frequency_hz"]).any():
            raise ConfigError(f"{path}.name: the energy of a CPU needs cpu.frequency in every fleet block that uses it")
        static_w = draw(self.static, n, key.at(4).numpy(), f"{path}.static")
        return Powers(**self.shared(n, key, path), capacitance=np.full(n, self.capacitance), static_w=static_w)


@dataclass(frozen=True, kw_only=True)
class Power(Radio):
    """Measured device powers: `busy` is the whole device while it computes, idle power included."""

    busy: PerDevice[Watts]

    def columns(self, n: int, cpu: Mapping[str, Arr], key: Key, path: str) -> Powers:
        """Return the powers of n devices. Raises ConfigError if busy is below idle."""
        shared = self.shared(n, key, path)
        static_w = _above_idle(self.busy, shared, key.at(3), f"{path}.busy")
        return Powers(**shared, capacitance=np.zeros(n), static_w=static_w)


@dataclass(frozen=True, kw_only=True)
class GpuEnergy(Radio):
    """Power of a GPU between idle and its limit, in proportion to its utilisation while it computes.

    Seconds in which it waits for memory take `memory_share` of that.
    """

    limit: PerDevice[Watts]  # of the whole device at full utilisation, idle power included
    utilisation: PerDevice[Share] = 1.0  # while it computes

    def columns(self, n: int, cpu: Mapping[str, Arr], key: Key, path: str) -> Powers:
        """Return the powers of n devices. Raises ConfigError if the limit is below idle."""
        shared = self.shared(n, key, path)
        range_w = _above_idle(self.limit, shared, key.at(7), f"{path}.limit")
        utilisation = draw(self.utilisation, n, key.at(8).numpy(), f"{path}.utilisation")
        return Powers(**shared, capacitance=np.zeros(n), static_w=utilisation * range_w)


def _above_idle(whole_w: float | Distribution, shared: Mapping[str, Arr], key: Key, path: str) -> Arr:
    """Return powers of whole devices less their idle power, shape (n,). Raises ConfigError if one is below."""
    added_w: Arr = draw(whole_w, len(shared["idle_w"]), key.numpy(), path) - shared["idle_w"]
    if (added_w < 0).any():
        raise ConfigError(f"{path}: must be at least idle, found a device {-added_w.min():g} W below it")
    return added_w


PLUGINS = {"none": NoEnergy, "cpu": CpuEnergy, "power": Power, "gpu": GpuEnergy}
