"""HetLoRA: low-rank adapters of different ranks, which devices prune and the server weighs by their norms.

Source: Cho et al., "Heterogeneous LoRA for Federated Fine-tuning of On-Device Foundation Models" (EMNLP 2024, arXiv
2401.06432), section 3, from memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from edgesim.core.job import Job
from edgesim.core.limits import NonNegativeFactor, PositiveShare
from edgesim.core.method import Aggregate, Finished, LocalPhase, LocalRule, LocalState, Needs, ServerContext
from edgesim.core.model_state import ModelState, named, replaced
from edgesim.core.rng import Key
from edgesim.core.task import Pass, Plan, Submodel, Task
from edgesim.core.update import Update
from edgesim.core.view import Setting, View
from edgesim.learning.models.trace import layer_of
from edgesim.learning.train.context import Context
from edgesim.methods.fedjs import noted
from edgesim.methods.lora.adapters import Adapter, adapters_of, pairs_in
from edgesim.methods.lora.ranks import ByRank


@dataclass(frozen=True, kw_only=True)
class HetLoRA(ByRank):
    """Weaker devices train adapters of smaller ranks, and a device gives up ranks that its data do not need.

    A device of rank r gets the first r rows of A and columns of B. Its tail are those from floor(`gamma` r) on. It adds
    `tail_penalty` |B_tail| |A_tail| to its loss, summed over adapters. If this product is smaller after training than
    in the received model, the device sends zeros for the tail, and its rank falls to floor(`gamma` r), but not below
    the smallest of `ranks`. The server fills adapters up with zeros and averages them with `weights` "norm": by the
    Frobenius norm of all products B_k A_k of a device, as one vector. "samples" weighs by data size. If all norms
    are 0, it weighs by data size too. Parameters beside the adapters are averaged by data size. The metric `rank` is
    the rank of each device of the round after training.

    `ranks`: rising, at most the rank of the network's adapters. `tiers`: with "fix" a device keeps a rank that is drawn
    once, in the given `proportions`, equal ones if unset. With "level" devices of level i have the i-th rank. With
    equal ranks, `gamma` 1 and `weights` "samples" it is FedIT, bit for bit.

    The paper does not specify how gamma r is rounded, nor whether the norm is one of each layer. An update has the
    price of the rank that the device was asked for, even if it prunes, because it prunes after training.

    Without training no device prunes. Then times, bytes and joules are those of the first ranks, upper bounds unless
    `gamma` is 1.

    Family: low-rank adapters. Formula: `A <- sum_k |B_k A_k| (A_k, 0) / sum_k |B_k A_k|, B likewise`. Paper: arXiv
    2401.06432.
    """

    gamma: PositiveShare = 0.99  # share of its rank that a device keeps when it prunes; 1 never prunes
    """Cho et al., from memory."""
    tail_penalty: NonNegativeFactor = 0.001  # factor of |B_tail| |A_tail| in the loss
    """Our choice. The value of Cho et al. could not be confirmed."""
    weights: Literal["norm", "samples"] = "norm"
    """Cho et al. weigh by norms."""
    needs: ClassVar[Needs] = Needs(feedback=True)  # the next ranks follow from training

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the rank of every device. Raises ConfigError if ranks do not fit the network."""
        state = super().init(setting, key)
        if self.gamma < 1:
            self.check_cut(adapters_of(setting.cost_profile), self.ranks[0] if self.ranks else 1)
        return state

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train the adapters cut to their ranks, at the price of the penalty."""
        plan, profile = super().plan(state, view, key), view.setting.cost_profile
        priced: dict[int, Task] = {}
        for _, task, *_ in plan.orders:
            if id(task) not in priced:
                tail = sum(
                    (each.rank_in(task.submodel) - kept_of(each.rank_in(task.submodel), self.gamma))
                    * (each.inputs + each.outputs)
                    for each in adapters_of(profile)
                )
                a_parameter = 4 * tail / profile.submodel_params(task.submodel, trained_only=True)
                extra = (Pass("param_step", times=a_parameter),) if tail and self.tail_penalty else ()
                priced[id(task)] = replace(task, passes=(*task.passes, *extra))
        return plan._replace(orders=tuple(order._replace(task=priced[id(order.task)]) for order in plan.orders))

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the loss with the penalty of the tails, which prunes them at the end."""
        if self.gamma == 1:
            return super().local(task)
        return LocalRule((LocalPhase(adjust_gradients=self._pull),), on_finish=self._finish)

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the mean of the adapters filled up with zeros, the mean of other parameters, and the new ranks."""
        adapters = adapters_of(server.setting.cost_profile)
        filled = [_filled(update, adapters, global_model) for update in updates]
        by_samples = self.update_weights(updates, server.setting)
        model = server.mean(global_model, filled, by_samples)
        norms = [update.weight * _norm(update.body["params"], adapters) for update in updates]
        if self.weights == "norm" and sum(norms) > 0:
            names = {name for each in adapters for name in (each.a, each.b)}
            weighed = server.mean(global_model, filled, norms)["params"]
            model = replaced(model, {"params": {name: t for name, t in weighed.items() if name in names}})
        ranks = list(state["rank"])
        for update in updates:
            if update.statistics.get("pruned"):
                smallest = self.ranks[0] if self.ranks else 1
                ranks[update.device] = max(smallest, kept_of(ranks[update.device], self.gamma))
        metrics = noted(updates, rank=np.array([ranks[update.device] for update in updates]))
        return Aggregate({**state, "rank": ranks}, model, metrics=metrics)

    def foreseen(self, state: Any, jobs: Sequence[Job | Update], setting: Setting) -> Any:
        """Return the state with unchanged ranks, as only training prunes."""
        return state

    def merge_flops(self, updates: int, setting: Setting) -> float:
        """Return the FLOPs of the norms of whole adapters."""
        return self.merge_flops_of([Task()] * updates, setting)

    def merge_flops_of(self, tasks: Sequence[Task], setting: Setting) -> float:
        """Return the FLOPs of |B A|^2 = sum of (B^T B) x (A A^T), entry by entry, for the adapters in these tasks."""
        if self.weights == "samples":
            return 0.0
        pairs = [(each, each.rank_in(task.submodel)) for each in adapters_of(setting.cost_profile) for task in tasks]
        return float(sum(2 * rank**2 * (each.inputs + each.outputs + 1) for each, rank in pairs))

    def _tails(self, params: Any) -> list[tuple[str, Tensor, str, Tensor]]:
        """Return name and tail, as views, of A and of B of each adapter."""
        found = []
        for a, b in pairs_in(map(layer_of, params)).items():
            first = kept_of(len(params[f"{a}.weight"]), self.gamma)
            found.append(
                (f"{a}.weight", params[f"{a}.weight"][first:], f"{b}.weight", params[f"{b}.weight"][:, first:])
            )
        return found

    def _pull(self, gradients: Sequence[Tensor], local: LocalState, context: Context) -> list[Tensor]:
        """Add the gradient of the penalty. It is 0 where a norm is 0."""
        own = dict(zip(context.trained, gradients, strict=True))
        for a, a_tail, b, b_tail in self._tails(local.weights["params"]):
            of_a, of_b = a_tail.norm(), b_tail.norm()
            own[a], own[b] = own[a].clone(), own[b].clone()
            own[a][len(own[a]) - len(a_tail) :] += self.tail_penalty * of_b * a_tail / of_a.clamp(min=1e-12)
            own[b][:, own[b].shape[1] - b_tail.shape[1] :] += self.tail_penalty * of_a * b_tail / of_b.clamp(min=1e-12)
        return [own[name] for name in context.trained]

    def _finish(self, local: LocalState, context: Context) -> Finished:
        """Return the model to send, with zeros in the tails if these have become smaller."""

        def size(params: Any) -> float:
            return sum(float(a.norm() * b.norm()) for _, a, _, b in self._tails(params))

        with torch.no_grad():
            pruned = size(local.weights["params"]) < size(context.global_model["params"])
            if pruned:
                for _, a_tail, _, b_tail in self._tails(local.weights["params"]):
                    a_tail.zero_()
                    b_tail.zero_()
        return Finished(local.weights, statistics={"pruned": float(pruned)})


def kept_of(rank: int, gamma: float) -> int:
    """Return floor(gamma rank), and at least 1."""
    return max(1, math.floor(gamma * rank + 1e-9))


def _filled(update: Update, adapters: Sequence[Adapter], model: ModelState) -> Update:
    """Return an update whose adapters have the shapes of the model's, with zeros where it has no numbers."""
    names = {name for each in adapters for name in (each.a, each.b)}

    def fill(name: str, tensor: Tensor) -> Tensor:
        whole = model["params"][name] if name in names else tensor
        if whole.shape == tensor.shape:
            return tensor
        wide = torch.zeros_like(whole)
        wide[tuple(map(slice, tensor.shape))] = tensor
        return wide

    task = replace(update.task, submodel=Submodel())
    return update._replace(task=task, body={kind: named(fill, tensors) for kind, tensors in update.body.items()})


def _norm(params: Any, adapters: Sequence[Adapter]) -> float:
    """Return the Frobenius norm of all products B A of a device as one vector."""
    square = 0.0
    for each in adapters:
        a, b = params[each.a].double().flatten(1), params[each.b].double().flatten(1)
        square += float(((b.mT @ b) * (a @ a.mT)).sum())
    return math.sqrt(max(square, 0.0))


PLUGINS = {"hetlora": HetLoRA}
