"""One-shot magnitude pruning: FedAvg that from some round on trains only the largest weights, under a fixed mask.

Source: Han, Pool, Tran and Dally, "Learning both Weights and Connections for Efficient Neural Networks" (NeurIPS 2015),
train, prune, retrain, with one pruning; "layerwise magnitude", the baseline of Blalock et al., "What is the State of
Neural Network Pruning?" (MLSys 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from edgesim.core.limits import CountOrZero, PositiveShare
from edgesim.core.method import Aggregate, LocalPhase, LocalRule, LocalState, Needs, ServerContext
from edgesim.core.rng import Key
from edgesim.core.task import Payload, Plan, Submodel, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.submodel import masks
from edgesim.learning.train.context import Context
from edgesim.methods.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class OneShotPruning(FedAvg):
    """FedAvg whose server prunes the model once, after `warm_up_rounds`, to a share `keep` of its weights.

    In each tensor of weights the largest stay. `allocation`: the same share in all tensors ("uniform"), or larger
    shares in small tensors ("erk", see FedDST). From then on devices train and send only the kept weights. Without
    warm-up rounds the first model is pruned, and every device can compute its mask. `bitmap`: where encodings send
    masks, the server sends the mask only after the pruning ("changed"), or in every round ("always"). The metric
    `density` is the share of unpruned weights. Keys of the average: see FedAvg.

    If no update arrives in the round before the pruning, the old model is pruned. A whole model that arrives later is
    masked like all others. The cost profile gives the number of weights of each tensor, for linear layers and
    convolutions with square kernels in one group. Other models are refused. Zeros save FLOPs with
    `cost = { name = "measured", sparse = "ideal" }` and bytes with `encoding.up = { zeros = "bitmap" }`.

    Family: pruning. Formula: `w <- m w, where m keeps the largest weights of each tensor, a share keep`. Paper: arXiv
    1506.02626.
    """

    keep: PositiveShare = 0.2
    """Chosen here: the sparsity 0.8 of FedDST's main table. Rounded down in every tensor. At 1 it is FedAvg, bit for
    bit.
    """
    warm_up_rounds: CountOrZero = 10  # rounds of the whole model
    """Chosen here. Han et al. train to the end before they prune. `0` prunes at the start, which costs least."""
    allocation: Literal["uniform", "erk"] = "uniform"
    """Blalock et al.: the same share of every layer. `"erk"` is the rule of Evci et al. (2020)."""
    bitmap: Literal["changed", "always"] = "changed"
    """A mask is sent once. A device that missed that round would need the mask later, and these bytes are not counted.
    `"always"` counts them. It matters only where `encoding` sends masks (`zeros` other than `"sent"`), and never for
    the mask of the first model.
    """
    needs: ClassVar[Needs] = Needs()
    no_server_optimizer: ClassVar[str] = masks.ZEROS_STAY
    no_update_encoding: ClassVar[str] = masks.ZEROS_GO

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the number of weights that each tensor will keep. Raises ConfigError for a model that no mask fits."""
        super().init(setting, key)
        shapes = masks.weight_shapes(setting.cost_profile)
        shares = dict.fromkeys(shapes, self.keep)
        if self.allocation == "erk":
            shares = masks.densities(shapes, 1 - self.keep, "erk")
        return {"kept": masks.kept_counts(shapes, shares)}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train the whole model, or the pruned one after the warm-up."""
        devices = view.choose(key).tolist()
        if view.round < self.warm_up_rounds:
            return Plan.of_one_task(devices, self.task(view))
        setting = view.setting
        known = not self.warm_up_rounds or (self.bitmap == "changed" and view.round > self.warm_up_rounds)
        task = Task(
            submodel=Submodel("pruned", nnz=masks.nonzeros(state["kept"])),
            local_sgd=(setting.training.local_sgd(view.round),),
            down=Payload(encoding=masks.wire(setting.encoding_down, known)),
            up=Payload(encoding=masks.wire(setting.encoding_up, known=True)),
        )
        return Plan.of_one_task(devices, task)

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy, under the mask after the warm-up."""
        if not task.submodel.nnz:
            return super().local(task)
        return LocalRule((LocalPhase(adjust_gradients=masks.masked_gradients),), on_start=_start)

    def aggregate(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the mean by data size, under the mask after the warm-up, whose last round chooses the mask."""
        mask, old = masks.masks_in(global_model), masks.without_masks(global_model)
        merged = super().aggregate(state, old, updates, server, key)
        if server.round + 1 < self.warm_up_rounds:
            return merged._replace(metrics={**merged.metrics, "density": 1.0})
        pruned_now = server.round + 1 == self.warm_up_rounds
        if merged.model is None and not pruned_now:
            return merged
        new = old if merged.model is None else merged.model
        if not mask:
            mask = masks.by_magnitude((new if self.warm_up_rounds else old)["params"], state["kept"])
        density = sum(state["kept"].values()) / sum(each.numel() for each in mask.values())
        model = masks.with_masks(masks.applied(new, mask), mask)
        return merged._replace(model=model, metrics={**merged.metrics, "density": density})


def _start(context: Context) -> LocalState:
    """Return the model under its mask. The run's first model has no mask and is pruned here."""
    received, counts = context.global_model, masks.counts_in(context.task.submodel)
    mask = masks.masks_in(received) or masks.by_magnitude(context.first["params"], counts)
    whole = context.copy(masks.without_masks(received))
    mask = masks.laid_out(mask, whole["params"])
    return LocalState(context.copy(masks.applied(whole, mask)), masks.UnderMask(mask))


PLUGINS = {"one_shot_pruning": OneShotPruning}
