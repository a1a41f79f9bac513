"""Links whose speed depends on nothing else that is in flight."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Lt

from edgesim.config.units import BitsPerSecond, Delay, JoulesPerBit, PerDevice, draw
from edgesim.core.arrays import Arr
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key
from edgesim.world.links.base import Links, SteadyLinks


class Network(ABC):
    """What networks share."""

    @abstractmethod
    def build(self, n: int, key: Key, path: str) -> Links:
        """Return the links of n devices.

        Raises ConfigError that names a key below `path`, the part's place in the scenario, or DataError with a file.
        """


@dataclass(frozen=True, kw_only=True)
class Metered(Network):
    """Networks that spend energy of their own, not the devices': `energy_per_bit` of what crosses a device's link."""

    energy_per_bit: PerDevice[JoulesPerBit] = 0.0

    def j_per_bit(self, n: int, key: Key, path: str) -> Arr:
        """Return joules per bit of the links of n devices, shape (n,)."""
        return draw(self.energy_per_bit, n, key.at(6).numpy(), f"{path}.energy_per_bit")


@dataclass(frozen=True, kw_only=True)
class Ideal(Network):
    """Transfers take no time and no energy; bytes are counted."""

    def build(self, n: int, key: Key, path: str) -> Links:
        """Return the links of n devices."""
        endless = np.full(n, np.inf)
        return SteadyLinks(up_bps=endless, down_bps=endless, latency_s=np.zeros(n), j_per_bit=np.zeros(n))


@dataclass(frozen=True, kw_only=True)
class Fixed(Metered):
    """Constant rates per device, up and down, and one latency per transfer.

    `jitter` is the standard deviation of a log-normal latency whose mean is `latency`. `loss` is the probability
    that a packet of 1500 bytes has to be sent again: it costs air time, not payload; the latency counts once, as lost
    packets are sent again while others flow.
    """

    up: PerDevice[BitsPerSecond]  # rate from a device to the server
    down: PerDevice[BitsPerSecond]  # rate from the server to a device
    latency: PerDevice[Delay] = 0.0
    jitter: PerDevice[Delay] = 0.0
    loss: PerDevice[Annotated[float, Ge(0), Lt(1)]] = 0.0

    def build(self, n: int, key: Key, path: str) -> Links:
        """Return the links of n devices. Raises ConfigError naming `path` for impossible values that are drawn."""
        latency_s = draw(self.latency, n, key.at(2).numpy(), f"{path}.latency")
        jitter_s = draw(self.jitter, n, key.at(3).numpy(), f"{path}.jitter")
        loss = draw(self.loss, n, key.at(4).numpy(), f"{path}.loss")
        if ((jitter_s > 0) & (latency_s == 0)).any():
            raise ConfigError(f"{path}.jitter: needs a latency above 0 to vary, found a device with latency 0")
        return SteadyLinks(
            up_bps=draw(self.up, n, key.at(0).numpy(), f"{path}.up"),
            down_bps=draw(self.down, n, key.at(1).numpy(), f"{path}.down"),
            latency_s=latency_s,
            j_per_bit=self.j_per_bit(n, key, path),
            # None spares a million devices the memory and every transfer the draw
            jitter_s=jitter_s if jitter_s.any() else None,
            loss=loss if loss.any() else None,
        )


PLUGINS = {"ideal": Ideal, "fixed": Fixed}
