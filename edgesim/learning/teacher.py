"""A teacher: a network of the server's own, trained on the server's samples, that tells what it makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from edgesim.config.parts import PartOf
from edgesim.contracts import Assignment, Stretch, Task
from edgesim.errors import ConfigError
from edgesim.learning.build import build_model, bundle_of
from edgesim.learning.context import Context
from edgesim.learning.loop import train_stretch
from edgesim.learning.measure import measure
from edgesim.learning.rules import PLAIN_SGD
from edgesim.learning.seeding import seeded
from edgesim.learning.server import ServerTools
from edgesim.learning.trainer import CHUNK
from edgesim.rng import Key


class Taught(NamedTuple):
    """What a teacher says about the server's samples: `logits`, float32, (samples, classes); what it took to train."""

    logits: Tensor
    flops: float


def teacher_network(name: str, input_shape: Sequence[int], classes: int, key: Key) -> nn.Module:
    """Return a new network of this name with the defaults of its part; equal keys give equal weights.

    Raises ConfigError if there is none or it does not fit inputs of this shape.
    """
    try:
        part = PartOf("model").read(name).value
        return build_model(part, input_shape, classes, key)
    except ValidationError as error:
        raise ConfigError(f"method.teacher: {error.errors()[0]['msg']}") from error
    except ConfigError as error:
        raise ConfigError(f"method.teacher: {str(error).removeprefix('model.name: ')}") from error


def taught(name: str, tools: ServerTools, stretch: Stretch, key: Key) -> Taught:
    """Return what a new network says in a test about the server's samples, once it was trained on them.

    These have to be of the training set. FLOPs are those of the network's own card. Raises what `teacher_network` does.
    """
    assert tools.rows is not None and tools.split == "train"
    data, rows, device = tools.data, tools.rows, next(tools.module.parameters()).device
    module = teacher_network(name, data.input_shape, data.classes, key.at(0))
    card = measure(module, name, data.input_shape, data.classes)
    module = module.to(device)
    job = Assignment(-1, -1, Task("teach", stretches=(stretch,)), key, bundle_of(module), None)
    context = Context(module, data, rows, job, card.drop_single)
    w = context.copy(job.base)
    with seeded(key.at(1)):
        train_stretch(w, stretch, PLAIN_SGD.phases[0], context, key.at(2))
        looks = [data.batch("train", chunk)[0].to(device) for chunk in torch.split(rows, CHUNK)]
        logits = torch.cat([context.tested_features(w, x)[0] for x in looks])
    (seen,), (steps,) = stretch.amount(np.array([len(rows)]), card.drop_single)
    flops = card.train_flops() * int(seen) + card.step_flops() * int(steps)
    return Taught(logits.cpu(), flops + card.forward_flops() * len(rows) + card.step_forward_flops * len(looks))
