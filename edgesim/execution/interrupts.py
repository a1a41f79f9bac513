"""Ctrl-C, SIGTERM and SIGHUP: the first lets a run write what there is, the second gives up at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))

INTERRUPTED = 130  # exit code after Ctrl-C

_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)


class Interrupts:
    """Counts the signals that ask this process to stop, and raises KeyboardInterrupt when it is time to."""

    def __init__(self) -> None:
        self.last: signal.Signals | None = None  # that came
        self._count = 0
        self._patience = 0  # signals that are let pass

    @property
    def exit_code(self) -> int:
        """Return the exit code of a process that a signal stopped: 128 and its number, 130 for Ctrl-C."""
        return 128 + (self.last or signal.SIGINT)

    @property
    def reason(self) -> str | None:
        """Return the name of the last signal; None for Ctrl-C, which needs no telling."""
        return None if self.last in (None, signal.SIGINT) else self.last.name

    @contextmanager
    def working(self) -> Iterator[None]:
        """Break off at the first signal, also one that was let pass before."""
        yield from self._lets_pass(0)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Let the first signal pass: what is being written is what it asks for."""
        yield from self._lets_pass(1)

    @contextmanager
    def leaving(self) -> Iterator[None]:
        """Let all signals pass: what is done here takes a moment, and has to be done."""
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
        """Be the handler of a signal."""
        self.last = signal.Signals(number)
        self._count += 1
        if self._count > self._patience:
            raise KeyboardInterrupt(self.last.name)


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Handle the signals in a with-block; inside another such block give that one's.

    Signals that are ignored, as under nohup, stay so, and a handler of the caller's own goes on to be called. Only the
    main thread can handle signals; in another one nothing changes.
    """
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    outer = next(
        (each for h in handlers.values() if isinstance(each := getattr(h, "__self__", None), Interrupts)), None
    )
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
