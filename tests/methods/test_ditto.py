"""Ditto against numbers on paper, FedAvg and PyTorch's own SGD.

Source: Li et al. (2021), algorithm 1; DA-DPFL paper for how many epochs each of the two models gets.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from edgesim.core.backend import Assignment
from edgesim.core.errors import ConfigError
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.method import LocalState
from edgesim.core.task import Task
from edgesim.learning.train import loop
from edgesim.learning.train.context import Context
from edgesim.learning.train.loop import run_local_sgd
from edgesim.methods.ditto import Ditto
from tests.conftest import digits_scenario, frames, simulate_null
from tests.contracts.support import COORDINATORS, fingerprint, mixed_scenario, run
from tests.methods.hand_made import KEY, model_of
from tests.methods.recorded import close_to, record
from tests.plugins.one_number import Ones

PARAMS = 6090  # of cnn_digits


def personal_steps(monkeypatch, steps, momentum=0.0, **settings):
    """Return where so many personal steps lead from 1, at a rate of 0.1 and a global model of 2; F = (v - 5)^2 / 2."""
    module = nn.Module()
    module.w = nn.Module()
    module.w.weight = nn.Parameter(torch.zeros(1))
    monkeypatch.setattr(loop, "objective_loss", lambda w, batch, context: ((module.w.weight - 5) ** 2 / 2).sum())
    sgd = LocalSGD(batch=1, lr=0.1, steps=max(steps, 1), momentum=momentum)
    task = Task(local_sgd=(sgd, sgd))
    received, own = model_of({"w": [2.0]}), model_of({"w": [1.0]})
    context = Context(
        module, Ones(samples=1).load(), torch.arange(1), Assignment(0, 0, task, KEY, received, own), False
    )
    rule = Ditto(**settings).local(task)
    local = rule.phases[1].on_enter(rule.on_start(context), context)
    run_local_sgd(local, sgd, rule.phases[1], context, KEY, most=steps)
    body, keep, *_ = rule.on_finish(local, context)
    assert body["params"]["w.weight"].item() == 2
    assert (received["params"]["w.weight"].item(), own["params"]["w.weight"].item()) == (2, 1)
    return keep["params"]["w.weight"].item()


# --- a step -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("proximal", "expected"), [("joint", 1.45), ("split", 1.43)])
def test_a_personal_step(monkeypatch, proximal, expected):
    """1 - 0.1 (-4 - 0.5) = 1.45; 1 - 0.1 (-4) = 1.4, then 1.4 + 0.05 (2 - 1.4) = 1.43. The gradient is taken at 1."""
    assert personal_steps(monkeypatch, 1, proximal=proximal) == pytest.approx(expected)


@pytest.mark.parametrize(("proximal", "expected"), [("joint", 1.8325), ("split", 1.79765)])
def test_a_second_step(monkeypatch, proximal, expected):
    """1.45 + 0.1 (3.55 + 0.275) = 1.8325; 1.43 + 0.357 = 1.787, then 1.787 + 0.05 x 0.213 = 1.79765."""
    assert personal_steps(monkeypatch, 2, proximal=proximal) == pytest.approx(expected)


def test_momentum_does_not_remember_a_pull_of_its_own(monkeypatch):
    """Split, 0.9: velocities -4 and -3.6 - 3.57 = -7.17: 1.43 + 0.717 = 2.147, then 2.147 - 0.05 x 0.147 = 2.13965."""
    assert personal_steps(monkeypatch, 2, 0.9, proximal="split") == pytest.approx(2.13965)


@pytest.mark.parametrize("proximal", ["joint", "split"])
def test_no_step_is_no_pull(monkeypatch, proximal):
    """A device that stopped before its personal steps keeps what it had."""
    assert personal_steps(monkeypatch, 0, proximal=proximal) == 1


# --- on real devices --------------------------------------------------------------------------------------------


def in_pytorch(job, place, start, lam=0.0, proximal="joint"):
    """Return the model after a stretch of PyTorch's SGD from `start`, held to the model received."""
    network, sgd = job.network(start), job.assignment.task.local_sgd[place]
    anchor = dict(job.network(job.assignment.global_model).named_parameters())
    names, weights = zip(*network.named_parameters(), strict=True)
    optimiser = torch.optim.SGD(weights, lr=sgd.lr, momentum=sgd.momentum, weight_decay=sgd.weight_decay)
    for x, y in job.batches(place):
        pull = sum((w - anchor[name].detach()).square().sum() for name, w in zip(names, weights, strict=True)) / 2
        optimiser.zero_grad()
        (cross_entropy(network(x), y) + (lam * pull if proximal == "joint" else 0)).backward()
        nn.utils.clip_grad_norm_(weights, sgd.clip_norm)
        optimiser.step()
        with torch.no_grad():
            for name, w in zip(names, weights, strict=True) if proximal == "split" else ():
                w -= sgd.lr * lam * (w - anchor[name])
    return {name: w.detach() for name, w in zip(names, weights, strict=True)}


