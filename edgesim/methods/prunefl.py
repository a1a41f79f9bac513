"""PruneFL: the mask is chosen so that a second of training lowers the loss most, by squared gradients.

Source: Y. Jiang, S. Wang, V. Valls, B. J. Ko, W.-H. Lee, K. K. Leung and L. Tassiulas, "Model Pruning Enables Efficient
Federated Learning on Edge Devices" (2022) and its authors' published code; as a baseline of the FedDHAD paper (arXiv
2507.10430).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from annotated_types import Ge, Lt
from torch import Tensor

from edgesim.core.arrays import Arr, Ids
from edgesim.core.encoding import Encoding
from edgesim.core.errors import ConfigError
from edgesim.core.limits import Count, CountOrZero, PositiveFactor
from edgesim.core.method import Aggregate, Finished, LocalPhase, LocalRule, LocalState, Method, Needs, ServerContext
from edgesim.core.rng import Key
from edgesim.core.task import Pass, Payload, Plan, Submodel, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.aggregate.mean import is_finite
from edgesim.learning.models.trace import layer_of
from edgesim.learning.submodel import masks
from edgesim.learning.train.context import Batch, Context
from edgesim.learning.train.rules import objective_loss

_SQUARES = "squares"  # kind of the squared gradients
_MODEL = Payload().collections


class Seconds(NamedTuple):
    """How long a round of the mean device takes: `rest`, and for every weight of a layer `per_weight` more."""

    rest: float
    per_weight: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class PruneFL(Method):
    """FedAvg with one mask for all, which the server chooses anew after every `interval` rounds.

    A device adds up the gradients of a round's steps, squares the sums and multiplies them by the samples it saw; it
    keeps their total over the rounds in which it delivered, outside the mask too, until it sends it. Of every layer the
    smallest weights, a share `reconsidered` that halves every `half_life` rounds, and all that are pruned are
    candidates; others stay. In the order of squares over seconds a candidate joins while its ratio exceeds that of all
    that are there. A weight that comes back starts from 0. In the first `initial_rounds` only the fastest device
    trains, and the mask is chosen after each of them. `bitmap`: where encodings send masks, the server does so only if
    they have "changed", or "always". The metrics hold the `density` of the new model.

    The authors measured how long a weight takes on their devices. Here it is 6 FLOPs a use and sample at the mean speed
    and 4 bytes each way at the mean rates, for a device with the mean number of samples; a round without weights is the
    rest. All devices of a round report where it ends in a choice, of every round in which they delivered since they
    last did; others report when next they are in such a round. What they keep takes as many bytes as a model, which no
    memory limit counts. Reports are whole, whatever the mask. Backward makes weight gradients whole too: on hardware
    that skips zeros they cost as much as in the whole model. As the mask follows from training, the method does not run
    on the null backend.
    """

    interval: Count = 50
    """Jiang et al.; the mask is chosen after rounds 50, 100, ... Squares that come late wait for the next choice."""
    reconsidered: Annotated[float, Ge(0), Lt(1)] = 0.3
    """The same: of every layer's weights that are there; rounded down here."""
    half_life: PositiveFactor = 10000.0
    """The same, in rounds."""
    initial_rounds: CountOrZero = 0
    """At first one device prunes alone, with rules for accuracy and density of its own to start and stop. The FedDHAD
    paper does not say whether its baseline does. Kept is the idea: so many rounds of the fastest device that is
    there, at their price, each followed by a choice.
    """
    bitmap: Literal["changed", "always"] = "changed"
    """A mask is sent if it changed. Who missed that round would need it later, which nobody counts: `"always"` does.
    Only where `encoding` sends masks (`zeros` other than `"sent"`). Of what the server sends; it knows the masks of
    what it gets.
    """
    needs: ClassVar[Needs] = Needs(feedback=True, device_state="delivered", clock=True)
    no_server_optimizer: ClassVar[str] = masks.ZEROS_STAY
    no_update_encoding: ClassVar[str] = masks.ZEROS_GO

    def init(self, setting: Setting, key: Key) -> Any:
        """Return a server whose model is whole. Raises ConfigError for a model without weights to prune."""
        if not any(layer.weights for layer in setting.cost_profile.layers):
            raise ConfigError(
                f"model.name: {setting.cost_profile.model} has no tensor of two dimensions or more to prune"
            )
        super().init(setting, key)
        return {"nonzero": {}, "changed": -1, "squares": {}}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train under the mask, and before a new choice to send their squares."""
        setting = view.setting
        ids = _fastest(view) if view.round < self.initial_rounds else view.choose(key)
        submodel = Submodel("pruned", nnz=tuple(state["nonzero"].items())) if state["nonzero"] else Submodel()
        known = self.bitmap == "changed" and state["changed"] != view.round - 1
        down = Payload(encoding=masks.wire(setting.encoding_down, known))
        reports = self._chooses_after(view.round + 1)
        up = _upload(setting, submodel, reports)
        local_sgd = (setting.training.local_sgd(view.round),)

        def task_of(flops: float) -> Task:
            passes = (Pass(), Pass("flops", times=flops)) if flops else (Pass(),)
            return Task("report" if reports else "train", "server", submodel, local_sgd, down, up, passes)

        return Plan.by_kind(ids.tolist(), dense_flops(setting, submodel, ids).tolist(), task_of)

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy under a mask, which adds up gradients as they are without it."""
        return LocalRule((LocalPhase(loss=_counted, adjust_gradients=_summed),), on_start=_start, on_finish=_finish)

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the mean of the models by data size, under a new mask if devices sent their squares."""
        models = [m._replace(body={kind: m.body[kind] for kind in m.body if kind in _MODEL}) for m in updates]
        mean = server.mean(masks.without_masks(global_model), models, self.update_weights(updates, server.setting))
        mask, squares = masks.masks_in(global_model), _added(state["squares"], updates)
        state = {**state, "squares": squares}
        if squares and self._chooses_after(server.round + 1):
            share = self.share(server.round + 1)
            mask = chosen(mean["params"], mask, squares, share, seconds_of(server.setting))
            nonzero = dict(masks.nonzeros(masks.counts_of(mask)))
            state = {"nonzero": nonzero, "changed": server.round, "squares": {}}
        if not mask:
            return Aggregate(state, mean, metrics={"density": 1.0})
        density = sum(state["nonzero"].values()) / sum(m.numel() for m in mask.values())
        return Aggregate(state, masks.with_masks(masks.applied(mean, mask), mask), metrics={"density": density})

    def share(self, t: int) -> float:
        """Return the share of active weights that are reconsidered after round `t`, counted from 1."""
        return float(self.reconsidered * 0.5 ** (t / self.half_life))

    def _chooses_after(self, t: int) -> bool:
        return t <= self.initial_rounds or t % self.interval == 0


def seconds_of(setting: Setting) -> Seconds:
    """Return the time model of the mean device: 6 FLOPs a use of a weight and sample, 4 bytes each way.

    The rest is what a round takes without any weight: other work, biases and running statistics, latency.
    """
    setting = setting.of_members()
    cost_profile, speed = setting.cost_profile, float(setting.flops_per_s.mean())
    trained, _ = setting.training.local_sgd(0).amount(setting.samples, setting.cost_profile.drop_single)
    samples = float(trained.mean())
    s_per_bit = 1 / float(setting.up_bps.mean()) + 1 / float(setting.down_bps.mean())
    empty = Submodel(nnz=tuple((layer.name, 0) for layer in cost_profile.layers if layer.weights))
    rest = samples * cost_profile.train_flops(empty, sparse="ideal") / speed + 2 * float(setting.latency_s.mean())
    rest += 8 * cost_profile.nbytes(Payload(), empty, Encoding(zeros="known")) * s_per_bit
    per_weight = {
        layer.name: 3 * layer.forward_flops / layer.weights * samples / speed + 32 * s_per_bit
        for layer in cost_profile.layers
        if layer.weights
    }
    return Seconds(rest, per_weight)


def chosen(
    params: Mapping[str, Tensor], old: masks.Masks, squares: Mapping[str, Tensor], share: float, seconds: Seconds
) -> dict[str, Tensor]:
    """Return the masks whose squared gradients are largest for the seconds of a round, by parameter name.

    `old`: masks so far, none if the model is whole. `squares`: of every parameter, float64. `share`: of each tensor's
    active weights, rounded down, that may go.
    """
    protected: dict[str, Tensor] = {}
    for name, weight in ((name, t) for name, t in params.items() if t.dim() >= 2):
        active = old.get(name, torch.ones_like(weight, dtype=torch.bool))
        count = masks.how_many(active)
        stay = count - math.floor(share * count + 1e-9)
        protected[name] = masks.largest(weight.abs(), stay, among=active)
    gain, spent = 0.0, seconds.rest
    for name, square in squares.items():
        gain += float(square[protected[name]].sum() if name in protected else square.sum())
    each = {name: seconds.per_weight[layer_of(name)] for name in protected}
    spent += sum(each[name] * int(mask.sum()) for name, mask in protected.items())
    candidates = torch.cat([squares[name][~mask] for name, mask in protected.items()])
    cost = torch.cat([torch.full_like(squares[name][~mask], each[name]) for name, mask in protected.items()])
    sizes = [int((~mask).sum()) for mask in protected.values()]
    joined = torch.split(worthwhile(candidates, cost, gain, spent), sizes)
    return {
        name: mask.masked_scatter(~mask, join) for (name, mask), join in zip(protected.items(), joined, strict=True)
    }


def worthwhile(squares: Tensor, seconds: Tensor, gain: float, spent: float) -> Tensor:
    """Return which candidates join, bool, shape (k,): in falling order of squares over seconds, while that is more
    than the gain over the seconds spent of all that are there already.
    """
    ratio = squares / seconds
    order = torch.sort(ratio, descending=True, stable=True).indices
    gains, spents = gain + squares[order].cumsum(0), spent + seconds[order].cumsum(0)
    before = torch.cat([torch.tensor([gain / spent], dtype=ratio.dtype), (gains / spents)[:-1]])[: len(ratio)]
    joins = torch.zeros(len(ratio), dtype=torch.bool)
    joins[order] = (ratio[order] > before).cumprod(0).bool()
    return joins


def dense_flops(setting: Setting, submodel: Submodel, ids: Ids) -> Arr:
    """Return what the weights' own gradients cost devices beyond the price of their masked part, shape (k,).

    Backward makes them whole, pruned ones too. Of a layer they take what forward does, so that what the cost model
    saves on forward is what it must not save on them. Nothing where it saves nothing on zeros.
    """
    cost_profile, cost, sgd = setting.cost_profile, setting.cost, setting.training.local_sgd(0)
    samples, steps = (a.astype(float) for a in sgd.amount(setting.samples[ids], cost_profile.drop_single))
    total = samples * 0.0
    counts = dict(submodel.nnz)
    for layer in (layer for layer in cost_profile.layers if layer.name in counts):
        masked = Submodel(nnz=((layer.name, counts[layer.name]),))
        prices = [cost.flops(cost_profile, Pass("forward"), each, samples, steps) for each in (Submodel(), masked)]
        total = total + (prices[0] - prices[1]) * layer.weight_grad_flops / layer.forward_flops
    return total


def _fastest(view: View) -> Ids:
    """Return the fastest device that is there, shape (1,)."""
    place = int(view.setting.flops_per_s[view.idle].argmax())
    return view.idle[place : place + 1]


def _added(total: Mapping[str, Tensor], updates: Sequence[Update]) -> dict[str, Tensor]:
    """Return a total, float64, with the squares that were sent. Those that come late wait there for the next choice."""
    result = dict(total)
    for sent in (message.body[_SQUARES] for message in updates if _SQUARES in message.body):
        result = {name: result[name] + square if result else square.double() for name, square in sent.items()}
    return result


def _upload(setting: Setting, submodel: Submodel, reports: bool) -> Payload:
    """Return what devices send. The server knows the mask; squares are whole, at extra bytes for what it covers."""
    encoding = masks.wire(setting.encoding_up, known=True)
    model = Payload(encoding=encoding)
    if not reports:
        return model
    squares, both = frozenset({_SQUARES}), Payload(collections=_MODEL | {_SQUARES}, encoding=encoding)
    usual, cost_profile = setting.encoding_up, setting.cost_profile
    wanted = cost_profile.nbytes(model, submodel, usual) + cost_profile.nbytes(
        Payload(collections=squares, encoding=encoding), Submodel(), usual
    )
    return Payload(both.collections, extra_bytes=wanted - cost_profile.nbytes(both, submodel, usual), encoding=encoding)


@dataclass(slots=True)
class _Sums(masks.Masked):
    """Scratch of a job: the mask, the sums of gradients by parameter, and the samples seen."""

    sums: dict[str, Tensor]
    samples: int = 0


def _start(context: Context) -> LocalState:
    """Return the model to train, its masks, and sums at zero."""
    received = context.global_model
    w = context.copy(masks.without_masks(received))
    mask = {name: m.to(w["params"][name].device) for name, m in masks.masks_in(received).items()}
    return LocalState(w, _Sums(mask, {name: torch.zeros_like(w["params"][name]) for name in context.trained}))


def _counted(local: LocalState, batch: Batch, context: Context) -> Tensor:
    """Return the cross-entropy and count the samples."""
    local.scratch.samples += len(batch.y)
    return objective_loss(local.weights, batch, context)


def _summed(grads: list[Tensor], local: LocalState, context: Context) -> list[Tensor]:
    """Return gradients under the mask, and add them up as they are without it."""
    for name, gradient in zip(context.trained, grads, strict=True):
        local.scratch.sums[name].add_(gradient)
    return masks.masked_gradients(grads, local, context)


def _finish(local: LocalState, context: Context) -> Finished:
    """Return the model, and what is kept: the squares so far, none if they were sent. Not after a divergence."""
    samples, before = float(local.scratch.samples), (context.device_state or {}).get(_SQUARES, {})
    squares = {name: (total.square() * samples).cpu() for name, total in local.scratch.sums.items()}
    squares = {name: square + before[name] if before else square for name, square in squares.items()}
    if context.task.name == "report":
        return Finished({**local.weights, _SQUARES: squares}, {})
    kept = {_SQUARES: squares}
    return Finished(local.weights, kept if is_finite(kept) else None)


PLUGINS = {"prunefl": PruneFL}
