"""Random jobs of a round in a cell."""

from __future__ import annotations

import numpy as np

from edgesim.world.resources.base import Demands, DeviceTraits


def drawn_demands(seed: int, devices: int = 5) -> Demands:
    """Return jobs as in FEDL's example: 0.3 GHz to 1-2 GHz, 2 to 50 m, 10 to 30 cycles a bit of 40-80 Mbit."""
    rng, n = np.random.default_rng(seed), devices
    noise_w_hz, gain = 1e-16, 10**-4 * rng.exponential(size=n) * rng.uniform(2, 50, n) ** -4.0
    traits = DeviceTraits(
        least_hz=np.full(n, 0.3e9),
        most_hz=rng.uniform(1e9, 2e9, n),
        capacitance=np.full(n, 1e-28),
        snr_hz_per_w=gain / noise_w_hz,
        power_w=rng.uniform(0.2, 1.0, n),
        efficiency=rng.choice([0.25, 1.0], n),
    )
    cycles = rng.uniform(10, 30, n) * rng.uniform(40e6, 80e6, n)
    return Demands(traits, cycles, rng.uniform(1e5, 1e6, n), rng.uniform(0.0, 0.2, n), 1e6)
