"""Base of methods whose devices have different parts of a network: each parameter is averaged over its holders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edgesim.core.method import Absent, Aggregate, Method, ServerContext
from edgesim.core.rng import Key
from edgesim.core.update import ModelState, Update


@dataclass(frozen=True, kw_only=True)
class MeanByEntry(Method):
    """Average each parameter by data size over the devices that had it ("average_over_holders").

    With `absent` = "include_absent" the other devices count with the old value. A parameter that no device had stays.
    """

    absent: Absent = "average_over_holders"
    """Each parameter is averaged over the devices that had it. With `"include_absent"` the other devices count with the
    old value.
    """

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the mean by data size, parameter by parameter."""
        sizes = self.update_weights(updates, server.setting)
        return Aggregate(state, server.mean(global_model, updates, sizes, self.absent))
