"""IFCA: the server trains several models, and each device trains the one that has the least loss on its data.

Source: Ghosh, Chung, Yin and Ramchandran, "An Efficient Framework for Clustered Federated Learning" (NeurIPS 2020),
algorithm 1, option II (averages of models).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from edgesim.core.limits import Count
from edgesim.core.method import Aggregate, Finished, LocalPhase, LocalRule, LocalState, Method, Needs, ServerContext
from edgesim.core.rng import JobStream, Key
from edgesim.core.task import Pass, Payload, Plan, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.train.context import Context
from edgesim.learning.train.trainer import CHUNK
from edgesim.methods.fedjs import noted

_MODEL = ("params", "buffers")


@dataclass(frozen=True, kw_only=True)
class IFCA(Method):
    """A model for each of `clusters` groups of devices, which nobody knows. A device gets them all in every round.

    It trains the one of the least mean loss on its data, as in a test, and sends it with its number; of equal ones the
    first. The server averages those of each cluster by data size; a model that nobody chose stays. The first cluster
    starts from the first model of the run, and each other one from that with the entries of every parameter tensor
    shuffled, which is as good a draw where these are drawn alike. A device uses the newest model of the cluster that it
    chose last, of the first one until its first turn: `evaluation.personal` tests it. The run's own accuracy is that
    of the first cluster. The metric `cluster` is each device's choice, counted from 0. With one cluster it is FedAvg,
    bit for bit.

    Averages of gradients, option I of the paper, are FedSGD's and not here. The paper tries several sets of first
    models and keeps the best; here a study tries several seeds.
    """

    clusters: Count = 2  # k of the paper
    """Ghosh et al. take as many as their data have: 2 or 4 rotations of MNIST, 2 of CIFAR-10, and 2 or 3 for FEMNIST,
    where nobody knows.
    """
    needs: ClassVar[Needs] = Needs(device_state="computed")
    no_server_optimizer: ClassVar[str] = "has several models, of which a server optimiser would move the first alone"
    no_update_encoding: ClassVar[str] = (
        "has several models, and the server learns only with an update which one it is of"
    )

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the seed from which the first models of all clusters but one are drawn."""
        super().init(setting, key)
        return {"seed": key.exact_word()}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to choose a model and train it; those with equally many samples share a task."""
        if self.clusters == 1:
            return super().plan(state, view, key)
        ids = view.choose(key)
        task_of = partial(self._task, view, state["seed"])
        return Plan.by_kind(ids.tolist(), view.setting.samples[ids].tolist(), task_of)

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy from the model of the least loss."""
        if self.clusters == 1:
            return super().local(task)
        return LocalRule((LocalPhase(),), on_start=self._start, on_finish=_finish)

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the mean of the models of each cluster."""
        if self.clusters == 1:
            return super().combine(state, global_model, updates, server, key)
        chosen = [int(update.statistics["cluster"]) for update in updates]
        model: dict[str, Any] = {}
        for number, old in enumerate(models_of(global_model, self.clusters, state["seed"])):
            own = [update for update, cluster in zip(updates, chosen, strict=True) if cluster == number]
            new = server.mean(old, own, self.update_weights(own, server.setting)) if own else old
            model |= new if number == 0 else _packed(new, number)
        return Aggregate(state, model, metrics=noted(updates, cluster=np.array(chosen)))

    def personal_model(self, global_model: ModelState, device_state: ModelState | None) -> ModelState:
        """Return the newest model of the cluster that a device chose last, of the first one if it never did."""
        if device_state is None:
            return {kind: global_model[kind] for kind in _MODEL}
        chosen = device_state["choice"]
        return models_of(global_model, self.clusters, int(chosen["seed"]))[int(chosen["cluster"])]

    def _task(self, view: View, seed: int, samples: int) -> Task:
        """Return the task of devices with so many samples, which look at all of them with each model."""
        setting, others = view.setting, range(1, self.clusters)
        # a collection of a method's own is priced as parameters: running statistics come on top
        statistics = setting.cost_profile.nbytes(
            Payload(collections=frozenset({"buffers"})), usual=setting.encoding_down
        )
        collections = frozenset({*_MODEL, *map(_collection, others)})
        return replace(
            super().task(view),
            down=Payload(collections=collections, extra_bytes=statistics * len(others)),
            up=Payload(extra_bytes=math.ceil(math.log2(self.clusters) / 8)),
            passes=(Pass(), Pass("forward", samples=self.clusters * samples)),
            config={"seed": float(seed)},
        )

    def _start(self, context: Context) -> LocalState:
        """Return the model of the least loss to train."""
        seed = int(context.task.config["seed"])
        models = [context.copy(model) for model in models_of(context.global_model, self.clusters, seed)]
        losses = [_loss(model, context) for model in models]
        cluster = min(range(self.clusters), key=lambda number: (not math.isfinite(losses[number]), losses[number]))
        return LocalState(models[cluster], _Choice(cluster, seed))


@dataclass(slots=True)
class _Choice:
    """Scratch of a job: the number of the cluster that the device chose, and the seed of the first models."""

    cluster: int
    seed: int


def models_of(global_model: ModelState, clusters: int, seed: int) -> list[ModelState]:
    """Return the models of all clusters; those that the global model does not carry yet are drawn from the seed."""
    first = {kind: global_model[kind] for kind in _MODEL}
    found: list[ModelState] = [first]
    for number in range(1, clusters):
        held = global_model.get(_collection(number))
        if held is None:
            found.append({**first, "params": _shuffled(first["params"], Key(seed).at(number))})
        else:
            found.append({kind: {name: held[_name(number, name)] for name in ts} for kind, ts in first.items()})
    return found


def _packed(model: ModelState, number: int) -> dict[str, dict[str, Tensor]]:
    """Return the model of a cluster as one collection, with names that no other has."""
    return {_collection(number): {_name(number, name): t for ts in model.values() for name, t in ts.items()}}


def _collection(number: int) -> str:
    return f"cluster_{number}"


def _name(number: int, name: str) -> str:
    return f"{_collection(number)}.{name}"


def _shuffled(params: Any, key: Key) -> dict[str, Tensor]:
    """Return parameters with the entries of each tensor in random order."""
    found = {}
    for place, (name, t) in enumerate(params.items()):
        generator = torch.Generator().manual_seed(key.at(place).word())
        order = torch.randperm(t.numel(), generator=generator).to(t.device)
        found[name] = t.flatten()[order].view(t.shape)
    return found


def _loss(model: ModelState, context: Context) -> float:
    """Return the loss of a model, as in a test, summed over the device's samples."""
    augmenting = torch.Generator().manual_seed(context.key.at(JobStream.ONE_BATCH, 1).word())
    losses = []
    with context.as_in_a_test(), torch.no_grad():
        for positions in torch.split(torch.arange(len(context.shard), device=context.shard.device), CHUNK):
            batch = context.batch(positions, augmenting)
            losses.append(context.objective.summed(context.forward(model, batch.x), batch.y))
    return math.fsum(torch.stack(losses).tolist())


def _finish(local: LocalState, context: Context) -> Finished:
    """Return the model to send with the number of its cluster, which the device keeps."""
    choice = local.scratch
    kept = {"cluster": torch.tensor(choice.cluster), "seed": torch.tensor(choice.seed)}
    return Finished(local.weights, {"choice": kept}, {"cluster": choice.cluster})


PLUGINS = {"ifca": IFCA}
