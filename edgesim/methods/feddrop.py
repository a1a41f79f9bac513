"""FedDrop: every device trains a random thinner network; each parameter is averaged over the devices that had it.

Source: D. Wen, K.-J. Jeon and K. Huang, "Federated Dropout - A Simple Approach for Enabling Federated Learning on
Resource Constrained Devices" (2022); as the baseline of the FedPMT paper, with the ratios of Table 5.2 in H. Wu, PhD
thesis, York University (2023). It calls the ratios dropout rates. Its operation counts use them as shares that stay.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import MinLen

from edgesim.core.errors import ConfigError
from edgesim.core.limits import Count
from edgesim.core.method import Absent, Aggregate, ServerContext
from edgesim.core.model_state import mapped
from edgesim.core.rng import Key, PlanStream
from edgesim.core.task import Order, Payload, Plan, Submodel, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.submodel.selection import check_kept
from edgesim.methods.weighting.by_entry import MeanByEntry

_SEED_BYTES = 8  # a mask travels as its random seed
_LEAST_KEPT = 100  # thousandths: the least ratio, which the paper calls "cap"

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
class FedDrop(MeanByEntry):
    """For fleets of unequal speed: new random units for every device and round, fewer for slower devices.

    `keep`: the share of units that stay, in (0, 1]; a number for all, or one for each capability level. "paper" has the
    shares of Table 5.2 for its networks. "paper_dropped" takes each share below 1 for the share that is dropped, as
    the heading of the table says. "match_measured" gives level i the least thousandth, from 0.1 on, with which a
    training step costs as many FLOPs as one of FedPMT's width i; `widths` are FedPMT's, by default one per layer.
    `channels`: the hidden linear layers are thinned, or also the channels of convolutions; inputs and outputs stay.
    `draw`: "exact" keeps floor(share n + 1/2) of n units, "bernoulli" draws each unit independently; at least one
    stays. `scaling`: in training "inverted" multiplies the outputs of kept channels by the inverse of their share.
    Tests use all channels. `absent`: a parameter is averaged over the devices that had it ("average_over_holders"), or
    devices without it count with the old one ("include_absent"). `zero_padded`: devices without a parameter count with
    0 instead.

    Family: smaller networks. Formula: `w_e <- sum_(k has e) n_k w_ke / sum_(k has e) n_k, where k has random units`.
    Paper: arXiv 2109.15258.
    """

    keep: Literal["paper", "paper_dropped", "match_measured"] | float | tuple[float, ...] = "match_measured"
    """Table 5.2 of Wu's thesis has a share for each level of its three networks, `"paper"`, under the heading
    "dropout rate" though its caption and its numbers make it the share that stays. A program that passed them to a
    dropout layer would drop them, `"paper_dropped"`. Only the shares that stay match FedPMT by the
    paper's own count of operations. By measured FLOPs other shares match. With convolutions, which stay, no share
    matches, and 0.1, the paper's cap, remains. FedDHAD's comparison uses 0.5 for all devices.
    """
    widths: Annotated[tuple[Count, ...], MinLen(1)] | None = None
    """Widths of the FedPMT to match: one a layer, as for `fedpmt`; `[2, 3, 4, 5]` for the fully connected network."""
    channels: Literal["linear", "all"] = "linear"
    """The numbers of Table 5.2 need full convolutions. `"all"` thins channels too, as in other work on federated
    dropout.
    """
    draw: Literal["exact", "bernoulli"] = "exact"
    """The costs of the table are for an exact count. The table also counts fractions of units, which are rounded here.
    Ordinary dropout draws each unit independently: `"bernoulli"`.
    """
    scaling: Literal["inverted", "none"] = "inverted"
    """The paper does not specify this. With inverted dropout the full model can be tested without changes."""
    absent: Absent = "average_over_holders"
    """The paper does not specify this. FedPMT averages its layers in the same way. `"include_absent"` divides by the
    data of all arrived devices, so that a parameter that few devices had hardly moves.
    """
    zero_padded: bool = False
    """No source describes this. A server that pads thin networks with zeros and averages them would do it, and in the
    thesis FedDrop fails where other means let it learn. With it the model does not learn: see "FedPMT Figure 5.2" in
    docs/explanation/reproductions.md.
    """

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the share that each level keeps. Raises ConfigError if keep, widths, levels or model do not fit."""
        if self.zero_padded and self.absent != "average_over_holders":
            raise ConfigError(f"method.zero_padded: says what method.absent does, found absent = '{self.absent}' too")
        cost_profile, levels = setting.cost_profile, int(setting.of_members().level.max())
        keep = self._shares(cost_profile, levels)
        if not all(0 < share <= 1 for share in keep):
            raise ConfigError(f"method.keep: shares must be in (0, 1], found {list(keep)}")
        if levels > len(keep):
            raise ConfigError(f"fleet.level: method.keep has a share for {len(keep)} levels, found level {levels}")
        if min(keep) < 1 and not self._groups(cost_profile):
            raise ConfigError(
                f"method.channels: {self.channels!r} finds no unit to leave out in {cost_profile.model} "
                "(channel groups: "
                f"{', '.join(group.name for group in cost_profile.groups) or 'none'}); method.keep must be 1 for it"
            )
        for share in (share for share in keep if share < 1):
            counts = partial(_count, share) if self.draw == "exact" else None
            check_kept(self._groups(cost_profile), cost_profile, f"method.keep: at {share:g}", counts)
        setting.cost.check(widths=len(keep))
        return {"keep": list(keep)}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train thinner networks, drawn for each of them."""
        setting, groups = view.setting, self._groups(view.setting.cost_profile)
        local_sgd = (setting.training.local_sgd(view.round),)
        tasks: dict[Submodel, Task] = {}
        orders = []
        for device in view.choose(key).tolist():
            level = int(setting.level[device])
            draws = key.at(PlanStream.CHANNELS, device)
            submodel = self._submodel(level, state["keep"][level - 1], groups, draws)
            down = Payload(extra_bytes=_SEED_BYTES if submodel.channels else 0)
            orders.append(
                Order(device, tasks.setdefault(submodel, Task(submodel=submodel, local_sgd=local_sgd, down=down)))
            )
        return Plan(tuple(orders))

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the mean by data size, parameter by parameter."""
        sizes = self.update_weights(updates, server.setting)
        if not self.zero_padded or not sum(sizes):  # the model stays if all updates have weight 0
            return super().combine(state, global_model, updates, server, key)
        zeros = mapped(lambda old: old.new_zeros(old.shape), global_model)
        return Aggregate(state, server.mean(zeros, updates, sizes, "include_absent"))

    def _shares(self, cost_profile: Any, levels: int) -> tuple[float, ...]:
        """Return the share that each level keeps."""
        if self.keep == "match_measured":
            layers = len(cost_profile.layers)
            depths = self.widths or tuple(range(1, layers + 1))
            if max(depths) > layers:
                raise ConfigError(f"method.widths: must be at most the model's {layers} layers, found {list(depths)}")
            return tuple(self._matching(depth, cost_profile) for depth in depths)
        if isinstance(self.keep, str):
            if (cost_profile.params, levels) not in _PAPER:
                known = ", ".join(f"{params} parameters at {count} levels" for params, count in _PAPER)
                raise ConfigError(
                    f"method.keep: {self.keep!r} knows networks of {known}; "
                    f"{cost_profile.model} has {cost_profile.params}, the fleet {levels} levels"
                )
            shares = _PAPER[cost_profile.params, levels]
            return shares if self.keep == "paper" else tuple(round(1 - share, 2) or 1.0 for share in shares)
        if isinstance(self.keep, float | int):
            return (float(self.keep),) * levels
        return self.keep

    def _matching(self, depth: int, cost_profile: Any) -> float:
        """Return the least share with which training costs as many FLOPs as training the last `depth` layers."""
        wanted, groups = cost_profile.train_flops(cost_profile.before_last(depth)), self._groups(cost_profile)
        if wanted == cost_profile.train_flops():
            return 1.0

        def flops(thousandths: int) -> float:
            channels = tuple((group.name, tuple(range(_count(thousandths / 1000, group.size)))) for group in groups)
            return cost_profile.train_flops(Submodel(channels=channels))

        return (_LEAST_KEPT + bisect_left(range(_LEAST_KEPT, 1000), wanted, key=flops)) / 1000

    def _groups(self, cost_profile: Any) -> list[Any]:
        kinds = {layer.name: layer.kind for layer in cost_profile.layers}
        return [group for group in cost_profile.groups if self.channels == "all" or kinds[group.name] == "Linear"]

    def _submodel(self, level: int, share: float, groups: Sequence[Any], key: Key) -> Submodel:
        """Return a random submodel for a device of this level; the whole model if all units stay."""
        if share == 1:
            return Submodel("keep1", width=level)
        draws = key.numpy()
        channels, scale = [], []
        for group in groups:
            if self.draw == "exact":
                kept = draws.choice(group.size, _count(share, group.size), replace=False)
                factor = group.size / len(kept)
            else:
                kept = np.flatnonzero(draws.random(group.size) < share)
                kept = kept if len(kept) else draws.integers(group.size, size=1)
                factor = 1 / share
            channels.append((group.name, tuple(np.sort(kept).tolist())))
            scale.append((group.name, (factor,) * len(kept)))
        return Submodel(
            f"keep{share:g}",
            width=level,
            channels=tuple(channels),
            scale=tuple(scale) if self.scaling == "inverted" else (),
            share=share,
        )


def _count(share: float, size: int) -> int:
    """Return the number of units that are a share of `size`, at least one."""
    return max(1, math.floor(share * size + 0.5 + 1e-9))  # 0.29 x 50 is 14.5, not the least bit less


PLUGINS = {"feddrop": FedDrop}
