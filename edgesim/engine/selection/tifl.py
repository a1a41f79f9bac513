"""TiFL: devices of like speed form tiers, and a round asks devices of one tier.

Source: Chai et al., "TiFL: A Tier-based Federated Learning System" (HPDC 2020): its static policies, and algorithm 2
for the adaptive one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge, MinLen

from edgesim.core.arrays import Arr, Ids
from edgesim.core.errors import ConfigError
from edgesim.core.limits import Count, NonNegativeNumber
from edgesim.core.rng import Key
from edgesim.core.selection import Informed, Known, Want

_DEVICES = 2  # stream below a rule's key; never renumber


@dataclass(frozen=True, kw_only=True)
class TiFL(Informed):
    """Ask `count` random devices of one tier, drawn by the tiers' probabilities; tier 0 is the fastest.

    `tiers` are equally large, by the seconds that the server expects of an undisturbed job. With `probabilities` the
    policy is static; without them all tiers begin alike, and every `interval` rounds, if the accuracy of the newest
    tier has not grown since the last time, the less accurate a tier, the likelier it gets: the k-th most accurate of
    n gets k / (n (n + 1) / 2), as the open implementation in fltk has it. The paper's algorithm divides by
    n (n - 1) / 2 (from memory), with which the probabilities of ranks 1 to n sum to more than 1. `credits` are how many
    rounds each tier may have; tiers without credits or without an idle device are passed over while there are others.
    Differs: a tier's accuracy is that which its devices met on their own samples in their newest job, by data size, as
    simulated devices need not hold test samples; a tier that was never asked counts as the least accurate. Latencies
    are expected ones, not measured in rounds before the first.
    """

    needs: ClassVar[frozenset[Want]] = frozenset({"reports"})

    tiers: Count = 5  # as in all experiments of the paper
    probabilities: Annotated[tuple[NonNegativeNumber, ...], MinLen(1)] | None = None
    interval: Count = 20
    credits: Annotated[tuple[Annotated[int, Ge(0)], ...], MinLen(1)] | None = None

    def check(self, level: Ids) -> None:
        """Raise ConfigError if lists are not of one entry a tier, sum up to nothing, or a tier has no device."""
        super().check(level)
        if self.tiers > len(level):
            raise ConfigError(
                f"selection.tiers: must be at most the {len(level)} devices of the fleet, found {self.tiers}"
            )
        for key, given in (("probabilities", self.probabilities), ("credits", self.credits)):
            if given is not None and len(given) != self.tiers:
                raise ConfigError(
                    f"selection.{key}: must have one entry for each of the {self.tiers} tiers, found {len(given)}"
                )
        if self.probabilities is not None and not sum(self.probabilities):
            raise ConfigError("selection.probabilities: must not all be 0")

    def most(self, idle: Ids, level: Ids, key: Key) -> int:
        """Return the number of devices of the largest tier that a round selects if only `idle` are idle."""
        return min(self.count, -(-len(idle) // self.tiers))

    def start(self, known: Known) -> Any:
        """Return each device's tier, the tiers' probabilities and credits, and their accuracies when last looked at."""
        given = self.probabilities or (1.0,) * self.tiers
        return {
            "tier": known.expected.tiers(self.tiers),
            "probability": np.array(given) / sum(given),
            "credits": np.full(self.tiers, np.inf) if self.credits is None else np.array(self.credits, dtype=float),
            "accuracy": np.full(self.tiers, -1.0),
        }

    def learn(self, known: Known) -> Any:
        """Return the state after a round: a credit less for its tier, and new probabilities when they are due."""
        state = known.state
        if not len(known.last):
            return state
        tier = int(np.bincount(state["tier"][known.last]).argmax())
        credits = state["credits"].copy()
        credits[tier] = max(credits[tier] - 1, 0)
        state = {**state, "credits": credits}
        if self.probabilities is not None or known.round % self.interval:
            return state
        accuracy = self.accuracies(known)
        if accuracy[tier] <= state["accuracy"][tier]:
            state["probability"] = by_accuracy(accuracy, credits > 0)
        return {**state, "accuracy": accuracy}

    def accuracies(self, known: Known) -> Arr:
        """Return the accuracy of each tier, shape (tiers,), -1 for those without a report."""
        assert known.reported is not None
        accuracy, tier = known.reported.accuracy, known.state["tier"]
        sizes = np.where(np.isnan(accuracy), 0.0, known.setting.samples)
        total = np.bincount(tier, sizes, self.tiers)
        hits = np.bincount(tier, sizes * np.nan_to_num(accuracy), self.tiers)
        found: Arr = np.divide(hits, total, out=np.full(self.tiers, -1.0), where=total > 0)
        return found

    def choose(self, idle: Ids, known: Known, key: Key) -> Ids:
        """Return the ids, ascending."""
        tiers = known.state["tier"][idle]
        there = np.bincount(tiers, minlength=self.tiers) > 0
        open_ = there & (known.state["credits"] > 0)
        weights = known.state["probability"] * (open_ if open_.any() else there)
        if not weights.sum():
            weights = (open_ if open_.any() else there).astype(np.float64)
        tier = key.numpy().choice(self.tiers, p=weights / weights.sum())
        members = idle[tiers == tier]
        size = min(self.count, len(members))
        return np.sort(key.at(_DEVICES).numpy().choice(members, size, replace=False))


def by_accuracy(accuracy: Arr, allowed: Arr) -> Arr:
    """Return probabilities of tiers, shape (tiers,), by the ranks of those allowed: 1 for the best, n for the worst."""
    probabilities = np.zeros(len(accuracy))
    places = np.flatnonzero(allowed)
    order = places[np.argsort(-accuracy[places], kind="stable")]
    n = len(order)
    probabilities[order] = np.arange(1, n + 1) / (n * (n + 1) / 2) if n else 0.0
    return probabilities


PLUGINS = {"tifl": TiFL}
