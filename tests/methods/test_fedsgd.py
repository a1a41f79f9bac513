"""FedSGD against numbers on paper, against gradients of the pooled samples and against FedAvg.

Source: McMahan et al. (2017), section 2: FedSGD is FedAvg with one epoch of one batch, and w - lr sum_k (n_k / n) G_k.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from edgesim.core.backend import Assignment
from edgesim.core.errors import ConfigError
from edgesim.core.local_sgd import Training
from edgesim.core.rng import Key
from edgesim.core.task import Submodel
from edgesim.methods.fedsgd import FedSGD
from tests.conftest import digits_scenario, frames
from tests.contracts.support import NORMED, fingerprint, merge_arguments, mixed_scenario, prepare, run
from tests.methods.hand_made import KEY, merged_layers, message_of, setting_of, view_of

LR = 0.5
SIZES = {"name": "sizes", "samples_per_device": [20, 60]}
UNEVEN = {"name": "dirichlet_label", "balance": False}


def stepped(w, gradients, samples, lr, weights=None):
    """Return what FedSGD makes of devices that took these gradients at w."""
    messages = [
        message_of(k, samples[k], {"w": (np.array(w) - lr * np.array(g)).tolist()})._replace(
            weight=1.0 if weights is None else weights[k]
        )
        for k, g in gradients.items()
    ]
    layers = merged_layers(FedSGD(), setting_of(samples, {"w": len(w)}), {"w": w}, messages)
    return None if layers is None else layers["w"]


# --- on paper ---------------------------------------------------------------------------------------------------


def test_the_step_goes_along_the_mean_gradient_by_data_size():
    """100 and 300 samples: G = 0.25 (0.2, -0.4) + 0.75 (-0.1, 0.3) = (-0.025, 0.125); a step of 0.1 from (0.5, -1)."""
    mean = 0.25 * np.array([0.2, -0.4]) + 0.75 * np.array([-0.1, 0.3])
    assert mean == pytest.approx([-0.025, 0.125])
    by_hand = np.array([0.5, -1.0]) - 0.1 * mean
    assert by_hand == pytest.approx([0.5025, -1.0125])
    assert stepped([0.5, -1.0], {0: [0.2, -0.4], 1: [-0.1, 0.3]}, (100, 300), 0.1) == pytest.approx(by_hand, rel=1e-6)


def test_it_is_a_step_on_the_pooled_samples():
    """Least squares |Xw - y|^2 / 2n on 2 and 4 samples: the mean of the gradients by size is that of all six."""
    xs = [np.array([[1, 2], [3, 4]]), np.array([[0, 1], [1, 0], [1, 1], [2, 1]])]
    ys = [np.array([1, 0]), np.array([1, 1, 0, 1])]
    w = np.array([0.1, -0.2])
    gradients = {k: x.T @ (x @ w - y) / len(y) for k, (x, y) in enumerate(zip(xs, ys, strict=True))}
    assert gradients[0] == pytest.approx([-1.4, -2.3])
    assert gradients[1] == pytest.approx([-0.75, -0.575])
    x, y = np.concatenate(xs), np.concatenate(ys)
    pooled = x.T @ (x @ w - y) / 6
    assert pooled == pytest.approx([-0.966667, -1.15], abs=1e-6)
    found = stepped(w.tolist(), gradients, (2, 4), 0.05)
    assert found == pytest.approx(w - 0.05 * pooled, rel=1e-6)
    assert found == pytest.approx([0.148333, -0.1425], abs=1e-6)


def test_shares_are_those_of_who_arrived():
    """Without the second device the first one's gradient is the step; without anybody there is none."""
    assert stepped([0.5, -1.0], {0: [0.2, -0.4]}, (100, 300), 0.1) == pytest.approx([0.48, -0.96], rel=1e-6)
    assert stepped([0.5, -1.0], {}, (100, 300), 0.1) is None


def test_the_protocol_s_weight_counts():
    """300 samples of weight 1/3 are worth 100: (G_1 + G_2) / 2 = (0.05, -0.05)."""
    gradients = {0: [0.2, -0.4], 1: [-0.1, 0.3]}
    found = stepped([0.5, -1.0], gradients, (100, 300), 0.1, weights=(1.0, 1 / 3))
    assert found == pytest.approx([0.495, -0.995], rel=1e-6)


# --- plans ------------------------------------------------------------------------------------------------------


def test_one_full_batch_whatever_the_training_says():
    """One step with the rate of the round; a task for each data size, with a batch of that size."""
    training = Training(lr=0.01, lr_decay=0.995, batch=8, local_epochs=5, momentum=0.9, weight_decay=0.1)
    setting = setting_of((30, 20, 30), {"w": 3}, training=training)
    orders = FedSGD().plan({}, view_of(setting, round_=99), KEY).orders
    local_sgd = [order.task.local_sgd[0] for order in orders]
    assert [(s.batch, s.steps, s.epochs) for s in local_sgd] == [(30, 1, 0), (20, 1, 0), (30, 1, 0)]
    assert [s.lr for s in local_sgd] == pytest.approx([0.006088145] * 3)
    assert {(s.momentum, s.weight_decay) for s in local_sgd} == {(0.0, 0.1)}
    assert orders[0].task is orders[2].task


def test_mini_batches_share_a_task():
    """With a batch size everybody does the same."""
    setting = setting_of((30, 20, 30), {"w": 3})
    orders = FedSGD(batch_size=4).plan({}, view_of(setting), KEY).orders
    assert {(id(o.task), o.task.local_sgd[0].batch, o.task.local_sgd[0].steps) for o in orders} == {
        (id(orders[0].task), 4, 1)
    }


