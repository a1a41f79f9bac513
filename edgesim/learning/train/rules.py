"""Standard behaviour of devices: losses and phases that methods combine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgesim.core.method import Fn, LocalPhase, LocalRule, LocalState
from edgesim.core.model_state import ModelState, mapped

if TYPE_CHECKING:
    from torch import Tensor

    from edgesim.learning.train.context import Batch, Context


def objective_loss(w: ModelState, batch: Batch, context: Context, moving: bool = False) -> Tensor:
    """Return the objective's mean loss of `w` on a batch, such as the cross-entropy. `moving`: see Context.forward."""
    return context.objective.loss(context.forward(w, batch.x, moving), batch.y)


PLAIN_SGD = LocalRule(phases=(LocalPhase(),))


@dataclass(slots=True)
class Anchored:
    """Scratch of a job whose weights are pulled towards an anchor: the parameters of the anchor."""

    anchor: Mapping[str, Tensor]


def pulled_to_anchor(mu: float) -> Fn:
    """Return a hook that adds mu (w - anchor) to the gradients of a job whose scratch is an Anchored."""

    def pulled(grads: list[Tensor], local: LocalState, context: Context) -> list[Tensor]:
        params, anchor = local.weights["params"], local.scratch.anchor
        named = zip(context.trained, grads, strict=True)
        return [g.add(params[name] - anchor[name], alpha=mu) for name, g in named]

    return pulled


def keep_gradient(grads: list[Tensor], local: LocalState, context: Context) -> list[Tensor]:
    """Return the gradients of a job's only step, and keep them in the scratch by name, clipped and with weight decay.

    The move of the weights cannot replace them. It is rounded to the digits of the weights, so that at a learning rate
    of 1e-4 at least one gradient in a hundred is lost.
    """
    from edgesim.learning.train.loop import decayed  # which loads torch, and imports this module

    weights = [w.detach() for w in context.bound]
    local.scratch = dict(zip(context.trained, decayed(weights, grads, context.task.local_sgd[0]), strict=True))
    return grads


def kept_gradient(local: LocalState) -> dict[str, Tensor]:
    """Return the gradient that `keep_gradient` kept, by parameter. It is zero if the job took no step."""
    return local.scratch or mapped(lambda tensor: tensor * 0.0, local.weights["params"])


def proximal_sgd(mu: float) -> LocalRule:
    """Return a rule of SGD along g + mu (w - w received)."""
    if not mu:
        return PLAIN_SGD

    def start(context: Context) -> LocalState:
        return LocalState(context.copy(context.global_model), Anchored(context.copy(context.global_model["params"])))

    return LocalRule((LocalPhase(adjust_gradients=pulled_to_anchor(mu)),), on_start=start)
