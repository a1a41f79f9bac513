"""Entry point of the scripts in `analysis/`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import typer

from edgesim.core.errors import EdgesimError


def run_script(main: Callable[..., Any]) -> None:
    """Run a function with the words of the command line; what edgesim refuses is one line, with exit code 2."""
    try:
        typer.run(main)
    except EdgesimError as error:
        print("error:", " ".join(str(error).splitlines()), file=sys.stderr)
        sys.exit(2)