@pytest.mark.parametrize("proximal", ["joint", "split"])
@pytest.mark.parametrize("first_personal", ["initial", "received"])
def test_devices_train_both_models(monkeypatch, proximal, first_personal):
    """Two of six devices a round, with momentum, weight decay and clipping: what they send and what they keep.

    A device's own model starts where it was left at its last turn, at first from the run's first model or the one
    received, and is held to the one received in this round.
    """
    jobs = record(monkeypatch)
    method = {"name": "ditto", "proximal": proximal, "first_personal": first_personal, "lam": 2.0}
    method |= {"global_epochs": 1, "personal_epochs": 2}
    training = {"batch": 16, "lr": 0.05, "momentum": 0.5, "weight_decay": 0.01, "clip_norm": 1.0}
    rounds = {"stop": {"rounds": 4}, "selection": {"name": "uniform", "count": 2}}
    simulation = run(mixed_scenario(method=method, training=training, **rounds))
    first, own = jobs[0].assignment.global_model, {}
    for job in jobs:
        base, device = job.assignment.global_model, job.assignment.device
        start = own.get(device, first if first_personal == "initial" else base)
        close_to(job.result.body["params"], in_pytorch(job, 0, base))
        close_to(job.result.new_device_state["params"], in_pytorch(job, 1, start, 2.0, proximal))
        own[device] = job.result.new_device_state
    assert len(jobs) == 8 > len(own)  # somebody came twice
    assert {device: fingerprint(kept) for device, kept in simulation.learner.memory.items()} == {
        device: fingerprint(kept) for device, kept in own.items()
    }


def test_the_global_model_is_that_of_fedavg():
    """Personal models never leave their devices: bit for bit, whatever holds them."""
    weights = [
        fingerprint(run(mixed_scenario(method=method)).learner.weights())
        for method in ("fedavg", "ditto", {"name": "ditto", "lam": 3.0, "personal_epochs": 2})
    ]
    assert len(set(weights)) == 1


def test_each_device_is_tested_with_its_own_model():
    """After a round with two of six devices the others use the global model."""
    changes = {"selection": {"name": "uniform", "count": 2}, "stop": {"rounds": 1}, "evaluation": {"personal": True}}
    simulation = run(mixed_scenario(method="ditto", **changes))
    learner, trainer = simulation.learner, simulation.parts.make_trainer("cpu")
    metrics = simulation.tables["metrics"].frame()
    found = metrics[metrics["name"] == "personal_accuracy"].set_index("device")["value"].to_dict()
    models = {device: learner.memory.get(device, learner.weights()) for device in range(6)}
    assert found == {device: trainer.score_personal(device, model).accuracy for device, model in models.items()}
    assert len(learner.memory) == 2
    assert fingerprint(next(iter(learner.memory.values()))) != fingerprint(learner.weights())


def test_who_is_late_has_trained_its_own_model():
    """Device 1 computes in time and is late in its upload; device 0 is still computing."""
    memory = run(mixed_scenario(method="ditto", protocol=COORDINATORS["deadline"], stop={"rounds": 1})).learner.memory
    assert memory.keys() == {1, 2, 3, 4, 5}


def test_a_model_that_diverged_is_forgotten():
    """The one before it stays."""
    diverged = LocalState({"params": {"w": torch.tensor([float("inf")])}}, SimpleNamespace(sent={"params": {}}))
    assert Ditto().local(Task()).on_finish(diverged, None).new_device_state is None


# --- what it costs ----------------------------------------------------------------------------------------------


def test_work_and_bytes():
    """Three and two epochs of 40 samples in batches of 16: five of FedAvg's, and 2 FLOPs a parameter in 6 steps."""
    changes = {"partition": {"name": "iid", "samples_per_device": 40}, "backend": "null"}
    method = {"name": "ditto", "global_epochs": 3, "personal_epochs": 2}
    jobs = [frames(simulate_null(digits_scenario(method=m, **changes)))["jobs"] for m in (method, "fedavg")]
    assert jobs[0]["flops"].tolist() == pytest.approx((5 * jobs[1]["flops"] + 2 * PARAMS * 2 * 3).tolist(), rel=1e-12)
    assert jobs[0]["up_bytes"].tolist() == jobs[1]["up_bytes"].tolist() == [4 * PARAMS] * len(jobs[0])
    assert jobs[0]["down_bytes"].tolist() == jobs[1]["down_bytes"].tolist()


def test_epochs_are_the_scenario_s_unless_given():
    """Each model is trained as FedAvg trains its one: twice the work, and one FLOP a parameter and step on average."""
    changes = {"training": {"batch": 16, "local_epochs": 3}, "backend": "null"}
    for lam, pull in ((0.5, 2 * PARAMS * 3 * 3), (0.0, 0)):
        some = {"partition": {"name": "iid", "samples_per_device": 40}, **changes}
        scenarios = [digits_scenario(method=m, **some) for m in ({"name": "ditto", "lam": lam}, "fedavg")]
        mine, usual = (frames(simulate_null(scenario))["jobs"]["flops"] for scenario in scenarios)
        assert (mine - 2 * usual).tolist() == [pull] * len(mine)


@pytest.mark.parametrize(
    "wrong",
    [{"lam": -0.1}, {"proximal": "both"}, {"global_epochs": 0}, {"personal_epochs": 0}, {"first_personal": "x"}],
)
def test_settings_out_of_range(wrong):
    (key,) = wrong
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        digits_scenario(method={"name": "ditto", **wrong})


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "ditto": {
        "aggregate_over": "test_fedavg.py::test_absent_devices_may_count_with_the_old_model",
        "weights": "test_fedavg.py::test_devices_may_count_alike",
        "lam": "test_devices_train_both_models",
        "proximal": "test_a_personal_step",
        "global_epochs": "test_work_and_bytes",
        "personal_epochs": "test_epochs_are_the_scenario_s_unless_given",
        "first_personal": "test_devices_train_both_models",
    },
}
