"""The process of the command line: its streams, signals, exit code, and the one line that a mistake ends in."""

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

# Typer's base of wrong usage, which has had several homes but always this child.
_UsageError: Any = typer.BadParameter.__base__


def main() -> None:
    """Run the command line; a mistake of the user ends in one line on stderr and exit code 2."""
    _look_here_last()
    os.environ["MPLBACKEND"] = "agg"  # pictures go to files; what the environment names need not exist here
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
    """Run the command line; return its exit code, 128 and the number of the signal if one has stopped it."""
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
        if found is None:  # a fault of edgesim's, whose traceback is wanted
            raise
        message, frames = found
    print("error:", one_line(message), file=sys.stderr)
    print(frames, end="", file=sys.stderr)
    return 2


def _look_here_last() -> None:
    """Let a part "module:Class" lie in the current folder, without a pandas.py there taking the place of the library.

    `python -m` puts the folder first; one that stands elsewhere, as by PYTHONPATH, stays there.
    """
    here = str(Path.cwd())
    if sys.path[:1] in ([""], [here]):
        del sys.path[0]
    if here not in sys.path:
        sys.path.append(here)
