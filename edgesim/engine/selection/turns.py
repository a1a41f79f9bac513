"""Rules that give every device its turn: round robin, and proportional fairness over the channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from edgesim.core.arrays import Arr, Ids
from edgesim.core.rng import Key
from edgesim.core.selection import Informed, Known, Want, highest


@dataclass(frozen=True, kw_only=True)
class RoundRobin(Informed):
    """The devices whose last turn is longest ago, those without any first; of equal ones those of fewer turns, by id.

    Source: Amiri, Gunduz, Kulkarni, Poor, "Convergence of Update Aware Device Scheduling for Federated Learning at the
    Wireless Edge" (IEEE TWC 2021), the round robin that it compares with; Yang, Liu, Quek, Poor, "Scheduling Policies
    for Federated Learning in Wireless Networks" (IEEE TCOM 2020), policy RR.
    """

    def choose(self, idle: Ids, known: Known, key: Key) -> Ids:
        """Return the ids, ascending."""
        order = np.lexsort((known.asked[idle], known.last_asked[idle]))  # which leaves equal ones as they are
        return np.sort(idle[order[: self.count]])


@dataclass(frozen=True, kw_only=True)
class ProportionalFair(Informed):
    """The devices whose channel is best now, held against its own mean: rate / mean rate over the rounds so far.

    The mean is over the ends of rounds and the present. Where links never change all ratios are 1, and chance decides.
    Source: Yang, Liu, Quek, Poor, "Scheduling Policies for Federated Learning in Wireless Networks" (IEEE TCOM 2020),
    policy PF, which ranks by the ratio of the signal-to-noise ratio to its mean.
    Differs: ranks by rates, which is what a link of edgesim has.
    """

    needs: ClassVar[frozenset[Want]] = frozenset({"channel"})

    def start(self, known: Known) -> Any:
        """Return the sum of each device's rates, bit/s, and how many they are."""
        return {"sum_bps": np.zeros(len(known.asked)), "rounds": 0}

    def learn(self, known: Known) -> Any:
        """Return the sums with the rates at the end of a round."""
        assert known.up_bps is not None
        return {"sum_bps": known.state["sum_bps"] + known.up_bps, "rounds": known.state["rounds"] + 1}

    def choose(self, idle: Ids, known: Known, key: Key) -> Ids:
        """Return the ids, ascending."""
        assert known.up_bps is not None
        rate_bps = known.up_bps[idle]
        mean_bps = (known.state["sum_bps"][idle] + rate_bps) / (known.state["rounds"] + 1)
        return highest(idle, ratio(rate_bps, mean_bps), self.count, key)


def ratio(rate_bps: Arr, mean_bps: Arr) -> Arr:
    """Return rates by their means, 1 where both are infinite or 0, rounded so that equal ones are equal."""
    plain = np.isfinite(mean_bps) & (mean_bps > 0)
    found: Arr = np.round(np.divide(rate_bps, mean_bps, out=np.ones(len(rate_bps)), where=plain), 12)
    return found


PLUGINS = {"round_robin": RoundRobin, "proportional_fair": ProportionalFair}
