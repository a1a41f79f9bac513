"""Krum: the server takes the update that is closest to its nearest neighbours, or with multi-Krum the mean of several.

Source: Blanchard, El Mhamdi, Guerraoui and Stainer, "Machine Learning with Adversaries: Byzantine Tolerant Gradient
Descent" (NeurIPS 2017), section 4, and section 6 for multi-Krum; for models instead of gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Lt

from edgesim.core.limits import Count
from edgesim.core.method import Aggregate, Method, ServerContext
from edgesim.core.rng import Key
from edgesim.core.task import Payload
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting
from edgesim.learning.aggregate.robust import krum_scores, square_distances

_PARAMS = Payload(collections=frozenset({"params"}))


@dataclass(frozen=True, kw_only=True)
class Krum(Method):
    """Take the update with the nearest neighbours as the new model, against devices that send harmful updates.

    Of n updates, it has the smallest sum of squared distances to its n - f - 2 nearest neighbours. f is
    `attackers` x n, rounded down, and at most the number that the paper's 2 f + 2 < n allows. With fewer than four
    updates each has one neighbour. Of equal sums the update of the earlier job wins. Data sizes and weights of
    protocols do not matter. The metric `chosen` marks the devices whose updates were taken. Distances cost 3 FLOPs for
    each parameter and pair.

    Family: attackers. Formula: `w <- w_i with the least sum_(j near i) |w_i - w_j|^2 over the n - f - 2 nearest j`.
    Paper: arXiv 1703.02757.
    """

    attackers: Annotated[float, Ge(0), Lt(0.5)] = 0.3  # share of updates that may be harmful
    """Blanchard et al. (section 6) have 0 and about a third of Byzantine workers."""

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the mean of the updates with the smallest scores, a single one for Krum."""
        n = len(updates)
        harmful = self.harmful(n)
        scores = krum_scores(square_distances(updates), max(1, n - harmful - 2))
        best = set(scores.argsort(stable=True)[: self.taken(n, harmful)].tolist())
        mean = server.mean(global_model, [updates[place] for place in sorted(best)], [1.0] * len(best))
        chosen = {update.device: float(place in best) for place, update in enumerate(updates)}
        return Aggregate(state, mean, metrics={"chosen": chosen})

    def harmful(self, updates: int) -> int:
        """Return f, the number of harmful updates that the server guards against, out of `updates`."""
        return max(0, min(int(self.attackers * updates + 1e-9), (updates - 3) // 2))

    def taken(self, updates: int, harmful: int) -> int:
        """Return the number of updates that make the new model."""
        return 1

    def merge_flops(self, updates: int, setting: Setting) -> float:
        """Return the FLOPs of the distances: a difference, a square and a sum for each parameter and pair."""
        return 1.5 * updates * (updates - 1) * setting.cost_profile.numbers(_PARAMS)


@dataclass(frozen=True, kw_only=True)
class MultiKrum(Krum):
    """Average the `keep` updates with the smallest scores, against devices that send harmful updates; see `krum`.

    Family: attackers. Formula: `w <- the mean of the keep models with the least scores of Krum`. Paper: arXiv
    1703.02757.
    """

    keep: Count | None = None  # updates that are averaged; None: n - f
    """Blanchard et al. (section 6) average m of them and have m = n - f in their figures."""

    def taken(self, updates: int, harmful: int) -> int:
        """Return the number of updates that make the new model."""
        return min(updates, self.keep or updates - harmful)


PLUGINS = {"krum": Krum, "multi_krum": MultiKrum}
