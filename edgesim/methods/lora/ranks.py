"""Base of methods whose devices train adapters of different ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from annotated_types import MinLen

from edgesim.core.errors import ConfigError
from edgesim.core.limits import Count, PositiveFactor
from edgesim.core.method import Method
from edgesim.core.rng import Key
from edgesim.core.task import Plan, Task
from edgesim.core.view import Setting, View
from edgesim.methods.heterofl import check_tiers, tiers_of_devices
from edgesim.methods.lora.adapters import Adapter, adapters_of, at_rank


@dataclass(frozen=True, kw_only=True)
class ByRank(Method):
    """Each device trains adapters of its own rank r: the first r rows of A and columns of B of the global adapters.

    A device computes, stores and sends what adapters of this rank take. The factor alpha / r of the network stays the
    same for all ranks, so that cutting an adapter cuts its product.
    """

    ranks: Annotated[tuple[Count, ...], MinLen(1)] | None = None  # rising; unset: all devices have the network's rank
    """The papers choose ranks for their networks: FLoRA's code has 64 to 4. Unset, all devices are alike."""
    tiers: Literal["fix", "level"] = "fix"
    """In the papers a device keeps its rank. `"level"` follows the fleet's levels."""
    proportions: Annotated[tuple[PositiveFactor, ...], MinLen(1)] | None = None
    """Equal shares of the devices, our choice."""

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the rank of every device. Raises ConfigError if the network has no adapters or ranks do not fit."""
        adapters = adapters_of(setting.cost_profile)
        largest = max(each.rank for each in adapters)
        if self.ranks is None:
            if self.tiers == "level" or self.proportions is not None:
                given = "tiers" if self.tiers == "level" else "proportions"
                raise ConfigError(f"method.{given}: chooses among method.ranks, which is not set")
            setting.cost.check(widths=0)
            return {"rank": [largest] * len(setting.samples)}
        check_tiers("ranks", self.ranks, self.tiers, self.proportions, setting)
        if self.ranks[-1] > largest:
            raise ConfigError(
                f"method.ranks: must be at most {largest}, the rank of {setting.cost_profile.model}'s adapters, "
                f"found {self.ranks[-1]}"
            )
        self.check_cut(adapters, self.ranks[0])
        places = tiers_of_devices(len(self.ranks), self.tiers, self.proportions, setting, key)
        return {"rank": [self.ranks[max(place, 1) - 1] for place in places]}

    def check_cut(self, adapters: Sequence[Adapter], smallest: int) -> None:
        """Raise ConfigError if an adapter of a larger rank than the smallest cannot be cut."""
        for each in adapters:
            if each.rank > smallest and not each.group:
                raise ConfigError(
                    f"method.ranks: the rank {each.rank} of {each.layer} cannot be cut to {smallest}, as more than its "
                    "lora_B reads what its lora_A gives"
                )

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train the adapters cut to their ranks."""
        devices, usual = view.choose(key).tolist(), self.task(view)
        adapters = adapters_of(view.setting.cost_profile)

        def task_of(rank: int) -> Task:
            return replace(usual, submodel=at_rank(adapters, rank, self.width_of(rank)))

        return Plan.by_kind(devices, [state["rank"][device] for device in devices], task_of)

    def width_of(self, rank: int) -> int:
        """Return the place of a rank among `ranks`, from 1, for a table of costs; 0 without `ranks`."""
        return 1 + sum(other < rank for other in self.ranks) if self.ranks else 0
