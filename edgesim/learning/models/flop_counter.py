"""PyTorch's FLOP counter, which counts all charged work."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self, cast

import torch
from torch.utils.module_tracker import ModuleTracker

if TYPE_CHECKING:
    from torch.utils.flop_counter import FlopCounterMode


def flop_counter() -> FlopCounterMode:
    """Return torch's FLOP counter, complete for convolutions in groups and attention, without tracking of modules.

    torch gives no FLOPs to the fused attention of CPUs, although it does to that of GPUs. Its own formula for the
    weight gradient ignores groups, which gives fourteen times the true count for a whole EfficientNet-B0 step. It also
    tracks modules in the backward pass, which fails if a module takes or returns a parameter.
    """
    # loads Triton if it is installed: 45 MiB
    from torch.utils.flop_counter import FlopCounterMode

    aten, count = torch.ops.aten, cast("Any", torch.utils.flop_counter)  # whose formulas are not typed
    formulas = {
        aten.convolution_backward: _conv_backward_flops,
        aten._scaled_dot_product_flash_attention_for_cpu: lambda *shapes, **_: count.sdpa_flop_count(*shapes[:3]),
        aten._scaled_dot_product_flash_attention_for_cpu_backward: (
            lambda *shapes, **_: count.sdpa_backward_flop_count(*shapes[:4])
        ),
    }
    counter = FlopCounterMode(display=False, custom_mapping=formulas)
    counter.mod_tracker = _NoModules()
    return counter


class _NoModules(ModuleTracker):
    """A tracker that watches no module, so that all FLOPs belong to the whole network."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _conv_backward_flops(
    grad_shape: Sequence[int],
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    _bias: object,
    _stride: object,
    _padding: object,
    _dilation: object,
    transposed: bool,
    _output_padding: object,
    _groups: int,  # already in w_shape, whose second size is per group
    output_mask: Sequence[bool],
    out_shape: object,
) -> int:
    """Return FLOPs: each gradient, of input and of weight, takes two per weight, kernel position and sample."""
    positions = math.prod((x_shape if transposed else grad_shape)[2:])
    return 2 * x_shape[0] * positions * math.prod(w_shape) * sum(output_mask[:2])
