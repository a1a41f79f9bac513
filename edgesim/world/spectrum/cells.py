"""Cells: links whose hertz the transfers of one base station share, in each direction by themselves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

from edgesim.core.arrays import Arr
from edgesim.core.errors import ContractError
from edgesim.core.rng import Draws, Key
from edgesim.world.contention.base import SharedLinks, check_order
from edgesim.world.contention.fair import FairLinks
from edgesim.world.spectrum.base import (
    Allocator,
    Channel,
    OneDensity,
    OwnPower,
    Senders,
    numbers,
    shannon_bps,
    whole_blocks,
)
from edgesim.world.topology.base import Hop

AccessScheme: TypeAlias = Literal["fdma", "ofdma", "tdma", "noma"]
_LEAST_BITS = 1e-9
_EXACT = 1e-9  # relative
Gain: TypeAlias = Callable[[Draws, bool], Arr]  # power gain of transfers up or down, 1 on average


@dataclass(frozen=True, kw_only=True)
class CellBand:
    """The band of every cell, and how transfers share it. `blocks`: 0: shares of hertz are any numbers."""

    up_hz: float
    down_hz: float
    access: AccessScheme
    blocks: int
    allocator: Allocator
    gain: Gain

    def shares(self, senders: Senders, snr_hz: Arr, up: bool) -> tuple[Arr, Arr]:
        """Return rates of transfers that share a band, and the share of time that each is on air, both of shape (k,).

        `snr_hz`: of each, see `OwnPower`.
        """
        band_hz = self.up_hz if up else self.down_hz
        if up and self.access == "noma":
            return superposed_bps(snr_hz, band_hz), np.ones(len(snr_hz))
        if self.blocks:
            hz = whole_blocks(self.allocator, senders, self.blocks, band_hz / self.blocks)
        else:
            hz = numbers(self.allocator, "divide", self.allocator.divide(senders, band_hz), len(snr_hz))
            if hz.min() < 0 or hz.sum() > band_hz * (1.0 + _EXACT):
                name = type(self.allocator).__name__
                raise ContractError(f"{name}.divide() must return hertz that add up to {band_hz:g}, got {hz}")
        return senders.channel.rate_bps(hz), hz / band_hz if self.access == "tdma" else (hz > 0).astype(float)

    def channel(self, snr_hz: Arr, up: bool) -> Channel:
        """Return the channel of transfers: devices put their power into their share, a server spreads its own."""
        if up and self.access != "tdma":
            return OwnPower(snr_hz)
        return OneDensity(shannon_bps(1.0, snr_hz / (self.up_hz if up else self.down_hz)))

    def alone_bps(self, snr_hz: Arr, up: bool) -> Arr:
        """Return the rates of transfers that have the band to themselves, shape (k,)."""
        band_hz = np.full(len(snr_hz), self.up_hz if up else self.down_hz)
        return self.channel(snr_hz, up).rate_bps(band_hz)


def superposed_bps(snr_hz: Arr, band_hz: float) -> Arr:
    """Return the rates of senders that use a band at once, shape (k,): the strongest is decoded first, and taken off.

    Together they have the capacity of the sum of their powers.
    Source: Tse and Viswanath, Fundamentals of Wireless Communication, section 6.1 (successive cancellation).
    """
    order = np.argsort(snr_hz, kind="stable")
    weaker_hz = np.concatenate(([0.0], np.cumsum(snr_hz[order])[:-1]))
    rates_bps = np.empty(len(snr_hz))
    rates_bps[order] = shannon_bps(band_hz, snr_hz[order] / (band_hz + weaker_hz))
    return rates_bps


@dataclass(frozen=True, slots=True, eq=False)
class Air:
    """Radios of n devices as their cells see them; arrays of shape (n,). `spectrum` is common to a fleet.

    An SNR in hertz is received power over the density of noise and interference, without fading. A device lowers its
    power to `target_hz` by its channel with fading, and sends nothing while the fading is below `least_fading`.
    """

    spectrum: CellBand
    up_snr_hz: Arr  # with all of a device's power
    down_snr_hz: Arr
    weights: Arr
    power_w: Arr  # that devices radiate without fading
    efficiency: Arr  # radiated share of what a device's radio draws; NaN: the power that it draws is given
    target_hz: Arr  # of the uplink; inf: a device never lowers its power
    least_fading: Arr
    outage: Arr  # probability that a whole update is lost
    drawn_w: Arr  # by the radio for `power_w`

    def sent_hz(self, device: int, fading: float) -> float:
        """Return the SNR of an uplink, in hertz."""
        return min(fading * float(self.up_snr_hz[device]), float(self.target_hz[device]))

    def power_ratio(self, device: int, fading: float) -> float:
        """Return the power that a device radiates over that without fading."""
        return self.sent_hz(device, fading) / self.sent_hz(device, 1.0) / fading


@dataclass(frozen=True, slots=True, eq=False)
class Radios:
    """All devices as their cells see them: `air`, and watts of their radios, shape (devices,)."""

    air: Air
    transmit_w: Arr
    receive_w: Arr
    key: Key  # of fading


@dataclass(slots=True, eq=False)
class _Sending:
    """A transfer on the air; `snr_hz`: with its fading; `power`: of the radio over what it usually draws."""

    device: int
    link: Hop
    bits: float
    snr_hz: float
    began_s: float
    hertz: float | None = None  # a share of its own; None: the allocator gives it one
    power: float = 1.0
    radio: float = 1.0  # share of its usual power that it draws on average, as told last


@dataclass(slots=True, eq=False)
class _Band:
    """Transfers of one cell in one direction."""

    up: bool
    sendings: dict[int, _Sending] = field(default_factory=dict)


class CellLinks(SharedLinks):
    """Links of which those to and from devices share the hertz of cells, and the others are shared fairly.

    Whenever a transfer starts or ends, its cell divides the band anew by what is still to come.
    """

    def __init__(self, links: FairLinks, radios: Radios) -> None:
        """`links`: all links of the network, without a transfer; the speeds of those to devices follow from shares."""
        self._links = links
        self._radios = radios
        self._air = radios.air
        self._bands: dict[tuple[int, bool], _Band] = {}  # by base station
        self._of_flow: dict[int, tuple[_Band, ...]] = {}
        self._reserved: dict[int, tuple[float, float]] = {}  # hertz and radiated watts of uploads to come
        self._changed: dict[_Band, None] = {}  # since the last division, all at _now_s
        self._faded: dict[Hop, tuple[int, int, float]] = {}  # link -> its last flow, the number of that, its gain
        self._radio_changes: dict[int, float] = {}
        self._now_s = -math.inf

    def reserve(self, flow: int, hertz: float, power_w: float) -> None:
        """Give the upload that starts next as `flow` hertz of its own, and the power that its device radiates.

        Uploads whose hertz exceed the band have theirs in proportion.
        """
        self._reserved[flow] = (hertz, power_w)

    def admit(self, flow: int, path: Sequence[Any], nbytes: float, now_s: float) -> None:
        """Start a transfer of `nbytes`. Raises as in SharedLinks."""
        self._move_to(now_s)
        self._links.admit(flow, path, nbytes, now_s)
        bands = []
        for link in path if nbytes else ():
            if (air := self._on_air(link)) is not None:
                device, base, up = air
                band = self._bands.setdefault((base, up), _Band(up))
                gain, drawn, power, hertz = self._gain_of(flow, device, link, up), 0.0, 1.0, None
                snr_hz = float(self._air.down_snr_hz[device]) * gain
                if flow in self._reserved:
                    hertz, power_w = self._reserved.pop(flow)
                    snr_hz = float(self._air.up_snr_hz[device]) * gain * power_w / float(self._air.power_w[device])
                elif up:
                    snr_hz = self._air.sent_hz(device, gain)
                    drawn = float(self._air.drawn_w[device])
                if drawn:
                    share = drawn / float(self._radios.transmit_w[device])
                    power += share * (self._air.power_ratio(device, gain) - 1.0)
                band.sendings[flow] = _Sending(device, link, 8.0 * nbytes, snr_hz, now_s, hertz, power)
                bands.append(band)
        self._of_flow[flow] = tuple(bands)
        self._changed.update(dict.fromkeys(bands))

    def drop(self, flow: int, now_s: float) -> float:
        """Abort a transfer; return the bytes it has moved. Raises as in SharedLinks."""
        self._move_to(now_s)
        moved_bytes = self._links.drop(flow, now_s)
        self._leave(flow)
        return moved_bytes

    def next_done(self) -> tuple[float, int] | None:
        """Return second and flow of the next end if nothing changes before; None if no transfer moves."""
        if self._changed:
            due = self._links.next_done()
            if due is not None and due[0] <= self._now_s:  # what is due now has had its share
                return due
            self._divide()
        return self._links.next_done()

    def finish(self, flow: int, now_s: float) -> None:
        """End a transfer at the second that `next_done` gave. Raises as in SharedLinks."""
        self._move_to(now_s)
        self._links.finish(flow, now_s)
        self._leave(flow)

    def moved_bytes(self, flow: int, now_s: float) -> float:
        """Return the bytes that a transfer has moved by `now_s`, not earlier than the last change."""
        self._divide_before(now_s)
        return self._links.moved_bytes(flow, now_s)

    def next_snr_hz(self, links: Sequence[Hop], up: bool) -> Arr:
        """Return the SNR in hertz of the next transfer on each link between device and base station, shape (k,).

        It has the fading that this transfer will have. Asking changes nothing.
        """
        devices = np.array([link[0 if up else 1] - 1 for link in links], dtype=np.int64)
        numbers = np.array([self._faded[link][1] + 1 if link in self._faded else 0 for link in links], dtype=np.int64)
        gain = self._air.spectrum.gain(Draws(self._radios.key, devices, numbers), up)
        if up:
            sent_hz: Arr = np.minimum(self._air.up_snr_hz[devices] * gain, self._air.target_hz[devices])
            return sent_hz
        return self._air.down_snr_hz[devices] * gain

    @property
    def band(self) -> CellBand:
        """Band of each cell."""
        return self._air.spectrum

    def is_silent(self, flow: int, path: Sequence[Any]) -> bool:
        """Return True if the fading of an uplink is below the least with which its device sends."""
        for link in path:
            air = self._on_air(link)
            if air is not None and air[2]:
                device = air[0]
                if self._gain_of(flow, device, link, True) < self._air.least_fading[device]:
                    return True
        return False

    def radio_changes(self) -> Mapping[int, float]:
        """Return shares of the power of radios that have changed since the last call, as their turns or hertz did."""
        changes, self._radio_changes = self._radio_changes, {}
        return changes

    def _leave(self, flow: int) -> None:
        for band in self._of_flow.pop(flow):
            del band.sendings[flow]
            if band.sendings:
                self._changed[band] = None
            else:
                self._changed.pop(band, None)

    def _on_air(self, link: Any) -> tuple[int, int, bool] | None:
        """Return device, base station and direction of a link; None for one between servers."""
        source, target = link
        devices = len(self._air.up_snr_hz)
        if 0 < source <= devices:
            return source - 1, target, True
        return (target - 1, source, False) if 0 < target <= devices else None

    def _gain_of(self, flow: int, device: int, link: Hop, up: bool) -> float:
        """Return the fading of a transfer, which is that of the flow before if it goes on after a pause."""
        last, number, gain = self._faded.get(link, (None, -1, 1.0))
        if last != flow:
            number += 1
            draws = Draws(self._radios.key, np.array([device]), np.array([number]))
            gain = float(self._air.spectrum.gain(draws, up)[0])
            self._faded[link] = (flow, number, gain)
        return gain

    def _divide_before(self, now_s: float) -> None:
        check_order(self._now_s, now_s)
        if self._changed and now_s > self._now_s:
            self._divide()

    def _move_to(self, now_s: float) -> None:
        self._divide_before(now_s)
        self._now_s = now_s

    def _divide(self) -> None:
        """Give every transfer of the cells that have changed its new rate."""
        changed, self._changed = self._changed, {}
        now_s, spectrum = self._now_s, self._air.spectrum
        for band in changed:
            sendings = list(band.sendings.values())
            snr_hz = np.array([each.snr_hz for each in sendings])
            devices = np.array([each.device for each in sendings])
            moved_bits = [8.0 * self._links.moved_bytes(flow, now_s) for flow in band.sendings]
            senders = Senders(
                spectrum.channel(snr_hz, band.up),
                # rounding may leave nothing of what still moves
                bits=np.maximum(_LEAST_BITS, np.array([each.bits for each in sendings]) - moved_bits),
                seconds=now_s - np.array([each.began_s for each in sendings]),
                watts=(self._radios.transmit_w if band.up else self._radios.receive_w)[devices],
                weights=self._air.weights[devices],
            )
            own_hz = [each.hertz for each in sendings if each.hertz is not None]
            if own_hz:  # all have, as choices are made for every upload of a run or for none
                hz = np.array(own_hz) * min(1.0, spectrum.up_hz / sum(own_hz))
                rates_bps, times = senders.channel.rate_bps(hz), np.ones(len(hz))
            else:
                rates_bps, times = spectrum.shares(senders, snr_hz, band.up)
            speeds = dict.fromkeys((each.link for each in sendings), 0.0)
            columns = zip(band.sendings.items(), rates_bps.tolist(), times.tolist(), strict=True)
            for (flow, each), rate_bps, time in columns:
                speeds[each.link] += rate_bps  # which several transfers of one device share
                if time * each.power != each.radio:
                    each.radio = self._radio_changes[flow] = time * each.power
            for link, rate_bps in speeds.items():
                self._links.set_capacity(link, rate_bps, now_s)
