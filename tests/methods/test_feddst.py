"""FedDST against numbers on paper, and its readjustment against PyTorch's gradients.

Source: Bibikar et al. (2022) and the settings of the FedDHAD and DA-DPFL papers.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from edgesim.core.backend import Assignment
from edgesim.core.errors import ConfigError
from edgesim.core.task import Task
from edgesim.core.update import Update
from edgesim.learning.submodel import masks
from edgesim.learning.train.context import Context
from edgesim.methods.feddst import FedDST, merged
from edgesim.runs.assembly import assemble
from tests.conftest import digits_scenario, frames, simulate_null
from tests.contracts.support import Spy, fingerprint, merge_arguments, mixed_scenario, prepare, run
from tests.contracts.test_prices import measured_jobs
from tests.methods.hand_made import KEY, server_of, setting_of, view_of
from tests.sizes import full

SPARSE = {"name": "feddst", "sparsity": 0.6, "alpha": 0.4, "interval": 2, "end_round": 6}
# The digits' CNN: weights, and FLOPs of a training step a sample, forward, weight and input gradient by arithmetic:
# 16 kernels of 9 on 8 x 8 images, 32 of 144 on 4 x 4 maps, and 10 outputs of 128 inputs.
WEIGHTS = {"conv1": 144, "conv2": 4608, "fc1": 1280}
BIASES = 58
STEP = {"conv1": 2 * 2 * 144 * 64, "conv2": 3 * 2 * 4608 * 16, "fc1": 3 * 2 * 1280}


def message(device, samples, values, bias=0.0):
    """Return a message of one matrix of one row and a bias."""
    body = {"params": {"w.weight": torch.tensor([values]), "w.bias": torch.tensor([bias])}, "buffers": {}}
    return Update(device, device, Task(), body, samples, 1, 0, {})


def merged_row(samples, rows, keep, **settings):
    """Return the weights of the model merged from these rows."""
    method = FedDST(**settings)
    got = [message(k, n, row) for k, (n, row) in enumerate(zip(samples, rows, strict=True))]
    state = {"kept": {"w.weight": keep}, "seed": 0}
    view = view_of(setting_of(samples, {"w": len(rows[0])}))
    after = method.aggregate(state, message(0, 1, [0.0] * len(rows[0])).body, got, server_of(view), KEY)
    return after.model["params"]["w.weight"][0].tolist()


def counts_of(simulation):
    """Return how many weights each tensor of the digits' CNN keeps."""
    return simulation.learner.state["kept"]


def density_of(model, counts):
    """Return the nonzero weights of a model."""
    return {name: int((model["params"][name] != 0).sum()) for name in counts}


# --- the server -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "rows", "mean", "model"),
    [
        ((100, 300), ([1.0, 0, 3, 0], [2.0, 4, 0, 0]), [1.75, 4, 3, 0], [0, 4, 3, 0]),
        ((10, 30), ([1.0, 0, 2, 0], [3.0, 4, 0, 0]), [2.5, 4, 2, 0], [2.5, 4, 0, 0]),
    ],
)
def test_mean_over_holders_then_the_largest(samples, rows, mean, model):
    """Index 0: (100 x 1 + 300 x 2) / 400; the others have one holder each; then two weights stay."""
    assert merged_row(samples, rows, keep=4) == mean
    assert merged_row(samples, rows, keep=2) == model


def test_weights_may_be_equal():
    """Then the first weight is (1 + 2) / 2."""
    assert merged_row((100, 300), ([1.0, 0, 3, 0], [2.0, 4, 0, 0]), keep=4, weights="equal") == [1.5, 4, 3, 0]


def test_biases_are_fedavgs():
    """They have no mask: zero counts."""
    got = [message(0, 100, [1.0], bias=0.0), message(1, 300, [1.0], bias=4.0)]
    assert merged(got, [100, 300], {"w.weight": 1})["params"]["w.bias"].tolist() == [3.0]


