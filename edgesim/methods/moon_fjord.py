"""MOON with FjORD: devices train FjORD's slices with MOON's loss.

Source: a baseline of "Efficient Federated Learning with Heterogeneous Data and Adaptive Dropout" (FedDHAD, arXiv
2507.10430), which names it and does not define it. The parts: Li, He and Song (CVPR 2021) and Horvath et al. (2021).
Their combination is chosen here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from torch import Tensor

from edgesim.core.limits import NonNegativeFactor, PositiveFactor
from edgesim.core.method import LocalPhase, LocalRule, LocalState, Needs
from edgesim.core.model_state import named
from edgesim.core.task import Pass, Task
from edgesim.core.view import Setting
from edgesim.learning.submodel.selection import Units
from edgesim.learning.train.context import Batch, Context
from edgesim.learning.train.loop import gradients
from edgesim.methods.fjord import Ordered, Widths, leaves_of, plain, slice_of, start, to_next_width, widths_of
from edgesim.methods.moon import Compared, compared, contrast, keep_delivered

_PROJECTION = "project2"  # the layer of a projection head whose outputs are compared


@dataclass(frozen=True, kw_only=True)
class MoonFjORD(Ordered):
    """Ordered dropout with the loss of MOON: each device trains slices of its width with the contrastive term.

    The slice that a batch trains is compared with the same slice of the received model and of the model that the device
    last delivered.
    With a projection head (`model = { name = "lenet5", projection = 256 }`) the head's output is whole at every width
    and its hidden layer is sliced. Without a head the compared features are sliced. Only full width has running
    statistics (see Ordered). Narrower slices of the two compared models therefore normalise by the statistics of the
    batch, and devices below full width need no running statistics. `mu`, `temperature`, `first_previous`: see Moon.
    Other keys: see Ordered.

    The FedDHAD paper has this baseline and does not specify how MOON and FjORD are combined. The combination is chosen
    here.

    `widths`: with `[1.0]` it is MOON, bit for bit.

    Family: smaller networks. Formula: `loss = CE - mu mean_x log(e^(c_g / T) / (e^(c_g / T) + e^(c_p / T))) of the
    slice that a batch trains`.
    """

    mu: NonNegativeFactor = 1.0
    """Li et al. tune it over 0.1, 1, 5, 10 and take 5 for CIFAR-10, 1 for CIFAR-100 and Tiny ImageNet. The FedDHAD
    paper does not give its value. At 0 it is FjORD, bit for bit, except for the output of a projection head, which
    FjORD slices.
    """
    temperature: PositiveFactor = 0.5
    """Li et al."""
    first_previous: Literal["initial", "received"] = "initial"
    """The paper does not specify this for a device without a last model. The published code gives it a random network
    of its own. Here it is the first model of the run, which all devices can draw from the seed. With `"received"` the
    term has no gradient.
    """
    needs: ClassVar[Needs] = Needs(device_state="delivered")

    def local(self, task: Task) -> LocalRule:
        """Return SGD in a slice drawn for every batch, with the contrastive term unless `mu` is 0."""
        if not self.mu:
            return LocalRule((LocalPhase(gradient=plain, after_step=to_next_width),), on_start=start)
        phase = LocalPhase(gradient=self._gradient, after_step=to_next_width)
        return LocalRule((phase,), on_start=self._start, on_finish=keep_delivered)

    def units(self, width: float, setting: Setting) -> Units:
        """Return the units at a width for each group that is sliced: the output of a projection head stays whole."""
        if len(self.widths) == 1:
            return ()  # the whole model, so that this is MOON bit for bit
        groups = super().units(width, setting)
        return tuple((name, channels) for name, channels in groups if name.rpartition(".")[2] != _PROJECTION)

    def extra_passes(self, trained: tuple[Pass, ...]) -> tuple[Pass, ...]:
        """Return the update step and the forward passes of the two compared models in each trained slice."""
        looks = (
            Pass("forward", times=2.0, samples=work.samples, submodel=work.submodel) for work in trained if self.mu
        )
        return (*super().extra_passes(trained), *looks)

    def _start(self, context: Context) -> LocalState:
        widths, previous = widths_of(context), context.device_state
        if previous is None:
            first = context.first if self.first_previous == "initial" else context.global_model
            # the run's first model may be the whole model, and a device keeps its largest width
            largest = widths.slices[context.task.submodel.width]
            previous = named(lambda name, t: t[largest[name]], first)
        models = compared(context.global_model, previous, context)
        return LocalState(context.copy(context.global_model), _Scratch(widths.ranks, widths.slices, models=models))

    def _gradient(self, local: LocalState, batch: Batch, context: Context) -> list[Tensor]:
        """Return the gradients of MOON's loss at the width of the next step."""
        leaves, rank = leaves_of(local.weights, context), local.scratch.rank
        moves = rank == context.task.submodel.width
        logits, z = context.features(slice_of(leaves, local, rank, moves=moves), batch.x)
        # a network that can be thinned has no buffers but running statistics, and normalises by the batch without them
        unused = () if rank == len(self.widths) else local.weights["buffers"]
        corners = local.scratch.slices[rank]

        def features_of(model: Mapping[str, Tensor]) -> Tensor:
            tensors = {name: None if name in unused else tensor[corners[name]] for name, tensor in model.items()}
            return context.tested_features({"params": tensors, "buffers": {}}, batch.x)[1]

        models = local.scratch.models
        z_global, z_previous = features_of(models.received), features_of(models.previous)
        loss = context.objective.loss(logits, batch.y) + self.mu * contrast(z, z_global, z_previous, self.temperature)
        return gradients(loss, list(leaves.values()))


@dataclass(slots=True)
class _Scratch(Widths):
    """Scratch of a job: the widths of its steps, and the models to compare with."""

    models: Compared = field(kw_only=True)


PLUGINS = {"moon_fjord": MoonFjORD}
