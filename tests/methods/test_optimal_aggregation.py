"""Optimal Aggregation against numbers on paper and against the paper's own form, gradient by gradient.

Source: H. Wu, PhD thesis, York University (2023), chapter 4, algorithm 2; the FedPNS paper, algorithm 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgesim.core.errors import ConfigError
from edgesim.core.method import Needs, ServerSet
from edgesim.core.rng import Key
from edgesim.methods.fedadp import FedAdp
from edgesim.methods.fedavg import FedAvg
from edgesim.methods.optimal_aggregation import OptimalAggregation
from edgesim.methods.weighting.optimal import DropsAdverse, gram_of_moves, sift, values_without
from tests.conftest import digits_scenario, frames
from tests.contracts.support import MODELS, merge_arguments, mixed_scenario, prepare, run
from tests.methods.hand_made import KEY, message_of, model_of, server_of, setting_of, view_of
from tests.sizes import examples, full, grows, sized

# Gradients g = -move / lr of five devices; the fourth pulls the other way. lr = 1.
PULLING = np.array([[1, 0.2], [0.8, 0.4], [1.2, 0], [-0.9, 0.5], [0.9, -0.3]])
ALIKE = np.array([[1, 0.1], [1, -0.1], [1.1, 0], [0.9, 0]])
START = np.array([1.0, 1.0])


class Valley:
    """Stands for the server's samples: the loss is half the squared distance to a point. Remembers what was asked."""

    def __init__(self, target=(0.0, 0.0), samples=2000):
        self.target = np.array(target)
        self.rows = torch.arange(samples)
        self.asked = []

    def loss(self, model, places=None):
        """Return the loss of a model."""
        w = model["params"]["w.weight"].double().numpy()
        self.asked.append((w.tolist(), None if places is None else places.tolist()))
        return 0.5 * float(((w - self.target) ** 2).sum())


def merge(method, moves, tools=None, samples=None, start=START, reverse=False):
    """Return what a method makes of moves from `start`, by device in this order or the reverse, and the new w."""
    samples = samples or [1] * len(moves)
    got = [message_of(k, samples[k], {"w": (start + move).tolist()}) for k, move in enumerate(moves)]
    setting = setting_of(samples, {"w": len(start)})
    base = model_of({"w": start.tolist()})
    merged = method.aggregate(
        method.init(setting, KEY), base, got[:: -1 if reverse else 1], server_of(view_of(setting), tools), KEY
    )
    return merged, None if merged.model is None else merged.model["params"]["w.weight"].double().numpy()


def flagged(merged, name):
    """Return the devices that a note flags."""
    return {device for device, flag in merged.metrics[name].items() if flag}


def value_of(g, sizes, mode):
    """Return the paper's expectation of <mean, g_k> over a set, or the released code's sum instead of the mean."""
    mean = sum(d * each for d, each in zip(sizes, g, strict=True)) / sum(sizes)
    inner = [float(mean @ each) for each in g]
    expected = sum(d * x for d, x in zip(sizes, inner, strict=True)) / sum(sizes)
    return len(g) * expected if mode == "sum" else expected


def by_the_paper(g, sizes, fewest, mode, loss):
    """Return who is kept and who labelled, every set looked at anew."""
    kept, labelled = list(range(len(g))), []
    highest = value_of(g, sizes, mode)
    while len(kept) > fewest:
        sets = [[i for i in kept if i != k] for k in kept]
        values = [value_of([g[i] for i in rest], [sizes[i] for i in rest], mode) for rest in sets]
        place = values.index(max(values))
        if values[place] <= highest:
            break
        labelled.append(kept[place])
        if loss(kept) < loss(sets[place]):
            break
        kept, highest = sets[place], values[place]
    return kept, labelled


