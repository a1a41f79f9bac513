"""A clock with a price in seconds for each kind of work, as fits to measured training steps give them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from edgesim.config.units import Delay, PerDevice, draw
from edgesim.core.arrays import Arr, Ids, compact
from edgesim.core.errors import ConfigError
from edgesim.core.limits import Share
from edgesim.core.rng import Key
from edgesim.core.work import PRICED
from edgesim.world.clocks.base import Clock, ClockPart, CpuSpeeds
from edgesim.world.clocks.flops import OneRate
from edgesim.world.compute.governors.cpu import CpuWork

# Shares of a kind's seconds that follow the clock frequency. No public data that we know time one device at two
# frequencies, so these are the two ends of the roofline model (Williams, Waterman and Patterson, CACM 52(4), 2009):
# arithmetic, and the instructions that start an operation or decode a sample, run at the core's clock, and traffic at
# the memory's own. `bytes` pays for the traffic of convolutions, so `conv_bytes` counts as instructions: the Raspberry
# Pi 4 takes 2.6 ns more for each of them, or 0.4 GB/s, far below the speed of its memory (`bytes`: 2 GB/s).
_TRAFFIC = ("bytes", "update_bytes")
CLOCKED: Mapping[str, float] = MappingProxyType({kind: 0.0 if kind in _TRAFFIC else 1.0 for kind in PRICED})


@dataclass(frozen=True, eq=False)
class SumOfTerms(Clock):
    """Seconds are a sum over the kinds of work: amount x seconds of one unit, at the highest frequency."""

    one_rate: OneRate  # of the FLOPs without layers
    max_hz: Arr
    seconds_per: Mapping[str, Arr]  # unit of each kind, shape (n,)
    clocked: Mapping[str, float]

    def work(self, rows: Ids, flops: Arr, amounts: Mapping[str, Arr]) -> CpuWork:
        """Return the cycles and the seconds that do not follow the clock, both of shape (k,)."""
        other = self.one_rate.work(rows, amounts.get("other_flops", np.zeros(len(flops))), None)
        clocked_s, memory_s = np.zeros(len(flops)), np.zeros(len(flops))
        for kind, per in self.seconds_per.items():
            if kind in amounts:
                seconds, share = amounts[kind] * per[rows], self.clocked[kind]
                clocked_s += share * seconds
                memory_s += (1.0 - share) * seconds
        return CpuWork(other.cycles + clocked_s * self.max_hz[rows], memory_s)


@dataclass(frozen=True, kw_only=True)
class TermsClock(ClockPart):
    """Seconds for one unit of each kind of work. A kind without a price takes no time.

    FLOPs of work without layers, such as encoding an update, and all work of a cost model that knows no kinds are
    charged at `flops_per_s`. Seconds are those at the highest frequency.
    `clocked`: share of a kind's seconds that follows the clock frequency, by kind. Default: 0 for `bytes` and
    `update_bytes`, which wait for memory, and 1 for all others.
    """

    flops: PerDevice[Delay] = 0.0  # one FLOP of training or of a forward pass
    bytes: PerDevice[Delay] = 0.0  # one byte of operands and results
    conv_bytes: PerDevice[Delay] = 0.0  # one byte of dense convolutions, in addition
    depthwise_flops: PerDevice[Delay] = 0.0  # one FLOP of depthwise and grouped convolutions, in addition
    depthwise_channels: PerDevice[Delay] = 0.0  # one group of such a convolution, each pass and step
    forward_pointwise_flops: PerDevice[Delay] = 0.0  # one FLOP of 1x1 convolutions in forward, in addition
    convolutions: PerDevice[Delay] = 0.0  # one call of a convolution, forward or backward
    operations: PerDevice[Delay] = 0.0  # one operation on tensors
    update_bytes: PerDevice[Delay] = 0.0  # one byte that the update of the weights moves
    samples: PerDevice[Delay] = 0.0  # reading one sample
    steps: PerDevice[Delay] = 0.0  # one step of SGD, or one batch of another pass
    clocked: dict[str, Share] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if unknown := self.clocked.keys() - CLOCKED.keys():
            raise ConfigError(f"clock.clocked: unknown kind of work {min(unknown)!r} (known: {', '.join(PRICED)})")
        if not any(vars(self)[kind] for kind in PRICED):
            raise ConfigError(f"clock: needs the seconds of at least one kind of work ({', '.join(PRICED)})")

    def build(self, n: int, speeds: CpuSpeeds, key: Key, path: str) -> Clock:
        """Return the clocks of n devices. Raises ConfigError if a distribution draws an impossible time."""
        given = [(place, kind) for place, kind in enumerate(PRICED) if vars(self)[kind]]
        seconds_per = {
            kind: compact(draw(vars(self)[kind], n, key.at(place).numpy(), f"{path}.{kind}")) for place, kind in given
        }
        return SumOfTerms(OneRate.of(speeds), speeds.max_hz, seconds_per, {**CLOCKED, **self.clocked})


PLUGINS = {"terms": TermsClock}
