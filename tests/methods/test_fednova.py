"""FedNova against numbers on paper, plain NumPy and steps really taken.

Source: Wang et al. (2020), equation 7; normalisers of its authors' published code.
"""

from __future__ import annotations

import numpy as np
import pytest

from edgesim.core.errors import ConfigError
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.task import Task
from edgesim.methods.fednova import FedNova, normaliser
from tests.conftest import digits_scenario, frames
from tests.contracts.support import NORMED, Spy, mixed_scenario, prepare
from tests.methods.hand_made import KEY, message_of, model_of, server_of
from tests.methods.one_device import Device, flops_on_top

BASE = np.array([1.0, 1.0])
MODELS = np.array([[0.8, 1.1], [0.5, 0.9], [0.2, 0.4]])
STEPS, SHARES = (2, 5, 10), (20, 30, 50)


def merged(steps=STEPS, lr=0.1, momentum=0.0, state=None, global_model=BASE, **settings):
    """Return what FedNova makes of devices that took so many steps, and its state."""
    task = Task(local_sgd=(LocalSGD(batch=1, lr=lr, epochs=1, momentum=momentum),))
    got = [
        message_of(k, SHARES[k], {"w": MODELS[k].tolist()})._replace(steps=taken, task=task)
        for k, taken in enumerate(steps)
    ]
    result = FedNova(**settings).aggregate(
        state or {"velocity": {}}, model_of({"w": global_model.tolist()}), got, server_of(), KEY
    )
    return None if result.model is None else result.model["params"]["w.weight"].tolist(), result.state


def by_numpy(lengths, effective):
    """Return w - tau_eff sum p_k (w - w_k) / |a_k|."""
    p = np.array(SHARES) / sum(SHARES)
    return BASE - effective * (p / np.array(lengths)) @ (BASE - MODELS)


def test_moves_are_divided_by_steps():
    """tau_eff = 0.2 x 2 + 0.3 x 5 + 0.5 x 10 = 6.9; FedAvg would give (0.41, 0.69)."""
    assert by_numpy(STEPS, 6.9) == pytest.approx([0.379, 0.8206])
    assert merged()[0] == pytest.approx([0.379, 0.8206], abs=1e-6)


def test_equal_steps_are_fedavg():
    """The mean by data size, whatever the number of steps and however they are normalised."""
    average = np.array(SHARES) / 100 @ MODELS
    assert average == pytest.approx([0.41, 0.69])
    for taken in (1, 7):
        for momentum in (0.0, 0.9):
            assert merged((taken,) * 3, momentum=momentum)[0] == pytest.approx(average, abs=1e-6)


@pytest.mark.parametrize(
    ("momentum", "pull", "expected"),
    [(0.0, 0.0, STEPS), (0.9, 0.0, (2.9, 13.1441, 41.38106)), (0.0, 0.01, (1.99, 4.900995, 9.561792))],
)
def test_normalisers(momentum, pull, expected):
    """tau; [tau - r (1 - r^tau) / (1 - r)] / (1 - r); (1 - (1 - pull)^tau) / pull."""
    tau = np.array(STEPS)
    if momentum:
        closed = (tau - momentum * (1 - momentum**tau) / (1 - momentum)) / (1 - momentum)
    else:
        closed = (1 - (1 - pull) ** tau) / pull if pull else tau
    assert closed == pytest.approx(expected, abs=1e-6)
    assert [normaliser(steps, momentum, pull) for steps in STEPS] == pytest.approx(closed, rel=1e-12)


@pytest.mark.parametrize(("momentum", "mu"), [(0.0, 0.0), (0.9, 0.0), (0.0, 2.0), (0.5, 2.0)])
def test_normalisers_are_how_far_the_steps_lead(momentum, mu):
    """Along gradients of 1 the training loop, with PyTorch's SGD, goes lr x |a| from the model received."""
    for steps in STEPS:
        (end,) = Device(FedNova(mu=mu), [0.0]).step([1.0], lr=0.1, steps=steps, momentum=momentum)
        assert -end / 0.1 == pytest.approx(normaliser(steps, momentum, 0.1 * mu), rel=1e-5)


