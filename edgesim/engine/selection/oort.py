"""Oort: devices with much to learn from in little time, and now and then devices that were never tried.

Source: Lai, Zhu, Madhyastha, Chowdhury, "Oort: Efficient Federated Learning via Guided Participant Selection" (OSDI
2021), section 4 with algorithm 1; the authors' released code (github.com/SymbioticLab/Oort) where the paper does not
say. That code rounds the number of tried devices down; the copy in FedScale rounds that of new devices down instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Gt, Le

from edgesim.core.arrays import Arr, Ids
from edgesim.core.limits import Count, NonNegativeNumber, PositiveShare, Share
from edgesim.core.rng import Key
from edgesim.core.selection import Informed, Known, Want, drawn

_EXPLORED, _NEW, _REST = 2, 3, 4  # streams below a rule's key; never renumber
_BONUS = 0.1  # of the paper's confidence bonus


@dataclass(frozen=True, kw_only=True)
class Oort(Informed):
    """Ask devices by utility: what their losses promise, less for those slower than the preferred seconds T of a job.

    Utility of a device that was tried: its statistical one, samples x sqrt(mean squared loss), lowered to the `clip`
    quantile and scaled to [0, 1] by least and largest; plus sqrt(0.1 log R / L), R the round and L that of its newest
    update; times (T / t)^`alpha` if its newest job took t > T. Of the places a share that falls from `explore` by
    `decay` a round to `explore_least`, rounded up, goes to devices that were never tried, the faster the likelier; the
    others to devices drawn by utility among those of at least `cut_off` times that of the last place. T is the
    `preferred` quantile of what jobs take; it is raised by `pace` whenever the last `window` rounds brought less
    utility than those before. Devices with `most_turns` updates are spared while there are others.
    """

    needs: ClassVar[frozenset[Want]] = frozenset({"reports"})

    alpha: NonNegativeNumber = 2.0  # the paper's default
    clip: PositiveShare = 0.95  # "no more than the 95th percentile"
    cut_off: Share = 0.95  # c of algorithm 1
    explore: Share = 0.9
    decay: PositiveShare = 0.98
    explore_least: Share = 0.2
    preferred: PositiveShare = 0.3  # a quantile, as the released code has it: the paper leaves T to the developer
    pace: Annotated[float, Gt(0), Le(1)] = 0.05  # Delta of the paper, in the same measure; of the released code
    window: Count = 20  # W of the paper
    most_turns: Count | None = None  # the paper suggests 10 where clients may be malicious

    def start(self, known: Known) -> Any:
        """Return the preferred quantile, and the utility of each round of the last two windows."""
        return {"preferred": self.preferred, "utilities": ()}

    def learn(self, known: Known) -> Any:
        """Return the state after a round: the pacer of algorithm 1."""
        came = known.last[known.last_delivered[known.last] == known.round - 1]
        utility = float(np.nansum(statistical(known)[came]))
        utilities = (*known.state["utilities"], utility)[-2 * self.window :]
        preferred = known.state["preferred"]
        before, since = utilities[: self.window], utilities[self.window :]
        if known.round % self.window == 0 and len(since) == self.window and sum(before) > sum(since):
            preferred = min(preferred + self.pace, 1.0)
        return {"preferred": preferred, "utilities": utilities}

    def choose(self, idle: Ids, known: Known, key: Key) -> Ids:
        """Return the ids, ascending."""
        utility = self.utility(known)[idle]
        tried, new = idle[~np.isnan(utility)], idle[np.isnan(utility)]
        places = min(self.count, len(idle))
        exploited = math.floor(places * (1.0 - self.share_for_new(known.round)) + 1e-9)
        for_new = min(places - min(exploited, len(tried)), len(new))
        speeds = 1.0 / np.maximum(known.expected.seconds[new], 1e-9)
        explored = self._explored(tried, utility[~np.isnan(utility)], places - for_new, known, key)
        return np.sort(np.concatenate([explored, drawn(new, speeds, for_new, key.at(_NEW))]))

    def share_for_new(self, round_: int) -> float:
        """Return the share of a round's places that goes to devices that were never tried, rounds counted from 0."""
        return max(self.explore * self.decay**round_, self.explore_least)

    def utility(self, known: Known) -> Arr:
        """Return each device's utility, shape (devices,), NaN before its first report."""
        worth = statistical(known)
        seen = worth[~np.isnan(worth)]
        if not len(seen):
            return worth
        cap = np.sort(seen)[min(int(len(seen) * self.clip), len(seen) - 1)]
        spread = float(seen.max() - seen.min())
        scaled = (np.minimum(worth, cap) - seen.min()) / (spread or 1.0)
        newest = np.maximum(known.last_delivered + 1, 1)  # rounds of the paper count from 1
        utility = scaled + np.sqrt(_BONUS * math.log(known.round + 1) / newest)
        took_s, preferred_s = durations_s(known), self.preferred_s(known)
        if 0 < preferred_s < math.inf:
            utility = utility * (preferred_s / np.maximum(took_s, preferred_s)) ** self.alpha
        found: Arr = utility
        return found

    def preferred_s(self, known: Known) -> float:
        """Return the seconds beyond which a device loses utility; inf once the pacer is done."""
        share = known.state["preferred"]
        if share >= 1.0 - 1e-9:
            return math.inf
        seconds = np.sort(durations_s(known))
        return float(seconds[min(int(len(seconds) * share), len(seconds) - 1)])

    def _explored(self, tried: Ids, utility: Arr, places: int, known: Known, key: Key) -> Ids:
        """Return devices drawn by utility among those that are worth it."""
        if not places:
            return tried[:0]
        if self.most_turns is not None:
            spared = known.delivered[tried] >= self.most_turns
            if len(tried) - int(spared.sum()) >= places:
                tried, utility = tried[~spared], utility[~spared]
        least = self.cut_off * np.sort(utility)[-places]
        worth = utility >= least
        return drawn(tried[worth], utility[worth], places, key.at(_EXPLORED))


def statistical(known: Known) -> Arr:
    """Return samples x sqrt(mean squared loss) of each device's newest job, shape (devices,), NaN before the first."""
    assert known.reported is not None
    utility: Arr = known.setting.samples * np.sqrt(known.reported.square_loss)
    return utility


def durations_s(known: Known) -> Arr:
    """Return the seconds of each device's newest job, those that the server expects before there is one."""
    return np.where(np.isnan(known.seconds), known.expected.seconds, known.seconds)


PLUGINS = {"oort": Oort}
