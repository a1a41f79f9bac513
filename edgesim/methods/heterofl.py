"""HeteroFL: weaker devices train the first units of every layer of one global model.

Source: Diao, Ding and Tarokh, "HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous
Clients" (ICLR 2021) and its authors' published code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import MinLen

from edgesim.contracts import (
    Bundle,
    Ids,
    LocalPhase,
    LocalRule,
    Merged,
    Message,
    Needs,
    Order,
    Part,
    Plan,
    Setting,
    Task,
    View,
)
from edgesim.errors import ConfigError
from edgesim.learning.merge import finite, mean_of_holders
from edgesim.learning.own_classes import masked_cross_entropy, of_own_classes, with_labels
from edgesim.learning.rules import PLAIN_SGD
from edgesim.learning.submodels import check_kept, groups_of, units_at
from edgesim.numbers import PositiveNumber, PositiveShare
from edgesim.rng import Key

_RATES = (1, 0)  # sub-stream of a plan's key; selection draws from the key itself and from those of one index


@dataclass(frozen=True, kw_only=True)
class HeteroFL:
    """A device of rate r trains ceil(r n) of the n units of every group, the first ones; inputs and outputs stay whole.

    `rates`: rising. `tiers`: devices have theirs for good ("fix"), drawn anew every round ("dynamic"), both in these
    `proportions`, equal ones if unset; or level i has the i-th ("level"). `scaler`: in training what the units of a
    group give is divided by r. Where a normalisation follows, which would take the factor out again, there is none.
    `masking`: the logits of classes that a device has not count as 0 in its loss, and only devices that have a class
    say anything about its row of the last layer. Each parameter is averaged over who had it, each device counting the
    same or by data size (`weights` "samples"); what nobody had stays.

    Differs: the source collects batch normalisation's running statistics from all devices after the training; here
    they are trained and averaged like any other number.
    """

    rates: Annotated[tuple[PositiveShare, ...], MinLen(1)] = (0.0625, 0.125, 0.25, 0.5, 1.0)
    tiers: Literal["fix", "dynamic", "level"] = "fix"
    proportions: Annotated[tuple[PositiveNumber, ...], MinLen(1)] | None = None
    scaler: bool = True
    masking: bool = True
    weights: Literal["equal", "samples"] = "equal"
    needs: ClassVar[Needs] = Needs(reports=frozenset({"labels"}))

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the rank of every device's rate, from 1, if it stays. Raises ConfigError if keys do not fit."""
        self._check(setting)
        devices = len(setting.samples)
        if self.tiers == "level":
            return {"rank": setting.level.tolist()}
        places = key.numpy().permutation(devices)
        return {"rank": self._ranks((places + 0.5) / devices).tolist()}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train the part of their rate."""
        setting, ranks = view.setting, state["rank"]
        if self.tiers == "dynamic":
            ranks = self._ranks(key.at(*_RATES).numpy().random(len(setting.samples))).tolist()
        stretches = (setting.training.stretch(view.round),)
        devices = view.choose(key).tolist()
        tasks = {
            rank: Task(part=self._part(rank, setting.card, view.round), stretches=stretches)
            for rank in {ranks[device] for device in devices}
        }
        return Plan(tuple(Order(device, tasks[ranks[device]]) for device in devices))

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy, for absent classes with logits of 0; the part makes the network thinner."""
        masked = LocalRule((LocalPhase(loss=masked_cross_entropy),), start=with_labels)
        return masked if self.masking else PLAIN_SGD

    def merge(self, state: Any, base: Bundle, got: Sequence[Message], view: View, tools: Any, key: Key) -> Merged:
        """Average each parameter over the devices that had it, output rows over those that have the class."""
        usable, notes = finite(got)
        if not usable:
            return Merged(state, None, notes=notes)
        card, labels = view.setting.card, view.setting.labels
        if self.masking and labels is not None:
            card, usable = of_own_classes(card, usable, labels)
        weights = [m.weight * (m.samples if self.weights == "samples" else 1) for m in usable]
        return Merged(state, mean_of_holders(base, usable, weights, card=card), notes=notes)

    def kept(self, count: int, size: int, round_: int) -> tuple[int, ...]:
        """Return which `count` of `size` units a device has in a round counted from 0: the first."""
        return tuple(range(count))

    def _check(self, setting: Setting) -> None:
        count, found = len(self.rates), list(self.rates)
        if found != sorted(set(found)):
            raise ConfigError(f"method.rates: must rise, found {found}")
        if self.proportions is not None and len(self.proportions) != count:
            raise ConfigError(
                f"method.proportions: must be as many as the {count} of method.rates, found {len(self.proportions)}"
            )
        if self.tiers == "level" and self.proportions is not None:
            raise ConfigError("method.proportions: are those of rates that are drawn, found method.tiers 'level'")
        if self.tiers == "level" and setting.level.max() > count:
            raise ConfigError(
                f"fleet.level: method.rates has a rate for {count} levels, found level {setting.level.max()}"
            )
        if self.rates[0] < 1 and not setting.card.groups:
            raise ConfigError(
                f"model.name: {setting.card.model} has no hidden unit to leave out; method.rates must be [1.0] for it, "
                f"found {found}"
            )
        for rate in self.rates:
            groups = groups_of(setting.card, "all")
            check_kept(groups, setting.card, f"method.rates: at {rate:g}", partial(units_at, rate))
        setting.cost.check(widths=count)

    def _ranks(self, shares: np.ndarray) -> Ids:
        """Return the ranks of devices at these places in [0, 1) of a row of all devices, from the narrowest."""
        ends = np.cumsum(self.proportions or (1.0,) * len(self.rates))
        ranks: Ids = 1 + np.searchsorted(ends / ends[-1], shares, side="right")
        return ranks

    def _part(self, rank: int, card: Any, round_: int) -> Part:
        rate = self.rates[rank - 1]
        if rate == 1:
            return Part("rate1", width=rank)
        groups = groups_of(card, "all")
        units = tuple((group.name, self.kept(units_at(rate, group.size), group.size, round_)) for group in groups)
        normed = {layer.rows for layer in card.layers if not layer.weights}
        scale = tuple((name, (1 / rate,) * len(kept)) for name, kept in units if self.scaler and name not in normed)
        return Part(f"rate{rate:g}", width=rank, units=units, scale=scale)


PARTS = {"heterofl": HeteroFL}
