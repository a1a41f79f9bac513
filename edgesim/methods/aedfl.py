"""AEDFL: asynchronous peers that weigh models by staleness and by learned trust, and train ever sparser networks.

Source: Liu et al., "AEDFL: Efficient Asynchronous Decentralized Federated Learning with Heterogeneous Devices", arXiv
2312.10935. Only the title and abstract of the paper could be read when this was written. They name asynchronous
decentralised training with an aggregation of models, a dynamic staleness-aware model update, and adaptive sparse
training. The formulas of the paper could not be checked. Those below are a reading of these three, and each is a key
with a default of our choice. With `weights = "divergence"` neighbours count as in FedDHAD (arXiv 2507.10430), whose
Table 7 combines the two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from annotated_types import Ge, Lt
from torch import Tensor

from edgesim.core.arrays import Arr
from edgesim.core.errors import ConfigError
from edgesim.core.limits import Count, CountOrZero, NonNegativeFactor, PositiveFactor
from edgesim.core.local_sgd import Training
from edgesim.core.method import Finished, LocalPhase, LocalRule, LocalState, Needs
from edgesim.core.model_state import ModelState, dots, model_in, moves
from edgesim.core.rng import Key
from edgesim.core.task import TENSORS, Order, Payload, Submodel, Task, TensorSpec
from edgesim.core.view import Setting, Turn
from edgesim.learning.aggregate.mean import is_finite
from edgesim.learning.codec.transfer import on_cpu
from edgesim.learning.submodel import masks
from edgesim.learning.train.context import Context
from edgesim.methods.decentralised.own_clocks import OwnClockMethod
from edgesim.methods.weighting.dynamic import js_divergence, shares_of

Weights: TypeAlias = Literal["equal", "samples", "divergence"]
_CLOCK = TensorSpec("clock", (1,), "int32")
_TRUST = "trust"  # collection of what a device keeps: neighbour -> log of its learned weight
_MOST_TRUST = math.log(10.0)  # a neighbour may count ten times as much as by itself, or a tenth


@dataclass(frozen=True, kw_only=True)
class AEDFL(OwnClockMethod):
    """Peers mix the newest models of their neighbours with their own and train, without waiting (from the abstract).

    The weight of model k in the mix is proportional to m_k exp(v_k) / (s_k + 1)^`staleness_a`. The staleness s_k comes
    from clocks that travel with models, 4 bytes each. A job sets its device's clock to the latest clock that the device
    has seen, its own included, plus 1. s_k is the latest clock in the mix less the clock of k, so a device that trained
    for long finds its own model stale. `weights` gives m_k: the same for all, the samples of k's device, or its samples
    over the Jensen-Shannon divergence of its labels from the labels of all devices, at least `d_min`. A device keeps
    v_k for each neighbour (v of itself is 0). v_k starts at 0 and learns. With m the move of a device in training and
    d_k the difference from the mix to model k, v_k grows by `learn` p_k m d_k / (|m| |d_k|), where p_k is the weight.
    This is a step down the loss at the mix, whose derivative in v_k is p_k g d_k, without lengths. |v_k| stays below
    log 10.

    After `prune_from` jobs of its own a device trains under a mask of the largest weights of each tensor of the mix.
    The share of zeros rises over `prune_over` jobs to `sparsity`, fast at first, as 1 - (1 - j / `prune_over`)^3, and
    ERK divides it among tensors. A weight is mixed over the models that have it, in which it is not 0. The bytes that
    zeros save depend on `encoding.up`, the FLOPs on `cost`, as for other sparse methods. Models that are not finite
    are left out.

    Family: peers. Formula: `mix_i = sum_k p_k X_k, p_k ~ m_k exp(v_k) / (s_k + 1)^a, then local SGD from mix_i`.
    """

    fan_in: Count | None = None  # neighbours whose models a device fetches for a job, at random; unset: all
    """The paper was not available for this. The FedDHAD paper says that the graph of AEDFL is exponential."""
    weights: Weights = "samples"
    """FedAvg's weights, as usual. `"divergence"` is the combination with FedDHAD: FedDH's weights with v = 1 and b = 0,
    because its learned degrees need a server. The learned v_k takes their place.
    """
    d_min: PositiveFactor = 0.01
    """As in FedJS and FedDH here."""
    staleness_a: NonNegativeFactor = 0.5  # 0: staleness plays no part
    """The usual power of asynchronous methods such as FedAsync. The paper was not available for this."""
    learn: NonNegativeFactor = 0.1  # 0: weights do not learn
    """The paper was not available for this. "Dynamic" in the abstract is read as learned, as in other work of the
    authors.
    """
    sparsity: Annotated[float, Ge(0), Lt(1)] = 0.5  # share of zeros in the end; 0: models stay whole
    """The paper was not available for this. The abstract has up to 42.3 % less computation."""
    prune_from: CountOrZero = 20
    """The paper was not available for this. As in other sparse training, the first jobs are dense."""
    prune_over: Count = 20
    """The paper was not available for this. The cubic rise is from Zhu and Gupta, "To prune, or not to prune" (2017).
    """
    needs: ClassVar[Needs] = Needs(
        protocols=frozenset({"gossip"}), device_state="computed", peers="any", metadata=frozenset({"labels"})
    )

    @property
    def needs_classes(self) -> str:
        """The reason why labels must be classes, a verb phrase for the error message."""
        return "weighs devices by their classes" if self.weights == "divergence" else ""

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the weight m_k of every device. Raises ConfigError without labels to weigh by, or if no mask fits."""
        super().init(setting, key)
        if self.weights == "divergence" and setting.labels is None:
            raise ConfigError("method.weights: 'divergence' weighs devices by their labels, found no data set")
        if self.sparsity:
            masks.weight_shapes(setting.cost_profile)
        sizes: Arr = setting.samples.astype(np.float64)
        if self.weights == "equal":
            sizes = np.ones(len(sizes))
        elif self.weights == "divergence":
            assert setting.labels is not None
            mean = setting.labels.sum(axis=0) / setting.labels.sum()
            sizes = sizes / np.maximum(js_divergence(shares_of(setting.labels), mean), self.d_min)
        return {"sizes": sizes}

    def next_order(self, state: Any, turn: Turn, key: Key) -> Order:
        """Ask a device to fetch, mix and train."""
        heard = turn.neighbours
        if self.fan_in is not None and self.fan_in < len(heard):
            heard = np.sort(key.numpy().choice(heard, self.fan_in, replace=False))
        inputs, share = tuple(heard.tolist()), self.share_at(turn.nth)
        nnz: tuple[tuple[str, int], ...] = ()
        if share:
            shapes = masks.weight_shapes(turn.setting.cost_profile)
            nnz = masks.nonzeros(masks.kept_counts(shapes, masks.densities(shapes, share, "erk")))
        task = _task(turn.setting.training, turn.round, nnz)
        if self.weights == "equal":
            return Order(turn.device, task, inputs)
        sizes = {(k, turn.device): float(state["sizes"][k]) for k in (*inputs, turn.device)}
        return Order(turn.device, replace(task, mixing=sizes), inputs)

    def share_at(self, nth: int) -> float:
        """Return the share of zeros in the `nth` job of a device, counted from 0."""
        done = min(max(0, nth + 1 - self.prune_from), self.prune_over) / self.prune_over
        return self.sparsity * (1 - (1 - done) ** 3)

    def local(self, task: Task) -> LocalRule:
        """Return SGD from the mix, under a mask where the task has one.

        A device sends its model with its clock, and also keeps its trust in the neighbours.
        """

        def finish(local: LocalState, context: Context) -> Finished:
            scratch: _Mix = local.scratch
            clock = {_CLOCK.name: torch.tensor([scratch.clock + 1], dtype=torch.int32)}
            sent = {**local.weights, TENSORS: clock}
            trust = learned(_trust(context), context.device, scratch, on_cpu(local.weights)["params"], self.learn)
            kept = {str(peer): torch.tensor(v, dtype=torch.float64) for peer, v in sorted(trust.items())}
            return Finished(sent, {**on_cpu(local.weights), TENSORS: clock, _TRUST: kept})

        phase = LocalPhase(adjust_gradients=masks.masked_gradients if task.submodel.nnz else None)
        return LocalRule((phase,), on_start=partial(_mixed, staleness_a=self.staleness_a), on_finish=finish)


