"""The reference work of papers that say only: backward is twice as much as forward."""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgesim.core.arrays import Arr
from edgesim.core.price_list import CostProfile, Sparse
from edgesim.core.task import Pass, Submodel
from edgesim.learning.cost_models.measured import Measured


@dataclass(frozen=True, kw_only=True)
class X3:
    """Training costs three times the forward FLOPs of the model that a device holds, thinner ones included.

    Forward FLOPs are those that PyTorch's counter scores: 2 for each multiply-accumulate of convolutions and matrix
    products, none for biases, normalisation, activations and pooling. All else is priced as by `measured`. The rule
    knows only which model is held: a frozen layer costs as much as a trained one, and a first layer has an input
    gradient too. `sparse`: as for `measured`.
    Source: "Efficient Federated Learning with Heterogeneous Data and Adaptive Dropout", arXiv 2507.10430.
    """

    sparse: Sparse = "dense"

    def check(self, widths: int) -> None:
        """Accept every method: any part has a forward pass."""

    def flops(self, cost_profile: CostProfile, work: Pass, submodel: Submodel, samples: Arr, steps: Arr) -> Arr:
        """Return FLOPs, shape (k,), of one pass over `samples` in `steps` SGD steps, both of shape (k,)."""
        measured = Measured(sparse=self.sparse)
        if work.kind == "train":
            return 3.0 * measured.flops(cost_profile, replace(work, kind="forward"), submodel, samples, steps)
        return measured.flops(cost_profile, work, submodel, samples, steps)


PLUGINS = {"x3": X3}
