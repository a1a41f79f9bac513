"""FedExP: federated averaging whose server goes further than the mean, the more the moves of devices differ.

Source: Jhunjhunwala, Wang and Joshi, "FedExP: Speeding Up Federated Averaging via Extrapolation" (ICLR 2023),
algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgesim.core.limits import NonNegativeFactor
from edgesim.core.method import Aggregate, Method, ServerContext
from edgesim.core.model_state import moves, square, stepped, weighted_sum
from edgesim.core.rng import Key
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting

_FLOPS = 3.0  # a parameter of each update, and of the mean: a difference, its square, a sum


@dataclass(frozen=True, kw_only=True)
class FedExP(Method):
    """FedAvg with an adaptive server step: the server moves beyond the mean of the models when devices disagree.

    w <- w + eta sum_k p_k d_k, eta = max(1, sum_k p_k |d_k|^2 / (2 (|sum_k p_k d_k|^2 + `epsilon`))): d_k is the move
    of device k, p_k its share of the data. Running statistics of normalisation layers are averaged by data size.
    The metric `server_step` is eta.
    Differs: algorithm 1 has equal shares, which data of equal sizes give here. The paper scores the mean of the last
    two global models, here the global model is scored.

    Family: server optimiser. Formula: `w <- w + eta sum_k p_k d_k, eta = max(1, sum_k p_k |d_k|^2 / (2 (|sum_k p_k
    d_k|^2 + epsilon)))`. Paper: arXiv 2301.09604.
    """

    epsilon: NonNegativeFactor = 0.001
    """The experiments of the paper use 0.001 for images, and 0.1 for a synthetic linear problem."""

    def merge_flops(self, updates: int, setting: Setting) -> float:
        """Return the FLOPs of the squared norms of all moves and of their mean."""
        return _FLOPS * (updates + 1) * setting.cost_profile.params

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Apply the extrapolated mean of the moves."""
        sizes = self.update_weights(updates, server.setting)
        shares = (np.array(sizes) / sum(sizes)).tolist()
        old = global_model["params"]
        own = [moves(update.body["params"], old) for update in updates]
        mean = weighted_sum(own, shares)
        spread = math.fsum(share * square(move) for share, move in zip(shares, own, strict=True))
        bound = 2.0 * (square(mean) + self.epsilon)
        eta = max(1.0, spread / bound) if bound > 0 else 1.0
        buffers = server.mean({"buffers": global_model["buffers"]}, updates, sizes)["buffers"]
        model = {"params": stepped(old, mean, eta), "buffers": buffers}
        return Aggregate(state, model, metrics={"server_step": eta})


PLUGINS = {"fedexp": FedExP}
