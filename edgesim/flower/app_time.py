"""Time as an app sees it: `time.sleep`, `time.time` and clocks of `time`, in code of some folders and one thread only.

The functions of `time` are replaced while an app's code runs. They look at the file of their caller: for an app's own
code they ask the clock of the thread, for all other code they are what they were.
"""

from __future__ import annotations

import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

EPOCH_S = 1_700_000_000.0  # seconds from 1970 to the start of every simulation, as apps see it


class ClockOfApp(ABC):
    """Clock that an app's code reads."""

    @abstractmethod
    def seconds(self) -> float:
        """Return seconds since the start."""

    @abstractmethod
    def sleep(self, seconds: float) -> None:
        """Wait, or act as if."""


class _Here(threading.local):
    clock: ClockOfApp | None = None
    folders: tuple[str, ...] = ()


_here = _Here()
_PLAIN = {name: vars(time)[name] for name in ("sleep", "time", "monotonic", "perf_counter", "time_ns",
                                                 "monotonic_ns", "perf_counter_ns")}  # fmt: skip
_uses = 0
_turn = threading.Lock()


@contextmanager
def app_time(clock: ClockOfApp, *folders: str) -> Iterator[None]:
    """Let code of files whose paths begin with `folders` read `clock`, in this thread, in a block."""
    before = _here.clock, _here.folders
    _use(1)
    _here.clock, _here.folders = clock, folders
    try:
        yield
    finally:
        _here.clock, _here.folders = before
        _use(-1)


@contextmanager
def plain_time() -> Iterator[None]:
    """Let all code of this thread read the host's clock in a block."""
    before, _here.clock = _here.clock, None
    try:
        yield
    finally:
        _here.clock = before


def unix_s() -> float:
    """Return seconds since 1970: simulated ones where an app's code runs."""
    return float(_PLAIN["time"]()) if _here.clock is None else EPOCH_S + _here.clock.seconds()


def app_sleep(seconds: float) -> None:
    """Sleep by the app's clock where an app's code runs, whoever calls."""
    if _here.clock is None:
        _PLAIN["sleep"](seconds)
    else:
        _here.clock.sleep(seconds)


def _use(step: int) -> None:
    global _uses
    with _turn:
        _uses += step
        if _uses == 1 and step == 1:
            for name, replaced in _REPLACED.items():
                setattr(time, name, replaced)
        elif not _uses:
            for name, plain in _PLAIN.items():
                setattr(time, name, plain)


def _of_app() -> bool:
    """Return True if the code that called a function of `time` is an app's."""
    return _here.clock is not None and sys._getframe(2).f_code.co_filename.startswith(_here.folders)


def _sleep(seconds: float, /) -> None:
    if _of_app():
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        app_sleep(seconds)
    else:
        _PLAIN["sleep"](seconds)


def _reading(name: str, start_s: float, scale: int) -> Callable[[], Any]:
    plain = _PLAIN[name]

    def reading() -> Any:
        if not _of_app():
            return plain()
        assert _here.clock is not None
        seconds = start_s + _here.clock.seconds()
        return round(seconds * scale) if scale > 1 else seconds

    return reading


_REPLACED: dict[str, Callable[..., Any]] = {
    "sleep": _sleep,
    "time": _reading("time", EPOCH_S, 1),
    "monotonic": _reading("monotonic", 0.0, 1),
    "perf_counter": _reading("perf_counter", 0.0, 1),
    "time_ns": _reading("time_ns", EPOCH_S, 10**9),
    "monotonic_ns": _reading("monotonic_ns", 0.0, 10**9),
    "perf_counter_ns": _reading("perf_counter_ns", 0.0, 10**9),
}
