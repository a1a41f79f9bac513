"""MOON against numbers on paper and against networks taken apart by hand.

Source: Li, He and Song (2021), equations 3 and 4, and its authors' published code for the projection head.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from edgesim.core.backend import Assignment
from edgesim.core.errors import ConfigError
from edgesim.core.method import LocalState
from edgesim.core.rng import Key
from edgesim.core.task import Task
from edgesim.learning.models.build import build_model, model_state_of
from edgesim.learning.models.chains import CnnDigits
from edgesim.learning.models.seeding import seeded
from edgesim.learning.train.context import Batch, Context
from edgesim.learning.train.loop import gradients
from edgesim.methods.moon import Moon, contrast
from tests.conftest import digits_scenario, frames, simulate_null
from tests.contracts.support import MODELS, NORMED, Spy, fingerprint, mixed_scenario, prepare, results_of, run
from tests.methods.hand_made import KEY
from tests.plugins.networks import TinyNorm
from tests.plugins.one_number import Ones
from tests.sizes import full

HEADED = {"name": "cnn_digits", "projection": 12}
Z = [torch.tensor([z], dtype=torch.float64) for z in ([1, 2, 2], [2, 1, 2], [-1, 2, 0])]


@pytest.mark.parametrize(("temperature", "expected"), [(0.5, 0.345995), (1.0, 0.496499)])
def test_contrast(temperature, expected):
    """Cosines 8/9 and 1/sqrt(5); the term of the paper as it stands there."""
    towards, away = 8 / 9, 3 / (3 * 5**0.5)
    assert [towards, away] == pytest.approx([0.888889, 0.447214], abs=1e-6)
    e = np.exp(np.array([towards, away]) / temperature)
    assert -np.log(e[0] / e.sum()) == pytest.approx(expected, abs=1e-6)
    assert contrast(*Z, temperature).item() == pytest.approx(expected, abs=1e-6)


def test_contrast_at_the_edges():
    """Two equal models: log 2. Vectors of zeros have the cosine 0, not NaN. A batch: the mean."""
    assert contrast(Z[0], Z[1], Z[1], 0.5).item() == pytest.approx(0.693147, abs=1e-6)
    assert contrast(0 * Z[0], Z[1], Z[2], 0.5).item() == pytest.approx(0.693147, abs=1e-6)
    both = contrast(*(torch.cat([z, other]) for z, other in zip(Z, (Z[0], Z[1], Z[1]), strict=True)), 0.5)
    assert both.item() == pytest.approx((0.345995 + 0.693147) / 2, abs=1e-6)


def context_of(module, global_model, device_state=None):
    """Return what a rule works with on this network."""
    job = Assignment(0, 0, Task(), KEY, global_model, device_state)
    return Context(module, Ones(samples=2).load(), torch.arange(2), job, False)


def digits_batch():
    """Return five made-up images with labels."""
    x = torch.from_numpy(Key(4).numpy().normal(size=(5, 1, 8, 8)).astype(np.float32))
    return Batch(x, torch.arange(5))


@pytest.mark.parametrize("projection", [None, 12])
def test_loss_and_gradient_by_hand(projection):
    """Three networks run one by one: cross-entropy plus 2 x the contrast of what enters their last layers."""
    trained, received, kept = (
        build_model(CnnDigits(projection=projection), (1, 8, 8), 10, Key(seed)) for seed in (1, 2, 3)
    )
    batch, method = digits_batch(), Moon(mu=2.0)

    def apart(network):
        z = network[:-1](batch.x)
        last = network[-1]
        if projection:
            z, last = last[:-1](z), last[-1]
        return last(z), z

    logits, z = apart(trained)
    assert z.shape == (5, projection or 128)
    by_hand = F.cross_entropy(logits, batch.y) + 2 * contrast(z, apart(received)[1], apart(kept)[1], 0.5)
    by_hand_gradients = gradients(by_hand, list(trained.parameters()))

    context = context_of(trained, model_state_of(received), model_state_of(kept))
    rule = method.local(Task())
    local = replace(rule.on_start(context), weights=context.copy(model_state_of(trained)))
    wrt = context.bind(local.weights)
    loss = rule.phases[0].loss(local, batch, context)
    assert loss.item() == pytest.approx(by_hand.item(), rel=1e-5)
    for found, expected in zip(gradients(loss, wrt), by_hand_gradients, strict=True):
        assert found.numpy() == pytest.approx(expected.numpy(), abs=1e-5)


def test_frozen_networks_look_as_in_a_test():
    """No dropout, no gradient, statistics neither taken from the batch nor moved; training goes on as before."""
    with seeded(KEY):
        module, other = TinyNorm(), TinyNorm()
    other.norm.running_mean.fill_(0.25)
    batch, base = digits_batch(), model_state_of(other)
    context = context_of(module, base)
    w = context.copy(model_state_of(module))
    context.bind(w)
    before = fingerprint([w, base])
    logits, z = context.tested_features(base, batch.x)
    other.eval()
    assert torch.equal(logits, other(batch.x))
    assert torch.equal(z, torch.nn.Sequential(*list(other)[:-1])(batch.x))
    assert not z.requires_grad
    assert fingerprint([w, base]) == before
    assert all(layer.training for layer in module.modules())
    assert context.features(w, batch.x)[1].requires_grad


# --- the last model ---------------------------------------------------------------------------------------------


def test_a_device_keeps_the_model_that_it_delivered():
    """Every number of it, running statistics too; a model that is not finite is not kept."""
    simulation = prepare(mixed_scenario(method="moon", model=NORMED, stop={"rounds": 1}))
    spy = simulation.learner.method = Spy(simulation.learner.method)
    simulation.run()
    got = spy.rounds[0][2]
    kept = simulation.learner.memory
    assert kept.keys() == {m.device for m in got} == set(range(6))
    assert all(fingerprint(kept[m.device]) == fingerprint(m.body) for m in got)
    broken = {**got[0].body, "params": {n: t / 0 for n, t in got[0].body["params"].items()}}
    assert Moon().local(Task()).on_finish(LocalState(broken), None).new_device_state is None


def previous(first_previous, device_state, global_model, module):
    """Return the parameters that a device compares with as its last model's."""
    context = context_of(module, global_model, device_state)
    return Moon(first_previous=first_previous).local(Task()).on_start(context).scratch.previous


