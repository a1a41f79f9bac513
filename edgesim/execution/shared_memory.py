"""Memory that a process shares with its workers, so that large objects need not be sent.

It is a file without a name, which disappears with the last process that has it open, however the processes end.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import tempfile
from contextlib import suppress
from itertools import accumulate
from multiprocessing import reduction
from typing import Any, NamedTuple

import numpy as np
import torch

_ALIGNED = 64  # bytes; arrays begin at multiples of it
_STEPS = 8  # block sizes between two powers of two: few sizes, so that a freed block often fits the next object


class MemoryBlock(NamedTuple):
    """The place of an object in shared memory."""

    start: int
    nbytes: int  # of the block
    parts: tuple[int, ...]  # bytes of each part, in order


class SharedMemory:
    """Objects in memory that worker processes see too. Only the process that puts an object there frees it.

    It can be sent to a process when the process starts.
    """

    _file = -1  # its descriptor; -1: closed

    def __init__(self) -> None:
        if hasattr(os, "memfd_create"):
            self._file = os.memfd_create("edgesim")
        else:
            with tempfile.TemporaryFile() as file:
                self._file = os.dup(file.fileno())
        self._end = 0
        self._free: dict[int, list[int]] = {}  # starts of blocks by size
        self._mapped: dict[int, mmap.mmap] = {}  # by start

    def put(self, value: Any) -> MemoryBlock:
        """Copy an object to shared memory; tensors and contiguous arrays are copied once. Raises as pickle does."""
        buffers: list[pickle.PickleBuffer] = []
        head = io.BytesIO()
        _Pickler(head, protocol=5, buffer_callback=buffers.append).dump(value)
        parts = [head.getbuffer(), *(buffer.raw() for buffer in buffers)]
        sizes = tuple(part.nbytes for part in parts)
        starts = _starts(sizes)
        needed = starts[-1] + sizes[-1]
        step = max(mmap.ALLOCATIONGRANULARITY, (1 << max(needed - 1, 1).bit_length()) // (2 * _STEPS))
        nbytes = -(-needed // step) * step  # at most an eighth more than the pages need
        held = self._free.get(nbytes)
        if held:
            block = MemoryBlock(held.pop(), nbytes, sizes)
        else:
            block = MemoryBlock(self._end, nbytes, sizes)
            self._end += nbytes
            os.ftruncate(self._file, self._end)
        view = self._view(block)
        for start, part in zip(starts, parts, strict=True):
            view[start : start + part.nbytes] = part
        return block

    def get(self, block: MemoryBlock, copied: bool) -> Any:
        """Return the object in a block; without `copied` its numbers stay there and are invalid once it is freed."""
        view = self._view(block)
        if copied:
            view = memoryview(bytearray(view[: _starts(block.parts)[-1] + block.parts[-1]]))
        places = zip(_starts(block.parts), block.parts, strict=True)
        head, *buffers = (view[start : start + nbytes] for start, nbytes in places)
        return pickle.loads(head, buffers=buffers)

    def free(self, block: MemoryBlock) -> None:
        """Release the block of an object for reuse."""
        self._free.setdefault(block.nbytes, []).append(block.start)

    def close(self) -> None:
        """Release the memory at once, except blocks that arrays still use. May be called twice."""
        for each in self._mapped.values():
            with suppress(BufferError):  # arrays still use the block
                each.close()
        self._mapped.clear()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _view(self, block: MemoryBlock) -> memoryview:
        if block.start not in self._mapped:
            self._mapped[block.start] = mmap.mmap(self._file, block.nbytes, offset=block.start)
        return memoryview(self._mapped[block.start])

    def __getstate__(self) -> Any:
        return reduction.DupFd(self._file)

    def __setstate__(self, file: Any) -> None:
        self._file = file.detach()
        self._end, self._free, self._mapped = 0, {}, {}

    def __del__(self) -> None:
        if self._file >= 0:
            self.close()


class _Pickler(pickle.Pickler):
    """Pickles tensors as buffers, without gradients; they are restored on the CPU."""

    def reducer_override(self, value: Any) -> Any:
        """Return the reduction of a tensor, and NotImplemented for everything else."""
        if type(value) is not torch.Tensor or value.layout != torch.strided:
            return NotImplemented
        here = value.detach().cpu()
        steps = zip(here.shape, here.stride(), strict=True)
        span = 1 + sum((size - 1) * stride for size, stride in steps) if here.numel() else 0
        content = here.as_strided((span,), (1,)).view(torch.uint8).numpy()
        return _tensor, (content, here.dtype, tuple(here.shape), here.stride())


def _tensor(content: np.ndarray, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    """Return a tensor with its strides, as sums may depend on the order of numbers in memory."""
    flat = torch.from_numpy(content).view(dtype) if content.size else torch.empty(0, dtype=dtype)
    return flat.as_strided(shape, stride)


def _starts(sizes: tuple[int, ...]) -> list[int]:
    """Return the aligned start of each part, in bytes."""
    return list(accumulate((-(-size // _ALIGNED) * _ALIGNED for size in sizes[:-1]), initial=0))