@lru_cache(maxsize=256)
def _task(training: Training, round_: int, nnz: tuple[tuple[str, int], ...]) -> Task:
    """Return the task of a round and a mask, always the same object, so that the engine recognises it."""
    return Task(
        start="device",
        local_sgd=(training.local_sgd(round_),),
        submodel=Submodel("sparse", nnz=nnz) if nnz else Submodel(),
        up=Payload(tensors=(_CLOCK,)),
        own_clock="fetch",
    )


# --- on a device ------------------------------------------------------------------------------------------------


class _Model(NamedTuple):
    """A model that a device has for its mix."""

    device: int
    model: ModelState
    clock: int
    sparse: bool = False  # trained under a mask: a weight of 0 is missing


@dataclass(slots=True)
class _Mix:
    """Scratch of a job: the models that it mixed, their weights, and the mix."""

    models: Sequence[_Model]
    weights: Sequence[float]
    model: ModelState  # the mix
    clock: int  # the latest
    mask: Mapping[str, Tensor]  # empty: the whole model is trained


def mix_weights(sizes: Sequence[float], clocks: Sequence[int], trust: Sequence[float], a: float) -> list[float]:
    """Return the weights of models in a mix, which add up to 1: size exp(trust) / (latest clock - clock + 1)^a."""
    latest = max(clocks)
    raw = [m * math.exp(v) * (latest - c + 1.0) ** -a for m, c, v in zip(sizes, clocks, trust, strict=True)]
    return [each / sum(raw) for each in raw]


