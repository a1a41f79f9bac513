"""Where completions wait for a protocol. One event per wait, O(1) per completion."""

from __future__ import annotations

import simpy

from edgesim.core.job import DELIVERED, Completion


class Inbox:
    """The completions of one exchange."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self._completions: list[Completion] = []
        self._delivered = 0  # of them
        self._waiting: simpy.Event | None = None
        self._ended, self._enough = 0, 0

    def put(self, completion: Completion) -> None:
        """Add a completion and wake the protocol if that is what it waits for."""
        self._completions.append(completion)
        self._delivered += completion.outcome in DELIVERED
        if self._waiting is not None and self._satisfied():
            self._wake(True)

    def until(self, ended: int, enough: int | None = None, within_s: float = float("inf")) -> simpy.Event:
        """Return an event that fires once `ended` jobs have ended, or `enough` delivered, or after `within_s` seconds.

        It is processed after every completion of the same instant, since those were scheduled before it. Its value is
        whether it was a completion that made it fire.
        """
        self._ended, self._enough = ended, ended if enough is None else enough
        waiting = self._waiting = self._env.event()
        if self._satisfied():
            self._wake(True)
        elif within_s < float("inf"):
            timer = self._env.timeout(within_s)
            timer.callbacks.append(lambda _: self._wake(False) if self._waiting is waiting else None)
        return waiting

    def take(self) -> list[Completion]:
        """Remove and return all completions in the order (time, device id, job id)."""
        taken, self._completions, self._delivered = self._completions, [], 0
        if len(taken) > 1:
            taken.sort(key=lambda each: (each.ended_s, each.job.device, each.job.id))
        return taken

    def __len__(self) -> int:
        return len(self._completions)

    @property
    def delivered(self) -> int:
        """Number of completions here that delivered an update."""
        return self._delivered

    def _satisfied(self) -> bool:
        return len(self._completions) >= self._ended or self._delivered >= self._enough

    def _wake(self, by_completion: bool) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.succeed(by_completion)
