"""Devices that answer by chance."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from edgesim.config.units import PerDevice, Seconds, draw
from edgesim.core.arrays import Arr, Ids
from edgesim.core.limits import MOST_LOOKS, PositiveShare, check_steps
from edgesim.core.rng import Draws, Key
from edgesim.world.availability.base import Availability, AvailabilityPart


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ChanceAnswers(Availability):
    """Devices that answer at an occasion or do not, and then stay as long as they have a job."""

    key: Key
    p: Arr  # shape (n,)

    def on(self, now_s: float, occasion: int) -> np.ndarray:
        """Return which devices answer at this occasion, bool, shape (n,)."""
        answers: np.ndarray = Draws(self.key, np.arange(self.n), np.array([occasion])).uniform(0) < self.p
        return answers

    def on_from_s(self, ids: Ids, from_s: Arr) -> Arr:
        """Return `from_s`: an occasion may come at any time."""
        return from_s

    def until_s(self, ids: Ids, now_s: Arr | float) -> Arr:
        """Return inf for each device, shape (k,): who has answered stays."""
        return np.full(len(ids), inf)

    def next_on_s(self, now_s: float) -> float:
        """Return when to ask again."""
        return now_s + self.retry_s


@dataclass(frozen=True, kw_only=True)
class Bernoulli(AvailabilityPart):
    """A device can be reached with probability `p` whenever the server looks for devices, independently each time.

    It breaks no jobs. If no device can be reached, the server looks again after `retry`.
    """

    p: PerDevice[PositiveShare]
    retry: Seconds = 60.0  # short against a round of real devices, long against a simulated event

    def build(self, n: int, key: Key, path: str) -> Availability:
        """Return when n devices can be reached. Raises ConfigError if hardly ever one of them can."""
        p = draw(self.p, n, key.at(0).numpy(), f"{path}.p")
        check_steps(f"{path}.p", 1.0 / float(p.sum()), "looking again until some device answers", MOST_LOOKS)
        return ChanceAnswers(n=n, retry_s=self.retry, key=key.at(1), p=p)


PLUGINS = {"bernoulli": Bernoulli}
