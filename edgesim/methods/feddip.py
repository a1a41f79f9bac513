"""FedDIP: magnitude pruning of ever more weights at intervals, and a penalty that grows in steps.

Source: Q. Long, C. Anagnostopoulos, S. P. Parambath and D. Bi, "FedDIP: Federated Learning with Extreme Dynamic Pruning
and Incremental Regularization" (ICDM 2023, arXiv 2309.06805) and its authors' published code; training of what is
pruned by the gradient at the pruned model: Lin et al., "Dynamic Model Pruning with Feedback" (ICLR 2020).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Le, Lt
from torch import Tensor

from edgesim.core.errors import ConfigError
from edgesim.core.limits import Count, NonNegativeFactor
from edgesim.core.method import Aggregate, LocalPhase, LocalRule, LocalState, Needs, ServerContext
from edgesim.core.rng import Key
from edgesim.core.task import Pass, Payload, Plan, Submodel, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.submodel import masks
from edgesim.learning.train.context import Batch, Context
from edgesim.learning.train.loop import gradients
from edgesim.learning.train.rules import objective_loss
from edgesim.methods.fedavg import FedAvg
from edgesim.methods.prunefl import dense_flops

_PENALTY_FLOPS = 4.0  # per parameter and step: its square and sum, its multiple and sum


@dataclass(frozen=True, kw_only=True)
class FedDIP(FedAvg):
    """To save bytes and FLOPs, the server prunes ever more weights of the global model, the smallest first.

    The server prunes in rounds 0, `interval`, 2 `interval` and so on. After round t of `rounds` a share
    s + (s_0 - s) (1 - t / rounds)^3 of all weights is pruned, the smallest ones whatever their layer: from
    `initial_sparsity` s_0 to `sparsity` s. The loss has the penalty lambda_t times the sum of the norms of the layers'
    weights; lambda_t rises from 0 to `lam_max` in `lam_steps` equal steps. In the first round devices train under a
    random mask of s_0, with more weights where a layer has few (ERK, see FedDST). `regrowth`: in a round that ends with
    a pruning, devices also move pruned weights, by the gradient at the pruned model, and send all of their weights, so
    that pruned weights can come back. `bitmap`: where encodings send masks, the server sends them only if they have
    "changed", or "always". The metric `density` is the share of weights that remain. Keys of the average: see FedAvg.

    In all other rounds the server puts the mean under the mask, so pruned weights matter only before a pruning.
    Otherwise devices neither compute nor send them. The first random mask is the same for all devices. After `rounds`
    sparsity and penalty stay. The gradient of pruned weights costs as much as in the whole model. The mask depends on
    training, so the method does not run on the null backend.

    Family: pruning. Formula: `share of zeros after round t: s + (s_0 - s) (1 - t / rounds)^3`.
    """

    sparsity: Annotated[float, Ge(0), Lt(1)] = 0.9
    """The share that is pruned at the end. The authors have 0.9 and 0.95 among others."""
    initial_sparsity: Annotated[float, Ge(0), Lt(1)] = 0.5
    """The authors' code; at most `sparsity`."""
    rounds: Count = 1000
    """The authors' code. Both schedules end here, whatever the length of the run."""
    interval: Count = 5  # rounds from one pruning to the next
    """The authors' example for AlexNet; 20 for ResNet18."""
    lam_max: NonNegativeFactor = 0.001
    """The authors' code. At 0 there is no penalty."""
    lam_steps: Annotated[int, Ge(2), Le(10**6)] = 20
    """The authors' code has 20 segments too. Its second segment has 0.0005, and its last stays a step below the end."""
    regrowth: bool = True
    """The paper has pruning with error feedback. Its code puts the mean under the old mask before it prunes, so that
    after the first round no weight can come back: `false`, which saves whole messages and gradients.
    """
    bitmap: Literal["changed", "always"] = "changed"
    """A mask is sent if it changed. A device that missed that round would need the mask later, which is not counted;
    `"always"` counts it. Only where `encoding` sends masks (`zeros` other than `"sent"`), and only for messages of the
    server, as it knows the masks of the devices' messages.
    """
    needs: ClassVar[Needs] = Needs(feedback=True)
    no_server_optimizer: ClassVar[str] = masks.ZEROS_STAY
    no_update_encoding: ClassVar[str] = masks.ZEROS_GO

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the numbers of weights of each layer at first. Raises ConfigError for a model that no mask fits."""
        super().init(setting, key)
        if self.initial_sparsity > self.sparsity:
            raise ConfigError(
                f"method.initial_sparsity: must be at most method.sparsity, {self.sparsity:g}; "
                f"found {self.initial_sparsity:g}"
            )
        shapes = masks.weight_shapes(setting.cost_profile)
        counts = masks.kept_counts(shapes, masks.densities(shapes, self.initial_sparsity, "erk"))
        return {"nonzero": dict(masks.nonzeros(counts)), "changed": -1, "seed": key.exact_word()}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train under the mask, and before a pruning to send pruned weights too."""
        setting, ids, first = view.setting, view.choose(key), view.version == 0
        submodel = Submodel("pruned", nnz=tuple(state["nonzero"].items()))
        known = self.bitmap == "changed" and state["changed"] != view.round - 1
        sparse_down = Payload(encoding=masks.wire(setting.encoding_down, known))
        sparse_up = Payload(encoding=masks.wire(setting.encoding_up, known=True))
        feedback = first or (self.regrowth and self._prunes_after(view.round))
        lam = self.penalty(view.round)
        plain = Task(
            name="feedback" if feedback else "train",
            submodel=submodel,
            local_sgd=(setting.training.local_sgd(view.round),),
            down=_whole(sparse_down, submodel, setting, up=False) if first else sparse_down,
            up=_whole(sparse_up, submodel, setting, up=True) if feedback else sparse_up,
            passes=(Pass(), *((Pass("param_step", times=_PENALTY_FLOPS),) if lam else ())),
            config={"lam": lam, **({"seed": state["seed"]} if first else {})},
        )
        extra = dense_flops(setting, submodel, ids).tolist() if feedback else [0.0] * len(ids)

        def task_of(flops: float) -> Task:
            return replace(plain, passes=(*plain.passes, Pass("flops", times=flops))) if flops else plain

        return Plan.by_kind(ids.tolist(), extra, task_of)

    def local(self, task: Task) -> LocalRule:
        """Return SGD along the gradient at the pruned model. It moves pruned weights only if they are sent."""

        def start(context: Context) -> LocalState:
            received, config = context.global_model, context.task.config
            w = context.copy(masks.without_masks(received))
            mask = masks.masks_in(received)
            if "seed" in config:  # the first model of the run comes whole
                counts = masks.counts_in(context.task.submodel)
                mask = masks.at_random(
                    {name: tuple(w["params"][name].shape) for name in counts}, counts, Key(int(config["seed"]))
                )
            return LocalState(w, masks.UnderMask(masks.laid_out(mask, w["params"])))

        adjust = None if task.name == "feedback" else masks.masked_gradients
        return LocalRule((LocalPhase(gradient=_at_the_pruned, adjust_gradients=adjust),), on_start=start)

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the mean by data size, under the mask or, in some rounds, under a new one of its largest weights."""
        mask, old = masks.masks_in(global_model), masks.without_masks(global_model)
        mean = super().combine(state, old, updates, server, key).model
        assert mean is not None
        if not mask or self._prunes_after(server.round):
            candidates = mean["params"] if self.regrowth or not mask else masks.applied(mean, mask)["params"]
            mask = largest_of_all(
                candidates, list(masks.weight_shapes(server.setting.cost_profile)), self.share(server.round)
            )
            state = {**state, "nonzero": dict(masks.nonzeros(masks.counts_of(mask))), "changed": server.round}
        density = sum(state["nonzero"].values()) / sum(each.numel() for each in mask.values())
        return Aggregate(state, masks.with_masks(masks.applied(mean, mask), mask), metrics={"density": density})

    def share(self, t: int) -> float:
        """Return the share of all weights that is pruned after round `t`, counted from 0."""
        left = 1 - min(t / self.rounds, 1.0)
        return float(self.sparsity + (self.initial_sparsity - self.sparsity) * left**3)

    def penalty(self, t: int) -> float:
        """Return lambda_t of round `t`, counted from 0: lam_max i / (lam_steps - 1) in the i-th of lam_steps parts."""
        part = min(t * self.lam_steps // self.rounds, self.lam_steps - 1)
        return float(self.lam_max * part / (self.lam_steps - 1))

    def _prunes_after(self, round_: int) -> bool:
        return round_ % self.interval == 0


def largest_of_all(params: Mapping[str, Tensor], names: Sequence[str], share: float) -> dict[str, Tensor]:
    """Return masks without this share of the weights of these tensors, the smallest of all; rounded half to even."""
    flat = torch.cat([params[name].flatten() for name in names])
    mask = masks.largest(flat.abs(), len(flat) - round(share * len(flat)))
    pieces = zip(names, torch.split(mask, [params[name].numel() for name in names]), strict=True)
    return masks.laid_out({name: piece.view(params[name].shape) for name, piece in pieces}, params)


def _whole(sparse: Payload, submodel: Submodel, setting: Setting, up: bool) -> Payload:
    """Return a payload at the price of all weights, whatever the mask of the submodel."""
    usual, cost_profile = setting.encoding_up if up else setting.encoding_down, setting.cost_profile
    extra_bytes = cost_profile.nbytes(Payload(), usual=usual) - cost_profile.nbytes(sparse, submodel, usual)
    return replace(sparse, extra_bytes=extra_bytes)


def _at_the_pruned(local: LocalState, batch: Batch, context: Context) -> list[Tensor]:
    """Return the gradients of the loss and its penalty at the weights under the mask, of pruned weights too."""
    mask, lam, params = local.scratch.mask, context.task.config["lam"], local.weights["params"]
    pruned = {
        name: masks.zeroed(params[name], mask[name]) if name in mask else params[name] for name in context.trained
    }
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in pruned.items()}
    loss = objective_loss({"params": leaves, "buffers": local.weights["buffers"]}, batch, context)
    if lam:
        loss = loss + lam * torch.stack([torch.linalg.vector_norm(leaves[name]) for name in mask]).sum()
    return gradients(loss, list(leaves.values()))


PLUGINS = {"feddip": FedDIP}
