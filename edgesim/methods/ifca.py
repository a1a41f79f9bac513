"""IFCA: the server keeps several models, and each device trains the model with the least loss on its data.

Source: Ghosh, Chung, Yin and Ramchandran, "An Efficient Framework for Clustered Federated Learning" (NeurIPS 2020),
algorithm 1, option II (averages of models).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch

from edgesim.core.backend import CHUNK
from edgesim.core.limits import Count
from edgesim.core.method import Aggregate, Finished, LocalPhase, LocalRule, LocalState, Method, Needs, ServerContext
from edgesim.core.model_bank import ModelBank
from edgesim.core.model_state import model_in
from edgesim.core.rng import JobStream, Key
from edgesim.core.task import Pass, Payload, Plan, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.train.context import Context
from edgesim.methods.fedjs import noted

_BANK = ModelBank("cluster")  # models of all clusters but the first, whose model is the global one


@dataclass(frozen=True, kw_only=True)
class IFCA(Method):
    """Find `clusters` groups of devices with similar data during training, and train one model for each group.

    In every round a device receives all models. It computes the mean loss of each on its data, as in a test, trains the
    model with the least loss (the first of equal ones) and sends it with its number. The server averages the models of
    each cluster by data size. A model that no device chose stays. The first cluster starts from the first model of the
    run. Each other cluster starts from the same model with the entries of every parameter tensor shuffled, which is
    as good as a new draw if the entries of a tensor are identically distributed. A device uses the newest model of the
    cluster that it chose last, and the model of the first cluster until its first turn: `evaluation.personal` tests it.
    The accuracy of the run is the accuracy of the first cluster. The metric `cluster` is each device's choice, counted
    from 0. With one cluster the method is FedAvg, bit for bit.

    Averaging gradients, option I of the paper, would belong to FedSGD and is not implemented. The paper tries several
    sets of first models and keeps the best. Here a study tries several seeds.

    Family: personal models. Formula: `c_k = argmin_c loss_k(w_c); w_c <- sum_(c_k = c) n_k w_k / sum_(c_k = c) n_k`.
    Paper: arXiv 2006.04088.
    """

    clusters: Count = 2  # k of the paper
    """Ghosh et al. use the number of groups in their data: 2 or 4 rotations of MNIST, 2 of CIFAR-10. For FEMNIST, where
    the number is unknown, they use 2 or 3.
    """
    needs: ClassVar[Needs] = Needs(device_state="computed")
    no_server_optimizer: ClassVar[str] = "has several models, of which a server optimiser would move the first alone"
    no_update_encoding: ClassVar[str] = (
        "has several models, and the server learns only with an update which one it is of"
    )

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the seed for the first models of all clusters except the first cluster."""
        super().init(setting, key)
        return {"seed": key.exact_word()}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to choose a model and train it. Devices with equally many samples share a task."""
        if self.clusters == 1:
            return super().plan(state, view, key)
        usual, down = self.task(view), _BANK.payload(range(1, self.clusters), view.setting)

        def task_of(samples: int) -> Task:
            return replace(
                usual,
                down=down,
                up=Payload(extra_bytes=math.ceil(math.log2(self.clusters) / 8)),
                passes=(Pass(), Pass("forward", samples=self.clusters * samples)),
                config={"seed": float(state["seed"])},
            )

        ids = view.choose(key)
        return Plan.by_kind(ids.tolist(), view.setting.samples[ids].tolist(), task_of)

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy from the model with the least loss."""
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
            model |= _BANK.put(number, new) if number else new
        return Aggregate(state, model, metrics=noted(updates, cluster=np.array(chosen)))

    def personal_model(self, global_model: ModelState, device_state: ModelState | None) -> ModelState:
        """Return the newest model of the cluster that a device chose last, of the first cluster if it never chose."""
        if device_state is None:
            return model_in(global_model)
        chosen = device_state["choice"]
        return models_of(global_model, self.clusters, int(chosen["seed"]))[int(chosen["cluster"])]

    def _start(self, context: Context) -> LocalState:
        seed = int(context.task.config["seed"])
        models = [context.copy(model) for model in models_of(context.global_model, self.clusters, seed)]
        losses = []
        for model in models:  # as in a test, summed over the device's samples
            augmenting = torch.Generator().manual_seed(context.key.at(JobStream.ONE_BATCH, 1).word())
            of_chunks = []
            with context.as_in_a_test(), torch.no_grad():
                for positions in torch.split(torch.arange(len(context.shard), device=context.shard.device), CHUNK):
                    batch = context.batch(positions, augmenting)
                    of_chunks.append(context.objective.summed(context.forward(model, batch.x), batch.y))
            losses.append(math.fsum(torch.stack(of_chunks).tolist()))
        cluster = min(range(self.clusters), key=lambda number: (not math.isfinite(losses[number]), losses[number]))
        return LocalState(models[cluster], _Choice(cluster, seed))


@dataclass(slots=True)
class _Choice:
    """Scratch of a job: the number of the cluster that the device chose, and the seed of the first models."""

    cluster: int
    seed: int


def models_of(global_model: ModelState, clusters: int, seed: int) -> list[ModelState]:
    """Return the models of all clusters.

    A model that is not yet part of the global model is the first model with the entries of each tensor in random order,
    drawn from the seed.
    """
    first = model_in(global_model)
    found: list[ModelState] = [first]
    for number in range(1, clusters):
        if _BANK.collection(number) in global_model:
            found.append(_BANK.get(global_model, number))
            continue
        shuffled = {}
        for place, (name, t) in enumerate(first["params"].items()):
            generator = torch.Generator().manual_seed(Key(seed).at(number).at(place).word())
            order = torch.randperm(t.numel(), generator=generator).to(t.device)
            shuffled[name] = t.flatten()[order].view(t.shape)
        found.append({**first, "params": shuffled})
    return found


def _finish(local: LocalState, context: Context) -> Finished:
    """Return the model to send and the number of its cluster, which the device also keeps."""
    choice = local.scratch
    kept = {"cluster": torch.tensor(choice.cluster), "seed": torch.tensor(choice.seed)}
    return Finished(local.weights, {"choice": kept}, {"cluster": choice.cluster})


PLUGINS = {"ifca": IFCA}
