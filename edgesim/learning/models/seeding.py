"""Seeding of global generators, and restoring them afterwards.

Beside this module only `edgesim.flower.process_state` seeds them, where torch may not be loaded.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edgesim.core.rng import Key


@contextmanager
def seeded(key: Key) -> Iterator[None]:
    """Run a block with torch's generator at the start of the stream `key`. Restore the generator afterwards."""
    stream = torch.default_generator
    before = stream.get_state()
    try:
        if _has_accelerator():
            torch.manual_seed(key.word())  # of all devices
        else:
            stream.manual_seed(key.word())  # the same effect, in a hundredth of the time
        yield
    finally:
        stream.set_state(before)


@contextmanager
def all_seeded(key: Key) -> Iterator[None]:
    """Run a block with the global generators of torch, NumPy and Python seeded from `key`. Restore them afterwards."""
    numbers, chances = np.random.get_state(), random.getstate()  # noqa: NPY002 - users' code draws from it
    try:
        with seeded(key):
            np.random.seed(key.word() % 2**32)  # noqa: NPY002
            random.seed(key.word())
            yield
    finally:
        np.random.set_state(numbers)  # noqa: NPY002
        random.setstate(chances)


def other_streams() -> tuple[Any, str]:
    """Return the states of Python's and NumPy's global generators."""
    return random.getstate(), repr(np.random.get_state())  # noqa: NPY002 - users' code draws from it


class Stream:
    """The stream `key` of torch's generator, read in pieces: each piece continues where the last one ended.

    Threads take turns, because torch has one generator for all threads.
    """

    _turns = threading.Lock()

    def __init__(self, key: Key) -> None:
        self._key = key
        self._state: Tensor | None = None  # before the first piece there is none

    @contextmanager
    def read(self) -> Iterator[None]:
        """Run a block that draws from the stream. Restore the generator afterwards."""
        with self._turns, seeded(self._key):
            if self._state is not None:
                torch.set_rng_state(self._state)
            yield
            self._state = torch.get_rng_state()


@cache
def _has_accelerator() -> bool:
    return torch.cuda.is_available() or torch.backends.mps.is_available() or torch.xpu.is_available()
