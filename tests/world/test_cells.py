"""Cells of a few devices against calculation on paper: rates, seconds, fading, powers and packets."""

from __future__ import annotations

import math
from itertools import count

import numpy as np
import pytest

from edgesim.config.plugin_fields import PartOf
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key
from edgesim.world.contention.fair import FairLinks
from edgesim.world.spectrum.allocators import Equal, MinMaxTime
from edgesim.world.spectrum.cells import Air, CellBand, CellLinks, Radios, superposed_bps

BAND_HZ = 1e6
SNR_HZ = np.array([1e6, 3e6, 7e6])  # with the whole band: signal to noise of 1, 3, 7, so 1, 2, 3 Mbit/s
WHOLE_BPS = np.array([1e6, 2e6, 3e6])
HUB = 4


def steady(draws, up):
    return np.ones(len(draws.ids))


def cell(access="fdma", allocator=None, gain=steady, blocks=0, hubs=(HUB,)):
    """Return the links of three devices, each to every hub."""
    shares = {"access": access, "blocks": blocks, "allocator": allocator or Equal(), "gain": gain}
    spectrum = CellBand(up_hz=BAND_HZ, down_hz=BAND_HZ, **shares)
    power = (np.full(3, 2.0), np.ones(3))
    air = Air(spectrum, SNR_HZ, SNR_HZ, np.ones(3), *power, np.full(3, math.inf), np.zeros(3), np.zeros(3), np.zeros(3))
    links = {(device, hub): float(WHOLE_BPS[device - 1]) for device in (1, 2, 3) for hub in hubs}
    wired = {(hub, 0): math.inf for hub in hubs}
    return CellLinks(FairLinks({**links, **{(b, a): bps for (a, b), bps in links.items()}, **wired}),
                     Radios(air, np.ones(3), np.ones(3), Key(1)))  # fmt: skip


def ends_of(links, bits, up=True, starts_s=(0.0, 0.0, 0.0), hub=HUB):
    """Return the second at which the transfer of each device ends."""
    starts = sorted(zip(starts_s[: len(bits)], range(len(bits)), strict=True))
    ends_s, now_s = [0.0] * len(bits), 0.0
    for _ in range(2 * len(bits)):
        due = links.next_done()
        if starts and (due is None or starts[0][0] <= due[0]):
            now_s, flow = starts.pop(0)
            path = [(flow + 1, hub)] if up else [(hub, flow + 1)]
            links.admit(flow, path, bits[flow] / 8.0, now_s)
        else:
            now_s, flow = due
            links.finish(flow, now_s)
            ends_s[flow] = now_s
    return ends_s


def shannon(share, snr_hz):
    return share * math.log2(1.0 + snr_hz / share)


def test_a_device_alone_has_the_whole_band():
    assert ends_of(cell(), [1e6]) == pytest.approx([1.0], rel=1e-12)
    assert ends_of(cell(), [1e6], up=False) == pytest.approx([1.0], rel=1e-12)


def test_shares_carry_the_whole_power_of_their_device():
    """Thirds of the band; when the first device ends, the two others have halves, and at last one has all."""
    third, half = BAND_HZ / 3, BAND_HZ / 2
    r3 = [shannon(third, snr_hz) for snr_hz in SNR_HZ]
    r2 = [shannon(half, snr_hz) for snr_hz in SNR_HZ]
    bits = [1e6, 2e6, 6e6]
    first = bits[0] / r3[0]
    assert first < bits[1] / r3[1]
    second = first + (bits[1] - r3[1] * first) / r2[1]
    last = second + (bits[2] - r3[2] * first - r2[2] * (second - first)) / WHOLE_BPS[2]
    assert ends_of(cell(), bits) == pytest.approx([first, second, last], rel=1e-12)


def test_reserved_hertz_stay_when_others_end():
    """A half and a quarter of the band, with 1 W and 0.5 W of the 2 W that the radios can radiate."""
    links = cell()
    links.reserve(0, BAND_HZ / 2, 1.0)
    links.reserve(1, BAND_HZ / 4, 0.5)
    rates_bps = [shannon(BAND_HZ / 2, SNR_HZ[0] / 2), shannon(BAND_HZ / 4, SNR_HZ[1] / 4)]
    assert ends_of(links, [1e6, 4e6]) == pytest.approx([1e6 / rates_bps[0], 4e6 / rates_bps[1]], rel=1e-12)