@pytest.mark.parametrize("batch_size", ["full", 16])
def test_price_of_a_round(batch_size):
    """Forward and backward on every sample once, or on `batch_size` of them; the model's bytes both ways."""
    method = {"name": "fedsgd", "batch_size": batch_size}
    training = {"batch": 8, "local_epochs": 3}
    simulation = run(mixed_scenario(method=method, partition=SIZES, training=training, backend="null"))
    setting = simulation.parts.setting
    assert len(set(setting.samples.tolist())) > 1
    samples = setting.samples if batch_size == "full" else np.full(6, batch_size)
    jobs = frames(simulation)["jobs"].query("round == 0").sort_values("device")
    assert jobs["flops"].tolist() == (setting.cost_profile.train_flops() * samples).tolist()
    assert set(jobs["down_bytes"]) == set(jobs["up_bytes"]) == {4 * 6090}


def test_all_samples_have_to_fit():
    """Devices with room for 40 samples at once cannot take a gradient of more in one pass, but one of 16."""
    cost_profile = prepare(mixed_scenario()).parts.setting.cost_profile
    fleet = [
        {"count": 6, "cpu": {"flops_per_s": "50 MFLOP/s"}, "memory": cost_profile.memory_bytes(Submodel(), 40).total}
    ]
    for method, most in (("fedsgd", 40), ({"name": "fedsgd", "batch_size": 16}, np.inf)):
        simulation = run(mixed_scenario(method=method, partition=SIZES, fleet=fleet, backend="null"))
        samples = simulation.parts.setting.samples
        assert samples.min() <= 40 < samples.max()
        jobs = frames(simulation)["jobs"].query("round == 0").sort_values("device")
        assert jobs["outcome"].tolist() == ["ok" if n <= most else "no_memory" for n in samples]


# --- training ---------------------------------------------------------------------------------------------------


def pooled_gradient(simulation: Any, w: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the gradients of the mean cross-entropy over the samples of all devices, at w."""
    parts = simulation.parts
    x, y = parts.data.batch("train", torch.from_numpy(np.concatenate(parts.split.train)))
    wrt = {name: torch.tensor(value, requires_grad=True) for name, value in w.items()}
    loss = F.cross_entropy(torch.func.functional_call(parts.module, wrt, (x,)), y)
    return {n: g.numpy() for n, g in zip(wrt, torch.autograd.grad(loss, list(wrt.values())), strict=True)}


def test_three_rounds_are_three_steps_of_gradient_descent():
    """On samples that lie unevenly on six devices, with a rate that halves: bare autograd takes the same steps."""
    training = {"batch": 8, "lr": LR, "lr_decay": 0.5, "local_epochs": 2}
    simulation = prepare(mixed_scenario(method="fedsgd", partition=UNEVEN, training=training, stop={"rounds": 3}))
    samples = simulation.parts.setting.samples
    assert len(set(samples.tolist())) == 6
    w = {name: tensor.numpy().copy() for name, tensor in simulation.learner.weights()["params"].items()}
    simulation.run()
    for round_ in range(3):
        gradient = pooled_gradient(simulation, w)
        w = {name: value - LR * 0.5**round_ * gradient[name] for name, value in w.items()}
    for name, tensor in simulation.learner.weights()["params"].items():
        assert tensor.numpy() == pytest.approx(w[name], abs=1e-5)


def test_it_is_fedavg_with_one_batch_an_epoch():
    """40 samples a device in batches of 40, one epoch: the same bits."""
    training = {"batch": 40, "lr": LR}
    runs = [run(mixed_scenario(method=method, training=training)) for method in ("fedsgd", "fedavg")]
    assert fingerprint(runs[0].learner.weights()) == fingerprint(runs[1].learner.weights())
    more = run(mixed_scenario(method="fedavg", training={**training, "batch": 20}))
    assert fingerprint(more.learner.weights()) != fingerprint(runs[0].learner.weights())


def test_mini_batches_are_drawn_anew():
    """A device that takes two gradients at one model, each of 16 of its 40 samples, gets two different ones."""
    simulation = prepare(mixed_scenario(method={"name": "fedsgd", "batch_size": 16}))
    trainer, (_, base, got, *_) = simulation.parts.make_trainer("cpu"), merge_arguments(simulation)
    first, again, other = (
        trainer.run(Assignment(0, got[0].device, got[0].task, key, base, None)) for key in (Key(1), Key(1), Key(2))
    )
    assert first.steps == other.steps == 1
    assert fingerprint(first.body) == fingerprint(again.body) != fingerprint(other.body)


def test_a_device_with_one_sample_cannot_normalise():
    """Batch normalisation needs two: no step is taken nor paid for, and the model stays."""
    partition = {"name": "iid", "samples_per_device": 1}
    simulation = prepare(mixed_scenario(method="fedsgd", model=NORMED, partition=partition))
    before = fingerprint(simulation.learner.weights())
    simulation.run()
    assert set(frames(simulation)["jobs"]["flops"]) == {0.0}
    assert fingerprint(simulation.learner.weights()) == before


@pytest.mark.parametrize("wrong", [0, -3, 1.5, "all"])
def test_settings_out_of_range(wrong):
    """Batches are "full" or have a whole number of samples, at least one."""
    with pytest.raises(ConfigError, match=r"method\.batch_size"):
        digits_scenario(method={"name": "fedsgd", "batch_size": wrong})


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "fedsgd": {
        "batch_size": "test_three_rounds_are_three_steps_of_gradient_descent",
    },
}
