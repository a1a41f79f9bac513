"""Users and resource blocks against packet errors, under limits of time and energy.

Source: Chen, Yang, Saad, Yin, Poor and Cui, "A Joint Learning and Communications Framework for Federated Learning over
Wireless Networks" (IEEE TWC 20(1), 2021), with the authors' simulation (github.com/mzchen0/Wireless-FL).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.optimize import linear_sum_assignment

from edgesim.config.units import PositiveJoules, Seconds
from edgesim.core.arrays import Arr, Ids
from edgesim.core.errors import ConfigError
from edgesim.core.limits import NonNegativeNumber
from edgesim.core.rng import Key
from edgesim.core.selection import Informed, Known, Want
from edgesim.world.spectrum.base import shannon_bps


@dataclass(frozen=True, kw_only=True)
class PacketError(Informed):
    """Give each device one resource block of the cell such that the samples of lost updates are fewest.

    On a block of B Hz an update gets lost with probability q = 1 - exp(-m (I + B N0) / (P h)), the m of `waterfall`.
    The sum of samples x (1 - q) over the pairs of devices and blocks is the greatest for at most `count` devices, by
    the Hungarian algorithm. Pairs are left out whose job would take longer than `deadline`, or more than `energy` for
    computing and sending. Of the paper are the waterfall threshold 0.023 dB and limits of 0.5 s and 3 mJ, which its
    small network keeps; here there are none unless they are given. Without resource blocks the band has `count`.
    `interference_db` says for each block how far interference raises its noise. If no pair keeps the limits, the
    device with the best channel is asked.
    Differs: computing counts against the deadline. The cell's allocator gives the blocks in a run, where `waterfall` of
    the network decides about lost packets. Devices keep their power.
    """

    needs: ClassVar[frozenset[Want]] = frozenset({"cell"})

    deadline: Seconds | None = None
    energy: PositiveJoules | None = None
    waterfall: NonNegativeNumber = 10.0**0.0023  # 0.023 dB
    interference_db: tuple[NonNegativeNumber, ...] | None = None  # of each block; None: all are alike

    def start(self, known: Known) -> Any:
        """Return no state. Raises ConfigError unless there is interference for each block."""
        assert known.cell is not None
        blocks = known.cell.band.blocks or self.count
        if self.interference_db is not None and len(self.interference_db) != blocks:
            found = f"found {len(self.interference_db)}"
            raise ConfigError(f"selection.interference_db: must have a number for each of the {blocks} blocks, {found}")

    def choose(self, idle: Ids, known: Known, key: Key) -> Ids:
        """Return the ids, ascending."""
        worth = self.worth(idle, known)
        rows, columns = assigned(worth, self.count)
        chosen = rows[worth[rows, columns] > 0]
        if not len(chosen) and len(idle):
            assert known.cell is not None
            chosen = known.cell.up_snr_hz[idle].argmax(keepdims=True)
        return np.sort(idle[chosen])

    def worth(self, idle: Ids, known: Known) -> Arr:
        """Return the samples x (1 - q) of devices and blocks, 0 beyond the limits, shape (len(idle), blocks)."""
        assert known.cell is not None
        cell, expected = known.cell, known.expected
        blocks = cell.band.blocks or self.count
        block_hz = cell.band.up_hz / blocks
        rise = 10.0 ** (np.array(self.interference_db or [0.0] * blocks) / 10.0)
        snr = cell.up_snr_hz[idle, None] / (block_hz * rise)
        upload_s = 8.0 * expected.up_bytes / shannon_bps(block_hz, snr)
        before_s = (expected.down_s + expected.compute_s + known.setting.latency_s)[idle, None]
        joules = expected.compute_j[idle, None] + cell.transmit_w[idle, None] * upload_s
        late = before_s + upload_s > (np.inf if self.deadline is None else self.deadline)
        dear = joules > (np.inf if self.energy is None else self.energy)
        arriving: Arr = known.setting.samples[idle, None] * np.exp(-self.waterfall / snr)
        return np.where(late | dear, 0.0, arriving)


def assigned(worth: Arr, most: int) -> tuple[Ids, Ids]:
    """Return rows and columns of pairs with the greatest sum of worth, at most `most` of them, none twice.

    Exactly `most` pairs, if there are so many rows and columns, come from a square assignment: each row that is left
    out has a column of its own of worth 0, and each column that is left out has a row.
    """
    n, m = worth.shape
    pairs = min(most, n, m)
    square = np.zeros((n + m - pairs, m + n - pairs))
    square[:n, :m] = -worth
    square[n:, m:] = np.inf
    rows, columns = linear_sum_assignment(square)
    real = (rows < n) & (columns < m)
    return rows[real], columns[real]


PLUGINS = {"packet_error": PacketError}
