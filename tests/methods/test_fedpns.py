"""FedPNS against numbers on paper: who is drawn, and how probabilities move.

Source: H. Wu, P. Wang, the FedPNS paper (2022); H. Wu, PhD thesis, York University (2023), chapter 4, algorithm 3.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key
from edgesim.engine.selection.rules import Stratified
from edgesim.methods.fedpns import FedPNS, draw, lowered
from tests.conftest import digits_scenario, frames
from tests.contracts.support import fingerprint, run
from tests.methods.hand_made import KEY, message_of, model_of, server_of, setting_of, view_of
from tests.methods.test_optimal_aggregation import PULLING, START, Valley
from tests.sizes import examples, full, grows, sized

FIFTHS = [0.2] * 5


def after(probability, counts, **settings_):
    """Return probabilities after a round in which devices were labelled, by device (times labelled, times selected)."""
    method = FedPNS(**settings_)
    labelled = np.array(list(counts), dtype=np.int64)
    share = np.array([times / of for times, of in counts.values()])
    lost = np.minimum((share + method.beta) ** method.alpha, 1.0)
    return lowered(np.array(probability), labelled, lost).tolist()


class Server:
    """Five devices that pull as in the tests of Optimal Aggregation, by their number or by another's."""

    def __init__(self, state=None, **changes):
        self.method = FedPNS(**changes)
        self.setting = setting_of([1] * 5, {"w": 2})
        self.state = state or self.method.init(self.setting, KEY)

    def merge(self, pulls, target=(0, 0.8)):
        """Merge moves against these rows of PULLING, by device; return what is noted."""
        got = [message_of(k, 1, {"w": (START - PULLING[row]).tolist()}) for k, row in pulls.items()]
        base = model_of({"w": START.tolist()})
        view = view_of(self.setting)
        merged = self.method.aggregate(self.state, base, got, server_of(view, Valley(target)), KEY)
        self.state = merged.state
        return merged.metrics


EVERYBODY = {k: k for k in range(5)}

# --- probabilities ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "counts", "expected"),
    [
        (FIFTHS, {2: (1, 4)}, [0.245125, 0.245125, 0.0195, 0.245125, 0.245125]),
        ([0.245125, 0.245125, 0.0195, 0.245125, 0.245125], {1: (1, 10), 2: (2, 5)},
         [0.303918, 0.088245, 0, 0.303918, 0.303918]),
        (FIFTHS, {4: (1, 1)}, [0.25, 0.25, 0.25, 0.25, 0]),
        ([0.25, 0.25, 0.25, 0.25, 0], {0: (1, 5)}, [0.0475, 0.300625, 0.300625, 0.300625, 0.050625]),
        (FIFTHS, {}, FIFTHS),
        ([0.1, 0.2, 0.3, 0.4], {0: (1, 1), 1: (1, 1), 2: (1, 1), 3: (1, 1)}, [0.1, 0.2, 0.3, 0.4]),
    ],
)  # fmt: skip
def test_labelled_devices_give_to_all_others(before, counts, expected):
    """By hand from the formula, to six digits; if everybody is labelled there is nobody to give to."""
    found = after(before, counts)
    assert found == pytest.approx(expected, abs=1e-6)
    assert sum(found) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(
    ("changes", "counts", "lost"),
    [
        ({}, (1, 20), 0.5625),
        ({}, (1, 10), 0.64),
        ({}, (1, 5), 0.81),
        ({}, (1, 4), 0.9025),
        ({}, (3, 10), 1.0),
        ({"alpha": 1}, (1, 10), 0.8),
        ({"alpha": 3}, (1, 10), 0.512),
        ({"beta": 0.5}, (1, 10), 0.36),
        ({"beta": 0.8}, (1, 10), 0.81),
        ({"beta": 0.0}, (1, 10), 0.01),
    ],
)
def test_what_a_label_costs(changes, counts, lost):
    """The share (x + beta)^alpha, at most all: with the defaults from x = 0.3 on."""
    assert after(FIFTHS, {2: counts}, **changes)[2] == pytest.approx(0.2 * (1 - lost))


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 30))
def test_probabilities_stay_probabilities(seed, devices, rounds):
    """Whoever is labelled, and whatever that costs."""
    generator = Key(seed).numpy()
    probability = np.full(devices, 1 / devices)
    for _ in range(rounds):
        labelled = np.flatnonzero(generator.random(devices) < 0.4)
        probability = lowered(probability, labelled, generator.random(len(labelled)))
        assert probability.min() >= 0
        assert probability.sum() == pytest.approx(1, abs=1e-12)


