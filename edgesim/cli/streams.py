"""Standard output and error that may be closed, or on a full disk."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from edgesim.files.reading import visible

_SIGPIPE_EXIT = 141  # as a shell shows a program that SIGPIPE has ended


class OutputError(Exception):
    """What was to be printed cannot be; not an OSError, which would be taken for one of the files of a run."""

    def __init__(self, reason: OSError) -> None:
        super().__init__(f"cannot write to standard output: {reason.strerror}")
        self.is_unread = isinstance(reason, BrokenPipeError)  # as by `| head`, which has what it wants
        self.exit_code = _SIGPIPE_EXIT if self.is_unread else 1


class _Stream:
    """A text stream whose failures are OutputErrors, or are passed over if there is nobody to hear of them.

    Printed text may come from somebody else's run folder: no control codes in it reach a terminal. Rich moves the
    cursor itself; it writes to `rich_proxied_file`, as it calls that, a stream to the same place.
    """

    def __init__(self, stream: Any, silent: bool, for_rich: bool = False) -> None:
        self._stream = stream
        self._silent = silent
        self._for_rich = for_rich
        self.rich_proxied_file = self if for_rich else _Stream(stream, silent, for_rich=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write text."""
        self._do(lambda: self._stream.write(text if self._for_rich else visible(text)))
        return len(text)

    def flush(self) -> None:
        """Write what is held back."""
        self._do(self._stream.flush)

    def _do(self, action: Any) -> None:
        try:
            action()
        except OSError as error:
            _discard_the_rest(self._stream)
            if not self._silent:
                raise OutputError(error) from error


@contextmanager
def careful_streams() -> Iterator[None]:
    """Let nothing that is wrong with stdout or stderr look like a fault of what runs in the with-block.

    Raises OutputError if stdout cannot be written; what cannot be written to stderr is lost. What was closed from the
    start is /dev/null.
    """
    _open_what_is_closed()
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _Stream(sys.stdout, silent=False), _Stream(sys.stderr, silent=True)
    try:
        yield
        sys.stdout.flush()
    finally:
        sys.stdout, sys.stderr = before


def _open_what_is_closed() -> None:
    """Take the numbers of closed streams, or the next file that is opened would get what is printed."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
            if getattr(sys, name) is None:
                setattr(sys, name, open(number, "r" if name == "stdin" else "w", closefd=False))  # noqa: SIM115


def _discard_the_rest(stream: Any) -> None:
    """Send what a stream still holds to /dev/null, so that Python's end does not trip over it."""
    with suppress(OSError, ValueError):  # no stream of the system's
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
