"""DFedSAM's steps against a quadratic on paper and against bare autograd.

Source: Foret et al. (2021), equation 2: the gradient at w + rho g / |g|; Shi et al. (2023), algorithm 1.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from edgesim.core.errors import ConfigError
from edgesim.core.method import LocalState
from edgesim.methods import dfedsam
from edgesim.methods.dfedsam import DFedSAM, uphill
from tests.conftest import digits_scenario, frames, simulate_null
from tests.contracts.support import NORMED, mixed_scenario, prepare, run
from tests.methods.peers_by_hand import PATH, numbers_of, row, task_of, work

PARAMETERS = 144 + 4608 + 1280 + 58  # of the digits' CNN
RHO, LR = 0.5, 0.1


def play(rho=RHO, **changes):
    """Run six devices on a ring with 40 samples each, all of which are one mini-batch, for one round."""
    training = {"batch": 40, "lr": LR, "local_epochs": 2}
    return run(mixed_scenario(**{
        "method": {"name": "dfedsam", "rho": rho}, "training": training, "stop": {"rounds": 1}, **changes
    }))  # fmt: skip


def first_model(simulation):
    """Return what all devices start from."""
    return prepare(simulation.parts.scenario).learner.weights()


def test_a_step_of_a_quadratic(monkeypatch):
    """f = |w|^2 / 2 at (3, 4) with rho 0.5: the gradient of length 5 leads to (3.3, 4.4); lr 0.1: (2.67, 3.56)."""
    w = row(3.0, 4.0)
    here = SimpleNamespace(trained=["w.weight"])
    monkeypatch.setattr(dfedsam, "objective_loss", lambda w, *_: (w["params"]["w.weight"] ** 2).sum() / 2)
    (gradient,) = uphill(LocalState(w), None, here, RHO)
    assert gradient[0].tolist() == pytest.approx([3.3, 4.4])
    assert (w["params"]["w.weight"] - LR * gradient)[0].tolist() == pytest.approx([2.67, 3.56])


def test_two_steps_of_a_network():
    """Both gradients of a step on the same batch, the norm over all parameters, momentum 0.9 over the steps."""
    simulation = play()
    parts, x = simulation.parts, {n: t.clone() for n, t in first_model(simulation)["params"].items()}
    images, labels = parts.data.batch("train", torch.from_numpy(parts.split.train[2]))
    parts.module.train()

    def gradients(at):
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in at.items()}
        loss = F.cross_entropy(torch.func.functional_call(parts.module, leaves, (images,)), labels)
        return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))

    momenta = {name: torch.zeros_like(tensor) for name, tensor in x.items()}
    for _ in range(2):
        uphill_by = gradients(x)
        norm = torch.cat([g.flatten() for g in uphill_by.values()]).norm()
        there = gradients({name: x[name] + RHO * g / norm for name, g in uphill_by.items()})
        momenta = {name: 0.9 * m + there[name] for name, m in momenta.items()}
        x = {name: x[name] - LR * momenta[name] for name in x}
    kept = simulation.learner.memory[2]["params"]
    for name, tensor in x.items():
        assert kept[name].numpy() == pytest.approx(tensor.numpy(), abs=2e-5)
    plain = play(rho=0.0).learner.memory[2]["params"]
    assert max(float((plain[name] - x[name]).abs().max()) for name in x) > 1e-3


def test_without_radius_it_is_dfedavg_with_momentum():
    """rho = 0: the second gradient is the first."""
    flat = play(rho=0.0).learner.weights()["params"]
    training = {"batch": 40, "lr": LR, "local_epochs": 2, "momentum": 0.9}
    plain = play(method="dfedavg", training=training).learner.weights()["params"]
    for name, tensor in plain.items():
        assert flat[name].numpy() == pytest.approx(tensor.numpy(), abs=1e-5)


def test_running_statistics_see_a_batch_once():
    """From 0 a step with a momentum of 0.1 leaves a tenth of what the samples have, not 0.19."""
    training = {"batch": 40, "lr": LR}
    simulation = play(model=NORMED, training=training)
    start, parts = first_model(simulation)["params"], simulation.parts
    images, _ = parts.data.batch("train", torch.from_numpy(parts.split.train[0]))
    seen = F.conv2d(images, start["conv.weight"], start["conv.bias"]).mean((0, 2, 3))
    kept = simulation.learner.memory[0]["buffers"]["norm.running_mean"]
    assert kept.numpy() == pytest.approx(0.1 * seen.numpy(), abs=1e-6)


def test_twice_the_flops():
    """Two forward and backward passes a step, and four FLOPs a parameter to go uphill; messages are whole models."""
    changes = {"partition": {"name": "iid", "samples_per_device": 40}, "backend": "null", "peers": "ring"}
    sam, plain = (
        frames(simulate_null(digits_scenario(method=method, **changes)))["jobs"] for method in ("dfedsam", "dfedavg")
    )
    steps = 3  # 40 samples in batches of 16
    assert (sam["flops"] == 2 * plain["flops"] + 4 * PARAMETERS * steps).all()
    assert set(sam["peer_bytes"]) == {2 * 4 * PARAMETERS}


def test_models_are_mixed_by_data_size():
    """1, 2 and 1 samples on a path with models 0, 3 and 6: 2, 3 and 4."""
    method = DFedSAM()
    first, task = task_of(method, PATH, 0, samples=(1, 2, 1)), task_of(method, PATH, 1, samples=(1, 2, 1))
    told = [work(method, first, device, row(3.0 * device)) for device in range(3)]
    mixed = [
        numbers_of(work(method, task, i, row(9.0), told[i][1], [told[j][0] for j in heard])[1])
        for i, heard in enumerate(([1], [0, 2], [1]))
    ]
    assert np.ravel(mixed) == pytest.approx([2, 3, 4])


@pytest.mark.parametrize("setting", [{"rho": -0.1}, {"momentum": 1.0}])
def test_settings_out_of_range(setting):
    """Each key is named."""
    with pytest.raises(ConfigError, match=f"method.{next(iter(setting))}"):
        digits_scenario(method={"name": "dfedsam", **setting}, peers="ring")


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "dfedsam": {
        "mixing": "test_models_are_mixed_by_data_size",
        "reuse": "test_dfedavg.py::test_fresh_models_are_those_of_this_round",
        "wait_select": "test_dfedavg.py::test_the_first_to_finish_may_be_any",
        "rho": "test_a_step_of_a_quadratic",
        "momentum": "test_two_steps_of_a_network",
    },
}
