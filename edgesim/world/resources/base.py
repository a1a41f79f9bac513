"""Abstract class of policies that choose frequency, power and bandwidth of a round together, and what they are told."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from edgesim.core.arrays import Arr, Ids
from edgesim.core.errors import ContractError
from edgesim.world.spectrum.base import OwnPower

_EXACT = 1e-9  # relative


class DeviceTraits(NamedTuple):
    """CPUs and radios of n devices, as a policy knows them; arrays of shape (n,)."""

    least_hz: Arr  # of the CPU's clock
    most_hz: Arr
    capacitance: Arr  # of all cores: a cycle takes this times the squared frequency, J s^2
    snr_hz_per_w: Arr  # hertz on which a radiated watt is received as strongly as the noise, without fading
    power_w: Arr  # that the radio can radiate at most
    efficiency: Arr  # radiated share of what the radio draws

    def rows(self, rows: Ids) -> DeviceTraits:
        """Return the traits of some devices."""
        return DeviceTraits(*(column[rows] for column in self))


@dataclass(frozen=True, slots=True)
class Demands:
    """Jobs of a round that share a cell; arrays of shape (k,).

    The energy of a CPU's static power and of memory traffic, and the power of a radio's circuits, are charged, but no
    policy is told of them.
    """

    devices: DeviceTraits
    cycles: Arr  # of the local work, at least 1
    bits: Arr  # of the upload, at least 1
    other_s: Arr  # what the job takes beside cycles and upload: download, latency, memory traffic
    band_hz: float  # of the cell's uplink

    def rows(self, rows: Ids) -> Demands:
        """Return the jobs of some devices."""
        return Demands(
            self.devices.rows(rows), self.cycles[rows], self.bits[rows], self.other_s[rows], band_hz=self.band_hz
        )

    def joules(self, choices: Choices) -> Arr:
        """Return the joules of cycles and upload, shape (k,)."""
        devices = self.devices
        computing_j = devices.capacitance * self.cycles * choices.frequency_hz**2
        joules: Arr = computing_j + choices.power_w / devices.efficiency * self.upload_s(choices)
        return joules

    def upload_s(self, choices: Choices) -> Arr:
        """Return the seconds on air of the uploads, shape (k,)."""
        upload_s: Arr = self.bits / self.rate_bps(choices)
        return upload_s

    def rate_bps(self, choices: Choices) -> Arr:
        """Return the rates of the uploads without fading, shape (k,)."""
        return OwnPower(self.devices.snr_hz_per_w * choices.power_w).rate_bps(choices.hertz)


class Choices(NamedTuple):
    """Choices for the jobs of a round; arrays of shape (k,)."""

    frequency_hz: Arr  # of the CPU
    power_w: Arr  # radiated during the upload
    hertz: Arr  # of the cell's uplink


class Resources(ABC):
    """A policy that chooses frequency, power and bandwidth of all jobs of a round together: a frozen dataclass."""

    @abstractmethod
    def choose(self, demands: Demands) -> Choices:
        """Return the choices for the jobs of a round; a pure function of its arguments.

        Frequencies within the CPUs' bounds, powers above 0 and at most the radios', hertz above 0 that add up to the
        band at most.
        """


def chosen(policy: Resources, demands: Demands) -> Choices:
    """Return the choices of a policy. Raises ContractError that names the policy unless they are as `choose` says."""
    with np.errstate(all="ignore"):  # what is no number is refused below
        given = policy.choose(demands)
    wants = f"{type(policy).__name__}.choose() must return"
    if not isinstance(given, Choices):
        raise ContractError(f"{wants} Choices, got {given!r}")
    devices, nothing = demands.devices, np.nextafter(0.0, 1.0)
    for name, column, least, most in (
        ("frequency_hz", given.frequency_hz, devices.least_hz, devices.most_hz),
        ("power_w", given.power_w, nothing, devices.power_w),
        ("hertz", given.hertz, nothing, demands.band_hz),
    ):
        right = isinstance(column, np.ndarray) and column.shape == demands.bits.shape and column.dtype == float
        if not right:
            raise ContractError(f"{wants} {len(demands.bits)} floats as {name}, got {column!r}")
        outside = ~((column >= least * (1.0 - _EXACT)) & (column <= most * (1.0 + _EXACT)))
        if outside.any():
            low, high = (np.broadcast_to(bound, outside.shape)[outside][0] for bound in (least, most))
            raise ContractError(f"{wants} {name} from {low:g} to {high:g}, got {column[outside][0]:g}")
    if given.hertz.sum() > demands.band_hz * (1.0 + _EXACT):
        raise ContractError(f"{wants} hertz that add up to {demands.band_hz:g} at most, got {given.hertz.sum():g}")
    return given