# --- numbers on paper -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("g", "mode", "target", "labelled", "excluded", "w"),
    [
        (PULLING, "sum", (0, 0.8), {3}, {3}, (0.025, 0.925)),
        (PULLING, "mean", (0, 0.8), {3, 1}, {3}, (0.025, 0.925)),
        (PULLING, "sum", (1.3, 0.8), {3}, set(), (0.4, 0.84)),
        (ALIKE, "sum", (0, 0), set(), set(), (0, 1)),
    ],
)
def test_who_is_labelled_and_who_is_dropped(g, mode, target, labelled, excluded, w):
    """Losses with and without device 3 are 0.0808 and 0.008125, or 0.4058 and 0.820625; without 1, 0.027778."""
    merged, model = merge(OptimalAggregation(mode=mode, min_keep=3 if len(g) == 5 else 2), -g, Valley(target))
    assert (flagged(merged, "labelled"), flagged(merged, "excluded")) == (labelled, excluded)
    assert flagged(merged, "selected") == set(range(len(g)))
    assert model == pytest.approx(w, abs=1e-6)


def test_the_losses_that_decide():
    """The model with everybody, then without device 3, both on the same samples."""
    tools = Valley((0, 0.8))
    merge(OptimalAggregation(min_keep=3), -PULLING, tools)
    (without, _), (with_all, _) = tools.asked
    assert (with_all, without) == (pytest.approx([0.4, 0.84]), pytest.approx([0.025, 0.925]))
    losses = [0.5 * ((w - tools.target) ** 2).sum() for w in (np.array(with_all), np.array(without))]
    assert losses == pytest.approx([0.0808, 0.008125], abs=1e-6)


@pytest.mark.parametrize(
    ("g", "mode", "values"),
    [
        (PULLING, "sum", [1.09, 1.25, 0.97, 3.825, 1.405]),
        (PULLING[[0, 1, 2, 4]], "sum", [2.806667, 3.206667, 2.46, 3.12]),
        (PULLING[[0, 1, 2, 4]], "mean", [0.935556, 1.068889, 0.82, 1.04]),
        (ALIKE, "mean", [1.001111, 1.001111, 0.934444, 1.067778]),
    ],
)
def test_values_without_each(g, mode, values):
    """As printed to six digits, and as the paper's expectation has them; all of the five: 1.928, or 0.3856."""
    ones = np.ones(len(g))
    rest = [np.delete(g, k, axis=0) for k in range(len(g))]
    assert [value_of(each, ones[1:], mode) for each in rest] == pytest.approx(values, abs=1e-6)
    assert values_without(g @ g.T, ones, mode) == pytest.approx(np.array(values), abs=1e-6)
    assert value_of(PULLING, np.ones(5), "sum") == pytest.approx(1.928)
    assert value_of(PULLING, np.ones(5), "mean") == pytest.approx(0.3856)


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(1, 6), st.sampled_from(["sum", "mean"]))
def test_inner_products_decide_as_the_paper_does(seed, n, dimensions, mode):
    """Random gradients about a common one, random sizes and losses: the same sets, in the same order."""
    generator = Key(seed).numpy()
    g = generator.normal(size=(n, dimensions)) + generator.normal(size=dimensions)
    sizes = generator.integers(1, 500, n).astype(float)
    drawn = {}

    def loss(of):
        return drawn.setdefault(tuple(of), generator.random())

    fewest = int(generator.integers(1, n + 1))
    assert sift(g @ g.T, sizes, fewest, mode, loss) == by_the_paper(g, sizes.tolist(), fewest, mode, loss)


# --- edges ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("move", [(0.3, -0.7), (0.0, 0.0)])
def test_equal_updates_are_not_adverse(mode, move):
    """Nobody is labelled, also if nobody moved: the losses are never asked for."""
    merged, w = merge(OptimalAggregation(mode=mode, min_keep=1), np.array([move] * 4))
    assert flagged(merged, "labelled") == flagged(merged, "excluded") == set()
    assert w == pytest.approx(START + move)


def test_only_the_mean_labels_among_updates_that_differ_a_little():
    """The mean without one of several always is as long as all's, or longer for one of them; its sum is not."""
    merged, _ = merge(OptimalAggregation(mode="mean", min_keep=2), -ALIKE, Valley((0.0, 1.0)))
    assert flagged(merged, "labelled") == {3}


