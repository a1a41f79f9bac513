"""Hertz that the transfers of a cell share: what a share carries, and the abstract class of what divides them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from edgesim.core.arrays import Arr
from edgesim.core.errors import ContractError

_MOST_STEPS, _EXACT = 60, 1e-15


def shannon_bps(band_hz: Arr | float, snr: Arr) -> Arr:
    """Return the capacity of a channel, shape (k,): bandwidth x log2(1 + signal-to-noise ratio).

    Source: Shannon, "Communication in the Presence of Noise", Proc. IRE 37 (1949).
    """
    rate_bps: Arr = band_hz * np.log1p(snr) / math.log(2.0)  # log1p keeps weak signals exact
    return rate_bps


class Channel(Protocol):
    """Rates of k transfers by their hertz; arrays of shape (k,)."""

    def rate_bps(self, hz: Arr) -> Arr:
        """Return the rate on so many hertz; 0 on none."""

    def slopes(self, hz: Arr) -> tuple[Arr, Arr]:
        """Return the first and the second derivative of the rate, in bit/s/Hz and bit/s/Hz^2, on hertz above 0."""

    def hz_of(self, rate_bps: Arr) -> Arr:
        """Return the hertz that carry a rate; inf: no number of them does."""

    def some(self, chosen: np.ndarray) -> Channel:
        """Return the channel of some of the transfers; `chosen`: of type bool, shape (k,)."""


@dataclass(frozen=True, slots=True)
class OwnPower:
    """A sender puts its whole power into its share: B log2(1 + S / B), where S is signal power over noise density."""

    snr_hz: Arr  # S: the hertz on which signal and noise are equally strong

    def rate_bps(self, hz: Arr) -> Arr:
        """Return the rate on so many hertz; 0 on none."""
        return shannon_bps(hz, np.divide(self.snr_hz, hz, out=np.zeros_like(hz), where=hz > 0))

    def slopes(self, hz: Arr) -> tuple[Arr, Arr]:
        """Return the first and the second derivative of the rate."""
        snr = self.snr_hz / hz
        first: Arr = (np.log1p(snr) - snr / (1.0 + snr)) / math.log(2.0)
        second: Arr = -(snr**2) / (hz * (1.0 + snr) ** 2) / math.log(2.0)
        return first, second

    def hz_of(self, rate_bps: Arr) -> Arr:
        """Return the hertz that carry a rate; inf for more than S / ln 2, which no band reaches."""
        share = rate_bps * math.log(2.0) / self.snr_hz  # of the rate on endless hertz
        hz = np.full(len(share), np.inf)
        hz[share <= 0] = 0.0
        some = (share > 0) & (share < 1)
        y = share[some]
        # log(1 + snr) = y snr has its solution below this, as log(1 + x) < x / sqrt(1 + x)
        snr = (1.0 - y) * (1.0 + y) / y**2
        for _ in range(_MOST_STEPS if some.any() else 0):  # of Newton's method, which stays above
            step = (np.log1p(snr) - y * snr) / (1.0 / (1.0 + snr) - y)
            snr = snr - step
            if (np.abs(step) <= _EXACT * snr).all():
                break
        hz[some] = self.snr_hz[some] / snr
        return hz

    def some(self, chosen: np.ndarray) -> OwnPower:
        """Return the channel of some of the transfers."""
        return OwnPower(self.snr_hz[chosen])


@dataclass(frozen=True, slots=True)
class OneDensity:
    """Power spreads evenly over the band, or its shares are of time: a hertz carries the same, whoever has the rest."""

    bps_per_hz: Arr

    def rate_bps(self, hz: Arr) -> Arr:
        """Return the rate on so many hertz."""
        rate_bps: Arr = hz * self.bps_per_hz
        return rate_bps

    def slopes(self, hz: Arr) -> tuple[Arr, Arr]:
        """Return the first and the second derivative of the rate."""
        return self.bps_per_hz, np.zeros(len(hz))

    def hz_of(self, rate_bps: Arr) -> Arr:
        """Return the hertz that carry a rate."""
        hz: Arr = rate_bps / self.bps_per_hz
        return hz

    def some(self, chosen: np.ndarray) -> OneDensity:
        """Return the channel of some of the transfers."""
        return OneDensity(self.bps_per_hz[chosen])


@dataclass(frozen=True, slots=True)
class Senders:
    """Transfers that share the band of a cell now; arrays of shape (k,)."""

    channel: Channel
    bits: Arr  # still to come, above 0
    seconds: Arr  # since the first bit of each
    watts: Arr  # that the device's radio draws
    weights: Arr  # as the scenario gives them, above 0

    def end_s(self, hz: Arr) -> Arr:
        """Return the seconds until each ends on so many hertz; inf on none."""
        rate_bps = self.channel.rate_bps(hz)
        end_s: Arr = np.divide(self.bits, rate_bps, out=np.full(len(rate_bps), np.inf), where=rate_bps > 0)
        return end_s

    def some(self, chosen: np.ndarray) -> Senders:
        """Return some of the transfers; `chosen`: of type bool, shape (k,)."""
        columns = (self.bits, self.seconds, self.watts, self.weights)
        return Senders(self.channel.some(chosen), *(column[chosen] for column in columns))


class Allocator(ABC):
    """Divides a band among transfers: a frozen dataclass."""

    @abstractmethod
    def divide(self, senders: Senders, band_hz: float) -> Arr:
        """Return the hertz of each transfer, shape (k,), which add up to the band."""

    @abstractmethod
    def claims(self, senders: Senders, hz: Arr, block_hz: float) -> Arr:
        """Return the gain of each transfer, which has `hz`, from one more block, shape (k,); the highest gets it."""


def whole_blocks(allocator: Allocator, senders: Senders, blocks: int, block_hz: float) -> Arr:
    """Return the hertz of each transfer in whole blocks, shape (k,), given away one by one.

    That is optimal where claims fall with each block that a transfer has: for sums of concave utilities, and for the
    latest end.
    Source: Federgruen and Groenevelt, "The greedy procedure for resource allocation problems", Oper. Res. 34, 1986.
    """
    hz = np.zeros(len(senders.bits))
    for _ in range(blocks):
        hz[np.argmax(numbers(allocator, "claims", allocator.claims(senders, hz, block_hz), len(hz)))] += block_hz
    return hz


def numbers(allocator: Allocator, function: str, given: object, k: int) -> Arr:
    """Return the array that a function of an allocator gave. Raises ContractError unless it is k floats, none NaN."""
    if not (isinstance(given, np.ndarray) and given.shape == (k,) and given.dtype == float) or np.isnan(given).any():
        raise ContractError(f"{type(allocator).__name__}.{function}() must return {k} floats, got {given!r}")
    return given