def _mixed(context: Context, staleness_a: float) -> LocalState:
    """Return the mix of the device's model and the received ones, all that are finite, by device; its own at least."""
    kept, trust = context.device_state, _trust(context)
    sparse = kept is not None and bool(context.task.submodel.nnz)  # a whole model lacks no weights
    own = _Model(context.device, _plain(context.global_model if kept is None else kept), _clock_in(kept), sparse)
    others = [_Model(m.device, _plain(m.body), _clock_in(m.body), bool(m.task.submodel.nnz)) for m in context.received]
    usable = [each for each in (own, *others) if is_finite(each.model)] or [own]
    models = sorted(usable, key=lambda each: each.device)
    sizes = [context.task.mixing.get((each.device, context.device), 1.0) for each in models]
    clocks = [each.clock for each in models]
    weights = mix_weights(sizes, clocks, [trust.get(each.device, 0.0) for each in models], staleness_a)
    bodies = [each.model for each in models]
    held = [masks.support(each.model["params"]) if each.sparse else {} for each in models]
    mean = masks.masked_mean(bodies, held, weights)
    counts = masks.counts_in(context.task.submodel)
    mask = masks.by_magnitude(mean["params"], counts) if counts else {}
    w = context.copy(masks.applied(mean, mask))
    on_device = {name: m.to(w["params"][name].device) for name, m in mask.items()}
    return LocalState(w, _Mix(models, weights, on_cpu(mean), max(clocks), on_device))


def _plain(body: ModelState) -> dict[str, dict[str, Tensor]]:
    return on_cpu(model_in(body))


def _clock_in(body: ModelState | None) -> int:
    """Return the clock that came with a model, 0 with the first one."""
    return int(body[TENSORS][_CLOCK.name][0]) if body is not None and TENSORS in body else 0


def _trust(context: Context) -> dict[int, float]:
    kept = context.device_state
    return {int(peer): float(v) for peer, v in ({} if kept is None else kept[_TRUST]).items()}


def learned(
    trust: Mapping[int, float], device: int, mix: _Mix, after: Mapping[str, Tensor], learn: float
) -> dict[int, float]:
    """Return the trust of a device in its neighbours after a job that came from a mix to the parameters `after`."""
    found, base = dict(trust), mix.model["params"]
    move = moves(after, base)
    for each, p in zip(mix.models, mix.weights, strict=True):
        if each.device == device:
            continue
        step = learn * p * _cosine(move, moves(each.model["params"], base))
        found[each.device] = min(_MOST_TRUST, max(-_MOST_TRUST, found.get(each.device, 0.0) + step))
    return found


def _cosine(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """Return the cosine of the angle between two vectors, 0 if one of them is 0 or not finite."""
    lengths = [math.sqrt(sum(dots(each, each))) for each in (a, b)]
    cosine = sum(dots(a, b)) / (lengths[0] * lengths[1]) if all(lengths) else 0.0
    return cosine if math.isfinite(cosine) else 0.0


PLUGINS = {"aedfl": AEDFL}
