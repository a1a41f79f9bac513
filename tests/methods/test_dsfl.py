"""DS-FL: soft labels by hand, the server's steps by PyTorch, and what is charged."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from edgesim.core.networks import part_of
from edgesim.learning.train.loop import batch_order
from edgesim.methods.dsfl import DSFL
from tests.conftest import digits_scenario
from tests.contracts.support import merge_arguments, prepare, run

SAMPLES = 40
METHOD = {"name": "dsfl", "public_samples": SAMPLES, "digest_epochs": 2}


def scenario_of(models=("cnn_digits", "mlr"), **changes):
    """Return a scenario on digits in which two devices have each network, with 50 samples each."""
    method = {**METHOD, **changes.pop("method", {})}
    fleet = [{"count": 2, "cpu": {"flops_per_s": "50 MFLOP/s"}, "model": model} for model in models]
    base = {"method": method, "fleet": fleet, "selection": "all", "stop": {"rounds": 1}}
    return digits_scenario(**{**base, "partition": {"name": "iid", "samples_per_device": 50}, **changes})


def test_labels_are_surer_than_the_mean_of_what_devices_say():
    """By hand: the mean of (0.8, 0.2) and (0.4, 0.6) is (0.6, 0.4); softmax(6, 4) = 1 / (1 + e^-2)."""
    said = torch.tensor([[[0.8, 0.2]], [[0.4, 0.6]]])
    sure = 1 / (1 + np.exp(-2))
    assert DSFL().labels_of(said)[0].tolist() == pytest.approx([sure, 1 - sure])
    assert DSFL(temperature=0.2).labels_of(said)[0, 0].item() == pytest.approx(1 / (1 + np.exp(-1)))
    assert DSFL(aggregation="sa").labels_of(said)[0].tolist() == pytest.approx([0.6, 0.4])


def test_devices_send_probabilities_and_learn_the_labels_by_cross_entropy():
    """As NumPy has them."""
    logits, labels = torch.tensor([[1.0, 3.0], [0.0, 0.0]]), torch.tensor([[0.25, 0.75], [0.5, 0.5]])
    shares = np.exp(logits.numpy()) / np.exp(logits.numpy()).sum(1, keepdims=True)
    assert np.allclose(DSFL().answer(logits).numpy(), shares)
    assert DSFL().distance(logits, labels).item() == pytest.approx(-(labels.numpy() * np.log(shares)).sum(1).mean())


def test_the_server_learns_the_same_labels():
    """Two epochs of SGD at the scenario's rate and batch, for each network, from its old model."""
    simulation = prepare(scenario_of())
    state, base, updates, server, key = merge_arguments(simulation)
    merged = simulation.learner.method.combine(state, base, updates, server, key)
    parts = simulation.parts
    x = parts.data.batch("train", torch.from_numpy(parts.server_set.rows))[0]
    mean = sum(u.body["tensors"]["answers"] for u in updates) / 4
    labels = torch.softmax(10 * mean, 1)
    assert torch.allclose(merged.model["tensors"]["answers"], labels, atol=1e-6)
    sgd = replace(parts.setting.training.local_sgd(0), epochs=2)
    for place, (name, module) in enumerate(parts.module.named_children()):
        student = copy.deepcopy(module)
        student.load_state_dict(part_of(base, name)["params"])
        optimiser = torch.optim.SGD(student.train().parameters(), 0.1)
        for places in batch_order(key.at(place).at(0), SAMPLES, sgd, False):
            optimiser.zero_grad()
            likelihood = (labels[places] * F.log_softmax(student(x[places]), 1)).sum(1).mean()
            (-likelihood).backward()
            optimiser.step()
        for param, value in student.named_parameters():
            found = part_of(merged.model, name)["params"][param]
            torch.testing.assert_close(found, value.detach(), atol=1e-5, rtol=1e-4, check_stride=False)


def test_the_server_is_charged_for_its_steps():
    """Two epochs over 40 samples for each network, beside the mean of four times 40 x 10 numbers."""
    simulation = run(scenario_of(server={"flops_per_s": "1 GFLOP/s"}))
    profiles = simulation.parts.setting.cost_profile.networks.values()
    flops = sum(2 * SAMPLES * profile.train_flops() for profile in profiles) + 2 * 4 * SAMPLES * 10
    assert simulation.tables["rounds"].frame()["server_s"][0] == pytest.approx(flops / 1e9)


def test_steps_that_diverge_leave_the_model_as_it_was():
    """At a rate at which numbers overflow."""
    simulation = prepare(scenario_of())
    state, base, updates, server, key = merge_arguments(simulation)
    training = replace(server.setting.training, lr=1e30, momentum=0.9)
    server = replace(server, setting=replace(simulation.parts.setting, training=training))
    merged = simulation.learner.method.combine(state, base, updates, server, key)
    assert merged.metrics["not_finite"] >= 1
    assert all(bool(t.isfinite().all()) for tensors in merged.model.values() for t in tensors.values())


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "dsfl": {
        "public_samples": "test_the_server_is_charged_for_its_steps",
        "digest_epochs": "test_the_server_learns_the_same_labels",
        "aggregation": "test_labels_are_surer_than_the_mean_of_what_devices_say",
        "temperature": "test_labels_are_surer_than_the_mean_of_what_devices_say",
    },
}
