"""PruneFL against numbers on paper, moves of real training and PyTorch's gradients.

Source: Jiang et al. (2022); the settings and the time model of the FedDHAD comparison.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from edgesim.core.backend import Assignment
from edgesim.core.errors import ConfigError
from edgesim.core.task import Submodel
from edgesim.learning.submodel import masks
from edgesim.methods.prunefl import PruneFL, Seconds, chosen, dense_flops, seconds_of, worthwhile
from edgesim.runs.assembly import assemble
from tests.conftest import digits_scenario, frames
from tests.contracts.support import Spy, mixed_scenario, play, prepare, run
from tests.contracts.test_prices import measured_jobs
from tests.methods.hand_made import KEY, setting_of

EVERY_TWO = {"name": "prunefl", "interval": 2, "reconsidered": 0.5}
# The digits' CNN: weights, FLOPs a sample of forward and input gradient, and of the weight gradient, by arithmetic:
# 16 kernels of 9 on 8 x 8 images, 32 of 144 on 4 x 4 maps, and 10 outputs of 128 inputs.
WEIGHTS = {"conv1": 144, "conv2": 4608, "fc1": 1280}
USES = {"conv1": 64, "conv2": 16, "fc1": 1}
BIASES = 58
NOT_WEIGHT_GRADIENT = {"conv1": 2 * 144 * 64, "conv2": 2 * 2 * 4608 * 16, "fc1": 2 * 2 * 1280}
WEIGHT_GRADIENT = {"conv1": 2 * 144 * 64, "conv2": 2 * 4608 * 16, "fc1": 2 * 1280}


def t64(values):
    """Return a float64 tensor."""
    return torch.tensor(values, dtype=torch.float64)


# --- the choice -------------------------------------------------------------------------------------------------


def test_candidates_join_while_they_are_worth_it():
    """Protected weights have gain 2 in 2 s. Ratios 6, 2.4, 3.6, 0.4, 0.2: the first joins (5 / 2.5 = 2.0), the third
    (5.9 / 2.75 = 2.145455), the second (7.1 / 3.25 = 2.184615), and no more.
    """
    squares, seconds = t64([3, 1.2, 0.9, 0.2, 0.05]), t64([0.5, 0.5, 0.25, 0.5, 0.25])
    assert worthwhile(squares, seconds, 2.0, 2.0).tolist() == [True, True, True, False, False]
    ratios = [2 / 2, (2 + 3) / 2.5, (2 + 3 + 0.9) / 2.75, (2 + 3 + 0.9 + 1.2) / 3.25]
    assert ratios == pytest.approx([1, 2, 2.145455, 2.184615], abs=1e-6)
    # one that is worth as much as all that are there changes nothing, so it stays out; nobody to ask is fine
    assert worthwhile(t64([1.0]), t64([1.0]), 2.0, 2.0).tolist() == [False]
    assert worthwhile(t64([]), t64([]), 2.0, 2.0).tolist() == []


@pytest.mark.parametrize(("t", "share"), [(0, 0.3), (50, 0.298962), (500, 0.289781), (10000, 0.15)])
def test_fewer_are_reconsidered_as_rounds_go_by(t, share):
    assert PruneFL().share(t) == pytest.approx(share, abs=1e-6)


def test_whom_the_choice_is_about():
    """Of a's three active weights one may go, the smallest; index 3 is pruned and may come back; b keeps its two of
    three. Gain (4 + 1 + 1 + 1 + the bias's 3) over 2 + 2 x 1 + 2 x 2 s: 10 / 8. Candidates: a1 0.5, a3 9, b2 2.6 / 2.
    """
    params = {"a.weight": t64([[3, 0.1, -2, 0]]), "a.bias": t64([7.0]), "b.weight": t64([[1, 2, 0.5]])}
    squares = {"a.weight": t64([[4, 0.5, 1, 9]]), "a.bias": t64([3.0]), "b.weight": t64([[1, 1, 2.6]])}
    old = {"a.weight": torch.tensor([[True, True, True, False]])}
    found = chosen(params, old, squares, 0.4, Seconds(2.0, {"a": 1.0, "b": 2.0}))
    # a3 joins: 19 / 9; then b2's 1.3 and a1's 0.5 are less
    assert {name: mask.int().tolist() for name, mask in found.items()} == {
        "a.weight": [[1, 0, 1, 1]],
        "b.weight": [[1, 1, 0]],
    }
    slow = chosen(params, old, squares, 0.4, Seconds(12.0, {"a": 1.0, "b": 2.0}))
    # 10 / 18, then a3: 19 / 19, b2: 21.6 / 21; a1's 0.5 is less
    assert slow["b.weight"].tolist() == [[True, True, True]]
    assert slow["a.weight"].tolist() == [[True, False, True, True]]


def test_seconds_of_the_mean_device():
    """Six FLOPs a use and sample, 32 bits each way; without weights 58 biases and two latencies are left."""
    setting = assemble(mixed_scenario(method="prunefl", training={"local_epochs": 5})).setting
    setting = replace(setting, up_bps=np.full(6, 2e6), down_bps=np.full(6, 8e6), latency_s=np.full(6, 0.02))
    found = seconds_of(setting)
    speed = (1 + 50 + 2 * 40 + 2 * 50) / 6 * 1e6
    bits_s = 32 / 2e6 + 32 / 8e6
    expected = {layer: 6 * uses * 200 / speed + bits_s for layer, uses in USES.items()}
    assert found.per_weight == pytest.approx(expected)
    assert found.rest == pytest.approx(BIASES * bits_s + 0.04)


# --- the device -------------------------------------------------------------------------------------------------


def trained(simulation, task, device_state=None, global_model=None):
    """Return what device 2 sends and keeps after a task."""
    global_model = simulation.learner.weights() if global_model is None else global_model
    return simulation.parts.make_trainer("cpu").run(Assignment(0, 2, task, KEY, global_model, device_state))


def test_squares_of_a_round():
    """The sum of a round's gradients is what moved the model, over the learning rate; squared, by 2 x 40 samples."""
    simulation = prepare(mixed_scenario(method="prunefl", training={"local_epochs": 2, "lr": 0.1}))
    base, task = simulation.learner.weights(), simulation.learner.plan(simulation.session.view()).orders[0].task
    first = trained(simulation, task)
    for name, square in first.new_device_state["squares"].items():
        moved = (base["params"][name] - first.body["params"][name]) / 0.1
        assert torch.allclose(square, moved**2 * 80, atol=1e-3, rtol=1e-3), name
    second = trained(simulation, task, device_state=first.new_device_state)
    assert all(
        torch.equal(second.new_device_state["squares"][name], 2 * square)
        for name, square in first.new_device_state["squares"].items()
    )
    assert "squares" not in first.body


def test_squares_are_sent_and_forgotten():
    """Before a choice the device sends its total and starts again from nothing."""
    simulation = prepare(mixed_scenario(method={**EVERY_TWO, "interval": 1}))
    task = simulation.learner.plan(simulation.session.view()).orders[0].task
    ones = {"squares": {n: torch.ones_like(t) for n, t in simulation.learner.weights()["params"].items()}}
    alone, after = trained(simulation, task), trained(simulation, task, device_state=ones)
    assert alone.new_device_state == after.new_device_state == {}
    assert all(torch.equal(after.body["squares"][n], square + 1) for n, square in alone.body["squares"].items())


def test_gradients_outside_the_mask():
    """One step on all 40 samples, under a mask of half the weights: squares are those of PyTorch's gradient there too,
    and the model stays zero.
    """
    simulation = prepare(mixed_scenario(method="prunefl", training={"batch": 40}))
    base, task = simulation.learner.weights(), simulation.learner.plan(simulation.session.view()).orders[0].task
    mask = masks.by_magnitude(base["params"], {f"{layer}.weight": count // 2 for layer, count in WEIGHTS.items()})
    sparse = masks.with_masks(masks.applied(base, mask), mask)
    result = trained(simulation, task, global_model=sparse)
    trainer = simulation.parts.make_trainer("cpu")
    x, y = trainer.data.batch("train", trainer.shards[2])
    leaves = {n: t.clone().requires_grad_() for n, t in sparse["params"].items()}
    F.cross_entropy(torch.func.functional_call(trainer.module, leaves, (x,)), y).backward()
    for name, square in result.new_device_state["squares"].items():
        assert torch.allclose(square, 40 * leaves[name].grad ** 2, rtol=1e-3, atol=1e-6), name
    for name, held in mask.items():
        assert float(result.new_device_state["squares"][name][~held].max()) > 0
        assert float(result.body["params"][name][~held].abs().max()) == 0


def test_a_diverged_device_keeps_what_it_had():
    simulation = prepare(mixed_scenario(method="prunefl", training={"lr": 1e30}))
    task = simulation.learner.plan(simulation.session.view()).orders[0].task
    assert trained(simulation, task).new_device_state is None


# --- runs -------------------------------------------------------------------------------------------------------


def test_density_falls_and_models_are_zero_outside_their_masks():
    """Whole until the first choice after round 2, then sparser; every model and message is zero outside the mask, and
    the counts that price it are its. Links are slow, so that weights cost time.
    """
    slow = {"name": "fixed", "up": "0.1 Mbit/s", "down": "0.1 Mbit/s"}
    simulation = prepare(digits_scenario(method=EVERY_TWO, network=slow, stop={"rounds": 5}))
    spy = simulation.learner.method = Spy(simulation.learner.method)
    simulation.run()
    metrics = frames(simulation)["metrics"].query("name == 'density'")["value"].tolist()
    assert metrics[0] == 1 > metrics[1] == metrics[2] > metrics[3] == metrics[4]
    assert metrics[1] >= 0.5
    for _, base, got, view, *_ in spy.rounds:
        held = masks.masks_in(base)
        assert bool(held) == (view.round >= 2)
        for model_state in [base, *(m.body for m in got)]:
            assert all(float(model_state["params"][n][~mask].abs().sum()) == 0 for n, mask in held.items())
        assert all(dict(m.task.submodel.nnz) == dict(masks.nonzeros(masks.counts_of(held))) for m in got)
        assert all(("squares" in m.body) == (view.round % 2 == 1) for m in got)
    # squares are kept by who trained after it last sent them: always in round 5, whose number is odd
    latest = {m.device: view.round for _, _, got, view, _ in spy.rounds for m in got}
    keeping = {device for device, own in simulation.learner.memory.items() if own}
    assert keeping == {device for device, round_ in latest.items() if round_ % 2 == 0}


def test_a_late_report_waits_for_the_next_choice():
    """Device 0 is asked in every other round. Its report of the third arrives in the fourth, which chooses no mask."""
    scenario = mixed_scenario(
        method={**EVERY_TWO, "interval": 3},
        protocol={"name": "deadline", "deadline": "0.6 s", "late": "keep"},
        network={"name": "fixed", "up": "8 Mbit/s", "down": "8 Mbit/s"},
        fleet=[{"cpu": {"flops_per_s": "25 MFLOP/s"}}, {"count": 3, "cpu": {"flops_per_s": "50 MFLOP/s"}}],
        stop={"rounds": 6},
    )
    simulation = prepare(scenario)
    spy = simulation.learner.method = Spy(simulation.learner.method)
    simulation.run()
    reports = [{m.device: m.body["squares"] for m in got if "squares" in m.body} for _, _, got, *_ in spy.rounds]
    assert [sorted(report) for report in reports] == [[], [], [1, 2, 3], [0], [], [1, 2, 3]]
    density = frames(simulation)["metrics"].query("name == 'density'")["value"].tolist()
    assert density[0] == density[1] == 1 > density[2] == density[3] == density[4] > density[5]
    waiting = [merge[0]["squares"] for merge in spy.rounds]
    assert [bool(squares) for squares in waiting] == [False, False, False, False, True, True]
    assert all(torch.equal(waiting[5][n], square.double()) for n, square in reports[3][0].items())
    assert simulation.learner.state["squares"] == {}


def test_what_comes_back_starts_from_zero():
    """A pruned weight whose squares are by far the largest joins, and its value is zero until it is trained."""
    simulation = prepare(mixed_scenario(method={**EVERY_TWO, "interval": 1}))
    play(simulation)
    learner, before = simulation.learner, simulation.learner.weights()
    spy = learner.method = Spy(learner.method)
    play(simulation)
    state, base, got, server, key = spy.rounds[-1]
    place = tuple((~masks.masks_in(before)["fc1.weight"]).nonzero()[0].tolist())
    for m in got:
        m.body["squares"]["fc1.weight"][place] = 1e6
    after = spy.method.aggregate(state, base, got, server, key)
    assert masks.masks_in(after.model)["fc1.weight"][place]
    assert float(after.model["params"]["fc1.weight"][place]) == 0
    assert after.state["nonzero"] == dict(masks.nonzeros(masks.counts_of(masks.masks_in(after.model))))


def test_dense_weight_gradients_have_their_price():
    """Under a mask ideal hardware saves on forward and on input gradients, not on weight gradients."""
    submodel = Submodel(nnz=tuple((layer, count // 4) for layer, count in WEIGHTS.items()))
    saved = sum(WEIGHT_GRADIENT.values()) * 0.75 * 40
    for cost, sparse, expected in (("measured", "ideal", saved), ("measured", "dense", 0), ("x3", "ideal", saved)):
        setting = assemble(mixed_scenario(cost={"name": cost, "sparse": sparse})).setting
        assert dense_flops(setting, submodel, np.array([2, 3])).tolist() == pytest.approx([expected] * 2)
        assert dense_flops(setting, Submodel(), np.array([2, 3])).tolist() == [0, 0]


def test_what_is_charged():
    """FLOPs and bytes of the jobs before and after the first choice: squares travel whole, bitmaps where a mask is new,
    values that the mask keeps.
    """
    scenario = mixed_scenario(
        method=EVERY_TWO,
        cost={"name": "measured", "sparse": "ideal"},
        encoding={"up": {"zeros": "bitmap"}, "down": {"zeros": "bitmap"}},
        stop={"rounds": 4},
    )
    simulation = prepare(scenario)
    spy = simulation.learner.method = Spy(simulation.learner.method)
    simulation.run()
    jobs = frames(simulation)["jobs"]
    whole, bitmap = 4 * (sum(WEIGHTS.values()) + BIASES), math.ceil(sum(WEIGHTS.values()) / 8)
    for round_, merge in enumerate(spy.rounds):
        nonzero = merge[0]["nonzero"] or WEIGHTS
        values, found = 4 * (sum(nonzero.values()) + BIASES), jobs[jobs["round"] == round_]
        assert set(found["up_bytes"]) == {values + whole * (round_ % 2 == 1)}
        assert set(found["down_bytes"]) == {values + bitmap * (round_ == 2)}
        flops = sum(
            NOT_WEIGHT_GRADIENT[layer] * nonzero[layer] / WEIGHTS[layer] + WEIGHT_GRADIENT[layer] for layer in WEIGHTS
        )
        assert found["flops"].tolist() == pytest.approx([40 * flops] * 6)
    assert sum(nonzero.values()) < sum(WEIGHTS.values())


def test_bitmaps_may_always_travel():
    """Devices that were not there when a mask was new need it too: in round 4 it is a round old, and still sent."""
    encoding = {"up": {"zeros": "bitmap"}, "down": {"zeros": "bitmap"}}
    scenario = mixed_scenario(method={**EVERY_TWO, "bitmap": "always"}, encoding=encoding, stop={"rounds": 4})
    simulation = prepare(scenario)
    spy = simulation.learner.method = Spy(simulation.learner.method)
    simulation.run()
    jobs, nonzero = frames(simulation)["jobs"], spy.rounds[3][0]["nonzero"]
    values, bitmap = 4 * (sum(nonzero.values()) + BIASES), math.ceil(sum(WEIGHTS.values()) / 8)
    assert set(jobs[jobs["round"] == 3]["down_bytes"]) == {values + bitmap}


def test_charged_is_what_was_done(monkeypatch):
    """On today's hardware, before and after a choice, by PyTorch's counter; squares count as a model's bytes."""
    jobs = measured_jobs(mixed_scenario(method={**EVERY_TWO, "interval": 1}), monkeypatch)
    assert (jobs["flops"] == jobs["real_flops"]).all()
    assert (jobs["up_bytes"] == jobs["real_bytes"]).all()
    assert set(jobs["real_bytes"]) == {2 * 4 * (sum(WEIGHTS.values()) + BIASES)}


def test_the_fastest_device_prunes_first():
    """In the first two rounds device 1 trains alone, and the mask is chosen after both."""
    simulation = run(mixed_scenario(method={**EVERY_TWO, "interval": 9, "initial_rounds": 2}, stop={"rounds": 3}))
    jobs, metrics = frames(simulation)["jobs"], frames(simulation)["metrics"]
    assert Counter(jobs["round"]) == {0: 1, 1: 1, 2: 6}
    assert jobs[jobs["round"] < 2]["device"].tolist() == [1, 1]
    density = metrics.query("name == 'density'")["value"].tolist()
    assert 1 > density[0] > density[1] == density[2]


@pytest.mark.parametrize("wrong", [{"interval": 0}, {"reconsidered": 1.0}, {"half_life": 0}, {"initial_rounds": -1}])
def test_settings_out_of_range(wrong):
    (key,) = wrong
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        digits_scenario(method={"name": "prunefl", **wrong})


def test_a_model_without_weights():
    with pytest.raises(ConfigError, match=r"model\.name: by hand has no tensor of two dimensions or more to prune"):
        PruneFL().init(setting_of((1,), {"w": 1}), KEY)


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "prunefl": {
        "interval": "test_density_falls_and_models_are_zero_outside_their_masks",
        "reconsidered": "test_whom_the_choice_is_about",
        "half_life": "test_fewer_are_reconsidered_as_rounds_go_by",
        "initial_rounds": "test_the_fastest_device_prunes_first",
        "bitmap": "test_bitmaps_may_always_travel",
    },
}
