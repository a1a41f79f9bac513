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
    """Weaker devices train narrower networks: a device of rate r trains the first ceil(r n) of the n units of a group.

    Inputs and outputs of the model stay whole. `rates`: rising. `tiers`: with "fix" a device keeps its rate, with
    "dynamic" rates are drawn anew every round, both in the given `proportions`, equal ones if unset. With "level"
    devices of level i have the i-th rate. `scaler`: in training the outputs of the units of a group are divided by r,
    unless a normalisation follows, which would cancel the factor. `masking`: the logits of classes that a device does
    not have count as 0 in its loss, and only devices that have a class contribute to its row of the last layer. Each
    parameter is averaged over the devices that had it, with equal weights or by data size (`weights` "samples").
    Parameters that no device had stay.

    Differs: the source collects batch normalisation's running statistics from all devices after the training. Here
    they are trained and averaged like parameters.

    A positive factor passes through ReLU, pooling and sums, so it is applied where units are read. A normalisation
    cancels it, apart from the small constant in its division. There the factor is left out, and running statistics
    cover the unscaled values. Group normalisation needs widths that are divisible by the number of its groups. The
    server knows from the start, at no cost, which classes a device has.

    Family: smaller networks. Formula: `w_e <- mean_(k has e) w_ke, where a device of rate r has the first ceil(r n) of
    n units`. Paper: arXiv 2010.01264.
    """

    rates: Annotated[tuple[PositiveShare, ...], MinLen(1)] = (0.0625, 0.125, 0.25, 0.5, 1.0)
    """Levels e to a of Diao et al."""
    tiers: Literal["fix", "dynamic", "level"] = "fix"
    """Diao et al. have "fix", and "dynamic" with rates drawn anew every round. `"level"` follows the fleet's levels."""
    proportions: Annotated[tuple[PositiveFactor, ...], MinLen(1)] | None = None
    """Equal shares of the devices. Diao et al. try many combinations of levels."""
    scaler: bool = True
    """The scaler of Diao et al. stands before every normalisation and ReLU, and only in training."""
    masking: bool = True
    """Both parts of the masked cross-entropy of Diao et al.: logits of absent classes are 0, and rows of the last layer
    are averaged over the devices that have the class.
    """
    weights: Literal["equal", "samples"] = "equal"
    """In Diao et al. the mean of a parameter weighs the devices that had it equally, not by samples."""
    needs: ClassVar[Needs] = Needs(metadata=frozenset({"labels"}))

    @property
    def needs_classes(self) -> str:
        """The reason why labels have to be classes; empty without masking."""
        return "masks the logits of classes that a device has not" if self.masking else ""

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the rank of every device's rate, from 1, if it stays. Raises ConfigError if keys do not fit."""
        found = list(self.rates)
        check_tiers("rates", self.rates, self.tiers, self.proportions, setting)
        if self.rates[0] < 1 and not setting.cost_profile.groups:
            raise ConfigError(
                f"model.name: {setting.cost_profile.model} has no hidden unit to leave out; "
                "method.rates must be [1.0] for it, "
                f"found {found}"
            )
        for rate in self.rates:
            groups = groups_of(setting.cost_profile, "all")
            check_kept(groups, setting.cost_profile, f"method.rates: at {rate:g}", partial(units_at, rate))
        return {"rank": tiers_of_devices(len(found), self.tiers, self.proportions, setting, key)}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train the slice of their rate."""
        setting, ranks = view.setting, state["rank"]
        if self.tiers == "dynamic":
            shares = key.at(PlanStream.RATES, 0).numpy().random(len(setting.samples))
            ranks = _by_proportions(shares, len(self.rates), self.proportions).tolist()
        local_sgd = (setting.training.local_sgd(view.round),)
        devices = view.choose(key).tolist()

        def task_of(rank: int) -> Task:
            return Task(submodel=self.submodel(rank, setting.cost_profile, view.round), local_sgd=local_sgd)

        return Plan.by_kind(devices, [ranks[device] for device in devices], task_of)

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy, with logits of 0 for absent classes if `masking`."""
        masked = LocalRule((LocalPhase(loss=masked_cross_entropy),), on_start=with_labels)
        return masked if self.masking else PLAIN_SGD

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Average each parameter over the devices that had it, output rows over the devices that have the class."""
        cost_profile, labels = server.setting.cost_profile, server.setting.labels
        if self.masking and labels is not None:
            cost_profile, updates = of_own_classes(cost_profile, updates, labels)
        weights = self.update_weights(updates, server.setting)
        return Aggregate(state, mean_of_holders(global_model, updates, weights, cost_profile=cost_profile))

    def update_weights(self, updates: Sequence[Update], setting: Setting) -> Sequence[float]:
        """Return data sizes or ones, times the protocol's weights."""
        return [m.weight * (m.samples if self.weights == "samples" else 1) for m in updates]

    def kept(self, count: int, size: int, round_: int) -> tuple[int, ...]:
        """Return the indices of the `count` of `size` units of a device in a round counted from 0: the first ones."""
        return tuple(range(count))

    def submodel(self, rank: int, cost_profile: Any, round_: int) -> Submodel:
        """Return the slice of the rate of a rank, counted from 1, in a round counted from 0."""
        rate = self.rates[rank - 1]
        if rate == 1:
            return Submodel("rate1", width=rank)
        groups = groups_of(cost_profile, "all")
        channels = tuple((group.name, self.kept(units_at(rate, group.size), group.size, round_)) for group in groups)
        normed = {layer.rows for layer in cost_profile.layers if not layer.weights}
        scale = tuple((name, (1 / rate,) * len(kept)) for name, kept in channels if self.scaler and name not in normed)
        return Submodel(f"rate{rate:g}", width=rank, channels=channels, scale=scale)


def check_tiers(
    key: str, sizes: Sequence[float], tiers: str, proportions: Sequence[float] | None, setting: Setting
) -> None:
    """Raise ConfigError unless sizes of sub-models rise and fit the other keys. `key`: the key of the sizes."""
    count, found = len(sizes), list(sizes)
    if found != sorted(set(found)):
        raise ConfigError(f"method.{key}: must rise, found {found}")
    if proportions is not None and len(proportions) != count:
        raise ConfigError(
            f"method.proportions: must be as many as the {count} of method.{key}, found {len(proportions)}"
        )
    if tiers == "level" and proportions is not None:
        raise ConfigError(f"method.proportions: are those of {key} that are drawn, found method.tiers 'level'")
    highest = setting.of_members().level.max()
    if tiers == "level" and highest > count:
        of_each = key.removesuffix("s")
        raise ConfigError(f"fleet.level: method.{key} has a {of_each} for {count} levels, found level {highest}")
    setting.cost.check(widths=count)


def tiers_of_devices(
    count: int, tiers: str, proportions: Sequence[float] | None, setting: Setting, key: Key
) -> list[int]:
    """Return the place of each device's size among `count` sizes, from 1: its level, or drawn by `proportions`."""
    if tiers == "level":
        levels: list[int] = setting.level.tolist()
        return levels
    places = key.numpy().permutation(setting.devices)
    drawn: list[int] = setting.by_device(_by_proportions((places + 0.5) / setting.devices, count, proportions)).tolist()
    return drawn


def _by_proportions(shares: np.ndarray, count: int, proportions: Sequence[float] | None) -> Ids:
    """Return the sizes at positions in [0, 1), counted from 1, where the smallest size has the first positions."""
    ends = np.cumsum(proportions or (1.0,) * count)
    found: Ids = 1 + np.searchsorted(ends / ends[-1], shares, side="right")
    return found


PLUGINS = {"heterofl": HeteroFL}
