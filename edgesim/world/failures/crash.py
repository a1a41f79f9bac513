"""Devices that crash in mid-job, so that it never delivers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeAlias

import numpy as np

from edgesim.config.units import PerDevice, Seconds, draw
from edgesim.core.arrays import Arr, Ids
from edgesim.core.errors import ConfigError
from edgesim.core.limits import Share
from edgesim.core.rng import Draws, Key
from edgesim.world.failures.base import COMPUTATION, DOWNLOAD, SENT, UPLOAD, Failure, FailurePart, phase_starts_s

_WHETHER, _WHEN = 0, 1  # streams; never renumber
_PROBABILITY, _MEAN_TIME, _PRONE, _JOBS = range(4)  # sub-streams of the part's key; never renumber
_Moment: TypeAlias = Callable[[Arr, np.ndarray], tuple[Ids, Arr]]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ChanceCrashes(Failure):
    """Each job crashes with the probability of its device, shape (n,), at a uniform moment."""

    key: Key
    probability: Arr
    moment: _Moment

    def strikes(self, draws: Draws, phases_s: np.ndarray) -> tuple[Ids, Arr]:
        """Return phases and seconds, shape (k,) each; see Failure."""
        own = replace(draws, key=self.key)  # two such parts strike independently
        struck = own.uniform(_WHETHER) < self.probability[draws.ids]
        phase, after_s = self.moment(own.uniform(_WHEN), phases_s)
        return np.where(struck, phase, SENT), np.where(struck, after_s, np.inf)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TimedCrashes(Failure):
    """Each job crashes an exponential time after it was sent, with the mean (inf: never) of its device, shape (n,)."""

    key: Key
    mean_s: Arr

    def strikes(self, draws: Draws, phases_s: np.ndarray) -> tuple[Ids, Arr]:
        """Return phases and seconds, shape (k,) each; see Failure."""
        own = replace(draws, key=self.key)
        after_s: Arr = -self.mean_s[draws.ids] * np.log(own.uniform(_WHEN))
        return np.full(len(draws.ids), SENT), after_s


def _within(phase: int, share: Arr, phases_s: np.ndarray) -> tuple[Ids, Arr]:
    """Return the moment after this share of one phase."""
    return np.full(len(share), phase), _inside(share * phases_s[phase], phases_s[phase])


def _anywhere(share: Arr, phases_s: np.ndarray) -> tuple[Ids, Arr]:
    """Return the moment after this share of the whole job."""
    ends_s = np.cumsum(phases_s, axis=0)
    moment_s = _inside(share * ends_s[-1], ends_s[-1])
    phase = (moment_s < ends_s).argmax(axis=0)  # the first if the job has no length
    job = np.arange(len(share))
    return phase, _inside(moment_s - phase_starts_s(phases_s)[phase, job], phases_s[phase, job])


def _inside(after_s: Arr, length_s: Arr) -> Arr:
    # rounding must not move a strike to the end of its phase, which the job would have survived
    inside_s: Arr = np.minimum(after_s, np.nextafter(length_s, 0.0))
    return inside_s


_MOMENTS: Mapping[str, _Moment] = {
    "any": _anywhere,
    "download": partial(_within, DOWNLOAD),
    "training": partial(_within, COMPUTATION),
    "upload": partial(_within, UPLOAD),
}


@dataclass(frozen=True, kw_only=True)
class Crash(FailurePart):
    """Devices crash in mid-job: with a `probability` for each job, or after an exponential time of mean `mean_time`.

    With a probability the moment is uniform within `phase` of the undisturbed job ("any": within the whole of it), at
    its beginning if it has no length. A mean time counts from when the job was sent, whatever phase it is in then, and
    a job that is over by then has survived. Only `share` of the devices are prone, the nearest whole number of them,
    chosen at random once: probability 1, share 0.3 and phase "training" fell the same 30 % in every round.
    """

    probability: PerDevice[Share] | None = None
    mean_time: PerDevice[Seconds] | None = None
    phase: Literal["any", "download", "training", "upload"] = "any"  # phase of the job in which it crashes
    share: Share = 1.0  # share of the devices that may crash

    def __post_init__(self) -> None:
        """Raise ConfigError unless there is one law of crashes."""
        if (self.probability is None) == (self.mean_time is None):
            raise ConfigError("failure: crash needs probability or mean_time, and not both")
        if self.mean_time is not None and self.phase != "any":
            raise ConfigError(f"failure.phase: goes with probability, not with mean_time, got {self.phase!r}")

    def build(self, n: int, key: Key, path: str) -> Failure:
        """Return the crashes of n devices. Raises ConfigError that names a key below `path`."""
        prone = np.zeros(n, dtype=bool)
        # ranks of draws, not a permutation: as a fleet grows, hardly any of the earlier devices change sides
        prone[np.argsort(key.at(_PRONE).numpy().random(n))[: round(self.share * n)]] = True
        jobs = key.at(_JOBS)
        if self.mean_time is not None:
            mean_s = draw(self.mean_time, n, key.at(_MEAN_TIME).numpy(), f"{path}.mean_time")
            return TimedCrashes(key=jobs, mean_s=np.where(prone, mean_s, np.inf))
        assert self.probability is not None  # by __post_init__
        probability = draw(self.probability, n, key.at(_PROBABILITY).numpy(), f"{path}.probability")
        return ChanceCrashes(key=jobs, probability=np.where(prone, probability, 0.0), moment=_MOMENTS[self.phase])


PLUGINS = {"crash": Crash}
