"""Training and evaluation of devices on samples that they share with the server."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from edgesim.core.backend import CHUNK
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.rng import Key
from edgesim.core.update import ModelState
from edgesim.learning.train.context import Context
from edgesim.learning.train.loop import Descent, batch_order, descend


def learn_public(
    weights: ModelState, context: Context, local_sgd: LocalSGD, loss: Callable[[Tensor, Tensor], Tensor], key: Key
) -> None:
    """Train a model in place on batches of the public samples.

    `loss`: maps the logits of a batch and its places among these samples, int64, to a scalar. `key`: of the batches.
    """
    x = context.public.x
    descent = Descent(context.bind(weights), local_sgd)
    for places in batch_order(key, len(x), local_sgd, context.drop_single, x.device):
        descend(loss(context.forward(weights, x[places]), places), [descent])


def public_logits(weights: ModelState, context: Context) -> Tensor:
    """Return the logits of a model on the public samples in a test, shape (samples, classes)."""
    context.bind_for_test(weights)  # again, because jobs that are trained together take turns on one network
    with torch.no_grad():
        return torch.cat([context.forward(weights, x) for x in torch.split(context.public.x, CHUNK)])
