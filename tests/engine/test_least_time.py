"""Greedy scheduling in a cell against numbers by hand, the allocator of equal ends, and brute force."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from scipy.optimize import brentq

from edgesim.core.rng import Key
from edgesim.engine.selection.least_time import LeastTime, greedy
from edgesim.world.spectrum.allocators import MinMaxTime
from edgesim.world.spectrum.base import OneDensity, OwnPower, Senders
from tests.contracts.support import mixed_scenario, run
from tests.engine.by_knowledge import cell_of, expected_of, known_of

KEY = Key(5)
FOUR = np.arange(4)
ONE_CELL = np.zeros(4, dtype=np.int64)


def ends_of(channel, bits, starts_s, base, band_hz):
    """Return the order of devices and the end of the round with each."""
    places, ends_s = zip(*greedy(channel, bits, starts_s, base, band_hz), strict=True)
    return list(places), list(ends_s)


def test_shares_of_time_add_up():
    """Over 2 Hz of 1 bit/s/Hz 8, 2, 6 and 4 bits take 4, 1, 3 and 2 s alone, and together the sum of these."""
    bits = np.array([8.0, 2.0, 6.0, 4.0])
    places, ends_s = ends_of(OneDensity(np.ones(4)), bits, np.zeros(4), ONE_CELL, 2.0)
    assert places == [1, 3, 2, 0]
    assert ends_s == pytest.approx([1, 3, 6, 10], rel=1e-11)


def test_computing_comes_before_the_upload():
    """Two devices need 1 s of the band each, one of them from second 2: 1 / t + 1 / (t - 2) = 1 at t = 2 + sqrt 2."""
    places, ends_s = ends_of(OneDensity(np.ones(2)), np.ones(2), np.array([2.0, 0.0]), ONE_CELL[:2], 1.0)
    assert places == [1, 0]
    assert ends_s == pytest.approx([1, 2 + sqrt(2)], rel=1e-11)


def test_cells_share_no_band():
    """Uploads of 4 and 5 s at one station, 1 and 2 s at the other: the round ends after 1, 3, 4 and 9 s."""
    bits, base = np.array([4.0, 5.0, 1.0, 2.0]), np.array([9, 9, 7, 7])
    places, ends_s = ends_of(OneDensity(np.ones(4)), bits, np.zeros(4), base, 1.0)
    assert places == [2, 3, 0, 1]
    assert ends_s == pytest.approx([1, 3, 4, 9], rel=1e-11)


def test_devices_join_while_progress_per_second_grows():
    """Ends 1, 3, 6 and 10 s. Of 4 devices 1, 2, 3 and 4 bring 0, 1 - sqrt(1/3), 1 - sqrt(1/9) and 1 of a round.

    Per second 0, 0.141, 0.111, so two are asked. With half the divergence one brings 0.5 in 1 s and two 0.711 in 3 s.
    """
    known = known_of([1] * 4, cell=cell_of([4.0, 1.0, 3.0, 2.0]), expected=expected_of(compute_s=0.0))
    rule = LeastTime(count=4)
    by_hand = [0, 1 - sqrt(1 / 3), 1 - sqrt(1 / 9), 1]
    assert [rule.progress(m, 4) for m in (1, 2, 3, 4)] == pytest.approx(by_hand, rel=1e-12, abs=1e-12)
    assert rule.choose(FOUR, known, KEY).tolist() == [1, 3]
    assert rule.choose(FOUR[:3], known, KEY).tolist() == [1, 2]  # 1 and 4 s; all three end after 8
    assert LeastTime(count=4, divergence=0.5).choose(FOUR, known, KEY).tolist() == [1]
    assert LeastTime(count=1).choose(FOUR, known, KEY).tolist() == [1]
    assert LeastTime(count=1, divergence=0).progress(1, 1) == 1


def test_ends_are_those_of_min_max_time():
    """Without computing the last end is that of the allocator; each device before adds least, by brute force."""
    draws = np.random.default_rng(3)
    for _ in range(10):
        snr_hz, bits = 10.0 ** draws.uniform(3, 8, 5), draws.uniform(1e5, 1e7, 5)
        starts_s = draws.uniform(0, 9, 5)
        places, ends_s = ends_of(OwnPower(snr_hz), bits, np.zeros(5), np.zeros(5, dtype=np.int64), 1e6)
        senders = Senders(OwnPower(snr_hz), bits, np.zeros(5), np.ones(5), np.ones(5))
        assert ends_s[-1] == pytest.approx(senders.end_s(MinMaxTime().divide(senders, 1e6)).max(), rel=1e-9)
        places, ends_s = ends_of(OwnPower(snr_hz), bits, starts_s, np.zeros(5, dtype=np.int64), 1e6)
        for size in range(1, 6):
            least = min(
                (round_s(snr_hz, bits, starts_s, [*places[: size - 1], other]), other)
                for other in set(range(5)) - set(places[: size - 1])
            )
            assert (ends_s[size - 1], places[size - 1]) == (pytest.approx(least[0], rel=1e-9), least[1])


def round_s(snr_hz, bits, starts_s, chosen):
    """Return the end of a round of some devices on 1 MHz, by scipy's root of the hertz that they need."""

    def lacks_hz(end_s):
        rates = bits[chosen] / (end_s - starts_s[chosen])
        # the root of each rate equation by itself, on hertz from 0 to far beyond the band
        return sum(
            brentq(lambda hz, s=s, r=r: hz * np.log1p(s / hz) / np.log(2) - r, 1e-9, 1e15, xtol=1e-9, rtol=1e-14)
            for s, r in zip(snr_hz[chosen], rates, strict=True)
        ) - 1e6  # fmt: skip

    alone_s = starts_s[chosen] + bits[chosen] / (1e6 * np.log2(1 + snr_hz[chosen] / 1e6))
    return brentq(lacks_hz, alone_s.max() * (1 - 1e-12), 1e5, rtol=1e-13)


def test_rounds_are_shorter_than_of_random_devices():
    """Ten rounds in one cell, with fading, of devices whose speeds have a heavy tail: at most 3 of 6 are asked."""
    seconds = {}
    for name in ("least_time", "uniform"):
        scenario = mixed_scenario(
            selection={"name": name, "count": 3},
            network={
                "name": "cell",
                "bandwidth": "1 MHz",
                "distance_m": {"uniform": [50, 900]},
                "fading": "per_round",
                "allocator": "min_max_time",
            },
            fleet=[{"count": 6, "cpu": {"flops_per_s": {"log_normal": ["10 MFLOP/s", 1.0]}}}],
            backend="null",
            evaluation={"every": 10},
            stop={"rounds": 10},
        )
        seconds[name] = run(scenario).tables["jobs"].frame()["end_s"].max()
    assert seconds["least_time"] < 0.7 * seconds["uniform"]