def test_counts_are_of_updates_that_arrived_this_round_included():
    """Device 3 is labelled in the first of its two rounds and not in the second, where nobody pulls against others.

    First 1 of 1: all of its probability. Device 4 came once, and its share of what 3 lost stays.
    """
    server = Server(min_keep=3)
    first = server.state
    before = fingerprint(first)
    metrics = server.merge(EVERYBODY)
    assert server.state["selected"].tolist() == [1, 1, 1, 1, 1]
    assert server.state["labelled"].tolist() == [0, 0, 0, 1, 0]
    assert list(metrics["probability"].values()) == pytest.approx([0.25, 0.25, 0.25, 0, 0.25])
    assert fingerprint(first) == before
    metrics = server.merge({0: 0, 1: 1, 2: 2, 3: 0})
    assert server.state["selected"].tolist() == [2, 2, 2, 2, 1]
    assert server.state["labelled"].tolist() == [0, 0, 0, 1, 0]
    assert list(metrics["probability"].values()) == pytest.approx([0.25, 0.25, 0.25, 0, 0.25])
    server.merge({0: 0, 1: 1, 2: 2, 3: 3})
    assert server.state["labelled"].tolist() == [0, 0, 0, 2, 0]  # min_keep = 3 of 4, so it can be labelled
    assert server.state["selected"].tolist() == [3, 3, 3, 3, 1]


def test_a_label_counts_although_the_loss_check_kept_the_device():
    """The valley lies where device 3 pulls to."""
    metrics = Server(min_keep=3).merge(EVERYBODY, target=(1.3, 0.8))
    assert not any(metrics["excluded"].values())
    assert metrics["probability"][3] == 0.0


def test_nobody_came():
    """All that is known stays."""
    server = Server()
    before = fingerprint(server.state)
    server.merge({})
    assert fingerprint(server.state) == before


# --- the draw ---------------------------------------------------------------------------------------------------


def test_devices_are_drawn_by_probability():
    """Who comes first has its probability, who comes second the renormalised rest: of (0.5, 0.3, 0.2) the third is left
    out with probability 0.5 (0.3 / 0.5) + 0.3 (0.5 / 0.7).
    """
    probability, draws = np.array([0.5, 0.3, 0.2]), 4000
    left_out = sum(2 not in draw(probability, np.arange(3), 2, KEY.at(i)) for i in range(draws)) / draws
    expected = 0.5 * 0.3 / 0.5 + 0.3 * 0.5 / 0.7
    assert left_out == pytest.approx(expected, abs=4 * (expected * (1 - expected) / draws) ** 0.5)


def test_only_who_is_there_is_drawn():
    """The probabilities of the others do not count."""
    probability = np.array([0.7, 0.1, 0.1, 0.1])
    assert draw(probability, np.array([1, 3]), 2, KEY).tolist() == [1, 3]
    assert {draw(probability, np.array([1, 2, 3]), 1, KEY.at(i)).item() for i in range(50)} == {1, 2, 3}


def test_who_has_no_probability_fills_up():
    """Two have some and both are drawn, with any of the others; if there are enough, nobody else ever is."""
    probability = np.array([0, 0.5, 0, 0.5, 0, 0])
    drawn = [draw(probability, np.arange(6), 3, KEY.at(i)).tolist() for i in range(60)]
    assert all(ids == sorted(set(ids)) and {1, 3} < set(ids) for ids in drawn)
    assert {device for ids in drawn for device in ids} == set(range(6))
    assert {tuple(draw(probability, np.arange(6), 2, KEY.at(i)).tolist()) for i in range(20)} == {(1, 3)}


