"""FEDL's closed forms against numbers by hand and against a general optimiser."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize

from edgesim.world.resources.base import Choices, Demands, DeviceTraits, chosen
from edgesim.world.resources.weighted_sum import FedlResources
from tests.sizes import spread
from tests.world.demands import drawn_demands

BAND_HZ = 1e6


def demands(cycles, least_hz, most_hz, snr_hz_per_w, bits, power_w=9.0, capacitance=1e-27):
    """Return the demands of devices; single numbers are common to all of them."""
    k = len(cycles)
    columns = (np.full(k, column, dtype=float) for column in (least_hz, most_hz, capacitance, snr_hz_per_w, power_w, 1))
    return Demands(DeviceTraits(*columns), np.array(cycles, float), np.array(bits, float), np.zeros(k), BAND_HZ)


def test_two_devices_by_hand():
    """T^3 = (2 x 1e-27 x (1e27 + 8e27)) / 2.25 = 8, so T = 2 s; 1 and 2 nats for each hertz and second, with one watt
    of kappa / B and (e^2 + 1) / B a hertz of noise."""
    given = demands([1e9, 2e9], 1e8, 2e9, np.array([1.0, math.e**2 + 1]) * BAND_HZ / 2.25, [1e6 / math.log(2)] * 2)
    choices = FedlResources(kappa=2.25).choose(given)
    assert choices.frequency_hz == pytest.approx([0.5e9, 1e9], rel=1e-12)
    assert choices.hertz == pytest.approx([BAND_HZ * 2 / 3, BAND_HZ / 3], rel=1e-12)  # of turns of 1 s and 0.5 s
    watts = np.array([math.e - 1, (math.e**2 - 1) / (math.e**2 + 1)]) * 2.25
    assert choices.power_w == pytest.approx(watts * [2 / 3, 1 / 3], rel=1e-12)
    assert given.upload_s(choices) == pytest.approx([1.5, 1.5], rel=1e-12)
    assert given.joules(choices) == pytest.approx([0.25 + watts[0], 2.0 + 0.5 * watts[1]], rel=1e-12)


@pytest.mark.parametrize(
    ("least_hz", "most_hz", "expected_hz"),
    [
        ([1e8, 1e8], [2e9, 0.8e9], [0.4e9, 0.8e9]),  # the second has at most 2.5 s, more than the 2 s of the trade
        ([1e8, 1.25e9], [2e9, 2e9], [0.625e9, 1.25e9]),  # alone the first would take (2 / 2.25)^(1/3) = 0.96 s
        ([1.5e9, 1.25e9], [2e9, 2e9], [1.5e9, 1.25e9]),
    ],
    ids=["slowest at its highest", "slowest at its lowest", "all at their lowest"],
)
def test_the_three_groups(least_hz, most_hz, expected_hz):
    """The second has twice as many cycles. Below: it decides the time of both, or frees the first from the trade."""
    given = demands([1e9, 2e9], least_hz, most_hz, BAND_HZ, [1e6] * 2)
    assert FedlResources(kappa=2.25).choose(given).frequency_hz == pytest.approx(expected_hz, rel=1e-12)


def test_powers_stay_within_bounds():
    """A second that is worth much: the greatest power. One that is worth nothing: the least of a turn."""
    given = demands([1e9] * 2, 1e8, 2e9, BAND_HZ, [1e6] * 2, power_w=0.5)
    assert FedlResources(kappa=1e3).choose(given).power_w == pytest.approx([0.25] * 2, rel=1e-12)
    assert FedlResources(kappa=1e-9, least_power=0.2).choose(given).power_w == pytest.approx([0.1] * 2, rel=1e-12)
    assert (FedlResources(kappa=1e-15).choose(given).power_w > 0).all()


def objective(given: Demands, kappa: float, choices: Choices) -> float:
    longest_s = (given.cycles / choices.frequency_hz).max() + given.upload_s(choices).max()
    return float(given.joules(choices).sum() + kappa * longest_s)


def general_optimum(given: Demands, kappa: float) -> float:
    """Return the least objective of FEDL's problem by SLSQP over logarithms of frequencies, T and turns.

    In logarithms it is convex: joules and seconds are sums of products of powers.
    """
    devices, k = given.devices, len(given.bits)
    nats = given.bits * math.log(2) / given.band_hz

    def joules_and_seconds(x):
        f, t, turns_s = np.exp(x[:k]), math.exp(x[k]), np.exp(x[k + 1 :])
        watts = given.band_hz / devices.snr_hz_per_w * np.expm1(nats / turns_s) / devices.efficiency
        return (devices.capacitance * given.cycles * f**2).sum() + kappa * t + (turns_s * (watts + kappa)).sum()

    shortest_s = nats / np.log1p(devices.power_w * devices.snr_hz_per_w / given.band_hz)
    start = np.log(np.concatenate([devices.most_hz, [(given.cycles / devices.least_hz).max()], 2 * shortest_s]))
    bounds = [*zip(np.log(devices.least_hz), np.log(devices.most_hz), strict=True), (None, None)]
    bounds += [(low, None) for low in np.log(shortest_s)]
    scale = joules_and_seconds(start)
    found = minimize(
        lambda x: joules_and_seconds(x) / scale,
        start,
        method="SLSQP",
        bounds=bounds,
        constraints={"type": "ineq", "fun": lambda x: x[k] + x[:k] - np.log(given.cycles)},
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    return float(found.fun * scale)


@pytest.mark.parametrize("seed", spread(range(100), 6))
def test_closed_forms_are_the_optimum(seed):
    given, kappa = drawn_demands(seed), 10.0 ** np.random.default_rng(seed).uniform(-2, 2)
    choices = chosen(FedlResources(kappa=kappa), given)
    assert objective(given, kappa, choices) == pytest.approx(general_optimum(given, kappa), rel=1e-6)


def test_time_falls_and_energy_rises_with_kappa():
    given = drawn_demands(3)
    joules, seconds = [], []
    for kappa in np.geomspace(0.01, 100, 25):
        choices = FedlResources(kappa=kappa).choose(given)
        joules.append(given.joules(choices).sum())
        seconds.append((given.cycles / choices.frequency_hz).max() + given.upload_s(choices).max())
    assert (np.diff(joules) >= -1e-12).all() and joules[-1] > 1.5 * joules[0]
    assert (np.diff(seconds) <= 1e-12).all() and seconds[-1] < seconds[0] / 2
