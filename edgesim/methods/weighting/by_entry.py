"""The mean of networks of which devices have different parts: each parameter over the devices that had it."""

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

    With `absent` = "include_absent" the others count with the old one. What nobody had stays.
    """

    absent: Absent = "average_over_holders"
    """Each parameter is averaged over who had it. `"include_absent"` lets the others count with the old one."""

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the mean by data size, parameter by parameter."""
        sizes = self.update_weights(updates, server.setting)
        return Aggregate(state, server.mean(global_model, updates, sizes, self.absent))
