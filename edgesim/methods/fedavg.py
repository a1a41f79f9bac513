"""FedAvg: a set of devices trains, the server averages their models by data size.

Source: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (2017);
partial participation as in H. Wu, PhD thesis, York University (2023), chapter 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal

from edgesim.contracts import Bundle, LocalRule, Merged, Message, Needs, Order, Plan, Setting, Task, Training, View
from edgesim.learning.merge import finite, mean_of_holders
from edgesim.learning.rules import PLAIN_SGD
from edgesim.rng import Key


@dataclass(frozen=True, kw_only=True)
class FedAvg:
    """Average the local models by data size.

    `aggregate_over`: "participants" normalises over the updates that arrived; "all" lets every absent device
    count with the old model and its share of all data (the older form of the algorithm).
    """

    aggregate_over: Literal["participants", "all"] = "participants"
    needs: ClassVar[Needs] = Needs()

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the empty state: FedAvg remembers nothing."""
        setting.cost.check(widths=0)
        return {}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train the whole model."""
        task = _task(view.setting.training, view.round)
        return Plan(tuple(Order(device, task) for device in view.choose(key).tolist()))

    def local(self, task: Task) -> LocalRule:
        """Return plain SGD on the cross-entropy."""
        return PLAIN_SGD

    def merge(self, state: Any, base: Bundle, got: Sequence[Message], view: View, tools: Any, key: Key) -> Merged:
        """Return the data-size-weighted mean of the arrived models; the old model stays if nothing arrived."""
        usable, notes = finite(got)
        if not usable:
            return Merged(state, None, notes=notes)
        messages, sizes = list(usable), [m.samples * m.weight for m in usable]
        absent = float(view.setting.samples.sum()) - sum(sizes)
        if self.aggregate_over == "all" and absent > 0:
            messages.append(usable[0]._replace(body=base))
            sizes.append(absent)
        return Merged(state, mean_of_holders(base, messages, sizes), notes=notes)


@lru_cache(maxsize=8)
def _task(training: Training, round_: int) -> Task:
    """Return the task of a round: one object, by which the engine knows it again."""
    return Task(stretches=(training.stretch(round_),))


PARTS = {"fedavg": FedAvg}
