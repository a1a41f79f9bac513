"""D-PSGD against its recurrence, worked out with bare autograd on the devices' own samples.

Source: Lian et al. (2017), algorithm 1: x_i <- sum_j W_ij x_j - lr g_i(x_i).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from edgesim.runs.simulation import Simulation
from tests.conftest import frames
from tests.contracts.support import NORMED, mixed_scenario, prepare

LR = 0.5
RING = np.array([[0 if (i - j) % 6 in (2, 3, 4) else 1 / 3 for j in range(6)] for i in range(6)])
# Two hubs, 0 and 1, with two leaves each: degrees 3 and 1, so W = 1/4 on every edge and the rest is a device's own.
STARS = np.zeros((6, 6))
for a, b in [(0, 1), (0, 2), (0, 3), (1, 4), (1, 5)]:
    STARS[a, b] = STARS[b, a] = 1 / 4
STARS += np.diag(1 - STARS.sum(axis=1))


def play(mixing: str, peers: Any, **changes: Any) -> Simulation:
    """Run six devices with 40 samples each, all of which are one mini-batch."""
    simulation = prepare(mixed_scenario(
        method={"name": "dpsgd", "mixing": mixing}, peers=peers, training={"batch": 40, "lr": LR}, **changes
    ))  # fmt: skip
    simulation.run()
    return simulation


def gradients(simulation: Simulation, device: int, x: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the gradients of the mean cross-entropy of a device's samples at x."""
    parts = simulation.parts
    shard = torch.from_numpy(parts.split.train[device])
    images, labels = parts.data.batch("train", shard)
    wrt = {name: torch.tensor(value, dtype=torch.float32, requires_grad=True) for name, value in x.items()}
    parts.module.train()
    loss = F.cross_entropy(torch.func.functional_call(parts.module, wrt, (images,)), labels)
    return {n: g.numpy() for n, g in zip(wrt, torch.autograd.grad(loss, list(wrt.values())), strict=True)}


def first_model(simulation: Simulation) -> dict[str, np.ndarray]:
    """Return the parameters that all devices start from."""
    weights = prepare(simulation.parts.scenario).learner.weights()["params"]
    return {name: tensor.numpy().copy() for name, tensor in weights.items()}


@pytest.mark.parametrize(
    ("mixing", "peers", "w"),
    [
        ("uniform", "ring", RING),
        ("metropolis", "ring", RING),
        ("metropolis", {"name": "star_of_stars", "hubs": 2}, STARS),
    ],
    ids=["uniform-ring", "metropolis-ring", "metropolis-stars"],
)
def test_the_recurrence(mixing, peers, w):
    """Three rounds: mixes of the models of the round before, moved by gradients at the unmixed ones."""
    simulation = play(mixing, peers, stop={"rounds": 3})
    start = first_model(simulation)
    xs = [start] * 6
    for _ in range(3):
        moves = [gradients(simulation, i, xs[i]) for i in range(6)]
        xs = [{n: sum(w[i, j] * xs[j][n] for j in range(6)) - LR * moves[i][n] for n in start} for i in range(6)]
    for device, x in enumerate(xs):
        kept = simulation.learner.memory[device]["params"]
        for name, value in x.items():
            assert kept[name].numpy() == pytest.approx(value, abs=2e-5)
    mean = {name: np.mean([x[name] for x in xs], axis=0) for name in start}
    for name, tensor in simulation.learner.weights()["params"].items():
        assert tensor.numpy() == pytest.approx(mean[name], abs=2e-5)


def test_gradients_at_the_mix_would_be_told_apart():
    """The recurrence with gradients at the mix differs by much more than the error that the test above allows."""
    simulation = play("uniform", "ring", stop={"rounds": 3})
    start = first_model(simulation)
    xs = [start] * 6
    for _ in range(3):
        mixes = [{n: sum(RING[i, j] * xs[j][n] for j in range(6)) for n in start} for i in range(6)]
        moves = [gradients(simulation, i, mixes[i]) for i in range(6)]
        xs = [{n: mixes[i][n] - LR * moves[i][n] for n in start} for i in range(6)]
    kept = simulation.learner.memory[0]["params"]
    assert max(np.abs(kept[name].numpy() - xs[0][name]).max() for name in start) > 1e-3


def test_one_mini_batch_a_round():
    """Four samples of 40 a step, whatever the number of epochs: a tenth of the FLOPs of an epoch."""
    training = {"batch": 4, "lr": LR, "local_epochs": 3}
    step = mixed_scenario(method="dpsgd", peers="ring", training=training, backend="null")
    epoch = mixed_scenario(method="dfedavg", peers="ring", training={**training, "local_epochs": 1}, backend="null")
    flops = []
    for scenario in (step, epoch):
        simulation = prepare(scenario)
        simulation.run()
        flops.append(frames(simulation)["jobs"]["flops"])
    assert flops[0].to_numpy() == pytest.approx(flops[1].to_numpy() / 10)


def test_running_statistics_are_mixed_and_move_with_the_device_s_own_samples():
    """First round: all start from 0 and 1, so that a momentum of 0.1 leaves a tenth of what the samples have."""
    simulation = play("uniform", "ring", model=NORMED, stop={"rounds": 1})
    start = first_model(simulation)
    for device in range(6):
        images, _ = simulation.parts.data.batch("train", torch.from_numpy(simulation.parts.split.train[device]))
        seen = F.conv2d(images, torch.tensor(start["conv.weight"]), torch.tensor(start["conv.bias"]))
        buffers = simulation.learner.memory[device]["buffers"]
        assert buffers["norm.running_mean"].numpy() == pytest.approx(0.1 * seen.mean((0, 2, 3)).numpy(), abs=1e-6)
        variance = seen.var((0, 2, 3), correction=1).numpy()
        assert buffers["norm.running_var"].numpy() == pytest.approx(0.9 + 0.1 * variance, abs=1e-6)


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "dpsgd": {
        "mixing": "test_the_recurrence",
        "reuse": "test_dfedavg.py::test_all_neighbours_are_heard_and_awaited_ones_come_earlier",
        "wait_select": "test_dfedavg.py::test_the_first_to_finish_may_be_any",
    },
}
