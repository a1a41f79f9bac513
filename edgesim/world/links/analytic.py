"""Links whose speed depends on nothing else that is in flight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from edgesim.config.units import BitsPerSecond, Delay, JoulesPerBit, LossRate, PerDevice, Watts, draw
from edgesim.core.arrays import Arr
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key
from edgesim.world.links.base import Links, NetworkPart, SteadyLinks


@dataclass(frozen=True, kw_only=True)
class Metered(NetworkPart):
    """Networks that spend energy of their own, not the devices': `energy_per_bit` of what crosses a device's link."""

    energy_per_bit: PerDevice[JoulesPerBit] = 0.0

    def j_per_bit(self, n: int, key: Key, path: str) -> Arr:
        """Return joules per bit of the links of n devices, shape (n,)."""
        return draw(self.energy_per_bit, n, key.at(6).numpy(), f"{path}.energy_per_bit")


@dataclass(frozen=True, kw_only=True)
class Impaired(Metered):
    """Networks whose transfers begin late, by a latency that may vary, and whose packets may get lost.

    `jitter` is the standard deviation of a log-normal latency whose mean is `latency`, drawn for every transfer. `loss`
    is the probability that a packet of 1500 bytes has to be sent again, each time anew: it costs air time and joules,
    not payload, as tables count what arrives. A byte is sent 1 / (1 - `loss`) times on average; `energy_per_bit` counts
    that mean. The latency counts once, as lost packets are sent again while others flow. `transmit` and `receive` are
    what the link's radio adds to a device whose energy model gives no such power.
    Source: jitter and loss as in netem of Linux (Hemminger, "Network emulation with NetEm", 2005), with repetition
    until all has arrived; 1 / (1 - loss) is the mean of the geometric number of sendings.
    """

    latency: PerDevice[Delay] = 0.0
    jitter: PerDevice[Delay] = 0.0
    loss: PerDevice[LossRate] = 0.0
    transmit: PerDevice[Watts] = 0.0  # added to a device's idle power while bits are sent
    receive: PerDevice[Watts] = 0.0  # added to a device's idle power while bits are received
    streams: ClassVar[Mapping[str, int]] = {"jitter": 3, "loss": 4}  # of a block's draws; never renumber

    def impairments(self, n: int, key: Key, path: str) -> dict[str, Any]:
        """Return the fields of `ImpairedLinks` of n devices, but for their rates.

        Raises ConfigError naming `path` for impossible values that are drawn.
        """
        latency_s = draw(self.latency, n, key.at(2).numpy(), f"{path}.latency")
        jitter_s = draw(self.jitter, n, key.at(self.streams["jitter"]).numpy(), f"{path}.jitter")
        loss = draw(self.loss, n, key.at(self.streams["loss"]).numpy(), f"{path}.loss")
        if ((jitter_s > 0) & (latency_s == 0)).any():
            raise ConfigError(f"{path}.jitter: needs a latency above 0 to vary, found a device with latency 0")
        j_per_bit = self.j_per_bit(n, key, path)
        transmit_w = draw(self.transmit, n, key.at(9).numpy(), f"{path}.transmit")
        receive_w = draw(self.receive, n, key.at(10).numpy(), f"{path}.receive")
        return {
            "latency_s": latency_s,
            "j_per_bit": j_per_bit / (1.0 - loss) if loss.any() else j_per_bit,
            # None spares a million devices the memory and every transfer the draw
            "jitter_s": jitter_s if jitter_s.any() else None,
            "loss": loss if loss.any() else None,
            "transmit_w": transmit_w if transmit_w.any() else None,
            "receive_w": receive_w if receive_w.any() else None,
        }


@dataclass(frozen=True, kw_only=True)
class Ideal(NetworkPart):
    """Transfers take no time and no energy; bytes are counted. A topology may limit what lies beyond the devices."""

    constant_rates: ClassVar[bool] = True

    def build(self, n: int, key: Key, path: str) -> Links:
        """Return the links of n devices."""
        endless = np.full(n, np.inf)
        return SteadyLinks(up_bps=endless, down_bps=endless, latency_s=np.zeros(n), j_per_bit=np.zeros(n))


@dataclass(frozen=True, kw_only=True)
class Fixed(Impaired):
    """Constant rates per device, up and down, and one latency per transfer.

    If the topology gives the server a link, or other links beyond the devices' own, transfers share those max-min
    fairly, as with `shared`.
    """

    constant_rates: ClassVar[bool] = True

    up: PerDevice[BitsPerSecond]  # rate from a device to the server
    down: PerDevice[BitsPerSecond]  # rate from the server to a device

    def build(self, n: int, key: Key, path: str) -> Links:
        """Return the links of n devices. Raises ConfigError naming `path` for impossible values that are drawn."""
        return SteadyLinks(
            up_bps=draw(self.up, n, key.at(0).numpy(), f"{path}.up"),
            down_bps=draw(self.down, n, key.at(1).numpy(), f"{path}.down"),
            **self.impairments(n, key, path),
        )


PLUGINS = {"ideal": Ideal, "fixed": Fixed}
