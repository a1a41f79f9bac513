"""Process of the command line: streams, signals, exit code, and one error line for each mistake."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from edgesim.cli.app import command_line
from edgesim.cli.streams import OutputError, careful_streams
from edgesim.execution.interrupts import INTERRUPTED, Interrupts, interrupts
from edgesim.files.own_code import OWN_CLASSES, told
from edgesim.files.reading import one_line

# Typer's base class of usage errors. Its module has changed between versions, its child has not.
_UsageError: Any = typer.BadParameter.__base__


def main() -> None:
    """Run the command line. A mistake of the user gives one line on stderr and exit code 2."""
    _look_here_last()
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
        frames, message = "", f"{error.format_message().rstrip('.')} (see {error.ctx.command_path} --help)"
    except Exception as error:
        found = told(error)
        if found is None:  # an error inside edgesim: show the traceback
            raise
        message, frames = found
    print("error:", one_line(message), file=sys.stderr)
    print(frames, end="", file=sys.stderr)
    return 2


def _look_here_last() -> None:
    """Import parts "module:Class" from the current folder last, so that its files never replace libraries.

    `python -m` puts the folder first. If it is elsewhere in the path, as by PYTHONPATH, it stays there.
    """
    here = str(Path.cwd())
    if sys.path[:1] in ([""], [here]):
        del sys.path[0]
    if here not in sys.path:
        sys.path.append(here)