def test_a_device_that_did_not_move_is_an_update_like_any_other():
    """Of (1, 0), (1, 0), (0, 0) the mean is longest without the third; the valley lies ahead, so it is dropped."""
    moves = np.array([[1.0, 0], [1, 0], [0, 0]])
    merged, w = merge(OptimalAggregation(min_keep=1), moves, Valley((9, 1)))
    assert flagged(merged, "excluded") == {2}
    assert w == pytest.approx(START + [1, 0])


@pytest.mark.parametrize(
    ("changes", "updates", "kept"),
    [
        ({}, 10, 7),
        ({"min_keep": 8}, 10, 8),
        ({"min_keep": 12}, 10, 10),
        ({"v": 0.5}, 10, 5),
        ({"v": 0.0}, 10, 1),
        ({"v": 1.0}, 10, 10),
        ({}, 3, 3),
        ({}, 1, 1),
    ],
)
def test_how_many_always_stay(changes, updates, kept):
    """Ever longer moves along a line: the mean is longest without the shortest; the valley lies far ahead of all.

    0.7 of 10 are 7, although 0.7 * 10 is a little more in binary.
    """
    moves = np.array([[2.0**k, 0.0] for k in range(updates)])
    merged, _ = merge(OptimalAggregation(mode="mean", **changes), moves, Valley((1e6, 1)))
    assert flagged(merged, "excluded") == flagged(merged, "labelled") == set(range(updates - kept))


def test_of_equally_adverse_updates_the_lowest_id_goes():
    """Whichever came first."""
    moves = np.array([[1.0, 0], [-1, 0], [1, 0], [-1, 0], [1, 0]])
    for reverse in (False, True):
        merged, _ = merge(OptimalAggregation(min_keep=4), moves, Valley((9, 1)), reverse=reverse)
        assert flagged(merged, "excluded") == {1}


@pytest.mark.parametrize(("losses", "excluded"), [([1.0, 1.0], {3}), ([float("nan"), 1.0], set())])
def test_losses_that_do_not_differ(losses, excluded, monkeypatch):
    """Equal losses drop; a loss without that is no number does not."""
    asked = iter(losses)
    monkeypatch.setattr(Valley, "loss", lambda self, model, places=None: next(asked))
    merged, _ = merge(OptimalAggregation(min_keep=3), -PULLING, Valley())
    assert flagged(merged, "excluded") == excluded
    assert flagged(merged, "labelled") == {3}


def test_nobody_came_and_diverged_devices():
    """No new model of nothing; a move that is not finite is neither looked at nor counted as selected."""
    merged, w = merge(OptimalAggregation(), np.zeros((0, 2)))
    assert (w, merged.server_flops) == (None, 0)
    broken = np.vstack([-PULLING, [np.nan, 0]])
    merged, w = merge(OptimalAggregation(min_keep=3), broken, Valley((0, 0.8)))
    assert flagged(merged, "selected") == {0, 1, 2, 3, 4}
    assert merged.metrics["left_out"] == 1
    assert w == pytest.approx([0.025, 0.925])


def test_means_go_by_data_size():
    """In the losses and in the end: 3 of 4 samples count three times."""
    moves, samples = np.array([[1.0, 0], [2, 0], [-1, 0]]), [300, 100, 100]
    tools = Valley((9, 1))
    merged, w = merge(OptimalAggregation(min_keep=2), moves, tools, samples)
    assert flagged(merged, "excluded") == {2}
    assert [asked for asked, _ in tools.asked] == [pytest.approx([2.25, 1]), pytest.approx([1.8, 1])]
    assert w == pytest.approx([2.25, 1])


def test_who_was_dropped_counts_as_absent():
    """If absent devices count with the old model, so does device 3: the mean of four moves and one zero."""
    merged, w = merge(OptimalAggregation(min_keep=3, aggregate_over="all"), -PULLING, Valley((0, 0.8)))
    assert flagged(merged, "excluded") == {3}
    assert w == pytest.approx(START - PULLING[[0, 1, 2, 4]].sum(axis=0) / 5)


