"""PruneFL: one pruning mask for all devices, chosen by squared gradients to lower the loss most per second of training.

Source: Y. Jiang, S. Wang, V. Valls, B. J. Ko, W.-H. Lee, K. K. Leung and L. Tassiulas, "Model Pruning Enables Efficient
Federated Learning on Edge Devices" (2022) and its authors' published code; as a baseline of the FedDHAD paper (arXiv
2507.10430).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from annotated_types import Ge, Lt
from torch import Tensor

from edgesim.core.arrays import Arr, Ids
from edgesim.core.encoding import Encoding
from edgesim.core.errors import ConfigError
from edgesim.core.limits import Count, CountOrZero, PositiveFactor
from edgesim.core.method import Aggregate, Finished, LocalPhase, LocalRule, LocalState, Method, Needs, ServerContext
from edgesim.core.model_state import MODEL, mapped, model_in, plus
from edgesim.core.rng import Key
from edgesim.core.task import Pass, Payload, Plan, Submodel, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.aggregate.mean import finite_or_none
from edgesim.learning.models.trace import layer_of
from edgesim.learning.submodel import masks
from edgesim.learning.train.context import Batch, Context
from edgesim.learning.train.rules import objective_loss

_SQUARES = "squares"  # kind of the squared gradients


class Seconds(NamedTuple):
    """Seconds that a round of the mean device takes: `rest`, plus `per_weight` for every weight of a layer."""

    rest: float
    per_weight: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class PruneFL(Method):
    """FedAvg with one pruning mask for all devices, which the server chooses anew after every `interval` rounds.

    A device adds up the gradients of a round's steps, squares the sums and multiplies them by the number of samples it
    saw. It keeps the total of these squares, also of pruned weights, over the rounds in which it delivered, until it
    sends the total. The candidates of a new mask are all pruned weights and the smallest weights of every layer, a
    share `reconsidered` that halves every `half_life` rounds. All other weights stay. Candidates are tried in falling
    order of squares over seconds. One joins while its ratio exceeds the ratio of all weights already in the mask. A
    weight that comes back starts from 0. In the first `initial_rounds` only the fastest device trains, and the mask is
    chosen after each of them. `bitmap`: where encodings send masks, the server sends a mask only if it has "changed",
    or "always". The metrics hold the `density` of the new model.

    The authors measured how long a weight takes on their devices. Here a weight takes 6 FLOPs a use and sample at the
    mean speed, and 4 bytes each way at the mean rates, for a device with the mean number of samples. A round without
    weights is the rest. In a round that ends in a choice all its devices report. A report covers every round in which
    the device delivered since its last report. Other devices report in their next round of this kind. The kept squares
    take as many bytes as a model, and no memory limit counts them. Reports cover all weights, whatever the mask.
    Backward also makes whole weight gradients: on hardware that skips zeros they cost as much as in the whole model. As
    the mask follows from training, the method does not run on the null backend.

    Family: pruning. Formula: `the mask keeps the weights with the most squared gradient for each second of training`.
    Paper: arXiv 1909.12326.
    """

    interval: Count = 50
    """Jiang et al. The mask is chosen after rounds 50, 100, ... Squares that come late wait for the next choice."""
    reconsidered: Annotated[float, Ge(0), Lt(1)] = 0.3
    """Jiang et al.: a share of the unpruned weights of every layer. Rounded down here."""
    half_life: PositiveFactor = 10000.0
    """Jiang et al., in rounds."""
    initial_rounds: CountOrZero = 0
    """In the paper one device first prunes alone, with rules for accuracy and density to start and stop. The FedDHAD
    paper does not say whether its baseline does. Here the fastest reachable device trains alone for this number of
    rounds, at their price, and a choice follows each of them.
    """
    bitmap: Literal["changed", "always"] = "changed"
    """A mask is sent if it changed. A device that missed that round would need the mask later, and these bytes are not
    counted. `"always"` counts them. It matters only where `encoding` sends masks (`zeros` other than `"sent"`), and
    only for what the server sends: the server knows the masks of the models it receives.
    """
    needs: ClassVar[Needs] = Needs(feedback=True, device_state="delivered", clock=True)
    no_server_optimizer: ClassVar[str] = masks.ZEROS_STAY
    no_update_encoding: ClassVar[str] = masks.ZEROS_GO

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the state of a server with a whole model. Raises ConfigError for a model without weights to prune."""
        if not any(layer.weights for layer in setting.cost_profile.layers):
            raise ConfigError(
                f"model.name: {setting.cost_profile.model} has no tensor of two dimensions or more to prune"
            )
        super().init(setting, key)
        return {"nonzero": {}, "changed": -1, "squares": {}}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train under the mask, and before a new choice to send their squares."""
        setting = view.setting
        if view.round < self.initial_rounds:
            fastest = int(setting.flops_per_s[view.idle].argmax())
            ids = view.idle[fastest : fastest + 1]
        else:
            ids = view.choose(key)
        submodel = Submodel("pruned", nnz=tuple(state["nonzero"].items())) if state["nonzero"] else Submodel()
        known = self.bitmap == "changed" and state["changed"] != view.round - 1
        down = Payload(encoding=masks.wire(setting.encoding_down, known))
        up = Payload(encoding=masks.wire(setting.encoding_up, known=True))  # the server knows the mask
        reports = self._chooses_after(view.round + 1)
        if reports:
            # squares are whole: those of pruned weights come as extra bytes
            usual, nbytes = setting.encoding_up, setting.cost_profile.nbytes
            squares = Payload(collections=frozenset({_SQUARES}), encoding=up.encoding)
            both = Payload(collections=squares.collections.union(MODEL), encoding=up.encoding)
            wanted = nbytes(up, submodel, usual) + nbytes(squares, Submodel(), usual)
            up = replace(both, extra_bytes=wanted - nbytes(both, submodel, usual))
        local_sgd = (setting.training.local_sgd(view.round),)

        def task_of(flops: float) -> Task:
            passes = (Pass(), Pass("flops", times=flops)) if flops else (Pass(),)
            return Task("report" if reports else "train", "server", submodel, local_sgd, down, up, passes)

        return Plan.by_kind(ids.tolist(), dense_flops(setting, submodel, ids).tolist(), task_of)

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy under a mask, which adds up the gradients before masking."""
        return LocalRule((LocalPhase(loss=_counted, adjust_gradients=_summed),), on_start=_start, on_finish=_finish)

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the mean of the models by data size, under a new mask if devices sent their squares."""
        models = [m._replace(body=model_in(m.body)) for m in updates]
        mean = server.mean(masks.without_masks(global_model), models, self.update_weights(updates, server.setting))
        mask, squares = masks.masks_in(global_model), dict(state["squares"])  # late squares wait for the next choice
        for sent in (message.body[_SQUARES] for message in updates if _SQUARES in message.body):
            squares = (
                mapped(lambda new, old: old + new, sent, squares) if squares else mapped(lambda new: new.double(), sent)
            )
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
        """Return the share of unpruned weights that are reconsidered after round `t`, counted from 1."""
        return float(self.reconsidered * 0.5 ** (t / self.half_life))

    def _chooses_after(self, t: int) -> bool:
        return t <= self.initial_rounds or t % self.interval == 0


def seconds_of(setting: Setting) -> Seconds:
    """Return the time model of the mean device: 6 FLOPs a use of a weight and sample, 4 bytes each way.

    The rest is the time of a round without any weight: other work, biases, running statistics and latency.
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
    """Return the masks with the largest squared gradients per second of a round, by parameter name.

    `old`: masks so far, none if the model is whole. `squares`: squared gradients of every parameter, float64. `share`:
    share of each tensor's unpruned weights, rounded down, that may be pruned.
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
    """Return a mask of the candidates that join, bool, shape (k,).

    Candidates join in falling order of squares over seconds, as long as this ratio exceeds the gain over the seconds
    spent of all weights already there.
    """
    ratio = squares / seconds
    order = torch.sort(ratio, descending=True, stable=True).indices
    gains, spents = gain + squares[order].cumsum(0), spent + seconds[order].cumsum(0)
    before = torch.cat([torch.tensor([gain / spent], dtype=ratio.dtype), (gains / spents)[:-1]])[: len(ratio)]
    joins = torch.zeros(len(ratio), dtype=torch.bool)
    joins[order] = (ratio[order] > before).cumprod(0).bool()
    return joins


def dense_flops(setting: Setting, submodel: Submodel, ids: Ids) -> Arr:
    """Return the FLOPs of the gradients of pruned weights on each device, shape (k,).

    Backward computes the gradients of pruned weights too. In a layer the weight gradients take as many FLOPs as
    forward, so the saving of the cost model on forward is the saving that weight gradients must not have. Zero where
    the cost model saves nothing on zeros.
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


