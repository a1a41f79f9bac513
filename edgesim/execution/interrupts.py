"""Ctrl-C, SIGTERM and SIGHUP: the first signal lets a run write its results, the second ends it at once."""

from __future__ import annotations

import inspect
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

STOP_SIGNALS = tuple(each for each in signal.Signals if each.name in ("SIGINT", "SIGTERM", "SIGHUP"))

INTERRUPTED = 130  # exit code after Ctrl-C

_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)


class Interrupts:
    """Counts the signals that ask this process to stop, and raises KeyboardInterrupt once it may stop."""

    def __init__(self) -> None:
        self.last: signal.Signals | None = None  # the last signal received
        self._count = 0
        self._patience = 0  # number of signals to ignore

    @property
    def exit_code(self) -> int:
        """Return the exit code after a signal: 128 plus its number, 130 for Ctrl-C."""
        return 128 + (self.last or signal.SIGINT)

    @property
    def reason(self) -> str | None:
        """Return the name of the last signal; None for Ctrl-C."""
        return None if self.last in (None, signal.SIGINT) else self.last.name

    @contextmanager
    def working(self) -> Iterator[None]:
        """Stop at the first signal, also at one that was ignored before."""
        yield from self._lets_pass(0)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Ignore the first signal, as the results that it asks for are being written."""
        yield from self._lets_pass(1)

    @contextmanager
    def leaving(self) -> Iterator[None]:
        """Ignore all signals: the block is short and must be completed."""
        yield from self._lets_pass(1_000_000)

    def _lets_pass(self, signals: int) -> Iterator[None]:
        before, self._patience = self._patience, signals
        try:
            if self._count > signals:
                raise KeyboardInterrupt
            yield
        finally:
            self._patience = before

    def take(self, number: int, _: Any) -> None:
        """Handle a signal."""
        self.last = signal.Signals(number)
        self._count += 1
        if self._count > self._patience:
            raise KeyboardInterrupt(self.last.name)


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Handle the signals in a with-block; inside another such block yield the same object.

    Signals that are ignored, as under nohup, stay ignored, and a handler of the caller stays in place. Only the main
    thread can handle signals, so in other threads nothing changes.
    """
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    methods = (handler for handler in handlers.values() if inspect.ismethod(handler))
    outer = next((each.__self__ for each in methods if isinstance(each.__self__, Interrupts)), None)
    if outer is not None:
        yield outer
        return
    found = Interrupts()
    taken = [number for number, handler in handlers.items() if handler in _DEFAULTS]
    if threading.current_thread() is not threading.main_thread():
        taken = []
    for number in taken:
        signal.signal(number, found.take)
    try:
        yield found
    finally:
        for number in taken:
            signal.signal(number, handlers[number])
