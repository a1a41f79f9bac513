"""FedSGD: every device takes one gradient of its data, the server steps along their mean by data size.

Source: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (2017), section 2;
H. Wu, PhD thesis, York University (2023), chapter 2, which names it as the contrast to FedAvg.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from annotated_types import Ge

from edgesim.contracts import Bundle, LocalRule, Merged, Message, Needs, Order, Plan, Setting, Task, View
from edgesim.learning.merge import finite, mean_of_holders
from edgesim.learning.rules import PLAIN_SGD
from edgesim.rng import Key

BatchSize: TypeAlias = Literal["full"] | Annotated[int, Ge(1)]


@dataclass(frozen=True, kw_only=True)
class FedSGD:
    """w <- w - lr (a_1 G_1 + ... + a_n G_n): one gradient a device and round, a_k shares of the arrived devices' data.

    A device sends w - lr G_k in place of G_k: as the shares sum to 1, their mean is the server's step. `batch_size`:
    the gradient is that of all samples of a device in one pass ("full"), which needs memory for all of them, or of so
    many drawn anew every round. `training` gives the learning rate, weight decay and clipping; its batch, epochs and
    momentum play no part. An update that counts in a later round brings its older w with it, as in FedAvg.
    """

    batch_size: BatchSize = "full"  # as McMahan et al. define it
    needs: ClassVar[Needs] = Needs()

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the empty state: FedSGD remembers nothing. Raises ConfigError if batches are too small."""
        setting.cost.check(widths=0)
        if self.batch_size != "full":
            setting.card.check_batch("method.batch_size", self.batch_size)
        return {}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices for one step; those that hold equally many samples share a task."""
        chosen = view.choose(key).tolist()
        batches = [self._batch(int(view.setting.samples[device])) for device in chosen]
        tasks = {batch: _step(view, batch) for batch in set(batches)}
        return Plan(tuple(Order(device, tasks[batch]) for device, batch in zip(chosen, batches, strict=True)))

    def local(self, task: Task) -> LocalRule:
        """Return plain SGD on the cross-entropy."""
        return PLAIN_SGD

    def merge(self, state: Any, base: Bundle, got: Sequence[Message], view: View, tools: Any, key: Key) -> Merged:
        """Return the mean of the arrived models by data size; the old model stays if nothing arrived."""
        usable, notes = finite(got)
        model = mean_of_holders(base, usable, [m.samples * m.weight for m in usable]) if usable else None
        return Merged(state, model, notes=notes)

    def _batch(self, samples: int) -> int:
        # normalisation cannot train on one sample: in a batch of two it is a short last batch, which the loop skips
        return max(samples, 2) if self.batch_size == "full" else self.batch_size


def _step(view: View, batch: int) -> Task:
    """Return the task of one step; no momentum, since there is no step before it."""
    stretch = view.setting.training.stretch(view.round)
    return Task(stretches=(replace(stretch, batch=batch, epochs=0, steps=1, momentum=0.0),))


PARTS = {"fedsgd": FedSGD}
