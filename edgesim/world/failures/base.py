"""Abstract classes of failures: devices that crash or stop early, links that go down, a server that restarts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgesim.core.arrays import Arr, Ids
from edgesim.core.attack import Attack
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Draws, Key
from edgesim.world.processes.on_off import BothOn, OnOff

DOWNLOAD, COMPUTATION, UPLOAD = 0, 1, 2  # rows of `phases_s`
SENT = -1  # no phase: seconds are counted from when the job was sent


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Failure:
    """The failures of n devices, their links and the server; by itself nothing fails but the links it is given.

    Everything is a pure function of job or time: asking changes nothing, in whatever order. `links`: one row a device;
    while it is off, the device's link is down and transfers stand still. None: links never go down.
    """

    links: OnOff | None = None

    def strikes(self, draws: Draws, phases_s: np.ndarray) -> tuple[Ids, Arr]:
        """Return the phase in which each of k jobs crashes, and the seconds from the start of the phase; inf: never.

        `phases_s`: seconds of download, computation and upload of the undisturbed jobs, shape (3, k). Phases are
        their rows, or SENT.
        """
        return np.full(len(draws.ids), SENT), np.full(len(draws.ids), np.inf)

    def work_share(self, draws: Draws) -> Arr:
        """Return the share of its local steps that each of k jobs takes before it returns its model, in (0, 1]."""
        return np.ones(len(draws.ids))

    def next_restart_s(self, now_s: float) -> float:
        """Return the first instant after `now_s` at which the server restarts and loses updates that are not merged.

        inf: no restart follows.
        """
        return np.inf

    def attacks(self) -> Mapping[int, Attack]:
        """Return the attacks of malicious devices, by device. Other devices are honest."""
        return {}


class FailurePart(ABC):
    """A failure as a scenario names it: a frozen dataclass."""

    @property
    def among_peers(self) -> bool:
        """True if it also works without a server."""
        return True

    @property
    def flips_labels(self) -> bool:
        """True if it changes labels, which have to be classes then."""
        return False

    @property
    def fits_app(self) -> bool:
        """True if it also works on the jobs of an app, whose code runs whole and whose server keeps its updates."""
        return True

    @property
    def shortens_work(self) -> bool:
        """True if it ends the local steps of a device early."""
        return False

    @abstractmethod
    def build(self, n: int, key: Key, path: str) -> Failure:
        """Return the failures of n devices. Raises ConfigError that names a key below `path`."""


def phase_starts_s(phases_s: np.ndarray) -> np.ndarray:
    """Return seconds from sending to the start of each phase, shape (4, k): the last row, SENT, is the sending."""
    sent_s = np.zeros_like(phases_s[0])
    return np.stack([sent_s, phases_s[DOWNLOAD], phases_s[DOWNLOAD] + phases_s[COMPUTATION], sent_s])


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Several(Failure):
    """Several failures at once, of which the first one counts."""

    parts: Sequence[Failure]

    def strikes(self, draws: Draws, phases_s: np.ndarray) -> tuple[Ids, Arr]:
        phase, after_s = Failure.strikes(self, draws, phases_s)
        soonest_s, starts_s, job = after_s, phase_starts_s(phases_s), np.arange(len(phase))
        for part in self.parts:
            its_phase, its_after_s = part.strikes(draws, phases_s)
            its_s = starts_s[its_phase, job] + its_after_s
            sooner = its_s < soonest_s
            phase, after_s = np.where(sooner, its_phase, phase), np.where(sooner, its_after_s, after_s)
            soonest_s = np.minimum(soonest_s, its_s)
        return phase, after_s

    def work_share(self, draws: Draws) -> Arr:
        share = Failure.work_share(self, draws)
        for part in self.parts:
            share = np.minimum(share, part.work_share(draws))
        return share

    def next_restart_s(self, now_s: float) -> float:
        return min((part.next_restart_s(now_s) for part in self.parts), default=np.inf)

    def attacks(self) -> Mapping[int, Attack]:
        return {device: attack for part in reversed(self.parts) for device, attack in part.attacks().items()}


def combine(failures: Sequence[Failure]) -> Failure:
    """Return the combination of failures: the first strike, the first restart and the smallest share of the work.

    Which of two strikes is first is decided as in the undisturbed job; of equal ones the part listed first has it.
    Raises ConfigError if links are cut by more than one of them.
    """
    links = [failure.links for failure in failures if failure.links is not None]
    if len(links) > 1:
        raise ConfigError(f"failures: only one of them may cut the links, found {len(links)}")
    return _Several(parts=tuple(failures), links=next(iter(links), None))


def stretched_s(links: OnOff | BothOn, rows: Ids, seconds: Arr, start_s: Arr | float) -> Arr:
    """Return seconds, shape (k,), that transfers of `seconds` take from `start_s` on: they pause while a link is down.

    `rows`: the device of each transfer, shape (k,), or with BothOn the devices at its ends, shape (k, 2). One without
    length takes no time, even over a link that is down.
    """
    stretched, left_s = np.array(seconds, dtype=np.float64), np.array(seconds, dtype=np.float64)
    now_s = np.array(np.broadcast_to(start_s, left_s.shape), dtype=np.float64)
    todo = np.flatnonzero((left_s > 0) & np.isfinite(left_s))
    while len(todo):
        up = links.on(rows[todo], now_s[todo])
        change_s = links.next_change_s(rows[todo], now_s[todo])
        span_s = change_s - now_s[todo]
        # only pauses are added, so that a transfer without any takes exactly its seconds
        stretched[todo] += np.where(up, 0.0, span_s)
        left_s[todo] -= np.where(up, span_s, 0.0)
        now_s[todo] = change_s
        todo = todo[(left_s[todo] > 0) & np.isfinite(change_s)]
    return stretched
