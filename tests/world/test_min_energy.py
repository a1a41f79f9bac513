"""Least energy under a deadline against numbers by hand and against a general optimiser."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize

from edgesim.world.resources.base import Demands, DeviceTraits, chosen
from edgesim.world.resources.marginal import nats_worth
from edgesim.world.resources.min_energy import LeastEnergy
from tests.sizes import spread
from tests.world.demands import drawn_demands

BAND_HZ = 1e6


def test_a_device_alone_by_hand():
    """It has the band. With x = ln 2 s / (B t) nats, 2 c w^3 / (T - t)^3 = (B / S) (1 + (x - 1) e^x): for x = 1 and
    t = 1 s of T = 3 s that is 2 c w^3 / 8 = B / S."""
    traits = DeviceTraits(*(np.array([value]) for value in (1e8, 2e9, 1e-27, BAND_HZ / 0.25, 9.0, 1.0)))
    given = Demands(traits, np.array([1e9]), np.array([1e6 / math.log(2)]), np.array([0.5]), BAND_HZ)
    choices = LeastEnergy(deadline=3.5).choose(given)
    assert choices.frequency_hz == pytest.approx([0.5e9], rel=1e-6)
    assert choices.hertz == pytest.approx([BAND_HZ], rel=1e-12)
    assert choices.power_w == pytest.approx([0.25 * (math.e - 1)], rel=1e-6)
    assert given.joules(choices) == pytest.approx([0.25 + 0.25 * (math.e - 1)], rel=1e-12)


def test_equal_devices_share_equally():
    """Two equal devices with half the band each are like one with a band of half the width."""
    one = drawn_demands(1, devices=1)
    two = replace(one.rows(np.zeros(2, dtype=int)), band_hz=2 * one.band_hz)
    alone, both = (LeastEnergy(deadline=3.0).choose(given) for given in (one, two))
    assert both.hertz == pytest.approx([one.band_hz] * 2, rel=1e-6)
    assert both.frequency_hz == pytest.approx(np.repeat(alone.frequency_hz, 2), rel=1e-6)


def soonest_s(given: Demands) -> float:
    """Return the shortest deadline that all can keep."""
    choices = LeastEnergy(deadline=1e-6).choose(given)
    ends_s = given.other_s + given.cycles / choices.frequency_hz + given.upload_s(choices)
    assert ends_s == pytest.approx([ends_s[0]] * len(ends_s), rel=1e-6)  # all are done together
    assert (choices.frequency_hz == given.devices.most_hz).all() and (choices.power_w == given.devices.power_w).all()
    assert choices.hertz.sum() == pytest.approx(given.band_hz, rel=1e-12)
    return float(ends_s[0])


def general_optimum(given: Demands, deadline_s: float) -> float:
    """Return the least joules by SLSQP over logarithms of upload times and hertz, in which the problem is convex."""
    devices, k = given.devices, len(given.bits)
    left_s, nats_hz = deadline_s - given.other_s, given.bits * math.log(2)
    longest_s = left_s - given.cycles / devices.most_hz

    def power_w(x):
        return np.exp(x[k:]) / devices.snr_hz_per_w * np.expm1(nats_hz * np.exp(-x[:k] - x[k:]))

    def joules(x):
        upload_s = np.exp(x[:k])
        computing_j = devices.capacitance * given.cycles**3 / (left_s - upload_s) ** 2
        return (computing_j + power_w(x) / devices.efficiency * upload_s).sum()

    start = np.concatenate([np.log(longest_s), np.log(np.full(k, given.band_hz / k))])
    scale = joules(start)
    shortest_s = left_s - given.cycles / devices.least_hz
    found = minimize(
        lambda x: joules(x) / scale,
        start,
        method="SLSQP",
        bounds=[
            *zip(np.log(np.maximum(shortest_s, 1e-9)), np.log(longest_s), strict=True),
            *[(None, math.log(given.band_hz))] * k,
        ],
        constraints=[
            {"type": "ineq", "fun": lambda x: 1.0 - np.exp(x[k:]).sum() / given.band_hz},
            {"type": "ineq", "fun": lambda x: np.log(devices.power_w) - np.log(power_w(x))},
        ],
        options={"ftol": 1e-15, "maxiter": 1000},
    )  # fmt: skip
    return float(found.fun * scale)


@pytest.mark.parametrize("seed", spread(range(100), 6))
def test_choices_are_the_optimum(seed):
    """Deadlines from 2 % above the shortest, where powers reach their bounds, to four times it."""
    given = drawn_demands(seed)
    deadline_s = soonest_s(given) * (1.0 + 10.0 ** np.random.default_rng(seed).uniform(-1.7, 0.5))
    choices = chosen(LeastEnergy(deadline=deadline_s), given)
    ends_s = given.other_s + given.cycles / choices.frequency_hz + given.upload_s(choices)
    assert (ends_s <= deadline_s * (1.0 + 1e-12)).all()
    assert given.joules(choices).sum() == pytest.approx(general_optimum(given, deadline_s), rel=1e-6)


def test_energy_falls_with_the_deadline():
    given = drawn_demands(2)
    joules = [
        given.joules(LeastEnergy(deadline=deadline_s).choose(given)).sum()
        for deadline_s in soonest_s(given) * np.geomspace(1.001, 10, 12)
    ]
    assert (np.diff(joules) < 0).all()


def test_nats_by_their_worth():
    """(x - 1) e^x + 1 = worth, also near 0 where it is x^2 / 2."""
    nats = np.array([1e-6, 1e-4, 0.1, 1.0, 2.0, 20.0])
    series = nats**2 / 2 + nats**3 / 3 + nats**4 / 8
    worth = np.where(nats < 1e-2, series, (nats - 1) * np.exp(nats) + 1)
    assert nats_worth(worth) == pytest.approx(nats, rel=1e-5)
    assert nats_worth(worth[2:]) == pytest.approx(nats[2:], rel=1e-12)


@pytest.mark.parametrize("deadline_s", [1e-9, 1e9])
@pytest.mark.parametrize(("band_hz", "snr"), [(1e18, 1.0), (1.0, 1.0), (1e6, 1e-9), (1e6, 1e6)])
def test_extreme_values_give_choices_within_bounds(deadline_s, band_hz, snr):
    """Also where rounding leaves nothing of the seconds of an upload, or more hertz carry no more bits."""
    given = drawn_demands(4)
    devices = given.devices._replace(snr_hz_per_w=snr * given.devices.snr_hz_per_w)
    chosen(LeastEnergy(deadline=deadline_s), replace(given, devices=devices, band_hz=band_hz))
