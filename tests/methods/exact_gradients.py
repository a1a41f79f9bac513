"""Gradients of a run's first model in double precision, by autograd alone."""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from edgesim.core.backend import Assignment, Result
from edgesim.core.rng import Key
from edgesim.learning.train.context import first_of

_ROUNDING = 2.0**-20  # of a tensor's largest gradient, beyond which float32 knows the sign of a sum of samples


class Exact(NamedTuple):
    """The gradient of a parameter, float64, and where its sign is beyond float32's rounding, bool."""

    gradient: Tensor
    sure: Tensor


def exact_gradients(
    parts: Any, device: int, clip_norm: float = math.inf, weight_decay: float = 0.0
) -> dict[str, Exact]:
    """Return the gradient of the mean cross-entropy of all samples of a device, clipped, plus weight decay."""
    module = copy.deepcopy(parts.module)
    module.load_state_dict(first_of(parts.module)["params"], strict=False)  # a trainer leaves others there
    module.double()
    x, y = parts.data.batch("train", torch.from_numpy(parts.split.train[device]))
    names, params = zip(*module.named_parameters(), strict=True)
    found = torch.autograd.grad(F.cross_entropy(module(x.double()), y), params)
    norm = math.sqrt(sum(float(g.square().sum()) for g in found))
    factor = min(1.0, clip_norm / (norm + 1e-6))  # as torch.nn.utils.clip_grad_norm_ has it
    whole = {n: factor * g + weight_decay * p.detach() for n, g, p in zip(names, found, params, strict=True)}
    return {n: Exact(g, g.abs() > _ROUNDING * g.abs().max()) for n, g in whole.items()}


def first_job(simulation: Any, device: int) -> Result:
    """Return what the trainer gives for the job of a device in the first round."""
    parts = simulation.parts
    plan = parts.scenario.method.value.plan({}, simulation.session.view(), Key(1))
    order = next(order for order in plan.orders if order.device == device)
    trainer = parts.make_trainer("cpu")
    return trainer.run(Assignment(0, device, order.task, Key(3), first_of(parts.module), None))
