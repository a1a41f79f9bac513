"""FedRolex: HeteroFL with a window of units that rolls on by one every round, so that all units get trained.

Source: Alam, Liu, Yan and Zhang, "FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction"
(NeurIPS 2022).
"""

from __future__ import annotations

from dataclasses import dataclass

from edgesim.methods.heterofl import HeteroFL


@dataclass(frozen=True, kw_only=True)
class FedRolex(HeteroFL):
    """HeteroFL in which a device has the units t, t + 1, ... modulo n of every group of n, in round t = 1, 2, ...

    Groups of one size have the same units, and nobody need send them. The largest of `rates` may be below 1: the
    server's model is then larger than any device's. Keys: see HeteroFL.

    The window rolls forwards, as in the paper; the released code rolls the other way, which comes to the same. Its
    reshuffling of units, which only one of its modes has, is left out.

    `rates`: the largest may be below 1. `weights`: the code can also weigh by width or by number of updates; the paper
    does not.
    """

    def kept(self, count: int, size: int, round_: int) -> tuple[int, ...]:
        """Return which `count` of `size` units a device has in a round counted from 0."""
        return tuple((round_ + 1 + i) % size for i in range(count))


PLUGINS = {"fedrolex": FedRolex}