def test_reserved_hertz_beyond_the_band_are_reduced_in_proportion():
    """Twice a band is a band for both, half as much each, until one has ended."""
    links = cell()
    for flow in (0, 1):
        links.reserve(flow, BAND_HZ, 2.0)
    halves_bps = [shannon(BAND_HZ / 2, snr_hz) for snr_hz in SNR_HZ[:2]]
    first_s = 2e6 / halves_bps[1]
    last_s = first_s + (4e6 - halves_bps[0] * first_s) / WHOLE_BPS[0]
    assert ends_of(links, [4e6, 2e6]) == pytest.approx([last_s, first_s], rel=1e-12)


@pytest.mark.parametrize("access", ["fdma", "tdma", "ofdma"])
def test_a_downlink_spreads_the_power_of_the_server(access):
    """A third of the band carries a third of its whole rate: 1/3, 2/3 and 1 Mbit/s for 1, 2 and 3 Mbit."""
    links = cell(access, blocks=3 if access == "ofdma" else 0)
    assert ends_of(links, [1e6, 2e6, 3e6], up=False) == pytest.approx([3.0] * 3, rel=1e-12)


def test_turns_have_the_whole_band():
    """Time shares: equal thirds of 1, 2, 3 Mbit/s; then halves."""
    assert ends_of(cell("tdma"), [1e6, 3e6, 9e6]) == pytest.approx([3.0, 4.0, 4 + (9e6 - 3e6 - 1.5e6) / 3e6], rel=1e-12)


def test_blocks_are_whole():
    """Four blocks of 250 kHz for three devices: the first in line has two."""
    block_hz = BAND_HZ / 4
    links = cell("ofdma", blocks=4)
    for device in range(3):
        links.admit(device, [(device + 1, HUB)], 1e9, 0.0)
    links.next_done()
    moved_bits = [8.0 * links.moved_bytes(device, 1.0) for device in range(3)]
    wanted = [shannon(2 * block_hz, SNR_HZ[0]), shannon(block_hz, SNR_HZ[1]), shannon(block_hz, SNR_HZ[2])]
    assert moved_bits == pytest.approx(wanted, rel=1e-12)


def test_more_devices_than_blocks_wait():
    """One block: the devices have it one after the other."""
    ends_s = ends_of(cell("ofdma", blocks=1), [1e6, 2e6, 3e6])
    assert ends_s == pytest.approx([1.0, 2.0, 3.0], rel=1e-12)


def test_the_strongest_is_decoded_first():
    """Uplink by successive cancellation: the weakest hears noise alone, the others those below them."""
    rates_bps = superposed_bps(SNR_HZ[[2, 0, 1]], BAND_HZ)
    expected = [
        BAND_HZ * math.log2(1 + 7 / (1 + 1 + 3)),
        BAND_HZ * math.log2(1 + 1),
        BAND_HZ * math.log2(1 + 3 / (1 + 1)),
    ]
    assert rates_bps == pytest.approx(expected, rel=1e-12)
    assert rates_bps.sum() == pytest.approx(BAND_HZ * math.log2(1 + 11), rel=1e-12)
    assert ends_of(cell("noma"), [1e6]) == pytest.approx([1.0], rel=1e-12)


def test_all_end_together_whoever_comes_later():
    """Two start at 0, the third at 0.5 s; from then on all end at one time."""
    ends_s = ends_of(cell(allocator=MinMaxTime()), [1e6, 1e6, 1e6], starts_s=(0.0, 0.0, 0.5))
    assert ends_s == pytest.approx([ends_s[0]] * 3, rel=1e-12)
    assert ends_s[0] > 0.5


def test_cells_share_nothing():
    """Two devices at two base stations have the whole band each; so have the directions of one cell."""
    links = cell(hubs=(4, 5))
    links.admit(0, [(1, 4), (4, 0)], 1e9, 0.0)
    links.admit(1, [(2, 5), (5, 0)], 1e9, 0.0)
    links.admit(2, [(4, 3)], 1e9, 0.0)
    links.next_done()
    assert [8.0 * links.moved_bytes(flow, 1.0) for flow in range(3)] == pytest.approx(WHOLE_BPS.tolist(), rel=1e-12)


