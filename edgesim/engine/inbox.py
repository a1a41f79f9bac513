"""Where arrivals wait for a coordinator. One event per wait, O(1) per arrival."""

from __future__ import annotations

import simpy

from edgesim.contracts import Arrival


class Inbox:
    """The arrivals of one exchange."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self._arrivals: list[Arrival] = []
        self._waiting: simpy.Event | None = None
        self._needed = 0

    def put(self, arrival: Arrival) -> None:
        """Add an arrival and wake the coordinator if that is what it waits for."""
        self._arrivals.append(arrival)
        if self._waiting is not None and len(self._arrivals) >= self._needed:
            self._wake()

    def at_least(self, k: int, within_s: float = float("inf")) -> simpy.Event:
        """Return an event that fires once k arrivals are here, or `within_s` seconds from now.

        It is processed after every arrival of the same instant, since those were scheduled before it.
        """
        self._needed = k
        waiting = self._waiting = self._env.event()
        if len(self._arrivals) >= k:
            self._wake()
        elif within_s < float("inf"):
            timer = self._env.timeout(within_s)
            timer.callbacks.append(lambda _: self._wake() if self._waiting is waiting else None)
        return waiting

    def take(self, k: int | None = None) -> list[Arrival]:
        """Remove and return the first k arrivals (None: all) in the order (time, device id, job id)."""
        self._arrivals.sort(key=lambda a: (a.arrived_s, a.job.device, a.job.id))
        taken, self._arrivals = self._arrivals[:k], [] if k is None else self._arrivals[k:]
        return taken

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.succeed()
