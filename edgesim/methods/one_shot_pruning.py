"""One-shot magnitude pruning: FedAvg, from some round on under one mask of the largest weights, which stays.

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

    Of each tensor of weights the largest stay. `allocation`: the same share of all ("uniform"), or more where a tensor
    has few ("erk", see FedDST). From then on devices train and send what the mask keeps. After no round of warm-up it
    is the first model that is pruned, whose mask every device can work out. `bitmap`: where encodings send masks, the
    server does so only after the pruning ("changed"), or in every round ("always"). The metric `density` is the share
    of weights that are there. Keys of the average: see FedAvg.

    If no update arrives in the round before the pruning, the old model is pruned. A whole model that arrives later is
    put under the mask with all others. How many weights a tensor keeps is known from the cost profile: linear layers
    and convolutions with square kernels in one group; other models are refused. Zeros save FLOPs with
    `cost = { name = "measured", sparse = "ideal" }` and bytes with `encoding.up = { zeros = "bitmap" }`.
    """

    keep: PositiveShare = 0.2
    """Ours: the sparsity 0.8 of FedDST's main table. Rounded down in every tensor. At 1 it is FedAvg, bit for bit."""
    warm_up_rounds: CountOrZero = 10  # rounds of the whole model
    """Ours. Han et al. train to the end before they prune; `0` prunes at the start, which costs least."""
    allocation: Literal["uniform", "erk"] = "uniform"
    """Blalock et al.: the same share of every layer. `"erk"` is the rule of Evci et al. (2020)."""
    bitmap: Literal["changed", "always"] = "changed"
    """A mask is sent once. Who missed that round would need it later, which nobody counts: `"always"` does. Only where
    `encoding` sends masks (`zeros` other than `"sent"`), and never for the mask of the first model.
    """
    needs: ClassVar[Needs] = Needs()
    no_server_optimizer: ClassVar[str] = masks.ZEROS_STAY
    no_update_encoding: ClassVar[str] = masks.ZEROS_GO

    def init(self, setting: Setting, key: Key) -> Any:
        """Return how many weights each tensor will keep. Raises ConfigError for a model that no mask fits."""
        super().init(setting, key)
        shapes = masks.weight_shapes(setting.cost_profile)
        shares = dict.fromkeys(shapes, self.keep)
        if self.allocation == "erk":
            shares = masks.densities(shapes, 1 - self.keep, "erk")
        return {"kept": masks.kept_counts(shapes, shares)}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train the whole model, or what was kept of it."""
        devices = view.choose(key).tolist()
        if view.round < self.warm_up_rounds:
            return Plan.of_one_task(devices, self.task(view))
        setting = view.setting
        task = Task(
            submodel=Submodel("pruned", nnz=masks.nonzeros(state["kept"])),
            local_sgd=(setting.training.local_sgd(view.round),),
            down=Payload(encoding=masks.wire(setting.encoding_down, self._known(view.round))),
            up=Payload(encoding=masks.wire(setting.encoding_up, known=True)),
        )
        return Plan.of_one_task(devices, task)

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy, under the mask if there is one."""
        if not task.submodel.nnz:
            return super().local(task)
        return LocalRule((LocalPhase(adjust_gradients=masks.masked_gradients),), on_start=_start)

    def aggregate(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the mean by data size, under the mask once there is one; the last round of the warm-up makes it."""
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

    def _known(self, round_: int) -> bool:
        """Whether devices know the mask before the server sends a model under it."""
        return not self.warm_up_rounds or (self.bitmap == "changed" and round_ > self.warm_up_rounds)


def _start(context: Context) -> LocalState:
    """Return the model under the mask that it carries; the run's first model, which carries none, is pruned here."""
    received, counts = context.global_model, masks.counts_in(context.task.submodel)
    mask = masks.masks_in(received) or masks.by_magnitude(context.first["params"], counts)
    whole = context.copy(masks.without_masks(received))
    mask = masks.laid_out(mask, whole["params"])
    return LocalState(context.copy(masks.applied(whole, mask)), masks.Masked(mask))


PLUGINS = {"one_shot_pruning": OneShotPruning}
