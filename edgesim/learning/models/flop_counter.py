"""PyTorch's FLOP counter, which counts all charged work."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, cast

import torch
from torch.utils.module_tracker import ModuleTracker

from edgesim.learning.models import kernel_flops

if TYPE_CHECKING:
    from torch.utils.flop_counter import FlopCounterMode


def flop_counter() -> FlopCounterMode:
    """Return torch's FLOP counter, complete for groups and for kernels of CPUs, without tracking of modules.

    torch gives no FLOPs to the fused attention of CPUs, although it does to that of GPUs, nor to oneDNN's LSTM, nor to
    the fast path of attention and encoder layers in a test. Its own formula for the weight gradient ignores groups,
    which gives fourteen times the true count for a whole EfficientNet-B0 step. It also tracks modules in the backward
    pass, which fails if a module takes or returns a parameter.
    """
    # loads Triton if it is installed: 45 MiB
    from torch.utils.flop_counter import FlopCounterMode

    aten, count = torch.ops.aten, cast("Any", torch.utils.flop_counter)  # whose formulas are not typed
    formulas = {
        aten.convolution_backward: kernel_flops.conv_backward_flops,
        aten._scaled_dot_product_flash_attention_for_cpu: _of_tensors(kernel_flops.attention_flops),
        aten._scaled_dot_product_flash_attention_for_cpu_backward: (
            lambda *shapes, **_: count.sdpa_backward_flop_count(*shapes[:4])
        ),
        aten.mkldnn_rnn_layer: _of_tensors(kernel_flops.rnn_flops),
        aten.mkldnn_rnn_layer_backward: _of_tensors(kernel_flops.rnn_backward_flops),
        aten._native_multi_head_attention: _of_tensors(kernel_flops.self_attention_flops),
        aten._transformer_encoder_layer_fwd: _of_tensors(kernel_flops.encoder_layer_flops),
    }
    counter = FlopCounterMode(display=False, custom_mapping=formulas)
    counter.mod_tracker = _NoModules()
    return counter


def plain_formulas() -> dict[Any, Callable[..., int]]:
    """Return the formula of every operation that has one, by its overload packet, as prices count.

    A formula takes the operands of the operation, tensors included, and its result as `out_val`. The backward pass of
    fused attention has the products that its gradients take, and not the one that the kernel repeats.
    """
    formulas: dict[Any, Callable[..., int]] = flop_counter().flop_registry
    fused = [each for each in formulas if str(each).startswith("aten._scaled_dot_product")]
    backward = [each for each in fused if str(each).endswith("_backward")]
    return {
        **formulas,
        **dict.fromkeys(fused, _of_tensors(kernel_flops.attention_flops)),
        **dict.fromkeys(backward, _of_tensors(kernel_flops.attention_backward_flops)),
    }


class _NoModules(ModuleTracker):
    """A tracker that watches no module, so that all FLOPs belong to the whole network."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _of_tensors(formula: Callable[..., int]) -> Callable[..., int]:
    """Return a formula that torch calls with tensors and not with their shapes."""

    def of_tensors(*args: Any, out_val: object = None, **_: object) -> int:
        return formula(*args)

    cast("Any", of_tensors)._get_raw = True
    return of_tensors
