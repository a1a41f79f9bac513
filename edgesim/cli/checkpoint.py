"""The options --checkpoint and --fresh of the commands that train."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import typer

from edgesim.core.errors import ConfigError

_HELP = 'Save training every so often, such as "10 min"; if it is cut off, the same command goes on from there.'

Every = Annotated[str | None, typer.Option("--checkpoint", metavar="TIME", help=_HELP)]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Train everything anew, and replace the cached answers and finished cells.")
]


def seconds(given: str | None) -> float | None:
    """Return the time of --checkpoint in seconds, None if it is not given. Raises ConfigError if it is none."""
    return None if given is None else seconds_of("--checkpoint", given)


def seconds_of(option: str, given: str) -> float:
    """Return a time in seconds; a number without a unit is in seconds. Raises ConfigError if it is none."""
    from pydantic import TypeAdapter, ValidationError

    from edgesim.config.units import Seconds, reason

    value: float | str = given
    with suppress(ValueError):
        value = float(given)
    try:
        return TypeAdapter[float](Seconds).validate_python(value)
    except ValidationError as error:
        raise ConfigError(f"{option}: {reason(error)}") from error
