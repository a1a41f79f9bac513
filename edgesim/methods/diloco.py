"""DiLoCo: workers train for many local steps, and the server steps along their mean move with Nesterov momentum.

Source: Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models" (2023), algorithm 1. The
formulas are from memory of the paper, because it could not be read here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from edgesim.core.limits import PositiveFactor
from edgesim.core.method import Finished, LocalPhase, LocalRule, LocalState, Needs
from edgesim.core.task import Task
from edgesim.core.update import Update
from edgesim.core.view import Setting
from edgesim.learning.aggregate.mean import is_finite
from edgesim.learning.codec.transfer import on_cpu
from edgesim.learning.server_optimizers.sgd import Sgd
from edgesim.learning.train.adam import AdamMoments
from edgesim.learning.train.context import Context
from edgesim.methods.fedopt import Stepping

_MEAN, _SQUARE, _STEPS, _VELOCITY = "adam_mean", "adam_square", "adam_steps", "velocity"  # collections that are kept


@dataclass(frozen=True, kw_only=True)
class DiLoCo(Stepping, Sgd):
    """Workers take many local steps between two exchanges, so that slow links carry a model once in a while.

    `training` gives the inner optimiser and the steps between two exchanges, H: `optimizer` "adamw" and `local_steps`.
    A worker keeps the state of its inner optimiser from job to job (`inner_state` "keep"), its number of steps
    included, while the weights start from the global model. The server takes the mean of (start - end) of the workers
    for a gradient, the outer gradient, and steps with Nesterov momentum. With H = 1, plain SGD as the inner optimiser,
    `lr` 1 and `momentum` 0 it is data-parallel training.

    Outer gradients are averaged plainly, or by data size (`weights` "samples"), for workers with shards of different
    sizes. Running statistics are averaged in the same way, and the outer optimiser does not move them. A worker keeps
    its inner state as soon as it has computed, even if its update is lost. A worker that diverged keeps the state of
    before. Cosine decay and warm-up of the paper's inner learning rate are not modelled: use `training.lr_decay`.

    Family: server optimiser. Formula: `d = mean_k(x - x_k), x_k after H steps of AdamW from x; v <- momentum v + d;
    x <- x - lr (d + momentum v)`. Paper: arXiv 2311.08105.
    """

    lr: PositiveFactor = 0.7  # learning rate of the outer optimiser
    """Douillard et al. have 0.7."""
    nesterov: bool = True  # Nesterov momentum of the outer optimiser
    """Douillard et al. find it better than plain averaging, SGD and Adam."""
    inner_state: Literal["keep", "reset"] = "keep"
    """Workers of Douillard et al. keep the state of AdamW between rounds. `"reset"` starts it anew with every job."""
    weights: Literal["equal", "samples"] = "equal"
    """Algorithm 1 has the plain mean. For shards of different sizes the paper weighs by data size: `"samples"`."""
    needs: ClassVar[Needs] = Needs(device_state="computed")

    def local(self, task: Task) -> LocalRule:
        """Return plain training that goes on with the worker's optimiser."""
        if self.inner_state == "reset":
            return super().local(task)
        phases = (LocalPhase(keeps_optimizer=True),) * len(task.local_sgd)
        return LocalRule(phases, on_start=_start, on_finish=_finish)

    def update_weights(self, updates: Sequence[Update], setting: Setting) -> Sequence[float]:
        """Return ones or data sizes, times the protocol's weights."""
        return [u.weight * (u.samples if self.weights == "samples" else 1) for u in updates]


def _start(context: Context) -> LocalState:
    """Return the received model, and the optimiser as the worker's last job left it."""
    return LocalState(context.copy(context.global_model), optimizer=optimizer_of(context))


def _finish(local: LocalState, context: Context) -> Finished:
    """Return the trained model, and the state of the optimiser to keep unless the model diverged."""
    kept = kept_optimizer(local, context)
    return Finished(local.weights, on_cpu(kept) if kept and is_finite(local.weights) else None)


def optimizer_of(context: Context) -> list[Any]:
    """Return the optimiser as the worker's last job left it, for `LocalState.optimizer`. Empty: it starts anew."""
    kept = context.device_state or {}
    if _STEPS in kept:
        mean, square = context.copy(kept[_MEAN]), context.copy(kept[_SQUARE])
        return [AdamMoments.of(mean[name], square[name], kept[_STEPS][name].clone()) for name in context.trained]
    velocity = context.copy(kept.get(_VELOCITY, {}))
    return [velocity[name] for name in context.trained] if velocity else []


def kept_optimizer(local: LocalState, context: Context) -> dict[str, dict[str, Any]]:
    """Return the collections in which a worker keeps its optimiser. Plain SGD has none."""
    if not local.optimizer:
        return {}
    states = dict(zip(context.trained, local.optimizer, strict=True))
    if not isinstance(local.optimizer[0], AdamMoments):
        return {_VELOCITY: states}
    return {
        _MEAN: {name: moments.mean for name, moments in states.items()},
        _SQUARE: {name: moments.square for name, moments in states.items()},
        _STEPS: {name: moments.steps for name, moments in states.items()},
    }


PLUGINS = {"diloco": DiLoCo}
