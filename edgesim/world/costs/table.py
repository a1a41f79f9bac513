"""The cost model of papers that publish one relative cost per width of a partial model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import MinLen

from edgesim.card import ModelCard
from edgesim.contracts import Arr, Part, Pass
from edgesim.errors import ConfigError
from edgesim.numbers import PositiveShare
from edgesim.world.costs.measured import Measured


@dataclass(frozen=True, kw_only=True)
class Table:
    """Training cost of width i = ratio i x the measured FLOPs of the full model; other work is measured."""

    ratios: Annotated[tuple[PositiveShare, ...], MinLen(1)]  # of the full model's training cost, by width

    def check(self, widths: int) -> None:
        """Raise ConfigError if the method's number of widths is not the number of ratios."""
        if widths and widths != len(self.ratios):
            raise ConfigError(f"cost.ratios: the method has {widths} widths, found {len(self.ratios)} ratios")

    def flops(self, card: ModelCard, work: Pass, part: Part, samples: Arr, steps: Arr) -> Arr:
        """Return FLOPs, shape (k,), of one pass over `samples` in `steps` SGD steps, both of shape (k,)."""
        if work.kind != "train":
            return Measured().flops(card, work, part, samples, steps)
        width = (work.part or part).width
        ratio = self.ratios[width - 1] if width else 1.0
        return ratio * Measured().flops(card, Pass(times=work.times, samples=work.samples), Part(), samples, steps)


PARTS = {"table": Table}
