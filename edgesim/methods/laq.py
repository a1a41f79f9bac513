"""LAQ: devices upload a coarse change of their gradient, and only if it has changed enough.

Source: Sun, Chen, Giannakis and Yang, "Communication-Efficient Distributed Learning via Lazily Aggregated Quantized
Gradients" (NeurIPS 2019), algorithm 2 and its authors' published code; Chen, Giannakis, Sun and Yin, "LAG: Lazily
Aggregated Gradient for Communication-Efficient Distributed Learning" (NeurIPS 2018).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Le

from edgesim.core.encoding import NUMBER_BYTES, SCALE_BYTES, Chain, Contents, EncodingStep
from edgesim.core.job import DELIVERED
from edgesim.core.limits import Count, NonNegativeFactor
from edgesim.core.method import Aggregate, Finished, LocalPhase, LocalRule, LocalState, Needs, ServerContext
from edgesim.core.model_state import mapped, minus, moves, square, stepped, weighted_sum
from edgesim.core.rng import Key
from edgesim.core.task import Pass, Payload, Plan, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.aggregate.mean import is_finite, mean_of_holders
from edgesim.learning.codec.transfer import on_cpu
from edgesim.learning.train.context import Context
from edgesim.learning.train.rules import keep_gradient, kept_gradient
from edgesim.methods.fedsgd import FedSGD, refuse_encoding

if TYPE_CHECKING:
    from torch import Tensor

_EXACT = 32  # bits of numbers that are not rounded
_FLAG = Payload(collections=frozenset(), extra_bytes=1)  # whether an upload follows
_UPLOAD = "upload"  # the name of tasks of the second exchange
_FLOPS = 13.0  # FLOPs for each parameter: the grid 9, and the squares of the change and the error 4


@dataclass(frozen=True)
class OnGrid(EncodingStep):
    """Numbers that lie on a grid of 2^bits points: `bits` each and the width. Statistics travel in float32."""

    bits: int

    def nbytes(self, held: Contents, rest: Callable[[Contents], int]) -> int:
        """Return the bytes of the places on the grid, of its width and of the statistics."""
        return (
            math.ceil((held.numbers - held.statistics) * self.bits / 8) + SCALE_BYTES + NUMBER_BYTES * held.statistics
        )


@dataclass(frozen=True, kw_only=True)
class LAQ(FedSGD):
    """To save uploads, a device sends a quantised change of its gradient, and only if it has changed enough.

    The server keeps the sum G of the last gradients Q_k that each device uploaded, and steps w <- w - lr G in every
    round. A device rounds its gradient g to Q, the nearest point of a grid of 2^`bits` points from Q_k - R to Q_k + R
    in each number, where R is the largest change of a number. It skips the upload if

    |Q - Q_k|^2 < sum_d `xi` |w^(t+1-d) - w^(t-d)|^2 / (lr^2 K^2) + 3 (|g - Q|^2 + |error of Q_k|^2)

    over the last `differences` moves of the model, for K devices. A device that skipped `longest` times in a row
    uploads. With `bits` = 32 nothing is rounded, and it is LAG (its variant LAG-WK).

    Every round has two exchanges. First the selected devices send 1 byte that says whether they upload. Then these
    devices upload. So uploads begin once all devices have computed. In the papers a device decides by itself and
    uploads at once. The server sends the sum of the criterion with the model, 4 bytes.

    The papers' loss is a sum over devices. Here a device's part is its share of all samples times its mean loss, so
    that it steps as `fedsgd` does. A device that was never asked has no part in G yet, and a device that fails keeps
    its old part. A device uploads when it is asked for the first time. Running statistics are the mean of the uploads.
    The metric `uploaded` is 1 for a device whose upload arrived, else 0.

    Family: skipped uploads. Formula: `w <- w - lr sum_k Q_k, where Q_k is the last gradient that device k uploaded`.
    Paper: arXiv 1909.07588 and arXiv 1805.09965.
    """

    bits: Annotated[int, Ge(1), Le(_EXACT)] = 4  # bits of each number; 32: exact, which is LAG
    """As in the authors' code for logistic regression."""
    differences: Count = 10  # last moves of the model in the criterion, D in the papers
    """As in the papers' experiments and the authors' code."""
    xi: NonNegativeFactor = 0.08  # weight of each of these moves
    """Sun et al. have 0.8 / D, which the authors' code has from the D-th round on. At 0, with 32 `bits`, it is FedSGD.
    """
    longest: Count = 100  # uploads that a device skips in a row at most
    """As in the authors' code."""
    # a deadline would pass in waiting for flags and leave no time for uploads
    needs: ClassVar[Needs] = Needs(protocols=frozenset({"sync"}), device_state="delivered", feedback=True)
    no_update_encoding: ClassVar[str] = "sends a few bits for each number already"

    def init(self, setting: Setting, key: Key) -> Any:
        """Return a state without gradients. Raises ConfigError as `fedsgd` does, and if uplinks are encoded."""
        refuse_encoding(setting, "laq sends method.bits for each number")
        return {**super().init(setting, key), "sum": {}, "squares": [], "senders": None}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices for a gradient, then those that have news and are reachable for it.

        Without training, as in runs of timing alone, all have news.
        """
        setting = view.setting
        if view.exchange:
            senders = state["senders"]
            if senders is None:
                senders = [completion.job.device for completion in view.last if completion.outcome in DELIVERED]
            step = () if self.bits == _EXACT else (OnGrid(self.bits),)
            up = Payload(collections=frozenset({"change", "buffers"}), encoding=Chain(step))
            task = Task(_UPLOAD, down=None, passes=(), up=up)
            return Plan.of_one_task(sorted(set(senders) & set(view.idle.tolist())), task)
        lr = setting.training.lr_at(view.round)
        least = self.xi * sum(state["squares"]) / (lr * setting.devices) ** 2 if lr else 0.0
        facts = {"least": least, "samples": float(setting.samples[setting.ids].sum())}
        work = (Pass(), Pass("param_step", times=_FLOPS, samples=1))
        orders = super().plan(state, view, key).orders
        tasks = {
            id(order.task): replace(
                order.task, passes=work, up=_FLAG, down=Payload(extra_bytes=NUMBER_BYTES), config=facts
            )
            for order in orders
        }  # one object for equal tasks
        return Plan(tuple(order._replace(task=tasks[id(order.task)]) for order in orders), more=True)

    def local(self, task: Task) -> LocalRule:
        """Return the rule of a step whose gradient is kept, or a rule that uploads the change of the kept gradient."""

        def change(local: LocalState, context: Context) -> Finished:  # without earlier training it is nothing
            kept = context.device_state
            if kept is None:
                zeros = mapped(lambda t: t * 0.0, on_cpu(local.weights)["params"])
                return Finished({"change": zeros, "buffers": local.weights["buffers"]})
            _, _, error = kept["counts"]["counts"].tolist()
            counts = torch.tensor([error, 0.0, error], dtype=torch.float64)
            body = {"change": minus(kept["new"], kept["held"]), "buffers": kept["buffers"]}
            return Finished(body, {**kept, "held": kept["new"], "counts": {"counts": counts}})

        if task.name == _UPLOAD:
            return LocalRule(on_finish=change)
        return LocalRule((LocalPhase(adjust_gradients=keep_gradient),), on_finish=self._compared)

    def on_exchange(self, state: Any, updates: Sequence[Update], server: ServerContext, key: Key) -> Any:
        """Return the state with the devices that upload."""
        return {**state, "senders": [m.device for m in updates if m.statistics["uploads"] == 1.0]}

    def aggregate(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the model after a step along all last gradients, those of devices that skipped included."""
        asked = {m.device: m.statistics["uploads"] for m in updates if not m.body}
        usable, left_out = server.finite([m for m in updates if m.body])
        arrived = {m.device for m in usable}
        diverged = left_out.get("left_out", 0.0) + sum(math.isnan(uploads) for uploads in asked.values())
        metrics: dict[str, Any] = {"uploaded": {device: float(device in arrived) for device in asked}}
        if diverged:
            metrics["left_out"] = diverged
        total = state["sum"]
        if usable:
            total = weighted_sum(
                (m.body["change"] for m in usable), [1.0] * len(usable), mapped(torch.clone, total) or None
            )
        if not updates or not total:
            return Aggregate({**state, "senders": None}, None, metrics=metrics)
        params = stepped(global_model["params"], total, -server.setting.training.lr_at(server.round))
        squares = [square(moves(params, global_model["params"])), *state["squares"]][: self.differences]
        statistics = [m._replace(body={"buffers": m.body.get("buffers", {})}) for m in usable]
        old = {"buffers": global_model.get("buffers", {})}
        weights = self.update_weights(usable, server.setting)
        buffers = mean_of_holders(old, statistics, weights) if usable else old
        new = {"sum": total, "squares": squares, "senders": None}
        return Aggregate(new, {**global_model, **buffers, "params": params}, metrics=metrics)

    def merge_flops(self, updates: int, setting: Setting) -> float:
        """Return the FLOPs of a step and of the square of the move, for each parameter 2 and 3."""
        return 5.0 * setting.cost_profile.numbers(Payload(collections=frozenset({"params"})))

    def _compared(self, local: LocalState, context: Context) -> Finished:
        """Return the end of a job, which tells if its gradient has news; the device keeps that gradient, rounded."""
        facts, kept = context.task.config, context.device_state or {}
        share = len(context.shard) / facts["samples"]
        gradient = on_cpu({"of": mapped(lambda g: share * g, kept_gradient(local))})["of"]
        if not is_finite({"of": gradient}):
            return Finished(local.weights, None, {"uploads": math.nan})
        held = kept.get("held") or mapped(torch.zeros_like, gradient)
        new = gradient if self.bits == _EXACT else on_grid(gradient, held, self.bits)
        error = square(minus(gradient, new))
        before, skipped = kept["counts"]["counts"].tolist()[:2] if kept else (0.0, 0.0)
        news = square(minus(new, held)) >= facts["least"] + 3.0 * (error + before)
        counts = torch.tensor([before, skipped + 1.0, error], dtype=torch.float64)
        kept_now = {"held": held, "new": new, "counts": {"counts": counts}, "buffers": on_cpu(local.weights)["buffers"]}
        return Finished(local.weights, kept_now, {"uploads": float(news or not kept or skipped >= self.longest)})


def on_grid(gradient: Mapping[str, Tensor], held: Mapping[str, Tensor], bits: int) -> dict[str, Tensor]:
    """Return the nearest points to a gradient of a grid around the gradient uploaded last.

    In each number the grid has 2^bits points from `held` - R to `held` + R, where R is the largest change of a number
    of all tensors. Computed in float64, and rounded to the types of the gradient. Source: Sun et al. (2019), section 2.
    """
    change = moves(gradient, held)
    width = max(float(t.abs().max()) for t in change.values())
    if width == 0.0:
        return dict(held)
    tau = 1.0 / (2**bits - 1)

    def point(change: Tensor, held: Tensor) -> Tensor:
        places = torch.floor((change + width) / (2.0 * tau * width) + 0.5)
        return (held + (2.0 * tau * width * places - width)).to(held.dtype)

    return mapped(point, change, held)


PLUGINS = {"laq": LAQ}
