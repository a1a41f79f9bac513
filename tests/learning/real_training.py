"""A device that trains some network in edgesim's own loop, and what PyTorch counts meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from edgesim.core.backend import Assignment
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.price_list import CostProfile
from edgesim.core.rng import Key
from edgesim.core.task import Submodel, Task
from edgesim.core.update import ModelState
from edgesim.learning.data.dataset import Dataset
from edgesim.learning.measure.step import measure
from edgesim.learning.models.build import build_model, model_state_of
from edgesim.learning.models.flop_counter import flop_counter
from edgesim.learning.train.trainer import Trainer
from edgesim.methods.fedavg import FedAvg
from tests.learning.test_models import Foreign

SAMPLES, STEPS, STRETCH = 7, 2, LocalSGD(batch=4, lr=0.01, epochs=1)  # batches of 4 and 3


class Trained(NamedTuple):
    """What an epoch took and gave."""

    charged_flops: float
    counted_flops: float
    body: ModelState


class Device:
    """A network as a run has it, its cost profile and its first weights, and a device with a few samples in [0, 16)."""

    def __init__(self, cls: type[nn.Module], features: int = 16, classes: int = 3, **args: object) -> None:
        self.module = build_model(Foreign(cls, **args), (features,), classes, Key(3))
        self.cost_profile: CostProfile = measure(self.module, cls.__name__, (features,), classes)
        self.first = model_state_of(self.module)
        draws = Key(4).numpy()
        x = torch.from_numpy(draws.integers(16, size=(SAMPLES, features)).astype(np.float32))
        y = torch.from_numpy(draws.integers(classes, size=SAMPLES))
        data = Dataset("made up", x, y, x, y, classes, (features,))
        rows = torch.arange(SAMPLES)
        self.trainer = Trainer(self.module, data, [rows], FedAvg(), self.cost_profile, rows)

    def train(self, frozen: frozenset[str] = frozenset()) -> Trained:
        """Train for an epoch with these layers frozen."""
        submodel = Submodel(frozen=frozen)
        job = Assignment(0, 0, Task(submodel=submodel, local_sgd=(STRETCH,)), Key(6), self.first, None)
        with flop_counter() as counter:
            result = self.trainer.run(job)
        charged = SAMPLES * self.cost_profile.train_flops(submodel) + STEPS * self.cost_profile.step_flops(submodel)
        return Trained(charged, counter.get_total_flops(), result.body)


@contextmanager
def scored_kernels() -> Iterator[None]:
    """Let attention be made of products that PyTorch's counter scores one by one; see docs/explanation/prices.md."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
