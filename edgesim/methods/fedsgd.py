"""FedSGD: every device computes one gradient of its data, and the server steps along the mean gradient.

Source: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (2017), section 2;
H. Wu, PhD thesis, York University (2023), chapter 2, which names it as the contrast to FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from edgesim.core.encoding import FLOAT32
from edgesim.core.errors import ConfigError
from edgesim.core.limits import Count
from edgesim.core.method import Finished, LocalPhase, LocalRule, LocalState, Method
from edgesim.core.model_state import mapped
from edgesim.core.rng import Key
from edgesim.core.task import Plan, Task
from edgesim.core.view import Setting, View
from edgesim.learning.train.rules import keep_gradient, kept_gradient

if TYPE_CHECKING:
    from edgesim.learning.train.context import Context

_GRADIENT = "gradient"  # the name of tasks whose updates are encoded, as moves
BatchSize: TypeAlias = Literal["full"] | Count


@dataclass(frozen=True, kw_only=True)
class FedSGD(Method):
    """Each device computes one gradient a round, and the server steps along their mean by data size.

    w <- w - lr (a_1 G_1 + ... + a_n G_n), where a_k are shares of the data of the devices that arrived.
    A device sends w - lr G_k instead of G_k. As the shares sum to 1, the mean of the messages is the server's step.
    `batch_size`: the gradient covers all samples of a device in one pass ("full"), which needs memory for all of them,
    or this number of samples, drawn anew every round. `training` gives the learning rate, weight decay and clipping.
    Its batch, epochs and momentum are ignored. An update that counts in a later round starts from its older w, as in
    FedAvg.

    Family: server average. Formula: `w <- w - lr sum_k n_k G_k / sum_k n_k`. Paper: arXiv 1602.05629.
    """

    batch_size: BatchSize = "full"  # as McMahan et al. define it
    """McMahan et al. (section 2) take a full gradient, and so does Wu's thesis in chapter 2.1. Its chapter 2.2 has one
    local step per synchronisation: a number of samples.
    """

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the empty state. Raises ConfigError if batches are too small, or training is by another optimiser."""
        setting.training.check_sgd("its server steps along the mean of gradients")
        if self.batch_size != "full":
            setting.cost_profile.check_batch("method.batch_size", self.batch_size)
        return super().init(setting, key)

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices for one step. Devices with the same number of samples share a task."""
        sgd = view.setting.training.local_sgd(view.round)
        name = _GRADIENT if view.setting.encoding_up.of_update else "train"

        def task_of(batch: int) -> Task:  # without momentum, since there is no step before it
            return Task(name=name, local_sgd=(replace(sgd.for_steps(1), batch=batch, momentum=0.0),))

        chosen, samples = view.choose(key).tolist(), view.setting.samples
        # normalisation cannot train on one sample: in a batch of two it is a short last batch, which the loop skips
        batches = [max(int(samples[k]), 2) if self.batch_size == "full" else self.batch_size for k in chosen]
        return Plan.by_kind(chosen, batches, task_of)

    def local(self, task: Task) -> LocalRule:
        """Return the rule of a step. An encoded update has the exact move, not the difference of rounded models."""
        if task.name == _GRADIENT:
            return LocalRule((LocalPhase(adjust_gradients=keep_gradient),), on_finish=_moved)
        return super().local(task)


def _moved(local: LocalState, context: Context) -> Finished:
    """Return the model after the step, and its exact move -lr g, which the difference of rounded models loses."""
    lr = context.task.local_sgd[0].lr
    return Finished(local.weights, moves={"params": mapped(lambda g: -lr * g, kept_gradient(local))})


def refuse_encoding(setting: Setting, why: str) -> None:
    """Raise ConfigError, with the reason `why`, if a scenario encodes uplinks of a method with its own encoding."""
    if setting.encoding_up != FLOAT32:
        raise ConfigError(f"encoding.up: {why}; leave encoding.up out, found values = {setting.encoding_up.values!r}")


PLUGINS = {"fedsgd": FedSGD}
