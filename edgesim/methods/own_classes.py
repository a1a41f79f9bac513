"""Classes that a device has no sample of: its loss ignores them, and its update does not count for them in the mean.

Source: HeteroFL (Diao, Ding and Tarokh, ICLR 2021), masked cross-entropy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from edgesim.core.method import LocalState
from edgesim.core.model_state import named
from edgesim.core.price_list import ChannelGroup, CostProfile
from edgesim.core.rng import JobStream
from edgesim.core.update import Update
from edgesim.learning.models.trace import layer_of
from edgesim.learning.train.context import Batch, Context


def with_labels(context: Context) -> LocalState:
    """Return the model to train, and as scratch the labels of the device's samples, int64."""
    augmenting = torch.Generator().manual_seed(context.key.at(JobStream.LABELS).word())
    labels = context.batch(torch.arange(len(context.shard)), augmenting).y
    return LocalState(context.copy(context.global_model), labels)


def masked_cross_entropy(local: LocalState, batch: Batch, context: Context) -> Tensor:
    """Return the mean cross-entropy with logits of 0 for classes that the device does not have."""
    logits = context.forward(local.weights, batch.x)
    absent = torch.ones(logits.shape[1], dtype=torch.bool, device=logits.device)
    absent[local.scratch] = False
    return F.cross_entropy(logits.masked_fill(absent, 0.0), batch.y)


def of_own_classes(
    cost_profile: CostProfile, updates: Sequence[Update], labels: np.ndarray
) -> tuple[CostProfile, list[Update]]:
    """Return updates with only the rows of their devices' classes in the last layer, and a cost profile for them.

    `labels`: counts, shape (devices, classes). Devices without samples are left out. If the last layer of the network
    does not give the logits, the arguments come back unchanged.
    """
    last = cost_profile.layers[-1]
    if last.rows or not last.weights:
        return cost_profile, list(updates)
    layers = (*cost_profile.layers[:-1], replace(last, rows=last.name))
    groups = (*cost_profile.groups, ChannelGroup(last.name, labels.shape[1]))
    cut = []
    for message in updates:
        rows = np.flatnonzero(labels[message.device])
        if not len(rows):
            continue
        submodel = message.task.submodel
        submodel = replace(submodel, channels=(*submodel.channels, (last.name, tuple(rows.tolist()))))
        own = torch.from_numpy(rows)
        params = named(lambda name, t, own=own: t[own] if layer_of(name) == last.name else t, message.body["params"])
        body = {**message.body, "params": params}
        cut.append(message._replace(task=replace(message.task, submodel=submodel), body=body))
    return replace(cost_profile, layers=layers, groups=groups), cut
