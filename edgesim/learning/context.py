"""What local training works with: the network bound to a device's weights, and the device's samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from edgesim.contracts import Assignment, Bundle, Message, Task
from edgesim.learning.data.dataset import Dataset


class Batch(NamedTuple):
    """Inputs (images NCHW, float32) and class labels (int64) of one SGD step."""

    x: Tensor
    y: Tensor


class Context:
    """Handed to every hook of a LocalRule.

    `base` is the model received, `own` what the device kept, `received` the messages of peers; a method that needs the
    first model keeps it. `trained` names the parameters that take gradients, in the order gradients come in.
    """

    def __init__(
        self, module: nn.Module, data: Dataset, shard: Tensor, assignment: Assignment, drop_single: bool
    ) -> None:
        self.task: Task = assignment.task
        self.base: Bundle = assignment.base
        self.own: Bundle | None = assignment.own
        self.received: Sequence[Message] = assignment.received
        self.device = assignment.device
        self.key = assignment.key
        self.shard = shard
        self.drop_single = drop_single
        self.trained = [n for n, _ in module.named_parameters() if _layer(n) not in assignment.task.part.frozen]
        self._module = module
        self._data = data
        self._device = next(module.parameters()).device
        self._bound: Bundle = {}
        for name, layer in module.named_modules():
            layer.training = name not in assignment.task.part.frozen

    def copy(self, bundle: Bundle) -> Bundle:
        """Return a copy of a bundle that training may change."""
        return copy_for(self._module, bundle)

    def batch(self, positions: Tensor, augmenting: torch.Generator) -> Batch:
        """Return the samples at these positions of the device's data, augmented if the data set says so."""
        x, y = self._data.batch("train", self.shard[positions])
        if self._data.augment is not None:
            x = self._data.augment.apply(x, augmenting)
        return Batch(x.to(self._device), y.to(self._device))

    def bind(self, w: Bundle) -> list[Tensor]:
        """Make `w` the network's own weights and set what is trained; return the trained tensors."""
        frozen = self.task.part.frozen
        load(self._module, w)
        for name, layer in self._module.named_modules():
            layer.training = name not in frozen
        trained: list[Tensor] = []
        for name, parameter in self._module.named_parameters():
            parameter.requires_grad_(_layer(name) not in frozen)
            if parameter.requires_grad:
                trained.append(parameter)
        self._bound = w
        return trained

    def forward(self, w: Bundle, x: Tensor) -> Tensor:
        """Return the logits of weights `w`, shape (batch, classes); fastest for the weights being trained.

        Only the running statistics of the weights being trained move; those of other weights stay as they are.
        Weights without any use those of the model received.
        """
        if w is self._bound:
            return self._module(x)
        buffers = w.get("buffers", self.base.get("buffers", {}))
        if buffers is not self._bound.get("buffers"):
            buffers = {name: buffer.clone() for name, buffer in buffers.items()}
        return torch.func.functional_call(self._module, {**w["params"], **buffers}, (x,))


def copy_for(module: nn.Module, bundle: Bundle) -> Bundle:
    """Return a copy of a bundle on the network's device, laid out in memory as the network wants it."""
    like: dict[str, Tensor] = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {kind: {name: _copy(t, like.get(name)) for name, t in tensors.items()} for kind, tensors in bundle.items()}


def _copy(tensor: Tensor, like: Tensor | None) -> Tensor:
    return torch.empty_like(tensor if like is None else like, requires_grad=False).copy_(tensor)


def load(module: nn.Module, w: Bundle) -> None:
    """Let a network use the tensors of a bundle as its own, without copying. Integer buffers stay the network's."""
    for name, parameter in module.named_parameters():
        parameter.data = w["params"][name]
    for name, buffer in module.named_buffers():
        if buffer.is_floating_point():
            buffer.data = w["buffers"][name]


def _layer(parameter: str) -> str:
    return parameter.rpartition(".")[0]
