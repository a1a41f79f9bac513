"""Per-FedAvg against numbers on paper, plain PyTorch, FedAvg and prices on paper.

Source: Fallah, Mokhtari and Ozdaglar (2020), algorithm 1, with (I - alpha H) dropped (FO) or by differences (HF).
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from edgesim.core.errors import ConfigError
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.rng import JobStream
from edgesim.learning.train.loop import batch_order
from edgesim.methods.per_fedavg import PerFedAvg
from tests.conftest import digits_scenario, frames, simulate_null
from tests.contracts.support import NORMED, fingerprint, mixed_scenario, run
from tests.methods.one_device import Device
from tests.methods.plain_torch import (
    DEVICES,
    PARAMS,
    descend,
    flat,
    gradient,
    mean,
    network_of,
    rounds_of,
    samples_of,
    three_devices,
    weights_of,
)
from tests.methods.recorded import close_to, record
from tests.sizes import thinned

TRAIN = 168448 + 168448 + 150016  # FLOPs a sample of cnn_digits: forward, weights' and inputs' gradients
LR = 0.05


def others(job, stream):
    """Yield batches in an order of their own, of adaptation (0) or for the Hessian (1)."""
    assignment, trainer = job.assignment, job.trainer
    shard, (sgd,) = trainer.shards[assignment.device], assignment.task.local_sgd
    order = assignment.key.at(JobStream.OTHER_BATCHES, stream, 0)
    for positions in batch_order(order, len(shard), sgd, trainer.cost_profile.drop_single):
        yield trainer.data.batch("train", shard[positions])


def at(job, start, slopes, length):
    """Return the network whose parameters are so far along some slopes."""
    return network_of(job, {n: t + length * slopes[n] if n in slopes else t for n, t in start.items()})


def turn(job, received, alpha, variant):
    """Return w after a device's turn from the model received; the exact product with the Hessian for "hf"."""
    network = network_of(job, received)
    for (x, y), adapting, curving in zip(job.batches(), others(job, 0), others(job, 1), strict=True):
        w = weights_of(network)
        phi = at(job, w, gradient(network, *adapting), -alpha)
        u = gradient(phi, x, y)
        if variant == "hf":
            names, params = zip(*network.named_parameters(), strict=True)
            loss = torch.nn.functional.cross_entropy(network(curving[0]), curving[1])
            slopes = torch.autograd.grad(loss, params, create_graph=True)
            products = torch.autograd.grad(slopes, params, [u[name] for name in names])
            u = {name: u[name] - alpha * hu for name, hu in zip(names, products, strict=True)}
        descend(network, u, LR)
    return weights_of(network)


@pytest.mark.parametrize(
    ("model", "variant", "atol"),
    thinned([("cnn_digits", "fo", 2e-6), ("mlr", "fo", 2e-6), ("mlr", "hf", 1e-5)], [("mlr", "hf", 1e-5)]),
)
def test_three_rounds_in_plain_torch(monkeypatch, model, variant, atol):
    """HF agrees with the exact Hessian of PyTorch where the loss is smooth: of logistic regression."""
    jobs = record(monkeypatch)
    method = {"name": "per_fedavg", "alpha": 0.1, "variant": variant, "delta": 0.01}
    simulation = run(three_devices(method, model=model, training={"batch": 64, "lr": LR}))
    server = flat(jobs[0].assignment.global_model)
    for round_ in rounds_of(jobs):
        sent = [turn(job, server, 0.1, variant) for job in round_]
        server = mean(sent, [samples_of(job) for job in round_])
    close_to(flat(simulation.learner.weights()), server, atol=atol)
    assert len(simulation.learner.memory) == DEVICES


