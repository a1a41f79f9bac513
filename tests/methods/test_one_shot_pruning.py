"""One-shot pruning against a loop over devices in plain PyTorch, and its prices on paper.

Source: Han et al. (2015); Blalock et al. (2020), "layerwise magnitude".
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from edgesim.core.errors import ConfigError
from edgesim.learning.submodel import masks
from edgesim.methods.one_shot_pruning import OneShotPruning
from tests.conftest import digits_scenario, frames, simulate_null
from tests.contracts.support import Spy, arrived_at, fingerprint, merge_arguments, mixed_scenario, prepare, run
from tests.contracts.test_methods import different
from tests.contracts.test_prices import measured_jobs
from tests.methods.hand_made import KEY, setting_of
from tests.methods.recorded import close_to, record
from tests.sizes import thinned

# The digits' CNN: weights, and FLOPs of a training step a sample, forward, weight and input gradient by arithmetic:
# 16 kernels of 9 on 8 x 8 images, 32 of 144 on 4 x 4 maps, and 10 outputs of 128 inputs.
WEIGHTS = {"conv1": 144, "conv2": 4608, "fc1": 1280}
STEP = {"conv1": 2 * 2 * 144 * 64, "conv2": 3 * 2 * 4608 * 16, "fc1": 3 * 2 * 1280}
BIASES = 58
QUARTER = {"name": "one_shot_pruning", "keep": 0.25}


def largest(weight, count):
    """Return where the largest weights of a tensor are, by a plain sort."""
    flat = weight.abs().flatten()
    mask = torch.zeros(len(flat), dtype=torch.bool)
    mask[flat.argsort(descending=True, stable=True)[:count]] = True
    return mask.view(weight.shape)


def trained(job, start, mask):
    """Return the parameters that a device ends with, by a plain loop; the weights outside the mask stay zero."""
    network = job.network({"params": start})
    for x, y in job.batches():
        network.zero_grad()
        F.cross_entropy(network(x), y).backward()
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                parameter -= 0.1 * parameter.grad * mask.get(name, 1)
    return {name: parameter.detach() for name, parameter in network.named_parameters()}


@pytest.mark.parametrize("warm_up", thinned([0, 1], [1]))
def test_three_rounds_by_hand(warm_up, monkeypatch):
    """Whole rounds, a pruning of the mean, or of the first model, and rounds under the mask that it left."""
    seen = record(monkeypatch)
    scenario = mixed_scenario(
        method={**QUARTER, "warm_up_rounds": warm_up},
        partition={"name": "dirichlet_label", "beta": 1},
        stop={"rounds": 3},
    )
    simulation = prepare(scenario)
    w, mask = simulation.learner.weights()["params"], {}
    simulation.run()
    by_round = [seen[place : place + 6] for place in (0, 6, 12)]
    for round_, jobs in enumerate(by_round):
        if round_ == warm_up:
            mask = {f"{layer}.weight": largest(w[f"{layer}.weight"], count // 4) for layer, count in WEIGHTS.items()}
            w = {name: tensor * mask.get(name, 1) for name, tensor in w.items()}
        sizes = [len(job.trainer.shards[job.assignment.device]) for job in jobs]
        models = [trained(job, w, mask) for job in jobs]
        for job, model in zip(jobs, models, strict=True):
            close_to(job.result.body["params"], model)
        w = {n: sum(k * m[n] for k, m in zip(sizes, models, strict=True)) / sum(sizes) for n in w}
    close_to(simulation.learner.weights()["params"], w)
    density = frames(simulation)["metrics"].query("name == 'density'")["value"].tolist()
    assert density == [1.0] * max(0, warm_up - 1) + [0.25] * (3 - max(0, warm_up - 1))


@pytest.mark.parametrize("warm_up", [0, 1, 2])
def test_all_of_the_weights_are_fedavg(warm_up):
    """At a share of 1, whenever it prunes: the same bits."""
    scenario = {"partition": {"name": "dirichlet_label", "beta": 1}, "training": {"lr": 0.1, "momentum": 0.5}}
    method = {**QUARTER, "keep": 1, "warm_up_rounds": warm_up}
    plain, whole = (run(mixed_scenario(method=m, **scenario)).learner.weights() for m in ("fedavg", method))
    assert fingerprint(masks.without_masks(whole)) == fingerprint(dict(plain))


def test_work_and_bytes():
    """Two rounds of the whole model, then a quarter: 36, 1152 and 320 weights. Hardware that skips zeros computes a
    quarter; a new mask comes down once as a bit a weight, and nobody sends it back.
    """
    zeros = {"up": {"zeros": "bitmap"}, "down": {"zeros": "bitmap"}}
    scenario = {"cost": {"name": "measured", "sparse": "ideal"}, "encoding": zeros, "backend": "null"}
    jobs = {
        bitmap: frames(
            simulate_null(
                mixed_scenario(
                    method={**QUARTER, "warm_up_rounds": 2, "bitmap": bitmap}, stop={"rounds": 4}, **scenario
                )
            )
        )["jobs"].query("device == 3")
        for bitmap in ("changed", "always")
    }
    whole, kept, mask = 4 * (6032 + BIASES), 4 * (1508 + BIASES), math.ceil(6032 / 8)
    assert jobs["changed"]["up_bytes"].tolist() == [whole, whole, kept, kept]
    assert jobs["changed"]["down_bytes"].tolist() == [whole, whole, kept + mask, kept]
    assert jobs["always"]["down_bytes"].tolist() == [whole, whole, kept + mask, kept + mask]
    flops = 40 * sum(STEP.values())
    assert jobs["changed"]["flops"].tolist() == [flops, flops, flops / 4, flops / 4]


def test_bytes_of_a_mask_of_the_first_model():
    """Everybody can draw the first model and prune it, so its mask never travels."""
    zeros = {"up": {"zeros": "bitmap"}, "down": {"zeros": "bitmap"}}
    method = {**QUARTER, "warm_up_rounds": 0, "bitmap": "always"}
    jobs = frames(simulate_null(mixed_scenario(method=method, encoding=zeros, backend="null")))["jobs"]
    assert set(jobs["down_bytes"]) == set(jobs["up_bytes"]) == {4 * (1508 + BIASES)}


def test_charged_is_what_was_done(monkeypatch):
    """On hardware that multiplies zeros like any number, by PyTorch's counter, in a whole and a sparse round."""
    jobs = measured_jobs(mixed_scenario(method={**QUARTER, "warm_up_rounds": 1}), monkeypatch)
    assert (jobs["flops"] == jobs["real_flops"]).all()
    assert (jobs["up_bytes"] == jobs["real_bytes"]).all()


