"""Cost model of papers that only state that backward takes twice the FLOPs of forward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from edgesim.core.arrays import Arr
from edgesim.core.cost_model import CostModel
from edgesim.core.price_list import CostProfile, Sparse
from edgesim.core.task import Pass, Submodel
from edgesim.learning.cost_models.measured import Measured


@dataclass(frozen=True, kw_only=True)
class X3(CostModel):
    """Training costs three times the forward FLOPs of the model that a device holds, whole or thinner.

    Forward FLOPs come from PyTorch's counter: 2 for each multiply-accumulate of convolutions and matrix products, none
    for biases, normalisation, activations and pooling. All other work is priced as by `measured`. The rule depends only
    on the held model: a frozen layer costs as much as a trained one, and the first layer has an input gradient too.
    `sparse`: as for `measured`.
    Source: "Efficient Federated Learning with Heterogeneous Data and Adaptive Dropout", arXiv 2507.10430.
    """

    sparse: Sparse = "dense"

    def flops(self, cost_profile: CostProfile, work: Pass, submodel: Submodel, samples: Arr, steps: Arr) -> Arr:
        """Return FLOPs, shape (k,), of one pass over `samples` in `steps` SGD steps, both of shape (k,)."""
        measured = Measured(sparse=self.sparse)
        if work.kind == "train":
            return 3.0 * measured.flops(cost_profile, replace(work, kind="forward"), submodel, samples, steps)
        return measured.flops(cost_profile, work, submodel, samples, steps)

    def amounts(
        self, cost_profile: CostProfile, work: Pass, submodel: Submodel, samples: Arr, steps: Arr
    ) -> Mapping[str, Arr] | None:
        """Return the amounts of all kinds of work, each of shape (k,): training does three times the forward work."""
        if cost_profile.work is None:
            return None
        measured = Measured(sparse=self.sparse)
        amounts = measured.amounts(cost_profile, work, submodel, samples, steps)
        if work.kind != "train":
            return amounts
        forward = measured.amounts(cost_profile, replace(work, kind="forward"), submodel, samples, steps)
        tripled = {kind: 3.0 * amount for kind, amount in forward.items()}
        return tripled | {kind: amounts[kind] for kind in amounts.keys() & {"samples", "steps", "update_bytes"}}


PLUGINS = {"x3": X3}
