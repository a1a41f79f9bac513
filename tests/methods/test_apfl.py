"""APFL against numbers on paper, plain PyTorch, FedAvg and prices on paper.

Source: Deng, Kamani and Mahdavi (2020), algorithm 1 and the step of alpha in section 4.2.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from edgesim.core.errors import ConfigError
from edgesim.core.local_sgd import LocalSGD
from edgesim.methods.apfl import APFL
from tests.conftest import digits_scenario, frames, simulate_null
from tests.contracts.support import NORMED, fingerprint, mixed_scenario, run
from tests.methods.hand_made import model_of
from tests.methods.one_device import Device
from tests.methods.plain_torch import (
    DEVICES,
    NORMED_UNITS,
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
from tests.sizes import spread, thinned

TRAIN = 168448 + 168448 + 150016  # FLOPs a sample of cnn_digits: forward, weights' and inputs' gradients
LR = 0.05


def turn(job, received, own, adaptive):
    """Return w, and v with its share and the running statistics of the mixture, after a device's turn."""
    network, mixture = network_of(job, received), network_of(job, own["v"])
    v = {name: own["v"][name].clone() for name, _ in network.named_parameters()}
    share = own["alpha"]
    for step, (x, y) in enumerate(job.batches()):
        w = {name: t.detach().clone() for name, t in network.named_parameters()}
        for name, t in mixture.named_parameters():
            t.data = share * v[name] + (1 - share) * w[name]
        g = gradient(mixture, x, y)
        old = share
        if adaptive and step == 0:
            share -= LR * sum(((v[name] - w[name]) * g[name]).sum().item() for name in v)
            share = min(max(share, 0.0), 1.0)
        v = {name: t - LR * old * g[name] for name, t in v.items()}
        descend(network, gradient(network, x, y), LR)
    return weights_of(network), {"v": {**weights_of(mixture), **v}, "alpha": share}


@pytest.mark.parametrize("model", thinned(["cnn_digits", NORMED_UNITS], [NORMED_UNITS]))
@pytest.mark.parametrize(("alpha", "adaptive"), spread([(0.9, True), (0.25, False), (0.5, True), (1.0, False)], 1))
def test_three_rounds_in_plain_torch(monkeypatch, model, alpha, adaptive):
    """What the server makes, what each device keeps, and the mixture that it uses."""
    jobs = record(monkeypatch)
    simulation = run(three_devices({"name": "apfl", "alpha": alpha, "adaptive": adaptive}, model=model))
    server = flat(jobs[0].assignment.global_model)
    kept = [{"v": dict(server), "alpha": alpha} for _ in range(DEVICES)]
    for round_ in rounds_of(jobs):
        sent = []
        for job in round_:
            device = job.assignment.device
            new, kept[device] = turn(job, server, kept[device], adaptive)
            sent.append(new)
        server = mean(sent, [samples_of(job) for job in round_])
    learner = simulation.learner
    close_to(flat(learner.weights()), server, atol=1e-5)
    assert len(learner.memory) == DEVICES
    statistics = jobs[0].assignment.global_model["buffers"]
    for device, state in learner.memory.items():
        v, share = kept[device]["v"], kept[device]["alpha"]
        assert float(state["mixing"]["alpha"]) == pytest.approx(share, abs=1e-5)
        assert (share != alpha) == adaptive
        close_to(flat(state), v, atol=1e-5)
        mixed = {n: v[n] if n in statistics else share * v[n] + (1 - share) * server[n] for n in server}
        close_to(flat(learner.method.personal_model(learner.weights(), state)), mixed, atol=1e-5)


