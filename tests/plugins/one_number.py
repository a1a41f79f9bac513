"""A model of one number, started at 0, and devices that move it by amounts of their own: protocols worked by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

import edgesim
from edgesim.core.method import LocalRule, LocalState
from edgesim.core.task import Task
from edgesim.execution.backends.serial import SerialBackend
from edgesim.learning.data.dataset import DataPart, Dataset
from edgesim.learning.train.context import Batch, Context
from edgesim.methods.fedasync import FedAsync
from edgesim.methods.fedavg import FedAvg
from edgesim.methods.fedbuff import FedBuff
from edgesim.runs.assembly import assemble
from edgesim.runs.simulation import Silent, Simulation

SAMPLES = 3  # of each device
JOB_FLOPS = 4 * SAMPLES  # a sample costs a product and a sum forward, and again for the weight's gradient


class OneNumber(nn.Module):
    """Multiplies its input by one weight, which starts at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return one logit."""
        logits: Tensor = self.layer(x)
        return logits


@dataclass(frozen=True, kw_only=True)
class Ones(DataPart):
    """Samples that are all alike, of one class."""

    samples: int

    def load(self) -> Dataset:
        """Return as many of them for training as for the test."""
        x, y = torch.ones(self.samples, 1), torch.zeros(self.samples, dtype=torch.int64)
        return Dataset("ones", x, y, x, y, classes=1, input_shape=(1,))


@dataclass(frozen=True, kw_only=True)
class MovingAvg(FedAvg):
    """FedAvg whose device k takes one step of `moves[k]` from where it starts."""

    moves: tuple[float, ...] = ()

    def local(self, task: Task) -> LocalRule:
        """Return FedAvg's rule with other gradients."""
        return _moving(super().local(task), self.moves)


@dataclass(frozen=True, kw_only=True)
class MovingAsync(FedAsync):
    """FedAsync whose device k takes one step of `moves[k]` from where it starts."""

    moves: tuple[float, ...] = ()

    def local(self, task: Task) -> LocalRule:
        """Return FedAsync's rule with other gradients."""
        return _moving(super().local(task), self.moves)


@dataclass(frozen=True, kw_only=True)
class MovingBuff(FedBuff):
    """FedBuff whose device k takes one step of `moves[k]` from where it starts."""

    moves: tuple[float, ...] = ()

    def local(self, task: Task) -> LocalRule:
        """Return FedBuff's rule with other gradients."""
        return _moving(super().local(task), self.moves)


def _moving(rule: LocalRule, moves: Sequence[float]) -> LocalRule:
    def gradient(local: LocalState, batch: Batch, context: Context) -> list[Tensor]:
        return [torch.full_like(local.weights["params"]["layer.weight"], -moves[context.device])]

    (phase,) = rule.phases
    return replace(rule, phases=(replace(phase, gradient=gradient),))


def scenario(seconds: Sequence[float], **changes: Any) -> edgesim.Scenario:
    """Return a scenario whose device k trains for `seconds[k]`; links and server take no time, nothing is trained."""
    base: dict[str, Any] = {
        "data": {"name": f"{__name__}:Ones", "samples": SAMPLES * len(seconds)},
        "partition": {"name": "iid", "samples_per_device": SAMPLES},
        "model": f"{__name__}:OneNumber",
        "training": {"batch": SAMPLES, "lr": 1.0},
        "method": "fedavg",
        "backend": "null",
        "fleet": [{"cpu": {"flops_per_s": JOB_FLOPS / s}} for s in seconds],
    }
    return edgesim.load({**base, **changes})


def moved(name: str, moves: Sequence[float], **settings: Any) -> dict[str, Any]:
    """Return the method "Avg", "Async" or "Buff" with devices that move the number by `moves`."""
    return {"name": f"{__name__}:Moving{name}", "moves": list(moves), **settings}


def numbers(given: edgesim.Scenario) -> tuple[Simulation, list[tuple[float, float]]]:
    """Train a scenario; return the run, and the instant and the global number of every merge."""
    parts = assemble(given)
    simulation = Simulation(parts, SerialBackend(parts.make_trainer("cpu")), Silent())
    seen: list[tuple[float, float]] = []
    really_merge = simulation.learner.aggregate

    def merge(completions: Any, view: Any) -> Any:
        result = really_merge(completions, view)
        seen.append((view.now_s, float(simulation.learner.weights()["params"]["layer.weight"])))
        return result

    simulation.learner.aggregate = merge  # type: ignore[method-assign]
    simulation.run()
    return simulation, seen
