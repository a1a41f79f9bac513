"""Order-free randomness: a random stream is named by what it is for, never by when it was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

_INDEX_LIMIT = 2**32


class Purpose(IntEnum):
    """First index of every stream. Never renumber: the numbers are part of every published result."""

    FLEET = 1
    DATA = 2
    INIT = 3
    PLAN = 4
    MERGE = 5
    SLOWDOWN = 6
    CHANNEL = 7
    LOCAL = 8
    EVAL = 9
    PROBE = 10


@dataclass(frozen=True, slots=True)
class Key:
    """The name of a random stream. Drawing never changes a Key; equal Keys give equal streams."""

    seed: int
    path: tuple[int, ...] = ()

    def at(self, *index: int) -> Key:
        """Return the sub-stream named by further indices, each in [0, 2**32).

        Raises ValueError outside that range: NumPy would split a larger index into words, so that two
        different paths could name one stream.
        """
        path = tuple(int(i) for i in index)
        if any(not 0 <= i < _INDEX_LIMIT for i in path):
            raise ValueError(f"stream index outside [0, 2**32): {path}")
        return Key(self.seed, self.path + path)

    def numpy(self) -> np.random.Generator:
        """Return a NumPy generator at the start of this stream."""
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=self.path))

    def word(self) -> int:
        """Return 63 bits of this stream, the seed of a torch generator."""
        state = np.random.SeedSequence(self.seed, spawn_key=self.path).generate_state(1, np.uint64)
        return int(state[0]) >> 1