def test_equal_sparse_models_are_that_model():
    """From devices that all arrive at one model under the mask, every bit of the merged model is its; nobody moved,
    nothing changes.
    """
    simulation = run(mixed_scenario(method=SPARSE, stop={"rounds": 1}))
    model = simulation.learner.weights()
    state, _, got, server, key = merge_arguments(prepare(mixed_scenario(method=SPARSE)))
    got = [m._replace(body=model) for m in got]
    after = simulation.learner.method.aggregate(state, model, got, server, key)
    assert fingerprint(after.model) == fingerprint(model)
    assert after.metrics == {"regrown": 0.0}


# --- the device -------------------------------------------------------------------------------------------------


def device(method, plan_round=0):
    """Return what a device of the digits works with under a method's task, and the rule."""
    parts = assemble(mixed_scenario(method=method))
    trainer, state = parts.make_trainer("cpu"), parts.scenario.method.value.init(parts.setting, KEY)
    task = parts.scenario.method.value.plan(state, view_of(parts.setting, plan_round), KEY).orders[0].task
    base = {"params": {n: p.detach().clone() for n, p in trainer.module.named_parameters()}, "buffers": {}}
    job = Assignment(0, 0, task, KEY, base, None)
    context = Context(trainer.module, trainer.data, trainer.shards[0], job, trainer.cost_profile.drop_single)
    return parts.scenario.method.value.local(task), context, state["kept"]


def test_a_readjustment():
    """Of each layer's kept weights a share goes, the smallest, and as many come where the dense gradient of the batch,
    by PyTorch, is largest; these are zero, all others as before.
    """
    rule, context, counts = device({**SPARSE, "end_round": 4})
    share = 0.2 * (1 + math.cos(math.pi / 4))  # alpha / 2 (1 + cos(pi t / end)) at t = 1
    local = rule.on_start(context)
    w, after = local.weights, rule.phases[-1].on_enter(local, context)
    batch = masks.one_batch(context, 16)
    leaves = {n: t.clone().requires_grad_() for n, t in w["params"].items()}
    F.cross_entropy(torch.func.functional_call(context._module, leaves, (batch.x,)), batch.y).backward()
    for name, count in counts.items():
        old = context.global_model["params"][name].flatten().numpy()
        kept = np.argsort(-np.abs(old), kind="stable")[:count]
        dropped = math.ceil(share * count)
        stay = kept[: count - dropped]
        gradient = np.abs(leaves[name].grad.flatten().numpy())
        gradient[stay] = -1
        new = np.argsort(-gradient, kind="stable")[:dropped]
        assert set(np.flatnonzero(after.scratch.mask[name].flatten())) == {*stay, *new}
        expected = np.zeros_like(old)
        expected[stay] = old[stay]
        assert (after.weights["params"][name].flatten().numpy() == expected).all()


@pytest.mark.parametrize(("preset", "epochs"), [("feddhad", [3, 1]), ("dadpfl", [4])])
def test_when_it_readjusts(preset, epochs):
    """Before the last of four epochs, or before all of them."""
    parts = assemble(mixed_scenario(method={"name": "feddst", "preset": preset}, training={"local_epochs": 4}))
    method = parts.scenario.method.value
    state = method.init(parts.setting, KEY)
    task = method.plan(state, view_of(parts.setting), KEY).orders[0].task
    assert [sgd.epochs for sgd in task.local_sgd] == epochs
    phases = method.local(task).phases
    assert [phase.on_enter is not None for phase in phases] == [False] * (len(epochs) - 1) + [True]
    task = method.plan(state, view_of(parts.setting, round_=1), KEY).orders[0].task
    assert [sgd.epochs for sgd in task.local_sgd] == [4]
    assert [phase.on_enter for phase in method.local(task).phases] == [None]


@pytest.mark.parametrize(
    ("settings", "rounds"),
    [({}, {1, 16, 31, 46}), ({"interval": 20}, {1, 21, 41}), ({"end_round": 31}, {1, 16}), ({"alpha": 0.0}, set())],
)
def test_rounds_that_readjust(settings, rounds):
    """Every `interval` rounds from the first, before `end_round`."""
    method = FedDST(**settings)
    assert {t for t in range(60) if method._share(t) > 0} == rounds


