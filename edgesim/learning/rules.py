"""Stock behaviour of devices: losses and phases that methods combine."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from edgesim.contracts import Bundle, LocalPhase, LocalRule
from edgesim.learning.context import Batch, Context


def cross_entropy(w: Bundle, batch: Batch, context: Context) -> Tensor:
    """Return the mean cross-entropy of the logits of `w` on a batch."""
    return F.cross_entropy(context.forward(w, batch.x), batch.y)


PLAIN_SGD = LocalRule(phases=(LocalPhase(loss=cross_entropy),))
