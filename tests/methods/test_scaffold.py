"""SCAFFOLD against numbers on paper and the whole algorithm once more in PyTorch.

Source: Karimireddy et al. (2020), algorithm 1.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn
from torch.nn.functional import cross_entropy

import edgesim
from edgesim.core.backend import Assignment
from edgesim.core.errors import ConfigError
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.task import Task
from edgesim.learning.train.context import Context
from edgesim.learning.train.loop import run_local_sgd
from edgesim.methods.scaffold import Scaffold
from tests.conftest import digits_scenario, frames
from tests.contracts.support import COORDINATORS, NORMED, mixed_scenario, run
from tests.contracts.test_prices import measured_jobs
from tests.methods.hand_made import KEY, message_of, server_of, setting_of, view_of
from tests.methods.one_device import flops_on_top
from tests.methods.recorded import close_to, record
from tests.plugins.one_number import Ones
from tests.sizes import full

PARAMS = 6090  # of cnn_digits
NAME = "w.weight"


def numbers(**kinds):
    """Return a bundle of one number a kind."""
    return {"buffers": {}, **{kind: {NAME: torch.tensor([value])} for kind, value in kinds.items()}}


def two_steps(global_model, device_state, steps=2):
    """Return what a device sends and keeps after steps at a rate of 0.1 where the gradient is the model."""
    module = nn.Module()
    module.w = nn.Module()
    module.w.weight = nn.Parameter(torch.zeros(1))
    sgd = LocalSGD(batch=1, lr=0.1, steps=2)
    job = Assignment(0, 0, Task(local_sgd=(sgd,)), KEY, global_model, device_state)
    context = Context(module, Ones(samples=1).load(), torch.arange(1), job, False)
    rule = Scaffold().local(job.task)
    local = rule.on_start(context)
    phase = replace(rule.phases[0], gradient=lambda local, batch, context: [local.weights["params"][NAME].clone()])
    run_local_sgd(local, sgd, phase, context, KEY, most=steps)
    finished = rule.on_finish(local, context)
    return finished.body, finished.new_device_state


def merged(global_model, bodies, devices=2, samples=(), **settings):
    """Return the model and c after a merge of these bodies."""
    got = [message_of(k, (samples or [1] * len(bodies))[k], {})._replace(body=body) for k, body in enumerate(bodies)]
    view = view_of(setting_of([1] * devices, {}))
    model = Scaffold(**settings).aggregate({}, global_model, got, server_of(view), KEY).model
    return model["params"][NAME].item(), model["control"][NAME].item() if "control" in model else None


# --- on paper ---------------------------------------------------------------------------------------------------


def test_a_round_on_paper():
    """1 - 0.1 (1 - 0.1 + 0.2) = 0.89, 0.89 - 0.1 (0.89 + 0.1) = 0.791; c_k = 0.1 - 0.2 + 0.209 / 0.2; one of two."""
    base = numbers(params=1.0, control=0.2)
    body, keep = two_steps(base, numbers(control=0.1))
    assert body["params"][NAME].item() == pytest.approx(0.791)
    assert keep["control"][NAME].item() == pytest.approx(0.945)
    assert body["control"][NAME].item() == pytest.approx(0.845)
    assert merged(base, [body]) == pytest.approx((0.791, 0.6225))


def test_the_first_round_is_sgd():
    """No c, no c_k: 1, 0.9, 0.81; c_k is the mean gradient 0.95, and c is half of it."""
    body, keep = two_steps(numbers(params=1.0), None)
    assert body["params"][NAME].item() == pytest.approx(0.81)
    assert keep["control"][NAME].item() == pytest.approx(0.95)
    assert merged(numbers(params=1.0), [body]) == pytest.approx((0.81, 0.475))


def test_steps_really_taken_count():
    """A device that stops after one of two steps: c_k is the one gradient that it saw, 1, as there is no correction."""
    _, keep = two_steps(numbers(params=1.0, control=0.2), numbers(control=0.2), steps=1)
    assert keep["control"][NAME].item() == pytest.approx(1.0)


def test_who_took_no_step_changes_no_control():
    """It sends no change and keeps what it had; c stays, or is not there yet."""
    body, keep = two_steps(numbers(params=1.0, control=0.2), None, steps=0)
    assert (keep, "control" in body) == (None, False)
    assert merged(numbers(params=1.0, control=0.2), [body]) == pytest.approx((1.0, 0.2))
    assert merged(numbers(params=1.0), [body]) == (1.0, None)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, (2.0, 0.2 + 2 / 4 * 0.5)),
        ({"eta_g": 0.5}, (1.5, 0.2 + 2 / 4 * 0.5)),
        ({"weights": "samples"}, (2.5, 0.2 + 2 / 4 * 0.75)),
    ],
)
def test_server(settings, expected):
    """Two of four devices, 1 and 3 samples, at 1 and 3 with changes of 0 and 1, from a model of 1 and c = 0.2."""
    bodies = [numbers(params=1.0, control=0.0), numbers(params=3.0, control=1.0)]
    base = numbers(params=1.0, control=0.2)
    assert merged(base, bodies, devices=4, samples=(1, 3), **settings) == pytest.approx(expected)


def test_who_sent_no_change_counts_with_none():
    """Two devices of four, one of which took no step: c moves by a quarter of the other's change."""
    bodies = [numbers(params=1.0), numbers(params=3.0, control=1.0)]
    assert merged(numbers(params=1.0), bodies, devices=4)[1] == pytest.approx(0.25)


