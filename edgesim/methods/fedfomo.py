"""FedFomo: each device downloads models of others and moves towards those that do better on its validation data.

Source: Zhang, Sapra, Fidler, Yeung and Alvarez, "Personalized Federated Learning with First Order Model Optimization"
(ICLR 2021), equations 3 to 5, and its authors' published code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from annotated_types import Ge, Lt
from torch import Tensor

from edgesim.core.backend import CHUNK
from edgesim.core.limits import CountOrZero, Share
from edgesim.core.method import Aggregate, Finished, LocalPhase, LocalRule, LocalState, Method, Needs, ServerContext
from edgesim.core.model_bank import ModelBank
from edgesim.core.model_state import mapped, model_in, moves, norm
from edgesim.core.rng import JobStream, Key, PlanStream
from edgesim.core.task import Pass, Payload, Plan, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.aggregate.mean import finite_or_none
from edgesim.learning.train.context import Context
from edgesim.methods.augfl import split_sizes
from edgesim.methods.fedjs import noted

BANK = ModelBank("device")  # the last model of each device
_WEIGHT_BYTES = 4
_WEIGH_FLOPS = 5.0  # a parameter of each model that is weighed: a difference, its square, a sum; a product, a sum

Affinity: TypeAlias = Mapping[int, Mapping[int, float]]  # device -> other device -> sum of its weights so far


class _Kind(NamedTuple):
    """The facts that devices with the same task share."""

    samples: int
    new: bool  # the server has never had a model of theirs
    others: tuple[int, ...]  # devices whose models they download, ascending


@dataclass(frozen=True, kw_only=True)
class FedFomo(Method):
    """Personal models: each device mixes its own model with `downloads` models of others that help it.

    A device keeps a share `validation` of its samples, always the same ones, out of training. In its turn it starts
    from b, the model from which its last training started. The candidates are the model that its last training ended
    with and the models of others that it downloads. The weight of a candidate is (loss of b - its own loss) / its
    distance from b, with losses on the validation samples. Negative weights count as 0, and the rest is scaled to a sum
    of 1. The device moves from b by this share of the way to each candidate, and stays at b if none is better. Then it
    trains and sends its model with the weights. `offered`: the models of the "last_round" in which any arrived, or the
    "newest" model of every device. Each download is, with probability `epsilon` less `epsilon_decay` for every round so
    far, a random one of these. Otherwise it is the model with the highest sum of weights that the device gave it so
    far; ties are broken at random. A new device starts from the global model, the mean of the round's models by data
    size. No other device receives the global model. `evaluation.personal` tests the model that a device trained last,
    or the global model if it had no turn. The metric `from_others` is the share of the weights that models of others
    have.

    A device keeps a new model only if its update arrives. The distance is the Euclidean one of all parameters as one
    vector, as printed. The published code takes the sum of absolute differences, and it scales weights before it adds
    them up; the paper does not. A device with too few samples to set any apart trains and validates on all of them. A
    model whose loss is not finite has no weight. The server stores the models of a round as part of the global model.

    Family: personal models. Formula: `w_i <- b + sum_j p_j (w_j - b), p_j ~ max((loss(b) - loss(w_j)) / |w_j - b|, 0)`.
    Paper: arXiv 2012.08565.
    """

    downloads: CountOrZero = 4
    """The published commands have 4 and 9 models of others, which is "5 and 10 models" with the device's own."""
    validation: Annotated[float, Ge(0), Lt(1)] = 0.2
    """The published commands train on 0.8 of the samples. At 0 a device trains and validates on all of them."""
    epsilon: Share = 0.3
    """The published commands."""
    epsilon_decay: Share = 0.05
    """The published commands subtract it for every local epoch. Here it is subtracted for every round."""
    offered: Literal["last_round", "newest"] = "last_round"
    """In the published code the models uploaded in a round can be downloaded in the next. `"newest"` keeps more models
    on the server, so that the choice stays large when few devices take part in a round.
    """
    # plan() reads which devices have a model on the server, and their weights
    needs: ClassVar[Needs] = Needs(device_state="delivered", feedback=True)
    uses_kept_model: ClassVar[bool] = True
    no_server_optimizer: ClassVar[str] = "has a model for each device, of which a server optimiser would move none"

    def init(self, setting: Setting, key: Key) -> Any:
        """Return a server that has no models and no weights, and the seed of the validation samples."""
        super().init(setting, key)
        return {"seed": key.exact_word(), "known": [], "offered": [], "affinity": {}}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to weigh models of others and to train. Devices of the same kind share a task."""
        setting, ids = view.setting, view.choose(key)
        known, epsilon = frozenset(state["known"]), max(0.0, self.epsilon - self.epsilon_decay * view.round)

        def kind(device: int) -> _Kind:
            others = [other for other in state["offered"] if other != device]
            draws = key.at(PlanStream.DEVICES, device).numpy()
            chosen = chosen_of(others, state["affinity"].get(device, {}), self.downloads, epsilon, draws)
            return _Kind(int(setting.samples[device]), device not in known, tuple(sorted(chosen)))

        devices = ids.tolist()
        return Plan.by_kind(devices, map(kind, devices), partial(self._task, view, state["seed"]))

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy from the weighted model."""

        def finish(local: LocalState, context: Context) -> Finished:
            start = local.scratch.start
            kept = {**local.weights, "start_params": start["params"], "start_buffers": start["buffers"]}
            weights = np.array(local.scratch.weights, dtype=np.float32)
            return Finished(local.weights, finite_or_none(kept), {"weights": weights})

        return LocalRule((LocalPhase(),), on_start=_start, on_finish=finish)

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the models that arrived and their mean, and the state with the weights that devices gave."""
        mean = server.mean(model_in(global_model), updates, self.update_weights(updates, server.setting))
        sent = {update.device: update.body for update in updates}
        offered = sorted(sent if self.offered == "last_round" else {*state["offered"], *sent})
        models: dict[str, Any] = {}
        for device in offered:
            models |= BANK.put(device, sent[device] if device in sent else BANK.get(global_model, device))
        affinity = {device: dict(row) for device, row in state["affinity"].items()}
        shares = np.zeros(len(updates))  # of the positive weights, those of others' models; 0 without any
        for place, update in enumerate(updates):
            row, others = affinity.setdefault(update.device, {}), _others(update.task)
            weights = update.statistics["weights"]
            for other, weight in zip(others, weights.tolist(), strict=False):
                row[other] = row.get(other, 0.0) + weight
            positive = np.maximum(weights, 0.0)
            total = float(positive.sum())
            shares[place] = float(positive[: len(others)].sum()) / total if total else 0.0
        new = {**state, "known": sorted({*state["known"], *sent}), "offered": offered, "affinity": affinity}
        return Aggregate(new, {**mean, **models}, metrics=noted(updates, from_others=shares))

    def _task(self, view: View, seed: int, kind: _Kind) -> Task:
        setting = view.setting
        weighed = len(kind.others) + (not kind.new)
        looked_at, trained_on = self._sizes(kind.samples, setting.cost_profile)
        looks = Pass("forward", times=weighed + 1, samples=looked_at)
        mixes = Pass("param_step", times=_WEIGH_FLOPS * weighed, samples=1)
        return Task(
            local_sgd=(setting.training.local_sgd(view.round),),
            held_out=kind.samples - trained_on,
            down=BANK.payload(kind.others, setting, whole=kind.new),
            up=Payload(extra_bytes=_WEIGHT_BYTES * weighed),
            passes=(Pass(), looks, mixes) if weighed else (Pass(),),
            config={"seed": float(seed), "looked_at": float(looked_at)},
        )

    def _sizes(self, samples: int, cost_profile: Any) -> tuple[int, int]:
        """Return the numbers of samples for validation and for training; all for both if they are too few."""
        if not self.validation:
            return samples, samples
        return split_sizes(samples, self.validation, least=2 if cost_profile.needs_two else 1)


def chosen_of(
    others: Sequence[int], affinity: Mapping[int, float], count: int, epsilon: float, draws: np.random.Generator
) -> list[int]:
    """Return at most `count` of the others, each at random with probability epsilon, else by highest affinity.

    Ties are broken at random. Source: section 3.3 of the paper and its authors' published code.
    """
    left = [others[place] for place in draws.permutation(len(others))]
    found: list[int] = []
    while left and len(found) < count:
        explores = draws.uniform() < epsilon
        best = left[0] if explores else max(left, key=lambda other: affinity.get(other, 0.0))
        left.remove(best)
        found.append(best)
    return found


def weights_of(loss: float, losses: Sequence[float], distances: Sequence[float]) -> list[float]:
    """Return the gain of each model, `loss` less its own, over its distance; 0 where the result is not finite.

    Source: equation 3.
    """
    gains = [(loss - each) / distance if distance else 0.0 for each, distance in zip(losses, distances, strict=True)]
    return [gain if math.isfinite(gain) else 0.0 for gain in gains]


# --- models of devices ------------------------------------------------------------------------------------------


def _others(task: Task) -> list[int]:
    """Return the devices whose models a task downloads, ascending."""
    assert task.down is not None
    return BANK.numbers(task.down)


# --- on the device ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Begun:
    """Scratch of a job: a copy of the model from which training starts, and the weights of the candidates."""

    start: ModelState
    weights: list[float]


def _start(context: Context) -> LocalState:
    """Return the model to train, with the validation samples left out of the device's data."""
    kept, received = context.device_state, context.global_model
    base = context.copy(
        model_in(received) if kept is None else {"params": kept["start_params"], "buffers": kept["start_buffers"]}
    )
    candidates = [context.copy(BANK.get(received, other)) for other in _others(context.task)]
    if kept is not None:
        candidates.append(context.copy(model_in(kept)))
    order = Key(int(context.task.config["seed"])).at(context.device).numpy().permutation(len(context.shard))
    looked_at = torch.from_numpy(order[: int(context.task.config["looked_at"])])
    weights: list[float] = []
    if candidates:
        loss, *losses = [_loss(model, looked_at, context) for model in (base, *candidates)]
        weights = weights_of(loss, losses, [norm(moves(model["params"], base["params"])) for model in candidates])
    context.hold_out(looked_at[: context.task.held_out])
    start = _towards(base, candidates, weights)
    return LocalState(start, _Begun(context.copy(start), weights))


