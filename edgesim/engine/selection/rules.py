"""Selection rules common to all methods."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np

from edgesim.core.arrays import Ids
from edgesim.core.errors import ConfigError
from edgesim.core.limits import Count, PositiveShare
from edgesim.core.rng import Key
from edgesim.core.selection import Selection


@dataclass(frozen=True, kw_only=True)
class All(Selection):
    """Every idle device."""

    def choose(self, idle: Ids, level: Ids, key: Key) -> Ids:
        """Return all of `idle`, int64, shape (k,)."""
        return idle

    def asked_share(self, devices: int) -> float:
        """Return the probability with which a device is asked if all are idle: 1."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Uniform(Selection):
    """A uniform random set without replacement: `count` devices, or a `fraction` of the fleet (at least one).

    Source: FedAvg with partial participation; a fraction c of K devices is max(1, floor(c K)).
    """

    count: Count | None = None
    fraction: PositiveShare | None = None

    def check(self, level: Ids) -> None:
        """Raise ConfigError unless exactly one of count and fraction is given and the fleet is large enough."""
        if (self.count is None) == (self.fraction is None):
            raise ConfigError("selection: give exactly one of count and fraction")
        _check_count(self._size(len(level)), len(level))

    def choose(self, idle: Ids, level: Ids, key: Key) -> Ids:
        """Return distinct ids of `idle`, ascending; all of them if there are too few."""
        size = min(self._size(len(level)), len(idle))
        return np.sort(key.numpy().choice(idle, size, replace=False))

    def of_count(self, count: int) -> Self:
        """Return this rule with `count` devices a round."""
        return replace(self, count=count, fraction=None)

    def asked_share(self, devices: int) -> float:
        """Return the probability with which each of so many devices is asked if all are idle."""
        return self._size(devices) / devices

    def _size(self, devices: int) -> int:
        return self.count or max(1, int(np.floor((self.fraction or 0.0) * devices + 1e-9)))


@dataclass(frozen=True, kw_only=True)
class Poisson(Selection):
    """Each idle device with the same probability, independently: the number of devices asked is random.

    Accountants of differential privacy rely on this draw. A round must ask a device: if none was drawn, one
    idle device is asked, each as likely as the others.
    Source: McMahan et al., "Learning Differentially Private Recurrent Language Models" (ICLR 2018), algorithm 1.
    """

    rate: PositiveShare  # probability with which a device is drawn

    def most(self, idle: Ids, level: Ids, key: Key) -> int:
        """Return the largest number of devices that a round selects if only `idle` are idle: all of them."""
        return len(idle)

    def choose(self, idle: Ids, level: Ids, key: Key) -> Ids:
        """Return distinct ids of `idle`, ascending, at least one."""
        generator = key.numpy()
        drawn = idle[generator.random(len(level))[idle] < self.rate]
        return drawn if len(drawn) or not len(idle) else generator.choice(idle, 1)

    def asked_share(self, devices: int) -> float:
        """Return the probability with which each of so many devices is asked if all are idle, empty draws included."""
        return self.rate + (1.0 - self.rate) ** devices / devices


@dataclass(frozen=True, kw_only=True)
class Stratified(Selection):
    """Equal numbers of random devices from every capability level.

    Source: FedPMT paper, experiments: |S| / |I| devices of each level.
    """

    count: Count  # devices a round, of all levels together
    by: Literal["level"] = "level"  # what the devices are divided by

    def check(self, level: Ids) -> None:
        """Raise ConfigError if count is no multiple of the number of levels, or a level has too few devices."""
        _check_count(self.count, len(level))
        levels, sizes = np.unique(level, return_counts=True)
        if self.count % len(levels):
            raise ConfigError(f"selection.count: must be a multiple of the {len(levels)} levels, found {self.count}")
        smallest = int(sizes.argmin())
        if sizes[smallest] < self.count // len(levels):
            raise ConfigError(
                f"selection.count: {self.count} needs {self.count // len(levels)} devices a level, "
                f"level {levels[smallest]} has {sizes[smallest]}"
            )

    def of_count(self, count: int) -> Self:
        """Return this rule with `count` devices a round."""
        return replace(self, count=count)

    def choose(self, idle: Ids, level: Ids, key: Key) -> Ids:
        """Return distinct ids of `idle`, ascending, equally many of each level as far as they go."""
        levels = np.unique(level)
        share = self.count // len(levels)
        chosen = []
        for stratum in levels:
            members = idle[level[idle] == stratum]
            chosen.append(key.at(int(stratum)).numpy().choice(members, min(share, len(members)), replace=False))
        return np.sort(np.concatenate(chosen))


def _check_count(count: int, devices: int) -> None:
    if count > devices:
        raise ConfigError(f"selection.count: must be at most the {devices} devices of the fleet, found {count}")


PLUGINS = {"all": All, "uniform": Uniform, "poisson": Poisson, "stratified": Stratified}