def test_a_transfer_that_is_dropped_leaves_its_share():
    links = cell()
    for device in (0, 1):
        links.admit(device, [(device + 1, HUB)], 1e6, 0.0)
    moved_bits = 8.0 * links.drop(0, 0.25)
    assert moved_bits == pytest.approx(0.25 * shannon(BAND_HZ / 2, SNR_HZ[0]), rel=1e-12)
    ends_s, _ = links.next_done()
    left_bits = 8e6 - 0.25 * shannon(BAND_HZ / 2, SNR_HZ[1])
    assert ends_s == pytest.approx(0.25 + left_bits / WHOLE_BPS[1], rel=1e-12)


def test_fading_is_of_the_transfer_and_lasts_through_a_pause():
    """Gains by device and number of its transfers, 1, 2, 3, ...: a flow that goes on keeps its own."""
    calls = count(1)

    def numbered(draws, up):
        next(calls)
        return np.array([1.0 + draws.nth[0]])

    links = cell(gain=numbered)
    links.admit(10, [(1, HUB)], 1e9, 0.0)
    links.drop(10, 1.0)
    links.admit(10, [(1, HUB)], 1e9, 2.0)
    links.next_done()
    assert 8.0 * links.moved_bytes(10, 3.0) == pytest.approx(shannon(BAND_HZ, SNR_HZ[0]), rel=1e-12)
    links.drop(10, 3.0)
    links.admit(12, [(1, HUB)], 1e9, 3.0)
    links.next_done()
    assert 8.0 * links.moved_bytes(12, 4.0) == pytest.approx(shannon(BAND_HZ, 2 * SNR_HZ[0]), rel=1e-12)
    assert next(calls) == 3


def part(**keys):
    return PartOf("network").read({"name": "cell", "bandwidth": "1 MHz", "distance_m": 100.0, **keys}).value


def built(n=2, **keys):
    return part(**keys).build(n, Key(1), "network")


def test_the_signal_of_a_device():
    """Macro path loss of 90.5 dB at 100 m, 23 dBm and -174 dBm/Hz: S = 10^(10.65) hertz."""
    links = built()
    assert links.air.up_snr_hz == pytest.approx([10 ** ((23 - 90.5 + 174) / 10)] * 2, rel=1e-12)
    assert links.air.down_snr_hz == pytest.approx([10 ** ((46 - 90.5 + 174) / 10)] * 2, rel=1e-12)
    assert links.up_bps == pytest.approx(1e6 * np.log2(1 + links.air.up_snr_hz / 1e6), rel=1e-12)


def test_interference_adds_to_the_noise():
    """As much interference as noise halves the signal."""
    links = built(interference_dbm_per_hz=-174.0)
    assert links.air.up_snr_hz == pytest.approx(0.5 * built().air.up_snr_hz, rel=1e-12)


def test_power_that_reaches_a_target():
    """20 dB on one of 10 blocks: 100 x noise x 100 kHz over the path gain; never above `power`."""
    links = built(power_control="target_snr", target_snr_db=20.0, access="ofdma", blocks=10, efficiency=0.5)
    assert links.air.up_snr_hz == pytest.approx([100 * 1e5] * 2, rel=1e-12)
    radiated_w = 100 * 10**-20.4 * 1e5 * 10**9.05
    assert links.transmit_w == pytest.approx([radiated_w / 0.5] * 2, rel=1e-12)
    far = built(power_control="target_snr", target_snr_db=20.0, distance_m=20_000.0, efficiency=0.5, transmit="0.1 W")
    assert far.transmit_w == pytest.approx([0.1 + 10**-0.7 / 0.5] * 2, rel=1e-12)


def test_packets_that_get_lost():
    """1 - exp(-m / SNR) on one block, beside the loss of the link."""
    links = built(waterfall=2.0, power_control="target_snr", target_snr_db=10.0, access="ofdma", blocks=10, loss=0.1)
    assert links.loss_of(True) == pytest.approx([1 - 0.9 * math.exp(-0.2)] * 2, rel=1e-12)
    assert links.loss_of(False) == pytest.approx(1 - 0.9 * np.exp(-2.0 * 1e6 / links.air.down_snr_hz), rel=1e-12)
    assert links.impaired and not built().impaired


def test_a_device_that_no_signal_reaches_is_refused():
    with pytest.raises(ConfigError, match=r"network.distance_m: so far away that no signal arrives"):
        built(distance_m=1e300, path_loss="log_distance")
