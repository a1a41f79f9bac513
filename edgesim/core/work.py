"""Kinds of work: the amounts of which the seconds of a computation are a weighted sum on a device with terms.

A device's clock has seconds for one unit of each kind. See edgesim.world.clocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

UPDATE_BYTES = 28  # that a step of SGD reads and writes for each trained parameter: seven passes over 4 bytes

KINDS: Mapping[str, str] = {
    "flops": "floating-point operations of training or of a forward pass",
    "bytes": "bytes of all operands and results of every operation, each once",
    "conv_bytes": "bytes of dense convolutions, also in `bytes`",
    "depthwise_flops": "FLOPs of depthwise and grouped convolutions, also in `flops`",
    "depthwise_channels": "groups of depthwise and grouped convolutions, for each pass over them and step",
    "forward_pointwise_flops": "FLOPs of 1x1 convolutions in forward, also in `flops`",
    "convolutions": "convolutions of any kind, forward and backward, for each step",
    "operations": "operations on tensors, without views, for each step",
    "update_bytes": "bytes that the update of the weights reads and writes",
    "samples": "samples that are read",
    "steps": "steps of SGD, or batches of another pass",
    "other_flops": "FLOPs of work without layers, such as encoding an update; charged at `flops_per_s`",
}
PRICED: tuple[str, ...] = tuple(kind for kind in KINDS if kind != "other_flops")  # with seconds of their own
LEVEL = 0.9  # share of computations that an interval of their seconds is meant to hold


def interval_factor(spread: float, level: float = LEVEL) -> float:
    """The factor of an interval of seconds: `level` of them lie from predicted / factor to predicted x factor.

    `spread`: standard deviation of ln(measured / predicted).
    """
    from statistics import NormalDist  # which most commands need not load

    return math.exp(NormalDist().inv_cdf((1 + level) / 2) * spread)
