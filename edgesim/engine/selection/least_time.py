"""Greedy scheduling in a cell whose uploads end together, while more devices are worth the longer round.

Source: Shi, Zhou, Niu, Jiang and Geng, "Joint Device Scheduling and Resource Allocation for Latency Constrained
Wireless Federated Learning" (IEEE TWC 20(1), 2021): bandwidth for equal ends, and the greedy device scheduling that
stops when its bound of the loss would rise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edgesim.core.arrays import Arr, Ids
from edgesim.core.limits import Share
from edgesim.core.rng import Key
from edgesim.core.selection import Informed, Known, Want
from edgesim.world.spectrum.base import Channel

_EXACT = 1e-12  # relative, of the end of a round


@dataclass(frozen=True, kw_only=True)
class LeastTime(Informed):
    """Add, one after the other, the device that lengthens the round least, while progress per second grows.

    A round ends when the last upload of its devices does, if each has its own share of the cell's band for the whole
    round, and shares are such that all end together, as `allocator = "min_max_time"` has it. Download and computing
    come before, in the seconds that the server expects. At most `count` devices are asked.
    A budget of seconds allows budget / seconds rounds, and the bound of the paper says what each brings. Its constants
    are estimated in training; one number stands for them here (ours): m of N devices bring
    1 - divergence sqrt((1/m - 1/N) / (1 - 1/N)) of a round with all of them. That is how far the mean of m devices,
    drawn without replacement, lies from the mean of all. With `divergence` 1 one device alone brings nothing, and with
    0 it brings as much as all.
    Differs: shares of resource blocks are any numbers of hertz, and "noma" is planned like "fdma". Stations share no
    band: a round is as long as in the slowest cell.
    """

    needs: ClassVar[frozenset[Want]] = frozenset({"cell"})

    divergence: Share = 1.0

    def choose(self, idle: Ids, known: Known, key: Key) -> Ids:
        """Return the ids, ascending."""
        assert known.cell is not None
        cell, expected, devices = known.cell, known.expected, len(known.asked)
        starts_s = (expected.down_s + expected.compute_s + known.setting.latency_s)[idle]
        channel = cell.band.channel(cell.up_snr_hz[idle], True)
        bits = np.full(len(idle), 8.0 * expected.up_bytes)
        chosen, best = list[int](), 0.0
        for place, end_s in greedy(channel, bits, starts_s, cell.base[idle], cell.band.up_hz):
            per_s = self.progress(len(chosen) + 1, devices) / end_s
            if len(chosen) == self.count or (chosen and per_s < best):
                break
            chosen.append(place)
            best = per_s
        return np.sort(idle[chosen])

    def progress(self, devices: int, of: int) -> float:
        """Return the progress of a round with some devices, as a share of a round with all of them."""
        return 1.0 - self.divergence * math.sqrt((1.0 / devices - 1.0 / of) / (1.0 - 1.0 / of)) if of > 1 else 1.0


def greedy(channel: Channel, bits: Arr, starts_s: Arr, base: Ids, band_hz: float) -> Iterator[tuple[int, float]]:
    """Yield devices, by place, in the order in which they lengthen the round least, each with the end of the round.

    `channel`, `bits` and `starts_s`, the earliest second of the first bit, are of the uploads of k devices, shape (k,);
    `base`: their base stations, each of which has a band.
    The least end that one more device allows is found at once for all candidates, by bisection. Each needs fewer hertz
    the later the end, so that the first to fit is the one that lengthens the round least.
    """
    cell, chosen = np.unique(base, return_inverse=True)[1], np.zeros(len(bits), dtype=bool)

    def needed_hz(end_s: float) -> Arr:
        """Return the hertz of each cell's chosen devices and one more, inf for those that are chosen, shape (k,)."""
        left_s = end_s - starts_s
        rate_bps = np.divide(bits, left_s, out=np.full(len(bits), np.inf), where=left_s > 0)
        hz = channel.hz_of(rate_bps)
        return np.where(chosen, np.inf, hz) + np.bincount(cell, np.where(chosen, hz, 0.0))[cell]

    end_s = float(starts_s.min())
    while not chosen.all():
        misses_s, needed = end_s, needed_hz(end_s)
        while needed.min() > band_hz:
            misses_s, end_s = end_s, 2.0 * end_s + float((bits / channel.rate_bps(np.full(len(bits), band_hz))).min())
            needed = needed_hz(end_s)
        while end_s - misses_s > _EXACT * end_s:
            middle_s = 0.5 * (misses_s + end_s)
            at_middle = needed_hz(middle_s)
            if at_middle.min() > band_hz:
                misses_s = middle_s
            else:
                end_s, needed = middle_s, at_middle
        place = int(needed.argmin())
        chosen[place] = True
        yield place, end_s


PLUGINS = {"least_time": LeastTime}
