"""Coordinate-wise median and trimmed mean: a few harmful updates cannot move any entry of the model far.

Source: Yin, Chen, Ramchandran and Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates"
(ICML 2018), definitions 1 and 2, algorithm 1; for models instead of gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Lt
from torch import Tensor

from edgesim.core.method import Aggregate, Method, ServerContext
from edgesim.core.rng import Key
from edgesim.core.task import Payload
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting
from edgesim.learning.aggregate import robust


@dataclass(frozen=True, kw_only=True)
class Median(Method):
    """Each entry of the new model is the median of the updates, against devices that send harmful updates.

    The median of an even number is the mean of the two in the middle. Data sizes and weights of protocols do not
    matter, because devices could lie about them to gain influence. Running statistics are treated like parameters.
    Sorting n numbers is charged as n ceil(log2 n) FLOPs, on top of averaging.

    Family: attackers. Formula: `w_e <- median_k w_ke for each entry e`. Paper: arXiv 1803.01498.
    """

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the centre of the models that arrived, entry by entry."""
        return Aggregate(state, robust.by_entry(global_model, updates, self.centre))

    def centre(self, values: Tensor) -> Tensor:
        """Return the median of sorted values (updates, ...), shape (...)."""
        return robust.median(values)

    def merge_flops(self, updates: int, setting: Setting) -> float:
        """Return the FLOPs of sorting."""
        return float(setting.cost_profile.numbers(Payload()) * updates * math.ceil(math.log2(updates)))


@dataclass(frozen=True, kw_only=True)
class TrimmedMean(Median):
    """Each entry of the new model is the mean of the updates without the lowest and the highest share `trim` of them.

    Of n updates floor(trim n) are left out at each end. All else as in `fedmedian`.

    Family: attackers. Formula: `w_e <- mean of w_ke without the floor(trim n) lowest and highest, for each entry e`.
    Paper: arXiv 1803.01498.
    """

    trim: Annotated[float, Ge(0), Lt(0.5)] = 0.1  # share left out at each end; 0: the plain mean
    """Yin et al. take the share of Byzantine workers, which is 0.1 in their experiment with a convolutional network."""

    def centre(self, values: Tensor) -> Tensor:
        """Return the mean of sorted values (updates, ...) without the trimmed ends, shape (...)."""
        return robust.trimmed_mean(values, self.trim)


PLUGINS = {"fedmedian": Median, "trimmed_mean": TrimmedMean}
