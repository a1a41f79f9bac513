"""FedRolex: HeteroFL whose window of trained units moves on by one every round, so that all units get trained.

Source: Alam, Liu, Yan and Zhang, "FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction"
(NeurIPS 2022).
"""

from __future__ import annotations

from dataclasses import dataclass

from edgesim.methods.heterofl import HeteroFL


@dataclass(frozen=True, kw_only=True)
class FedRolex(HeteroFL):
    """HeteroFL with a rolling window: a device trains other units every round, so that all units get trained.

    In round t = 1, 2, ... a device has the units t, t + 1, ... modulo n of every group of n units. Groups of the same
    size have the same units, so the units need not be sent. The largest of `rates` may be below 1: the server's model
    is then larger than the model of any device. Keys: see HeteroFL.

    The window moves forwards, as in the paper. The released code moves it backwards, with the same effect. One mode of
    the code also reshuffles units, which is left out.

    `rates`: the largest may be below 1. `weights`: the code can also weigh by width or by number of updates, the paper
    does not.

    Family: smaller networks. Formula: `in round t a device trains units t, t + 1, ... modulo n of every group of n
    units`. Paper: arXiv 2212.01548.
    """

    def kept(self, count: int, size: int, round_: int) -> tuple[int, ...]:
        """Return the indices of the `count` of `size` units of a device in a round counted from 0."""
        return tuple((round_ + 1 + i) % size for i in range(count))


PLUGINS = {"fedrolex": FedRolex}
