"""Abstract classes of selection rules, with the facts that a server can know about its devices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeAlias, get_args

import numpy as np

from edgesim.core.arrays import Arr, Ids
from edgesim.core.errors import ConfigError
from edgesim.core.limits import Count
from edgesim.core.rng import Key
from edgesim.core.view import Setting

Want: TypeAlias = Literal["reports", "channel", "battery", "cell", "labels"]
WANTS = frozenset(get_args(Want))


class Expected(NamedTuple):
    """Expected costs of an undisturbed job that trains the whole model: arrays of shape (devices,)."""

    down_s: Arr
    compute_s: Arr
    up_s: Arr
    joules: Arr  # above idle power
    compute_j: Arr  # of these, joules of computing
    up_bytes: int  # bytes of the model, the same for every device

    @property
    def seconds(self) -> Arr:
        """Seconds of the whole job."""
        total: Arr = self.down_s + self.compute_s + self.up_s
        return total

    def tiers(self, count: int) -> Ids:
        """Return the tier of each device: `count` equally large groups by seconds, 0 the fastest."""
        ranks = np.empty(len(self.seconds), dtype=np.int64)
        ranks[np.argsort(self.seconds, kind="stable")] = np.arange(len(ranks))
        return ranks * count // len(ranks)


class Reported(NamedTuple):
    """Newest report of each device, arrays of shape (devices,), NaN without a report or with one that is not finite.

    Losses and hits are over the samples used in training, each counted as often as it was used.
    """

    loss: Arr  # mean cross-entropy
    square_loss: Arr  # mean of the squared loss of each sample
    accuracy: Arr
    norm: Arr  # norm of the change of all parameters as one vector


class StoredEnergy(NamedTuple):
    """Charge of batteries, arrays of shape (devices,), inf for devices without a battery."""

    stored_j: Arr
    capacity_j: Arr


class CellState(NamedTuple):
    """Radios in their cells, with the fading of each device's next transfer: arrays of shape (devices,).

    An SNR in hertz is received power over the density of noise and interference: on B Hz the ratio is the SNR / B.
    """

    band: Any  # edgesim.world.spectrum.cells.CellBand, the band of each cell
    base: Ids  # node of each device's base station; devices of one station share its band
    up_snr_hz: Arr
    down_snr_hz: Arr
    transmit_w: Arr  # that a device's radio draws while it sends, above idle power


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Facts that the server knows when it chooses. Arrays are of shape (devices,) and must not be changed.

    A job counts once its round is closed, and its report once the server has aggregated its update.
    """

    setting: Setting
    round: int  # rounds closed so far
    now_s: float
    asked: Ids  # number of jobs that a device had
    delivered: Ids  # number of these jobs whose update was aggregated
    last_asked: Ids  # round of the newest job, -1: none
    last_delivered: Ids  # round of the newest job that delivered, -1: none
    seconds: Arr  # duration of the newest job that delivered, NaN: none
    expected: Expected
    last: Ids  # devices whose jobs ended in the newest round, ascending
    reported: Reported | None = None  # given if the rule needs "reports"
    up_bps: Arr | None = None  # given if it needs the "channel": rate of an upload that began now
    battery: StoredEnergy | None = None  # given if it needs the "battery"
    cell: CellState | None = None  # given if it needs the "cell"
    state: Any = None  # state of the rule after all rounds so far


@dataclass(frozen=True, slots=True)
class Poll:
    """Question for the loss of the newest model, which selected devices answer before some of them train."""

    count: int  # devices that train, those with the highest losses
    samples: int | None = None  # random samples on which a device computes its loss; None: all


