"""The cost model of papers that publish one relative cost per width of a partial model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from annotated_types import MinLen

from edgesim.core.arrays import Arr
from edgesim.core.cost_model import CostModel
from edgesim.core.errors import ConfigError
from edgesim.core.limits import PositiveShare
from edgesim.core.price_list import CostProfile
from edgesim.core.task import Pass, Submodel
from edgesim.learning.cost_models.measured import Measured


@dataclass(frozen=True, kw_only=True)
class TableCost(CostModel):
    """Training cost of width i = ratio i x the measured FLOPs of the full model. Other work is measured."""

    ratios: Annotated[tuple[PositiveShare, ...], MinLen(1)]  # of the full model's training cost, by width

    def check(self, *, widths: int) -> None:
        """Raise ConfigError if the method's number of widths is not the number of ratios."""
        if widths and widths != len(self.ratios):
            raise ConfigError(f"cost.ratios: the method has {widths} widths, found {len(self.ratios)} ratios")

    def flops(self, cost_profile: CostProfile, work: Pass, submodel: Submodel, samples: Arr, steps: Arr) -> Arr:
        """Return FLOPs, shape (k,), of one pass over `samples` in `steps` SGD steps, both of shape (k,)."""
        if work.kind != "train":
            return Measured().flops(cost_profile, work, submodel, samples, steps)
        return self._ratio(work, submodel) * Measured().flops(cost_profile, _whole(work), Submodel(), samples, steps)

    def amounts(
        self, cost_profile: CostProfile, work: Pass, submodel: Submodel, samples: Arr, steps: Arr
    ) -> Mapping[str, Arr] | None:
        """Return the amounts of all kinds of work, each of shape (k,): of all but samples and steps the same ratio."""
        if cost_profile.work is None:
            return None
        if work.kind != "train":
            return Measured().amounts(cost_profile, work, submodel, samples, steps)
        ratio = self._ratio(work, submodel)
        whole = Measured().amounts(cost_profile, _whole(work), Submodel(), samples, steps)
        return {kind: amount if kind in ("samples", "steps") else ratio * amount for kind, amount in whole.items()}

    def _ratio(self, work: Pass, submodel: Submodel) -> float:
        width = (work.submodel or submodel).width
        return self.ratios[width - 1] if width else 1.0


def _whole(work: Pass) -> Pass:
    return Pass(times=work.times, samples=work.samples)


PLUGINS = {"table": TableCost}
