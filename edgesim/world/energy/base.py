"""Abstract class of energy models, and the powers of devices that they give."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

from edgesim.core.arrays import Arr
from edgesim.core.rng import Key
from edgesim.world.compute.governors.cpu import VoltageCurve


class Powers(NamedTuple):
    """Powers of n devices; all arrays have shape (n,). Activities add to the idle power, which flows all the time."""

    idle_w: Arr
    sleep_w: Arr  # of a device that cannot be reached, instead of idle power
    transmit_w: Arr  # added to idle power while bits are sent
    receive_w: Arr  # added to idle power while bits are received
    capacitance: Arr  # of one core: J s^2, with a voltage curve farads
    static_w: Arr  # of the whole CPU while it computes, added to idle power
    memory_share: Arr | float = 1.0  # power while it waits for memory, as a share of dynamic and static power
    curve: VoltageCurve | None = None  # common to the n devices; None: dynamic power is capacitance x f^3


class EnergyPart(ABC):
    """An energy model as a scenario names it: a frozen dataclass."""

    @abstractmethod
    def columns(self, n: int, cpu: Mapping[str, Arr], key: Key, path: str) -> Powers:
        """Return the powers of n devices. Raises ConfigError that names a key below `path`.

        `cpu`: flops_per_s, frequency_hz (NaN if unknown) and cores, each of shape (n,).
        """
