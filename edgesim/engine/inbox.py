"""Where arrivals wait for a coordinator. One event per wait, O(1) per arrival."""

from __future__ import annotations

from collections.abc import Callable

import simpy

from edgesim.contracts import DELIVERED, Arrival


class Inbox:
    """The arrivals of one exchange."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self._arrivals: list[Arrival] = []
        self._delivered = 0  # of them
        self._waiting: simpy.Event | None = None
        self._alone: Callable[[Arrival], bool] | None = None
        self._ended, self._enough = 0, 0

    def put(self, arrival: Arrival) -> None:
        """Add an arrival and wake the coordinator if that is what it waits for."""
        if self._waiting is not None and self._alone is not None and self._env.peek() > self._env.now:
            waiting, self._waiting = self._waiting, None  # what comes meanwhile is for later
            if self._alone(arrival):
                self._waiting = waiting
            else:
                waiting.succeed(True)
            return
        self._arrivals.append(arrival)
        self._delivered += arrival.outcome in DELIVERED
        if self._waiting is not None and self._satisfied():
            self._wake()

    def until(
        self,
        ended: int,
        enough: int | None = None,
        within_s: float = float("inf"),
        alone: Callable[[Arrival], bool] | None = None,
    ) -> simpy.Event:
        """Return an event that fires once `ended` jobs have ended, or `enough` delivered, or after `within_s` seconds.

        It is processed after every arrival of the same instant, since those were scheduled before it. Its value is
        whether it was an arrival that made it fire.
        `alone`: called with an arrival that is the only thing to happen at its instant, which then never lies in this
        inbox; returns whether to go on waiting. So a coordinator deals with it without the price of being woken.
        """
        self._alone = alone
        self._ended, self._enough = ended, ended if enough is None else enough
        waiting = self._waiting = self._env.event()
        if self._satisfied():
            self._wake()
        elif within_s < float("inf"):
            timer = self._env.timeout(within_s)
            timer.callbacks.append(lambda _: self._wake(False) if self._waiting is waiting else None)
        return waiting

    def take(self) -> list[Arrival]:
        """Remove and return all arrivals in the order (time, device id, job id)."""
        taken, self._arrivals, self._delivered = self._arrivals, [], 0
        taken.sort(key=lambda a: (a.arrived_s, a.job.device, a.job.id))
        return taken

    def __len__(self) -> int:
        return len(self._arrivals)

    @property
    def delivered(self) -> int:
        """How many arrivals here delivered something."""
        return self._delivered

    def _satisfied(self) -> bool:
        return len(self._arrivals) >= self._ended or self._delivered >= self._enough

    def _wake(self, by_arrival: bool = True) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.succeed(by_arrival)
