"""COMET: devices with models of their own learn from those whose answers on public samples are like theirs.

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
    """Scratch of a job: what its cluster said, the order in which public samples are taken, and how many were."""

    answers: Tensor
    order: Tensor
    taken: int = 0


@dataclass(frozen=True, kw_only=True)
class Comet(PublicAnswers):
    """Devices send logits on public samples; a device is drawn to the mean logits of its cluster while it trains.

    The server sorts what came into `clusters` by k-means over all logits of a device as one vector, and a device is
    told the mean of its cluster at its next job. The loss of a step there is the cross-entropy on its own batch plus
    `lam` times the mean squared distance of its logits from that mean, over as many public samples and all classes. A
    device that was not heard yet trains on its own data alone; who did not come in a round is told once more what its
    cluster said when it last came. There is no global model: the one that runs report stays the first, so
    `evaluation.personal` tells how devices do. K-means begins with devices drawn at random and ends when no device
    changes its cluster, after 20 passes at most; 3 FLOPs for each pass, device, cluster and number are the server's.

    Differs: what the server tells and how public samples are drawn is from memory, not checked against the text.
    Clusters are those of the devices that came in a round. A step holds activations of two batches, its own and the
    public one, but `memory` is priced for one.
    """

    public_samples: Count = 500  # training samples, used without labels, that all devices have
    """Ours. Drawn at random, and no device's own."""
    clusters: Count = 3  # of devices
    """Ours. With 1 all devices are drawn to the mean of all."""
    lam: NonNegativeFactor = 1.0  # of the distance to the cluster's logits; 0: devices train alone
    """Ours; the paper tunes it."""
    needs: ClassVar[Needs] = Needs(device_state="delivered", networks=True, feedback=True)
    no_server_optimizer: ClassVar[str] = "has no global model"

    def init(self, setting: Setting, key: Key) -> Any:
        """Return a server that has heard nobody."""
        super().init(setting, key)
        return {"clusters": {}}

    def told_to(self, device: int, state: Any, view: View) -> str:
        """Return the name of what a device's cluster said; "": the device was not heard yet."""
        told: str = state["clusters"].get(device, "")
        return told

    def task(self, view: View) -> Task:
        """Return the task of a device that was not heard yet."""
        return self.task_of(view, "")

    def task_of(self, view: View, told: str) -> Task:
        """Return a task in which every step has as many public samples as own ones, if the device is told anything."""
        task = super().task_of(view, told)
        looking = Pass("forward", samples=self.public_samples)
        return replace(task, passes=(Pass(times=2.0), looking)) if told and self.lam else task

    # --- on the device --------------------------------------------------------------------------------------------

    def local(self, task: Task) -> LocalRule:
        """Return training that is drawn to the cluster's logits."""
        rule = super().local(task)
        drawn = LocalPhase(loss=self._loss if task.name == AGREE and self.lam else None)
        return replace(rule, phases=(drawn,), on_start=self._begin)

    def _begin(self, context: Context) -> LocalState:
        local = self.own_model(context)
        if context.task.name != AGREE:
            return local
        order = context.key.at(JobStream.PUBLIC).numpy().permutation(self.public_samples)
        return LocalState(local.weights, _Told(self.told(context), torch.from_numpy(order)))

    def _loss(self, local: LocalState, batch: Batch, context: Context) -> Tensor:
        """Return the cross-entropy plus the distance on the next public samples, which come round and round."""
        told, own = local.scratch, objective_loss(local.weights, batch, context)
        places = told.order[torch.arange(told.taken, told.taken + len(batch.y)) % len(told.order)]
        told.taken += len(batch.y)
        places = places.to(told.answers.device)
        logits = context.forward(local.weights, context.public.x[places])
        return own + self.lam * self.distance(logits, told.answers[places])

    def answer(self, logits: Tensor) -> Tensor:
        """Return the logits."""
        return logits

    def distance(self, logits: Tensor, told: Tensor) -> Tensor:
        """Return the mean squared distance."""
        return F.mse_loss(logits, told)

    # --- on the server --------------------------------------------------------------------------------------------

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the model that was, with what each cluster said."""
        said = said_by(updates)
        rows = said.flatten(1).double()
        places, passes = k_means(rows, min(self.clusters, len(rows)), key)
        names = [f"{ANSWERS}_{server.round}_{place}" for place in places.tolist()]
        new = {name: said[places == place].mean(dim=0) for name, place in zip(names, places.tolist(), strict=True)}
        clusters = {**state["clusters"], **{u.device: name for u, name in zip(updates, names, strict=True)}}
        told = {**global_model.get(TENSORS, {}), **new}
        told = {name: told[name] for name in sorted(set(clusters.values()))}  # others nobody will ask for
        flops = 3.0 * passes * rows.numel() * min(self.clusters, len(rows))
        return Aggregate({"clusters": clusters}, {**global_model, TENSORS: told}, flops)


def k_means(rows: Tensor, clusters: int, key: Key) -> tuple[Tensor, int]:
    """Return the cluster of each row, shape (rows,), numbered without gaps, and how many passes it took to find them.

    Lloyd's algorithm from rows that the key draws; a row as near to two means goes to the first. A mean without rows
    stays where it is.
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
