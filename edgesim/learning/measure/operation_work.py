"""Work of one operation of torch by kind, as it is seen below autograd."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

_WITHOUT_VALUES = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view"}


def does_work(func: Any) -> bool:
    """Return True if an operation reads or writes numbers. Views and tensors without values cost nothing."""
    return not func.is_view and func.overloadpacket.__name__ not in _WITHOUT_VALUES


def convolving(name: str, args: Sequence[Any], result: Any) -> Mapping[str, int]:
    """Return the work of a convolution, forward or backward, beside its bytes. Empty for other operations.

    `name`: of the operation, without its overload. "dense": 1 if its bytes are those of a dense convolution.
    """
    if name == "convolution":
        return _convolution(*args, result)
    return _convolution_backward(*args) if name == "convolution_backward" else {}


def _convolution(*args: Any) -> Mapping[str, int]:
    given, weight, transposed, groups, result = args[0], args[1], args[6], args[8], args[-1]
    flops = 2 * len(given) * math.prod((given if transposed else result).shape[2:]) * weight.numel()
    if groups > 1:
        return {"depthwise_flops": flops, "depthwise_channels": groups}
    return {"dense": 1, "forward_pointwise_flops": flops} if math.prod(weight.shape[2:]) == 1 else {"dense": 1}


def _convolution_backward(*args: Any) -> Mapping[str, int]:
    received, given, weight, transposed, groups, wanted = args[0], args[1], args[2], args[7], args[9], args[10]
    if groups == 1:
        return {"dense": 1}
    passes = sum(wanted[:2])
    positions = math.prod((given if transposed else received).shape[2:])
    flops = 2 * len(given) * positions * weight.numel() * passes
    return {"depthwise_flops": flops, "depthwise_channels": groups * passes}
