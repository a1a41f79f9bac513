"""Links whose speed depends on nothing else that is in flight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from edgesim.contracts import Arr
from edgesim.rng import Key
from edgesim.units import BitsPerSecond, Delay, PerDevice, draw


@dataclass(frozen=True, kw_only=True)
class Ideal:
    """Transfers take no time and no energy; bytes are counted."""

    def columns(self, n: int, key: Key, path: str) -> Mapping[str, Arr]:
        """Return up_bps, down_bps and latency_s of n devices, each of shape (n,)."""
        endless = np.full(n, np.inf)
        return {"up_bps": endless, "down_bps": endless, "latency_s": np.zeros(n)}


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """Constant rates per device, up and down, and one latency per transfer."""

    up: PerDevice[BitsPerSecond]
    down: PerDevice[BitsPerSecond]
    latency: PerDevice[Delay] = 0.0

    def columns(self, n: int, key: Key, path: str) -> Mapping[str, Arr]:
        """Return up_bps, down_bps and latency_s of n devices, each of shape (n,).

        Raises ConfigError naming `path` if a distribution draws an impossible value.
        """
        return {
            "up_bps": draw(self.up, n, key.at(0).numpy(), f"{path}.up"),
            "down_bps": draw(self.down, n, key.at(1).numpy(), f"{path}.down"),
            "latency_s": draw(self.latency, n, key.at(2).numpy(), f"{path}.latency"),
        }


PARTS = {"ideal": Ideal, "fixed": Fixed}
