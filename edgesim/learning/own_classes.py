"""Classes that a device has no sample of: its loss leaves them alone, and so does its say in the mean.

Source: HeteroFL (Diao, Ding and Tarokh, ICLR 2021), masked cross-entropy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from edgesim.card import ModelCard, UnitGroup
from edgesim.contracts import Bundle, Message
from edgesim.learning.context import Batch, Context
from edgesim.learning.trace import layer_of

_LABELS = 1  # sub-stream of a device's key; 0 is that of its only stretch


def with_labels(base: Bundle, own: Bundle | None, context: Context) -> Bundle:
    """Return the model to train, and as a kind of its own the labels of the device's samples."""
    augmenting = torch.Generator().manual_seed(context.key.at(_LABELS).word())
    labels = context.batch(torch.arange(len(context.shard)), augmenting).y
    return {**context.copy(base), "labels": {"own": labels}}


def masked_cross_entropy(w: Bundle, batch: Batch, context: Context) -> Tensor:
    """Return the mean cross-entropy in which the logits of classes that the device has not are 0."""
    logits = context.forward(w, batch.x)
    absent = torch.ones(logits.shape[1], dtype=torch.bool, device=logits.device)
    absent[w["labels"]["own"]] = False
    return F.cross_entropy(logits.masked_fill(absent, 0.0), batch.y)


def of_own_classes(card: ModelCard, got: Sequence[Message], labels: np.ndarray) -> tuple[ModelCard, list[Message]]:
    """Return messages that have only the rows of their devices' classes in the last layer, and a card to read them by.

    `labels`: counts, shape (devices, classes). Devices without samples are left out, as is the whole rule for a network
    whose last layer does not give the logits.
    """
    last = card.layers[-1]
    if last.rows or not last.weights:
        return card, list(got)
    layers = (*card.layers[:-1], replace(last, rows=last.name))
    groups = (*card.groups, UnitGroup(last.name, labels.shape[1]))
    rows = [(message, np.flatnonzero(labels[message.device])) for message in got]
    return replace(card, layers=layers, groups=groups), [_cut(m, last.name, own) for m, own in rows if len(own)]


def _cut(message: Message, last: str, rows: np.ndarray) -> Message:
    part = message.task.part
    part = replace(part, units=(*part.units, (last, tuple(rows.tolist()))))
    params = {n: t[torch.from_numpy(rows)] if layer_of(n) == last else t for n, t in message.body["params"].items()}
    return message._replace(task=replace(message.task, part=part), body={**message.body, "params": params})