def test_first_masks():
    """The largest weights of the first model, or random ones, the same on every device."""
    rule, context, counts = device(SPARSE)
    largest = rule.on_start(context).scratch.mask
    assert fingerprint(largest) == fingerprint(masks.by_magnitude(context.global_model["params"], counts))
    rule, context, _ = device({**SPARSE, "initial": "random"})
    drawn = [rule.on_start(context).scratch.mask for _ in range(2)]
    assert fingerprint(drawn[0]) == fingerprint(drawn[1]) != fingerprint(largest)
    assert masks.counts_of(drawn[0]) == counts
    got = merge_arguments(prepare(mixed_scenario(method={**SPARSE, "initial": "random", "alpha": 0})))[2]
    supports = {fingerprint(masks.support(m.body["params"])) for m in got}
    assert len(supports) == 1


def test_a_device_with_fewer_samples_than_a_batch(monkeypatch):
    """It readjusts with all it has, at that price; one with a single sample, on which batch normalisation cannot train,
    does nothing.
    """
    changes = {"partition": {"name": "iid", "samples_per_device": 5}, "training": {"batch": 16}}
    jobs = measured_jobs(mixed_scenario(method=SPARSE, **changes), monkeypatch)
    assert (jobs["flops"] == jobs["real_flops"]).all()
    monkeypatch.undo()
    changes["partition"]["samples_per_device"] = 1
    jobs = measured_jobs(mixed_scenario(method=SPARSE, model="tests.plugins.networks:TinyNorm", **changes), monkeypatch)
    assert set(jobs["real_flops"]) == set(jobs["flops"]) == {0}


# --- runs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"preset": "dadpfl", "interval": 1}])
def test_sparsity_is_constant_and_the_mask_moves(settings):
    """In every round every model and message is zero outside a mask of the same counts; where devices readjust, new
    weights come in, elsewhere none.
    """
    simulation = prepare(digits_scenario(method={**SPARSE, **settings}, stop={"rounds": 5}))
    spy = simulation.learner.method = Spy(simulation.learner.method)
    simulation.run()
    counts = counts_of(simulation)
    weights = sum(counts.values())
    assert sum(WEIGHTS.values()) * 0.4 == pytest.approx(weights, abs=3)
    for _, base, got, view, *_ in spy.rounds:
        for model_state in ([] if view.round == 0 else [base]) + [m.body for m in got]:
            assert all(
                0.98 * counts[n] <= nonzero <= counts[n] for n, nonzero in density_of(model_state, counts).items()
            )
    metrics = frames(simulation)["metrics"].query("name == 'regrown'")["value"].tolist()
    readjusts = [spy.method._share(t) > 0 for t in range(1, 6)]
    # to the first model, which is whole, nothing can come in
    assert [new > 0 for new in metrics[1:]] == readjusts[1:]
    assert metrics[0] == 0


def test_what_is_charged():
    """Ideal hardware pays for weights that are there, and for a batch of the whole model in rounds 1 and 3; encodings
    with a bitmap send it only where the mask is new.
    """
    scenario = digits_scenario(
        method=SPARSE,
        backend="null",
        partition={"name": "iid", "samples_per_device": 40},
        cost={"name": "measured", "sparse": "ideal"},
        encoding={"up": {"zeros": "bitmap"}, "down": {"zeros": "bitmap"}},
        stop={"rounds": 4},
    )
    simulation = simulate_null(scenario)
    kept = {layer: counts_of(simulation)[f"{layer}.weight"] for layer in WEIGHTS}
    sparse = sum(STEP[layer] * kept[layer] / WEIGHTS[layer] for layer in WEIGHTS)
    dense, jobs = sum(STEP.values()), frames(simulation)["jobs"].groupby("round")
    for t, found in jobs["flops"]:
        assert found.tolist() == pytest.approx([40 * sparse + 16 * dense * (t % 2 == 0)] * 4)
    known, bitmap = 4 * (sum(kept.values()) + BIASES), math.ceil(sum(WEIGHTS.values()) / 8)
    assert [found.unique().tolist() for _, found in jobs["up_bytes"]] == [
        [known + bitmap * (t % 2 == 0)] for t in range(4)
    ]
    assert [found.unique().tolist() for _, found in jobs["down_bytes"]] == [
        [known + bitmap * (t == 0 or t % 2 == 1)] for t in range(4)
    ]