# --- in a run ---------------------------------------------------------------------------------------------------


def gradient(network, x, y):
    """Return the gradient of the cross-entropy by name."""
    names, weights = zip(*network.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(cross_entropy(network(x), y), weights), strict=True))


def in_pytorch(job, c, mine, option):
    """Return a device's model and new control variate, and the number of its steps."""
    network, lr = job.network(job.assignment.global_model), job.assignment.task.local_sgd[0].lr
    shard = job.trainer.shards[job.assignment.device]
    whole = gradient(network, *job.trainer.data.batch("train", shard))
    seen = {name: torch.zeros_like(t) for name, t in whole.items()}
    steps = 0
    for steps, (x, y) in enumerate(job.batches(), start=1):  # noqa: B007
        grads = gradient(network, x, y)
        for name, w in network.named_parameters():
            w.data -= lr * (grads[name] - mine[name] + c[name])
            seen[name] += grads[name]
    mean = {name: t / steps for name, t in seen.items()}
    return dict(network.named_parameters()), whole if option == "I" else mean, steps


@pytest.mark.parametrize("option", ["I", "II"])
def test_the_whole_algorithm(monkeypatch, option):
    """Four of six devices in four rounds, which stop when they like: models, c_k and c of every round."""
    jobs = record(monkeypatch)
    failures = [{"name": "partial_work", "probability": 0.5}]
    method = {"name": "scaffold", "option": option, "eta_g": 0.7}
    changes = {"selection": {"name": "uniform", "count": 4}, "stop": {"rounds": 4}, "training": {"batch": 8, "lr": 0.1}}
    simulation = run(mixed_scenario(method=method, failures=failures, **changes))
    assert len(jobs) == 16
    x = jobs[0].assignment.global_model["params"]
    zeros = {name: torch.zeros_like(t) for name, t in x.items()}
    c, own, taken = zeros, {}, set()
    for round_ in range(4):
        models, moved = [], []
        for job in jobs[4 * round_ : 4 * round_ + 4]:
            close_to(job.assignment.global_model["params"], x)
            mine = own.get(job.assignment.device, zeros)
            model, new, steps = in_pytorch(job, c, mine, option)
            close_to(job.result.new_device_state["control"], new, atol=2e-5)
            models.append(model)
            moved.append({name: new[name] - mine[name] for name in new})
            own[job.assignment.device] = new
            taken.add(steps)
        x = {n: (old + 0.7 * (sum(m[n] for m in models) / 4 - old)).detach() for n, old in x.items()}
        c = {name: old + 4 / 6 * sum(m[name] for m in moved) / 4 for name, old in c.items()}
    close_to(simulation.learner.weights()["params"], x, atol=1e-5)
    close_to(simulation.learner.weights()["control"], c, atol=2e-5)
    assert len(taken) > 1


