"""Networks that a method's server runs and trains: the run's own, and modules that the method brings along.

Weights are model states that are given and returned; a module is only the shape that they are put into. So a server may
hold any number of models of one network, such as those of an ensemble, and several of them may be part of one loss.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from edgesim.core.local_sgd import LocalSGD
from edgesim.core.rng import Key
from edgesim.core.update import ModelState
from edgesim.learning.models.build import applied
from edgesim.learning.models.flop_counter import flop_counter
from edgesim.learning.models.seeding import Stream
from edgesim.learning.models.trace import BATCH_NORMS
from edgesim.learning.train.context import copy_for, first_of
from edgesim.learning.train.loop import Descent
from edgesim.learning.train.trainer import CHUNK


@dataclass
class Spent:
    """FLOPs of a server's work as they add up, counted as those of training steps are that devices are charged for."""

    flops: float = 0.0
    _counting: bool = False
    _known: dict[Hashable, float] = field(default_factory=dict)  # FLOPs of blocks that others are like

    @contextmanager
    def counting(self, like: Hashable = None) -> Iterator[None]:
        """Add what PyTorch's counter scores in a block; in a block within another one it counts once.

        `like`: what a block is called that does as much work as every other one of this name. The first is counted, and
        the others charged the same: counting takes longer than a small network does.
        """
        if self._counting:
            yield
            return
        self._counting = True
        try:
            with flop_counter() if like not in self._known else nullcontext() as counter:
                yield
        finally:
            self._counting = False
        flops = self._known[like] if counter is None else float(counter.get_total_flops())
        if like is not None:
            self._known[like] = flops
        self.flops += flops

    def take(self) -> float:
        """Return what was spent since the last call, and forget what blocks were called."""
        spent, self.flops = self.flops, 0.0
        self._known.clear()
        return spent


@dataclass(frozen=True)
class ServerNetwork:
    """A network, into which weights are put as they are given. What it computes is the server's work."""

    module: nn.Module
    spent: Spent = field(default_factory=Spent)

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return next(self.module.parameters()).device

    @property
    def drop_single(self) -> bool:
        """Whether it cannot be trained on a batch of one sample, as it normalises over the batch."""
        return any(isinstance(inner, BATCH_NORMS) for inner in self.module.modules())

    @property
    def first(self) -> ModelState:
        """A copy of the weights that the module was made with, on the CPU."""
        return _copy_on_cpu(first_of(self.module))

    def outputs(self, model: ModelState, *inputs: Tensor) -> Tensor:
        """Return what a model makes of a batch as in a test, on the CPU and without gradients; `inputs`: its tensors.

        Running statistics and dropout are as in an evaluation. The batch is gone through in pieces.
        """
        run, pieces = self.fixed(model), zip(*(torch.split(each, CHUNK) for each in inputs), strict=True)
        with torch.no_grad(), self.spent.counting():
            return torch.cat([run(*piece).cpu() for piece in pieces])

    def fixed(self, model: ModelState) -> FixedWeights:
        """Return a model that takes no gradients itself, to be part of a loss: they go through it to its inputs."""
        return FixedWeights(self, copy_for(self.module, model))

    def trained(self, model: ModelState, local_sgd: LocalSGD, key: Key) -> TrainedWeights:
        """Return a copy of a model that takes steps, with the optimiser of `local_sgd`. `key`: of its dropout."""
        return TrainedWeights(self, copy_for(self.module, model), local_sgd, Stream(key))

    def run(self, weights: ModelState, inputs: tuple[Tensor, ...], training: bool) -> Any:
        """Return what a module makes of inputs with some weights, in training or as in a test."""
        self.module.train(training)
        named = {name: tensor for collection in weights.values() for name, tensor in collection.items()}
        with self.spent.counting():
            return applied(self.module, named, *(each.to(self.device) for each in inputs))


@dataclass(frozen=True)
class FixedWeights:
    """A model that answers as in a test and is not trained."""

    network: ServerNetwork
    weights: ModelState

    def __call__(self, *inputs: Tensor) -> Any:
        """Return its outputs; gradients go through to the inputs."""
        return self.network.run(self.weights, inputs, training=False)


class TrainedWeights:
    """A model that is being trained, with what its optimiser keeps from step to step."""

    def __init__(self, network: ServerNetwork, weights: ModelState, local_sgd: LocalSGD, dropout: Stream) -> None:
        self.network = network
        self.dropout = dropout
        self._weights = weights
        self.descent = Descent([each.requires_grad_() for each in weights["params"].values()], local_sgd)

    def __call__(self, *inputs: Tensor) -> Any:
        """Return its outputs in training: with dropout, and batch statistics, which move the running ones."""
        return self.network.run(self._weights, inputs, training=True)

    def as_in_a_test(self, *inputs: Tensor) -> Any:
        """Return its outputs without dropout and with running statistics; gradients can be taken."""
        return self.network.run(self._weights, inputs, training=False)

    @property
    def model(self) -> ModelState:
        """A copy of the weights as they are now, on the CPU."""
        return _copy_on_cpu(self._weights)


def _copy_on_cpu(model: ModelState) -> ModelState:
    return {
        collection: {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
        for collection, tensors in model.items()
    }
