"""FlexLoRA: the server averages the products of low-rank adapters, and factors the mean for each device's rank.

Source: Bai et al., "Federated Fine-tuning of Large Language Models under Heterogeneous Tasks and Client Resources"
(NeurIPS 2024, arXiv 2402.11505), section 3, from memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from edgesim.core.method import Aggregate, ServerContext
from edgesim.core.rng import Key
from edgesim.core.task import Submodel, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting
from edgesim.methods.lora.adapters import adapters_of, product, shares, without
from edgesim.methods.lora.ranks import ByRank


@dataclass(frozen=True, kw_only=True)
class FlexLoRA(ByRank):
    """Devices train adapters of different ranks. The server averages their products by data size, without loss.

    It factors the mean product by a singular value decomposition, U S V^T. B becomes the first columns of U S, and A
    the first rows of V^T: as many as the network's rank. A device of rank r gets the first r of them, the best product
    of its rank. The server decomposes the mean of whole products in every round, so a small rank of one device costs
    the others nothing. Parameters beside the adapters are averaged by data size.

    `ranks`: rising, at most the rank of the network's adapters. `tiers`: with "fix" a device keeps a rank that is drawn
    once, in the given `proportions`, equal ones if unset. With "level" devices of level i have the i-th rank.

    The paper does not specify the work of the server. Here a product of m x r and r x n costs 2 m r n FLOPs, and the
    decomposition of m >= n costs 6 m n^2 + 20 n^3 (Golub and Van Loan, "Matrix Computations", from memory).

    Family: low-rank adapters. Formula: `B A <- SVD_r(sum_k n_k B_k A_k / sum_k n_k)`. Paper: arXiv 2402.11505.
    """

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the factors of the mean products, and the mean of the other parameters."""
        adapters = adapters_of(server.setting.cost_profile)
        weights = self.update_weights(updates, server.setting)
        model = server.mean(global_model, without(adapters, updates), weights)
        params = dict(model["params"])
        if sum(weights) > 0:
            for each in adapters:
                whole = sum(
                    share * product(each, update.body["params"])
                    for share, update in zip(shares(weights), updates, strict=True)
                )
                u, s, v = torch.linalg.svd(whole, full_matrices=False)
                a, b = (torch.zeros_like(params[name], dtype=torch.float64) for name in (each.a, each.b))
                kept = min(each.rank, len(s))
                b.flatten(1)[:, :kept] = u[:, :kept] * s[:kept]
                a.flatten(1)[:kept] = v[:kept]
                params[each.a], params[each.b] = a.to(params[each.a].dtype), b.to(params[each.b].dtype)
        return Aggregate(state, {**model, "params": params})

    def merge_flops(self, updates: int, setting: Setting) -> float:
        """Return the FLOPs of the products of whole adapters and of the decompositions."""
        return self.merge_flops_of([Task()] * updates, setting)

    def merge_flops_of(self, tasks: Sequence[Task], setting: Setting) -> float:
        """Return the FLOPs of the products of the adapters in these tasks and of the decompositions."""
        return float(sum(_flops(each, [task.submodel for task in tasks]) for each in adapters_of(setting.cost_profile)))


def _flops(adapter: Any, submodels: Sequence[Submodel]) -> int:
    small, large = sorted((adapter.inputs, adapter.outputs))
    ranks = sum(adapter.rank_in(submodel) for submodel in submodels)
    return 2 * ranks * small * large + 6 * large * small**2 + 20 * small**3


PLUGINS = {"flexlora": FlexLoRA}
