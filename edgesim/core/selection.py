"""The seam of selection rules that look at more than who is idle: what a server can know of its devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from edgesim.core.arrays import Arr, Ids
from edgesim.core.errors import ConfigError
from edgesim.core.limits import Count
from edgesim.core.rng import Key
from edgesim.core.view import Setting

Want: TypeAlias = Literal["reports", "channel", "battery", "labels"]
WANTS = frozenset(get_args(Want))


class Expected(NamedTuple):
    """What the server expects of an undisturbed job that trains the whole model: arrays of shape (devices,)."""

    down_s: Arr
    compute_s: Arr
    up_s: Arr
    joules: Arr  # above idle power
    up_bytes: int  # of the model, whoever sends it

    @property
    def seconds(self) -> Arr:
        """Seconds of the whole job."""
        total: Arr = self.down_s + self.compute_s + self.up_s
        return total


class Reported(NamedTuple):
    """The newest report of each device, arrays of shape (devices,), NaN where there is none, or none that is finite.

    Losses and hits are over the samples that it met while it trained, each as often as it was met.
    """

    loss: Arr  # mean cross-entropy
    square_loss: Arr  # mean of its square, sample by sample
    accuracy: Arr
    norm: Arr  # of how far training moved the parameters, as one vector


class Battery(NamedTuple):
    """What batteries hold, arrays of shape (devices,); inf for devices without one."""

    stored_j: Arr
    capacity_j: Arr


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the server knows when it chooses. Arrays are of shape (devices,) and not to be changed.

    A job counts once its round is closed, and its report once the server has aggregated its update.
    """

    setting: Setting
    round: int  # rounds closed so far
    now_s: float
    asked: Ids  # jobs that a device had
    delivered: Ids  # of them, those whose update was aggregated
    last_asked: Ids  # the round of the newest job, -1: none
    last_delivered: Ids  # of the newest that delivered
    seconds: Arr  # that the newest which delivered took, NaN: none
    expected: Expected
    last: Ids  # whose jobs ended in the newest round, ascending
    reported: Reported | None = None  # if the rule needs "reports"
    up_bps: Arr | None = None  # if it needs the "channel": what the next job's upload would run at if it began now
    battery: Battery | None = None  # if it needs the "battery"
    state: Any = None  # what the rule made of all rounds so far


@dataclass(frozen=True, kw_only=True)
class Informed:
    """Base class of selection rules that are given a Known: frozen dataclasses of pure functions.

    `count`: devices asked in a round, or fewer where fewer are idle.
    """

    needs: ClassVar[frozenset[Want]] = frozenset()  # beside the history of jobs; what is not named is not worked out
    protocols: ClassVar[frozenset[str]] = frozenset()  # that it works with; empty: all
    weighs: ClassVar[bool] = False  # whether `weights` says how much updates count

    count: Count

    def check(self, level: Ids) -> None:
        """Raise ConfigError if the rule does not fit devices of these levels, shape (devices,)."""
        if self.count > len(level):
            raise ConfigError(
                f"selection.count: must be at most the {len(level)} devices of the fleet, found {self.count}"
            )

    def most(self, devices: int) -> int:
        """Return how many of so many idle devices are asked in a round, at most."""
        return min(self.count, devices)

    def choose(self, idle: Ids, known: Known, key: Key) -> Ids:
        """Return distinct ids of `idle`, ascending; a pure function of its arguments. Every rule has one of its own.

        A scenario whose rule lacks it is refused before the run.
        """
        raise NotImplementedError

    def start(self, known: Known) -> Any:
        """Return the first state, before any job: None for rules without one."""
        return None

    def learn(self, known: Known) -> Any:
        """Return the state after a round that is just closed, a pure function; `known.state` is the one before it."""
        return known.state

    def weights(self, idle: Ids, known: Known) -> Arr:
        """Return what the update of each of `idle` would count if it were chosen, beside all other weights."""
        return np.ones(len(idle))


@dataclass(frozen=True, kw_only=True)
class FromCandidates(Informed):
    """Base class of rules that look closer at some `candidates`, of which `count` are asked."""

    candidates: Count

    def check(self, level: Ids) -> None:
        """Raise ConfigError unless candidates lie between count and the devices of the fleet."""
        super().check(level)
        if not self.count <= self.candidates <= len(level):
            raise ConfigError(
                f"selection.candidates: must be from count, {self.count}, to the {len(level)} devices of the fleet, "
                f"found {self.candidates}"
            )


def highest(ids: Ids, scores: Arr, count: int, key: Key) -> Ids:
    """Return the `count` ids of highest score, ascending; `scores`: shape (len(ids),). Equal ones go by chance."""
    order = np.lexsort((key.numpy().permutation(len(ids)), -scores))
    return np.sort(ids[order[:count]])


def drawn(ids: Ids, weights: Arr, count: int, key: Key) -> Ids:
    """Return `count` distinct ids, ascending, drawn one after the other with probabilities in proportion to weights.

    If fewer have a weight above 0, all of these and others at random; if there are fewer ids, all of them.
    """
    generator, likely = key.numpy(), ids[weights > 0]
    if len(ids) <= count:
        return ids
    if len(likely) <= count:
        rest = generator.choice(ids[weights <= 0], count - len(likely), replace=False)
        return np.sort(np.concatenate([likely, rest]))
    return np.sort(generator.choice(ids, count, replace=False, p=weights / weights.sum()))


def check_wants(rule: Any, known: Sequence[str] = tuple(sorted(WANTS))) -> None:
    """Raise ConfigError if a rule from outside asks for something that no server knows."""
    for want in sorted(rule.needs):
        if want not in known:
            raise ConfigError(
                f"selection.name: {type(rule).__name__}.needs has {want!r}, must be of {', '.join(known)}"
            )
