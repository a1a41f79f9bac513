"""Selection rules that look at what is known of devices, each against its paper's formula on a history made by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import inf, log, sqrt

import numpy as np
import pytest

from edgesim.core.rng import Key
from edgesim.engine.selection.battery_aware import BatteryAware, left_after
from edgesim.engine.selection.channel import BestChannel, BestChannelNorm, BestNorm, BestNormByChannel
from edgesim.engine.selection.fedcs import FedCS, greedy
from edgesim.engine.selection.norm_sampling import NormSampling, inclusion
from edgesim.engine.selection.oort import Oort
from edgesim.engine.selection.power_of_choice import PowerOfChoice
from edgesim.engine.selection.tifl import TiFL, by_accuracy
from edgesim.engine.selection.turns import ProportionalFair, RoundRobin
from tests.engine.by_knowledge import NAN, expected_of, known_of

KEY = Key(5)
FOUR = np.arange(4)


def frequencies(rule, known, draws=3000, idle=None):
    """Return how often each device is chosen, as a share of the draws."""
    idle = np.arange(len(known.asked)) if idle is None else idle
    counts = np.zeros(len(known.asked))
    for draw in range(draws):
        counts[rule.choose(idle, known, KEY.at(draw))] += 1
    return counts / draws


# --- FedCS --------------------------------------------------------------------------------------------------------


def test_fedcs_adds_who_costs_the_round_least():
    """Down (1, 2, 1, 4), compute (3, 1, 6, 2), up (2, 2, 1, 1) s.

    First, extra = down + compute + up = (6, 5, 8, 7): device 1; the uploads end 1 + 2 = 3 s after the download of 2.
    Then 0: 0 + 2 + max(3 - 3, 0) = 2, 2: 0 + 1 + (6 - 3) = 4, 3: (4 - 2) + 1 + 0 = 3: device 0, they end at 5.
    Then 2: 1 + (6 - 5) = 2, 3: 2 + 1 = 3: device 2, they end at 7. Last 3: at 7 + 1 = 8, download 4.
    Rounds of 2 + 3, 2 + 5, 2 + 7 and 4 + 8 s.
    """
    known = known_of([1] * 4, expected=expected_of([1, 2, 1, 4], [3, 1, 6, 2], [2, 2, 1, 1]))
    order = {12: [1, 0, 2, 3], 11.9: [1, 0, 2], 9: [1, 0, 2], 8.9: [1, 0], 7: [1, 0], 6.9: [1], 5: [1], 1: [1]}
    for deadline_s, expected in order.items():
        assert greedy(FOUR, known.expected, deadline_s, 4).tolist() == expected
        assert FedCS(count=4, deadline=deadline_s).choose(FOUR, known, KEY).tolist() == sorted(expected)
    assert FedCS(count=2, deadline=12).choose(FOUR, known, KEY).tolist() == [0, 1]
    # of 12 s the server needs 0.5 s to select and 2.6 s to aggregate, which leaves 8.9 s, or 9 s with 0.1 s less
    for selecting_s, aggregating_s, expected in ((0.5, 2.6, [0, 1]), (0.5, 2.5, [0, 1, 2])):
        rule = FedCS(count=4, deadline=12, selecting=selecting_s, aggregating=aggregating_s)
        assert rule.choose(FOUR, known, KEY).tolist() == expected


def test_fedcs_over_links_of_their_own():
    """Each device takes down + compute + up = (6, 5, 8, 7) s by itself."""
    known = known_of([1] * 4, expected=expected_of([1, 2, 1, 4], [3, 1, 6, 2], [2, 2, 1, 1]))
    for deadline_s, expected in {7: [0, 1, 3], 8: [0, 1, 2, 3], 5.5: [1], 2: [1]}.items():
        rule = FedCS(count=4, deadline=deadline_s, uploads="parallel")
        assert rule.choose(FOUR, known, KEY).tolist() == expected
    assert FedCS(count=1, deadline=8, uploads="parallel").choose(FOUR, known, KEY).tolist() == [1]


def test_fedcs_draws_candidates_first():
    """Of two random candidates the quicker is asked: the quickest of 4 in 1/2 of the draws, the slowest never."""
    known = known_of([1] * 4, expected=expected_of(compute_s=[1, 2, 3, 4]))
    shares = frequencies(FedCS(count=1, deadline=9, candidates=2), known, draws=1500)
    assert shares == pytest.approx([1 / 2, 1 / 3, 1 / 6, 0], abs=0.04)


# --- Oort ---------------------------------------------------------------------------------------------------------

# Four devices, three of them tried, before the fifth round: utilities 100 sqrt(4), 200 sqrt(2.25), 100 sqrt(0.25).
TRIED = {
    "round": 4,
    "square_loss": [4.0, 2.25, 0.25, NAN],
    "last_delivered": [0, 2, 3, -1],
    "delivered": [1, 1, 1, 0],
    "seconds": [10.0, 2.0, 4.0, NAN],
}
SAMPLES = [100, 200, 100, 50]


def tried(**changes):
    """Return what is known of them; the new device is expected to take 3 s."""
    return known_of(
        SAMPLES, {"preferred": 0.3, "utilities": ()}, expected=expected_of(compute_s=3.0), **{**TRIED, **changes}
    )


def test_oort_utility():
    """Utilities 200, 300, 50 scaled by 50 and 300 to 0.6, 1, 0; plus sqrt(0.1 log 5 / L) with L = 1, 3, 4.

    T is the 0.3 quantile of 2, 3, 4, 10 s: place floor(1.2) = 1, 3 s. Devices 0 and 2 lose (3/10)^2 and (3/4)^2.
    """
    bonus = [sqrt(0.1 * log(5) / newest) for newest in (1, 3, 4)]
    by_hand = [(0.6 + bonus[0]) * 0.3**2, 1 + bonus[1], (0 + bonus[2]) * 0.75**2]
    rule = Oort(count=2)
    assert rule.preferred_s(tried()) == 3.0
    assert rule.utility(tried())[:3] == pytest.approx(by_hand, rel=1e-12)
    assert np.isnan(rule.utility(tried())[3])
    mild = Oort(count=2, alpha=0.5).utility(tried())
    assert mild[0] == pytest.approx((0.6 + bonus[0]) * sqrt(0.3), rel=1e-12)


def test_oort_clips_the_largest_utilities():
    """The 0.5 quantile of 50, 200, 300 is at place floor(1.5) = 1: 200, which 300 counts as; the scale stays."""
    clipped = Oort(count=2, clip=0.5, alpha=0).utility(tried())
    bonus = [sqrt(0.1 * log(5) / newest) for newest in (1, 3, 4)]
    assert clipped[:3] == pytest.approx([0.6 + bonus[0], 0.6 + bonus[1], 0 + bonus[2]], rel=1e-12)


def test_oort_explores_less_and_less():
    rule = Oort(count=10)
    assert [rule.share_for_new(r) for r in (0, 1, 10)] == pytest.approx([0.9, 0.9 * 0.98, 0.9 * 0.98**10])
    assert 0.9 * 0.98**74 > 0.2 > 0.9 * 0.98**75
    assert rule.share_for_new(75) == 0.2


def test_oort_divides_its_places():
    """Of 10 places with a share of 0.9 x 0.98^4 = 0.830 new devices get 9; weights are 2 to 1 by expected speed."""
    known = twenty_tried(4)
    shares = frequencies(Oort(count=10), known, draws=1000)
    assert shares[:20].sum() == pytest.approx(1.0, abs=1e-9)
    assert shares[20:].sum() == pytest.approx(9.0, abs=1e-9)
    assert shares[20:40].mean() / shares[40:].mean() == pytest.approx(1.8, abs=0.25)  # without replacement: less than 2
    only_tried = np.arange(20)
    assert len(Oort(count=10).choose(only_tried, known, KEY)) == 10


def twenty_tried(round_):
    """Return what is known of 60 devices before a round: 20 were tried, and of the others 20 are half as fast."""
    return known_of(
        [100] * 60,
        {"preferred": 1.0, "utilities": ()},
        round=round_,
        square_loss=[1.0 + i for i in range(20)] + [NAN] * 40,
        last_delivered=[3] * 20 + [-1] * 40,
        expected=expected_of(compute_s=[1.0] * 40 + [2.0] * 20, n=60),
    )


@pytest.mark.parametrize("count", [1, 2, 7, 10, 20])
@pytest.mark.parametrize("round_", [4, 20, 60, 200])
def test_oort_exploits_whole_devices_as_its_released_code(count, round_):
    """The whole part of (1 - share) x places, in exact fractions; all other places are for new devices."""
    share = max(Fraction(9, 10) * Fraction(98, 100) ** round_, Fraction(2, 10))
    chosen = Oort(count=count).choose(np.arange(60), twenty_tried(round_), KEY)
    assert len(chosen) == count
    assert (chosen < 20).sum() == int(count * (1 - share))


def test_oort_divides_places_without_rounding_errors():
    """A tenth of 10 places is one device, though 10 x (1 - 0.9) is less than 1 in binary fractions."""
    assert 10 * (1 - 0.9) < 1
    assert (Oort(count=10, decay=1.0).choose(np.arange(60), twenty_tried(4), KEY) < 20).sum() == 1


def test_oort_cuts_off_and_draws_by_utility():
    """All have been tried; of one place whoever has 0.95 of the highest utility is drawn for, in proportion.

    Without bonus (round 1: log 1 = 0) and penalty scaled utilities are 0, 0.5, 0.96 and 1: the last two are left.
    """
    known = known_of(
        [1] * 4,
        {"preferred": 1.0, "utilities": ()},
        square_loss=[1.0, 1.5**2, 1.96**2, 4.0],
        last_delivered=[0] * 4,
    )
    rule = Oort(count=1, explore=0, explore_least=0, clip=1.0)
    assert rule.utility(known) == pytest.approx([0, 0.5, 0.96, 1], abs=1e-12)
    assert frequencies(rule, known) == pytest.approx([0, 0, 0.96 / 1.96, 1 / 1.96], abs=0.04)
    wide = replace(rule, cut_off=0.4)
    assert frequencies(wide, known) == pytest.approx(np.array([0, 0.5, 0.96, 1]) / 2.46, abs=0.04)


def test_oort_paces():
    """With a window of 2 rounds T goes up when the last two brought less than the two before: after round 4, not 6."""
    rule, state = Oort(count=1, window=2), Oort(count=1).start(None)
    percentiles = []
    for done, loss in enumerate([5.0, 4.0, 3.0, 3.0, 9.0, 9.0], 1):
        known = known_of([1, 1], state, round=done, square_loss=[loss**2, NAN], last=[0], last_delivered=[done - 1, -1])
        state = rule.learn(known)
        percentiles.append(state["preferred"])
    assert percentiles == pytest.approx([0.3, 0.3, 0.3, 0.35, 0.35, 0.35])
    assert state["utilities"] == pytest.approx((3, 3, 9, 9))


def test_oort_counts_the_utility_of_who_came():
    """Device 1 was asked and did not deliver in this round: its old report brings nothing."""
    known = known_of(
        [2, 2], Oort(count=1).start(None), round=3, square_loss=[4.0, 9.0], last=[0, 1], last_delivered=[2, 1]
    )
    assert Oort(count=1).learn(known)["utilities"] == (4.0,)


def test_oort_spares_who_had_many_turns():
    known = tried(delivered=[1, 10, 1, 0])
    rule = Oort(count=1, explore=0, explore_least=0, alpha=0, cut_off=1.0)
    assert rule.choose(FOUR[:3], known, KEY).tolist() == [1]
    assert replace(rule, most_turns=10).choose(FOUR[:3], known, KEY).tolist() == [0]
    assert replace(rule, most_turns=1).choose(FOUR[:3], known, KEY).tolist() == [1]  # nobody else is left


# --- TiFL ---------------------------------------------------------------------------------------------------------


def six(state=None, **facts):
    """Return what is known of six devices that take 3, 1, 2, 6, 5 and 4 s: tiers (1, 2), (0, 5), (4, 3)."""
    return known_of([10, 10, 30, 10, 10, 10], state, expected=expected_of(compute_s=[3, 1, 2, 6, 5, 4], n=6), **facts)


def test_tifl_tiers_are_equally_large():
    state = TiFL(count=2, tiers=3).start(six())
    assert state["tier"].tolist() == [1, 0, 0, 2, 2, 1]
    assert state["probability"] == pytest.approx([1 / 3] * 3)
    assert [TiFL(count=4, tiers=3).most(np.arange(n), np.ones(n, dtype=int), Key(1)) for n in (6, 7, 20)] == [2, 3, 4]


def test_tifl_asks_one_tier():
    """By the static policy; in each draw both devices are of one tier."""
    rule = TiFL(count=2, tiers=3, probabilities=(0.7, 0.2, 0.1))
    known = six(rule.start(six()))
    tier = known.state["tier"]
    for draw in range(50):
        assert len(set(tier[rule.choose(np.arange(6), known, KEY.at(draw))])) == 1
    assert frequencies(rule, known, 2000) == pytest.approx([0.2, 0.7, 0.7, 0.1, 0.1, 0.2], abs=0.04)
    without_fast = frequencies(rule, known, 2000, idle=np.array([0, 3, 4, 5]))
    assert without_fast == pytest.approx([2 / 3, 0, 0, 1 / 3, 1 / 3, 2 / 3], abs=0.04)


def test_tifl_spends_credits():
    """After a round of tier 0 it has none left and is passed over; without any credits all are open again."""
    rule = TiFL(count=2, tiers=3, credits=(1, 1, 0))
    state = rule.learn(six(rule.start(six()), last=[1, 2], round=1))
    assert state["credits"].tolist() == [0, 1, 0]
    assert frequencies(rule, six(state), 200).tolist() == [1, 0, 0, 0, 0, 1]
    state = rule.learn(six(state, last=[0], round=2))
    assert (frequencies(rule, six(state), 200) > 0).all()


def test_tifl_prefers_tiers_that_have_learned_little():
    """Accuracies 0.9, 0.5, 0.7 of three tiers give 1/6, 3/6, 2/6; of the first two alone 1/3 and 2/3."""
    assert by_accuracy(np.array([0.9, 0.5, 0.7]), np.ones(3, dtype=bool)) == pytest.approx([1 / 6, 3 / 6, 2 / 6])
    assert by_accuracy(np.array([0.9, 0.5, 0.7]), np.array([True, True, False])) == pytest.approx([1 / 3, 2 / 3, 0])


def test_tifl_adapts_if_the_tier_has_not_got_better():
    """Tier 0: (10 x 0.8 + 30 x 0.4) / 40 = 0.5. It is looked at every 2 rounds, and the first time only noted."""
    rule = TiFL(count=2, tiers=3, interval=2)
    facts = {"last": [1, 2], "accuracy": [0.6, 0.8, 0.4, NAN, NAN, 0.8]}
    state = rule.learn(six(rule.start(six()), round=2, **facts))
    assert state["accuracy"] == pytest.approx([0.5, 0.7, -1])
    assert state["probability"] == pytest.approx([1 / 3] * 3)
    assert rule.learn(six(state, round=3, **facts))["probability"] == pytest.approx([1 / 3] * 3)
    better = rule.learn(six(state, round=4, **{**facts, "accuracy": [0.6, 0.9, 0.4, NAN, NAN, 0.8]}))
    assert better["probability"] == pytest.approx([1 / 3] * 3)
    same = rule.learn(six(state, round=4, **facts))
    assert same["probability"] == pytest.approx([2 / 6, 1 / 6, 3 / 6])  # the tier that was never asked: the worst
    static = TiFL(count=2, tiers=3, interval=2, probabilities=(1, 1, 2)).learn(six(state, round=4, **facts))
    assert static["probability"] == pytest.approx([1 / 3] * 3)


# --- power of choice ----------------------------------------------------------------------------------------------


def test_power_of_choice():
    """Of all four: who never delivered, then by loss. Of 2 candidates drawn by size 1 : 1 : 1 : 7 for one place."""
    known = known_of([1, 1, 1, 7], loss=[0.5, 2.0, NAN, 1.0])
    for count, expected in {1: [2], 2: [1, 2], 3: [1, 2, 3]}.items():
        assert PowerOfChoice(count=count, candidates=4).choose(FOUR, known, KEY).tolist() == expected
    one = frequencies(PowerOfChoice(count=1, candidates=1), known)
    assert one == pytest.approx([0.1, 0.1, 0.1, 0.7], abs=0.03)
    # device 2 wins with whomever it is drawn: first (1/10), or after 0, 1 (1/10 x 1/9 each) or 3 (7/10 x 1/3)
    two = frequencies(PowerOfChoice(count=1, candidates=2), known)
    assert two[2] == pytest.approx(0.1 + 2 * 0.1 / 9 + 0.7 / 3, abs=0.03)


# --- Amiri et al. -------------------------------------------------------------------------------------------------


def test_channel_and_norm():
    """Norms 0.05, 0.01, 0.10 and none; rates 1, 4, 2 and 3 Mbit/s."""
    known = known_of([1] * 4, norm=[0.05, 0.01, 0.1, NAN], up_bps=[1e6, 4e6, 2e6, 3e6])
    assert BestChannel(count=2).choose(FOUR, known, KEY).tolist() == [1, 3]
    assert BestChannel(count=2).choose(FOUR[:3], known, KEY).tolist() == [1, 2]
    assert BestNorm(count=2).choose(FOUR, known, KEY).tolist() == [2, 3]
    assert BestNorm(count=2).choose(FOUR[:3], known, KEY).tolist() == [0, 2]
    assert BestChannelNorm(count=1, candidates=2).choose(FOUR[:3], known, KEY).tolist() == [2]
    assert BestChannelNorm(count=1, candidates=3).choose(FOUR, known, KEY).tolist() == [3]


def test_norm_that_arrives():
    """1000 bytes are 8000 bits; in 1 ms 1, 4, 2 and 8 Mbit/s carry 1/8, 4/8, 2/8 and all of them.

    sqrt of that times the norms 0.8, 0.3, 0.6 and 0.2: 0.283, 0.212, 0.3, 0.2. In a second all arrives.
    """
    known = known_of([1] * 4, norm=[0.8, 0.3, 0.6, 0.2], up_bps=[1e6, 4e6, 2e6, 8e6])
    scores = [0.8 * sqrt(1 / 8), 0.3 * sqrt(1 / 2), 0.6 / 2, 0.2]
    for count in (1, 2, 3):
        expected = sorted(np.argsort(scores)[::-1][:count].tolist())
        assert BestNormByChannel(count=count, upload=1e-3).choose(FOUR, known, KEY).tolist() == expected
    assert BestNormByChannel(count=1, upload=1.0).choose(FOUR, known, KEY).tolist() == [0]


# --- turns --------------------------------------------------------------------------------------------------------


def test_round_robin_goes_round():
    """Seven devices, three a round, then with one away: whoever was longest without a turn, by id."""
    rule, last, turns, seen = RoundRobin(count=3), np.full(7, -1), np.zeros(7), []
    for round_ in range(5):
        chosen = rule.choose(np.arange(7), known_of([1] * 7, last_asked=last.tolist(), asked=turns.tolist()), KEY)
        last[chosen] = round_
        turns[chosen] += 1
        seen.append(chosen.tolist())
    assert seen == [[0, 1, 2], [3, 4, 5], [0, 1, 6], [2, 3, 4], [0, 5, 6]]
    away = known_of([1] * 7, last_asked=last.tolist(), asked=turns.tolist())
    assert rule.choose(np.array([0, 2, 4, 5, 6]), away, KEY).tolist() == [2, 4, 5]


def test_proportional_fairness():
    """Rates so far (1, 8), (2, 8) and now (3, 8): ratios 3 / 2 and 8 / 8, though the second is always faster."""
    rule = ProportionalFair(count=1)
    state = rule.start(known_of([1, 1]))
    for first_bps in (1.0, 2.0):
        state = rule.learn(known_of([1, 1], state, up_bps=[first_bps, 8.0]))
    assert state["sum_bps"].tolist() == [3.0, 16.0]
    assert rule.choose(np.arange(2), known_of([1, 1], state, up_bps=[3.0, 8.0]), KEY).tolist() == [0]
    assert rule.choose(np.arange(2), known_of([1, 1], state, up_bps=[1.0, 8.0]), KEY).tolist() == [1]


def test_proportional_fairness_without_any_change_is_chance():
    rule = ProportionalFair(count=1)
    state = rule.learn(known_of([1] * 4, rule.start(known_of([1] * 4)), up_bps=[0.1, 0.7, 3.0, inf]))
    assert frequencies(rule, known_of([1] * 4, state, up_bps=[0.1, 0.7, 3.0, inf]), 1000) == pytest.approx(
        [0.25] * 4, abs=0.05
    )


# --- norm sampling ------------------------------------------------------------------------------------------------


def test_probabilities_are_in_proportion_and_at_most_one():
    """(1, 2, 3, 4) for 2 places: 0.2, 0.4, 0.6, 0.8. With 1, 1, 8 the last is certain, the others share a place."""
    assert inclusion(np.array([1.0, 2, 3, 4]), 2) == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert inclusion(np.array([1.0, 1, 8]), 2) == pytest.approx([0.5, 0.5, 1])
    assert inclusion(np.array([1.0, 3, 30, 300]), 3) == pytest.approx([0.25, 0.75, 1, 1])
    assert inclusion(np.array([1.0, 5, 7]), 3) == pytest.approx([1, 1, 1])


def test_norm_sampling_draws_by_data_times_norm():
    """Samples (1, 2, 1, 1), norms 3, 1, 2 and the mean, 2, for the new one; a floor of half the mean adds 1 to each.

    1 x 4, 2 x 2, 1 x 3, 1 x 3 for 2 places: 8/14, 8/14, 6/14, 6/14. Updates count one by that.
    """
    known, rule = known_of([1, 2, 1, 1], norm=[3, 1, 2, NAN]), NormSampling(count=2, floor=0.5)
    by_hand = np.array([8, 8, 6, 6]) / 14
    assert rule.probabilities(FOUR, known) == pytest.approx(by_hand)
    assert rule.weights(FOUR, known) == pytest.approx(1 / by_hand)
    assert all(len(rule.choose(FOUR, known, KEY.at(draw))) == 2 for draw in range(200))
    assert frequencies(rule, known, 4000) == pytest.approx(by_hand, abs=0.03)


def test_the_weighted_sum_is_right_on_average():
    """The mean of the sum of x / p over draws is the sum of all x = 1, -2, 3, 4: Horvitz and Thompson."""
    known, rule = known_of([1, 2, 1, 1], norm=[3, 1, 2, NAN]), NormSampling(count=2, floor=0.5)
    x, weights = np.array([1.0, -2, 3, 4]), rule.weights(FOUR, known)
    sums = [float((x * weights)[rule.choose(FOUR, known, KEY.at(draw))].sum()) for draw in range(4000)]
    assert np.mean(sums) == pytest.approx(6.0, abs=5 * np.std(sums) / sqrt(4000))
    assert np.std(sums) > 0.5


def test_norm_sampling_without_any_norm_goes_by_data():
    rule = NormSampling(count=2)
    assert rule.probabilities(FOUR, known_of([1, 2, 3, 4])) == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert rule.probabilities(FOUR, known_of([1, 2, 3, 4], norm=[0, 0, 0, 0])) == pytest.approx([0.2, 0.4, 0.6, 0.8])


# --- batteries ----------------------------------------------------------------------------------------------------


def test_batteries_after_the_job():
    """(10 - 2) / 10, (90 - 20) / 100, (3 - 4) / 5, and 1 for mains: 0.8, 0.7, -0.2, 1."""
    known = known_of(
        [1] * 4, stored_j=[10, 90, 3, inf], capacity_j=[10, 100, 5, inf], expected=expected_of(joules=[2, 20, 4, 50])
    )
    assert left_after(known) == pytest.approx([0.8, 0.7, -0.2, 1.0])
    assert BatteryAware(count=2).choose(FOUR, known, KEY).tolist() == [0, 3]
    assert BatteryAware(count=4).choose(FOUR, known, KEY).tolist() == [0, 1, 3]
    assert BatteryAware(count=4, reserve=0.75).choose(FOUR, known, KEY).tolist() == [0, 3]
    assert BatteryAware(count=2).choose(FOUR[2:3], known, KEY).tolist() == [2]
