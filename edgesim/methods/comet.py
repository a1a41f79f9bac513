"""COMET: devices with their own models learn from devices with similar answers on public samples.

Source: Cho, Wang, Chirvolu and Joshi, "Communication-Efficient and Model-Heterogeneous Personalized Federated Learning
via Clustered Knowledge Transfer" (2023), first as "Personalized Federated Learning for Heterogeneous Clients with
Clustered Knowledge Transfer" (2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from edgesim.core.limits import Count, NonNegativeFactor
from edgesim.core.method import Aggregate, LocalPhase, LocalRule, LocalState, Needs, ServerContext
from edgesim.core.rng import JobStream, Key
from edgesim.core.task import TENSORS, Pass, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.train.context import Batch, Context
from edgesim.learning.train.rules import objective_loss
from edgesim.methods.distillation.base import AGREE, ANSWERS, PublicAnswers, said_by

_MOST_PASSES = 20  # of k-means


@dataclass(slots=True)
class _Told:
    """Scratch of a job: the answers of its cluster, the order of public samples, and the number taken so far."""

    answers: Tensor
    order: Tensor
    taken: int = 0


@dataclass(frozen=True, kw_only=True)
class Comet(PublicAnswers):
    """For devices with different networks: training pulls a device to the mean logits of its cluster (from memory).

    Devices send logits on public samples. The server sorts them into `clusters` by k-means over all logits of a device
    as one vector, and sends a device the mean of its cluster at its next job. The loss of a step is then the
    cross-entropy on the device's own batch plus `lam` times the mean squared distance of its logits from this mean,
    over equally many public samples and all classes. A device without an earlier update trains on its own data alone. A
    device that missed a round receives again the mean of its cluster from its last update. There is no global model:
    runs report the first model throughout, so the results are those of `evaluation.personal`. K-means begins with
    random devices and ends when no device changes its cluster, after 20 passes at most. The server is charged 3 FLOPs
    for each pass, device, cluster and number.

    Differs: the server's message and the draw of public samples are from memory and were not checked against the text.
    Clusters are formed from the devices of a round. A step holds activations of two batches, its own and the public
    one, but `memory` is priced for one.

    Family: distillation. Formula: `loss_k = CE + lam mean_x |z_k(x) - mean_(j in cluster of k) z_j(x)|^2 on public
    samples x`.
    """

    public_samples: Count = 500  # training samples, used without labels, that all devices have
    """Our choice. Drawn at random, and not part of any device's data."""
    clusters: Count = 3  # number of clusters of devices
    """Our choice. With 1 all devices are pulled to the mean of all."""
    lam: NonNegativeFactor = 1.0  # weight of the distance to the cluster's logits; 0: devices train alone
    """Our choice; the paper tunes it."""
    needs: ClassVar[Needs] = Needs(device_state="delivered", networks=True, feedback=True)
    no_server_optimizer: ClassVar[str] = "has no global model"

    def init(self, setting: Setting, key: Key) -> Any:
        """Return a server without clusters."""
        super().init(setting, key)
        return {"clusters": {}}

    def told_to(self, device: int, state: Any, view: View) -> str:
        """Return the name of the answers of a device's cluster; "": the device has sent no update yet."""
        told: str = state["clusters"].get(device, "")
        return told

    def task(self, view: View) -> Task:
        """Return the task of a device that has sent no update yet."""
        return self.task_of(view, "")

    def task_of(self, view: View, told: str) -> Task:
        """Return a task in which every step has as many public samples as own ones, if the device gets any answers."""
        task = super().task_of(view, told)
        looking = Pass("forward", samples=self.public_samples)
        return replace(task, passes=(Pass(times=2.0), looking)) if told and self.lam else task

    def local(self, task: Task) -> LocalRule:
        """Return training that is pulled to the cluster's logits on the next public samples, which repeat."""

        def start(context: Context) -> LocalState:
            local = self.own_model(context)
            if context.task.name != AGREE:
                return local
            order = context.key.at(JobStream.PUBLIC).numpy().permutation(self.public_samples)
            return LocalState(local.weights, _Told(self.told(context), torch.from_numpy(order)))

        def loss(local: LocalState, batch: Batch, context: Context) -> Tensor:
            told, own = local.scratch, objective_loss(local.weights, batch, context)
            places = told.order[torch.arange(told.taken, told.taken + len(batch.y)) % len(told.order)]
            told.taken += len(batch.y)
            places = places.to(told.answers.device)
            logits = context.forward(local.weights, context.public.x[places])
            return own + self.lam * self.distance(logits, told.answers[places])

        phase = LocalPhase(loss=loss if task.name == AGREE and self.lam else None)
        return replace(super().local(task), phases=(phase,), on_start=start)

    def answer(self, logits: Tensor) -> Tensor:
        """Return the logits."""
        return logits

    def distance(self, logits: Tensor, told: Tensor) -> Tensor:
        """Return the mean squared distance."""
        return F.mse_loss(logits, told)

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the old model with the mean logits of each cluster."""
        said = said_by(updates)
        rows = said.flatten(1).double()
        places, passes = k_means(rows, min(self.clusters, len(rows)), key)
        names = [f"{ANSWERS}_{server.round}_{place}" for place in places.tolist()]
        new = {name: said[places == place].mean(dim=0) for name, place in zip(names, places.tolist(), strict=True)}
        clusters = {**state["clusters"], **{u.device: name for u, name in zip(updates, names, strict=True)}}
        told = {**global_model.get(TENSORS, {}), **new}
        told = {name: told[name] for name in sorted(set(clusters.values()))}  # no device needs others
        flops = 3.0 * passes * rows.numel() * min(self.clusters, len(rows))
        return Aggregate({"clusters": clusters}, {**global_model, TENSORS: told}, flops)


def k_means(rows: Tensor, clusters: int, key: Key) -> tuple[Tensor, int]:
    """Return the cluster of each row, shape (rows,), numbered without gaps, and the number of passes.

    Lloyd's algorithm from random rows. A row as near to two means goes to the first. A mean without rows does not move.
    """
    means = rows[torch.from_numpy(key.numpy().permutation(len(rows))[:clusters].copy())]
    places = torch.full((len(rows),), -1)
    passes, settled = 0, False
    while not settled and passes < _MOST_PASSES:
        passes += 1
        nearest = (rows.unsqueeze(1) - means).square().sum(dim=2).argmin(dim=1)
        settled, places = torch.equal(nearest, places), nearest
        held = [rows[places == c] for c in range(clusters)]
        means = torch.stack([own.mean(dim=0) if len(own) else old for own, old in zip(held, means, strict=True)])
    return torch.unique(places, return_inverse=True)[1], passes


PLUGINS = {"comet": Comet}
