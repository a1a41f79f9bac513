"""Record of a training step: all operations with their operands, as a text that tells whether two steps are equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves

from edgesim.learning.models.seeding import other_streams

_TORCHS_OWN = ("_parameters", "_buffers", "_flat_weights", "_flat_weight_refs")  # attributes that follow from tensors
_LITERAL = 64  # most numbers of a tensor that is written out in the record


class NotRecorded(Exception):
    """The operations of a step may differ from one step to the next. The message says why."""


def record(step: Callable[..., Any], inputs: Sequence[Tensor], module: nn.Module) -> str:
    """Run a step of a network on these inputs, and return its operations in their order as a text.

    Raises NotRecorded if another step of the same network may run other operations.
    """
    log = _Log(inputs, module)
    with _unchanged(module), log:
        outputs = step(*inputs)
    names = " ".join(log.name_of(each) for each in tree_leaves(outputs))
    return "\n".join([*log.lines, f"return {names}"])


class _Log(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A line for each operation. Tensors are named by their storages, which are counted in order of appearance."""

    def __init__(self, inputs: Sequence[Tensor], module: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lines: list[str] = []
        self._storages: dict[int, int] = {}
        self._alive: list[Any] = []  # so that no other storage gets the address of an earlier one
        self._foreign = {
            value.untyped_storage()._cdata
            for inner in module.modules()
            for value in vars(inner).values()
            if isinstance(value, Tensor)
        }
        for each in inputs:
            self.lines.append(f"input {self.name_of(each, new=True)}")

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: torch would load its compiler, for a second, to keep it away from this mode."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and write it down."""
        if torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags:
            raise NotRecorded("its operations depend on numbers in tensors")
        leaves, spec = tree_flatten((args, kwargs or {}))
        literal = func is torch.ops.aten.lift_fresh.default
        given = [self.name_of(each, literal=literal) if isinstance(each, Tensor) else repr(each) for each in leaves]
        result = func(*args, **(kwargs or {}))
        made = [self.name_of(each, new=True) for each in tree_leaves(result) if isinstance(each, Tensor)]
        self.lines.append(f"{' '.join(made)} = {func}({' '.join(given)}) {spec}")
        return result

    def name_of(self, value: Any, new: bool = False, literal: bool = False) -> str:
        """Return the name of a tensor, or its numbers if the step makes it of Python's numbers.

        Raises NotRecorded for a tensor that is no input of the step and no result of an operation.
        """
        if not isinstance(value, Tensor):
            return repr(value)
        storage = value.untyped_storage()
        place = self._storages.get(storage._cdata)
        if place is None:
            if not new:
                if storage._cdata in self._foreign or not (literal or value.dim() == 0) or value.numel() > _LITERAL:
                    raise NotRecorded("it uses a tensor that is neither a parameter nor a buffer")
                return f"{value.dtype}{value.tolist()}"
            place = self._storages[storage._cdata] = len(self._storages)
            self._alive.append(storage)
        return f"{place}+{value.storage_offset()}{list(value.shape)}{list(value.stride())}{value.dtype}"


@contextmanager
def _unchanged(module: nn.Module) -> Iterator[None]:
    """Raise NotRecorded after a block in which a network changed its own attributes or drew numbers of other streams.

    Those of torch's own stream are drawn by operations.
    """

    def found() -> list[Any]:
        return [
            (name, _seen(value))
            for inner in module.modules()
            for name, value in vars(inner).items()
            if name not in _TORCHS_OWN
        ]

    before, drawn = found(), other_streams()
    yield
    if found() != before:
        raise NotRecorded("it changes its own attributes when it runs")
    if other_streams() != drawn:
        raise NotRecorded("it draws random numbers of Python or NumPy in training")


def _seen(value: Any) -> Any:
    """Return a value that is another one after an attribute was changed or replaced."""
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return id(value), tuple(map(id, value.values()))
    if isinstance(value, list | tuple | set):
        return id(value), tuple(map(id, value))
    return id(value), value._version if isinstance(value, Tensor) else 0
