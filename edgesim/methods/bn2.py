"""BN2: more devices train than are merged; they report the norms of their updates, and the largest are fetched.

Source: H. Wu, P. Wang, Node Selection Toward Faster Convergence for Federated Learning on Non-IID Data (FedPNS), IEEE
TNSE 2022, where it is what FedPNS is compared with; H. Wu, PhD thesis, York University (2023), chapter 4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge

from edgesim.contracts import (
    DELIVERED,
    Bundle,
    LocalPhase,
    LocalRule,
    Merged,
    Message,
    Needs,
    Order,
    Payload,
    Plan,
    Setting,
    Task,
    View,
)
from edgesim.learning.context import Context
from edgesim.learning.merge import finite, mean_of_holders
from edgesim.learning.rules import cross_entropy
from edgesim.rng import Key

_NORM = Payload(kinds=frozenset(), extra_bytes=4)  # one float32
_FETCH = Task("fetch", down=None, passes=())


@dataclass(frozen=True, kw_only=True)
class BN2:
    """Average, by data size, the `keep` updates of largest norm among all that were trained.

    Every round has two exchanges: the selected devices train and send the norm of their gradient g = -move / lr, over
    all parameters as one vector; then those with the largest send their models. Of equal norms the lowest id wins; if
    there are no more than `keep`, all are asked.
    `rank_by`: "step", the norm by the SGD steps that a device took, as more data make longer moves; or the "norm".
    The notes have every `norm`, and whether a device was `chosen` and delivered, 1 or 0.
    """

    keep: Annotated[int, Ge(1)] = 10
    rank_by: Literal["step", "norm"] = "step"
    # a deadline would be spent on waiting for norms and leave no time for models
    needs: ClassVar[Needs] = Needs(coordinators=frozenset({"sync"}), keep="computed", feedback=True, hears=True)

    def init(self, setting: Setting, key: Key) -> Any:
        """Return that no norms have been heard."""
        setting.cost.check(widths=0)
        return {"rank": None}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices for norms, then those with the largest, as far as they are still there, for models.

        Where nothing is trained and so nothing was heard, the first by id stand for the largest.
        """
        if not view.exchange:
            task = Task("norm", stretches=(view.setting.training.stretch(view.round),), up=_NORM)
            return Plan(tuple(Order(device, task) for device in view.choose(key).tolist()), more=True)
        rank = state["rank"]
        if rank is None:
            rank = {arrival.job.device: 0.0 for arrival in view.last if arrival.outcome in DELIVERED}
        there = set(view.idle.tolist())
        best = sorted((-norm, device) for device, norm in rank.items() if device in there)[: self.keep]
        return Plan(tuple(Order(device, _FETCH) for device in sorted(device for _, device in best)))

    def local(self, task: Task) -> LocalRule:
        """Return plain SGD that keeps the model and reports a norm, or the sending of what was kept."""
        if not task.stretches:
            return LocalRule(start=_kept)
        return LocalRule(phases=(LocalPhase(loss=cross_entropy),), finish=_report)

    def hear(self, state: Any, got: Sequence[Message], view: View, key: Key) -> Any:
        """Return what devices are ranked by; those whose training diverged are not."""
        per_step = self.rank_by == "step"
        norms = {m.device: m.signals["norm"] / (max(m.steps, 1) if per_step else 1) for m in got}
        return {"rank": {device: norm for device, norm in norms.items() if math.isfinite(norm)}}

    def merge(self, state: Any, base: Bundle, got: Sequence[Message], view: View, tools: Any, key: Key) -> Merged:
        """Return the data-size-weighted mean of the models that were fetched; the old one stays if there are none."""
        norms = {m.device: m.signals["norm"] for m in got if "norm" in m.signals}
        models, notes = finite([m for m in got if m.body])
        diverged = sum(not math.isfinite(norm) for norm in norms.values())
        left_out = diverged + notes.get("left_out", 0.0)
        notes = {"left_out": left_out} if left_out else {}
        chosen = {message.device for message in models}
        by_device: Mapping[str, Any] = {"norm": norms, "chosen": {device: float(device in chosen) for device in norms}}
        model = mean_of_holders(base, models, [m.samples * m.weight for m in models]) if models else None
        return Merged({"rank": None}, model, notes={**by_device, **notes})


def _report(w: Bundle, context: Context) -> tuple[Bundle, Bundle, dict[str, float]]:
    """Return the model to keep, and the norm of how far it lies from the one received, divided by the learning rate.

    A rate that has decayed to 0 moves nothing.
    """
    base, lr = context.base["params"], context.task.stretches[0].lr
    moves = [w["params"][name].detach().cpu().double() - base[name].cpu() for name in base]
    norm = math.sqrt(sum(float(move.square().sum()) for move in moves)) / lr if lr else 0.0
    kept = {kind: {name: tensor.detach().cpu() for name, tensor in tensors.items()} for kind, tensors in w.items()}
    return w, kept, {"norm": norm}


def _kept(base: Bundle, own: Bundle | None, context: Context) -> Bundle:
    """Return the model that the device kept; without training it is the one of the server."""
    return context.copy(base if own is None else own)


PARTS = {"bn2": BN2}
