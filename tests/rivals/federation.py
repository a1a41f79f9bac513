"""The federation that edgesim and its rivals play: seven devices, three rounds, and which weights are compared."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from torch import Tensor, nn

import edgesim
from edgesim.core.update import ModelState
from tests.contracts.support import mixed_scenario, prepare
from tests.methods.recorded import Recorded, record

DEVICES, ROUNDS, BATCH, EPOCHS, LR = 7, 3, 32, 2, 0.05
EVERY = 61  # of all numbers of a model one in so many is written down

Batch = tuple[Tensor, Tensor]
Weights = Mapping[str, Tensor]


class Case(NamedTuple):
    """A method of edgesim as the rival has it. `own`: which parameters of devices are compared beside the model."""

    method: Mapping[str, Any]
    own: tuple[str, ...] = ()
    shared: tuple[str, ...] = ("conv1", "conv2", "fc1")  # layers of the global model that mean something


HEAD, BODY = ("fc1",), ("conv1", "conv2")
CASES: Mapping[str, Case] = {
    "fedavg": Case({"name": "fedavg"}),
    "fedprox": Case({"name": "fedprox", "mu": 5.0}),
    "scaffold": Case({"name": "scaffold"}),
    "fedadam": Case({"name": "fedadam", "lr": 0.02, "tau": 0.001}),
    "fedyogi": Case({"name": "fedyogi", "lr": 0.02, "tau": 0.001}),
    "fedadagrad": Case({"name": "fedadagrad", "lr": 0.02, "tau": 0.001}),
    "fedavgm": Case({"name": "fedavgm", "lr": 0.8, "momentum": 0.7}),
    "fedmedian": Case({"name": "fedmedian"}),
    "trimmed_mean": Case({"name": "trimmed_mean", "trim": 0.2}),
    "krum": Case({"name": "krum", "attackers": 0.2}),
    "multi_krum": Case({"name": "multi_krum", "attackers": 0.2, "keep": 4}),
    "moon": Case({"name": "moon", "mu": 2.0, "temperature": 0.5}),
    "ditto": Case({"name": "ditto", "lam": 0.7}, own=(*BODY, *HEAD)),
    "fedper": Case({"name": "fedper"}, own=HEAD, shared=BODY),
    "lg_fedavg": Case({"name": "lg_fedavg"}, own=BODY, shared=HEAD),
    "fedrep": Case({"name": "fedrep", "head_epochs": 2, "body_epochs": 1}, own=HEAD, shared=BODY),
}


class Played(NamedTuple):
    """A federation that edgesim has played: what a rival needs to play it too, and what came of it."""

    module: nn.Module  # with the first weights
    batches: Sequence[Sequence[Sequence[Sequence[Batch]]]]  # of each round, device and run of local SGD
    samples: Sequence[int]  # of each device
    weights: dict[str, Tensor]  # in the end: the parameters compared, by name

    @property
    def inputs(self) -> str:
        """Return a hash of the labels in the order of training, the ends of batches among them."""
        runs = [run for round_ in self.batches for device in round_ for run in device]
        return hashlib.sha256(repr([[y.tolist() for _, y in run] for run in runs]).encode()).hexdigest()[:16]

    @property
    def first(self) -> dict[str, list[float]]:
        """Return what is written down of the first weights."""
        return chosen({name: p.detach() for name, p in self.module.named_parameters()})


def play(case: Case) -> Played:
    """Return the federation as edgesim plays it by the case's method."""
    with pytest.MonkeyPatch.context() as patch:
        jobs = record(patch, kinks=True)
        simulation = prepare(_scenario(case.method))
        first = simulation.learner.weights()
        simulation.run()
    rounds = [_in_order(jobs[start : start + DEVICES]) for start in range(0, len(jobs), DEVICES)]
    assert len(rounds) == ROUNDS
    batches = [[_batches(job) for job in round_] for round_ in rounds]
    samples = [len(job.trainer.shards[job.assignment.device]) for job in rounds[0]]
    weights = {n: t for n, t in simulation.learner.weights()["params"].items() if _layer(n) in case.shared}
    for device in range(DEVICES) if case.own else ():
        kept: ModelState = simulation.learner.memory[device]
        weights |= {f"{device}/{n}": t for n, t in kept["params"].items() if _layer(n) in case.own}
    return Played(_with(jobs[0].trainer.module, first["params"]), batches, samples, dict(sorted(weights.items())))


def chosen(weights: Weights) -> dict[str, list[float]]:
    """Return what is written down of weights: of each tensor the root of the mean square, and one number in `EVERY`."""
    return {name: [_rounded(t.double().square().mean().sqrt()), *map(_rounded, t.flatten()[::EVERY])]
            for name, t in weights.items()}  # fmt: skip


def _rounded(number: Tensor) -> float:
    """Return a number to nine digits, of which float32 has seven."""
    return float(f"{number.item():.9g}")


def _scenario(method: Mapping[str, Any]) -> edgesim.Scenario:
    return mixed_scenario(
        method=dict(method),
        data={"name": "digits", "train_limit": 500, "test_limit": 50},
        partition={"name": "dirichlet_label", "beta": 0.7},
        training={"batch": BATCH, "lr": LR, "local_epochs": EPOCHS},
        protocol={"name": "sync"},
        fleet=[{"count": DEVICES, "cpu": {"flops_per_s": "50 MFLOP/s"}}],
        stop={"rounds": ROUNDS},
    )


def _in_order(jobs: Sequence[Recorded]) -> list[Recorded]:
    ordered = sorted(jobs, key=lambda job: job.assignment.device)
    assert [job.assignment.device for job in ordered] == list(range(DEVICES))
    return ordered


def _batches(job: Recorded) -> list[list[Batch]]:
    return [list(job.batches(place)) for place in range(len(job.assignment.task.local_sgd))]


def _with(module: nn.Module, weights: Weights) -> nn.Module:
    network = copy.deepcopy(module)
    for name, parameter in network.named_parameters():
        parameter.data = weights[name].clone()
        parameter.requires_grad_()
    return network.train()


def _layer(name: str) -> str:
    return name.rpartition(".")[0]
