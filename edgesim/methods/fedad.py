"""FedAD: devices train thinner networks by their speed, whose units are left out by how little they matter.

Source: "Efficient Federated Learning with Heterogeneous Data and Adaptive Dropout", arXiv 2507.10430.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from edgesim.contracts import Bundle, Merged, Message, Needs, Setting, View
from edgesim.learning.adaptive_dropout import AdaptiveDropout
from edgesim.learning.merge import Absent, mean_by_size
from edgesim.rng import Key


@dataclass(frozen=True, kw_only=True)
class MeanByEntry:
    """Average each parameter over the devices that had it ("skip"), or let who had not count with the old one."""

    absent: Absent = "skip"

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the empty state: the mean remembers nothing."""
        return {}

    def merge(self, state: Any, base: Bundle, got: Sequence[Message], view: View, tools: Any, key: Key) -> Merged:
        """Return the mean by data size; what nobody had stays, and so does the old model if nothing arrived."""
        return mean_by_size(state, base, got, self.absent, view.setting.card)


@dataclass(frozen=True, kw_only=True)
class FedAD(AdaptiveDropout, MeanByEntry):
    """Adaptive dropout, see `AdaptiveDropout`, before a mean by data size.

    `absent`: a parameter is averaged over who had it ("skip"), or who had not counts with the old one ("keep_old").
    """

    # a deadline would be spent on waiting for ranks and leave no time for models
    needs: ClassVar[Needs] = Needs(coordinators=frozenset({"sync"}), feedback=True, hears=True)


PARTS = {"fedad": FedAD}
