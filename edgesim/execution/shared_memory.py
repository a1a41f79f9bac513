"""Memory that a process shares with its workers: what is large crosses between them without being sent.

It is a file without a name, so that it is gone with the last process that has it, however they end.
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

_ALIGNED = 64  # bytes: what arrays begin at a multiple of
_STEPS = 8  # sizes of blocks between a power of two and the next: freed ones are often of the size that is asked for


class Block(NamedTuple):
    """Where something lies."""

    start: int
    nbytes: int  # of the block
    parts: tuple[int, ...]  # bytes of each part, as they lie


class SharedMemory:
    """Objects in memory that worker processes see too. One process puts them there; it alone frees them.

    It can be sent to a process as this starts.
    """

    _file = -1  # its descriptor; -1: closed

    def __init__(self) -> None:
        self._file = _nameless_file()
        self._end = 0
        self._free: dict[int, list[int]] = {}  # starts of blocks by size
        self._mapped: dict[int, mmap.mmap] = {}  # by start

    def put(self, value: Any) -> Block:
        """Lay an object there. Tensors, and arrays in one piece, are copied once. Raises as pickle does."""
        buffers: list[pickle.PickleBuffer] = []
        head = io.BytesIO()
        _Pickler(head, protocol=5, buffer_callback=buffers.append).dump(value)
        parts = [head.getbuffer(), *(buffer.raw() for buffer in buffers)]
        sizes = tuple(part.nbytes for part in parts)
        starts = _starts(sizes)
        nbytes = _block_bytes(starts[-1] + sizes[-1])
        held = self._free.get(nbytes)
        block = Block(held.pop() if held else self._grow(nbytes), nbytes, sizes)
        view = self._view(block)
        for start, part in zip(starts, parts, strict=True):
            view[start : start + part.nbytes] = part
        return block

    def get(self, block: Block, copied: bool) -> Any:
        """Return the object in a block; `copied`: else its numbers lie there, and have to be gone when it is freed."""
        view = self._view(block)
        if copied:
            view = memoryview(bytearray(view[: _starts(block.parts)[-1] + block.parts[-1]]))
        places = zip(_starts(block.parts), block.parts, strict=True)
        head, *buffers = (view[start : start + nbytes] for start, nbytes in places)
        return pickle.loads(head, buffers=buffers)

    def free(self, block: Block) -> None:
        """Let the place of an object be used again."""
        self._free.setdefault(block.nbytes, []).append(block.start)

    def close(self) -> None:
        """Give the memory back at once; what arrays lie in stays until they are gone. May be called twice."""
        for each in self._mapped.values():
            with suppress(BufferError):  # arrays lie there
                each.close()
        self._mapped.clear()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _grow(self, nbytes: int) -> int:
        start, self._end = self._end, self._end + nbytes
        os.ftruncate(self._file, self._end)
        return start

    def _view(self, block: Block) -> memoryview:
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
    """Takes tensors as bytes that lie where they lay, and leaves out gradients; they come to life on the CPU."""

    def reducer_override(self, value: Any) -> Any:
        """Return how to make a tensor again; everything else says so itself."""
        if type(value) is not torch.Tensor or value.layout != torch.strided:
            return NotImplemented
        here = value.detach().cpu()
        steps = zip(here.shape, here.stride(), strict=True)
        span = 1 + sum((size - 1) * stride for size, stride in steps) if here.numel() else 0
        content = here.as_strided((span,), (1,)).view(torch.uint8).numpy()
        return _tensor, (content, here.dtype, tuple(here.shape), here.stride())


def _tensor(content: np.ndarray, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    """Return a tensor whose strides are kept: sums may depend on how numbers lie in memory."""
    flat = torch.from_numpy(content).view(dtype) if content.size else torch.empty(0, dtype=dtype)
    return flat.as_strided(shape, stride)


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("edgesim")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _starts(sizes: tuple[int, ...]) -> list[int]:
    """Return where parts of these sizes begin."""
    return list(accumulate((-(-size // _ALIGNED) * _ALIGNED for size in sizes[:-1]), initial=0))


def _block_bytes(nbytes: int) -> int:
    """Return the size of a block for so many bytes: at most an eighth more than a page needs."""
    step = max(mmap.ALLOCATIONGRANULARITY, (1 << max(nbytes - 1, 1).bit_length()) // (2 * _STEPS))
    return -(-nbytes // step) * step
