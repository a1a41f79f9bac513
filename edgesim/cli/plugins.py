"""The `list` command: parts that scenarios can name, or every key of one part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import typer

from edgesim.config.plugins import PACKAGES, meant, places_of
from edgesim.core.errors import ConfigError
from edgesim.files.reading import quoted

_DEVICES, _LINKS = "devices", "links"  # kinds from the catalogues


def kinds() -> list[str]:
    """Return the kinds of parts, for shell completion."""
    return [*PACKAGES, _DEVICES, _LINKS]


def names_of_kind(context: typer.Context) -> list[str]:
    """Return the names of the kind on the command line, for shell completion."""
    kind = context.params.get("kind")
    return list(places_of(kind)) if kind in PACKAGES else []


def print_parts(kind: str | None, names: Sequence[str]) -> None:
    """Print all kinds of parts, one kind, or every key of the named parts of a kind.

    Raises ConfigError for an unknown kind (in singular or plural) or part.
    """
    from edgesim.cli.grid import GridColumn, print_grid

    wanted = None if kind is None else kind_of(kind)
    if wanted in (_DEVICES, _LINKS):
        from edgesim.cli.device import print_device, print_devices  # these load the catalogues
        from edgesim.cli.link import print_link, print_links

        one, every = (print_device, print_devices) if wanted == _DEVICES else (print_link, print_links)
        for name in names:
            one(name)
        if not names:
            every()
    elif wanted and names:
        for name in names:
            _print_part(wanted, name)
    else:
        for each in [wanted] if wanted else PACKAGES:
            places = places_of(each)
            summaries = [place.summary for place in places.values()]
            print_grid([GridColumn(each, list(places)), GridColumn("what it is", summaries)])


def kind_of(word: str) -> str:
    """Return the kind of part for a word in singular or plural. Raises ConfigError that offers the nearest."""
    forms: dict[str, str] = {}
    for kind in kinds():
        plural = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"
        forms |= dict.fromkeys((kind, kind[:-1] if kind.endswith("s") else plural), kind)
    if word.lower() not in forms:
        raise ConfigError(f"unknown kind {quoted(word)}{meant(word.lower(), forms)} (known: {', '.join(kinds())})")
    return forms[word.lower()]


def _print_part(kind: str, name: str) -> None:
    from edgesim.cli.grid import GridColumn, print_grid
    from edgesim.config.describe import describe

    found = describe(kind, name)
    print(f"{kind} {name}: {found.what}\n")
    if found.source:
        print(f"Source: {found.source}\n")
    print(f"{found.example}\n")
    if found.keys:
        headings = ("key", "default", "unit", "type", "example", "meaning")
        print_grid([GridColumn(head, [own[head] for own in map(asdict, found.keys)]) for head in headings])
        for key in found.keys:
            if key.background:
                print(f"{key.key}: {key.background}")
        print()
    else:
        print("It has no keys.\n")
