"""FLOPs of kernels of torch for which its own counter has no formula, or a wrong one.

Each function takes the first operands of its operation. Products count two FLOPs for each multiplication.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor


def conv_backward_flops(
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


def rnn_flops(x: Tensor, of_input: Tensor, of_state: Tensor, *_: object) -> int:
    """Return FLOPs of one layer and direction, whose `x` has the shape (steps, batch, features)."""
    return 2 * x.shape[0] * x.shape[1] * (of_input.numel() + of_state.numel())


def rnn_backward_flops(
    x: Tensor, of_input: Tensor, of_state: Tensor, _bias: Tensor, _other: Tensor, state: Tensor, *_: object
) -> int:
    """Return FLOPs of the gradients that are needed: that of the first state is often not."""
    steps, batch = x.shape[:2]
    inputs = steps * of_input.numel() * (of_input.requires_grad + x.requires_grad)
    states = steps * of_state.requires_grad + steps - (not state.requires_grad)
    return 2 * batch * (inputs + states * of_state.numel())


def self_attention_flops(query: Tensor, _key: Tensor, _value: Tensor, width: int, *_: object) -> int:
    """Return FLOPs of sequences that attend to themselves: four projections of tokens, two products of all pairs."""
    return sum(8 * tokens * width**2 + 4 * tokens**2 * width for tokens in _lengths(query))


def encoder_layer_flops(x: Tensor, width: int, _heads: int, *args: Any) -> int:
    """Return FLOPs of the attention and of the two linear layers after it."""
    inner = args[11].numel()  # weights of the first linear layer
    return self_attention_flops(x, x, x, width) + 4 * sum(_lengths(x)) * inner


def _lengths(x: Tensor) -> list[int]:
    """Return the number of tokens of each sample of (batch, tokens, width), or of a nested tensor."""
    if x.is_nested:
        return [int(tokens) for tokens, _ in x._nested_tensor_size().tolist()]
    return [x.shape[1]] * x.shape[0]


def attention_flops(query: Tensor, key: Tensor, value: Tensor, *_: object) -> int:
    """Return FLOPs of scores and of their product with the values. Several heads of queries may share one of keys."""
    return 2 * math.prod(query.shape[:-1]) * key.shape[-2] * (query.shape[-1] + value.shape[-1])


def attention_backward_flops(_grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: object) -> int:
    """Return FLOPs of the gradients of scores, queries, keys and values, of which those are taken that are needed."""
    needed = [each.requires_grad for each in (query, key, value)]
    of_query, of_key, of_value = needed if any(needed) else (True, True, True)  # unknown below transforms of functions
    pairs = math.prod(query.shape[:-1]) * key.shape[-2]
    scores = query.shape[-1] * (of_query + of_key) + value.shape[-1] * (of_query or of_key)
    return 2 * pairs * (scores + value.shape[-1] * of_value)
