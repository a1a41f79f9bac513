"""Probe of a network: it runs for many devices at once and device after device, and the results are compared."""

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
from edgesim.learning.train.loop import gradients, mean_shares, output_gradients
from edgesim.learning.train.stacked import StackedNetwork

DEVICES, SAMPLES = 2, 3  # devices of a probe, and samples of each device
# Tolerance relative to a tensor's norm, far below the effect of another device's weights or samples. Rounding alone
# makes thousandths if it moves a number to the other side of a ReLU's corner in a deep network.
_CLOSE = 1e-2
_NOTHING = 1e-6  # norm of gradients that consist of rounding alone, such as those of a bias before a normalisation


class Stackable(NamedTuple):
    """Result of a probe."""

    why_not: str | None  # reason why the network cannot be stacked, None if it can
    pads: bool = False  # a sample's logits depend on no other sample, so that short batches can be filled up


class _Outcome(NamedTuple):
    """Outputs of a network for the samples of one device."""

    logits: Tensor
    grads: Sequence[Tensor]  # of the trained parameters
    buffers: Sequence[Tensor]  # after the forward pass


def probed(
    stacked: StackedNetwork,
    module: nn.Module,
    frozen: frozenset[str],
    x: Tensor,
    y: Tensor,
    objective: Objective = CLASSIFICATION,
) -> Stackable:
    """Train a network on the samples of a probe, device after device and stacked, and compare.

    Only randomly drawn weights are used. `frozen`: layers that run as in a test.
    """
    for name, layer in module.named_modules():
        layer.training = name not in frozen
    generator = torch.Generator().manual_seed(Key(0).word())
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    weights: list[dict[str, Tensor]] = []  # of each device
    for _ in range(DEVICES):
        draws = {name: torch.randn(own[name].shape, generator=generator) * 0.1 for name in stacked.params}
        # Buffers are positive, as variances are.
        draws |= {name: torch.rand(own[name].shape, generator=generator) + 0.5 for name in stacked.buffers}
        weights.append({name: drawn.to(own[name]) for name, drawn in draws.items()})
    mine, labels = x[:SAMPLES], y[:SAMPLES]
    logits = _alone(module, stacked, weights[0], mine, labels, objective, 0).logits
    if not torch.equal(logits, _alone(module, stacked, weights[0], mine, labels, objective, 1).logits):
        return Stackable("it draws random numbers in training, as dropout does")
    changed = torch.cat([mine[:-1], mine[:1]])  # do logits stay when another sample of the batch is replaced?
    with torch.no_grad():
        before, after = (
            applied(module, {n: t.clone() for n, t in weights[0].items()}, each)[:-1] for each in (mine, changed)
        )
    pads = _near(before, after)
    batches = zip(weights, torch.split(x, SAMPLES), torch.split(y, SAMPLES), strict=True)
    apart = [_alone(module, stacked, *each, objective, 0) for each in batches]
    try:
        together = _together(stacked, weights, frozen, x, y, objective)
    except Exception as error:  # any error of a user's own network
        return Stackable(f"it cannot be run stacked: {reason_of(error)}")
    pairs = [
        pair
        for one, other in zip(apart, together, strict=True)
        for pair in zip(_tensors(one), _tensors(other), strict=True)
    ]
    if not all(_near(one, other) for one, other in pairs):
        return Stackable("run stacked it gives other numbers: samples of different devices meet in it")
    stacked.learn_uses()
    return Stackable(None, pads)


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
    shares = mean_shares(objective, y, torch.full((DEVICES, SAMPLES), 1 / SAMPLES, device=x.device))
    grads = stacked.gradients(logits, output_gradients(objective, logits, y, shares))
    buffers = [tensors[name] for name in stacked.buffers]
    return [
        _Outcome(own, [g[at] for g in grads], [b[at] for b in buffers])
        for at, own in enumerate(torch.split(logits.detach(), SAMPLES))
    ]


def _tensors(outcome: _Outcome) -> list[Tensor]:
    return [outcome.logits, *outcome.grads, *outcome.buffers]


def _near(one: Tensor, other: Tensor) -> bool:
    return float((one - other).norm()) <= _CLOSE * float(one.norm()) + _NOTHING