def test_a_device_keeps_what_it_adapted(monkeypatch):
    """Its model minus alpha times the gradient of one more batch, of as many samples as the others."""
    from edgesim.learning.train import context as context_module

    drawn = []
    really_batch = context_module.Context.batch

    def batch(self, positions, augmenting):
        drawn.append(really_batch(self, positions, augmenting))
        return drawn[-1]

    jobs = record(monkeypatch)
    monkeypatch.setattr(context_module.Context, "batch", batch)
    changes = {"stop": {"rounds": 1}, "training": {"batch": 64, "lr": LR}}
    learner = run(three_devices({"name": "per_fedavg", "alpha": 0.1}, **changes)).learner
    sent = flat(jobs[-1].result.body)
    x, y = drawn[-1]
    assert len(y) == 64
    network = network_of(jobs[-1], sent)
    adapted = weights_of(at(jobs[-1], sent, gradient(network, x, y), -0.1))
    state = learner.memory[jobs[-1].assignment.device]
    close_to(flat(learner.method.personal_model(learner.weights(), state)), adapted)


@pytest.mark.parametrize("model", ["cnn_digits", NORMED])
@pytest.mark.parametrize("variant", ["fo", "hf"])
def test_without_adaptation_it_is_fedavg(model, variant):
    """alpha = 0: weights of three rounds, bit for bit, with dropout and batch normalisation too."""
    weights = [
        fingerprint(run(mixed_scenario(method=method, model=model)).learner.weights())
        for method in ("fedavg", {"name": "per_fedavg", "alpha": 0.0, "variant": variant})
    ]
    assert weights[0] == weights[1]


@pytest.mark.parametrize(("variant", "expected"), [("fo", [1.6, 1.2]), ("hf", [1.28, 0.48])])
def test_a_step_on_paper(monkeypatch, variant, expected):
    """F = (a w_1^2 + b w_2^2) / 2 with curvatures 2 and 6, w = (1, 1/2), alpha = 0.1.

    phi = ((1 - 0.2) 1, (1 - 0.6) / 2) = (0.8, 0.2), u = (1.6, 1.2), and (I - 0.1 H) u = (0.8 x 1.6, 0.4 x 1.2).
    """
    curvatures = torch.tensor([2.0, 6.0])

    def slope(w, batch, context, moving=False):
        return {"w.weight": curvatures * w["params"]["w.weight"]}

    monkeypatch.setattr("edgesim.methods.per_fedavg.dense_gradient", slope)
    device = Device(PerFedAvg(alpha=0.1, variant=variant, delta=0.5), [1.0, 0.5])
    device.context.task = replace(device.context.task, local_sgd=(LocalSGD(batch=1, lr=0.1, steps=1),))
    (found,) = device.rule.phases[0].gradient(device.local, None, device.context)
    assert found.tolist() == pytest.approx(expected)


@pytest.mark.parametrize(("variant", "passes", "updates"), [("fo", 2, 2), ("hf", 4, 9)])
@pytest.mark.parametrize(("batch", "steps", "last"), [(16, 3, 16), (64, 1, 40)])
def test_work_and_bytes(variant, passes, updates, batch, steps, last):
    """40 samples; at the end one batch more, of all 40 if batches are larger."""
    scenario = digits_scenario(
        method={"name": "per_fedavg", "variant": variant},
        training={"batch": batch},
        partition={"name": "iid", "samples_per_device": 40},
        backend="null",
    )
    jobs, total = frames(simulate_null(scenario))["jobs"], sum(PARAMS.values())
    assert set(jobs["flops"]) == {(40 * passes + last) * TRAIN + steps * updates * total}
    assert set(jobs["down_bytes"]) == set(jobs["up_bytes"]) == {4 * total}


@pytest.mark.parametrize(("key", "value"), [("alpha", -0.1), ("variant", "so"), ("delta", 0.0)])
def test_settings_out_of_range(key, value):
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        digits_scenario(method={"name": "per_fedavg", key: value})


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "per_fedavg": {
        "aggregate_over": "test_fedavg.py::test_absent_devices_may_count_with_the_old_model",
        "weights": "test_fedavg.py::test_devices_may_count_alike",
        "alpha": "test_without_adaptation_it_is_fedavg",
        "variant": "test_a_step_on_paper",
        "delta": "test_three_rounds_in_plain_torch",
    },
}
