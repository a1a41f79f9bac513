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

from edgesim.contracts import (
    Arr,
    Bundle,
    Encoding,
    Ids,
    LocalPhase,
    LocalRule,
    Merged,
    Message,
    Needs,
    Order,
    Part,
    Pass,
    Payload,
    Plan,
    Setting,
    Task,
    View,
)
from edgesim.errors import ConfigError
from edgesim.learning import masks
from edgesim.learning.context import Batch, Context
from edgesim.learning.merge import finite, is_finite, mean_of_holders
from edgesim.learning.rules import cross_entropy
from edgesim.learning.trace import layer_of
from edgesim.numbers import PositiveNumber
from edgesim.rng import Key

_SQUARES = "squares"  # kind of the squared gradients
_MODEL = Payload().kinds


class Seconds(NamedTuple):
    """How long a round of the mean device takes: `rest`, and for every weight of a layer `per_weight` more."""

    rest: float
    per_weight: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class PruneFL:
    """FedAvg with one mask for all, which the server chooses anew after every `interval` rounds.

    A device adds up the gradients of a round's steps, squares the sums and multiplies them by the samples it saw; it
    keeps their total over the rounds in which it delivered, outside the mask too, until it sends it. Of every layer the
    smallest weights, a share `reconsidered` that halves every `half_life` rounds, and all that are pruned are
    candidates; others stay. In the order of squares over seconds a candidate joins while its ratio exceeds that of all
    that are there. A weight that comes back starts from 0. In the first `initial_rounds` only the fastest device
    trains, and the mask is chosen after each of them. `bitmap`: where encodings send masks, the server does so only if
    they have "changed", or "always". The notes hold the `density` of the new model.
    """

    interval: Annotated[int, Ge(1)] = 50
    reconsidered: Annotated[float, Ge(0), Lt(1)] = 0.3
    half_life: PositiveNumber = 10000.0
    initial_rounds: Annotated[int, Ge(0)] = 0
    bitmap: Literal["changed", "always"] = "changed"
    needs: ClassVar[Needs] = Needs(feedback=True, keep="delivered")

    def init(self, setting: Setting, key: Key) -> Any:
        """Return a server whose model is whole. Raises ConfigError for a model without weights to prune."""
        if not any(layer.weights for layer in setting.card.layers):
            raise ConfigError(f"model.name: {setting.card.model} has no tensor of two dimensions or more to prune")
        setting.cost.check(widths=0)
        return {"nonzero": {}, "changed": -1, "squares": {}}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train under the mask, and before a new choice to send their squares."""
        setting = view.setting
        ids = _fastest(view) if view.round < self.initial_rounds else view.choose(key)
        part = Part("pruned", nnz=tuple(state["nonzero"].items())) if state["nonzero"] else Part()
        known = self.bitmap == "changed" and state["changed"] != view.round - 1
        down = Payload(encoding=masks.wire(setting.encoding_down, known))
        reports = self._chooses_after(view.round + 1)
        up = _upload(setting, part, reports)
        stretches = (setting.training.stretch(view.round),)
        tasks: dict[float, Task] = {}
        orders = []
        for device, flops in zip(ids.tolist(), dense_flops(setting, part, ids).tolist(), strict=True):
            passes = (Pass(), Pass("flops", times=flops)) if flops else (Pass(),)
            task = Task("report" if reports else "train", "server", part, stretches, down, up, passes)
            orders.append(Order(device, tasks.setdefault(flops, task)))
        return Plan(tuple(orders))

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy under a mask, which adds up gradients as they are without it."""
        return LocalRule((LocalPhase(loss=_counted, adjust=_summed),), start=_start, finish=_finish)

    def merge(self, state: Any, base: Bundle, got: Sequence[Message], view: View, tools: Any, key: Key) -> Merged:
        """Return the mean of the models by data size, under a new mask if devices sent their squares."""
        usable, notes = finite(got)
        if not usable:
            return Merged(state, None, notes=notes)
        models = [m._replace(body={kind: m.body[kind] for kind in m.body if kind in _MODEL}) for m in usable]
        mean = mean_of_holders(masks.without_masks(base), models, [m.samples * m.weight for m in usable])
        mask, squares = masks.masks_in(base), _added(state["squares"], usable)
        state = {**state, "squares": squares}
        if squares and self._chooses_after(view.round + 1):
            share = self.share(view.round + 1)
            mask = chosen(mean["params"], mask, squares, share, seconds_of(view.setting))
            nonzero = dict(masks.nonzeros(masks.counts_of(mask)))
            state = {"nonzero": nonzero, "changed": view.round, "squares": {}}
        if not mask:
            return Merged(state, mean, notes={"density": 1.0, **notes})
        size = sum(m.numel() for m in mask.values())
        density = sum(state["nonzero"].values()) / size
        return Merged(state, masks.with_masks(masks.applied(mean, mask), mask), notes={"density": density, **notes})

    def share(self, t: int) -> float:
        """Return the share of active weights that are reconsidered after round `t`, counted from 1."""
        return float(self.reconsidered * 0.5 ** (t / self.half_life))

    def _chooses_after(self, t: int) -> bool:
        return t <= self.initial_rounds or t % self.interval == 0


