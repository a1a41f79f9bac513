"""Least energy of a round under a deadline: the choice of time, bandwidth, power and frequency of Yang et al."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import bisect, brentq

from edgesim.config.units import Seconds
from edgesim.core.arrays import Arr
from edgesim.world.resources.base import Choices, Demands, Resources
from edgesim.world.resources.marginal import nats_worth
from edgesim.world.spectrum.base import OwnPower

_POINTS = np.linspace(0.0, 1.0, 33)  # of an interval of upload times in which a minimum lies
_ROUNDS = 6  # each narrows the interval to a sixteenth
_STEP = math.log(16.0)  # of the search for a price below and a price above
_MOST = 700.0  # of the logarithm of a price, beyond which floats end
_EXACT = 1e-12  # relative


@dataclass(frozen=True, kw_only=True)
class LeastEnergy(Resources):
    """Least joules of CPUs and radios with which every device is done by the deadline.

    min sum c_n w_n f_n^2 + t_n p_n, where cycles and upload fit into what the deadline leaves beside the download,
    w_n / f_n + t_n <= T_n, the hertz b_n of all devices into the band, t_n b_n log2(1 + S_n p_n / b_n) >= s_n, and
    frequencies and powers lie within their bounds. Where devices cannot all keep the deadline they work at their
    highest frequency and power and are done together, as early as the band allows.
    The paper solves it by turns, for times and then for bandwidth and power, until nothing changes. Ours: in logarithms
    of t_n and b_n the problem is convex, so it is solved by the price of a hertz at which the band is just used up, and
    for each price by the best t_n of each device. The paper's local accuracy, which it chooses too, is given by the
    scenario's epochs.
    Source: Yang et al., "Energy Efficient Federated Learning Over Wireless Communication Networks", IEEE Trans.
    Wireless Commun. 20(3), 2021: the energy minimisation and, for the second case, the completion time minimisation.
    """

    deadline: Seconds  # of a round, from when the model is sent out

    def choose(self, demands: Demands) -> Choices:
        """Return the choices for the jobs of a round."""
        devices, left_s = demands.devices, self.deadline - demands.other_s
        longest_s = left_s - demands.cycles / devices.most_hz
        if _least_hz(demands, longest_s).sum() >= demands.band_hz:
            return _as_soon_as_possible(demands)
        upload_s, hertz = _cheapest(demands, longest_s, left_s)
        hertz = hertz * (demands.band_hz / hertz.sum())  # with what the search has left over
        frequency_hz = np.clip(demands.cycles / (left_s - upload_s), devices.least_hz, devices.most_hz)
        return Choices(frequency_hz, _power_w(demands, upload_s, hertz), hertz)


def _least_hz(demands: Demands, upload_s: Arr) -> Arr:
    """Return the hertz that uploads of these lengths take at full power, shape (k,); inf: no number of them does."""
    rate_bps = np.divide(demands.bits, upload_s, out=np.full(len(upload_s), np.inf), where=upload_s > 0)
    return OwnPower(demands.devices.power_w * demands.devices.snr_hz_per_w).hz_of(rate_bps)


def _power_w(demands: Demands, upload_s: Arr, hertz: Arr) -> Arr:
    """Return the radiated powers that carry the bits in these seconds, shape (k,)."""
    nats = demands.bits * math.log(2.0) / (upload_s * hertz)
    power_w: Arr = hertz * np.expm1(nats) / demands.devices.snr_hz_per_w
    return power_w


def _as_soon_as_possible(demands: Demands) -> Choices:
    """Return the choices with which all devices are done together, as early as the band allows."""
    devices, k = demands.devices, len(demands.bits)
    begins_s = demands.other_s + demands.cycles / devices.most_hz
    early_s = begins_s.max() - begins_s  # before the last device begins its upload
    choices = Choices(devices.most_hz, devices.power_w, np.full(k, demands.band_hz / k))
    latest_s = float((demands.upload_s(choices) - early_s).max())

    def excess(after_s: float) -> float:  # the sign of the hertz beyond the band
        return float(np.sign(_least_hz(demands, early_s + after_s).sum() - demands.band_hz * (1.0 + _EXACT)))

    if excess(latest_s) <= 0:
        latest_s = bisect(excess, 0.0, latest_s, xtol=_EXACT * latest_s)
    hertz = _least_hz(demands, early_s + latest_s)
    share = hertz / hertz.sum()  # rounding leaves no number where signals are very weak or strong
    return choices._replace(hertz=share * demands.band_hz) if (share > 0).all() else choices


def _cheapest(demands: Demands, longest_s: Arr, left_s: Arr) -> tuple[Arr, Arr]:
    """Return upload times and hertz, both of shape (k,), at the price of a hertz at which all just fit into the band.

    `longest_s`: what the highest frequency leaves for the upload; `left_s`: for computing and upload.
    """
    devices, band_hz, k = demands.devices, demands.band_hz, len(left_s)
    alone_s = demands.bits / OwnPower(devices.power_w * devices.snr_hz_per_w).rate_bps(np.full(k, band_hz))
    shortest_s = np.maximum(left_s - demands.cycles / devices.least_hz, alone_s)
    best = longest_s, _least_hz(demands, longest_s)
    # columns of shape (k, points) as one of shape (k points,)
    many = demands.rows(np.repeat(np.arange(k), len(_POINTS)))
    many_left_s = np.repeat(left_s, len(_POINTS))

    def excess_hz(log_price: float) -> float:
        nonlocal best
        low, high, rows = np.log(shortest_s), np.log(longest_s), np.arange(k)
        for _ in range(_ROUNDS):
            logs = low[:, None] + (high - low)[:, None] * _POINTS
            upload_s = np.exp(logs).ravel()
            worth = math.exp(log_price) * many.devices.snr_hz_per_w * many.devices.efficiency / upload_s
            hertz = many.bits * math.log(2.0) / (upload_s * nats_worth(worth))
            hertz = np.maximum(hertz, _least_hz(many, upload_s))
            choices = Choices(many.cycles / (many_left_s - upload_s), _power_w(many, upload_s, hertz), hertz)
            costs = (many.joules(choices) + math.exp(log_price) * hertz).reshape(k, -1)
            place = costs.argmin(axis=1)
            low, high = logs[rows, np.maximum(place - 1, 0)], logs[rows, np.minimum(place + 1, len(_POINTS) - 1)]
        found = np.exp(logs[rows, place]), hertz.reshape(k, -1)[rows, place]
        if best[1].sum() < found[1].sum() <= band_hz:
            best = found
        return float(found[1].sum()) - band_hz

    equal_hz = np.full(k, band_hz / k)
    joules = _power_w(demands, longest_s, equal_hz) * longest_s / devices.efficiency
    low = high = math.log(float(joules.max() / equal_hz[0]))
    while low > -_MOST and excess_hz(low) < 0:
        low -= _STEP
    while high < _MOST and excess_hz(high) > 0:
        high += _STEP
    if excess_hz(low) > 0 > excess_hz(high):
        brentq(excess_hz, low, high, xtol=_EXACT)
    return best


PLUGINS = {"min_energy": LeastEnergy}
