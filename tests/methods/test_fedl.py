"""FEDL against numbers on paper and the whole algorithm once more in PyTorch.

Source: Dinh et al. (2021), algorithm 1.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from edgesim.core.backend import Assignment
from edgesim.core.errors import ConfigError
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.task import Task
from edgesim.learning.train.context import Context
from edgesim.learning.train.loop import run_local_sgd
from edgesim.methods.fedl import Fedl
from tests.conftest import digits_scenario, frames
from tests.contracts.support import NORMED, mixed_scenario, run
from tests.contracts.test_prices import measured_jobs
from tests.methods.hand_made import KEY, message_of, server_of, setting_of, view_of
from tests.methods.recorded import close_to, record
from tests.plugins.one_number import Ones
from tests.sizes import full

PARAMS = 6090  # of cnn_digits
NAME = "w.weight"


def numbers(**kinds):
    """Return a bundle of one number a kind."""
    return {"buffers": {}, **{kind: {NAME: torch.tensor([value])} for kind, value in kinds.items()}}


def two_steps(monkeypatch, global_model, eta, steps=2):
    """Return what a device sends after steps at a rate of 0.1 where the loss is w^2 / 2, so that its gradient is w."""
    monkeypatch.setattr("edgesim.methods.fedl.whole_gradient", lambda model, _: {NAME: model["params"][NAME].clone()})
    module = nn.Module()
    module.w = nn.Module()
    module.w.weight = nn.Parameter(torch.zeros(1))
    sgd = LocalSGD(batch=1, lr=0.1, steps=2)
    job = Assignment(0, 0, Task(local_sgd=(sgd,)), KEY, global_model, None)
    context = Context(module, Ones(samples=1).load(), torch.arange(1), job, False)
    rule = Fedl(eta=eta).local(job.task)
    local = rule.on_start(context)
    phase = replace(rule.phases[0], gradient=lambda local, batch, context: [local.weights["params"][NAME].clone()])
    run_local_sgd(local, sgd, phase, context, KEY, most=steps)
    return rule.on_finish(local, context).body


def test_a_device_on_paper(monkeypatch):
    """0.5 x 0.4 - 1 = -0.8 beside g: 1 - 0.1 (1 - 0.8) = 0.98, 0.98 - 0.1 (0.98 - 0.8) = 0.962; there g = 0.962."""
    body = two_steps(monkeypatch, numbers(params=1.0, gradient=0.4), 0.5)
    assert body["params"][NAME].item() == pytest.approx(0.962)
    assert body["gradient"][NAME].item() == pytest.approx(0.962)


def test_without_a_gradient_of_all_it_is_sgd(monkeypatch):
    """1, 0.9, 0.81. A device that took no step has no gradient to send."""
    body = two_steps(monkeypatch, numbers(params=1.0), 0.5)
    assert (body["params"][NAME].item(), body["gradient"][NAME].item()) == pytest.approx((0.81, 0.81))
    assert "gradient" not in two_steps(monkeypatch, numbers(params=1.0), 0.5, steps=0)


def test_the_server_on_paper():
    """1 and 3 samples: (1 x 1 + 3 x 3) / 4 = 2.5 and (0.2 + 3 x 0.6) / 4 = 0.5; who sent no gradient does not count."""
    view, method = view_of(setting_of([1, 3], {})), Fedl()

    def merged(*bodies):
        got = [message_of(k, (1, 3)[k], {})._replace(body=body) for k, body in enumerate(bodies)]
        base = numbers(params=1.0, gradient=0.2)
        model = method.aggregate({}, base, got, server_of(view), KEY).model
        return model["params"][NAME].item(), model["gradient"][NAME].item()

    first, second = numbers(params=1.0, gradient=0.2), numbers(params=3.0, gradient=0.6)
    assert merged(first, second) == pytest.approx((2.5, 0.5))
    assert merged(numbers(params=1.0), second) == pytest.approx((2.5, 0.6))
    assert merged(numbers(params=1.0), numbers(params=3.0)) == pytest.approx((2.5, 0.2))


def gradient(network, x, y):
    """Return the gradient of the cross-entropy by name."""
    names, weights = zip(*network.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(cross_entropy(network(x), y), weights), strict=True))


def test_the_whole_algorithm(monkeypatch):
    """Four of six devices in three rounds: models and gradients of every round."""
    jobs = record(monkeypatch)
    changes = {"selection": {"name": "uniform", "count": 4}, "stop": {"rounds": 3}, "training": {"batch": 8, "lr": 0.1}}
    simulation = run(mixed_scenario(method={"name": "fedl", "eta": 0.7}, **changes))
    x, of_all = jobs[0].assignment.global_model["params"], None
    for round_ in range(3):
        models, gradients, samples = [], [], []
        for job in jobs[4 * round_ : 4 * round_ + 4]:
            close_to(job.assignment.global_model["params"], x)
            network, shard = job.network({"params": x}), job.trainer.shards[job.assignment.device]
            everything, lr = job.trainer.data.batch("train", shard), job.assignment.task.local_sgd[0].lr
            before = gradient(network, *everything)
            for batch in job.batches():
                grads = gradient(network, *batch)
                for name, w in network.named_parameters():
                    w.data -= lr * (grads[name] + (0.7 * of_all[name] - before[name] if of_all else 0.0))
            models.append(dict(network.named_parameters()))
            gradients.append(gradient(network, *everything))
            samples.append(len(shard))
        x, of_all = (
            {n: sum(s * each[n] for s, each in zip(samples, parts, strict=True)).detach() / sum(samples) for n in x}
            for parts in (models, gradients)
        )
    close_to(simulation.learner.weights()["params"], x, atol=1e-5)
    close_to(simulation.learner.weights()["gradient"], of_all, atol=1e-5)


def test_a_single_device_is_fedavg():
    """Its own gradient is that of all, so nothing is corrected at eta = 1."""
    one = {
        "selection": {"name": "uniform", "count": 1},
        "fleet": [{"cpu": {"flops_per_s": 1e9}}],
        "stop": {"rounds": 3},
    }
    method = {"name": "fedl", "eta": 1.0}
    weights = [run(mixed_scenario(method=each, **one)).learner.weights()["params"] for each in (method, "fedavg")]
    close_to(*weights, atol=1e-5)


def test_the_gradient_travels_both_ways():
    """Beside every parameter; down from the second round on, when there is one; running statistics travel once."""
    for model, params, sent in (("cnn_digits", PARAMS, 2 * PARAMS), (NORMED, 418 + 8, 2 * 418 + 8)):
        jobs = frames(run(mixed_scenario(method="fedl", model=model, backend="null", stop={"rounds": 2})))["jobs"]
        assert set(jobs["up_bytes"]) == {4 * sent}
        assert set(jobs.query("round == 0")["down_bytes"]) == {4 * params}
        assert set(jobs.query("round == 1")["down_bytes"]) == {4 * sent}


@full
@pytest.mark.parametrize("model", ["cnn_digits", NORMED])
@pytest.mark.parametrize("batch", [13, 16])
def test_the_passes_are_paid_for(model, batch, monkeypatch):
    """FLOPs of the gradients of all samples, of which batch normalisation leaves out a single last one."""
    jobs = measured_jobs(mixed_scenario(method="fedl", model=model, training={"batch": batch}), monkeypatch)
    assert jobs["round"].nunique() > 1
    assert (jobs["flops"] == jobs["real_flops"]).all()
    assert (jobs["up_bytes"] == jobs["real_bytes"]).all()


def test_eta_is_above_0():
    with pytest.raises(ConfigError, match=r"method\.eta"):
        digits_scenario(method={"name": "fedl", "eta": 0})


# The test of each key of the methods, here or in another file.
OPTIONS = {"fedl": {"eta": "test_a_device_on_paper"}}