def test_momentum_and_the_proximal_term_in_a_merge():
    """With momentum tau_eff is the mean of |a|; with the proximal term it is the mean number of steps."""
    lengths = (2.9, 13.1441, 41.38106)
    effective = np.array([0.2, 0.3, 0.5]) @ lengths
    assert merged(momentum=0.9)[0] == pytest.approx(by_numpy(lengths, effective), abs=1e-6)
    assert merged(lr=0.1, mu=0.1)[0] == pytest.approx(by_numpy((1.99, 4.900995, 9.561792), 6.9), abs=1e-6)


def test_who_took_no_step_does_not_count():
    """Two devices are left, with shares 0.375 and 0.625: tau_eff = 8.125, moves (-0.5, -0.1) / 5, (-0.8, -0.6) / 10."""
    by_hand = BASE + 8.125 * (0.375 * np.array([-0.5, -0.1]) / 5 + 0.625 * np.array([-0.8, -0.6]) / 10)
    assert merged((0, 5, 10))[0] == pytest.approx(by_hand, abs=1e-6)
    assert merged((0, 0, 0))[0] == pytest.approx(BASE)  # they arrived, so that there is a new version of the old model


def test_momentum_of_the_server():
    """The second merge goes half of the first one's way on top of its own."""
    first, state = merged(server_momentum=0.5)
    assert first == merged()[0]
    second, _ = merged(server_momentum=0.5, state=state)
    assert second == pytest.approx(np.array(merged()[0]) + 0.5 * (np.array(first) - BASE), abs=1e-6)


def test_steps_really_taken_reach_the_server():
    """Devices that stop early count with the steps that they took; running statistics are the mean by data size."""
    failures = [{"name": "partial_work", "probability": 0.5}]
    simulation = prepare(
        mixed_scenario(method="fednova", model=NORMED, failures=failures, training={"batch": 4}, stop={"rounds": 1})
    )
    spy = simulation.learner.method = Spy(simulation.learner.method)
    simulation.run()
    _, base, got, *_ = spy.rounds[0]
    steps = np.array([m.steps for m in got])
    assert 1 <= steps.min() < steps.max() == 10  # 40 samples in batches of 4
    p = np.full(len(got), 1 / len(got))
    for name, old in base["params"].items():
        moves = np.stack([m.body["params"][name].double().numpy() - old.double().numpy() for m in got])
        new = old.double().numpy() + p @ steps * np.tensordot(p / steps, moves, 1)
        assert simulation.learner.weights()["params"][name].numpy() == pytest.approx(new, abs=1e-6)
    for name in base["buffers"]:
        mean = np.mean([m.body["buffers"][name].double().numpy() for m in got], axis=0)
        assert simulation.learner.weights()["buffers"][name].numpy() == pytest.approx(mean, rel=1e-6)


def test_the_number_of_steps_is_sent():
    """Four bytes beside the model; the proximal term costs what it does in FedProx."""
    simulation = prepare(mixed_scenario(method="fednova", backend="null", stop={"rounds": 1}))
    simulation.run()
    jobs = frames(simulation)["jobs"]
    assert set(jobs["down_bytes"]) == {4 * 6090}
    assert set(jobs["up_bytes"]) == {4 * 6090 + 4}
    assert set(flops_on_top("fednova")) == {0}
    assert set(flops_on_top({"name": "fednova", "mu": 0.1})) == {4 * 6090}


@pytest.mark.parametrize("wrong", [{"mu": -0.1}, {"server_momentum": 1.0}])
def test_settings_out_of_range(wrong):
    (key,) = wrong
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        digits_scenario(method={"name": "fednova", **wrong})


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "fednova": {
        "mu": "test_momentum_and_the_proximal_term_in_a_merge",
        "server_momentum": "test_momentum_of_the_server",
    },
}
