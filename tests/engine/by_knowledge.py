"""What a server might know, made by hand, so that a choice can be checked against numbers on paper."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from edgesim.core.arrays import Arr
from edgesim.core.rng import Draws
from edgesim.core.selection import CellState, Expected, Known, Reported, StoredEnergy
from edgesim.world.spectrum.allocators import Equal
from edgesim.world.spectrum.cells import CellBand

NAN = float("nan")


def expected_of(down_s: Any = 0.0, compute_s: Any = 1.0, up_s: Any = 0.0, n: int = 4, **joules: Any) -> Expected:
    """Return expected jobs of n devices; numbers are common to all. `joules`: and compute_j, 0 if not given."""
    given = (down_s, compute_s, up_s, joules.get("joules", 0.0), joules.get("compute_j", 0.0))
    columns = (np.broadcast_to(np.asarray(each, dtype=float), n) for each in given)
    return Expected(*columns, up_bytes=1000)


def cell_of(alone_s: Sequence[float], blocks: int = 0, **watts: Any) -> CellState:
    """Return a cell of 8 kHz, in which a device that is alone uploads 1000 bytes in so many seconds.

    Each device has a share of time, of any length. `watts`: transmit_w, 1 if not given.
    """
    band = CellBand(up_hz=8e3, down_hz=8e3, access="tdma", blocks=blocks, allocator=Equal(), gain=unfaded)
    snr_hz = 8e3 * (2.0 ** (1.0 / np.array(alone_s)) - 1.0)
    transmit_w = np.broadcast_to(np.asarray(watts.get("transmit_w", 1.0), dtype=float), len(snr_hz))
    return CellState(band, np.full(len(snr_hz), 5), snr_hz, snr_hz, transmit_w)


def unfaded(draws: Draws, up: bool) -> Arr:
    """Return the gain of transfers that do not fade, 1."""
    return np.ones(len(draws.ids))


def known_of(samples: Sequence[int], state: Any = None, **facts: Any) -> Known:
    """Return what is known of devices with so many samples: nothing but what is given.

    `facts`: fields of Known as lists; and loss, square_loss, accuracy, norm, stored_j and capacity_j.
    """
    n = len(samples)
    reported = Reported(*(np.array(facts.pop(name, [NAN] * n), dtype=float) for name in Reported._fields))
    battery = StoredEnergy(*(np.array(facts.pop(name, [np.inf] * n), dtype=float) for name in StoredEnergy._fields))
    setting = SimpleNamespace(samples=np.array(samples), latency_s=np.zeros(n))
    base: dict[str, Any] = {
        "round": 0,
        "now_s": 0.0,
        "asked": [0] * n,
        "delivered": [0] * n,
        "last_asked": [-1] * n,
        "last_delivered": [-1] * n,
        "seconds": [NAN] * n,
        "last": [],
        "up_bps": [1e6] * n,
        "expected": expected_of(n=n),
    }
    given = {name: np.array(each) if isinstance(each, list) else each for name, each in {**base, **facts}.items()}
    given["last"] = given["last"].astype(np.int64)
    return Known(setting=setting, reported=reported, battery=battery, state=state, **given)  # type: ignore[arg-type]
