"""FedAS: devices keep their own last layer, align what they receive with their old features, and count by Fisher trace.

Source: Yang, Huang and Ye, "FedAS: Bridging Inconsistency in Personalized Federated Learning" (CVPR 2024) and its
authors' published code; as a baseline of the FedDHAD paper (arXiv 2507.10430).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor

from edgesim.contracts import (
    Arr,
    Bundle,
    LocalPhase,
    LocalRule,
    Merged,
    Message,
    Needs,
    Order,
    Pass,
    Payload,
    Plan,
    Setting,
    Stretch,
    Task,
    View,
)
from edgesim.errors import ConfigError
from edgesim.learning.context import Batch, Context
from edgesim.learning.loop import batch_order, gradients, train_stretch
from edgesim.learning.merge import finite, is_finite, mean_of_holders
from edgesim.learning.rules import cross_entropy
from edgesim.learning.trace import layer_of
from edgesim.learning.trainer import CHUNK
from edgesim.methods.fedjs import noted, sizes_of
from edgesim.numbers import PositiveNumber
from edgesim.rng import Key

_ALIGN, _FISHER, _PROTOTYPES = 1, 2, 3  # streams of a job's key; its one stretch has stream 0
_TRACE_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class FedAS:
    """Personal models: a base that all share and, on each device, a last layer (head) of its own.

    A device keeps its whole model. When it is asked again it takes the mean features of each class, what enters the
    head, of that old model, and trains the base received towards them: `align_epochs` epochs of plain SGD with
    `align_batch` and `align_lr`. `align_loss`, mean squared differences: "sample", of the samples of a batch to the
    means of their classes; "class", the sum over classes of those of a class; "class_mean", the sum over classes of
    that of the batch's own class mean. Then it trains base and head together as usual, and adds up over the batches of
    one more epoch the squared gradient of the mean loss, as in a test: the trace of its Fisher information. The server
    averages bases by trace; equally if all traces are zero. `global_head`, that of the global model: the mean of the
    devices' by data size ("average") or by trace ("fisher"), for which they send it; with "none" it stays as it was
    drawn and nobody sends one. `first_old`: the old base of a device that has none, the "initial" one of the run or the
    one "received"; its head is always the initial one. A model that diverged is forgotten for the one before.
    `evaluation.personal` tests a device's own model, the global one if it has none yet. A device that stops early
    misses training steps, not the alignment. The notes hold every device's `trace` and weight `q`.
    """

    align_epochs: Annotated[int, Ge(0)] = 1
    align_batch: Annotated[int, Ge(1)] = 16
    align_lr: PositiveNumber = 0.01
    align_loss: Literal["sample", "class", "class_mean"] = "sample"
    global_head: Literal["average", "fisher", "none"] = "average"
    first_old: Literal["initial", "received"] = "initial"
    needs: ClassVar[Needs] = Needs(keep="computed")

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the empty state. Raises ConfigError for a model of a single layer, or batches that are too small."""
        setting.cost.check(widths=0)
        if self.align_epochs:
            setting.card.check_batch("method.align_batch", self.align_batch)
        _head(setting.card)
        return {}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to align, to train and to tell their trace."""
        setting, ids = view.setting, view.choose(key)
        tasks: dict[int, Task] = {}
        for samples in set(setting.samples[ids].tolist()):
            tasks[samples] = self._task(setting, view.round, samples)
        return Plan(tuple(Order(d, tasks[int(setting.samples[d])]) for d in ids.tolist()))

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy from the aligned base and the device's own head."""
        return LocalRule((LocalPhase(loss=cross_entropy),), start=self._start, finish=_finish)

    def merge(self, state: Any, base: Bundle, got: Sequence[Message], view: View, tools: Any, key: Key) -> Merged:
        """Return the mean of the bases by trace with a head by `global_head`; the old model stays if nothing came."""
        usable, notes = finite([m for m in got if math.isfinite(m.signals["trace"])])
        if len(usable) < len(got):
            notes = {"left_out": float(len(got) - len(usable))}
        if not usable:
            return Merged(state, None, notes=notes)
        traces = np.array([m.signals["trace"] for m in usable])
        q = shares_of_traces(traces, np.array([m.weight for m in usable]))
        model = mean_of_holders(base, usable, q.tolist())
        if self.global_head == "average":
            head = _head(view.setting.card).name
            heads = {kind: {n: t for n, t in ts.items() if layer_of(n) == head} for kind, ts in base.items()}
            mean = mean_of_holders(heads, usable, sizes_of(usable).tolist())
            model = {kind: {**tensors, **mean[kind]} for kind, tensors in model.items()}
        return Merged(state, model, notes={**noted(usable, trace=traces, q=q), **notes})

    def personal(self, base: Bundle, own: Bundle | None) -> Bundle:
        """Return a device's own model, the global one if it has none yet."""
        return base if own is None else own

    # --- orders and what they cost ------------------------------------------------------------------------------

    def _task(self, setting: Setting, round_: int, samples: int) -> Task:
        """Return the task of devices with so many samples; its download names the layers that are shared."""
        card, head = setting.card, _head(setting.card)
        shared = frozenset(card.layer_names) - {head.name}
        seen, flops = 0, 0.0
        if self.align_epochs:
            (aligned,), _ = self._alignment().amount(np.array([samples]), card.drop_single)
            seen, flops = samples + int(aligned), float(aligned) * _base_backward_flops(card, head)
        looks = (Pass("forward", samples=seen), Pass("flops", times=flops)) if seen else ()
        return Task(
            stretches=(setting.training.stretch(round_),),
            down=Payload(layers=shared),
            up=Payload(layers=shared if self.global_head == "none" else None, extra_bytes=_TRACE_BYTES),
            passes=(Pass(), Pass("train", samples=samples), *looks),
        )

    def _alignment(self) -> Stretch:
        return Stretch(batch=self.align_batch, lr=self.align_lr, epochs=self.align_epochs)

    # --- on the device ------------------------------------------------------------------------------------------

    def _start(self, base: Bundle, own: Bundle | None, context: Context) -> Bundle:
        """Return the base received, aligned with the old one, and the device's own head."""
        old = own
        if old is None:
            old = context.first if self.first_old == "initial" else _joined(base, context.first, context)
        old = context.copy(old)
        w = _joined(context.copy(base), old, context)
        if not self.align_epochs or not len(context.shard):
            return w
        aligning = {**w, "prototypes": _prototypes(old, context)}
        train_stretch(aligning, self._alignment(), LocalPhase(loss=self._distance), context, context.key.at(_ALIGN))
        return w

    def _distance(self, w: Bundle, batch: Batch, context: Context) -> Tensor:
        """Return how far the features of a batch are from the prototypes; the head takes no part."""
        _, z = context.features(w, batch.x)
        labels, means = w["prototypes"]["labels"], w["prototypes"]["means"]
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
    """Return each model's share in the mean, shape (k,), sum 1: its trace times its weight, its weight if all are 0."""
    counts = traces * weights
    counts = counts if counts.sum() > 0 else weights
    shares: Arr = counts / counts.sum()
    return shares


