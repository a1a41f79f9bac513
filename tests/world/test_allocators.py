"""Shares of hertz against SciPy's general optimiser, and whole blocks against all there are."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.optimize import minimize

from edgesim.world.spectrum.allocators import PLUGINS, MaxMinRate, MinEnergy, MinMaxTime, Proportional
from edgesim.world.spectrum.base import OneDensity, OwnPower, Senders, whole_blocks
from tests.sizes import sized

BAND_HZ = 2e7
CELLS = sized(10, 200, 2000)


def cell(seed, devices=None, blocks=False):
    """Return transfers of random devices, of which one in three cells spreads power evenly."""
    random = np.random.default_rng(seed)
    k = devices or random.integers(2, 7)
    snr_hz = 10.0 ** random.uniform(6, 9, k)
    channel = OneDensity(np.log2(1.0 + snr_hz / BAND_HZ)) if seed % 3 == 0 else OwnPower(snr_hz)
    bits = 10.0 ** random.uniform(5.5, 7, k)
    return Senders(channel, bits, np.zeros(k), random.uniform(0.1, 1.0, k), random.uniform(0.5, 2.0, k))


def latest_s(senders, hz):
    return float(senders.end_s(hz).max())


def joules(senders, hz):
    return float((senders.watts * senders.end_s(hz)).sum())


def best_of_scipy(senders, function, *more):
    """Return the least value that SLSQP finds from equal shares, by the shares of all transfers."""
    k = len(senders.bits)
    scale = abs(function(np.full(k, BAND_HZ / k)))
    found = minimize(
        lambda share: function(share * BAND_HZ) / scale,
        np.full(k, 1.0 / k),
        bounds=[(1e-6, 1.0)] * k,
        constraints=[{"type": "eq", "fun": lambda share: share.sum() - 1.0}, *more],
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    return found.fun * scale


@pytest.mark.parametrize("allocator", PLUGINS.values(), ids=list(PLUGINS))
def test_the_whole_band_is_given_away(allocator):
    for seed in range(CELLS):
        senders = cell(seed)
        hz = allocator().divide(senders, BAND_HZ)
        assert hz.sum() == pytest.approx(BAND_HZ, rel=1e-12) and (hz > 0).all()


def test_all_end_together_and_no_sooner_end_exists():
    """The latest end as a variable of its own, which makes the problem smooth."""
    for seed in range(CELLS):
        senders = cell(seed)
        hz = MinMaxTime().divide(senders, BAND_HZ)
        ends_s = senders.end_s(hz)
        assert ends_s == pytest.approx(ends_s.max(), rel=1e-10)
        k, unit_s = len(hz), latest_s(senders, np.full(len(hz), BAND_HZ / len(hz)))
        found = minimize(
            lambda given: given[-1],
            np.append(np.full(k, 1.0 / k), 1.0),
            bounds=[(1e-6, 1.0)] * k + [(0.0, 1.0)],
            constraints=[
                {"type": "eq", "fun": lambda given: given[:-1].sum() - 1.0},
                {
                    "type": "ineq",
                    "fun": lambda given, s=senders, u=unit_s: given[-1] - s.end_s(given[:-1] * BAND_HZ) / u,
                },
            ],
            options={"ftol": 1e-14, "maxiter": 1000},
        )
        assert ends_s.max() / unit_s == pytest.approx(found.x[-1], rel=1e-6)


def test_least_energy_is_that_of_scipy():
    for seed in range(CELLS):
        senders = cell(seed)
        least_j = joules(senders, MinEnergy().divide(senders, BAND_HZ))
        assert least_j == pytest.approx(best_of_scipy(senders, lambda hz, s=senders: joules(s, hz)), rel=1e-6)


def test_least_energy_keeps_a_deadline():
    """Devices that would be late have just what they need; a deadline that is too short has all end together."""
    for seed in range(CELLS):
        senders = cell(seed)
        free_hz, soonest_s = (
            MinEnergy().divide(senders, BAND_HZ),
            latest_s(senders, MinMaxTime().divide(senders, BAND_HZ)),
        )
        deadline_s = 0.5 * (soonest_s + latest_s(senders, free_hz))
        hz = MinEnergy(deadline=deadline_s).divide(senders, BAND_HZ)
        assert latest_s(senders, hz) <= deadline_s * (1 + 1e-9)
        late = senders.end_s(hz) > deadline_s * (1 - 1e-9)
        assert late.any() and joules(senders, hz) >= joules(senders, free_hz)
        in_time = {"type": "ineq", "fun": lambda share, s=senders, d=deadline_s: 1.0 - s.end_s(share * BAND_HZ) / d}
        least_j = best_of_scipy(senders, lambda given, s=senders: joules(s, given), in_time)
        assert joules(senders, hz) == pytest.approx(least_j, rel=1e-5)
        short = MinEnergy(deadline=0.9 * soonest_s).divide(senders, BAND_HZ)
        assert senders.end_s(short) == pytest.approx(soonest_s, rel=1e-9)


def test_proportional_fairness_is_the_greatest_product_of_rates():
    for seed in range(CELLS):
        senders = cell(seed)
        found = -np.log(senders.channel.rate_bps(Proportional().divide(senders, BAND_HZ))).sum()
        best = best_of_scipy(senders, lambda hz, s=senders: -np.log(s.channel.rate_bps(hz)).sum())
        assert found == pytest.approx(best, rel=1e-8)


def test_equal_rates():
    for seed in range(CELLS):
        senders = cell(seed)
        rates_bps = senders.channel.rate_bps(MaxMinRate().divide(senders, BAND_HZ))
        assert rates_bps == pytest.approx(rates_bps[0], rel=1e-10)


VALUES = {
    "min_max_time": latest_s,
    "max_min_rate": lambda senders, hz: -senders.channel.rate_bps(hz).min(),
    "proportional": lambda senders, hz: -np.log(np.maximum(senders.channel.rate_bps(hz), 1e-9)).sum(),
    "min_energy": joules,
}


@pytest.mark.parametrize("name", VALUES)
def test_blocks_are_the_best_there_are(name):
    """4 devices and 6 blocks: all 84 ways to give them away."""
    value, block_hz = VALUES[name], BAND_HZ / 6
    ways = [np.array(way) * block_hz for way in product(range(7), repeat=4) if sum(way) == 6]
    for seed in range(CELLS):
        senders = cell(seed, devices=4)
        hz = whole_blocks(PLUGINS[name](), senders, 6, block_hz)
        assert hz.sum() == pytest.approx(BAND_HZ, rel=1e-12)
        assert value(senders, hz) == pytest.approx(min(value(senders, way) for way in ways), rel=1e-12)


def test_blocks_keep_a_deadline_that_can_be_kept():
    """The latest end of the best of all 84 ways, and a little more, as the deadline."""
    block_hz = BAND_HZ / 6
    ways = [np.array(way) * block_hz for way in product(range(7), repeat=4) if sum(way) == 6]
    for seed in range(CELLS):
        senders = cell(seed, devices=4)
        deadline_s = 1.001 * min(latest_s(senders, way) for way in ways)
        hz = whole_blocks(MinEnergy(deadline=deadline_s), senders, 6, block_hz)
        assert latest_s(senders, hz) <= deadline_s


def test_blocks_by_weight_and_alike():
    senders = Senders(OwnPower(np.full(3, 1e8)), np.ones(3), np.zeros(3), np.ones(3), np.array([1.0, 2.0, 3.0]))
    assert whole_blocks(PLUGINS["weighted"](), senders, 12, 1.0).tolist() == [2, 4, 6]
    assert whole_blocks(PLUGINS["equal"](), senders, 12, 1.0).tolist() == [4, 4, 4]
    assert PLUGINS["weighted"]().divide(senders, 12.0).tolist() == [2, 4, 6]


@pytest.mark.parametrize("channel", [OwnPower(np.logspace(4, 10, 50)), OneDensity(np.linspace(0.1, 20, 50))])
def test_hertz_of_a_rate_and_its_slopes(channel):
    """The inverse to 12 digits from tiny shares to 100 times the band, and slopes against differences."""
    for hz in (1e2, 1e5, 2e7, 2e9):
        given = np.full(50, hz)
        rate_bps = channel.rate_bps(given)
        again = channel.hz_of(rate_bps)
        assert channel.rate_bps(again) == pytest.approx(rate_bps, rel=1e-12)
        first, second = channel.slopes(given)
        step = 1e-4 * hz
        above, below = channel.rate_bps(given + step), channel.rate_bps(given - step)
        assert first == pytest.approx((above - below) / (2 * step), rel=1e-6, abs=1e-8)
        slope_above, slope_below = channel.slopes(given + step)[0], channel.slopes(given - step)[0]
        assert second == pytest.approx((slope_above - slope_below) / (2 * step), rel=1e-5, abs=1e-12)


def test_power_limits_a_rate():
    """S / ln 2 is the rate on endless hertz."""
    channel = OwnPower(np.array([1e6, 1e6, 1e6]))
    hz = channel.hz_of(np.array([0.0, 1.5e6, 1e6 / np.log(2)]))
    assert hz[0] == 0.0 and np.isinf(hz[1:]).all()
