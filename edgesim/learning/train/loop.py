"""The local training loop. This is the only module that takes gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from edgesim.core.local_sgd import LocalSGD
from edgesim.core.method import LocalPhase, LocalState
from edgesim.core.rng import Key
from edgesim.learning.objectives.base import Objective
from edgesim.learning.train.adam import AdamMoments, adam_step
from edgesim.learning.train.context import Context
from edgesim.learning.train.rules import objective_loss


def gradients(loss: Tensor, wrt: Sequence[Tensor], again: bool = False, shares: Tensor | None = None) -> list[Tensor]:
    """Return the gradients of a scalar loss, one per tensor of `wrt`, zeros where the loss does not depend on it.

    `again`: keep the graph for another backward pass. `shares`: `loss` holds several numbers, and the differentiated
    loss is their sum weighted with these factors, of the shape of `loss`.
    """
    if not wrt or not loss.requires_grad:  # no parameters, or none that the loss depends on
        return [torch.zeros_like(w) for w in wrt]
    found = torch.autograd.grad(loss, wrt, shares, allow_unused=True, retain_graph=again)
    return [torch.zeros_like(w) if g is None else g for w, g in zip(wrt, found, strict=True)]


def output_gradients(objective: Objective, outputs: Tensor, y: Tensor, shares: Tensor) -> Tensor:
    """Return the gradients of the samples' losses, each times its share, with respect to the outputs of a network.

    `shares`: shape (batch,). The gradients have the shape of `outputs`.
    """
    found = objective.slopes(outputs, y)
    if found is not None:
        return found.mul_(shares.view(-1, *[1] * (found.ndim - 1)))
    leaf = outputs.detach().requires_grad_()
    return gradients(objective.losses(leaf, y), [leaf], shares=shares)[0]


def mean_shares(objective: Objective, y: Tensor, equal: Tensor) -> Tensor:
    """Return the weight of each sample's loss in the mean loss of its job, shape (jobs x width,).

    `equal`: these weights if all samples counted alike, (jobs, width), with 0 for samples that fill up a short batch.
    """
    counted = objective.counted(y)
    if counted is None:
        return equal.flatten()
    own = counted.view(equal.shape) * (equal > 0)
    return (own / own.sum(1, keepdim=True).clamp(min=torch.finfo(own.dtype).tiny)).flatten()


def backward_from(node: Any, received: Sequence[Tensor | None], to: Sequence[Any]) -> None:
    """Run the backward pass from one node of a graph to others, as if it had received these gradients. The graph stays.

    The resulting gradients are discarded: only hooks of the nodes on the way see them.
    """
    given = [(GradientEdge(node, place), grad) for place, grad in enumerate(received) if grad is not None]
    edges, grads = zip(*given, strict=True)
    torch.autograd.grad(edges, [GradientEdge(end, 0) for end in to], grads, retain_graph=True, allow_unused=True)


def hessian_product(
    loss: Tensor, wrt: Sequence[Tensor]
) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], list[Tensor]]]:
    """Return the gradients of a scalar loss, as `gradients` does, and a function for products with its Hessian.

    The function multiplies the Hessian by a vector. The vector and the product have one tensor for each of `wrt`. A
    product is one more backward pass, through the first one. The values of `wrt` must not change before the last
    product.
    """
    found = torch.autograd.grad(loss, wrt, allow_unused=True, create_graph=True)
    curved = [place for place, g in enumerate(found) if g is not None and g.requires_grad]  # others are constant
    slopes = [found[place] for place in curved]

    def product(vector: Sequence[Tensor]) -> list[Tensor]:
        if not curved:
            return [torch.zeros_like(w) for w in wrt]
        weights = [vector[place] for place in curved]
        rows = torch.autograd.grad(slopes, wrt, weights, retain_graph=True, allow_unused=True)
        return [torch.zeros_like(w) if row is None else row for w, row in zip(wrt, rows, strict=True)]

    return [torch.zeros_like(w) if g is None else g.detach() for w, g in zip(wrt, found, strict=True)], product


def batch_order(
    key: Key, n_samples: int, local_sgd: LocalSGD, drop_single: bool, place: torch.device | None = None
) -> Iterator[Tensor]:
    """Yield the positions (int64, in [0, n_samples)) of each step of a run of local SGD, reshuffled every epoch.

    Without `local_sgd.shuffle` each epoch runs from position 0 to the last one. The last short batch of an epoch is
    used, unless it is a single sample and `drop_single` is set. The CPU draws the positions. `place`: the device to
    move them to, None for the CPU.
    """
    left = _steps(local_sgd, n_samples, drop_single)
    generator = torch.Generator().manual_seed(key.word())
    while left:
        drawn = torch.randperm(n_samples, generator=generator) if local_sgd.shuffle else torch.arange(n_samples)
        order = drawn.to(place, non_blocking=True)
        for positions in torch.split(order, local_sgd.batch):
            if not left or (drop_single and len(positions) == 1 < local_sgd.batch):
                break
            yield positions
            left -= 1


@lru_cache(maxsize=1024)
def _steps(local_sgd: LocalSGD, n_samples: int, drop_single: bool) -> int:
    _, steps = local_sgd.amount(np.array([n_samples]), drop_single)
    return int(steps[0])


def run_local_sgd(
    local: LocalState, local_sgd: LocalSGD, phase: LocalPhase, context: Context, key: Key, most: int | None = None
) -> int:
    """Take steps in place on the trained parameters of a job's weights. Return the number of steps, at most `most`.

    `key` names the streams of this run: 0 the batch order, 1 the augmentation. Parameters of frozen layers keep their
    bits: they take no gradient, so that the backward pass ends at the first trained layer.
    """
    compiled = context.programs and context.programs.gradients(context, phase)
    if phase.run is not None:
        taken: int = phase.run(local, local_sgd, context, key)
        return taken
    trained = context.bind(local.weights, phase.frozen)
    kept = local.optimizer if phase.keeps_optimizer else []  # state of the optimiser between steps
    augmenting = torch.Generator().manual_seed(key.at(1).word()) if context.augments else None
    order = batch_order(key.at(0), len(context.shard), local_sgd, context.drop_single, context.shard.device)
    meter, steps = context.meter, 0
    for batch in context.batches(islice(order, most), augmenting):
        if meter is not None:
            meter.expect(batch.x)
        if phase.gradient is not None:
            grads = phase.gradient(local, batch, context)
        elif phase.loss is not None:
            grads = gradients(phase.loss(local, batch, context), trained)
        else:
            found = compiled.of(batch, trained) if compiled else None
            grads = found or gradients(objective_loss(local.weights, batch, context), trained)
        if phase.adjust_gradients is not None:
            grads = phase.adjust_gradients(grads, local, context)
        if meter is not None and not meter.has_seen:  # the rule never ran the whole batch through the trained weights
            with context.as_in_a_test(), torch.no_grad():
                context.forward(local.weights, batch.x)
        if meter is not None:
            meter.note(batch.y)
        with torch.no_grad():
            _descend(trained, grads, kept, local_sgd)
            if phase.after_step:
                phase.after_step(local, context)
        del grads  # the next step gets their memory, which is still in the cache
        steps += 1
    return steps


@dataclass
class Descent:
    """Tensors that are trained outside a job by the optimiser of `local_sgd`, with its state between steps."""

    trained: list[Tensor]
    local_sgd: LocalSGD
    kept: list[Any] = field(default_factory=list)


def descend(loss: Tensor, descents: Sequence[Descent], rate: float = 1.0) -> None:
    """Take one step of all descents down a scalar loss, in place. `rate`: factor of their learning rates."""
    found = iter(gradients(loss, [tensor for descent in descents for tensor in descent.trained]))
    with torch.no_grad():
        for descent in descents:
            grads = list(islice(found, len(descent.trained)))
            sgd = descent.local_sgd if rate == 1.0 else replace(descent.local_sgd, lr=rate * descent.local_sgd.lr)
            _descend(descent.trained, grads, descent.kept, sgd)


def _descend(trained: list[Tensor], grads: list[Tensor], kept: list[Any], local_sgd: LocalSGD) -> None:
    """Take one step in place, as the optimiser of torch.optim does. The first step fills `kept`."""
    if not trained:
        return
    if local_sgd.optimizer != "sgd":
        if not kept:
            kept += [AdamMoments(w) for w in trained]
        adam_step(trained, clipped(grads, local_sgd.clip_norm), kept, local_sgd)
        return
    grads = decayed(trained, grads, local_sgd)
    if local_sgd.momentum:
        if kept:
            torch._foreach_mul_(kept, local_sgd.momentum)
            torch._foreach_add_(kept, grads)
        else:
            kept += [g.detach().clone() for g in grads]
        grads = list(torch._foreach_add(grads, kept, alpha=local_sgd.momentum)) if local_sgd.nesterov else kept
    torch._foreach_add_(trained, grads, alpha=-local_sgd.lr)


def decayed(trained: Sequence[Tensor], grads: Sequence[Tensor], local_sgd: LocalSGD) -> list[Tensor]:
    """Return the gradients that a step of SGD uses: clipped, then with weight decay."""
    short = clipped(grads, local_sgd.clip_norm)
    if not local_sgd.weight_decay:
        return short
    return list(torch._foreach_add(short, list(trained), alpha=local_sgd.weight_decay))


def clipped(grads: Sequence[Tensor], norm: float) -> list[Tensor]:
    """Return gradients scaled down as one vector to this norm if they are longer."""
    if norm == math.inf:
        return list(grads)
    total = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in grads]))
    return [g * (norm / (total + 1e-6)).clamp(max=1.0) for g in grads]
