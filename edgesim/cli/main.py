"""Process of the command line: streams, signals, exit code, and one error line for each mistake."""

from __future__ import annotations

import atexit
import gc
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import typer

from edgesim.cli.app import command_line
from edgesim.core.errors import EdgesimError
from edgesim.execution.interrupts import INTERRUPTED, Interrupts, interrupts
from edgesim.files.own_code import OWN_CLASSES, told
from edgesim.files.reading import one_line, visible

# Typer's base class of usage errors. Its module has changed between versions, its child has not.
_UsageError: Any = typer.BadParameter.__base__
_OFFERED_TWICE = re.compile(r"( Did you mean [^?]*\?)\1")  # by typer, and by the click below some versions of it
_SIGPIPE_EXIT = 141  # exit code of a program that SIGPIPE has ended, as in a shell


def main() -> None:
    """Run the command line. A mistake of the user gives one line on stderr and exit code 2."""
    # Import parts "module:Class" from the current folder last, so that its files never replace libraries. `python -m`
    # puts the folder first. If it is elsewhere in the path, as by PYTHONPATH, it stays there.
    here = str(Path.cwd())
    if sys.path[:1] in ([""], [here]):
        del sys.path[0]
    if here not in sys.path:
        sys.path.append(here)
    atexit.register(gc.freeze)  # all goes with the process, so that Python need not look for garbage once more
    os.environ["MPLBACKEND"] = "agg"  # figures go to files, and the backend of the environment may be missing
    try:
        with careful_streams(), interrupts() as signals:
            code = _exit_code(signals)
    except OutputError as error:
        if not error.is_unread:
            with suppress(OSError):
                print("error:", error, file=sys.stderr)
        code = error.exit_code
    sys.exit(code)


def _exit_code(signals: Interrupts) -> int:
    """Run the command line and return its exit code, after a signal 128 plus its number."""
    OWN_CLASSES.clear()
    try:
        code = command_line()(sys.argv[1:] or ["--help"], prog_name="edgesim", standalone_mode=False) or 0
        return signals.exit_code if code == INTERRUPTED else int(code)
    except KeyboardInterrupt:
        return signals.exit_code
    except _UsageError as error:
        said = _OFFERED_TWICE.sub(r"\1", error.format_message().rstrip("."))
        frames, message = "", f"{said} (see {error.ctx.command_path} --help)"
    except Exception as error:
        found = told(error)
        if found is None:  # an error inside edgesim: show the traceback
            raise
        message, frames = found
    print("error:", one_line(message), file=sys.stderr)
    print(frames, end="", file=sys.stderr)
    return 2


def run_script(main: Callable[..., Any]) -> None:
    """Run a function of a script in `analysis/` with the words of its command line, with errors as in `main`."""
    try:
        typer.run(main)
    except EdgesimError as error:
        print("error:", " ".join(str(error).splitlines()), file=sys.stderr)
        sys.exit(2)


# --- streams ----------------------------------------------------------------------------------------------------


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
