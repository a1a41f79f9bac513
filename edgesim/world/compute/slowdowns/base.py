"""Abstract classes of slow-downs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from edgesim.core.arrays import Arr, Ids
from edgesim.core.rng import Draws, Key


class Slowdown(ABC):
    """The disturbances of a block of n devices. A pure function: asking changes nothing."""

    steady: ClassVar[bool] = False  # True: computing takes equally long at any time and for every job

    @abstractmethod
    def stretch(self, rows: Ids, busy_s: Arr, now_s: Arr | float, draws: Draws) -> Arr:
        """Return seconds, shape (k,), that `busy_s` of undisturbed computing take when they start at `now_s`.

        `rows`: positions in the block, shape (k,); `draws`: of the same k jobs.
        """


class SlowdownPart(ABC):
    """A slow-down as a scenario names it: a frozen dataclass."""

    @abstractmethod
    def build(self, n: int, key: Key, path: str) -> Slowdown:
        """Return the slow-downs of n devices. Raises ConfigError that names a key below `path`, or DataError."""
