"""Stock behaviour of devices: losses and phases that methods combine."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from edgesim.contracts import Bundle, Fn, LocalPhase, LocalRule
from edgesim.learning.context import Batch, Context


def cross_entropy(w: Bundle, batch: Batch, context: Context) -> Tensor:
    """Return the mean cross-entropy of the logits of `w` on a batch."""
    return F.cross_entropy(context.forward(w, batch.x), batch.y)


PLAIN_SGD = LocalRule(phases=(LocalPhase(loss=cross_entropy),))


def pulled_to_anchor(mu: float) -> Fn:
    """Return what adds mu (w - anchor) to gradients; the anchor is a kind of the weights that are trained."""

    def pulled(grads: list[Tensor], w: Bundle, context: Context) -> list[Tensor]:
        return [
            g.add(w["params"][name] - w["anchor"][name], alpha=mu)
            for name, g in zip(context.trained, grads, strict=True)
        ]

    return pulled


def proximal_sgd(mu: float) -> LocalRule:
    """Return SGD along g + mu (w - w received)."""
    if not mu:
        return PLAIN_SGD

    return LocalRule((LocalPhase(loss=cross_entropy, adjust=pulled_to_anchor(mu)),), start=_with_anchor)


def _with_anchor(base: Bundle, own: Bundle | None, context: Context) -> Bundle:
    """Return the model to train, and as a kind of its own, which is not sent, the parameters it is held to."""
    return {**context.copy(base), "anchor": context.copy({"params": base["params"]})["params"]}
