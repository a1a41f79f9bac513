"""A teacher: a network of the server's own, trained on the server's samples, whose logits guide the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from edgesim.config.plugin_fields import PartOf
from edgesim.config.units import reason
from edgesim.core.backend import CHUNK, Assignment
from edgesim.core.errors import ConfigError
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.method import LocalState
from edgesim.core.rng import Key
from edgesim.core.task import Task
from edgesim.learning.measure.step import measure
from edgesim.learning.models.build import build_model, model_state_of
from edgesim.learning.models.seeding import seeded
from edgesim.learning.server import TorchServerTools
from edgesim.learning.train.context import Context
from edgesim.learning.train.loop import run_local_sgd
from edgesim.learning.train.rules import PLAIN_SGD


class Taught(NamedTuple):
    """A teacher's `logits` of the server's samples, float32, (samples, classes), and the FLOPs of its training."""

    logits: Tensor
    flops: float


def teacher_network(
    name: str, input_shape: Sequence[int], classes: int, key: Key, option: str = "teacher"
) -> nn.Module:
    """Return a new network of this name with the defaults of its part. Equal keys give equal weights.

    Raises ConfigError, which names the method's option, for an unknown name or a network that does not fit the inputs.
    """
    try:
        plugin = PartOf("model").read(name).value
        return build_model(plugin, input_shape, classes, key)
    except ValidationError as error:
        raise ConfigError(f"method.{option}: {reason(error)}") from error
    except ConfigError as error:
        raise ConfigError(f"method.{option}: {str(error).removeprefix('model.name: ')}") from error


def taught(name: str, tools: TorchServerTools, sgd: LocalSGD, key: Key) -> Taught:
    """Train a new network on the server's samples and return its logits of them, as in a test.

    The samples have to be of the training set. FLOPs are counted with the network's own cost profile. Raises
    ConfigError, as `teacher_network` does.
    """
    assert tools.rows is not None and tools.split == "train"
    data, rows, device = tools.data, tools.rows, next(tools.module.parameters()).device
    module = teacher_network(name, data.input_shape, data.classes, key.at(0))
    cost_profile = measure(module, name, data.input_shape, data.classes)
    module = module.to(device)
    job = Assignment(-1, -1, Task("teach", local_sgd=(sgd,)), key, model_state_of(module), None)
    context = Context(module, data, rows, job, cost_profile.drop_single)
    local = LocalState(context.copy(job.global_model))
    with seeded(key.at(1)):
        run_local_sgd(local, sgd, PLAIN_SGD.phases[0], context, key.at(2))
        looks = [data.batch("train", chunk)[0].to(device) for chunk in torch.split(rows, CHUNK)]
        logits = torch.cat([context.tested_features(local.weights, x)[0] for x in looks])
    (seen,), (steps,) = sgd.amount(np.array([len(rows)]), cost_profile.drop_single)
    flops = cost_profile.train_flops() * int(seen) + cost_profile.step_flops() * int(steps)
    return Taught(
        logits.cpu(), flops + cost_profile.forward_flops() * len(rows) + cost_profile.step_forward_flops * len(looks)
    )