class Selection(ABC):
    """A rule that chooses devices: a frozen dataclass of pure functions, as in `engine/selection/rules.py`.

    Rules that use more than the set of idle devices extend `Informed`.
    """

    needs: ClassVar[frozenset[Want]] = frozenset()  # facts beside the history of jobs; others are not computed
    protocols: ClassVar[frozenset[str]] = frozenset()  # protocols that it works with; empty: all

    @property
    def poll(self) -> Poll | None:
        """Poll of the devices that `choose` returns, before some of them train; None: all train at once."""
        return None

    def check(self, level: Ids) -> None:
        """Raise ConfigError if the rule does not fit devices of these levels, shape (devices,)."""

    @abstractmethod
    def choose(self, idle: Ids, level: Any, key: Key) -> Ids:
        """Return distinct ids of `idle`, ascending, a pure function of its arguments.

        `level`: levels of all devices, shape (devices,). An `Informed` rule gets a Known in its place.
        """

    def most(self, idle: Ids, level: Ids, key: Key) -> int:
        """Return the largest number of devices that a round selects if only `idle` are idle."""
        return len(self.choose(idle, level, key))

    def of_count(self, count: int) -> Self | None:
        """Return this rule with `count` devices a round, for controllers. None: it selects no set number."""
        return None

    def asked_share(self, devices: int) -> float | None:
        """Return the probability with which each of `devices` idle devices is selected. None: they differ in it."""
        return None


@dataclass(frozen=True, kw_only=True)
class Informed(Selection):
    """Base class of selection rules that are given a Known.

    `count`: number of devices selected in a round, or all idle devices if there are fewer.
    """

    weighs: ClassVar[bool] = False  # True if `weights` gives the weights of updates

    count: Count

    def check(self, level: Ids) -> None:
        """Raise ConfigError if the rule does not fit devices of these levels, shape (devices,)."""
        if self.count > len(level):
            raise ConfigError(
                f"selection.count: must be at most the {len(level)} devices of the fleet, found {self.count}"
            )

    def most(self, idle: Ids, level: Ids, key: Key) -> int:
        """Return the largest number of devices that a round selects if only `idle` are idle."""
        return min(self.count, len(idle))

    @abstractmethod
    def choose(self, idle: Ids, known: Known, key: Key) -> Ids:
        """Return distinct ids of `idle`, ascending, a pure function of its arguments."""

    def of_count(self, count: int) -> Self:
        """Return this rule with `count` devices a round."""
        return replace(self, count=count)

    def start(self, known: Known) -> Any:
        """Return the first state, before any job. None for rules without a state."""
        return None

    def learn(self, known: Known) -> Any:
        """Return the state after a round that has just closed, a pure function. `known.state` is the old state."""
        return known.state

    def weights(self, idle: Ids, known: Known) -> Arr:
        """Return the weight of an update of each of `idle` if it were chosen, a factor beside all other weights."""
        return np.ones(len(idle))


@dataclass(frozen=True, kw_only=True)
class FromCandidates(Informed):
    """Base class of rules that examine `candidates` devices and select `count` of them."""

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
    """Return the `count` ids of highest score, ascending. `scores`: shape (len(ids),). Ties are broken at random."""
    order = np.lexsort((key.numpy().permutation(len(ids)), -scores))
    return np.sort(ids[order[:count]])


def drawn(ids: Ids, weights: Arr, count: int, key: Key) -> Ids:
    """Return `count` distinct ids, ascending, drawn one after the other with probabilities in proportion to weights.

    If fewer ids have a weight above 0, the result is all of these and others at random. If there are fewer ids than
    `count`, the result is all ids.
    """
    generator, likely = key.numpy(), ids[weights > 0]
    if len(ids) <= count:
        return ids
    if len(likely) <= count:
        rest = generator.choice(ids[weights <= 0], count - len(likely), replace=False)
        return np.sort(np.concatenate([likely, rest]))
    return np.sort(generator.choice(ids, count, replace=False, p=weights / weights.sum()))


def check_wants(rule: Any, known: Sequence[str] = tuple(sorted(WANTS))) -> None:
    """Raise ConfigError if a user's rule needs a fact that no server knows."""
    for want in sorted(rule.needs):
        if want not in known:
            raise ConfigError(
                f"selection.name: {type(rule).__name__}.needs has {want!r}, must be of {', '.join(known)}"
            )
