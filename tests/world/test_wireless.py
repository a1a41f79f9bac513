"""Radio links: path loss of the 3GPP reports, Shannon rates, fading, and units of power."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError
from scipy import stats

from edgesim.config.units import PerDevice, reason
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Draws, Key
from edgesim.world.links.path_loss import MODELS, Site
from edgesim.world.links.wireless import RadioPower, Wireless

KEY = Key(5)
MANY = 40_000
DKW = math.sqrt(math.log(2 / 1e-9) / (2 * MANY))  # see test_links
SITE = Site(carrier_hz=2e9, server_height_m=25.0, device_height_m=1.5, exponent=3.0, reference_m=1.0)


def wireless(**fields: Any) -> Wireless:
    plugin: Wireless = TypeAdapter(Wireless).validate_python({"bandwidth": "1 MHz", "distance_m": 1000, **fields})
    return plugin


def loss_db(model: str, distance_m: float, site: Site = SITE) -> float:
    return float(MODELS[model].loss_db(np.array([distance_m]), site)[0])


# --- path loss --------------------------------------------------------------------------------------------


def test_macro_path_loss_is_128_db_at_a_kilometre():
    """128.1 dB at 1 km and 37.6 dB a decade."""
    assert loss_db("macro", 1000) == pytest.approx(128.1)
    assert loss_db("macro", 100) == pytest.approx(90.5)


def test_line_of_sight_has_two_slopes_that_meet():
    """UMa LOS of TR 38.901 by hand: break point 4 x 24 m x 0.5 m x 2 GHz / 3e8 m/s = 320 m."""
    for distance_m in (10.0, 100.0, 320.0):
        slant_m = math.sqrt(distance_m**2 + 23.5**2)
        assert loss_db("uma_los", distance_m) == pytest.approx(28 + 22 * math.log10(slant_m) + 20 * math.log10(2))
    far = 28 + 40 * math.log10(math.hypot(2000, 23.5)) + 20 * math.log10(2) - 9 * math.log10(320**2 + 23.5**2)
    assert loss_db("uma_los", 2000) == pytest.approx(far)
    assert loss_db("uma_los", 320.001) == pytest.approx(loss_db("uma_los", 320), abs=1e-3)
    higher = Site(2e9, 25.0, 4.0, 3.0, 1.0)  # break point at 4 x 24 x 3 x 2e9 / 3e8 = 1920 m
    assert loss_db("uma_los", 1900, higher) == pytest.approx(
        28 + 22 * math.log10(math.hypot(1900, 21)) + 6.0206, abs=1e-4
    )


def test_no_line_of_sight_is_never_better():
    """UMa NLOS by hand at 500 m, a device of 3.5 m having 1.2 dB less; nowhere below LOS."""
    expected = 13.54 + 39.08 * math.log10(math.hypot(500, 23.5)) + 20 * math.log10(2)
    assert loss_db("uma_nlos", 500) == pytest.approx(expected)
    higher = 13.54 + 39.08 * math.log10(math.hypot(500, 21.5)) + 20 * math.log10(2) - 1.2
    assert loss_db("uma_nlos", 500, Site(2e9, 25.0, 3.5, 3.0, 1.0)) == pytest.approx(higher)
    distances_m = np.geomspace(10, 5000, 200)
    los, nlos = (MODELS[name].loss_db(distances_m, SITE) for name in ("uma_los", "uma_nlos"))
    assert (nlos >= los).all()
    assert (np.diff(nlos) > 0).all()


def test_log_distance_begins_with_free_space():
    """(4 pi d f / c)^2 at the reference, the exponent beyond; exponent 2 is free space everywhere."""
    free = 20 * math.log10(4 * math.pi * 10 * 2e9 / 3e8)
    assert loss_db("log_distance", 10, Site(2e9, 25, 1.5, 3.0, 10.0)) == pytest.approx(free)
    assert loss_db("log_distance", 1000, Site(2e9, 25, 1.5, 3.0, 10.0)) == pytest.approx(free + 60)
    assert loss_db("log_distance", 1000, Site(2e9, 25, 1.5, 2.0, 1.0)) == pytest.approx(
        20 * math.log10(4 * math.pi * 1000 * 2e9 / 3e8)
    )


# --- rates ------------------------------------------------------------------------------------------------


def test_rates_are_those_of_shannon():
    """0.1995 W over 128.1 dB into 1 MHz of -174 dBm/Hz: SNR 7.76, 3.13 Mbit/s; 46 dBm down over 2 MHz."""
    plugin = wireless(down_bandwidth="2 MHz", latency="20 ms")
    links = plugin.build(3, KEY, "network")
    up_snr = 10 ** ((23 - 128.1 - (-174 + 60)) / 10)
    down_snr = 10 ** ((46 - 128.1 - (-174 + 10 * math.log10(2e6))) / 10)
    assert up_snr == pytest.approx(7.76, abs=0.01)
    up_bps, down_bps = 1e6 * math.log2(1 + up_snr), 2e6 * math.log2(1 + down_snr)
    assert up_bps == pytest.approx(3.13e6, rel=1e-3)
    assert links.up_bps.tolist() == pytest.approx([up_bps] * 3)
    assert links.down_bps.tolist() == pytest.approx([down_bps] * 3)
    draws = Draws(KEY, np.arange(2), np.zeros(2, dtype=int))
    for up, bps in ((True, up_bps), (False, down_bps)):
        seconds, air_s = links.transfer(np.array([0, 2]), np.array([1e6, 0]), up, 0.0, draws)
        assert air_s.tolist() == pytest.approx([8e6 / bps, 0])
        assert seconds.tolist() == pytest.approx([0.02 + 8e6 / bps, 0.02])


def test_a_weak_signal_has_the_rate_of_its_power():
    """Far below the noise B log2(1 + x) is P h / (N0 ln 2), without cancellation."""
    links = wireless(distance_m=1e6).build(1, KEY, "network")
    power_at_device_w = 10 ** ((23 - 128.1 - 37.6 * 3) / 10 - 3)
    assert links.up_bps[0] == pytest.approx(power_at_device_w / 10 ** (-174 / 10 - 3) / math.log(2), rel=1e-9)


def gains(plugin: Wireless, up: bool, nth: int = 0) -> np.ndarray:
    """Return the power gain of one transfer of each of MANY devices, worked out from its seconds."""
    links = plugin.build(MANY, KEY, "network")
    draws = Draws(KEY, np.arange(MANY), np.full(MANY, nth))
    _, air_s = links.transfer(np.arange(MANY), np.full(MANY, 1e6), up, 0.0, draws)
    nominal_bps = links.up_bps if up else links.down_bps
    gain: np.ndarray = (2 ** (8e6 / air_s / 1e6) - 1) / (2 ** (nominal_bps / 1e6) - 1)
    return gain


def test_rayleigh_fading_has_exponential_power():
    """Gain of mean 1 and exponential law, anew for every job; for both directions of it, or for each."""
    per_job, per_transfer = wireless(fading="per_round"), wireless(fading="per_transfer")
    for plugin in (per_job, per_transfer):
        gain = gains(plugin, up=True)
        assert stats.kstest(gain, stats.expon.cdf).statistic < DKW
        assert gain.mean() == pytest.approx(1, abs=5 / math.sqrt(MANY))
        assert abs(np.corrcoef(gain, gains(plugin, up=True, nth=1))[0, 1]) < 5 / math.sqrt(MANY)
    assert gains(per_job, up=False) == pytest.approx(gains(per_job, up=True), rel=1e-6)
    both = np.corrcoef(gains(per_transfer, up=False), gains(per_transfer, up=True))[0, 1]
    assert abs(both) < 5 / math.sqrt(MANY)
    assert gains(wireless(), up=True) == pytest.approx(np.ones(MANY))


def test_shadowing_is_normal_in_decibels_and_stays():
    """The nominal rates give back 8 dB of spread around the path loss, the same for both directions."""
    links = wireless(shadowing_db=8).build(MANY, KEY, "network")
    ratios = {}
    for name, bps, power_dbm in (("up", links.up_bps, 23), ("down", links.down_bps, 46)):
        received_dbm = 10 * np.log10(2 ** (bps / 1e6) - 1) - 174 + 60
        ratios[name] = power_dbm - received_dbm - 128.1
    assert stats.kstest(ratios["up"], stats.norm(0, 8).cdf).statistic < DKW
    assert ratios["down"] == pytest.approx(ratios["up"], abs=1e-6)


# --- units and bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "watts"), [("23 dBm", 0.19952623), ("0dBm", 1e-3), ("-10 dBm", 1e-4), ("200 mW", 0.2), (0.2, 0.2)]
)
def test_powers_in_watts_or_decibels(given, watts):
    """10 dB a decade above one milliwatt; the parsed value is a float in watts and reads back as itself."""
    read = TypeAdapter(RadioPower).validate_python
    assert read(given) == pytest.approx(watts)
    assert read(read(given)) == read(given)
    spread = TypeAdapter(PerDevice[RadioPower]).validate_python({"choice": [given, "46 dBm"]})
    assert spread.values == pytest.approx((watts, 39.810717))


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"power": "23 dB"}, "'23 dB' is not a power; give a number in W or a string such as '23 dBm'"),
        ({"power": 0}, "must be above 0 W"),
        ({"server_power": "-1 W"}, "must be above 0 W"),
        ({"bandwidth": "0 Hz"}, "must be above 0 Hz"),
        ({"distance_m": 0}, "must be greater than 0"),
        ({"shadowing_db": -1}, "must be greater than or equal to 0"),
        ({"noise_dbm_per_hz": -300}, "must be greater than or equal to -200"),
        ({"path_loss": "hata"}, "must be 'macro', 'uma_los', 'uma_nlos' or 'log_distance'"),
        ({"fading": "rice"}, "must be 'none', 'per_round' or 'per_transfer'"),
        ({"device_height_m": 1.0}, "must be greater than 1"),
    ],
)
def test_impossible_radios_are_refused(fields, fault):
    """The reason says what is allowed."""
    with pytest.raises(ValidationError) as caught:
        wireless(**fields)
    assert fault in reason(caught.value)


def test_distances_outside_the_model_are_refused():
    """TR 38.901 speaks of 10 m to 5 km; nothing arrives beyond the solar system."""
    with pytest.raises(ConfigError, match=r"^network\.distance_m: uma_los holds from 10 m to 5000 m, found 5001 m"):
        wireless(path_loss="uma_los", distance_m=5001).build(1, KEY, "network")
    with pytest.raises(ConfigError, match=r"^network\.distance_m: .* found 0\.5 m; set `min` and `max`$"):
        wireless(distance_m={"choice": [0.5]}).build(4, KEY, "network")
    with pytest.raises(ConfigError, match=r"^network\.distance_m: so far away"):
        wireless(distance_m=1e300).build(1, KEY, "network")
