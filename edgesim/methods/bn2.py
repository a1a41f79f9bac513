"""BN2: more devices train than are merged; they report the norms of their updates, and the largest are fetched.

Source: H. Wu, P. Wang, Node Selection Toward Faster Convergence for Federated Learning on Non-IID Data (FedPNS), IEEE
TNSE 2022, where it is the baseline of FedPNS; H. Wu, PhD thesis, York University (2023), chapter 4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from edgesim.core.job import DELIVERED
from edgesim.core.limits import Count
from edgesim.core.method import Aggregate, Finished, LocalPhase, LocalRule, LocalState, Method, Needs, ServerContext
from edgesim.core.model_state import dots, moves
from edgesim.core.rng import Key
from edgesim.core.task import Payload, Plan, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.codec.transfer import on_cpu
from edgesim.learning.train.context import Context

_NORM = Payload(collections=frozenset(), extra_bytes=4)  # one float32
_FETCH = Task("fetch", down=None, passes=())


@dataclass(frozen=True, kw_only=True)
class BN2(Method):
    """To save uploads, the server averages only the `keep` largest updates of the devices that trained.

    Every round has two exchanges. First the selected devices train and send the norm of their gradient g = -move / lr,
    over all parameters as one vector. Then the devices with the largest norms send their models, which are averaged by
    data size. Of equal norms the lowest id wins. If there are no more than `keep`, all are asked.
    `rank_by`: "step", the norm over the SGD steps that a device took, as more data make longer moves; or the "norm".
    The metrics have every `norm`, and `chosen`, 1 for a device that was chosen and delivered, else 0.

    Family: selection of updates. Formula: `w <- sum_(k in S) n_k w_k / sum_(k in S) n_k, where S are the devices with
    the largest update norms`. Paper: arXiv 2105.07066.
    """

    keep: Count = 10
    """Of 20 that train, which the scenario's selection sets. If no more are selected, all are merged."""
    rank_by: Literal["step", "norm"] = "step"
    """The paper does not specify this. There all devices hold equally many samples, so that both are the same.
    Otherwise more data make a longer move, whatever its direction.
    """
    # a deadline would pass in waiting for norms and leave no time for models
    needs: ClassVar[Needs] = Needs(protocols=frozenset({"sync"}), device_state="computed", feedback=True)

    def init(self, setting: Setting, key: Key) -> Any:
        """Return a state without norms."""
        return {**super().init(setting, key), "rank": None}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices for norms, then the reachable ones with the largest norms for models.

        Without training, as in runs of timing alone, the lowest ids stand for the largest norms.
        """
        if not view.exchange:
            task = Task("norm", local_sgd=(view.setting.training.local_sgd(view.round),), up=_NORM)
            return Plan.of_one_task(view.choose(key).tolist(), task, more=True)
        rank = state["rank"]
        if rank is None:
            rank = {completion.job.device: 0.0 for completion in view.last if completion.outcome in DELIVERED}
        there = set(view.idle.tolist())
        best = sorted((-norm, device) for device, norm in rank.items() if device in there)[: self.keep]
        return Plan.of_one_task(sorted(device for _, device in best), _FETCH)

    def local(self, task: Task) -> LocalRule:
        """Return plain SGD that keeps the model and reports a norm, or a rule that sends the kept model."""

        def kept(context: Context) -> LocalState:  # without earlier training it is the server's model
            own = context.global_model if context.device_state is None else context.device_state
            return LocalState(context.copy(own))

        def finish(local: LocalState, context: Context) -> Finished:
            w, received = on_cpu(local.weights), on_cpu(context.global_model)
            move, lr = moves(w["params"], received["params"]), context.task.local_sgd[0].lr
            # a rate that has decayed to 0 moves nothing
            norm = math.sqrt(sum(dots(move, move))) / lr if lr else 0.0
            return Finished(local.weights, w, {"norm": norm})

        if not task.local_sgd:
            return LocalRule(on_start=kept)
        return LocalRule(phases=(LocalPhase(),), on_finish=finish)

    def on_exchange(self, state: Any, updates: Sequence[Update], server: ServerContext, key: Key) -> Any:
        """Return the ranks of devices, without those whose training diverged."""
        per_step = self.rank_by == "step"
        norms = {m.device: m.statistics["norm"] / (max(m.steps, 1) if per_step else 1) for m in updates}
        return {"rank": {device: norm for device, norm in norms.items() if math.isfinite(norm)}}

    def aggregate(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the mean of the fetched models by data size; the old model stays if there are none."""
        norms = {m.device: m.statistics["norm"] for m in updates if "norm" in m.statistics}
        fetched = super().aggregate(state, global_model, [m for m in updates if m.body], server, key)
        diverged = sum(not math.isfinite(norm) for norm in norms.values())
        left_out = diverged + fetched.metrics.get("left_out", 0.0)
        chosen = {m.device for m in server.finite([m for m in updates if m.body])[0]}
        by_device: Mapping[str, Any] = {"norm": norms, "chosen": {device: float(device in chosen) for device in norms}}
        metrics = {**by_device, **({"left_out": left_out} if left_out else {})}
        return fetched._replace(state={"rank": None}, metrics=metrics)


PLUGINS = {"bn2": BN2}