def test_before_another_method():
    """FedAdp averages what is kept; a layer that a message lacks has not moved."""

    @dataclass(frozen=True, kw_only=True)
    class Both(DropsAdverse, FedAdp):
        needs: ClassVar[Needs] = Needs(feedback=True)

    merged, w = merge(Both(min_keep=3), -PULLING, Valley((0, 0.8)))
    alone, expected = merge(FedAdp(), -PULLING[[0, 1, 2, 4]])
    assert flagged(merged, "excluded") == {3}
    assert w.tolist() == expected.tolist()
    assert list(merged.metrics["weight"].values()) == list(alone.metrics["weight"].values())
    got = [message_of(0, 1, {"a": [1.0], "b": [2.0]}), message_of(1, 1, {"b": [3.0]})]
    assert gram_of_moves(model_of({"a": [0.0], "b": [0.0]}), got).tolist() == [[5, 6], [6, 9]]


# --- the server's samples ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, ServerSet(2000, at_most=True)),
        ({"check_samples": 50}, ServerSet(50, at_most=True)),
        ({"check_set": "reserved"}, ServerSet(2000, at_most=True, reserved=True)),
        ({"check_set": "random"}, ServerSet(2**63 - 1, at_most=True)),
    ],
)
def test_samples_of_the_server(changes, wanted):
    """The first test samples; if they are drawn anew each round, out of all."""
    assert OptimalAggregation(**changes).server_set == wanted


@pytest.mark.parametrize(("samples", "drawn"), [(None, 128), (500, 500), (3000, 2000)])
def test_samples_drawn_anew_each_round(samples, drawn):
    """128 unless said otherwise, at most all, the same for both losses; others in the next round."""
    method, seen = OptimalAggregation(min_keep=3, check_set="random", check_samples=samples), []
    setting, base = setting_of([1] * 5, {"w": 2}), model_of({"w": START.tolist()})
    got = [message_of(k, 1, {"w": (START - g).tolist()}) for k, g in enumerate(PULLING)]
    for round_ in (0, 1):
        tools = Valley((0, 0.8))
        method.aggregate({}, base, got, server_of(view_of(setting, round_), tools), KEY.at(round_))
        first, second = (places for _, places in tools.asked)
        assert first == second
        assert len(set(first)) == drawn
        seen.append(first)
    assert seen[0] != seen[1]


@pytest.mark.parametrize(("check_set", "share"), [("first", 1), ("random", 1), ("reserved", 0.5)])
def test_reserved_samples_are_not_evaluated_on(check_set, share):
    """Digits have fewer test samples than 2000: at most half of them are the server's alone."""
    simulation = run(mixed_scenario(method={"name": "optimal_aggregation", "check_set": check_set}, stop={"rounds": 1}))
    samples = len(simulation.parts.data.y_test)
    assert samples < 2000
    assert frames(simulation)["evals"]["samples"].tolist() == [math.ceil(samples * share)]


@pytest.mark.parametrize(
    "wrong",
    [{"mode": "median"}, {"v": 1.1}, {"v": -0.1}, {"min_keep": 0}, {"check_set": "train"}, {"check_samples": 0}],
)
def test_settings_out_of_range(wrong):
    """Each key is named."""
    (key,) = wrong
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        digits_scenario(method={"name": "optimal_aggregation", **wrong})


# --- runs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_updates_of_real_training(model):
    """The paper's form in NumPy, on all parameters in a row, with the losses of the tools, decides the same."""
    method = {"name": "optimal_aggregation", "mode": "mean", "v": 0.5}
    partition = {"name": "sigma_rho", "sigma": 0.5, "rho": 1, "samples_per_device": 40}
    simulation = prepare(mixed_scenario(method=method, model=model, partition=partition))
    state, base, got, server, key = merge_arguments(simulation)
    merged = simulation.learner.method.aggregate(state, base, got, server, key)

    def flat(model_state):
        return np.concatenate([t.double().numpy().ravel() for t in model_state["params"].values()])

    def loss(of):
        bodies = [got[i].body for i in of]
        mean = {
            kind: {n: torch.stack([b[kind][n].double() for b in bodies]).mean(0).to(t.dtype) for n, t in ts.items()}
            for kind, ts in base.items()
        }
        return server.tools.loss(mean)

    g = [flat(base) - flat(message.body) for message in got]
    kept, labelled = by_the_paper(g, [1.0] * 6, 3, "mean", loss)
    assert flagged(merged, "labelled") == set(labelled) != set()
    assert flagged(merged, "excluded") == set(range(6)) - set(kept)
    assert flat(merged.model) == pytest.approx(flat(base) - np.mean([g[i] for i in kept], axis=0), abs=1e-6)


