"""DisPFL against numbers on paper, NumPy and the sizes of the DA-DPFL paper's networks, and in runs of real peers.

Source: Dai et al. (2022); DA-DPFL paper for mask-based aggregation and for the costs of its baselines.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from edgesim.core.backend import Assignment
from edgesim.core.encoding import Contents, Encoding
from edgesim.core.errors import ConfigError
from edgesim.core.model_state import model_in
from edgesim.core.task import Payload, Submodel, Task
from edgesim.core.update import Update
from edgesim.learning.submodel import masks
from edgesim.learning.train.context import Context
from edgesim.methods.decentralised.sparse import FirstMasks, mixed, share_at
from edgesim.methods.dispfl import DisPFL
from tests.conftest import digits_scenario, frames, simulate_null
from tests.contracts.support import fingerprint, prepare
from tests.contracts.test_prices import measured_jobs
from tests.learning.test_masks import network
from tests.methods.hand_made import KEY, setting_of
from tests.methods.test_dfedavg import spied
from tests.methods.test_feddst import BIASES, STEP, WEIGHTS
from tests.sizes import full, thinned

ROWS = ([1.0, 0, 3, 0, 2, 0], [2.0, 4, 0, 0, -1, 0], [0.0, 2, 6, 0, 5, 0])
SPARSE = {"name": "dispfl", "sparsity": 0.6, "alpha": 0.4, "end_round": 5}


def model_of(row, bias=0.0):
    """Return a model of one matrix of one row and a bias."""
    params = {"weight": torch.tensor([row]), "bias": torch.tensor([bias])}
    return {"params": params, "buffers": {}}


def mix_of(device, mask, others, bias=(0.0, 0.0, 0.0)):
    """Return row and bias of what a device makes of its own of ROWS, under a mask if any, and of these of others."""
    mask = {"weight": torch.tensor([mask]).bool()} if mask else {}
    task = Task(config={"seed": 1})
    heard = [Update(peer, 7, task, model_of(row, bias[peer]), 1, 1, 0, {}) for peer, row in others.items()]
    own = masks.with_masks(model_of(ROWS[device], bias[device]), mask)
    job = Assignment(9, device, task, KEY, model_of([9.0] * 6), own, heard)
    context = Context(nn.Linear(6, 1), None, torch.zeros(0), job, False)
    found = mixed(context, FirstMasks(0.5, "2d", "shared"))
    assert fingerprint(found.scratch.mask) == fingerprint(mask)
    return found.weights["params"]["weight"][0].tolist(), found.weights["params"]["bias"].item()


# --- mixing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "mask", "mix"),
    [
        (0, [1, 0, 1, 0, 1, 0], [1.5, 0, 4.5, 0, 2, 0]),
        (1, [1, 1, 0, 0, 1, 0], [1.5, 3, 0, 0, 2, 0]),
        (0, [1, 1, 0, 1, 1, 0], [1.5, 3, 0, 0, 2, 0]),  # a mask that has moved: whoever has index 1 gives it
    ],
)
def test_mean_over_who_has_a_weight(device, mask, mix):
    """Of three devices: (1 + 2) / 2, (4 + 2) / 2, (3 + 6) / 2, nobody, (2 - 1 + 5) / 3; biases are everybody's."""
    others = {peer: row for peer, row in enumerate(ROWS) if peer != device}
    assert mix_of(device, mask, others, bias=(1.0, 2.0, 6.0)) == (mix, 3.0)


def test_weights_that_no_mask_covers():
    """They are averaged over everybody, like biases: (1 + 2 + 0) / 3, ..."""
    assert mix_of(0, None, {1: ROWS[1], 2: ROWS[2]})[0] == [1, 2, 3, 0, 2, 0]


def test_missing_and_diverged_neighbours():
    """They are in neither sum; alone a device has its own model, under the mask of the round."""
    mask = [1, 1, 0, 0, 1, 0]
    assert mix_of(0, mask, {1: ROWS[1]})[0] == [1.5, 4, 0, 0, 0.5, 0]
    assert mix_of(0, mask, {1: ROWS[1], 2: [math.nan] * 6})[0] == [1.5, 4, 0, 0, 0.5, 0]
    assert mix_of(0, mask, {})[0] == [1, 0, 0, 0, 2, 0]