@pytest.mark.parametrize(("first_round", "by_level"), [("probabilities", False), ("selection", True)])
def test_the_first_round_may_be_the_selection_s(first_round, by_level):
    """A stratified selection: with any of 50 keys one device of each of two levels, if it is asked, but not later.

    By chance two of four devices are of different levels in 2 of 3 draws.
    """
    setting = setting_of([1] * 4, {"w": 2}, level=np.array([1, 1, 2, 2]))
    method = FedPNS(first_round=first_round)
    state, always = method.init(setting, KEY), []
    for round_ in (0, 1):
        view = dataclasses.replace(view_of(setting, round_), selection=Stratified(count=2))
        plans = [method.plan(state, view, KEY.at(i)) for i in range(50)]
        always.append(all(len({order.device // 2 for order in plan.orders}) == 2 for plan in plans))
    assert always == [by_level, False]


@pytest.mark.parametrize("wrong", [{"alpha": 0}, {"alpha": 1.5}, {"beta": 1.1}, {"first_round": "level"}, {"v": 2}])
def test_settings_out_of_range(wrong):
    """Each key is named."""
    (key,) = wrong
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        digits_scenario(method={"name": "fedpns", **wrong})


# --- a run ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mixed_runs():
    """Ten devices with all labels and ten of one label each, ten a round, three times."""
    return [
        run(
            digits_scenario(
                seed=seed,
                method="fedpns",
                training={"batch": 8, "lr": 0.1},
                partition={"name": "sigma_rho", "sigma": 0.5, "rho": 1, "samples_per_device": 40},
                selection={"name": "uniform", "count": 10},
                fleet=[{"count": 20, "cpu": {"flops_per_s": "50 MFLOP/s"}}],
                stop={"rounds": 20},
            )
        )
        for seed in sized((1,), (1, 2, 3), (1, 2, 3))
    ]


@full
def test_devices_of_one_label_are_asked_less(mixed_runs):
    """They lose their probability to the others, 0 to 9, and with it their places; at first both had half of each."""
    for simulation in mixed_runs:
        jobs = frames(simulation)["jobs"]
        assert jobs.groupby("round").size().tolist() == [10] * 20
        assert simulation.learner.state["probability"][:10].sum() > 0.6
        assert (jobs[jobs["round"] >= 5]["device"] < 10).mean() > 0.55


@full
@grows
def test_notes_tell_the_story(mixed_runs):
    """The counts of the state are sums of flags; probabilities of a round sum to 1."""
    for simulation in mixed_runs:
        metrics = frames(simulation)["metrics"].set_index("name")
        for name in ("selected", "labelled"):
            counts = metrics.loc[name].groupby("device")["value"].sum()
            assert counts.reindex(range(20), fill_value=0).tolist() == simulation.learner.state[name].tolist()
        sums = metrics.loc["probability"].groupby("round")["value"].agg(["sum", "size"])
        assert sums["sum"].tolist() == pytest.approx([1.0] * 20)
        assert set(sums["size"]) == {20}
        flags = {name: metrics.loc[name].set_index(["round", "device"])["value"] for name in ("labelled", "excluded")}
        assert (flags["excluded"] <= flags["labelled"]).all()
        assert 0 < flags["excluded"].sum() <= 20 * 3  # of 10, ceil(0.7 * 10) = 7 stay


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "fedpns": {
        "aggregate_over": "test_optimal_aggregation.py::test_who_was_dropped_counts_as_absent",
        "weights": "test_fedavg.py::test_devices_may_count_alike",
        "mode": "test_optimal_aggregation.py::test_only_the_mean_labels_among_updates_that_differ_a_little",
        "v": "test_optimal_aggregation.py::test_how_many_always_stay",
        "min_keep": "test_optimal_aggregation.py::test_how_many_always_stay",
        "check_set": "test_optimal_aggregation.py::test_samples_drawn_anew_each_round",
        "check_samples": "test_optimal_aggregation.py::test_samples_of_the_server",
        "alpha": "test_what_a_label_costs",
        "beta": "test_what_a_label_costs",
        "first_round": "test_the_first_round_may_be_the_selection_s",
    },
}
