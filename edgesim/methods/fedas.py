"""FedAS: devices keep their own last layer, align the received base with old features, and count by Fisher trace.

Source: Yang, Huang and Ye, "FedAS: Bridging Inconsistency in Personalized Federated Learning" (CVPR 2024) and its
authors' published code; as a baseline of the FedDHAD paper (arXiv 2507.10430).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from edgesim.core.arrays import Arr
from edgesim.core.backend import CHUNK
from edgesim.core.errors import ConfigError
from edgesim.core.limits import Count, CountOrZero, PositiveFactor
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.method import Aggregate, Finished, LocalPhase, LocalRule, LocalState, Method, Needs, ServerContext
from edgesim.core.model_state import model_in, named, replaced, selected
from edgesim.core.rng import JobStream, Key
from edgesim.core.task import Pass, Payload, Plan, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.aggregate.mean import finite_or_none
from edgesim.learning.models.trace import layer_of
from edgesim.learning.train.context import Batch, Context
from edgesim.learning.train.loop import batch_order, gradients, run_local_sgd
from edgesim.learning.train.rules import objective_loss
from edgesim.methods.fedjs import noted

_TRACE_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class FedAS(Method):
    """Personal models: all devices share a base, and each device has a last layer (head) of its own.

    A device keeps its whole model. In its next turn it takes from this old model the mean features of each class, which
    are the inputs of the head, and trains the received base towards them: `align_epochs` epochs of plain SGD with
    `align_batch` and `align_lr`. `align_loss`, a mean squared difference: "sample" compares the samples of a batch with
    the means of their classes, "class" does so for each class and adds up the classes, and "class_mean" compares the
    batch's mean of each class instead and adds up the classes. Then the device trains base and head together as usual.
    In one more epoch it adds up over the batches the squared gradient of the mean loss, as in a test: the trace of its
    Fisher information. The server averages bases by trace, or equally if all traces are zero. `global_head`, the head
    of the global model: the mean of the devices' heads by data size ("average") or by trace ("fisher"), for which
    devices send their heads. With `global_head` "none" the head keeps its initial weights and is never sent.
    `first_old`, the old base of a device that has none: the "initial" base of the run or the one "received". Its head
    is always the initial one. A model that diverged is discarded, and the device keeps the one before.
    `evaluation.personal` tests a device's own model, or the global model if it has none yet. A device that stops early
    misses training steps, not the alignment. The metrics hold every device's `trace` and weight `q`.

    Experimental: the FedDHAD paper does not specify which head it compared, see `global_head`.

    Devices download bases only. The forward passes for prototypes and alignment are charged with the last layer, whose
    inputs the features are. All other work is charged at its least cost. A device that was never selected is tested
    with the global model. In the published code devices align the server's own network in turn, each from where the one
    before stopped. Here each device has a copy, as in the paper.

    Family: personal models. Formula: `base <- sum_k F_k base_k / sum_k F_k, where F_k is the trace of the Fisher
    information of k`.
    """

    align_epochs: CountOrZero = 1
    """One in the published code and in FL-bench. 0 takes the base as received."""
    align_batch: Count = 16
    """Published code. FL-bench takes the batch size of training."""
    align_lr: PositiveFactor = 0.01
    """Published code."""
    align_loss: Literal["sample", "class", "class_mean"] = "sample"
    """The published code weighs the mean squared difference of each class by its share of the batch, which is the
    mean over samples. Without these shares it is `"class"`. FL-bench compares the batch's mean features of each class,
    `"class_mean"`.
    """
    global_head: Literal["average", "fisher", "none"] = "average"
    """FedAS is judged by its personal models. The FedDHAD paper compares global accuracies and does not specify the
    head. FedAvg's mean is our choice. The published code averages whole networks by trace, `"fisher"`. Both need heads
    to be sent. `"none"` sends bases only, which is all that the method itself needs. The global model then has an
    untrained head, and only personal accuracies mean anything.
    """
    first_old: Literal["initial", "received"] = "initial"
    """The model to which a device without an old model aligns: in the published code the initial model, in FL-bench the
    one `"received"`. With the default a late newcomer is pulled towards the features of a random network.
    """
    needs: ClassVar[Needs] = Needs(device_state="computed")
    uses_kept_model: ClassVar[bool] = True

    @property
    def needs_classes(self) -> str:
        """The reason why labels must be classes, a verb phrase for the error message."""
        return "aligns the features of each class"

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the empty state. Raises ConfigError for a model of a single layer, or batches that are too small."""
        if self.align_epochs:
            setting.cost_profile.check_batch("method.align_batch", self.align_batch)
        _head(setting.cost_profile)
        return super().init(setting, key)

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to align, to train and to send their trace, in one task per number of samples.

        The download of a task names the shared layers.
        """
        setting, ids = view.setting, view.choose(key)
        cost_profile, head = setting.cost_profile, _head(setting.cost_profile)
        shared = frozenset(cost_profile.layer_names) - {head.name}

        def task_of(samples: int) -> Task:
            looks: tuple[Pass, ...] = ()
            if self.align_epochs:
                (aligned,), _ = self._alignment().amount(np.array([samples]), cost_profile.drop_single)
                backward = cost_profile.train_flops(frozenset({head.name})) - cost_profile.forward_flops()
                flops = float(aligned) * float(backward - head.input_grad_flops)  # backward passes below the head
                seen = samples + int(aligned)
                looks = (Pass("forward", samples=seen), Pass("flops", times=flops)) if seen else ()
            return Task(
                local_sgd=(setting.training.local_sgd(view.round),),
                down=Payload(layers=shared),
                up=Payload(layers=shared if self.global_head == "none" else None, extra_bytes=_TRACE_BYTES),
                passes=(Pass(), Pass("train", samples=samples), *looks),
            )

        return Plan.by_kind(ids.tolist(), setting.samples[ids].tolist(), task_of)

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy from the aligned base and the device's own head."""
        return LocalRule((LocalPhase(),), on_start=self._start, on_finish=_finish)

    def aggregate(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the mean of the bases by trace, without devices whose trace is not finite."""
        told = [update for update in updates if math.isfinite(update.statistics["trace"])]
        aggregate = super().aggregate(state, global_model, told, server, key)
        left_out = len(updates) - len(told) + aggregate.metrics.get("left_out", 0.0)
        return aggregate._replace(metrics={**aggregate.metrics, "left_out": float(left_out)}) if left_out else aggregate

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the mean of the bases by trace with a head by `global_head`."""
        traces = np.array([update.statistics["trace"] for update in updates])
        q = shares_of_traces(traces, np.array([update.weight for update in updates]))
        model = server.mean(global_model, updates, q.tolist())
        if self.global_head == "average":
            head = _head(server.setting.cost_profile).name
            heads = selected(global_model, lambda name: layer_of(name) == head)
            model = replaced(model, server.mean(heads, updates, self.update_weights(updates, server.setting)))
        return Aggregate(state, model, metrics=noted(updates, trace=traces, q=q))

    def _alignment(self) -> LocalSGD:
        return LocalSGD(batch=self.align_batch, lr=self.align_lr, epochs=self.align_epochs)

    def _start(self, context: Context) -> LocalState:
        """Return the base received, aligned with the old one, and the device's own head."""
        received, old = context.global_model, context.device_state
        if old is None:
            old = context.first if self.first_old == "initial" else _joined(received, context.first, context)
        old = context.copy(old)
        local = LocalState(_joined(context.copy(received), old, context))
        if not self.align_epochs or not len(context.shard):
            return local
        local.scratch = _prototypes(old, context)
        run_local_sgd(
            local, self._alignment(), LocalPhase(loss=self._distance), context, context.key.at(JobStream.ALIGNMENT)
        )
        return local

    def _distance(self, local: LocalState, batch: Batch, context: Context) -> Tensor:
        """Return the distance of the features of a batch from the prototypes; the head takes no part."""
        _, z = context.features(local.weights, batch.x)
        labels, means = local.scratch.labels, local.scratch.means
        if self.align_loss == "sample":
            return F.mse_loss(z, means[torch.searchsorted(labels, batch.y)])
        loss = z.new_zeros(())
        for label, mean in zip(labels.tolist(), means, strict=True):
            of_class = z[batch.y == label]
            if len(of_class):
                found = of_class.mean(dim=0, keepdim=True) if self.align_loss == "class_mean" else of_class
                loss = loss + F.mse_loss(found, mean.expand_as(found))
        return loss


def shares_of_traces(traces: Arr, weights: Arr) -> Arr:
    """Return each model's share in the mean, shape (k,), sum 1: trace times weight, or weight if all traces are 0."""
    counts = traces * weights
    counts = counts if counts.sum() > 0 else weights
    shares: Arr = counts / counts.sum()
    return shares


def _head(cost_profile: Any) -> Any:
    """Return the last layer of a model that has parameters. Raises ConfigError if no layer comes before it."""
    *before, head = (layer for layer in cost_profile.layers if layer.params)
    if not before:
        raise ConfigError(
            f"model.name: {cost_profile.model} has one layer, {head.name}; needed is a base below the last layer"
        )
    return head


def _joined(global_model: ModelState, headed: ModelState, context: Context) -> dict[str, dict[str, Tensor]]:
    """Return a model of the shared layers of one model and the head of another, with the same tensors."""
    assert context.task.down is not None and context.task.down.layers is not None
    shared = context.task.down.layers
    return named(lambda name, t, own: t if layer_of(name) in shared else own, model_in(global_model), headed)


class _Prototypes(NamedTuple):
    """Scratch of the alignment: the labels of a device, int64 (k,), ascending; mean features, (k, features)."""

    labels: Tensor
    means: Tensor


def _prototypes(old: ModelState, context: Context) -> _Prototypes:
    """Return the mean features of the device's classes in the test of a model."""
    augmenting = torch.Generator().manual_seed(context.key.at(JobStream.PROTOTYPES).word())
    batches = [context.batch(places, augmenting) for places in torch.split(torch.arange(len(context.shard)), CHUNK)]
    z = torch.cat([context.tested_features(old, batch.x)[1] for batch in batches])
    y = torch.cat([batch.y for batch in batches])
    labels = torch.unique(y)
    return _Prototypes(labels, torch.stack([z[y == label].mean(dim=0) for label in labels]))


def _finish(local: LocalState, context: Context) -> Finished:
    """Return the model to send and to keep, unless it diverged, and the trace of its Fisher information.

    The trace is the sum over batches of the squared norm of the gradient of the mean loss, as in a test.
    """
    w = local.weights
    key, once = context.key.at(JobStream.FISHER), LocalSGD(batch=context.task.local_sgd[0].batch, lr=0.0, epochs=1)
    augmenting = torch.Generator().manual_seed(key.at(1).word())
    trained = context.bind(w)
    trace = 0.0
    with context.as_in_a_test():
        for positions in batch_order(key.at(0), len(context.shard), once, drop_single=False):
            slopes = gradients(objective_loss(w, context.batch(positions, augmenting), context), trained)
            trace += sum(float(g.double().square().sum()) for g in slopes)
    return Finished(w, finite_or_none(model_in(w)), {"trace": trace})


PLUGINS = {"fedas": FedAS}