def test_c_is_the_mean_of_all_devices_own():
    """Also of those that are never asked, at 0."""
    simulation = run(mixed_scenario(method="scaffold", selection={"name": "uniform", "count": 2}, model=NORMED))
    c, memory = simulation.learner.weights()["control"], simulation.learner.memory
    assert 2 <= len(memory) < 6
    close_to(c, {name: sum(own["control"][name] for own in memory.values()) / 6 for name in c})


def test_who_does_not_deliver_keeps_its_own():
    """Late in its upload device 1 knows c_k, the server does not, so it is forgotten."""
    scenario = mixed_scenario(method="scaffold", protocol=COORDINATORS["deadline"], stop={"rounds": 1})
    assert run(scenario).learner.memory.keys() == {2, 3, 4, 5}


def test_saved_weights_are_the_model(tmp_path):
    """And not the control variates, which have the same names."""
    simulation = run(mixed_scenario(method="scaffold"))
    edgesim.run(mixed_scenario(method="scaffold"), out=tmp_path / "run")
    saved = load_file(tmp_path / "run" / "final.safetensors")
    params = simulation.learner.weights()["params"]
    assert saved.keys() == params.keys()
    assert all(np.array_equal(saved[name], tensor.numpy()) for name, tensor in params.items())


# --- what it costs ----------------------------------------------------------------------------------------------


def test_twice_the_bytes_and_two_flops_a_parameter():
    """A control variate beside every parameter in both directions; running statistics travel once."""
    for model, numbers_sent in (("cnn_digits", 2 * PARAMS), (NORMED, 2 * 418 + 8)):
        jobs = frames(run(mixed_scenario(method="scaffold", model=model, backend="null", stop={"rounds": 1})))["jobs"]
        assert set(jobs["up_bytes"]) == set(jobs["down_bytes"]) == {4 * numbers_sent}
    assert set(flops_on_top("scaffold")) == {2 * PARAMS}


@full
@pytest.mark.parametrize("model", ["cnn_digits", NORMED])
@pytest.mark.parametrize("batch", [13, 16])
def test_option_one_pays_for_another_pass(model, batch, monkeypatch):
    """FLOPs of the gradient of all samples, of which batch normalisation leaves out a single last one."""
    scenario = mixed_scenario(method={"name": "scaffold", "option": "I"}, model=model, training={"batch": batch})
    jobs = measured_jobs(scenario, monkeypatch)
    assert (jobs["flops"] == jobs["real_flops"]).all()
    assert (jobs["up_bytes"] == jobs["real_bytes"]).all()


# --- what does not fit ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "value"), [("momentum", 0.9), ("weight_decay", 0.0005), ("clip_norm", 10)])
def test_only_plain_sgd(name, value):
    """Moves are sums of gradients with nothing else."""
    scenario = mixed_scenario(method="scaffold", training={"batch": 16, "lr": 0.1, name: value}, backend="null")
    with pytest.raises(ConfigError, match=rf"training\.{name}: must be (0|inf) for this method, found {value}"):
        run(scenario)


@pytest.mark.parametrize("wrong", [{"option": "III"}, {"eta_g": 0}, {"weights": "loss"}])
def test_settings_out_of_range(wrong):
    (key,) = wrong
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        digits_scenario(method={"name": "scaffold", **wrong})


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "scaffold": {
        "option": "test_the_whole_algorithm",
        "eta_g": "test_server",
        "weights": "test_server",
    },
}
