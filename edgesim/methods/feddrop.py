"""FedDrop: every device trains a random thinner network; each parameter is averaged over who had it.

Source: D. Wen, K.-J. Jeon and K. Huang, "Federated Dropout - A Simple Approach for Enabling Federated Learning on
Resource Constrained Devices" (2022); as the baseline of the FedPMT paper, with the ratios of Table 5.2 in H. Wu, PhD
thesis, York University (2023), which calls them dropout rates although they are the shares that stay.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Ge, MinLen

from edgesim.contracts import Bundle, LocalRule, Merged, Message, Needs, Order, Part, Payload, Plan, Setting, Task, View
from edgesim.errors import ConfigError
from edgesim.learning.merge import Absent, mean_by_size
from edgesim.learning.rules import PLAIN_SGD
from edgesim.learning.submodels import check_kept
from edgesim.rng import Key

_MASKS = 1  # sub-stream of a plan's key; selection draws from the key itself and from those of one index
_SEED_BYTES = 8  # a mask travels as the seed that it is drawn from
_LEAST_KEPT = 100  # thousandths: the paper's "cap", below which its ratios do not go

# Table 5.2: the share of each level, by parameters of the network and number of levels.
_PAPER = {
    (515_610, 4): (0.54, 0.61, 0.73, 1.0),
    (515_610, 2): (0.73, 1.0),
    (37_610, 4): (0.1, 0.26, 0.73, 1.0),
    (37_610, 2): (0.73, 1.0),
    (567_858, 5): (0.4, 0.54, 0.88, 0.93, 1.0),
    (567_858, 2): (0.93, 1.0),
}


@dataclass(frozen=True, kw_only=True)
class FedDrop:
    """Federated dropout: new random units for every device and round, fewer for slower devices.

    `keep`: the share of units that stay, in (0, 1]; a number for all, or one for each capability level. "paper" has
    those of Table 5.2 for its networks. "match_measured" gives level i the least thousandth, from 0.1 on, with which a
    training step costs as many FLOPs as one of FedPMT's width i; `widths` are FedPMT's, by default one per layer.
    `units`: what is thinned, hidden linear layers or also the channels of convolutions; inputs and outputs stay.
    `draw`: "exact" keeps floor(share n + 1/2) of n units, "bernoulli" each unit by itself; at least one stays.
    `scaling`: in training "inverted" multiplies what kept units give by the inverse of their share; in tests all count.
    `absent`: a parameter is averaged over who had it ("skip"), or who had not counts with the old one ("keep_old").
    """

    keep: Literal["paper", "match_measured"] | float | tuple[float, ...] = "match_measured"
    widths: Annotated[tuple[Annotated[int, Ge(1)], ...], MinLen(1)] | None = None
    units: Literal["linear", "all"] = "linear"
    draw: Literal["exact", "bernoulli"] = "exact"
    scaling: Literal["inverted", "none"] = "inverted"
    absent: Absent = "skip"
    needs: ClassVar[Needs] = Needs()

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the share that each level keeps. Raises ConfigError if keep, widths, levels or model do not fit."""
        card, levels = setting.card, int(setting.level.max())
        keep = self._shares(card, levels)
        if not all(0 < share <= 1 for share in keep):
            raise ConfigError(f"method.keep: shares must be in (0, 1], found {list(keep)}")
        if levels > len(keep):
            raise ConfigError(f"fleet.level: method.keep has a share for {len(keep)} levels, found level {levels}")
        if min(keep) < 1 and not self._groups(card):
            raise ConfigError(
                f"method.units: {self.units!r} finds no unit to leave out in {card.model} (unit groups: "
                f"{', '.join(group.name for group in card.groups) or 'none'}); method.keep must be 1 for it"
            )
        for share in (share for share in keep if share < 1):
            counts = partial(_count, share) if self.draw == "exact" else None
            check_kept(self._groups(card), card, f"method.keep: at {share:g}", counts)
        setting.cost.check(widths=len(keep))
        return {"keep": list(keep)}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train thinner networks, drawn for each of them."""
        setting, groups = view.setting, self._groups(view.setting.card)
        stretches = (setting.training.stretch(view.round),)
        tasks: dict[Part, Task] = {}
        orders = []
        for device in view.choose(key).tolist():
            level = int(setting.level[device])
            part = self._part(level, state["keep"][level - 1], groups, key.at(_MASKS, device))
            down = Payload(extra_bytes=_SEED_BYTES if part.units else 0)
            orders.append(Order(device, tasks.setdefault(part, Task(part=part, stretches=stretches, down=down))))
        return Plan(tuple(orders))

    def local(self, task: Task) -> LocalRule:
        """Return plain SGD on the cross-entropy; the part of the task makes the network thinner."""
        return PLAIN_SGD

    def merge(self, state: Any, base: Bundle, got: Sequence[Message], view: View, tools: Any, key: Key) -> Merged:
        """Average each parameter over the devices that had it, by data size; what nobody had stays."""
        return mean_by_size(state, base, got, self.absent, view.setting.card)

    def _shares(self, card: Any, levels: int) -> tuple[float, ...]:
        """Return the share that each level keeps."""
        if self.keep == "paper":
            return _of_table(card, levels)
        if self.keep == "match_measured":
            return tuple(self._matching(depth, card) for depth in self._depths(card))
        return self.keep if isinstance(self.keep, tuple) else (self.keep,) * levels

    def _depths(self, card: Any) -> tuple[int, ...]:
        layers = len(card.layers)
        depths = self.widths or tuple(range(1, layers + 1))
        if max(depths) > layers:
            raise ConfigError(f"method.widths: must be at most the model's {layers} layers, found {list(depths)}")
        return depths

    def _matching(self, depth: int, card: Any) -> float:
        """Return the least share with which training costs as many FLOPs as that of the last `depth` layers."""
        wanted, groups = card.train_flops(card.before_last(depth)), self._groups(card)
        if wanted == card.train_flops():
            return 1.0

        def flops(thousandths: int) -> float:
            units = tuple((group.name, tuple(range(_count(thousandths / 1000, group.size)))) for group in groups)
            return card.train_flops(Part(units=units))

        return (_LEAST_KEPT + bisect_left(range(_LEAST_KEPT, 1000), wanted, key=flops)) / 1000

    def _groups(self, card: Any) -> list[Any]:
        kinds = {layer.name: layer.kind for layer in card.layers}
        return [group for group in card.groups if self.units == "all" or kinds[group.name] == "Linear"]

    def _part(self, level: int, share: float, groups: Sequence[Any], key: Key) -> Part:
        """Return a random part for a device of this level; the whole model if all units stay."""
        if share == 1:
            return Part("keep1", width=level)
        draws = key.numpy()
        units = tuple((group.name, self._kept(share, group.size, draws)) for group in groups)
        scale = tuple(
            (group.name, (self._factor(share, group.size, len(kept)),) * len(kept))
            for group, (_, kept) in zip(groups, units, strict=True)
            if self.scaling == "inverted"
        )
        return Part(f"keep{share:g}", width=level, units=units, scale=scale, share=share)

    def _kept(self, share: float, size: int, draws: np.random.Generator) -> tuple[int, ...]:
        """Return random units of a group, ascending."""
        if self.draw == "exact":
            kept = draws.choice(size, _count(share, size), replace=False)
        else:
            kept = np.flatnonzero(draws.random(size) < share)
            kept = kept if len(kept) else draws.integers(size, size=1)
        return tuple(np.sort(kept).tolist())

    def _factor(self, share: float, size: int, kept: int) -> float:
        """Return what makes up for the units left out, on average over draws."""
        return size / kept if self.draw == "exact" else 1 / share


def _count(share: float, size: int) -> int:
    """Return how many of so many units are a share of them: at least one."""
    return max(1, math.floor(share * size + 0.5 + 1e-9))  # 0.29 x 50 is 14.5, not the least bit less


def _of_table(card: Any, levels: int) -> tuple[float, ...]:
    if (card.params, levels) not in _PAPER:
        known = ", ".join(f"{params} parameters at {count} levels" for params, count in _PAPER)
        raise ConfigError(
            f"method.keep: 'paper' knows networks of {known}; {card.model} has {card.params}, the fleet {levels} levels"
        )
    return _PAPER[card.params, levels]


PARTS = {"feddrop": FedDrop}