# --- masks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("initial", ["per_device", "shared"])
def test_first_masks(initial):
    """ERK's counts of the first model's own weights; always the same from one seed, for each device or all."""
    whole = prepare(digits_scenario()).learner.weights()
    first = FirstMasks(0.6, "2d", initial)
    models = [first.model(whole, device, seed=5) for device in (0, 1, 0)]
    shapes = {name: tuple(whole["params"][name].shape) for name in (f"{layer}.weight" for layer in WEIGHTS)}
    wanted = masks.kept_counts(shapes, masks.densities(shapes, 0.6, "erk"))
    for model in models:
        assert masks.counts_of(masks.masks_in(model)) == wanted
        for name, mask in masks.masks_in(model).items():
            assert torch.equal(model["params"][name], whole["params"][name] * mask)
    assert fingerprint(models[0]) == fingerprint(models[2]) != fingerprint(first.model(whole, 0, seed=6))
    assert (fingerprint(models[0]) == fingerprint(models[1])) == (initial == "shared")


@full
@pytest.mark.parametrize(("maskable", "weights"), [("2d", 11164352), ("authors", 10992320)])
def test_whether_shortcuts_are_masked(maskable, weights):
    """ResNet18's three shortcuts of 64 x 128, 128 x 256 and 256 x 512 weights, and ERK's densities with and without."""
    shapes = FirstMasks(0.5, maskable, "shared").shapes(network("resnet18_gn", (3, 32, 32), 10)[1])
    assert sum(map(math.prod, shapes.values())) == weights == 11164352 - (maskable == "authors") * 172032
    found = masks.densities(shapes, 0.5, "erk")
    expected = {"2d": [0.720483, 0.538276, 0.358155], "authors": [0.734426, 0.548692, 0.365086]}[maskable]
    assert [found[f"blocks.{n}.weight"] for n in ("4.conv2", "6.conv1", "7.conv2")] == pytest.approx(expected, abs=1e-6)


def test_shares_that_move():
    """alpha / 2 (1 + cos(pi (t - 1) / T)) in rounds 1 to T of T = 500, then none."""
    shares = [share_at(0.3, t, 500) for t in (1, 101, 251, 500, 501, 1001)]
    assert shares == pytest.approx([0.3, 0.271353, 0.15, 0.000003, 0, 0], abs=1e-6)


@full
@pytest.mark.parametrize("growth", thinned(["gradient", "random"], ["gradient"]))
def test_models_and_masks_of_a_run(growth):
    """In every round: what a device hears is M models; it mixes them, by NumPy, under the mask it chose in the round
    before; its message is zero outside that mask; the new mask has as many weights in each layer, some of them new.
    """
    simulation, backend = spied(
        method={**SPARSE, "growth": growth}, peers={"name": "random", "degree": 3}, stop={"rounds": 6}
    )
    method, trainer = simulation.learner.method, simulation.parts.make_trainer("cpu")
    counts, first = simulation.learner.state["kept"], FirstMasks(0.6, "2d", "per_device")
    for job, (assignment, result) in backend.done.items():
        seed = int(assignment.task.config["seed"])
        own = assignment.device_state or first.model(assignment.global_model, assignment.device, seed)
        old, new = masks.masks_in(own), masks.masks_in(result.new_device_state)
        assert masks.counts_of(old) == masks.counts_of(new) == counts
        assert len({m.device for m in assignment.received} | {assignment.device}) == 1 + 3
        heard = [m.body if m.job >= 0 else first.model(m.body, m.device, seed) for m in assignment.received]
        context = Context(trainer.module, trainer.data, trainer.shards[assignment.device], assignment, False)
        mix = method.local(assignment.task).on_start(context).weights
        for name, mask in old.items():
            rows = np.stack([m["params"][name].numpy() for m in (own, *heard)]).astype(np.float64)
            mean = rows.sum(0) / np.maximum((rows != 0).sum(0), 1) * mask.numpy()
            assert mix["params"][name].numpy() == pytest.approx(mean, abs=1e-7)
            assert not result.body["params"][name][~mask].any()
            assert torch.equal(result.new_device_state["params"][name], result.body["params"][name])
            assert bool((new[name] & ~mask).any()) == (job < 50 and counts[name] < mask.numel())  # until round 5
    personal = method.personal_model(backend.done[0][0].global_model, simulation.learner.memory[0])
    assert fingerprint(personal) == fingerprint(model_in(simulation.learner.memory[0]))


# --- prices -----------------------------------------------------------------------------------------------------


def test_bytes_of_a_model():
    """500 of 1000 weights and 20 other numbers: 2000 + 80 + 125, the last for the mask."""
    cost_profile = network("cnn_digits", (1, 8, 8), 10)[1]
    submodel = Submodel(nnz=(("conv2", 100),))
    sparse = cost_profile.nbytes(Payload(encoding=Encoding(zeros="bitmap")), submodel)
    assert sparse == 4 * (100 + 144 + 1280 + BIASES) + math.ceil(4608 / 8)
    held = Contents(collections=1, layers=1, whole=0, masked=1000, nonzero=500, vectors=20)
    assert Encoding(zeros="bitmap").nbytes(held) == 2205


