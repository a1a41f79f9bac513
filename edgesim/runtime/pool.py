"""What pools of worker processes have in common, wherever their processes are."""

from __future__ import annotations

import pickle
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from edgesim.files.own_code import carry_frames, own_frames


class Pool(ABC):
    """Processes of one kind that work items off."""

    @abstractmethod
    def begin(self) -> None:
        """Start the processes, if they are not there. Raises EdgesimError if they cannot start."""

    @abstractmethod
    def close(self) -> None:
        """End the processes at once, whatever they are at. May be called twice."""

    @abstractmethod
    def is_busy(self) -> bool:
        """Return whether items have been given whose answers were not taken."""

    @abstractmethod
    def has_room(self, depth: int = 1) -> bool:
        """Return whether a process is at fewer items than so many."""

    @abstractmethod
    def give(self, name: Any, work: Callable[[Any], Any], item: Any) -> None:
        """Let a process do one more item; `name`: what `take` calls it. Raises as `begin`."""

    @abstractmethod
    def take(self, wait: bool) -> list[tuple[Any, Any]]:
        """Return what is done by now: the name of each item with what `work` gave, or the exception that it raised.

        `wait`: until there is something, if there is anything to wait for. Raises EdgesimError if a process died.
        """


def answer(function: Callable[..., Any], *given: Any) -> Any:
    """Return what a function gives in a worker process, or the exception that it raises, fit to be sent home."""
    try:
        return function(*given)
    except Exception as error:
        told, frames = f"in a worker process:\n{traceback.format_exc()}", own_frames(error)
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # one with a constructor of its own does not come home
            error = RuntimeError(f"{type(error).__name__}: {error}")
        error.add_note(told)
        carry_frames(error, frames)
        return error