def _head(card: Any) -> Any:
    """Return the last layer of a model's card that has parameters. Raises ConfigError if no layer comes before it."""
    *before, head = (layer for layer in card.layers if layer.params)
    if not before:
        raise ConfigError(f"model.name: {card.model} has one layer, {head.name}; needed is a base below the last layer")
    return head


def _base_backward_flops(card: Any, head: Any) -> float:
    """Return the FLOPs per sample of a backward pass that starts below the head."""
    return float(card.train_flops(frozenset({head.name})) - card.forward_flops() - head.input_grad_flops)


def _joined(base: Bundle, headed: Bundle, context: Context) -> dict[str, dict[str, Tensor]]:
    """Return a model of the shared layers of one and the head of another, the same tensors."""
    assert context.task.down is not None and context.task.down.layers is not None
    shared = context.task.down.layers
    return {
        kind: {name: (t if layer_of(name) in shared else headed[kind][name]) for name, t in base[kind].items()}
        for kind in ("params", "buffers")
    }


def _prototypes(old: Bundle, context: Context) -> dict[str, Tensor]:
    """Return the labels that a device has, int64 (k,), ascending, and the mean features of each, (k, features)."""
    augmenting = torch.Generator().manual_seed(context.key.at(_PROTOTYPES).word())
    batches = [context.batch(places, augmenting) for places in torch.split(torch.arange(len(context.shard)), CHUNK)]
    z = torch.cat([context.tested_features(old, batch.x)[1] for batch in batches])
    y = torch.cat([batch.y for batch in batches])
    labels = torch.unique(y)
    return {"labels": labels, "means": torch.stack([z[y == label].mean(dim=0) for label in labels])}


def _finish(w: Bundle, context: Context) -> tuple[Bundle, Bundle | None, dict[str, Any]]:
    """Return the model to send and to keep, unless it diverged, and the trace of its Fisher information."""
    own = {kind: {name: t.detach().cpu() for name, t in w[kind].items()} for kind in ("params", "buffers")}
    return w, (own if is_finite(own) else None), {"trace": _fisher_trace(w, context)}


def _fisher_trace(w: Bundle, context: Context) -> float:
    """Return the sum over batches of the squared norm of the gradient of the mean loss, as in a test."""
    key, once = context.key.at(_FISHER), Stretch(batch=context.task.stretches[0].batch, lr=0.0, epochs=1)
    augmenting = torch.Generator().manual_seed(key.at(1).word())
    trained = context.bind(w)
    total = 0.0
    with context.as_in_a_test():
        for positions in batch_order(key.at(0), len(context.shard), once, drop_single=False):
            slopes = gradients(cross_entropy(w, context.batch(positions, augmenting), context), trained)
            total += sum(float(g.double().square().sum()) for g in slopes)
    return total


PARTS = {"fedas": FedAS}