@dataclass(slots=True)
class _Sums(masks.UnderMask):
    """Scratch of a job: the mask, the sums of gradients by parameter, and the number of samples seen."""

    sums: dict[str, Tensor]
    samples: int = 0


def _start(context: Context) -> LocalState:
    received = context.global_model
    w = context.copy(masks.without_masks(received))
    mask = {name: m.to(w["params"][name].device) for name, m in masks.masks_in(received).items()}
    return LocalState(w, _Sums(mask, {name: torch.zeros_like(w["params"][name]) for name in context.trained}))


def _counted(local: LocalState, batch: Batch, context: Context) -> Tensor:
    """Return the cross-entropy and count the samples."""
    local.scratch.samples += len(batch.y)
    return objective_loss(local.weights, batch, context)


def _summed(grads: list[Tensor], local: LocalState, context: Context) -> list[Tensor]:
    """Add up the gradients, and return them under the mask."""
    for name, gradient in zip(context.trained, grads, strict=True):
        local.scratch.sums[name].add_(gradient)
    return masks.masked_gradients(grads, local, context)


def _finish(local: LocalState, context: Context) -> Finished:
    """Return the model to send and the squares to keep: none after they are sent, the old ones after a divergence."""
    samples, before = float(local.scratch.samples), (context.device_state or {}).get(_SQUARES, {})
    squares = mapped(lambda total: (total.square() * samples).cpu(), local.scratch.sums)
    squares = plus(squares, before) if before else squares
    if context.task.name == "report":
        return Finished({**local.weights, _SQUARES: squares}, {})
    return Finished(local.weights, finite_or_none({_SQUARES: squares}))


PLUGINS = {"prunefl": PruneFL}