def test_sparser_where_there_is_more():
    """ERK at a density of 0.5 for two layers of 4 x 4 and 4 x 12 weights: sums over products 1/2 and 1/3, so 8 f / 16
    and 16 f / 48 with 8 f + 16 f = 32: f = 4/3, shares 2/3 and 4/9, of which 10 and 21 whole weights.
    """
    counts = masks.kept_counts(
        {"a": (4, 4), "b": (4, 12)}, masks.densities({"a": (4, 4), "b": (4, 12)}, 1 - 0.5, "erk")
    )
    assert counts == {"a": 10, "b": 21}
    scenario = digits_scenario(method={**QUARTER, "keep": 0.5, "allocation": "erk", "warm_up_rounds": 0})
    kept = prepare(scenario).learner.state["kept"]
    # sums over products 23 / 144, 54 / 4608 and 138 / 1280: the first layer and the last would have more than all
    assert kept["conv1.weight"] == 144
    assert kept["fc1.weight"] == 1280
    assert kept["conv2.weight"] == 3016 - 144 - 1280


def test_messages_and_models_are_zero_outside_the_mask():
    """Also in the round after, and where a device's whole model arrives late."""
    simulation = prepare(mixed_scenario(method={**QUARTER, "warm_up_rounds": 1}, stop={"rounds": 4}))
    spy = simulation.learner.method = Spy(simulation.learner.method)
    simulation.run()
    (_, whole, _, _, _), *rest = spy.rounds
    assert masks.masks_in(whole) == {}
    first = masks.masks_in(rest[0][1])
    for state, old, got, server, key in rest:
        assert fingerprint(masks.masks_in(old)) == fingerprint(first)
        for model in (old, *(update.body for update in got)):
            assert all(float(model["params"][name][~mask].abs().sum()) == 0 for name, mask in first.items())
        late = [got[0]._replace(body=whole), *got[1:]]
        merged = spy.method.aggregate(state, old, late, server, key).model
        assert all(float(merged["params"][name][~mask].abs().sum()) == 0 for name, mask in first.items())


def test_the_old_model_is_pruned_if_nothing_arrives():
    """Its largest weights stay. Without warm-up devices prune the first model themselves, and there is no new one."""
    simulation = prepare(mixed_scenario(method={**QUARTER, "warm_up_rounds": 1}))
    state, base, _, server, key = merge_arguments(simulation)
    merged = simulation.learner.method.aggregate(state, base, [], server, key)
    for name, mask in masks.masks_in(merged.model).items():
        assert torch.equal(mask, largest(base["params"][name], mask.numel() // 4))
        assert torch.equal(merged.model["params"][name], base["params"][name] * mask)
    prepared = prepare(mixed_scenario(method={**QUARTER, "warm_up_rounds": 0}))
    state, base, _, server, key = merge_arguments(prepared)
    assert prepared.learner.method.aggregate(state, base, [], server, key).model is None


def test_equal_sparse_models_are_that_model():
    """If all devices arrive at one model under the mask, every bit of the new one is its."""
    simulation = prepare(mixed_scenario(method={**QUARTER, "warm_up_rounds": 0}))
    state, base, got, server, key = merge_arguments(simulation)
    mask = masks.by_magnitude(base["params"], state["kept"])
    common = masks.applied(different(base), mask)
    merged = simulation.learner.method.aggregate(state, base, arrived_at(simulation, got, base, common), server, key)
    assert fingerprint(masks.without_masks(merged.model)) == fingerprint(common)
    assert fingerprint(masks.masks_in(merged.model)) == fingerprint(mask)


@pytest.mark.parametrize(
    ("wrong", "key"), [({"keep": 0}, "keep"), ({"keep": 1.5}, "keep"), ({"warm_up_rounds": -1}, "warm_up_rounds")]
)
def test_settings_out_of_range(wrong, key):
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        digits_scenario(method={**QUARTER, **wrong})


def test_a_model_without_weights():
    with pytest.raises(ConfigError, match=r"model\.name: by hand has no tensor of two dimensions or more"):
        OneShotPruning().init(setting_of((1,), {"w": 1}), KEY)


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "one_shot_pruning": {
        "aggregate_over": "test_fedavg.py::test_absent_devices_may_count_with_the_old_model",
        "weights": "test_fedavg.py::test_devices_may_count_alike",
        "keep": "test_all_of_the_weights_are_fedavg",
        "warm_up_rounds": "test_three_rounds_by_hand",
        "allocation": "test_sparser_where_there_is_more",
        "bitmap": "test_work_and_bytes",
    },
}
