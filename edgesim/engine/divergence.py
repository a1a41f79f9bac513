"""Notices when training has gone astray, so that a run says so instead of ending with the accuracy of a guess."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_EXPLODED = 100.0  # nats of test loss: far beyond a guess, ln(classes), and what sure but wrong models get


class Divergence:
    """The first round in which training diverged: most updates, or the loss of the models, were no good numbers.

    `found`: None until then; after it a mapping of round (from 0), left_out and of (how many updates were not merged as
    they were not finite, and how many came), and loss (None if it was not the cause).
    """

    def __init__(self) -> None:
        self.found: dict[str, Any] | None = None

    def notice(
        self, round_: int, metrics: Mapping[str, Any], came: int, losses: Sequence[float]
    ) -> dict[str, Any] | None:
        """Return the description of a divergence that begins in this round, or None.

        `metrics`: of the merge, which may have left some of the updates that `came` out; `losses`: evaluated after it.
        """
        noted = metrics.get("left_out", 0)
        left_out = sum(noted.values()) if isinstance(noted, Mapping) else noted
        exploded = [loss for loss in losses if not loss <= _EXPLODED]  # nan is not
        if self.found is not None or not (exploded or 2 * left_out > came):
            return None
        loss = exploded[0] if exploded else None
        self.found = {"round": round_, "left_out": int(left_out), "of": came, "loss": loss}
        return self.found


def middle(losses: Sequence[float]) -> list[float]:
    """Return the upper median of losses, in which nan counts as the greatest; nothing of none."""
    return [float(np.sort(losses)[len(losses) // 2])] if losses else []
