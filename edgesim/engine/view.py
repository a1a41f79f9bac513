"""Knowledge of a method at a moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from edgesim.core.arrays import Ids
from edgesim.core.errors import ContractError
from edgesim.core.job import Completion
from edgesim.core.peer_graph import PeerGraph
from edgesim.core.rng import Key
from edgesim.core.view import Setting
from edgesim.engine.history import History
from edgesim.engine.reachability import Presence
from edgesim.engine.selection.rules import All

_PLACES = 1  # stream below a selection's key; never renumber
_MOST_MISSES = 64  # draws of all devices in a row that hit no idle one, before the idle ones are listed


@dataclass(frozen=True)
class PeerGraphs:
    """Peer graphs of each round: the scenario's `peers`, with random streams of their own."""

    peers: Any  # None: devices have no peers
    key: Key
    members: Ids | None = None  # the devices that may take part, ascending, among whom it is drawn; None: all

    def of_round(self, online: np.ndarray, round_: int) -> PeerGraph:
        """Return the graph of a round over the devices that are there, bool, shape (devices,)."""
        key = self.key.at(round_) if self.peers.redrawn else self.key
        there = online if self.members is None else online[self.members]
        graph: PeerGraph = self.peers.graph(there, round_, key)
        return graph if self.members is None else graph.placed(self.members, len(online))


@dataclass
class FleetView:
    """Knowledge of the server now; `edgesim.core.view.View` explains the fields.

    Do not keep it: expensive fields are computed when they are read.
    """

    setting: Setting
    now_s: float
    version: int
    round: int
    exchange: int
    last: Sequence[Completion]
    presence: Presence
    busy: np.ndarray  # bool, shape (devices,)
    at_work: int  # how many are busy
    selection: Any
    graphs: PeerGraphs
    places: int | None = None  # how many devices may be asked; None: all
    only: int | None = None  # the one device that may be asked, if it can
    hidden: tuple[int, ...] = ()  # devices that may not be asked
    members: np.ndarray | None = None  # those that this aggregator may ask, bool, shape (devices,); None: all
    history: History | None = None  # of jobs; None: the selection does not look at it

    @cached_property
    def reachable(self) -> np.ndarray:
        """Devices that are reachable and have no job, bool, shape (devices,)."""
        mask: np.ndarray = self.presence.reachable(self.now_s) & ~self.busy
        if self.members is not None:
            mask = mask & self.members
        mask[list(self.hidden)] = False
        if self.only is not None and mask[self.only]:
            mask[np.arange(len(mask)) != self.only] = False
        return mask

    @cached_property
    def idle(self) -> Ids:
        """Ids of reachable devices without a job, int64, ascending."""
        ids = np.flatnonzero(self.reachable)
        ids.setflags(write=False)
        return ids

    @cached_property
    def places_of_idle(self) -> Ids:
        """Idle devices by their places among the devices of the session, the only ones that its selection knows."""
        members = self.setting.members
        return self.idle if members is None else np.searchsorted(members, self.idle)

    @cached_property
    def peers(self) -> PeerGraph:
        """Whom each device hears in this round."""
        return self.graphs.of_round(self.reachable, self.round)

    @property
    def free_places(self) -> int:
        """Number of devices that may still be asked now."""
        idle = self._idle_devices(self.places)
        return idle if self.places is None else min(self.places, idle)

    def choose(self, key: Key) -> Ids:
        """Return distinct idle devices, ascending, by the scenario's selection rule, no more than there are places."""
        idle = self._idle_devices(None if self.places is None else self.places + 1)
        places = idle if self.places is None else min(self.places, idle)
        if places < idle and isinstance(self.selection, All):
            return self._some_idle(places, key)
        members, among, level = self.setting.members, self.places_of_idle, self.setting.level
        if self.history is not None:
            chosen = self.history.choose(among, self.round, key)
        else:
            chosen = self.selection.choose(among, level if members is None else level[members], key)
        if chosen is not among:
            self._check(chosen, among)
        if members is not None:
            chosen = members[chosen]
        if len(chosen) <= places:
            return chosen
        return np.sort(key.at(_PLACES).numpy().choice(chosen, places, replace=False))

    def _some_idle(self, count: int, key: Key) -> Ids:
        """Return `count` of the idle devices at random, fewer than there are.

        They are the first idle ones among draws of all devices of the session. Listing the idle would cost more than
        all else in a large fleet. After many draws without a hit, the rest is drawn from the list.
        """
        members, busy, hidden = self.setting.members, self.busy, self.hidden
        there = None if self._unlisted else self.reachable
        devices = len(self.busy) if members is None else len(members)
        found: list[int] = []
        misses = 0
        for word in key.words():
            device = word % devices if members is None else int(members[word % devices])
            is_there = self.presence.is_there(device, self.now_s) if there is None else there[device]
            if busy[device] or not is_there or device in hidden or device in found:
                misses += 1
            else:
                found.append(device)
                misses = 0
                if len(found) == count:
                    break
            if misses == _MOST_MISSES:
                rest = np.setdiff1d(self.idle, found, assume_unique=True)
                found += key.at(_PLACES).numpy().choice(rest, count - len(found), replace=False).tolist()
                break
        return np.array(found if count == 1 else sorted(found), dtype=np.int64)

    def _check(self, chosen: Any, idle: Ids) -> None:
        rule = type(self.selection).__name__
        if not (isinstance(chosen, np.ndarray) and chosen.ndim == 1 and chosen.dtype.kind == "i"):
            raise ContractError(f"{rule}.choose() must return an array of device ids, got {chosen!r}")
        places = np.searchsorted(idle, chosen)
        known = places < len(idle)
        known[known] = idle[places[known]] == chosen[known]
        strangers = chosen[~known]
        if len(strangers) or (np.diff(chosen) <= 0).any():
            found = f"device {strangers[0]}, which is not idle" if len(strangers) else f"{chosen.tolist()}"
            raise ContractError(f"{rule}.choose() must return distinct idle devices, ascending, got {found}")

    def _idle_devices(self, enough: int | None) -> int:
        """Return how many devices are idle, or a smaller number that is at least `enough`; None: exactly."""
        if self._unlisted:
            if self.presence.everybody and not self.hidden:
                return len(self.busy) - self.at_work
            if enough is not None:
                others = self.at_work + len(self.hidden)  # of which some may be off
                idle = self.presence.count(self.now_s, enough + others) - others
                if idle >= enough:
                    return idle
        return len(self.idle)

    @property
    def _unlisted(self) -> bool:
        """True if every device that is on can be asked unless it has a job or is hidden, so no list is needed."""
        return self.only is None and self.members is None and self.presence.unbroken