def test_what_stands_for_a_last_model():
    """A device that kept one uses it; else the first model of the run, whatever was trained since, or what came."""
    module, other, third = (build_model(CnnDigits(), (1, 8, 8), 10, Key(seed)) for seed in (1, 2, 3))
    first, base, own = model_state_of(module), model_state_of(other), model_state_of(third)
    context_of(module, base).bind(context_of(module, base).copy(base))  # the network now has other weights
    for setting, kept, expected in (
        ("initial", None, first), ("received", None, base), ("initial", own, own), ("received", own, own)
    ):  # fmt: skip
        assert fingerprint(previous(setting, kept, base, module)) == fingerprint(expected["params"])


def test_the_first_round_is_fedavg():
    """Then initial, received and last model are one, the term is log 2 and has no slope."""
    runs = {
        name: run(mixed_scenario(method=method, model=HEADED, stop={"rounds": 1})).learner.weights()["params"]
        for name, method in {
            "fedavg": "fedavg", "moon": {"name": "moon"}, "other": {"name": "moon", "first_previous": "received"}
        }.items()
    }  # fmt: skip
    for name, tensor in runs["fedavg"].items():
        assert runs["moon"][name].numpy() == pytest.approx(tensor.numpy(), abs=1e-6)
        assert torch.equal(runs["moon"][name], runs["other"][name])


def test_newcomers_compare_with_the_initial_model():
    """From the second round on, it matters what stands for the model that a newcomer does not have."""
    few = {"name": "uniform", "count": 2}
    runs = [
        results_of(run(digits_scenario(method={"name": "moon", "first_previous": name}, selection=few)))
        for name in ("initial", "received")
    ]
    assert runs[0]["jobs"] == runs[1]["jobs"]
    assert runs[0]["weights"] != runs[1]["weights"]


@full
@pytest.mark.workers
def test_worker_processes_know_the_initial_model_too():
    """Newcomers of later rounds learn the same there, bit for bit."""
    few, outcomes = {"name": "uniform", "count": 2}, []
    for backend in ("serial", {"name": "workers", "workers": 1}):
        simulation = run(digits_scenario(method="moon", selection=few, backend=backend))
        simulation.learner.backend.close()
        outcomes.append(results_of(simulation))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("model", MODELS)
def test_without_the_term_it_is_fedavg(model):
    """With mu = 0 tables and weights are FedAvg's, bit for bit."""
    runs = [results_of(run(mixed_scenario(model=model, method=m))) for m in ("fedavg", {"name": "moon", "mu": 0})]
    assert runs[0] == runs[1]


def test_two_more_forward_passes_are_paid():
    """On top of training, 2 x 40 samples forward through the network with its head, which travels both ways."""
    given = {"model": HEADED, "partition": {"name": "iid", "samples_per_device": 40}, "backend": "null"}
    jobs = [frames(simulate_null(digits_scenario(method=method, **given)))["jobs"] for method in ("moon", "fedavg")]
    # 8x8 images: 9 x 16 weights on 64 pixels, 9 x 16 x 32 on 16, then 128 -> 128 -> 12 -> 10
    forward = 2 * (9 * 16 * 64 + 9 * 16 * 32 * 16 + 128 * 128 + 128 * 12 + 12 * 10)
    assert set(jobs[0]["flops"] - jobs[1]["flops"]) == {2 * 40 * forward}
    params = 160 + 4640 + 129 * 128 + 129 * 12 + 13 * 10
    assert set(jobs[0]["up_bytes"]) == set(jobs[0]["down_bytes"]) == {4 * params}


@pytest.mark.parametrize("wrong", [{"mu": -1}, {"temperature": 0}, {"first_previous": "last"}])
def test_settings_out_of_range(wrong):
    (key,) = wrong
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        digits_scenario(method={"name": "moon", **wrong})


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "moon": {
        "aggregate_over": "test_fedavg.py::test_absent_devices_may_count_with_the_old_model",
        "weights": "test_fedavg.py::test_devices_may_count_alike",
        "mu": "test_loss_and_gradient_by_hand",
        "temperature": "test_contrast",
        "first_previous": "test_what_stands_for_a_last_model",
    },
}
