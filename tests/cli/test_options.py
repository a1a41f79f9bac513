"""Groups of options become single options of a command; lists of names are read in one way."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import typer

from edgesim.cli.app import command_line
from edgesim.cli.options import TableStyle, check_known, names_in, with_groups
from edgesim.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Place:
    """A group with a required field, and one with a default."""

    street: Annotated[str, typer.Option(help="The street.")]
    number: Annotated[int, typer.Option(help="The number.")] = 1


def test_a_command_gets_its_groups_and_typer_their_fields() -> None:
    seen = []

    def visit(place: Place, style: TableStyle, twice: bool = False) -> None:
        seen.append((place, style.name, twice))

    command = with_groups(visit)
    found = inspect.signature(command).parameters
    assert list(found) == ["street", "number", "as_csv", "as_markdown", "as_latex", "as_json", "twice"]
    assert found["street"].default is inspect.Parameter.empty and found["number"].default == 1
    formats = dict.fromkeys(("as_csv", "as_markdown", "as_latex"), False)
    command(street="Main", number=2, twice=True, as_json=True, **formats)
    assert seen == [(Place(street="Main", number=2), "json", True)]


def test_one_format_is_given_at_most() -> None:
    assert TableStyle().name == "" and TableStyle(as_latex=True).name == "latex"
    with pytest.raises(ConfigError, match=r"^--csv, --json: give one of them$"):
        _ = TableStyle(as_csv=True, as_json=True).name


def test_names_are_known_and_given_once() -> None:
    assert names_in("--x", "time, energy", ("energy", "time", "rounds")) == ["time", "energy"]
    for wrong in ("tame", "time,time", "time,"):
        with pytest.raises(ConfigError, match=r"^--x: '\w*' is unknown or given twice \(known: time, with commas\)$"):
            names_in("--x", wrong, ("time",))
    with pytest.raises(
        ConfigError, match=r"^--kind: unknown 'paretto'; did you mean 'pareto'\? \(known: heat, pareto\)$"
    ):
        check_known("--kind", "paretto", ("heat", "pareto"))


def commands(group: Any) -> Iterator[Any]:
    for each in group.commands.values():
        yield each
        yield from commands(each) if isinstance(each, typer.core.TyperGroup) else ()


def test_help_names_no_value_of_a_flag_and_every_argument() -> None:
    """With any version of typer: newer ones show flags as <bool> and arguments as Python names."""
    for command in [command_line(), *commands(command_line())]:
        for each in command.get_params(typer.Context(command)):
            if each.param_type_name == "argument":
                assert each.metavar and each.metavar.isupper(), each.name
            elif each.is_flag:
                assert each.metavar == "", each.name
