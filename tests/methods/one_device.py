"""A device at work on a model of one layer, with gradients that are given: what a method adds to them, on paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from edgesim.contracts import Assignment, Bundle, Stretch, Task
from edgesim.learning.context import Context
from edgesim.learning.loop import train_stretch
from tests.conftest import digits_scenario, frames, simulate_null
from tests.methods.hand_made import KEY, model_of
from tests.plugins.one_number import Ones


class Device:
    """A device with so many samples that received a model and goes by a method's rule, in the real training loop."""

    def __init__(
        self, method: Any, received: Sequence[float], own: Bundle | None = None, samples: int = 1, **knobs: float
    ) -> None:
        module = nn.Module()
        module.w = nn.Module()
        module.w.weight = nn.Parameter(torch.zeros(len(received)))
        self.rule, base = method.local(Task(knobs=knobs)), model_of({"w": received})
        job = Assignment(0, 0, Task(knobs=knobs), KEY, base, own)
        self.context = Context(module, Ones(samples=samples).load(), torch.arange(samples), job, False)
        self.w = self.rule.start(base, own, self.context) if self.rule.start else self.context.copy(base)

    def go_to(self, w: Sequence[float]) -> Device:
        """Stand somewhere else than where the rule starts."""
        self.w["params"]["w.weight"].copy_(torch.tensor(w))
        return self

    def step(self, gradient: Sequence[float], lr: float, steps: int = 1, momentum: float = 0.0) -> list[float]:
        """Take steps where the loss has this gradient; return where they lead."""
        (phase,) = self.rule.phases
        given = replace(phase, gradient=lambda w, batch, context: [torch.tensor(gradient)])
        train_stretch(self.w, Stretch(batch=1, lr=lr, steps=steps, momentum=momentum), given, self.context, KEY)
        return self.w["params"]["w.weight"].tolist()

    def kept(self) -> Any:
        """Return what the device keeps when it is done."""
        return self.rule.finish(self.w, self.context)[1]


def flops_on_top(method: Any, **changes: Any) -> list[float]:
    """Return what the FLOPs of a method's jobs exceed those of FedAvg's by, over SGD steps of the job."""
    changes = {"partition": {"name": "iid", "samples_per_device": 40}, "backend": "null", **changes}
    steps = 3  # 40 samples in batches of 16
    flops = [frames(simulate_null(digits_scenario(method=m, **changes)))["jobs"]["flops"] for m in (method, "fedavg")]
    return ((flops[0] - flops[1]) / steps).tolist()