def test_bitmaps_may_always_travel():
    """Then every payload has one; encodings that send zeros like any number never have."""
    for zeros, always in (("bitmap", math.ceil(6032 / 8)), ("sent", None)):
        method = {**SPARSE, "bitmap": "always"}
        scenario = digits_scenario(
            method=method, backend="null", encoding={"up": {"zeros": zeros}, "down": {"zeros": zeros}}
        )
        simulation = simulate_null(scenario)
        jobs, kept = frames(simulation)["jobs"], sum(counts_of(simulation).values())
        expected = 4 * (6032 + BIASES) if always is None else 4 * (kept + BIASES) + always
        assert set(jobs["up_bytes"]) == set(jobs["down_bytes"]) == {expected}


@full
def test_charged_is_what_was_done(monkeypatch):
    """On today's hardware, with the dense gradient of a batch, by PyTorch's counter."""
    jobs = measured_jobs(mixed_scenario(method={**SPARSE, "interval": 1}, training={"local_epochs": 2}), monkeypatch)
    assert (jobs["flops"] == jobs["real_flops"]).all()


@pytest.mark.parametrize(("preset", "total"), [("feddhad", 61152), ("dadpfl", 30883)])
def test_presets(preset, total):
    """LeNet's 61770 weights at sparsity 0.01 and 0.5; a key that is given counts more than the preset."""
    setting = assemble(
        digits_scenario(data=None, model="lenet5", backend="null", partition={"name": "sizes", "samples_per_device": 5})
    ).setting
    kept = FedDST(preset=preset).init(setting, KEY)["kept"]
    assert total - 4 <= sum(kept.values()) <= total
    assert sum(FedDST(preset=preset, sparsity=0.8, allocation="feddst").init(setting, KEY)["kept"].values()) == 12352


@pytest.mark.parametrize("wrong", [{"sparsity": 1.0}, {"sparsity": -0.1}, {"interval": 0}, {"alpha": 1.5}])
def test_settings_out_of_range(wrong):
    (key,) = wrong
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        digits_scenario(method={"name": "feddst", **wrong})


def test_more_than_the_allocation_can_leave_out():
    """Shapes 10 x 10 and 2 x 10 spare 0.8 and 0.4: at most, with all of the first gone, (100 + 0.5 x 20) / 120."""
    shapes = {"a": (10, 10), "b": (2, 10)}
    assert masks.densities(shapes, 110 / 120, "feddst") == pytest.approx({"a": 0, "b": 0.5})
    with pytest.raises(ConfigError, match=r"method\.sparsity: .* at most a share 0\.916 of .*, found 0\.92; 'erk'"):
        masks.densities(shapes, 0.92, "feddst")


def test_a_model_without_weights():
    with pytest.raises(ConfigError, match=r"model\.name: by hand has no tensor of two dimensions or more"):
        FedDST().init(setting_of((1,), {"w": 1}), KEY)


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "feddst": {
        "preset": "test_presets",
        "sparsity": "test_sparsity_is_constant_and_the_mask_moves",
        "allocation": "test_masks.py::test_allocation_of_feddst",
        "initial": "test_first_masks",
        "alpha": "test_masks.py::test_annealed",
        "interval": "test_rounds_that_readjust",
        "end_round": "test_rounds_that_readjust",
        "readjust": "test_when_it_readjusts",
        "weights": "test_weights_may_be_equal",
        "bitmap": "test_bitmaps_may_always_travel",
    },
}