@pytest.fixture(scope="module")
def mixed_runs():
    """Five of ten devices with all labels and five of ten with one label each a round, three times."""
    return [
        run(
            digits_scenario(
                seed=seed,
                method="optimal_aggregation",
                training={"batch": 8, "lr": 0.1},
                partition={"name": "sigma_rho", "sigma": 0.5, "rho": 1, "samples_per_device": 40},
                selection={"name": "stratified", "count": 10},
                fleet=[{"count": 10, "level": level, "cpu": {"flops_per_s": "50 MFLOP/s"}} for level in (1, 2)],
                server={"flops_per_s": "1 GFLOP/s"},
                stop={"rounds": 15},
            )
        )
        for seed in sized((1,), (1, 2, 3), (1, 2, 3))
    ]


@full
def test_devices_of_one_label_are_dropped(mixed_runs):
    """Those with all labels, 0 to 9, are labelled less and, where the loss decides, hardly dropped.

    Source: FedPNS paper, Figure 4.1, where none of them ever is.
    """
    metrics = pd.concat([frames(simulation)["metrics"] for simulation in mixed_runs])
    flags = metrics.assign(alike=metrics["device"] < 10).groupby(["name", "alike"])["value"]
    times = flags.sum().unstack()
    assert flags.size()["selected"].tolist() == [3 * 75] * 2
    assert times.loc["labelled", False] > 2 * times.loc["labelled", True]
    assert times.loc["excluded", False] > 5 * times.loc["excluded", True]
    assert times.loc["excluded", False] >= 5


@grows
@full
def test_the_server_s_work_takes_time(mixed_runs):
    """Averaging 10 models, 2 FLOPs a parameter each; 55 inner products; two losses on all test samples for a label."""
    simulation = mixed_runs[0]
    tables, parts = frames(simulation), simulation.parts
    parameters = sum(layer.params for layer in parts.setting.cost_profile.layers)
    labelled = tables["metrics"][tables["metrics"]["name"] == "labelled"].groupby("round")["value"].sum()
    checks = labelled * 2 * len(parts.data.y_test) * parts.setting.cost_profile.forward_flops()
    flops = 2 * 10 * parameters + 2 * parameters * 55 + checks
    assert tables["rounds"]["server_s"].tolist() == pytest.approx((flops / 1e9).tolist(), rel=1e-9)
    assert labelled.nunique() > 1


def test_without_looking_there_is_no_work():
    """As many as always stay: FedAvg, and nothing to charge."""
    merged, w = merge(OptimalAggregation(min_keep=5), -PULLING)
    plain, expected = merge(FedAvg(), -PULLING)
    assert (merged.server_flops, w.tolist()) == (plain.server_flops, expected.tolist()) == (0, expected.tolist())
    assert merge(OptimalAggregation(min_keep=3), -PULLING, Valley())[0].server_flops == 2 * 2 * 15


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "optimal_aggregation": {
        "aggregate_over": "test_who_was_dropped_counts_as_absent",
        "weights": "test_fedavg.py::test_devices_may_count_alike",
        "mode": "test_only_the_mean_labels_among_updates_that_differ_a_little",
        "v": "test_how_many_always_stay",
        "min_keep": "test_how_many_always_stay",
        "check_set": "test_samples_drawn_anew_each_round",
        "check_samples": "test_samples_of_the_server",
    },
}
