"""MOON with FjORD: MOON's loss in FjORD's slices.

Source: a baseline of "Efficient Federated Learning with Heterogeneous Data and Adaptive Dropout" (FedDHAD, arXiv
2507.10430), which names it and does not define it. The parts: Li, He and Song (CVPR 2021) and Horvath et al. (2021).
How they are put together here is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

from edgesim.contracts import Bundle, LocalPhase, LocalRule, Needs, Pass, Setting, Task
from edgesim.learning.context import Batch, Context
from edgesim.learning.loop import gradients
from edgesim.learning.rules import cross_entropy
from edgesim.learning.submodels import Units
from edgesim.methods.fjord import Ordered, leaves_of, plain, slice_of, start
from edgesim.methods.moon import compared, contrast, keep_delivered
from edgesim.numbers import NonNegativeNumber, PositiveNumber

_PROJECTION = "project2"  # the layer of a projection head whose outputs are compared


@dataclass(frozen=True, kw_only=True)
class MoonFjORD(Ordered):
    """Ordered dropout with the loss of MOON.

    The slice that a batch trains is compared with the same slice of the model received and of the one that the device
    last delivered.
    What a projection head gives (`model = { name = "lenet5", projection = 256 }`) is whole at every width, the head's
    hidden layer is sliced; without a head the compared features are sliced. Only full width has running statistics
    (see Ordered), so narrower slices of those two models are looked at with the statistics of the batch. `mu`,
    `temperature`, `first_previous`: see Moon. Other keys: see Ordered.
    """

    mu: NonNegativeNumber = 1.0
    temperature: PositiveNumber = 0.5
    first_previous: Literal["initial", "received"] = "initial"
    needs: ClassVar[Needs] = Needs(keep="delivered")

    def local(self, task: Task) -> LocalRule:
        """Return SGD in a slice that is drawn for every batch, with the contrastive term, if there is one."""
        if not self.mu:
            return LocalRule((LocalPhase(loss=cross_entropy, gradient=plain),), start=start)
        phase = LocalPhase(loss=cross_entropy, gradient=self._gradient)
        return LocalRule((phase,), start=self._start, finish=keep_delivered)

    def _units(self, width: float, setting: Setting) -> Units:
        if len(self.widths) == 1:
            return ()  # the whole model, so that this is MOON bit for bit
        groups = super()._units(width, setting)
        return tuple((name, units) for name, units in groups if name.rpartition(".")[2] != _PROJECTION)

    def _beside(self, trained: tuple[Pass, ...]) -> tuple[Pass, ...]:
        looks = (Pass("forward", times=2.0, samples=work.samples, part=work.part) for work in trained if self.mu)
        return (*super()._beside(trained), *looks)

    def _start(self, base: Bundle, own: Bundle | None, context: Context) -> Bundle:
        """Return the model to train, and as kinds of their own, which are not sent, the two to compare it with."""
        w = start(base, own, context)
        if own is None:
            first = context.first if self.first_previous == "initial" else base
            # the run's first model may be the whole one: what the device keeps is of its largest width
            largest = w["ordered"]["slices"][context.task.part.width]
            own = {kind: {n: t[largest[n]] for n, t in tensors.items()} for kind, tensors in first.items()}
        return {**w, **compared(base, own, context)}

    def _gradient(self, w: Bundle, batch: Batch, context: Context) -> list[Tensor]:
        leaves, rank = leaves_of(w, context), next(w["ordered"]["ranks"])
        logits, z = context.features(slice_of(leaves, w, rank, moves=rank == context.task.part.width), batch.x)
        z_global, z_previous = (self._look(w, kind, rank, batch, context) for kind in ("global", "previous"))
        loss = F.cross_entropy(logits, batch.y) + self.mu * contrast(z, z_global, z_previous, self.temperature)
        return gradients(loss, list(leaves.values()))

    def _look(self, w: Bundle, kind: str, rank: int, batch: Batch, context: Context) -> Tensor:
        """Return what the slice of a frozen model makes of a batch, shape (batch, features)."""
        # a network that can be thinned has no buffers but running statistics, and normalises by the batch without them
        unused = () if rank == len(self.widths) else w["buffers"]
        corners = w["ordered"]["slices"][rank]
        tensors = {name: None if name in unused else tensor[corners[name]] for name, tensor in w[kind].items()}
        return context.tested_features({"params": tensors, "buffers": {}}, batch.x)[1]


PARTS = {"moon_fjord": MoonFjORD}
