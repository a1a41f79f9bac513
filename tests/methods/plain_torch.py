"""Federations of three devices played again in plain PyTorch, from the same first weights and the same batches."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import edgesim
from edgesim.core.update import ModelState
from tests.contracts.support import mixed_scenario
from tests.methods.recorded import Recorded

DEVICES = 3
NORMED_UNITS = "tests.plugins.networks:NormedUnits"  # fc1, norm, fc2; no dropout
PARAMS = {"conv1": 160, "conv2": 4640, "fc1": 1290}  # of cnn_digits, by layer

Weights = Mapping[str, Tensor]  # parameters and running statistics by name


def three_devices(method: Any, **changes: Any) -> edgesim.Scenario:
    """Three devices with class mixes and amounts of data of their own, which all train in each of three rounds."""
    base: dict[str, Any] = {
        "partition": {"name": "dirichlet_label", "beta": 0.5},
        "training": {"batch": 64, "lr": 0.05, "local_epochs": 2},
        "protocol": {"name": "sync"},
        "fleet": [{"count": DEVICES, "cpu": {"flops_per_s": "50 MFLOP/s"}}],
        "stop": {"rounds": 3},
    }
    return mixed_scenario(method=method, **{**base, **changes})


def flat(model_state: ModelState) -> dict[str, Tensor]:
    """Return copies of parameters and running statistics by name."""
    return {name: t.clone() for kind in ("params", "buffers") for name, t in model_state.get(kind, {}).items()}


def rounds_of(jobs: Sequence[Recorded]) -> Iterator[Sequence[Recorded]]:
    """Yield the jobs of each round, of all devices."""
    assert len(jobs) % DEVICES == 0
    for start in range(0, len(jobs), DEVICES):
        round_ = sorted(jobs[start : start + DEVICES], key=lambda job: job.assignment.device)
        assert [job.assignment.device for job in round_] == list(range(DEVICES))
        yield round_


def network_of(job: Recorded, weights: Weights) -> torch.nn.Module:
    """Return the network with these weights, in training."""
    network = copy.deepcopy(job.trainer.module)
    for name, tensor in (*network.named_parameters(), *network.named_buffers()):
        if tensor.is_floating_point():
            tensor.data = weights[name].clone()
    return network.train().requires_grad_()


def weights_of(network: torch.nn.Module) -> dict[str, Tensor]:
    """Return copies of parameters and running statistics by name."""
    named = (*network.named_parameters(), *network.named_buffers())
    return {name: t.detach().clone() for name, t in named if t.is_floating_point()}


def gradient(network: torch.nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Return the gradient of the cross-entropy by parameter name."""
    names, params = zip(*network.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(cross_entropy(network(x), y), params), strict=True))


def descend(network: torch.nn.Module, slopes: Weights, lr: float) -> None:
    """Take a step of SGD along gradients, in the parameters that are named."""
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name in slopes:
                parameter -= lr * slopes[name]


def trained(job: Recorded, start: Weights, place: int = 0, layers: Sequence[str] | None = None) -> dict[str, Tensor]:
    """Return the weights after the steps of a run of local SGD, which moves these layers alone; the others rest."""
    network, lr = network_of(job, start), job.assignment.task.local_sgd[place].lr
    for name, module in network.named_modules():
        if layers is not None and name and name not in layers:
            module.eval()
    for x, y in job.batches(place):
        slopes = gradient(network, x, y)
        descend(network, {n: g for n, g in slopes.items() if layers is None or layer(n) in layers}, lr)
    return weights_of(network)


def layer(name: str) -> str:
    """Return the layer of a parameter."""
    return name.rpartition(".")[0]


def only(weights: Weights, layers: Sequence[str]) -> dict[str, Tensor]:
    """Return the weights of these layers."""
    return {name: t for name, t in weights.items() if layer(name) in layers}


def without(weights: Weights, layers: Sequence[str]) -> dict[str, Tensor]:
    """Return the weights of all other layers."""
    return {name: t for name, t in weights.items() if layer(name) not in layers}


def samples_of(job: Recorded) -> int:
    """Return how many samples a job's device has."""
    return len(job.trainer.shards[job.assignment.device])


def mean(weights: Sequence[Weights], sizes: Sequence[float]) -> dict[str, Tensor]:
    """Return the mean by size."""
    total = sum(sizes)
    return {name: sum(s / total * each[name] for s, each in zip(sizes, weights, strict=True)) for name in weights[0]}
