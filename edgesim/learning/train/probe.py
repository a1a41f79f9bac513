"""Whether a network can be run for many devices at once: it is tried, and compared with one device after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from edgesim.core.rng import Key
from edgesim.learning.models.build import applied, reason_of
from edgesim.learning.models.seeding import seeded
from edgesim.learning.objectives.base import Objective
from edgesim.learning.objectives.classification import CLASSIFICATION
from edgesim.learning.train.loop import gradients, output_gradients
from edgesim.learning.train.stacked import StackedNetwork

DEVICES, SAMPLES = 2, 3  # of a probe, and of each of its devices
# Of a tensor's length: far below what another device's weights or samples make. Rounding alone makes thousandths,
# where it takes a number to the other side of a ReLU's corner in a deep network.
_CLOSE = 1e-2
_NOTHING = 1e-6  # the length of gradients that are nothing but rounding, as those of a bias before a normalisation


class Stackable(NamedTuple):
    """What was found out about a network."""

    why_not: str | None  # None: it can be stacked
    pads: bool = False  # a sample's logits depend on no other sample, so that short batches can be filled up


class _Outcome(NamedTuple):
    """What a network gave for the samples of one device."""

    logits: Tensor
    grads: Sequence[Tensor]  # of the trained parameters
    buffers: Sequence[Tensor]  # as they are afterwards


def probed(
    stacked: StackedNetwork,
    module: nn.Module,
    frozen: frozenset[str],
    x: Tensor,
    y: Tensor,
    objective: Objective = CLASSIFICATION,
) -> Stackable:
    """Try a network in training on the samples of a probe, device after device; no weights but drawn ones are touched.

    `frozen`: layers that run as in a test.
    """
    for name, layer in module.named_modules():
        layer.training = name not in frozen
    generator = torch.Generator().manual_seed(Key(0).word())
    weights = [_drawn(stacked, module, generator) for _ in range(DEVICES)]
    mine, labels = x[:SAMPLES], y[:SAMPLES]
    logits = _alone(module, stacked, weights[0], mine, labels, objective, 0).logits
    if not torch.equal(logits, _alone(module, stacked, weights[0], mine, labels, objective, 1).logits):
        return Stackable("it draws random numbers in training, as dropout does")
    pads = _independent(module, weights[0], mine)
    batches = zip(weights, torch.split(x, SAMPLES), torch.split(y, SAMPLES), strict=True)
    apart = [_alone(module, stacked, *each, objective, 0) for each in batches]
    try:
        together = _together(stacked, weights, frozen, x, y, objective)
    except Exception as error:  # whatever a user's own network raises
        return Stackable(f"it cannot be run stacked: {reason_of(error)}")
    if not all(_close(one, other) for one, other in zip(apart, together, strict=True)):
        return Stackable("run stacked it gives other numbers: samples of different devices meet in it")
    stacked.learn_uses()
    return Stackable(None, pads)


def _drawn(stacked: StackedNetwork, module: nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
    """Return weights of one device; buffers are positive, as variances are."""
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    draws = {name: torch.randn(own[name].shape, generator=generator) * 0.1 for name in stacked.params}
    draws |= {name: torch.rand(own[name].shape, generator=generator) + 0.5 for name in stacked.buffers}
    return {name: drawn.to(own[name]) for name, drawn in draws.items()}


def _alone(
    module: nn.Module,
    stacked: StackedNetwork,
    weights: Mapping[str, Tensor],
    x: Tensor,
    y: Tensor,
    objective: Objective,
    seed: int,
) -> _Outcome:
    leaves = {name: weights[name].clone().requires_grad_(name in stacked.params) for name in weights}
    with seeded(Key(seed)):
        logits = applied(module, leaves, x)
    grads = gradients(objective.loss(logits, y), [leaves[name] for name in stacked.params])
    return _Outcome(logits.detach(), grads, [leaves[name] for name in stacked.buffers])


def _together(
    stacked: StackedNetwork,
    weights: Sequence[Mapping[str, Tensor]],
    frozen: frozenset[str],
    x: Tensor,
    y: Tensor,
    objective: Objective,
) -> list[_Outcome]:
    tensors = {name: torch.stack([each[name] for each in weights]) for name in stacked.names}
    stacked.bind(tensors, stacked.params, frozen, None)
    logits = stacked(x)
    shares = torch.full((len(x),), 1 / SAMPLES, device=x.device)
    grads = stacked.gradients(logits, output_gradients(objective, logits, y, shares))
    buffers = [tensors[name] for name in stacked.buffers]
    return [
        _Outcome(own, [g[at] for g in grads], [b[at] for b in buffers])
        for at, own in enumerate(torch.split(logits.detach(), SAMPLES))
    ]


def _close(one: _Outcome, other: _Outcome) -> bool:
    pairs = zip((one.logits, *one.grads, *one.buffers), (other.logits, *other.grads, *other.buffers), strict=True)
    return all(_near(a, b) for a, b in pairs)


def _near(one: Tensor, other: Tensor) -> bool:
    return float((one - other).norm()) <= _CLOSE * float(one.norm()) + _NOTHING


def _independent(module: nn.Module, weights: Mapping[str, Tensor], x: Tensor) -> bool:
    """Return whether the logits of samples stay when another sample of their batch is replaced."""
    changed = torch.cat([x[:-1], x[:1]])
    with torch.no_grad():
        before, after = (
            applied(module, {n: t.clone() for n, t in weights.items()}, each)[:-1] for each in (x, changed)
        )
    return _near(before, after)
