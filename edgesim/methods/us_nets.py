"""Universally slimmable networks: on devices every step trains the widest, the narrowest and some random widths.

Source: J. Yu and T. Huang, "Universally Slimmable Networks and Improved Training Techniques" (ICCV 2019): sandwich rule
and in-place distillation, algorithm 1, and the authors' published code. The federated form, with FjORD's slices and
mean, is chosen here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch.nn.functional as F
from annotated_types import MinLen
from torch import Tensor

from edgesim.core.arrays import Ids
from edgesim.core.limits import CountOrZero, PositiveShare
from edgesim.core.method import LocalPhase, LocalRule, LocalState
from edgesim.core.rng import Key
from edgesim.core.task import Pass, Payload, Submodel, Task
from edgesim.core.view import View
from edgesim.learning.train.context import Batch, Context
from edgesim.learning.train.loop import gradients
from edgesim.methods.fjord import Ordered, batch_sizes, leaves_of, slice_of, to_next_width


@dataclass(frozen=True, kw_only=True)
class Slimmable(Ordered):
    """Slices of several widths trained in every step. Subclasses set the widths of a step and their factors.

    `distill`: narrower slices learn from the outputs of the device's widest slice, else from the labels. The widest
    always learns from the labels. `tiers`: "all" gives all devices the whole model. Other keys: see Ordered.
    """

    tiers: Literal["random", "level", "speed", "all"] = "all"
    """The source trains one network. With `"random"`, `"speed"` or `"level"` a device's own widest slice replaces it.
    """
    distill: bool = True
    """Yu and Huang's in-place distillation, at temperature 1: soft labels without a gradient through them."""

    @property
    def between(self) -> int:
        """Number of random widths between the narrowest and the widest that a step trains."""
        return 0

    @property
    def factors(self) -> tuple[float, float]:
        """Factors of the gradients of narrower slices and of the widest slice."""
        return 1.0, 1.0

    @property
    def needs_classes(self) -> str:
        """The reason why labels have to be classes; empty without distillation."""
        return "lets narrow slices learn the classes that the widest sees" if self.distill else ""

    def local(self, task: Task) -> LocalRule:
        """Return SGD along the sum of the gradients of a step's slices."""
        return LocalRule((LocalPhase(gradient=self._gradient, after_step=to_next_width),), on_start=self._start)

    def device_task(self, device: int, submodels: Sequence[Submodel], seed: int, view: View) -> Task:
        """Return the task of a device that trains the largest of these slices and narrower ones in every step."""
        setting, sgd = view.setting, view.setting.training.local_sgd(view.round)
        sizes = batch_sizes(sgd, int(setting.samples[device]), setting.cost_profile.drop_single)
        ranks = narrower_ranks(seed, len(submodels), len(sizes), self.between)
        samples = np.bincount(ranks.flatten(), np.repeat(sizes, ranks.shape[1]), minlength=len(submodels) + 1).astype(
            int
        )
        narrower = (
            Pass(samples=n, submodel=submodel) for submodel, n in zip(submodels, samples[1:].tolist(), strict=True) if n
        )
        whole = len(submodels) == len(self.widths)
        payload = Payload(collections=frozenset({"params", "buffers"} if whole else {"params"}))
        return Task(
            submodel=submodels[-1],
            local_sgd=(sgd,),
            down=payload,
            up=payload,
            passes=(Pass(), *narrower),
            config={"seed": seed},
        )

    def _start(self, context: Context) -> LocalState:
        """Return a copy of the received model, the narrower widths of every step and the places of their slices."""
        task, (sgd,) = context.task, context.task.local_sgd
        steps = len(batch_sizes(sgd, len(context.shard), context.drop_single))
        ranks = narrower_ranks(int(task.config["seed"]), task.submodel.width, steps, self.between)
        submodels = (task.submodel, *(work.submodel for work in task.passes if work.submodel))
        slices = {submodel.width: context.corners(submodel) for submodel in submodels}
        return LocalState(context.copy(context.global_model), Sandwich(ranks.tolist(), slices))

    def _gradient(self, local: LocalState, batch: Batch, context: Context) -> list[Tensor]:
        """Return the sum of the gradients of the widest slice and of the narrower ones, in this order."""
        scratch, widest = local.scratch, context.task.submodel.width
        leaves = leaves_of(local.weights, context)
        wrt, narrower = list(leaves.values()), scratch.ranks[scratch.step]
        logits = context.forward(slice_of(leaves, local, widest, moves=True), batch.x)
        total = gradients(context.objective.loss(logits, batch.y), wrt)
        small, large = self.factors if narrower else (1.0, 1.0)
        total = total if large == 1 else [large * g for g in total]
        wanted = logits.detach().softmax(dim=1) if self.distill else batch.y
        for rank in narrower:
            logits = context.forward(slice_of(leaves, local, rank, moves=False), batch.x)
            loss = F.cross_entropy if self.distill else context.objective.loss
            found = gradients(loss(logits, wanted), wrt)
            total = [g.add(more, alpha=small) for g, more in zip(total, found, strict=True)]
        return total


@dataclass(frozen=True, kw_only=True)
class USNets(Slimmable):
    """Sandwich rule: a step trains the widest slice, the narrowest, and `random_widths` distinct ones between them.

    All gradients count the same, and one step is taken along their sum. `distill`: narrower slices learn from the
    outputs of the device's widest slice, else from the labels. The widest always learns from the labels. `tiers`: "all"
    gives all devices the whole model, otherwise the device's own widest slice replaces it. Other keys: see Ordered.

    The source draws widths from a continuous range. Here they come from `widths`, because each width has its price. The
    source computes statistics of normalisation after training. Here they are left out: the model is tested at full
    width, whose running statistics are kept as in FjORD. The widths of a step are computed one after the other, so that
    they need no more memory than the widest.

    Family: smaller networks. Formula: `w <- w - lr (g(widest) + g(narrowest) + sum_r g(random width r)) in local
    steps`. Paper: arXiv 1903.05134.
    """

    widths: Annotated[tuple[PositiveShare, ...], MinLen(1)] = (0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0)
    """Yu and Huang train from 0.25 to 1. The steps of one eighth are chosen here. With `[1.0]` it is FedAvg."""
    random_widths: CountOrZero = 2
    """Yu and Huang: n = 4 widths a step, two of them random. Fewer where there are fewer widths between."""

    @property
    def between(self) -> int:
        """Number of random widths between the narrowest and the widest that a step trains."""
        return self.random_widths


def narrower_ranks(seed: int, largest: int, steps: int, between: int) -> Ids:
    """Return the ranks, from 1, of the widths below the largest that each step trains, shape (steps, widths a step).

    The narrowest comes last, after `between` distinct random ones between it and the largest, or all of them if fewer.
    """
    inner = np.tile(np.arange(2, largest), (steps, 1))
    drawn = Key(seed).numpy().permuted(inner, axis=1)[:, :between]
    narrowest = np.ones((steps, int(largest > 1)), dtype=np.int64)
    return np.hstack([drawn, narrowest])


@dataclass(slots=True)
class Sandwich:
    """Scratch of a job: the ranks of each step's narrower widths, the slices by rank, and the next step."""

    ranks: Sequence[Sequence[int]]
    slices: Mapping[int, Mapping[str, tuple[slice, ...]]]
    step: int = 0


PLUGINS = {"us_nets": USNets}