def seconds_of(setting: Setting) -> Seconds:
    """Return the time model of the mean device: 6 FLOPs a use of a weight and sample, 4 bytes each way.

    The rest is what a round takes without any weight: other work, biases and running statistics, latency.
    """
    card, speed = setting.card, float(setting.flops_per_s.mean())
    samples = float(setting.samples.mean()) * setting.training.local_epochs
    s_per_bit = 1 / float(setting.up_bps.mean()) + 1 / float(setting.down_bps.mean())
    empty = Part(nnz=tuple((layer.name, 0) for layer in card.layers if layer.weights))
    rest = samples * card.train_flops(empty, sparse="ideal") / speed + 2 * float(setting.latency_s.mean())
    rest += 8 * card.nbytes(Payload(), empty, Encoding(zeros="known")) * s_per_bit
    per_weight = {
        layer.name: 3 * layer.forward_flops / layer.weights * samples / speed + 32 * s_per_bit
        for layer in card.layers
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
        count = int(active.sum())
        stay = count - math.floor(share * count + 1e-9)
        protected[name] = masks.largest(weight.abs().masked_fill(~active, -1.0), stay)
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


def dense_flops(setting: Setting, part: Part, ids: Ids) -> Arr:
    """Return what the weights' own gradients cost devices beyond the price of their masked part, shape (k,).

    Backward makes them whole, pruned ones too. Of a layer they take what forward does, so that what the cost model
    saves on forward is what it must not save on them. Nothing where it saves nothing on zeros.
    """
    card, cost, stretch = setting.card, setting.cost, setting.training.stretch(0)
    samples, steps = (a.astype(float) for a in stretch.amount(setting.samples[ids], card.drop_single))
    total = samples * 0.0
    counts = dict(part.nnz)
    for layer in (layer for layer in card.layers if layer.name in counts):
        masked = Part(nnz=((layer.name, counts[layer.name]),))
        prices = [cost.flops(card, Pass("forward"), each, samples, steps) for each in (Part(), masked)]
        total = total + (prices[0] - prices[1]) * layer.weight_grad_flops / layer.forward_flops
    return total


def _fastest(view: View) -> Ids:
    """Return the fastest device that is there, shape (1,)."""
    place = int(view.setting.flops_per_s[view.idle].argmax())
    return view.idle[place : place + 1]


def _added(total: Mapping[str, Tensor], got: Sequence[Message]) -> dict[str, Tensor]:
    """Return a total, float64, with the squares that were sent. Those that come late wait there for the next choice."""
    result = dict(total)
    for sent in (message.body[_SQUARES] for message in got if _SQUARES in message.body):
        result = {name: result[name] + square if result else square.double() for name, square in sent.items()}
    return result


def _upload(setting: Setting, part: Part, reports: bool) -> Payload:
    """Return what devices send. The server knows the mask; squares are whole, at extra bytes for what it covers."""
    encoding = masks.wire(setting.encoding_up, known=True)
    model = Payload(encoding=encoding)
    if not reports:
        return model
    squares, both = frozenset({_SQUARES}), Payload(kinds=_MODEL | {_SQUARES}, encoding=encoding)
    usual, card = setting.encoding_up, setting.card
    wanted = card.nbytes(model, part, usual) + card.nbytes(Payload(kinds=squares, encoding=encoding), Part(), usual)
    return Payload(both.kinds, extra_bytes=wanted - card.nbytes(both, part, usual), encoding=encoding)


def _start(base: Bundle, own: Bundle | None, context: Context) -> Bundle:
    """Return the model to train and, as kinds that are not sent, its masks, sums of gradients and samples seen."""
    w = context.copy(masks.without_masks(base))
    mask = {name: m.to(w["params"][name].device) for name, m in masks.masks_in(base).items()}
    return {
        **masks.with_masks(w, mask),
        "sum": {name: torch.zeros_like(w["params"][name]) for name in context.trained},
        "seen": {"samples": torch.zeros((), dtype=torch.int64)},
    }


def _counted(w: Bundle, batch: Batch, context: Context) -> Tensor:
    w["seen"]["samples"].add_(len(batch.y))
    return cross_entropy(w, batch, context)


def _summed(grads: list[Tensor], w: Bundle, context: Context) -> list[Tensor]:
    for name, gradient in zip(context.trained, grads, strict=True):
        w["sum"][name].add_(gradient)
    return masks.masked_gradients(grads, w, context)


def _finish(w: Bundle, context: Context) -> tuple[Bundle, Bundle | None, dict[str, Any]]:
    """Return the model, and what is kept: the squares so far, none if they were sent. Not after a divergence."""
    samples, before = float(w["seen"]["samples"]), (context.own or {}).get(_SQUARES, {})
    squares = {name: (total.square() * samples).cpu() for name, total in w["sum"].items()}
    squares = {name: square + before[name] if before else square for name, square in squares.items()}
    if context.task.name == "report":
        return {**w, _SQUARES: squares}, {}, {}
    kept = {_SQUARES: squares}
    return w, (kept if is_finite(kept) else None), {}


PARTS = {"prunefl": PruneFL}
