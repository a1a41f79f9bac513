"""Standard output and error streams that may be closed, or on a full disk."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from edgesim.files.reading import visible

_SIGPIPE_EXIT = 141  # exit code of a program that SIGPIPE has ended, as in a shell


class OutputError(Exception):
    """Standard output cannot be written. Not an OSError, which would look like an error of a run's files."""

    def __init__(self, reason: OSError) -> None:
        super().__init__(f"cannot write to standard output: {reason.strerror}")
        self.is_unread = isinstance(reason, BrokenPipeError)  # as with `| head`, which needs no more
        self.exit_code = _SIGPIPE_EXIT if self.is_unread else 1


class _Stream:
    """A text stream whose failures are OutputErrors, or are ignored if `silent`.

    Printed text may come from a run folder of another user, so control codes in it do not reach a terminal. Rich moves
    the cursor with control codes: it writes to `rich_proxied_file`, an unfiltered stream to the same file.
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
        """Write buffered text."""
        self._do(self._stream.flush)

    def _do(self, action: Any) -> None:
        try:
            action()
        except OSError as error:
            with suppress(OSError, ValueError):  # the stream has no file descriptor
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self._stream.fileno())  # drops buffered text, or Python would fail at its exit
                os.close(nowhere)
            if not self._silent:
                raise OutputError(error) from error


@contextmanager
def careful_streams() -> Iterator[None]:
    """Context in which errors of stdout and stderr are kept apart from errors of the code inside.

    Raises OutputError if stdout cannot be written. Text that cannot be written to stderr is lost. Streams that are
    closed at the start become /dev/null.
    """
    for number, (name, stream) in enumerate([("stdin", sys.stdin), ("stdout", sys.stdout), ("stderr", sys.stderr)]):
        try:
            os.fstat(number)
        except OSError:  # without this, the next opened file would get this number and all printed text
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
            if stream is None:
                setattr(sys, name, open(number, "r" if name == "stdin" else "w", closefd=False))  # noqa: SIM115
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _Stream(sys.stdout, silent=False), _Stream(sys.stderr, silent=True)
    try:
        yield
        sys.stdout.flush()
    finally:
        sys.stdout, sys.stderr = before
