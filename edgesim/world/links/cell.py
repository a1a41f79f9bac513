"""Radio links whose hertz the devices of a base station share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Gt, Le
from pydantic import Field

from edgesim.config.plugin_fields import Chosen, PartOf
from edgesim.config.units import Hertz, PerDevice, draw
from edgesim.core.arrays import Arr
from edgesim.core.errors import ConfigError
from edgesim.core.limits import CountOrZero, NonNegativeNumber, PositiveNumber
from edgesim.core.rng import Key
from edgesim.world.links.base import Links, SteadyLinks
from edgesim.world.links.wireless import FADING, RadioNetwork, check_heard, watts_of
from edgesim.world.spectrum.cells import Air, CellBand

_EQUAL: Any = "equal"  # is read like a value that a scenario gives


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CellAccess(SteadyLinks):
    """Access of devices to their cell; nominal rates are those of a device alone in it. Arrays of shape (n,)."""

    up_loss: Arr | None = None
    down_loss: Arr | None = None

    @property
    def steady(self) -> bool:
        """True if neither latency nor packets vary, and no update is lost."""
        return not self.impaired and not (self.air is not None and self.air.outage.any())

    @property
    def impaired(self) -> bool:
        """True if latency or the number of sendings is drawn for every transfer."""
        return self.jitter_s is not None or self.up_loss is not None

    def loss_of(self, up: bool) -> Arr | None:
        """Return the probability that a packet gets lost in one direction; None: none does."""
        return self.up_loss if up else self.down_loss


@dataclass(frozen=True, kw_only=True)
class CellNetwork(RadioNetwork):
    """A band that the devices of a base station share: Shannon rates on the hertz that each of them has at a time.

    Whenever a transfer starts or ends, `allocator` divides the band anew. Devices put their whole power into their
    share; the server spreads `server_power` evenly. `access` says what a share is: any number of hertz ("fdma"), whole
    resource blocks of bandwidth / `blocks` ("ofdma"), time with the whole band ("tdma"), or, in the uplink, all of the
    band at once with the strongest decoded first ("noma"; its downlink is like "fdma"). Edge servers have a cell each,
    all with the same band; `interference_dbm_per_hz` is what they hear of each other.

    A radio draws power while its device has hertz or, with "tdma", for its share of the time. Among peers it draws
    power for as long as a message flows. With `efficiency` it draws the radiated power over this share, beside
    `transmit`. `power_control` says what a device radiates: `power` ("fixed"); up to `power`, what gives
    `target_snr_db` on one block, or on the whole band without blocks, by its path loss and shadowing ("target_snr");
    or the same by its path loss, shadowing and fading ("inversion"). With "inversion" a device does not send its update
    while path loss, shadowing and fading together are below a gain of `cutoff_db`, by default where `power` no longer
    gives the target: its job ends with the outcome "outage" before it sends.

    With `waterfall` m a packet is lost with probability 1 - exp(-m / SNR) on one block. `on_outage` "resend": packets
    of 1500 bytes are sent until all have arrived. "lose": an update is one packet, and if it is lost its job ends with
    the outcome "outage" after it has sent; models to devices are sent until they have arrived.
    Source: Chen et al., "A Joint Learning and Communications Framework for Federated Learning over Wireless Networks",
    IEEE Trans. Wireless Commun. 20(1), 2021 (packet errors, one packet an update, waterfall threshold 0.023 dB, that is
    m = 1.0053). Truncated channel inversion: Zhu, Wang and Huang, "Broadband Analog Aggregation for Low-Latency
    Federated Edge Learning", IEEE Trans. Wireless Commun. 19(1), 2020; there the power is bounded on average, here at
    every instant (ours).
    """

    bandwidth: Hertz  # of the uplink of a cell
    down_bandwidth: Hertz | None = None  # of its downlink; that of the uplink if it is not given
    access: Literal["fdma", "ofdma", "tdma", "noma"] = "fdma"
    blocks: CountOrZero = 0  # resource blocks of the band, of "ofdma" alone
    allocator: Annotated[Chosen, PartOf("allocator"), Field(validate_default=True)] = _EQUAL
    weight: PerDevice[PositiveNumber] = 1.0  # of a device, for the allocator "weighted"
    interference_dbm_per_hz: Annotated[float, Le(0)] | None = None  # beside the noise, in both directions
    power_control: Literal["fixed", "target_snr", "inversion"] = "fixed"  # `power` is the greatest in any case
    target_snr_db: Annotated[float, Ge(-100), Le(100)] | None = None  # received signal over noise and interference
    cutoff_db: Annotated[float, Ge(-300), Le(0)] | None = None  # least gain of a channel on which a device sends
    efficiency: Annotated[float, Gt(0), Le(1)] | None = None  # radiated share of what a device's radio draws
    waterfall: NonNegativeNumber = 0.0
    on_outage: Literal["resend", "lose"] = "resend"  # what becomes of a lost packet

    def __post_init__(self) -> None:
        """Raise ConfigError unless blocks, target, cut-off and waterfall are given just where they are used."""
        if (self.access == "ofdma") != (self.blocks > 0):
            found = f"got {self.blocks} with {self.access!r}"
            raise ConfigError(f"network.blocks: must be above 0 with access 'ofdma' and only there, {found}")
        if (self.power_control == "fixed") != (self.target_snr_db is None):
            found = f"got {self.target_snr_db} with {self.power_control!r}"
            where = "power_control 'target_snr' or 'inversion'"
            raise ConfigError(f"network.target_snr_db: must be given with {where} and only there, {found}")
        if self.cutoff_db is not None and self.power_control != "inversion":
            raise ConfigError(f"network.cutoff_db: goes with power_control 'inversion', got {self.power_control!r}")
        if self.on_outage == "lose" and not self.waterfall:
            raise ConfigError("network.on_outage: 'lose' needs a waterfall above 0, which is what loses updates")

    @property
    def server_only(self) -> str | None:
        """Key and value of what makes an update fail."""
        if self.on_outage == "lose":
            return "on_outage 'lose'"
        return "power_control 'inversion'" if self.power_control == "inversion" else None

    @property
    def discipline(self) -> Chosen:  # type: ignore[override]
        """Sharing of the wired links beyond the cells."""
        return PartOf("discipline").read("fair")

    @property
    def no_choices(self) -> tuple[str, str] | None:
        """Key and reason why a policy cannot choose power and bandwidth of its devices; None: it can."""
        if self.access != "fdma":
            return "access", f"must be 'fdma', in which each device has hertz of its own, found {self.access!r}"
        if self.efficiency is None:
            return "efficiency", "must be given, the radiated share of what a radio draws; the papers have 1"
        if self.power_control != "fixed":
            return "power_control", f"chooses the power of devices too; must be 'fixed', found {self.power_control!r}"
        if self.waterfall:
            return (
                "waterfall",
                f"loses packets by the power that devices radiate at most; leave it out, found {self.waterfall:g}",
            )
        return None

    @property
    def spectrum(self) -> CellBand:
        """Band of the cells."""
        return CellBand(
            up_hz=self.bandwidth,
            down_hz=self.down_bandwidth or self.bandwidth,
            access=self.access,
            blocks=self.blocks,
            allocator=self.allocator.value,
            gain=FADING[self.fading],
        )

    def build(self, n: int, key: Key, path: str) -> Links:
        """Return the access of n devices.

        Raises ConfigError naming `path` for a distance that the path loss is not made for or that no signal crosses.
        """
        spectrum, signal = self.spectrum, self.signal(n, key, path)
        noise_w_hz, power_w = signal.noise_w_hz, signal.power_w
        if self.interference_dbm_per_hz is not None:
            noise_w_hz += watts_of(self.interference_dbm_per_hz)
        block_hz = spectrum.up_hz / (self.blocks or 1)
        full_snr_hz, target_hz, least_fading = power_w * signal.gain / noise_w_hz, np.full(n, np.inf), np.zeros(n)
        if self.target_snr_db is not None:
            wanted_hz = 10.0 ** (self.target_snr_db / 10.0) * block_hz
            power_w = np.minimum(power_w, 10.0 ** (self.target_snr_db / 10.0) * noise_w_hz * block_hz / signal.gain)
        up_snr_hz = power_w * signal.gain / noise_w_hz
        if self.power_control == "inversion":
            target_hz = np.full(n, wanted_hz)
            least_fading = wanted_hz / full_snr_hz
            if self.cutoff_db is not None:
                least_fading = 10.0 ** (self.cutoff_db / 10.0) / signal.gain
        else:
            full_snr_hz = up_snr_hz
        down_snr_hz = self.server_power * signal.gain / noise_w_hz
        up_bps, down_bps = spectrum.alone_bps(up_snr_hz, True), spectrum.alone_bps(down_snr_hz, False)
        check_heard(path, up_bps, down_bps)
        common = self.impairments(n, key, path)
        drawn_w = np.zeros(n)
        if self.efficiency is not None:
            drawn_w = power_w / self.efficiency
            common["transmit_w"] = drawn_w if common["transmit_w"] is None else common["transmit_w"] + drawn_w
        up_loss = down_loss = common["loss"]
        outage = np.zeros(n)
        if self.waterfall:
            kept = 1.0 if common["loss"] is None else 1.0 - common["loss"]
            received = np.exp(-self.waterfall * block_hz / up_snr_hz)
            if self.on_outage == "lose":
                outage = 1.0 - received
            else:
                up_loss = 1.0 - kept * received
            down_loss = 1.0 - kept * np.exp(-self.waterfall * spectrum.down_hz / down_snr_hz)
        return CellAccess(
            up_bps=up_bps,
            down_bps=down_bps,
            up_loss=up_loss,
            down_loss=down_loss,
            air=Air(
                spectrum=spectrum,
                up_snr_hz=full_snr_hz,
                down_snr_hz=down_snr_hz,
                weights=draw(self.weight, n, key.at(11).numpy(), f"{path}.weight"),
                power_w=power_w,
                efficiency=np.full(n, np.nan if self.efficiency is None else self.efficiency),
                target_hz=target_hz,
                least_fading=least_fading,
                outage=outage,
                drawn_w=drawn_w,
            ),
            **common,
        )


PLUGINS = {"cell": CellNetwork}
