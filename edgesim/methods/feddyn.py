"""FedDyn: a regulariser that moves with the rounds, so that devices and server agree on where to stop.

Source: Acar et al., "Federated Learning Based on Dynamic Regularization" (ICLR 2021), algorithm 1 and its authors'
published code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from annotated_types import Gt
from torch import Tensor

from edgesim.contracts import (
    Bundle,
    LocalPhase,
    LocalRule,
    Merged,
    Message,
    Needs,
    Order,
    Pass,
    Plan,
    Setting,
    Task,
    View,
)
from edgesim.learning.context import Context
from edgesim.learning.loop import clipped
from edgesim.learning.merge import finite, is_finite, mean_of_holders
from edgesim.learning.rules import cross_entropy
from edgesim.numbers import PositiveNumber
from edgesim.rng import Key


@dataclass(frozen=True, kw_only=True)
class FedDyn:
    """Devices step along g + `alpha` (w - w received + s_k), s_k the sum of the device's own moves so far.

    The new model is the plain mean of the arrived ones plus the mean of s_k over all devices, absent ones too. In the
    paper's words g_k = -alpha s_k and h = -alpha times that mean. `scale_alpha`: a device's alpha is divided by its
    samples over the mean of all. `clip_norm`: of the gradient of the loss, before the regulariser is added; inf: none.
    Moves that never arrive are in neither sum. An update that counts in a later round moved as far as it now lies from
    the global model. Who diverged remembers what it did before, and so does the server if the new model is not finite.
    Running statistics: the plain mean.
    """

    alpha: PositiveNumber = 0.01
    scale_alpha: bool = False
    clip_norm: Annotated[float, Gt(0)] = 10.0
    needs: ClassVar[Needs] = Needs(keep="delivered")

    def init(self, setting: Setting, key: Key) -> Any:
        """Return a server that has seen no move."""
        setting.cost.check(widths=0)
        return {"moved": {}}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train the whole model."""
        task = Task(
            stretches=(view.setting.training.stretch(view.round),),
            passes=(Pass(), Pass("param_step", times=4.0)),
            knobs={"mean_samples": float(view.setting.samples.mean())} if self.scale_alpha else {},
        )
        return Plan(tuple(Order(device, task) for device in view.choose(key).tolist()))

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy with the regulariser."""
        return LocalRule((LocalPhase(loss=cross_entropy, adjust=self._regularised),), start=_start, finish=_finish)

    def merge(self, state: Any, base: Bundle, got: Sequence[Message], view: View, tools: Any, key: Key) -> Merged:
        """Return the mean of the arrived models, moved on; the old model stays if nothing finite comes of it."""
        usable, notes = finite(got)
        if not usable:
            return Merged(state, None, notes=notes)
        weights = [message.weight for message in usable]
        mean = mean_of_holders(base, usable, weights)
        share = sum(weights) / len(view.setting.samples)
        moved = {name: share * (mean["params"][name].double() - old) for name, old in base["params"].items()}
        if state["moved"]:
            moved = {name: before + moved[name] for name, before in state["moved"].items()}
        params = {name: (t + moved[name]).to(t.dtype) for name, t in mean["params"].items()}
        if not is_finite({"params": params}):
            return Merged(state, None, notes={**notes, "not_finite": 1.0})
        return Merged({"moved": moved}, {**mean, "params": params}, notes=notes)

    def _regularised(self, grads: list[Tensor], w: Bundle, context: Context) -> list[Tensor]:
        alpha = self.alpha
        if self.scale_alpha:
            alpha *= context.task.knobs["mean_samples"] / len(context.shard)
        return [
            g.add(w["params"][name] - w["centre"][name], alpha=alpha)
            for name, g in zip(context.trained, clipped(grads, self.clip_norm), strict=True)
        ]


def _start(base: Bundle, own: Bundle | None, context: Context) -> Bundle:
    """Return the model to train, and as a kind of its own, which is not sent, what it is pulled to: w - s_k."""
    centre = base["params"]
    if own is not None:
        centre = {name: t - own["moved"][name] for name, t in centre.items()}
    return {**context.copy(base), "centre": context.copy({"params": centre})["params"]}


def _finish(w: Bundle, context: Context) -> tuple[Bundle, Bundle | None, dict[str, Any]]:
    """Return the model to send, and to keep the sum of the device's moves: as far as it now is from the centre."""
    moved = {name: (t - w["centre"][name]).cpu() for name, t in w["params"].items()}
    kept = {"moved": moved}
    return w, (kept if is_finite(kept) else None), {}


PARTS = {"feddyn": FedDyn}
