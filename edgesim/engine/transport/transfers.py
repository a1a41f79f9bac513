"""Transfers over shared links inside the event loop: one pending SimPy timeout however many are in flight."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import simpy

from edgesim.core.errors import ConfigError
from edgesim.world.contention.base import SharedLinks
from edgesim.world.topology.base import Hop

_WHOLE = 1e-9  # what is missing from a transfer by less than this share of its bytes is what rounding leaves


def unless_whole(moved_bytes: float, nbytes: float) -> float:
    """Return the bytes of a transfer that have moved: all of them if what is missing is due to rounding."""
    return nbytes if nbytes - moved_bytes <= _WHOLE * nbytes else moved_bytes


class Transfers:
    """Starts and ends transfers and keeps the clock informed of the next one to end."""

    def __init__(self, env: simpy.Environment, links: SharedLinks) -> None:
        self._env = env
        self._links = links
        self._done: dict[int, Callable[[], None]] = {}  # flows on the links
        self._armed: tuple[float, int] | None = None

    def start(self, flow: int, path: Sequence[Hop], nbytes: float, on_done: Callable[[], None]) -> None:
        """Begin a transfer now; `on_done` is called at its end unless it is dropped before."""
        self._done[flow] = on_done
        self._links.admit(flow, path, nbytes, self._env.now)
        self._arm()

    def drop(self, flow: int) -> float:
        """Break off a transfer now; return the bytes it moved, 0 if it was not on a link."""
        if self._done.pop(flow, None) is None:
            return 0.0
        moved_bytes = self._links.drop(flow, self._env.now)
        self._arm()
        return moved_bytes

    def moved_bytes(self, flow: int) -> float:
        """Return the bytes that a transfer has moved so far, 0 if it is not on a link; asking changes nothing."""
        return self._links.moved_bytes(flow, self._env.now) if flow in self._done else 0.0

    def settle(self, within_s: float) -> None:
        """End now the transfers that would end within `within_s` seconds."""
        while (due := self._links.next_done()) is not None and due[0] <= self._env.now + within_s:
            self._end(due[1])

    def _arm(self) -> None:
        due = self._links.next_done()
        if due is not None and due == self._armed:
            return
        self._armed = due
        if due is None:
            if self._done:  # what is under way moves, but no float can hold when it ends
                raise ConfigError("network, topology: a transfer over shared links takes inf s, must be finite")
            return
        timer = self._env.timeout(max(0.0, due[0] - self._env.now))
        timer.callbacks.append(lambda _: self._end(due[1]) if self._armed is due else None)

    def _end(self, flow: int) -> None:
        self._armed = None
        self._links.finish(flow, self._env.now)
        on_done = self._done.pop(flow)
        self._arm()
        on_done()
