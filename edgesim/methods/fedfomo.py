"""FedFomo: each device downloads models of others, and goes towards those that do better on its own validation data.

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

from edgesim.core.limits import CountOrZero, Share
from edgesim.core.method import Aggregate, Finished, LocalPhase, LocalRule, LocalState, Method, Needs, ServerContext
from edgesim.core.rng import JobStream, Key, PlanStream
from edgesim.core.task import Pass, Payload, Plan, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.aggregate.mean import is_finite
from edgesim.learning.codec.transfer import on_cpu
from edgesim.learning.train.context import Context
from edgesim.learning.train.trainer import CHUNK
from edgesim.methods.augfl import split_sizes
from edgesim.methods.fedjs import noted

_MODEL = ("params", "buffers")
_WEIGHT_BYTES = 4
_WEIGH_FLOPS = 5.0  # a parameter of each model that is weighed: a difference, its square, a sum; a product, a sum

Affinity: TypeAlias = Mapping[int, Mapping[int, float]]  # device -> other device -> sum of its weights so far


class _Kind(NamedTuple):
    """What devices have in common that share a task."""

    samples: int
    new: bool  # the server has never had a model of theirs
    others: tuple[int, ...]  # whose models they download, ascending


@dataclass(frozen=True, kw_only=True)
class FedFomo(Method):
    """A model for each device, made anew in every round of its own last one and of those of `downloads` others.

    A device keeps a share `validation` of its samples, always the same ones, out of training. In its turn it starts
    from b, the model from which its last training started. The candidates are what that training led to, and the models
    of others that it downloads. Each has the weight (loss of b - its own loss) / its distance from b, losses on the
    validation samples; negative ones count as 0, and what is left is scaled to a sum of 1. The device goes from b that
    share of the way to each candidate, not at all if none is better, trains and sends its model with the weights.
    `offered`: models that were sent in the "last_round" in which any came, or the "newest" of every device. Each
    download is with probability `epsilon`, less `epsilon_decay` for every round so far, one of them at random, and else
    the one of the highest sum of weights that the device gave it so far; of equal ones any. A new device starts from
    the global model, the mean of the round's by data size, which nobody else gets. `evaluation.personal` tests what a
    device trained last, the global model if it had no turn. The metric `from_others` is the share of the weights that
    models of others have.

    A device keeps a new model only if its update arrives. The distance is that of all parameters as one vector, as
    printed; the published code takes the sum of absolute differences. That code scales weights before it adds them up,
    the paper does not. Who has too few samples to set any apart trains on all of them and validates on them too. A
    model whose loss is not finite has no weight. The models of a round lie on the server as part of the global model.
    """

    downloads: CountOrZero = 4
    """The published commands have 4 and 9 models of others, "5 and 10 models" with the device's own."""
    validation: Annotated[float, Ge(0), Lt(1)] = 0.2
    """The published commands train on 0.8 of the samples. At 0 all are trained on and validated on."""
    epsilon: Share = 0.3
    """The published commands."""
    epsilon_decay: Share = 0.05
    """The published commands, where it is taken off for every local epoch; here for every round."""
    offered: Literal["last_round", "newest"] = "last_round"
    """The published code: what was uploaded in a round can be downloaded in the next. `"newest"` keeps more models on
    the server, so that few devices a round do not mean few to choose from.
    """
    # plan() reads whose models are there and how they did
    needs: ClassVar[Needs] = Needs(device_state="delivered", feedback=True)
    no_server_optimizer: ClassVar[str] = "has a model for each device, of which a server optimiser would move none"

    def init(self, setting: Setting, key: Key) -> Any:
        """Return a server that has no models and no weights, and the seed of the validation samples."""
        super().init(setting, key)
        return {"seed": key.exact_word(), "known": [], "offered": [], "affinity": {}}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to weigh the models of others and train; equal ones share a task."""
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
        """Return SGD on the cross-entropy from where the weights lead."""
        return LocalRule((LocalPhase(),), on_start=_start, on_finish=_finish)

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the models that arrived and their mean, and the state with the weights that devices gave."""
        old = {kind: global_model[kind] for kind in _MODEL}
        mean = server.mean(old, updates, self.update_weights(updates, server.setting))
        sent = {update.device: update.body for update in updates}
        offered = sorted(sent if self.offered == "last_round" else {*state["offered"], *sent})
        models = {_collection(k): _packed(sent[k], k) if k in sent else global_model[_collection(k)] for k in offered}
        affinity = {device: dict(row) for device, row in state["affinity"].items()}
        for update in updates:
            row = affinity.setdefault(update.device, {})
            for other, weight in zip(_others(update.task), update.statistics["weights"].tolist(), strict=False):
                row[other] = row.get(other, 0.0) + weight
        new = {**state, "known": sorted({*state["known"], *sent}), "offered": offered, "affinity": affinity}
        shares = np.array([_from_others(update) for update in updates])
        return Aggregate(new, {**mean, **models}, metrics=noted(updates, from_others=shares))

    def personal_model(self, global_model: ModelState, device_state: ModelState | None) -> ModelState:
        """Return what a device trained last, the global model if it never did."""
        return {kind: (device_state or global_model)[kind] for kind in _MODEL}

    def _task(self, view: View, seed: int, kind: _Kind) -> Task:
        """Return the task of devices of a kind."""
        setting = view.setting
        profile, number = setting.cost_profile, len(kind.others)
        weighed = number + (not kind.new)
        looked_at, trained_on = self._sizes(kind.samples, profile)
        whole = _MODEL if kind.new else ()
        # a collection of a method's own is priced as parameters: running statistics come on top
        buffers = profile.nbytes(Payload(collections=frozenset({"buffers"})), usual=setting.encoding_down)
        looks = Pass("forward", times=weighed + 1, samples=looked_at)
        moves = Pass("param_step", times=_WEIGH_FLOPS * weighed, samples=1)
        return Task(
            local_sgd=(setting.training.local_sgd(view.round),),
            held_out=kind.samples - trained_on,
            down=Payload(collections=frozenset({*whole, *map(_collection, kind.others)}), extra_bytes=number * buffers),
            up=Payload(extra_bytes=_WEIGHT_BYTES * weighed),
            passes=(Pass(), looks, moves) if weighed else (Pass(),),
            config={"seed": float(seed), "looked_at": float(looked_at)},
        )

    def _sizes(self, samples: int, cost_profile: Any) -> tuple[int, int]:
        """Return how many samples are for validation and how many for training; all for both if they are too few."""
        if not self.validation:
            return samples, samples
        return split_sizes(samples, self.validation, least=2 if cost_profile.needs_two else 1)


