"""How likely units are left out, against numbers on paper.

Source: "Efficient Federated Learning with Heterogeneous Data and Adaptive Dropout", arXiv 2507.10430.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from edgesim.core.local_sgd import Training
from edgesim.core.price_list import ChannelGroup, CostProfile, LayerCost
from edgesim.core.rng import Key
from edgesim.core.task import Submodel
from edgesim.methods.adaptive_dropout.unit_rates import (
    WAITING,
    drawn,
    drop_probabilities,
    largest_shares,
    normalised,
    round_seconds,
    shares_of_time,
    triggered,
)
from tests.methods.hand_made import setting_of

R = np.array([3.0, 1.0, 2.0, 4.0])
SOFTMAX = [0.069715, 0.515131, 0.189506, 0.025647]


@pytest.mark.parametrize(
    ("importance", "most", "expected"),
    [
        (R, 0.99, SOFTMAX),
        (R, 0.5, [0.073419, 0.5, 0.199572, 0.027009]),
        (R / 4, 0.8, [0.169796, 0.279946, 0.218022, 0.132237]),
    ],
)  # fmt: skip
def test_probabilities_of_four_units(importance, most, expected):
    """By exp(-r) with mean 0.2; what is above the most goes to the others."""
    found = drop_probabilities(importance, 0.2, most)
    assert found.tolist() == pytest.approx(expected, abs=1e-6)
    assert found.mean() == pytest.approx(0.2)
    if most == 0.8:
        assert (1 / (1 - found)).tolist() == pytest.approx([1.204523, 1.388784, 1.278808, 1.152388], abs=1e-6)


def test_probabilities_at_the_edges():
    """Equal units are equally likely; more than the most is never reached; huge ranks do not overflow."""
    assert drop_probabilities(np.zeros(3), 0.3, 0.8).tolist() == pytest.approx([0.3] * 3)
    assert drop_probabilities(R, 0.9, 0.8).tolist() == [0.8] * 4
    assert drop_probabilities(np.array([2000.0, 0.0]), 0.3, 0.8).tolist() == pytest.approx([0.0, 0.6])


def test_importances_of_a_layer_are_over_its_largest():
    """Two layers, one of zeros, and signed weights whose largest is negative; or as they are."""
    values = np.array([3.0, 1.0, 2.0, 4.0, 0.0, 0.0, -2.0, 1.0])
    assert normalised(values, [4, 2, 2], "layer_max").tolist() == [0.75, 0.25, 0.5, 1.0, 0.0, 0.0, -1.0, 0.5]
    assert normalised(values, [4, 2, 2], "none").tolist() == values.tolist()


@pytest.mark.parametrize(
    ("ratios", "longest_s", "shares"),
    [
        ((0.9, 0.95, 0.8), 17.833333, [1.0, 0.891667, 0.445833]),
        ((0.1, 0.05, 0.2), 2.166667, [0.216667, 0.108333, 0.054167]),
    ],
)
def test_shares_of_three_devices(ratios, longest_s, shares):
    """10, 20 and 40 s with 100, 300 and 200 samples; the second device has the most."""
    samples = np.array([100, 300, 200])
    found_s, found = shares_of_time(np.array([10.0, 20.0, 40.0]), samples, float(np.average(ratios, weights=samples)))
    assert found_s == pytest.approx(longest_s, abs=1e-6)
    assert found.tolist() == pytest.approx(shares, abs=1e-6)


# --- when -------------------------------------------------------------------------------------------------------


def fired(deltas, first=0, every=5, **changes):
    """Return in which checks rates are updated; the first check has nothing to compare with."""
    settings = {"patience": 10, "gain": 1e-3, "latest": 50, **changes}
    trigger, found = dict(WAITING), []
    for place, delta in enumerate([math.nan, *deltas]):
        fires, trigger = triggered(trigger, delta, first + every * place, every, **settings)
        found += [place] if fires else []
    return found


def test_the_first_update_waits_for_importances_to_settle():
    """Falling: not yet. Two checks of 5 rounds without a new least: patience 10 is over. Then every lower delta."""
    assert fired([4.0, 3.0, 2.0, 1.0]) == []
    assert fired([4.0, 3.0, 3.5, 3.2]) == [4]
    assert fired([4.0, 3.0, 3.5, 3.2, 3.1, 3.3, 3.2]) == [4, 5, 7]


def test_a_gain_below_the_least_is_none():
    """2.999 is not a thousandth below 3, at a gain of zero it is less."""
    assert fired([3.0, 2.999, 2.998]) == [3]
    assert fired([3.0, 2.999, 2.998], gain=0.0) == []


def test_patience_and_the_latest_round():
    """With patience 5 one check is enough; in round 50, the tenth check after round 0, the update comes anyway."""
    assert fired([4.0, 4.0], patience=5) == [2]
    assert fired(np.linspace(20, 2, 12).tolist())[0] == 10
    assert fired([], first=50) == [0]


# --- time -------------------------------------------------------------------------------------------------------

NOBODY: frozenset[str] = frozenset()
# 10 units of 4 parameters, 8 + 8 FLOPs a sample each way; links of 64 byte/s down and 32 byte/s up
CARD = CostProfile(
    "ten",
    (4,),
    2,
    (LayerCost("a", "Linear", 40, 0, 80.0, 80.0, 80.0, NOBODY, 40, "a"),),
    groups=(ChannelGroup("a", 10),),
)


def setting(**changes):
    """Return a setting of two devices with 10 and 20 samples."""
    links = {"down_bps": np.full(2, 8 * 64.0), "up_bps": np.full(2, 8 * 32.0), "latency_s": np.array([0.5, 0.0])}
    speeds = {"flops_per_s": np.array([160.0, 400.0])}
    return setting_of(
        (10, 20), {}, cost_profile=CARD, training=Training(local_epochs=2, batch=5), **{**links, **speeds, **changes}
    )


def test_seconds_of_a_round():
    """160 bytes / 64 + 2 x 10 x 160 FLOPs / 160 + 160 / 32 + 2 x 0.5 s; half of the units take half of all that."""
    assert round_seconds(setting(), Submodel(), 0).tolist() == [2.5 + 20 + 5 + 1, 2.5 + 16 + 5]
    half = Submodel(channels=(("a", (0, 1, 2, 3, 4)),))
    assert round_seconds(setting(), half, 0).tolist() == [(2.5 + 20 + 5) / 2 + 1, (2.5 + 16 + 5) / 2]


def test_largest_shares_take_no_longer():
    """27.5 n / 10 + 1 s and 23.5 n / 10 s for n of ten units, so in 15 s 5 and 6; too little for one; and all."""
    found = largest_shares(setting(), CARD.groups, 15.0, 0)
    assert [round(share * 10) for share in found] == [5, 6]
    assert largest_shares(setting(), CARD.groups, 1.0, 0).tolist() == [0.0, 0.0]
    assert largest_shares(setting(), CARD.groups, 100.0, 0).tolist() == [1.0, 1.0]


# --- draws ------------------------------------------------------------------------------------------------------


def test_units_stay_by_their_probability():
    """Each by itself: 20,000 draws of four units have the shares of 1 - p, within five standard errors."""
    p, draws, times = np.array([0.1, 0.5, 0.8, 0.0]), Key(4).numpy(), 20_000
    stayed = np.zeros(4)
    for _ in range(times):
        stayed[drawn(p, R, False, draws)] += 1
    assert (np.abs(stayed / times - (1 - p)) <= 5 * np.sqrt(p * (1 - p) / times)).all()


def test_one_unit_always_stays():
    """The most important, where all are left out but for a chance of 1e-15."""
    p = np.full(4, 1 - 1e-15)
    assert {tuple(drawn(p, R, False, Key(seed).numpy())) for seed in range(20)} == {(3,)}
    assert {len(drawn(p, R, True, Key(seed).numpy())) for seed in range(20)} == {1}


def test_an_exact_count_stays():
    """0.9 + 0.5 + 0.2 + 1 = 2.6: three of four, distinct and ascending, the likelier ones more often."""
    kept = [drawn(np.array([0.1, 0.5, 0.8, 0.0]), R, True, Key(seed).numpy()).tolist() for seed in range(300)]
    assert all(len(channels) == 3 and channels == sorted(set(channels)) for channels in kept)
    counts = np.bincount(np.concatenate(kept), minlength=4)
    assert counts[2] < counts[1] < counts[0] < counts[3]