@full
@pytest.mark.parametrize(
    ("name", "shape", "classes", "maskable", "nbytes", "saved_flops"),
    [
        ("resnet18_gn", (3, 32, 32), 10, "2d", 23762676, 1110845450 - 884734314),
        ("resnet18_gn", (3, 32, 32), 10, "authors", None, 1110845450 - 889855050),
        ("vgg11_gn", (3, 32, 32), 100, "2d", 19729884, 305782884 - 214379956),
        ("alexnet_small", (3, 64, 64), 7, "2d", 49444972, 376020999 - 251153009),
    ],
)
def test_costs_of_the_papers_networks(name, shape, classes, maskable, nbytes, saved_flops):
    """At sparsity 0.5: values and a bitmap, about 53 % of the whole model; and what zeros save of a forward pass."""
    cost_profile, first = network(name, shape, classes)[1], FirstMasks(0.5, maskable, "shared")
    submodel = Submodel(nnz=masks.nonzeros(first.counts(first.shapes(cost_profile))))
    assert nbytes is None or cost_profile.nbytes(Payload(encoding=Encoding(zeros="bitmap")), submodel) == nbytes
    assert cost_profile.forward_flops() - cost_profile.forward_flops(submodel, sparse="ideal") == saved_flops


def test_what_is_charged():
    """Ideal hardware pays for weights that are there and, while masks move, for a batch of the whole model; a message
    is its values and a bitmap, and a device gets one from each neighbour.
    """
    for growth in ("gradient", "random"):
        scenario = digits_scenario(
            method={**SPARSE, "growth": growth},
            backend="null",
            selection="all",
            peers={"name": "random", "degree": 3},
            partition={"name": "iid", "samples_per_device": 40},
            cost={"name": "measured", "sparse": "ideal"},
            encoding={"up": {"zeros": "bitmap"}},
            training={"batch": 16, "local_epochs": 5},
            stop={"rounds": 6},
        )
        simulation = simulate_null(scenario)
        kept = {layer: simulation.learner.state["kept"][f"{layer}.weight"] for layer in WEIGHTS}
        sparse = sum(STEP[layer] * kept[layer] / WEIGHTS[layer] for layer in WEIGHTS)
        screening, jobs = 16 * sum(STEP.values()) * (growth == "gradient"), frames(simulation)["jobs"]
        for t, found in jobs["flops"].groupby(jobs["round"]):
            assert found.tolist() == pytest.approx([5 * 40 * sparse + screening * (t < 5)] * 10)
        message = 4 * (sum(kept.values()) + BIASES) + math.ceil(sum(WEIGHTS.values()) / 8)
        assert set(jobs["peer_bytes"]) == {3 * message}


@pytest.mark.parametrize(("model", "samples"), [("cnn_digits", 5), ("tests.plugins.networks:TinyNorm", 1)])
def test_devices_with_little_data(model, samples, monkeypatch):
    """With fewer samples than a batch the gradient is that of all; who cannot train moves nothing, at no price."""
    partition = {"name": "iid", "samples_per_device": samples}
    scenario = partial(digits_scenario, selection="all", peers="ring", partition=partition, stop={"rounds": 2})
    jobs = measured_jobs(scenario(method=SPARSE, model=model), monkeypatch)
    assert (jobs["flops"] == jobs["real_flops"]).all()
    assert (jobs["flops"] > 0).all() == (samples > 1)


# --- bad input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong", [{"sparsity": 1.0}, {"alpha": -0.1}, {"end_round": 0}, {"growth": "none"}, {"initial_masks": "same"}]
)
def test_settings_out_of_range(wrong):
    (key,) = wrong
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        digits_scenario(method={"name": "dispfl", **wrong}, peers="ring")


def test_more_neighbours_than_others():
    """Ten devices have nine others each."""
    scenario = digits_scenario(method="dispfl", peers={"name": "random", "degree": 10}, selection="all")
    with pytest.raises(ConfigError, match=r"peers\.degree: must be below the 10 devices, got 10"):
        prepare(scenario)


def test_a_model_without_weights():
    with pytest.raises(ConfigError, match=r"model\.name: by hand has no tensor of two dimensions or more"):
        DisPFL().init(setting_of((1,), {"w": 1}), KEY)


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "dispfl": {
        "sparsity": "test_models_and_masks_of_a_run",
        "maskable": "test_whether_shortcuts_are_masked",
        "initial_masks": "test_first_masks",
        "alpha": "test_shares_that_move",
        "end_round": "test_what_is_charged",
        "growth": "test_models_and_masks_of_a_run",
    },
}