def _towards(base: ModelState, candidates: Sequence[ModelState], weights: Sequence[float]) -> ModelState:
    """Return `base` moved towards each candidate by its share of the positive weights."""
    total = math.fsum(max(weight, 0.0) for weight in weights)
    models = [model for model, w in zip(candidates, weights, strict=True) if w > 0]
    shares = [w / total for w in weights if w > 0]

    def moved(t: Tensor, *others: Tensor) -> Tensor:
        return t + sum((s * (other - t) for s, other in zip(shares, others, strict=True)), torch.zeros_like(t))

    return mapped(moved, base, *models)


def _loss(model: ModelState, positions: Tensor, context: Context) -> float:
    """Return the mean loss of a model, as in a test, on some of the device's samples; NaN without any."""
    augmenting = torch.Generator().manual_seed(context.key.at(JobStream.ONE_BATCH, 1).word())
    total = 0.0
    with context.as_in_a_test(), torch.no_grad():
        for places in torch.split(positions.to(context.shard.device), CHUNK):
            if len(places):
                batch = context.batch(places, augmenting)
                total += float(F.cross_entropy(context.forward(model, batch.x), batch.y, reduction="sum"))
    return total / len(positions) if len(positions) else math.nan


PLUGINS = {"fedfomo": FedFomo}
