"""A device at work on a model of one layer, with gradients that are given: what a method adds to them, on paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from edgesim.core.backend import Assignment
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.method import LocalState
from edgesim.core.task import Task
from edgesim.core.update import ModelState
from edgesim.learning.train.context import Context
from edgesim.learning.train.loop import run_local_sgd
from tests.conftest import digits_scenario, frames, simulate_null
from tests.methods.hand_made import KEY, model_of
from tests.plugins.one_number import Ones


class Device:
    """A device with so many samples that received a model and goes by a method's rule, in the real training loop."""

    def __init__(
        self,
        method: Any,
        received: Sequence[float],
        device_state: ModelState | None = None,
        samples: int = 1,
        **config: float,
    ) -> None:
        module = nn.Module()
        module.w = nn.Module()
        module.w.weight = nn.Parameter(torch.zeros(len(received)))
        self.rule, base = method.local(Task(config=config)), model_of({"w": received})
        job = Assignment(0, 0, Task(config=config), KEY, base, device_state)
        self.context = Context(module, Ones(samples=samples).load(), torch.arange(samples), job, False)
        start = self.rule.on_start or (lambda context: LocalState(context.copy(base)))
        self.local = start(self.context)

    def go_to(self, w: Sequence[float]) -> Device:
        """Stand somewhere else than where the rule starts."""
        self.local.weights["params"]["w.weight"].copy_(torch.tensor(w))
        return self

    def step(self, gradient: Sequence[float], lr: float, steps: int = 1, momentum: float = 0.0) -> list[float]:
        """Take steps where the loss has this gradient; return where they lead."""
        (phase,) = self.rule.phases
        given = replace(phase, gradient=lambda local, batch, context: [torch.tensor(gradient)])
        run_local_sgd(self.local, LocalSGD(batch=1, lr=lr, steps=steps, momentum=momentum), given, self.context, KEY)
        return self.local.weights["params"]["w.weight"].tolist()

    def kept(self) -> Any:
        """Return what the device keeps when it is done."""
        return self.rule.on_finish(self.local, self.context).new_device_state


def flops_on_top(method: Any, **changes: Any) -> list[float]:
    """Return what the FLOPs of a method's jobs exceed those of FedAvg's by, over SGD steps of the job."""
    changes = {"partition": {"name": "iid", "samples_per_device": 40}, "backend": "null", **changes}
    steps = 3  # 40 samples in batches of 16
    flops = [frames(simulate_null(digits_scenario(method=m, **changes)))["jobs"]["flops"] for m in (method, "fedavg")]
    return ((flops[0] - flops[1]) / steps).tolist()
