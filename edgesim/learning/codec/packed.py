"""Packed tensors that take less memory while they wait: the non-zero numbers, and one bit for each entry.

The state and the messages of devices wait from round to round. The trainer packs them. Reading a tensor unpacks it, bit
for bit as it was, into a new tensor that lives as long as the reader holds it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from edgesim.core.update import ModelState
from edgesim.files.c_library import c_function

LEAST_BYTES = 2**16  # bytes that packing a tensor must save, besides a tenth of its size, to be worth its time
_MUCH_BYTES = 2**22  # packed bytes of a device, below which gaps in the heap hardly matter
WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by size in bytes


class Packed(NamedTuple):
    """A tensor in the order of memory: one bit per entry that tells if the entry has any bit set, and these entries.

    -0.0 and NaN have bits set. `values`: integers of the size of an entry, empty for a bool tensor.
    """

    bits: np.ndarray
    values: np.ndarray
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.bits.nbytes + self.values.nbytes

    def numbers(self) -> Tensor:
        """Return the entries that have any bit set, in one dimension, and none for a bool tensor."""
        return torch.from_numpy(self.values).view(self.dtype)

    def blocks(self, size: int) -> Iterator[Tensor]:
        """Yield the entries in the order of memory, `size` at a time. All blocks use the same buffer.

        `size`: a multiple of 8. Not for bool tensors.
        """
        room, used = np.empty(size, self.values.dtype), 0
        for start in range(0, math.prod(self.shape), size):
            count = min(size, math.prod(self.shape) - start)
            bits = self.bits[start // 8 : (start + size) // 8]
            places = np.flatnonzero(np.unpackbits(bits, count=count).view(bool))
            block = room[:count]
            block.fill(0)
            block[places] = self.values[used : used + len(places)]
            used += len(places)
            yield torch.from_numpy(block).view(self.dtype)

    def tensor(self) -> Tensor:
        """Return a new tensor with these entries."""
        size = math.prod(self.shape)
        words = np.unpackbits(self.bits, count=size).view(bool)
        if self.dtype != torch.bool:
            places = np.flatnonzero(words)
            words = np.zeros(size, self.values.dtype)
            words[places] = self.values
        return torch.from_numpy(words).view(self.dtype).as_strided(self.shape, self.stride)


class Tensors(Mapping[str, Any]):
    """Tensors by name, some of them packed. Each read of a packed one returns a new tensor. `stored`: not unpacked."""

    def __init__(self, stored: Mapping[str, Any]) -> None:
        self.stored = stored

    def __getitem__(self, name: str) -> Any:
        each = self.stored[name]
        return each.tensor() if isinstance(each, Packed) else each

    def __contains__(self, name: object) -> bool:
        return name in self.stored

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)


def packed(*model_states: ModelState | None) -> list[Any]:
    """Return model states, None for None, with those tensors packed that become smaller. Shared ones are packed once.

    Tensors that are small, on an accelerator or not contiguous stay unpacked. Gradients are dropped.
    """
    large = {
        _identity(tensor): tensor
        for model_state in model_states
        for tensors in (model_state or {}).values()
        if not isinstance(tensors, Tensors)
        for tensor in tensors.values()
        if tensor.nbytes > LEAST_BYTES
    }
    small = {same: each for same, tensor in large.items() if (each := _smaller(tensor)) is not None}
    if not small:
        return list(model_states)
    if sum(each.nbytes for each in small.values()) > _MUCH_BYTES:
        # Return free memory to the system if the C library can (glibc). Memory in use lies between short-lived buffers,
        # and with such gaps the heap would grow to twice the memory in use.
        trim = c_function("malloc_trim")
        if trim is not None:
            trim(0)

    def replaced(tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        if isinstance(tensors, Tensors):
            return tensors
        stored = {name: small.get(_identity(tensor), tensor) for name, tensor in tensors.items()}
        return Tensors(stored) if any(isinstance(each, Packed) for each in stored.values()) else tensors

    return [
        b if b is None else {collection: replaced(tensors) for collection, tensors in b.items()} for b in model_states
    ]


def numbers_of(tensors: Mapping[str, Any]) -> Iterator[Tensor]:
    """Yield tensors without unpacking. Packed ones yield only the entries that have any bit set, in one dimension."""
    stored = tensors.stored if isinstance(tensors, Tensors) else tensors
    return (each.numbers() if isinstance(each, Packed) else each for each in stored.values())


def _identity(tensor: Tensor) -> Any:
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _smaller(tensor: Tensor) -> Packed | None:
    """Pack a large tensor. Return None if packing is impossible or saves too little."""
    whole = tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last)
    if not whole or tensor.device.type != "cpu" or tensor.element_size() not in WORDS:
        return None
    words = tensor.detach().as_strided((tensor.numel(),), (1,)).view(WORDS[tensor.element_size()]).numpy()
    there = words != 0
    values = 0 if tensor.dtype == torch.bool else int(np.count_nonzero(there))
    saved_bytes = tensor.nbytes - values * words.itemsize - len(there) / 8
    if saved_bytes < max(LEAST_BYTES, tensor.nbytes / 10):
        return None
    kept = words[np.flatnonzero(there)] if values else np.empty(0, words.dtype)
    return Packed(np.packbits(there), kept, tensor.dtype, tuple(tensor.shape), tensor.stride())