def chosen_of(
    others: Sequence[int], affinity: Mapping[int, float], count: int, epsilon: float, draws: np.random.Generator
) -> list[int]:
    """Return at most `count` of the others, each any with probability epsilon, else that of most affinity.

    Among equals any. Source: section 3.3 of the paper and its authors' published code.
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
    """Return how much less each model's loss is than `loss`, over its distance; 0 where that is not finite.

    Source: equation 3.
    """
    gains = [(loss - each) / distance if distance else 0.0 for each, distance in zip(losses, distances, strict=True)]
    return [gain if math.isfinite(gain) else 0.0 for gain in gains]


def _from_others(update: Update) -> float:
    """Return the share of the positive weights of an update that models of others have; 0 if there are none."""
    positive = np.maximum(update.statistics["weights"], 0.0)
    total = float(positive.sum())
    return float(positive[: len(_others(update.task))].sum()) / total if total else 0.0


# --- models of devices ------------------------------------------------------------------------------------------


def _collection(device: int) -> str:
    return f"device_{device}"


def _others(task: Task) -> list[int]:
    """Return the devices whose models a task downloads, ascending."""
    assert task.down is not None
    return sorted(int(name.removeprefix("device_")) for name in task.down.collections if name.startswith("device_"))


def _packed(model: ModelState, device: int) -> dict[str, Tensor]:
    """Return the model of a device as one collection, with names that no other has."""
    return {f"{_collection(device)}.{name}": t for kind in _MODEL for name, t in model.get(kind, {}).items()}


def model_of(global_model: ModelState, device: int) -> ModelState:
    """Return the model of a device whose model the server has."""
    held = global_model[_collection(device)]
    return {kind: {name: held[f"{_collection(device)}.{name}"] for name in global_model[kind]} for kind in _MODEL}


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
        {kind: received[kind] for kind in _MODEL}
        if kept is None
        else {"params": kept["start_params"], "buffers": kept["start_buffers"]}
    )
    candidates = [context.copy(model_of(received, other)) for other in _others(context.task)]
    if kept is not None:
        candidates.append(context.copy({kind: kept[kind] for kind in _MODEL}))
    order = Key(int(context.task.config["seed"])).at(context.device).numpy().permutation(len(context.shard))
    looked_at = torch.from_numpy(order[: int(context.task.config["looked_at"])])
    weights = _weighed(base, candidates, looked_at, context) if candidates else []
    context.hold_out(looked_at[: context.task.held_out])
    start = _towards(base, candidates, weights)
    return LocalState(start, _Begun(context.copy(start), weights))


def _weighed(base: ModelState, candidates: Sequence[ModelState], looked_at: Tensor, context: Context) -> list[float]:
    """Return the weight of each candidate."""
    loss, *losses = [_loss(model, looked_at, context) for model in (base, *candidates)]
    return weights_of(loss, losses, [_distance(model, base) for model in candidates])


def _distance(model: ModelState, other: ModelState) -> float:
    """Return the Euclidean distance of all parameters."""
    squares = [(t.double() - other["params"][name]).square().sum() for name, t in model["params"].items()]
    return math.sqrt(math.fsum(torch.stack(squares).tolist()))


def _towards(base: ModelState, candidates: Sequence[ModelState], weights: Sequence[float]) -> ModelState:
    """Return the model that lies from `base` its share of the positive weights towards each candidate."""
    total = math.fsum(max(weight, 0.0) for weight in weights)
    helpful = [(model, w / total) for model, w in zip(candidates, weights, strict=True) if w > 0]

    def moved(kind: str, name: str, t: Tensor) -> Tensor:
        way = sum((share * (model[kind][name] - t) for model, share in helpful), torch.zeros_like(t))
        return t + way

    return {kind: {name: moved(kind, name, t) for name, t in tensors.items()} for kind, tensors in base.items()}


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


def _finish(local: LocalState, context: Context) -> Finished:
    """Return the model to send with the weights; to keep it and where it started, unless it diverged."""
    start = local.scratch.start
    kept = on_cpu({**local.weights, "start_params": start["params"], "start_buffers": start["buffers"]})
    weights = np.array(local.scratch.weights, dtype=np.float32)
    return Finished(local.weights, kept if is_finite(kept) else None, {"weights": weights})


PLUGINS = {"fedfomo": FedFomo}
