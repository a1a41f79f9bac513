"""Linear layers whose frozen weights are held as codes of 8 or 4 bits, with one scale for each block of weights.

A block is BLOCK weights in a row of the flattened matrix (outputs, inputs); the last block may be shorter. Its scale is
a float32 number, and a weight is scale x level[code]. The levels of "int8" and "int4" are the integers from -127 to 127
and from -7 to 7, and the scale is the largest magnitude of the block over 127 or 7. The levels of "nf4" lie in [-1, 1],
and the scale is the largest magnitude. A weight gets the code of the nearest level, of two the even or the lower one.

Source, from memory: Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs" (NeurIPS 2023, arXiv 2305.14314),
for scales of the largest magnitude, blocks of 64, products in bfloat16 and the levels of NF4, which are the quantiles
of a normal distribution. Double quantisation, which quantises the scales again, is left out.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

Codes: TypeAlias = Literal["int8", "int4", "nf4"]

BLOCK = 64  # weights that share a scale
NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
_LARGEST = {"int8": 127.0, "int4": 7.0, "nf4": 1.0}  # level


def quantised(weight: Tensor, kind: Codes) -> tuple[Tensor, Tensor]:
    """Return the codes and the scales of a matrix.

    Codes: int8, or two 4-bit codes in each uint8, the first one in the higher half. Scales: float32, one a block.
    """
    flat = weight.detach().float().flatten()
    numbers = flat.numel()
    rows = F.pad(flat, (0, -numbers % BLOCK)).view(-1, BLOCK)
    scales = rows.abs().amax(1) / _LARGEST[kind]
    ratio = (rows / torch.where(scales > 0, scales, 1.0)[:, None]).flatten()[:numbers]
    if kind == "int8":
        return ratio.round().to(torch.int8), scales
    if kind == "int4":
        codes = ratio.round() + 7.0
    else:
        levels = torch.tensor(NF4, device=flat.device)
        codes = torch.bucketize(ratio, (levels[1:] + levels[:-1]) / 2)
    pairs = F.pad(codes.to(torch.uint8), (0, numbers % 2)).view(-1, 2)
    return pairs[:, 0] * 16 + pairs[:, 1], scales


def dequantised(codes: Tensor, scales: Tensor, kind: Codes, shape: tuple[int, int]) -> Tensor:
    """Return the matrix that codes and scales stand for, float32."""
    numbers = shape[0] * shape[1]
    if kind == "int8":
        levels = codes.float()
    else:
        each = torch.stack([codes >> 4, codes & 15], 1).flatten()[:numbers]
        levels = each.float() - 7.0 if kind == "int4" else torch.tensor(NF4, device=codes.device)[each.int()]
    return (levels * scales.repeat_interleave(BLOCK)[:numbers]).view(shape)


class QuantisedLinear(nn.Module):
    """A frozen linear layer that holds codes and scales, and makes its weights anew in every pass over them.

    Backward dequantises again instead of keeping the weights of forward. Products are in the type of the inputs.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, kind: Codes) -> None:
        """`weight`: of shape (outputs, inputs). `bias`: kept as it is."""
        super().__init__()
        self.kind: Codes = kind
        self.out_features, self.in_features = weight.shape
        codes, scales = quantised(weight, kind)
        self.codes = nn.Parameter(codes, requires_grad=False)
        self.scales = nn.Parameter(scales, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    @property
    def weights(self) -> int:
        """Number of weights, of which codes and scales are the stored form."""
        return self.out_features * self.in_features

    def forward(self, x: Tensor) -> Tensor:
        """Return x W' + b, (..., outputs)."""
        shape = self.out_features, self.in_features
        product: Tensor = QuantisedProduct.apply(x, self.codes, self.scales, self.bias, self.kind, shape)
        return product


class QuantisedProduct(Function):
    """x W' + b with dequantised W, which is no constant that autograd would keep."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None, kind: Codes, shape: tuple[int, int]
    ) -> Tensor:
        """Return the product."""
        ctx.save_for_backward(codes, scales)
        ctx.kind, ctx.shape, ctx.dtype = kind, shape, x.dtype
        weight = dequantised(codes, scales, kind, shape).to(x.dtype)
        return F.linear(x, weight, None if bias is None else bias.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of x alone: everything else is frozen."""
        codes, scales = ctx.saved_tensors
        weight = dequantised(codes, scales, ctx.kind, ctx.shape).to(grad.dtype)
        return (grad @ weight).to(ctx.dtype), None, None, None, None, None
