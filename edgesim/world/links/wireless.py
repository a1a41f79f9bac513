"""Radio links: Shannon rates from powers, distances and fading."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
from annotated_types import Ge, Gt, Le

from edgesim.config.units import Hertz, PerDevice, Unit, draw
from edgesim.core.arrays import Arr, Ids
from edgesim.core.errors import ConfigError
from edgesim.core.limits import NonNegativeNumber, PositiveNumber
from edgesim.core.rng import Draws, Key
from edgesim.world.links.analytic import Impaired
from edgesim.world.links.base import BESIDE_FADING, BOTH_WAYS, ImpairedLinks, Links, directed
from edgesim.world.links.path_loss import MODELS, Site
from edgesim.world.spectrum.base import shannon_bps

_DBM = re.compile(r"\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))\s*dBm\s*")


def watts_of(level_dbm: float) -> float:
    """Return the watts of a level in decibels above one milliwatt, inf if they are too many for a float."""
    exponent = level_dbm / 10.0 - 3.0
    return math.pow(10.0, exponent) if exponent < sys.float_info.max_10_exp else math.inf


@dataclass(frozen=True)
class _RadioPower(Unit):
    """A power that may also be given in dBm."""

    def number(self, value: Any) -> float:
        match = _DBM.fullmatch(value) if isinstance(value, str) else None
        return watts_of(float(match[1])) if match else super().number(value)


RadioPower: TypeAlias = Annotated[float, _RadioPower("W", "a power", "23 dBm", positive=True)]
Metres: TypeAlias = PositiveNumber


# --- fading: the power gain of a transfer, 1 on average, shape (k,) ----------------------------------------


def _unfaded(draws: Draws, up: bool) -> Arr:
    return np.ones(len(draws.ids))


def _rayleigh_of_job(draws: Draws, up: bool) -> Arr:
    gain: Arr = -np.log(Draws(draws.key.at(BOTH_WAYS), draws.ids, draws.nth).uniform(0))
    return gain


def _rayleigh_of_transfer(draws: Draws, up: bool) -> Arr:
    gain: Arr = -np.log(directed(draws, up).uniform(0))
    return gain


FADING = {"none": _unfaded, "per_round": _rayleigh_of_job, "per_transfer": _rayleigh_of_transfer}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WirelessLinks(ImpairedLinks):
    """Rates of bandwidth x log2(1 + signal to noise x fading). Arrays of shape (n,); nominal rates are unfaded."""

    up_hz: Arr
    down_hz: Arr
    up_snr: Arr  # a ratio
    down_snr: Arr
    gain: Callable[[Draws, bool], Arr]
    apart: ClassVar[tuple[int, ...]] = (BESIDE_FADING,)

    @property
    def steady(self) -> bool:
        """True if no transfer fades, varies or loses packets."""
        return self.gain is _unfaded and not self.impaired

    def transfer(self, rows: Ids, nbytes: Arr, up: bool, now_s: Arr | float, draws: Draws) -> tuple[Arr, Arr]:
        """Return seconds of whole transfers, and those after the latency; the channel stays as it is meanwhile."""
        band_hz, snr = (self.up_hz, self.up_snr) if up else (self.down_hz, self.down_snr)
        air_s = 8.0 * nbytes / shannon_bps(band_hz[rows], snr[rows] * self.gain(draws, up))
        if self.loss is not None:
            air_s = air_s * self.sendings(rows, nbytes, up, draws)
        return self.delay_s(rows, up, draws) + air_s, air_s


class Signal(NamedTuple):
    """Radio waves between n devices and their base station; arrays of shape (n,)."""

    gain: Arr  # of power, by path loss and shadowing
    power_w: Arr  # of devices
    noise_w_hz: float


@dataclass(frozen=True, kw_only=True)
class RadioNetwork(Impaired):
    """Networks of radio waves: their path loss, shadowing, fading and powers.

    `power` is what a device radiates, `server_power` what the server does. `distance_m` is measured on the ground.
    `shadowing_db`, the standard deviation of a loss drawn once per device, is 8 for "macro", 4 for "uma_los" and 6 for
    "uma_nlos" in the 3GPP reports. Rayleigh `fading` is drawn once per job, for both directions, or for every transfer.
    Source: power class 3 of 3GPP TS 36.101 (23 dBm), macro base station of 3GPP TR 36.814, Table A.2.1.1-2 (46 dBm),
    thermal noise kT at 290 K (-174 dBm/Hz), antenna heights of 3GPP TR 38.901, Table 7.4.1-1.
    """

    distance_m: PerDevice[Metres]
    power: PerDevice[RadioPower] = 10.0**-0.7  # 23 dBm
    server_power: RadioPower = 10.0**1.6  # 46 dBm
    noise_dbm_per_hz: Annotated[float, Ge(-200), Le(0)] = -174.0  # thermal noise
    path_loss: Literal["macro", "uma_los", "uma_nlos", "log_distance"] = "macro"  # which formula
    carrier: Hertz = 2e9  # that of the macro model, which does not read it
    server_height_m: Annotated[float, Gt(1), Le(150)] = 25.0  # of its antenna
    device_height_m: Annotated[float, Gt(1), Le(13)] = 1.5  # higher ones have a random environment height
    exponent: Annotated[float, Gt(0), Le(10)] = 3.0  # urban: 2.7 to 3.5 (Rappaport, Table 4.2)
    reference_m: Metres = 1.0  # distance from which log_distance counts
    shadowing_db: NonNegativeNumber = 0.0
    fading: Literal["none", "per_round", "per_transfer"] = "none"
    streams: ClassVar[Mapping[str, int]] = {"jitter": 7, "loss": 8}

    def signal(self, n: int, key: Key, path: str) -> Signal:
        """Return the radio waves of n devices.

        Raises ConfigError naming `path` for a distance that the path loss is not made for.
        """
        distance_m = draw(self.distance_m, n, key.at(4).numpy(), f"{path}.distance_m")
        model = MODELS[self.path_loss]
        outside = (distance_m < model.nearest_m) | (distance_m > model.farthest_m)
        if outside.any():
            allowed = f"from {model.nearest_m:g} m to {model.farthest_m:g} m"
            found = f"found {distance_m[outside][0]:g} m"
            raise ConfigError(f"{path}.distance_m: {self.path_loss} holds {allowed}, {found}; set `min` and `max`")
        site = Site(self.carrier, self.server_height_m, self.device_height_m, self.exponent, self.reference_m)
        loss_db = model.loss_db(distance_m, site)
        if self.shadowing_db:
            loss_db = loss_db + self.shadowing_db * key.at(5).numpy().standard_normal(n)
        power_w = draw(self.power, n, key.at(3).numpy(), f"{path}.power")
        return Signal(10.0 ** (-loss_db / 10.0), power_w, watts_of(self.noise_dbm_per_hz))


def check_heard(path: str, up_bps: Arr, down_bps: Arr) -> None:
    """Raise ConfigError if no bit passes between a device and the server."""
    if not (np.minimum(up_bps, down_bps) > 0).all():
        raise ConfigError(f"{path}.distance_m: so far away that no signal arrives at some device")


@dataclass(frozen=True, kw_only=True)
class Wireless(RadioNetwork):
    """Shannon rate B log2(1 + p h / (N0 B)) of each direction, h from path loss, shadowing and fading.

    `bandwidth` (and `down_bandwidth`, if it differs) is what a device has for itself, with all of `server_power` in it.
    """

    bandwidth: PerDevice[Hertz]
    down_bandwidth: PerDevice[Hertz] | None = None

    def build(self, n: int, key: Key, path: str) -> Links:
        """Return the links of n devices.

        Raises ConfigError naming `path` for a distance that the path loss is not made for or that no signal crosses.
        """
        signal = self.signal(n, key, path)
        up_hz = draw(self.bandwidth, n, key.at(0).numpy(), f"{path}.bandwidth")
        down_hz = up_hz
        if self.down_bandwidth is not None:
            down_hz = draw(self.down_bandwidth, n, key.at(1).numpy(), f"{path}.down_bandwidth")
        up_snr = signal.power_w * signal.gain / (signal.noise_w_hz * up_hz)
        down_snr = self.server_power * signal.gain / (signal.noise_w_hz * down_hz)
        up_bps, down_bps = shannon_bps(up_hz, up_snr), shannon_bps(down_hz, down_snr)
        check_heard(path, up_bps, down_bps)
        return WirelessLinks(
            up_bps=up_bps,
            down_bps=down_bps,
            up_hz=up_hz,
            down_hz=down_hz,
            up_snr=up_snr,
            down_snr=down_snr,
            gain=FADING[self.fading],
            **self.impairments(n, key, path),
        )


PLUGINS = {"wireless": Wireless}
