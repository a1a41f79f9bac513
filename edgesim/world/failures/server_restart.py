"""A server that restarts and loses the updates it has not merged yet."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import MinLen

from edgesim.config.units import Seconds
from edgesim.core.arrays import Arr
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key
from edgesim.world.failures.base import Failure, FailurePart

_MEAN_COUNT = 8.0  # restarts in a cell of time; any number gives the same law
_LAST_CELL = 2.0**48  # beyond it cells are about as short as the steps of floats: there is always a restart in between


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PoissonRestarts(Failure):
    """Restarts as a Poisson process; those of a cell of time need no other cell, whatever was asked before."""

    key: Key
    mean_s: float

    def next_restart_s(self, now_s: float) -> float:
        """Return the first restart after `now_s`, in seconds."""
        cell = now_s / (_MEAN_COUNT * self.mean_s)
        if cell > _LAST_CELL:
            return float(np.nextafter(now_s, np.inf))
        first = max(int(cell) - 1, 0)  # from the cell before, in case the division rounded up
        cells = map(self._restarts_s, count(first))
        return next(float(later_s.min()) for at_s in cells if len(later_s := at_s[at_s > now_s]))

    def _restarts_s(self, cell: int) -> Arr:
        over, rest = divmod(cell, 2**32)  # an index of a key is below that
        generator = self.key.at(rest, *([over] if over else [])).numpy()
        places = cell + generator.random(generator.poisson(_MEAN_COUNT))
        restarts_s: Arr = places * (_MEAN_COUNT * self.mean_s)
        return restarts_s


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PlannedRestarts(Failure):
    """Restarts at given instants, in seconds, ascending."""

    at_s: Arr

    def next_restart_s(self, now_s: float) -> float:
        """Return the first restart after `now_s`, in seconds; inf if there is none."""
        later_s = self.at_s[np.searchsorted(self.at_s, now_s, side="right") :]
        return float(later_s.min(initial=np.inf))


@dataclass(frozen=True, kw_only=True)
class ServerRestart(FailurePart):
    """The server restarts at random with `mean_time` between restarts (a Poisson process), or `at` given times.

    Times count from the start of the run. Updates that arrived since the last merge are lost.
    """

    among_peers: ClassVar[bool] = False  # who have no server that could lose what it holds
    mean_time: Seconds | None = None
    at: Annotated[tuple[Seconds, ...], MinLen(1)] | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError unless there is one law of restarts."""
        if (self.mean_time is None) == (self.at is None):
            raise ConfigError("failure: server_restart needs mean_time or at, and not both")

    @property
    def fits_app(self) -> bool:
        """False: an app cannot take part in it."""
        return False

    def build(self, n: int, key: Key, path: str) -> Failure:
        """Return the restarts of the server, whatever the number of devices."""
        if self.mean_time is not None:
            return PoissonRestarts(key=key, mean_s=self.mean_time)
        return PlannedRestarts(at_s=np.unique(self.at or ()))


PLUGINS = {"server_restart": ServerRestart}
