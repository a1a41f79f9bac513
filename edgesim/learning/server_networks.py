"""Networks that a method's server runs and trains: the network of the run, and modules of the method's own.

Weights are model states that are passed in and returned. A module only defines the computation. So a server may hold
any number of models of one network, such as an ensemble, and several models may be part of one loss.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from edgesim.core.backend import CHUNK
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.model_state import ModelState, mapped
from edgesim.core.rng import Key
from edgesim.learning.models.build import applied
from edgesim.learning.models.flop_counter import flop_counter
from edgesim.learning.models.seeding import Stream
from edgesim.learning.models.trace import BATCH_NORMS
from edgesim.learning.train.context import copy_for, first_of
from edgesim.learning.train.loop import Descent


@dataclass
class ServerFlops:
    """FLOPs of a server's work so far, counted in the same way as the training steps of devices."""

    flops: float = 0.0
    _counting: bool = False
    _known: dict[Hashable, float] = field(default_factory=dict)  # FLOPs of the named blocks counted so far

    @contextmanager
    def counting(self, like: Hashable = None) -> Iterator[None]:
        """Add the FLOPs that PyTorch's counter scores in a block. A nested block is counted once.

        `like`: name of blocks that all do equal work. The first one is counted and the others are charged the same,
        because counting takes longer than a small network.
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
        """Return the FLOPs since the last call, and forget the names of blocks."""
        spent, self.flops = self.flops, 0.0
        self._known.clear()
        return spent


@dataclass(frozen=True)
class ServerNetwork:
    """A network that runs with any given weights. Its computations are work of the server."""

    module: nn.Module
    spent: ServerFlops = field(default_factory=ServerFlops)

    @property
    def device(self) -> torch.device:
        """The device of torch on which it computes."""
        return next(self.module.parameters()).device

    @property
    def drop_single(self) -> bool:
        """True if the network cannot train on a batch of one sample, because it normalises over the batch."""
        return any(isinstance(inner, BATCH_NORMS) for inner in self.module.modules())

    @property
    def first(self) -> ModelState:
        """A copy of the original weights of the module, on the CPU."""
        return _copy_on_cpu(first_of(self.module))

    def outputs(self, model: ModelState, *inputs: Tensor) -> Tensor:
        """Return the outputs of a model for a batch as in a test, on the CPU and without gradients.

        `inputs`: the tensors of the batch. Running statistics and dropout are as in an evaluation. The batch is
        computed in pieces.
        """
        run, pieces = self.fixed(model), zip(*(torch.split(each, CHUNK) for each in inputs), strict=True)
        with torch.no_grad(), self.spent.counting():
            return torch.cat([run(*piece).cpu() for piece in pieces])

    def fixed(self, model: ModelState) -> FixedWeights:
        """Return a model with fixed weights for use in a loss. Gradients pass through it to its inputs."""
        return FixedWeights(self, copy_for(self.module, model))

    def trained(self, model: ModelState, local_sgd: LocalSGD, key: Key) -> TrainedWeights:
        """Return a trainable copy of a model, with the optimiser of `local_sgd`. `key`: of its dropout."""
        return TrainedWeights(self, copy_for(self.module, model), local_sgd, Stream(key))

    def run(self, weights: ModelState, inputs: tuple[Tensor, ...], training: bool) -> Any:
        """Return the outputs of the module with these weights, in training or as in a test."""
        self.module.train(training)
        named = {name: tensor for collection in weights.values() for name, tensor in collection.items()}
        with self.spent.counting():
            return applied(self.module, named, *(each.to(self.device) for each in inputs))


@dataclass(frozen=True)
class FixedWeights:
    """A model that runs as in a test and is not trained."""

    network: ServerNetwork
    weights: ModelState

    def __call__(self, *inputs: Tensor) -> Any:
        """Return its outputs. Gradients pass through to the inputs."""
        return self.network.run(self.weights, inputs, training=False)


class TrainedWeights:
    """A model that is being trained, with the state of its optimiser."""

    def __init__(self, network: ServerNetwork, weights: ModelState, local_sgd: LocalSGD, dropout: Stream) -> None:
        self.network = network
        self.dropout = dropout
        self._weights = weights
        self.descent = Descent([each.requires_grad_() for each in weights["params"].values()], local_sgd)

    def __call__(self, *inputs: Tensor) -> Any:
        """Return its outputs in training: with dropout and batch statistics, which update the running statistics."""
        return self.network.run(self._weights, inputs, training=True)

    def as_in_a_test(self, *inputs: Tensor) -> Any:
        """Return its outputs without dropout and with running statistics. Gradients can be taken."""
        return self.network.run(self._weights, inputs, training=False)

    @property
    def model(self) -> ModelState:
        """A copy of the current weights, on the CPU."""
        return _copy_on_cpu(self._weights)


def _copy_on_cpu(model: ModelState) -> ModelState:
    return mapped(lambda tensor: tensor.detach().to("cpu", copy=True), model)
