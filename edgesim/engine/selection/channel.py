"""Scheduling by channel and by the size of updates: BC, BN2, BC-BN2 and BN2-C.

Source: Amiri, Gunduz, Kulkarni, Poor, "Convergence of Update Aware Device Scheduling for Federated Learning at the
Wireless Edge" (IEEE TWC 2021).
Differs: a rule chooses before devices train, so that norms are those of a device's newest earlier job; in the paper all
devices train, send the norm, and then the chosen ones their update. The method `bn2` does that: with the selection `bc`
of K_c devices it is BC-BN2 as published, with `all` BN2. Devices without a report come before all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edgesim.config.units import Seconds
from edgesim.core.arrays import Arr, Ids
from edgesim.core.limits import Count
from edgesim.core.rng import Key
from edgesim.core.selection import FromCandidates, Informed, Known, Want, highest

_SECOND = 2  # stream below a rule's key, of the second of two choices; never renumber


@dataclass(frozen=True, kw_only=True)
class BestChannel(Informed):
    """BC: the devices that would upload fastest now."""

    needs: ClassVar[frozenset[Want]] = frozenset({"channel"})

    def choose(self, idle: Ids, known: Known, key: Key) -> Ids:
        """Return the ids, ascending."""
        assert known.up_bps is not None
        return highest(idle, known.up_bps[idle], self.count, key)


@dataclass(frozen=True, kw_only=True)
class BestNorm(Informed):
    """BN2: the devices whose newest update had the largest norm."""

    needs: ClassVar[frozenset[Want]] = frozenset({"reports"})

    def choose(self, idle: Ids, known: Known, key: Key) -> Ids:
        """Return the ids, ascending."""
        return highest(idle, last_norm(known)[idle], self.count, key)


@dataclass(frozen=True, kw_only=True)
class BestChannelNorm(FromCandidates):
    """BC-BN2: of the `candidates` that would upload fastest now, those whose newest update had the largest norm."""

    needs: ClassVar[frozenset[Want]] = frozenset({"channel", "reports"})

    candidates: Count  # K_c of the paper

    def choose(self, idle: Ids, known: Known, key: Key) -> Ids:
        """Return the ids, ascending."""
        assert known.up_bps is not None
        fast = highest(idle, known.up_bps[idle], self.candidates, key)
        return highest(fast, last_norm(known)[fast], self.count, key.at(_SECOND))


@dataclass(frozen=True, kw_only=True)
class BestNormByChannel(Informed):
    """BN2-C: the devices of which the largest norm would arrive: of what each could upload within `upload`.

    A device that can send a share s of its update's numbers in that time is ranked by sqrt(s) times the norm of its
    newest update.
    Differs: the paper knows the update and takes the norm of the numbers that the device would really send, its
    largest; the norm alone says of a share s of all numbers that they have sqrt(s) of it if all are of like size.
    """

    needs: ClassVar[frozenset[Want]] = frozenset({"channel", "reports"})

    upload: Seconds  # that a device has for its update

    def choose(self, idle: Ids, known: Known, key: Key) -> Ids:
        """Return the ids, ascending."""
        assert known.up_bps is not None
        share = np.minimum(self.upload * known.up_bps / (8.0 * known.expected.up_bytes), 1.0)
        return highest(idle, (np.sqrt(share) * last_norm(known))[idle], self.count, key)


def last_norm(known: Known) -> Arr:
    """Return the norm of each device's newest update, inf before the first."""
    assert known.reported is not None
    norms: Arr = np.where(np.isnan(known.reported.norm), np.inf, known.reported.norm)
    return norms


PLUGINS = {"bc": BestChannel, "bn2": BestNorm, "bc_bn2": BestChannelNorm, "bn2_c": BestNormByChannel}
