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

from edgesim.core.arrays import Ids
from edgesim.core.errors import ConfigError
from edgesim.core.limits import PositiveFactor, PositiveShare
from edgesim.core.method import Aggregate, LocalPhase, LocalRule, Method, Needs, ServerContext
from edgesim.core.rng import Key, PlanStream
from edgesim.core.task import Plan, Submodel, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.aggregate.mean import mean_of_holders
from edgesim.learning.submodel.selection import check_kept, groups_of, units_at
from edgesim.learning.train.rules import PLAIN_SGD
from edgesim.methods.own_classes import masked_cross_entropy, of_own_classes, with_labels


@dataclass(frozen=True, kw_only=True)
class HeteroFL(Method):
    """A device of rate r trains ceil(r n) of the n units of every group, the first ones; inputs and outputs stay whole.

    `rates`: rising. `tiers`: devices have theirs for good ("fix"), drawn anew every round ("dynamic"), both in these
    `proportions`, equal ones if unset; or level i has the i-th ("level"). `scaler`: in training what the units of a
    group give is divided by r. Where a normalisation follows, which would take the factor out again, there is none.
    `masking`: the logits of classes that a device has not count as 0 in its loss, and only devices that have a class
    say anything about its row of the last layer. Each parameter is averaged over who had it, each device counting the
    same or by data size (`weights` "samples"); what nobody had stays.

    Differs: the source collects batch normalisation's running statistics from all devices after the training; here
    they are trained and averaged like any other number.

    A positive factor passes through ReLU, pooling and sums, so it is applied where units are read. A normalisation
    takes it out again but for what stabilises its division: there it is left out, and running statistics are of what
    was not scaled. They are averaged like parameters; the source collects them from all devices after the training.
    Group normalisation needs widths that its groups divide. Which classes a device has is known to the server from the
    start, at no cost.
    """

    rates: Annotated[tuple[PositiveShare, ...], MinLen(1)] = (0.0625, 0.125, 0.25, 0.5, 1.0)
    """Levels e to a of Diao et al."""
    tiers: Literal["fix", "dynamic", "level"] = "fix"
    """They have "fix" and "dynamic", rates drawn anew every round. `"level"` follows the fleet's levels."""
    proportions: Annotated[tuple[PositiveFactor, ...], MinLen(1)] | None = None
    """Equal shares of the devices; they try many combinations of levels."""
    scaler: bool = True
    """Their scaler stands before every normalisation and ReLU, and only in training."""
    masking: bool = True
    """Both halves of their masked cross-entropy: logits of absent classes are 0, and rows of the last layer are
    averaged over who has the class.
    """
    weights: Literal["equal", "samples"] = "equal"
    """Their mean over who had a parameter counts devices, not samples."""
    needs: ClassVar[Needs] = Needs(metadata=frozenset({"labels"}))

    @property
    def needs_classes(self) -> str:
        """What the method does for which labels have to be classes."""
        return "masks the logits of classes that a device has not" if self.masking else ""

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the rank of every device's rate, from 1, if it stays. Raises ConfigError if keys do not fit."""
        self._check(setting)
        devices = setting.devices
        if self.tiers == "level":
            return {"rank": setting.level.tolist()}
        places = key.numpy().permutation(devices)
        return {"rank": setting.by_device(self._ranks((places + 0.5) / devices)).tolist()}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train the part of their rate."""
        setting, ranks = view.setting, state["rank"]
        if self.tiers == "dynamic":
            ranks = self._ranks(key.at(PlanStream.RATES, 0).numpy().random(len(setting.samples))).tolist()
        local_sgd = (setting.training.local_sgd(view.round),)
        devices = view.choose(key).tolist()

        def task_of(rank: int) -> Task:
            return Task(submodel=self._submodel(rank, setting.cost_profile, view.round), local_sgd=local_sgd)

        return Plan.by_kind(devices, [ranks[device] for device in devices], task_of)

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy, for absent classes with logits of 0; the part makes the network thinner."""
        masked = LocalRule((LocalPhase(loss=masked_cross_entropy),), on_start=with_labels)
        return masked if self.masking else PLAIN_SGD

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Average each parameter over the devices that had it, output rows over those that have the class."""
        cost_profile, labels = server.setting.cost_profile, server.setting.labels
        if self.masking and labels is not None:
            cost_profile, updates = of_own_classes(cost_profile, updates, labels)
        weights = self.update_weights(updates, server.setting)
        return Aggregate(state, mean_of_holders(global_model, updates, weights, cost_profile=cost_profile))

    def update_weights(self, updates: Sequence[Update], setting: Setting) -> Sequence[float]:
        """Return data sizes or ones, times the protocol's weights."""
        return [m.weight * (m.samples if self.weights == "samples" else 1) for m in updates]

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
        highest = setting.of_members().level.max()
        if self.tiers == "level" and highest > count:
            raise ConfigError(f"fleet.level: method.rates has a rate for {count} levels, found level {highest}")
        if self.rates[0] < 1 and not setting.cost_profile.groups:
            raise ConfigError(
                f"model.name: {setting.cost_profile.model} has no hidden unit to leave out; "
                "method.rates must be [1.0] for it, "
                f"found {found}"
            )
        for rate in self.rates:
            groups = groups_of(setting.cost_profile, "all")
            check_kept(groups, setting.cost_profile, f"method.rates: at {rate:g}", partial(units_at, rate))
        setting.cost.check(widths=count)

    def _ranks(self, shares: np.ndarray) -> Ids:
        """Return the ranks of devices at these places in [0, 1) of a row of all devices, from the narrowest."""
        ends = np.cumsum(self.proportions or (1.0,) * len(self.rates))
        ranks: Ids = 1 + np.searchsorted(ends / ends[-1], shares, side="right")
        return ranks

    def _submodel(self, rank: int, cost_profile: Any, round_: int) -> Submodel:
        rate = self.rates[rank - 1]
        if rate == 1:
            return Submodel("rate1", width=rank)
        groups = groups_of(cost_profile, "all")
        channels = tuple((group.name, self.kept(units_at(rate, group.size), group.size, round_)) for group in groups)
        normed = {layer.rows for layer in cost_profile.layers if not layer.weights}
        scale = tuple((name, (1 / rate,) * len(kept)) for name, kept in channels if self.scaler and name not in normed)
        return Submodel(f"rate{rate:g}", width=rank, channels=channels, scale=scale)


PLUGINS = {"heterofl": HeteroFL}
