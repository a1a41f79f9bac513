"""pFedMe against numbers on paper, plain PyTorch, FedAvg and prices on paper.

Source: T. Dinh, Tran and Nguyen (2020), algorithm 1.
"""

from __future__ import annotations

import pytest

from edgesim.core.errors import ConfigError
from edgesim.methods.pfedme import PFedMe
from tests.conftest import digits_scenario, frames, simulate_null
from tests.contracts.support import fingerprint, mixed_scenario, run
from tests.methods.hand_made import merged_layers, message_of, setting_of
from tests.methods.one_device import Device
from tests.methods.plain_torch import (
    DEVICES,
    NORMED_UNITS,
    PARAMS,
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
from tests.sizes import full, thinned

TRAIN = 168448 + 168448 + 150016  # FLOPs a sample of cnn_digits: forward, weights' and inputs' gradients


def turn(job, received, method):
    """Return w and theta, each with the running statistics of theta, after a device's turn from the model received."""
    network = network_of(job, received)  # holds theta
    params = dict(network.named_parameters())
    w = {name: received[name].clone() for name in params}
    for x, y in job.batches():
        for _ in range(method["inner_steps"]):
            g = gradient(network, x, y)
            for name, theta in params.items():
                theta.data -= 0.05 * (g[name] + method["lam"] * (theta.data - w[name]))
        for name, theta in params.items():
            w[name] -= method["eta"] * method["lam"] * (w[name] - theta.data)
    theta = weights_of(network)
    return {**theta, **w}, theta


@pytest.mark.parametrize("model", thinned(["cnn_digits", NORMED_UNITS], [NORMED_UNITS]))
@pytest.mark.parametrize("beta", [1.0, 2.0])
def test_three_rounds_in_plain_torch(monkeypatch, model, beta):
    """theta starts at the w received, w follows it, and the server goes beta of the way to the mean by data size."""
    method = {"name": "pfedme", "lam": 5.0, "inner_steps": 3, "eta": 0.04, "beta": beta}
    jobs = record(monkeypatch)
    simulation = run(three_devices(method, model=model, training={"batch": 128, "lr": 0.05}))
    server, kept = flat(jobs[0].assignment.global_model), {}
    for round_ in rounds_of(jobs):
        sent = []
        for job in round_:
            new, kept[job.assignment.device] = turn(job, server, method)
            sent.append(new)
        average = mean(sent, [samples_of(job) for job in round_])
        statistics = jobs[0].assignment.global_model["buffers"]
        server = {n: t if n in statistics else server[n] + beta * (t - server[n]) for n, t in average.items()}
    learner = simulation.learner
    close_to(flat(learner.weights()), server)
    assert len(learner.memory) == DEVICES
    for device, state in learner.memory.items():
        close_to(flat(learner.method.personal_model(learner.weights(), state)), kept[device])


@full
def test_one_step_all_the_way_is_fedavg():
    """K = 1 and eta lam = 1: theta steps from w, and w goes where it is; rounding alone differs."""
    models = [
        flat(run(three_devices(method)).learner.weights())
        for method in ("fedavg", {"name": "pfedme", "inner_steps": 1, "lam": 4.0, "eta": 0.25})
    ]
    close_to(models[1], models[0], atol=1e-5)


def test_a_strong_pull_holds_theta_at_w():
    """lam lr = 1: a step leads from anywhere to w - lr g. With two of them and g the same in both, theta = w - lr g."""
    device = Device(PFedMe(lam=2.0, inner_steps=2, eta=0.25), [1.0, -1.0], inner_lr=0.5)
    given = {"w.weight": device.local.weights["params"]["w.weight"].new_tensor([0.2, 0.4])}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edgesim.methods.pfedme.dense_gradient", lambda w, batch, context, moving: given)
        (slope,) = device.rule.phases[0].gradient(device.local, None, device.context)
    assert device.local.scratch.theta["w.weight"].tolist() == pytest.approx([0.9, -1.2])
    assert slope.tolist() == pytest.approx([0.2, 0.4])  # lam (w - theta) = 2 (0.1, 0.2)


@pytest.mark.parametrize(("beta", "expected"), [(0.5, 1.0), (1.0, 2.0), (2.0, 4.0)])
def test_the_server_mixes(beta, expected):
    """From 0 towards the mean of 1 and 3, of data sizes 10 and 10, which is 2."""
    setting = setting_of((10, 10), {"a": 1})
    updates = [message_of(0, 10, {"a": [1.0]}), message_of(1, 10, {"a": [3.0]})]
    assert merged_layers(PFedMe(beta=beta), setting, {"a": [0.0]}, updates) == {"a": [expected]}


def test_a_device_without_a_step_keeps_what_it_had():
    """It was stopped before its first batch."""
    assert Device(PFedMe(), [1.0], inner_lr=0.1).kept() is None


def test_who_never_had_a_turn_uses_the_global_model():
    """And who had one its own, which lies elsewhere."""
    learner = run(
        mixed_scenario(method="pfedme", selection={"name": "uniform", "count": 2}, stop={"rounds": 1})
    ).learner
    used = [learner.method.personal_model(learner.weights(), learner.memory.get(device)) for device in range(6)]
    same = [fingerprint(model) == fingerprint(learner.weights()) for model in used]
    assert same.count(True) == 4


@pytest.mark.parametrize("steps", [1, 5])
def test_work_and_bytes(steps):
    """40 samples in three batches: K passes, and a parameter and step 3 K FLOPs of the pull and 2 of w's slope."""
    scenario = digits_scenario(
        method={"name": "pfedme", "inner_steps": steps},
        partition={"name": "iid", "samples_per_device": 40},
        backend="null",
    )
    jobs, total = frames(simulate_null(scenario))["jobs"], sum(PARAMS.values())
    assert set(jobs["flops"]) == {40 * steps * TRAIN + 3 * (3 * steps + 2) * total}
    assert set(jobs["down_bytes"]) == set(jobs["up_bytes"]) == {4 * total}


@pytest.mark.parametrize(
    ("key", "value"), [("lam", 0), ("lam", -1.0), ("inner_steps", 0), ("eta", 0.0), ("beta", 0.0), ("beta", "inf")]
)
def test_settings_out_of_range(key, value):
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        digits_scenario(method={"name": "pfedme", key: value})


@pytest.mark.parametrize(("key", "value"), [("momentum", 0.5), ("weight_decay", 0.1), ("clip_norm", 1.0)])
def test_only_plain_sgd(key, value):
    scenario = digits_scenario(method="pfedme", training={"batch": 16, key: value}, backend="null")
    with pytest.raises(ConfigError, match=rf"training\.{key}: must be .* found .*personal"):
        simulate_null(scenario)


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "pfedme": {
        "aggregate_over": "test_fedavg.py::test_absent_devices_may_count_with_the_old_model",
        "weights": "test_fedavg.py::test_devices_may_count_alike",
        "lam": "test_three_rounds_in_plain_torch",
        "inner_steps": "test_work_and_bytes",
        "eta": "test_one_step_all_the_way_is_fedavg",
        "beta": "test_the_server_mixes",
    },
}
