"""CMFL: devices upload only updates that point where the global model went last.

Source: Luping Wang, Wei Wang and Bo Li, "CMFL: Mitigating Communication Overhead for Federated Learning" (ICDCS 2019),
algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from edgesim.core.job import DELIVERED
from edgesim.core.limits import Share
from edgesim.core.method import Aggregate, Finished, LocalPhase, LocalRule, LocalState, Method, Needs, ServerContext
from edgesim.core.model_state import mapped, minus, tensors_in
from edgesim.core.rng import Key
from edgesim.core.task import Pass, Payload, Plan, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.aggregate.mean import is_finite
from edgesim.learning.codec.transfer import on_cpu
from edgesim.learning.train.context import Context

if TYPE_CHECKING:
    from torch import Tensor

_NOTICE = Payload(collections=frozenset(), extra_bytes=4)  # relevance, one float32
_CHECK = (Pass(), Pass("param_step", times=4.0, samples=1))  # two differences, a comparison of signs, a count
_UPLOAD = Task("upload", down=None, passes=())


@dataclass(frozen=True, kw_only=True)
class CMFL(Method):
    """To save uploads, a device sends its model only if its move agrees with the last move of the global model.

    The relevance of a device is the share of its parameters whose move has the sign of the last global move. Round t,
    counted from 1, takes the models of all devices whose relevance is at least `threshold` / sqrt(t), or `threshold`
    itself with `decay` = "none". They are averaged by data size. Without any the model stays.

    Every round has two exchanges. First the selected devices train and send their relevance, 4 bytes. Then the relevant
    devices send their models. So uploads begin once all devices have trained. In the paper a device decides by itself
    and uploads at once.

    The paper's server sends the last global move. Here a device takes the difference of the last two models that it
    received, which costs no bytes. It is the same if the device takes part in every round, and otherwise covers the
    rounds since. A model that stayed leaves the last move as it was. A device without any move yet has relevance 1. The
    check costs 4 FLOPs a parameter. The metrics have every `relevance`, and `uploaded`, 1 for a device whose model
    arrived, else 0.

    Family: skipped uploads. Formula: `w <- sum_(k in S) n_k w_k / sum_(k in S) n_k, where S are devices with (1/P)
    sum_j [sign(u_kj) = sign(u_j)] >= v_t`. Paper: doi 10.1109/ICDCS.2019.00099.
    """

    threshold: Share = 0.8  # relevance from which a device uploads in the first round
    """Wang et al. tune it for each model. The value was not confirmed, and 0.8 is chosen here. At 0 it is FedAvg."""
    decay: Literal["sqrt", "none"] = "sqrt"  # fall of the threshold over the rounds
    """The convergence theorem of Wang et al. has a threshold that falls as 1 / sqrt(t)."""
    # a deadline would pass in waiting for notices and leave no time for models
    needs: ClassVar[Needs] = Needs(protocols=frozenset({"sync"}), device_state="computed", feedback=True)

    def init(self, setting: Setting, key: Key) -> Any:
        """Return a state without notices."""
        return {**super().init(setting, key), "relevant": None}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train, then those that are relevant and reachable for their models.

        Without training, as in runs of timing alone, all are relevant.
        """
        if not view.exchange:
            sgd = view.setting.training.local_sgd(view.round)
            task = Task("train", local_sgd=(sgd,), up=_NOTICE, passes=_CHECK)
            return Plan.of_one_task(view.choose(key).tolist(), task, more=True)
        relevant = state["relevant"]
        if relevant is None:
            relevant = [completion.job.device for completion in view.last if completion.outcome in DELIVERED]
        return Plan.of_one_task(sorted(set(relevant) & set(view.idle.tolist())), _UPLOAD)

    def local(self, task: Task) -> LocalRule:
        """Return plain SGD that keeps the model and reports its relevance, or a rule that sends the kept model."""
        if task.local_sgd:
            return LocalRule((LocalPhase(),), on_finish=_checked)

        def kept(context: Context) -> LocalState:  # without earlier training it is the server's model
            own = context.device_state or context.global_model
            return LocalState(context.copy({kind: own[kind] for kind in context.global_model}))

        return LocalRule(on_start=kept)

    def on_exchange(self, state: Any, updates: Sequence[Update], server: ServerContext, key: Key) -> Any:
        """Return the devices whose relevance reaches the threshold, without those whose training diverged."""
        least = self.threshold / math.sqrt(server.round + 1) if self.decay == "sqrt" else self.threshold
        return {"relevant": [m.device for m in updates if m.statistics["relevance"] >= least]}

    def aggregate(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the mean of the uploaded models by data size; the old model stays if there are none."""
        relevance = {m.device: m.statistics["relevance"] for m in updates if "relevance" in m.statistics}
        uploaded = [m for m in updates if m.body]
        made = super().aggregate(state, global_model, uploaded, server, key)
        diverged = sum(math.isnan(share) for share in relevance.values())
        left_out = diverged + made.metrics.get("left_out", 0.0)
        arrived = {m.device for m in server.finite(uploaded)[0]}
        by_device: Mapping[str, Any] = {
            "relevance": relevance,
            "uploaded": {device: float(device in arrived) for device in relevance},
        }
        metrics = {**by_device, **({"left_out": left_out} if left_out else {})}
        return made._replace(state={"relevant": None}, metrics=metrics)


def relevance(move: Mapping[str, Tensor], last: Mapping[str, Tensor]) -> float:
    """Return the share of numbers that have the same sign in both moves, 0 counting as a sign of its own.

    `last`: the last global move, or its signs. Without one all numbers agree.
    """
    if not last:
        return 1.0
    same = mapped(lambda u, v: (torch.sign(u) == torch.sign(v)).sum(), move, last)
    return sum(int(count) for count in same.values()) / sum(u.numel() for u in move.values())


def _checked(local: LocalState, context: Context) -> Finished:
    """Return the relevance of a trained model, which the device keeps with the model that it received."""
    w, received, before = on_cpu(local.weights), on_cpu(context.global_model)["params"], context.device_state or {}
    signs = before.get("last", {})
    if "received" in before:
        last = minus(received, before["received"])
        if any(bool(t.any()) for t in tensors_in(last)):
            signs = mapped(lambda t: torch.sign(t).to(torch.int8), last)
    share = relevance(minus(w["params"], received), signs) if is_finite(w) else math.nan
    return Finished(local.weights, {**w, "received": received, "last": signs}, {"relevance": share})


PLUGINS = {"cmfl": CMFL}