@pytest.mark.parametrize(("adaptive", "share"), [(False, 0.5), (True, 0.55)])
def test_a_step(monkeypatch, adaptive, share):
    """w = (1, 0), v = (3, 0), lr 0.1, slope of the mixture (-0.25, 1): v goes by -0.1 x 0.5 x that.

    alpha goes by -0.1 <(2, 0), (-0.25, 1)> = +0.05, and once a job.
    """
    seen = []

    def given(w, batch, context, moving):
        seen.append(w["params"]["w.weight"].tolist())
        return {"w.weight": torch.tensor([-0.25, 1.0])}

    monkeypatch.setattr("edgesim.methods.apfl.dense_gradient", given)
    monkeypatch.setattr("edgesim.methods.apfl.objective_loss", lambda w, batch, context: None)
    monkeypatch.setattr("edgesim.methods.apfl.gradients", lambda loss, wrt: [torch.tensor([7.0, 7.0])])
    state = {**model_of({"w": [3.0, 0.0]}), "mixing": {"alpha": torch.tensor(0.5)}}
    device = Device(APFL(adaptive=adaptive), [1.0, 0.0], state)
    device.context.task = replace(device.context.task, local_sgd=(LocalSGD(batch=1, lr=0.1, steps=2),))
    for expected_v, expected_share in (
        ([3.0125, -0.05], share),
        ([3.0125 + 0.025 * share, -0.05 - 0.1 * share], share),
    ):
        slopes = device.rule.phases[0].gradient(device.local, None, device.context)
        assert slopes[0].tolist() == [7.0, 7.0]
        assert device.local.scratch.own["params"]["w.weight"].tolist() == pytest.approx(expected_v)
        assert device.local.scratch.share == pytest.approx(expected_share)
    assert seen[0] == [2.0, 0.0]  # half of each


@pytest.mark.parametrize("model", ["cnn_digits", NORMED])
@pytest.mark.parametrize("method", [{"alpha": 0.0}, {"alpha": 0.7, "adaptive": True}])
def test_the_global_model_is_that_of_fedavg(model, method):
    """Whatever devices mix, bit for bit, with dropout and batch normalisation too."""
    weights = [
        fingerprint(run(mixed_scenario(method=each, model=model)).learner.weights())
        for each in ("fedavg", {"name": "apfl", **method})
    ]
    assert weights[0] == weights[1]


def test_with_alpha_0_devices_use_the_global_model():
    """Bit for bit; with a share of their own they do not."""
    for alpha in (0.0, 0.5):
        learner = run(mixed_scenario(method={"name": "apfl", "alpha": alpha})).learner
        used = {fingerprint(learner.method.personal_model(learner.weights(), s)) for s in learner.memory.values()}
        assert (used == {fingerprint(learner.weights())}) == (alpha == 0)


def test_alpha_stays_a_share(monkeypatch):
    """A slope that would take it far beyond 1 or below 0 leaves it there."""
    monkeypatch.setattr("edgesim.methods.apfl.objective_loss", lambda w, batch, context: None)
    monkeypatch.setattr("edgesim.methods.apfl.gradients", lambda loss, wrt: [])
    for slope, end in ((-1e6, 1.0), (1e6, 0.0)):
        monkeypatch.setattr(
            "edgesim.methods.apfl.dense_gradient", lambda *_, moving, s=slope: {"w.weight": torch.tensor([s])}
        )
        device = Device(APFL(adaptive=True), [0.0], {**model_of({"w": [1.0]}), "mixing": {"alpha": torch.tensor(0.5)}})
        device.context.task = replace(device.context.task, local_sgd=(LocalSGD(batch=1, lr=0.1, steps=1),))
        device.rule.phases[0].gradient(device.local, None, device.context)
        assert device.local.scratch.share == end


@pytest.mark.parametrize("adaptive", [False, True])
def test_work_and_bytes(adaptive):
    """40 samples in three batches: two passes, 4 FLOPs a parameter and step, and 3 a parameter once for alpha."""
    scenario = digits_scenario(
        method={"name": "apfl", "adaptive": adaptive},
        partition={"name": "iid", "samples_per_device": 40},
        backend="null",
    )
    jobs, total = frames(simulate_null(scenario))["jobs"], sum(PARAMS.values())
    assert set(jobs["flops"]) == {40 * 2 * TRAIN + (3 * 4 + 3 * adaptive) * total}
    assert set(jobs["down_bytes"]) == set(jobs["up_bytes"]) == {4 * total}


@pytest.mark.parametrize(("key", "value"), [("alpha", -0.1), ("alpha", 1.1), ("adaptive", 1)])
def test_settings_out_of_range(key, value):
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        digits_scenario(method={"name": "apfl", key: value})


def test_only_plain_sgd():
    scenario = digits_scenario(method="apfl", training={"batch": 16, "momentum": 0.5}, backend="null")
    with pytest.raises(ConfigError, match=r"training\.momentum: must be 0 .* found 0.5; the steps of its personal"):
        simulate_null(scenario)


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "apfl": {
        "aggregate_over": "test_fedavg.py::test_absent_devices_may_count_with_the_old_model",
        "weights": "test_fedavg.py::test_devices_may_count_alike",
        "alpha": "test_with_alpha_0_devices_use_the_global_model",
        "adaptive": "test_a_step",
    },
}
