"""Ways to divide the band of a cell among the transfers that share it now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from edgesim.config.units import SecondsOrInf
from edgesim.core.arrays import Arr
from edgesim.world.spectrum.base import Allocator, Senders

Utility: TypeAlias = Callable[[Senders, Arr], tuple[Arr, Arr]]  # first and second derivative by the hertz of each
_STEPS = 100
_EXACT = 1e-14  # relative


@dataclass(frozen=True, kw_only=True)
class Equal(Allocator):
    """The same hertz for every transfer."""

    def divide(self, senders: Senders, band_hz: float) -> Arr:
        """Return the hertz of each transfer."""
        return np.full(len(senders.bits), band_hz / len(senders.bits))

    def claims(self, senders: Senders, hz: Arr, block_hz: float) -> Arr:
        """Return minus the hertz that each has."""
        return -hz


@dataclass(frozen=True, kw_only=True)
class Weighted(Allocator):
    """Hertz in proportion to `network.weight` of the device."""

    def divide(self, senders: Senders, band_hz: float) -> Arr:
        """Return the hertz of each transfer."""
        hz: Arr = band_hz * senders.weights / senders.weights.sum()
        return hz

    def claims(self, senders: Senders, hz: Arr, block_hz: float) -> Arr:
        """Return the weight that each has for each of its hertz, with the block that is given away.

        Source: the divisor method of D'Hondt.
        """
        claims: Arr = senders.weights / (hz + block_hz)
        return claims


@dataclass(frozen=True, kw_only=True)
class Proportional(Allocator):
    """Proportional fairness: the greatest product of rates.

    Source: Kelly, "Charging and rate control for elastic traffic", Eur. Trans. Telecommun. 8, 1997.
    """

    def divide(self, senders: Senders, band_hz: float) -> Arr:
        """Return the hertz of each transfer."""

        def log_rate(some: Senders, hz: Arr) -> tuple[Arr, Arr]:
            rate_bps, (first, second) = some.channel.rate_bps(hz), some.channel.slopes(hz)
            return first / rate_bps, second / rate_bps - (first / rate_bps) ** 2

        return _greatest_sum(senders, log_rate, band_hz, np.zeros(len(senders.bits)))

    def claims(self, senders: Senders, hz: Arr, block_hz: float) -> Arr:
        """Return the growth of the logarithm of each rate; inf from 0."""
        now_bps, then_bps = senders.channel.rate_bps(hz), senders.channel.rate_bps(hz + block_hz)
        growth: Arr = np.log(np.divide(then_bps, now_bps, out=np.full(len(hz), np.inf), where=now_bps > 0))
        return growth


@dataclass(frozen=True, kw_only=True)
class MaxMinRate(Allocator):
    """Equal rates, as high as the band allows."""

    def divide(self, senders: Senders, band_hz: float) -> Arr:
        """Return the hertz of each transfer."""
        return _ends_together(replace(senders, bits=np.ones(len(senders.bits))), band_hz)

    def claims(self, senders: Senders, hz: Arr, block_hz: float) -> Arr:
        """Return minus the rate of each."""
        return -senders.channel.rate_bps(hz)


@dataclass(frozen=True, kw_only=True)
class MinMaxTime(Allocator):
    """Transfers end at one time, the earliest that the band allows, if nothing changes before.

    Source: Shi et al., "Joint Device Scheduling and Resource Allocation for Latency Constrained Wireless Federated
    Learning", IEEE Trans. Wireless Commun. 20(1), 2021: the time by a search, each share by Lambert's W, for which
    Newton's method stands here.
    """

    def divide(self, senders: Senders, band_hz: float) -> Arr:
        """Return the hertz of each transfer."""
        return _ends_together(senders, band_hz)

    def claims(self, senders: Senders, hz: Arr, block_hz: float) -> Arr:
        """Return the seconds until each ends; among those without hertz the one with most bits a hertz comes first."""
        ends_s = senders.end_s(hz)
        waiting = np.isinf(ends_s)
        return senders.end_s(hz + block_hz) if waiting.all() else np.where(waiting, np.inf, ends_s)


@dataclass(frozen=True, kw_only=True)
class MinEnergy(Allocator):
    """Least joules of all radios, of which each transfer has at least the hertz that end it `deadline` after its start.

    Transfers that cannot all keep the deadline end together, as early as they can.
    """

    deadline: SecondsOrInf = float("inf")  # from the first bit of a transfer to its last

    def divide(self, senders: Senders, band_hz: float) -> Arr:
        """Return the hertz of each transfer."""
        left_s = self.deadline - senders.seconds
        least_bps = np.divide(senders.bits, left_s, out=np.full(len(left_s), np.inf), where=left_s > 0)
        least_hz = senders.channel.hz_of(least_bps)
        if least_hz.sum() >= band_hz:
            return _ends_together(senders, band_hz)

        def joules(some: Senders, hz: Arr) -> tuple[Arr, Arr]:
            rate_bps, (first, second) = some.channel.rate_bps(hz), some.channel.slopes(hz)
            scale = _prices(some) * some.bits / rate_bps**2
            return scale * first, scale * (second - 2.0 * first**2 / rate_bps)

        return _greatest_sum(senders, joules, band_hz, least_hz)

    def claims(self, senders: Senders, hz: Arr, block_hz: float) -> Arr:
        """Return the joules that a block spares; transfers that would miss their deadline come first."""
        now_s, then_s = senders.end_s(hz), senders.end_s(hz + block_hz)
        late = senders.seconds + now_s > self.deadline
        waiting = np.isinf(now_s)
        spared_j = _prices(senders) * (np.where(waiting, 0.0, now_s) - np.where(waiting, 0.0, then_s))
        if late.any():  # each of them needs its blocks, in any order
            return np.where(late, then_s, -np.inf)
        return np.where(waiting, np.inf, spared_j)


def _prices(senders: Senders) -> Arr:
    """Return the watts of each, ones if no radio draws power: then seconds count."""
    return senders.watts if senders.watts.any() else np.ones(len(senders.watts))


def _ends_together(senders: Senders, band_hz: float) -> Arr:
    """Return the hertz with which all transfers end at one time, shape (k,), by Newton's method on that time.

    The hertz that are needed fall with the time and are convex in it, so that steps from below stay below.
    """
    latest_s = float(senders.end_s(np.full(len(senders.bits), band_hz / len(senders.bits))).max())
    soonest_s = float(senders.end_s(np.full(len(senders.bits), band_hz)).max())
    end_s = soonest_s
    for _ in range(_STEPS):
        rate_bps = senders.bits / end_s
        hz = senders.channel.hz_of(rate_bps)
        needed_hz = float(hz.sum())
        if needed_hz > band_hz:
            soonest_s = end_s
        else:
            latest_s = end_s
        if abs(needed_hz - band_hz) <= _EXACT * band_hz or latest_s - soonest_s <= _EXACT * latest_s:
            break
        slope = -float((rate_bps / end_s / senders.channel.slopes(hz)[0]).sum()) if needed_hz < np.inf else 0.0
        end_s = end_s - (needed_hz - band_hz) / slope if slope else np.inf
        if not soonest_s < end_s < latest_s:
            end_s = 0.5 * (soonest_s + latest_s)
    return hz * (band_hz / needed_hz)


def _greatest_sum(senders: Senders, utility: Utility, band_hz: float, least_hz: Arr) -> Arr:
    """Return the hertz that give the greatest sum of concave utilities, at least `least_hz` each, shape (k,).

    Those that would have less are given just that, and the others share the rest: then their price of a hertz rises, so
    that nobody who was given the least would take more.
    """
    free = np.ones(len(senders.bits), dtype=bool)
    hz = np.full(len(senders.bits), band_hz / len(senders.bits))
    while free.any():
        hz[free] = _stationary(senders.some(free), utility, band_hz - float(hz[~free].sum()), hz[free])
        low = free & (hz < least_hz)
        if not low.any():
            break
        hz[low] = least_hz[low]
        free &= ~low
    return hz


def _stationary(senders: Senders, utility: Utility, band_hz: float, hz: Arr) -> Arr:
    """Return the hertz of which one more gives every utility the same, shape (k,).

    Newton's method on the logarithms of hertz and of marginal utilities, which are nearly powers of each other.
    """
    hz = hz * (band_hz / hz.sum())
    for _ in range(_STEPS):
        marginal, change = utility(senders, hz)
        elasticity = change * hz / marginal  # below 0
        log_price = np.average(np.log(marginal), weights=hz / elasticity)
        steps = (log_price - np.log(marginal)) / elasticity
        hz = hz * np.exp(np.clip(steps, -1.0, 1.0))
        hz = hz * (band_hz / hz.sum())
        if np.abs(steps).max() <= _EXACT:
            break
    return hz


PLUGINS = {
    "equal": Equal,
    "weighted": Weighted,
    "proportional": Proportional,
    "max_min_rate": MaxMinRate,
    "min_max_time": MinMaxTime,
    "min_energy": MinEnergy,
}
