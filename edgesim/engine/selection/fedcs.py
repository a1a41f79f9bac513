"""FedCS: as many devices as are expected to answer within a round's deadline, the quickest first.

Source: Nishio and Yonetani, "Client Selection for Federated Learning with Heterogeneous Resources in Mobile Edge" (IEEE
ICC 2019), algorithm 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from edgesim.config.units import Delay, Seconds
from edgesim.core.arrays import Arr, Ids
from edgesim.core.errors import ConfigError
from edgesim.core.limits import Count
from edgesim.core.rng import Key
from edgesim.core.selection import Expected, Informed, Known

_CANDIDATES = 2  # stream below a rule's key; never renumber


@dataclass(frozen=True, kw_only=True)
class FedCS(Informed):
    """Ask, one after the other, the device that adds the least time to the round, while the round ends by `deadline`.

    Seconds are those that the server expects of an undisturbed job. With "sequential" `uploads` the model is sent to
    all at the pace of the slowest, devices compute side by side, and send one after the other, as in the paper; with
    "parallel" ones each device has a link of its own and does all by itself, so that every device that can finish by
    the deadline is asked. At most `count` are asked, of `candidates` drawn at random (by default all idle devices). If
    no device fits, the quickest is asked.
    The deadline is what the server plans with; what happens to the late is the protocol's to say. From it the server
    takes what it needs before and after: `selecting` and `aggregating`, T_cs and T_agg of the paper. In a run
    aggregation takes the time of `server`, and selection none.
    """

    deadline: Seconds  # T_round of the paper
    selecting: Delay = 0.0  # T_cs
    aggregating: Delay = 0.0  # T_agg
    candidates: Count | None = None  # drawn first, K C of the paper
    uploads: Literal["sequential", "parallel"] = "sequential"

    def check(self, level: Ids) -> None:
        """Raise ConfigError if there are too few devices, or the deadline leaves no time for them."""
        super().check(level)
        if self.selecting + self.aggregating >= self.deadline:
            found = f"{self.selecting:g} s + {self.aggregating:g} s"
            allowed = f"must be above selecting + aggregating, {found}"
            raise ConfigError(f"selection.deadline: {allowed}, got {self.deadline:g} s")

    def choose(self, idle: Ids, known: Known, key: Key) -> Ids:
        """Return the ids, ascending."""
        among, deadline_s = idle, self.deadline - self.selecting - self.aggregating
        if self.candidates is not None and self.candidates < len(idle):
            among = np.sort(key.at(_CANDIDATES).numpy().choice(idle, self.candidates, replace=False))
        if self.uploads == "parallel":
            seconds = known.expected.seconds[among]
            quickest = among[np.argsort(seconds, kind="stable")]
            fits = max(1, int((seconds <= deadline_s).sum()))
            return np.sort(quickest[: min(fits, self.count)])
        return np.sort(greedy(among, known.expected, deadline_s, self.count))


def greedy(among: Ids, expected: Expected, deadline_s: float, count: int) -> Ids:
    """Return devices in the order in which the paper's algorithm 3 adds them, `count` at most and one at least.

    Each time it is the candidate of the least extra time: how much longer the slowest download of the set gets, its
    upload, and how much longer it computes than the uploads before it take. Once that misses the deadline, so would
    all others.
    """
    down_s, compute_s, up_s = expected.down_s[among], expected.compute_s[among], expected.up_s[among]
    left, chosen = np.ones(len(among), dtype=bool), list[int]()
    sent_s, elapsed_s = 0.0, 0.0  # the slowest download of the set, and all after it
    for _ in range(min(count, len(among))):
        extra_s = np.maximum(down_s - sent_s, 0.0) + _added_s(compute_s, up_s, elapsed_s)
        place = int(np.where(left, extra_s, np.inf).argmin())
        elapsed_s += float(_added_s(compute_s[place], up_s[place], elapsed_s))
        sent_s = max(sent_s, float(down_s[place]))
        if chosen and sent_s + elapsed_s > deadline_s:
            break
        left[place] = False
        chosen.append(place)
    return among[np.array(chosen, dtype=np.int64)]


def _added_s(compute_s: Arr | float, up_s: Arr | float, elapsed_s: float) -> Arr:
    """Return by how much uploads, one after the other, end later with one more device: its own, and waiting for it."""
    added_s: Arr = up_s + np.maximum(compute_s - elapsed_s, 0.0)
    return added_s


PLUGINS = {"fedcs": FedCS}
