"""FedDyn: a regulariser that moves with the rounds, so that local optima agree with the global one.

Source: Acar et al., "Federated Learning Based on Dynamic Regularization" (ICLR 2021), algorithm 1 and its authors'
published code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from annotated_types import Gt
from torch import Tensor

from edgesim.core.limits import PositiveFactor
from edgesim.core.method import Aggregate, Finished, LocalPhase, LocalRule, LocalState, Method, Needs, ServerContext
from edgesim.core.model_state import mapped, minus, moves, plus, stepped
from edgesim.core.rng import Key
from edgesim.core.task import Pass, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.aggregate.mean import finite_or_none, is_finite
from edgesim.learning.train.context import Context
from edgesim.learning.train.loop import clipped
from edgesim.learning.train.rules import Anchored


@dataclass(frozen=True, kw_only=True)
class FedDyn(Method):
    """For unequal data: devices train with a dynamic regulariser that keeps them from drifting apart.

    Devices step along g + `alpha` (w - w received + s_k), where s_k is the sum of the device's own moves so far. The
    new model is the plain mean of the arrived ones plus the mean of s_k over all devices, absent ones too. In the
    paper's notation g_k = -alpha s_k and h = -alpha times this mean. `scale_alpha`: a device's alpha is divided by its
    samples over the mean of all. `clip_norm`: limit for the norm of the loss's gradient, before the regulariser is
    added; inf: none. Moves that never arrive are in neither sum. The move of an update that counts in a later round is
    its difference from the current global model. A device that diverged keeps its old sum, and so does the server if
    the new model is not finite. Running statistics: the plain mean.

    The broadcast model is tested, as in algorithm 1. The authors also report the mean of the selected models. It is not
    tested here, because a method cannot ask for test scores.

    Family: correction of local steps. Formula: `w <- mean_(k arrived) w_k + mean_(all k) s_k; local steps along g +
    alpha (w - w received + s_k)`. Paper: arXiv 2111.04263.
    """

    alpha: PositiveFactor = 0.01
    """The authors' published code; the paper has a grid."""
    scale_alpha: bool = False
    """The published code divides a device's alpha by its samples over the mean of all; algorithm 1 has one alpha."""
    clip_norm: Annotated[float, Gt(0)] = 10.0
    """The published code clips the gradient at 10, between adding the linear and the quadratic part of the regulariser.
    The paper does not clip. This is read as a guard of the loss, and only the gradient of the loss is clipped. `inf`:
    no clipping.
    """
    needs: ClassVar[Needs] = Needs(device_state="delivered")

    def init(self, setting: Setting, key: Key) -> Any:
        """Return a server without moves so far."""
        return {**super().init(setting, key), "moved": {}}

    def task(self, view: View) -> Task:
        """Return the training of the whole model, with the work of the regulariser."""
        mean_samples = float(view.setting.samples.sum() / view.setting.devices)
        return replace(
            super().task(view),
            passes=(Pass(), Pass("param_step", times=4.0)),
            config={"mean_samples": mean_samples} if self.scale_alpha else {},
        )

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy with the regulariser."""

        def start(context: Context) -> LocalState:  # the model is pulled to w - s_k
            centre = context.global_model["params"]
            if context.device_state is not None:
                centre = minus(centre, context.device_state["moved"])
            return LocalState(context.copy(context.global_model), Anchored(context.copy(centre)))

        def regularised(grads: list[Tensor], local: LocalState, context: Context) -> list[Tensor]:
            alpha = self.alpha
            if self.scale_alpha:
                alpha *= context.task.config["mean_samples"] / len(context.shard)
            params, centre = local.weights["params"], local.scratch.anchor
            return [
                g.add(params[name] - centre[name], alpha=alpha)
                for name, g in zip(context.trained, clipped(grads, self.clip_norm), strict=True)
            ]

        def finish(local: LocalState, context: Context) -> Finished:
            moved = minus(local.weights["params"], local.scratch.anchor)
            return Finished(local.weights, finite_or_none({"moved": moved}))

        return LocalRule((LocalPhase(adjust_gradients=regularised),), on_start=start, on_finish=finish)

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the mean of the arrived models plus the mean of all moves; the old model stays if it is not finite."""
        weights = [update.weight for update in updates]
        mean = server.mean(global_model, updates, weights)
        share = sum(weights) / server.setting.devices
        moved = mapped(lambda move: share * move, moves(mean["params"], global_model["params"]))
        moved = plus(state["moved"], moved) if state["moved"] else moved
        params = stepped(mean["params"], moved)
        if not is_finite({"params": params}):
            return Aggregate(state, None, metrics={"not_finite": 1.0})
        return Aggregate({"moved": moved}, {**mean, "params": params})


PLUGINS = {"feddyn": FedDyn}
