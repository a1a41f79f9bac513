"""Gradient checkpointing: a block of a network keeps its inputs alone, and runs again in the backward pass.

Source, from memory: Chen et al., "Training Deep Nets with Sublinear Memory Cost" (arXiv 1604.06174). Blocks run by
torch.utils.checkpoint in its way without reentrant autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from edgesim.learning.models.build import own_tensors

_Around: TypeAlias = Callable[[Sequence[Tensor]], AbstractContextManager[None]]

_AROUND: ContextVar[_Around | None] = ContextVar("around", default=None)


@contextmanager
def plain_blocks(around: _Around) -> Iterator[None]:
    """Let checkpointed blocks keep everything and run once in the with-block, each in the context `around(inputs)`."""
    token = _AROUND.set(around)
    try:
        yield
    finally:
        _AROUND.reset(token)


class Checkpointed:
    """Runs one block in the place of its forward. A block inside another one that is checkpointed must have none."""

    def __init__(self, block: nn.Module) -> None:
        self._block = block

    def __call__(self, forward: partial[Any], *args: Any) -> Any:
        """Return `forward(*args)`, the outputs of the block.

        The block runs again with the tensors that it has now, because those that a call of `torch.func` lends to a
        network are gone when backward runs.
        """
        around = _AROUND.get()
        if around is not None:
            inputs = [value for value in tree_leaves((args, forward.keywords)) if isinstance(value, Tensor)]
            with around(inputs):
                return forward(*args)
        run = _Run(self._block, forward)
        tensors = {
            f"{path}.{name}": own
            for path, inner in run.named_modules()  # each once: a tensor replaced twice would not be restored
            for name, own in own_tensors(inner)
        }
        return checkpoint(
            lambda *given: functional_call(run, tensors, given, tie_weights=False), *args, use_reentrant=False
        )


class _Run(nn.Module):
    """A call of a block, as `functional_call` takes it."""

    def __init__(self, block: nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.block, self._call = block, call

    def forward(self, *args: Any) -> Any:
        return self._call(*args)
