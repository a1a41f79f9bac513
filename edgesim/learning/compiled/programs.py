"""Compiled gradients in the training loop: of the objective's mean loss, for networks and batches as they come."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from edgesim.core.method import LocalPhase
from edgesim.learning.compiled.program import CannotCompile, Program, program_of
from edgesim.learning.models.build import applied, base_of
from edgesim.learning.objectives.base import Objective
from edgesim.learning.train.loop import gradients

if TYPE_CHECKING:
    from edgesim.learning.train.context import Batch, Context


class GradientStep:
    """Forward and backward pass of a network, as a function of its tensors and a batch."""

    def __init__(self, module: nn.Module, trained: Sequence[str], others: Sequence[str], objective: Objective) -> None:
        """`trained`: names of the parameters that take gradients. `others`: names of all other tensors."""
        self._module, self._trained, self._others, self._objective = module, trained, others, objective
        base = base_of(module)
        self.moved = [name for name, _ in module.named_buffers() if name not in base]  # such as running means

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """Return gradients, outputs, and the values of the buffers in `moved` after the forward pass.

        `inputs`: trained tensors, other tensors, samples, labels. None of them changes.
        """
        *weights, x, y = inputs
        leaves = [each.detach().requires_grad_() for each in weights[: len(self._trained)]]
        given = dict(zip(self._others, weights[len(self._trained) :], strict=True))
        others = {name: each.clone() if name in self.moved else each for name, each in given.items()}
        outputs = applied(self._module, {**dict(zip(self._trained, leaves, strict=True)), **others}, x)
        found = gradients(self._objective.loss(outputs, y), leaves)
        return [*found, outputs.detach(), *(others[name] for name in self.moved)]


class _Compiled(NamedTuple):
    """A program, and the buffers whose new values it gives."""

    program: Program
    moved: Sequence[str]


class Programs:
    """Programs of a trainer. Each is made, or loaded, when a job first needs it."""

    def __init__(self) -> None:
        self.eager: dict[str, None] = {}  # reasons why steps are not compiled, in order of appearance
        self._found: dict[Any, _Compiled | None] = {}

    def gradients(self, context: Context, phase: LocalPhase) -> CompiledGradients | None:
        """Return the gradients of a phase of a job, or None if its steps are not compiled."""
        why_not = None
        if context.is_mixed:
            why_not = "training.precision: it trains in bfloat16"
        elif phase.run is not None:
            why_not = "the method: its devices train by a loop of the user's own"
        elif context.task.submodel.channels:
            why_not = "the method: its devices train some channels, perhaps others in each job"
        elif phase.loss is not None or phase.gradient is not None:
            why_not = "the method: its devices take other gradients than those of the objective"
        if why_not:
            self.eager.setdefault(why_not)
        return None if why_not else CompiledGradients(self, context, phase)

    def find(self, part: Any, context: Context, others: Sequence[str], inputs: Sequence[Tensor]) -> _Compiled | None:
        """Return the program of a part of the network for inputs like these. None: it cannot be compiled.

        A program reads its inputs without looking at their layouts, which a method may change.
        """
        layouts = [(each.shape, each.stride(), each.dtype) for each in inputs[:-2]]
        key = part, *layouts, *((each.shape[1:], each.stride(), each.dtype) for each in inputs[-2:])
        if key not in self._found:
            step = GradientStep(context.module, context.trained, others, context.objective)
            try:
                self._found[key] = _Compiled(program_of(step, _example(inputs), context.module), step.moved)
            except CannotCompile as error:
                self.eager.setdefault(str(error))
                self._found[key] = None
        return self._found[key]


class CompiledGradients:
    """Gradients of the objective's mean loss in a job."""

    def __init__(self, programs: Programs, context: Context, phase: LocalPhase) -> None:
        self._programs, self._context = programs, context
        self._part = context.task.submodel, phase.frozen

    @cached_property
    def _others(self) -> dict[str, Tensor]:
        return self._context.untrained  # once the weights of the job are bound

    def of(self, batch: Batch, trained: Sequence[Tensor]) -> list[Tensor] | None:
        """Return the gradients on a batch with respect to the trained tensors. None: not compiled.

        Running statistics move as in a forward pass.
        """
        x, y = batch
        if len(y) < 2 or not trained:  # torch's compiler takes a dimension of 1 for a constant
            return None
        inputs = [*trained, *self._others.values(), x, y]
        found = self._programs.find(self._part, self._context, list(self._others), inputs)
        if found is None:
            return None
        outputs = found.program(inputs)
        grads, (logits, *moved) = outputs[: len(trained)], outputs[len(trained) :]
        for name, value in zip(found.moved, moved, strict=True):
            self._others[name].copy_(value)
        if self._context.meter is not None:
            self._context.meter.see(x, logits)
        return grads


def _example(inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the inputs with so many samples that no other dimension is of this size.

    Torch's compiler takes dimensions of one size in its example for one dimension.
    """
    taken = {size for each in inputs for size in (*each.shape, *each.stride())}
    samples = next(size for size in count(9) if size not in taken)
    rows = torch.arange(samples) % len(inputs[-1])
    found = [each.detach() for each in inputs[:-2]]
    for each in inputs[-2:]:
        found.append(each.new_empty_strided((samples, *each.shape[1:]), each.stride()).copy_(each[rows]))
    return found
