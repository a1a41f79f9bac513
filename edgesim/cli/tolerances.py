"""The option --tolerance of the commands that compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from edgesim.core.errors import ConfigError
from edgesim.files.reading import quoted

if TYPE_CHECKING:
    from edgesim.reports.compare import Tolerance

_HELP = 'How far a column may be off, as in "energy_j=1 %", "accuracy=0.01" or "energy_j=1 % or 5"; may be repeated.'

Tolerances = Annotated[list[str] | None, typer.Option("--tolerance", metavar="COLUMN=VALUE", help=_HELP)]


def tolerances_of(given: Sequence[str]) -> dict[str, Tolerance]:
    """Return tolerances by column. Raises ConfigError for a text that is none, or a column that is named twice."""
    from edgesim.reports.compare import parse_tolerance

    found: dict[str, Tolerance] = {}
    for text in given:
        column, sign, value = (part.strip() for part in text.partition("="))
        if not (column and sign):
            raise ConfigError(f'--tolerance: must be COLUMN=VALUE, such as "energy_j=1 %", got {quoted(text)}')
        if column in found:
            raise ConfigError(f"--tolerance: {quoted(column)} is given twice")
        try:
            found[column] = parse_tolerance(value)
        except ValueError as error:
            raise ConfigError(f"--tolerance: {column}: {error}") from error
    return found
