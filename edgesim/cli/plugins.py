"""What `list` prints: the parts that scenarios can name, or every key of one of them."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from edgesim.config.plugins import PACKAGES, meant, places_of
from edgesim.core.errors import ConfigError
from edgesim.files.reading import quoted

_DEVICES, _LINKS = "devices", "links"  # of the catalogues


def kinds() -> list[str]:
    """Return what `list` lists, for completion in a shell."""
    return [*PACKAGES, _DEVICES, _LINKS]


def names_of_kind(context: typer.Context) -> list[str]:
    """Return the names of the kind that is already typed, for completion in a shell."""
    kind = context.params.get("kind")
    return list(places_of(kind)) if kind in PACKAGES else []


def print_parts(kind: str | None, names: Sequence[str]) -> None:
    """Print all kinds of parts, one kind, or every key of the parts of a kind that are named.

    Raises ConfigError if there is no such kind, in the singular or the plural, or no such part.
    """
    wanted = None if kind is None else kind_of(kind)
    if wanted in (_DEVICES, _LINKS):
        _print_catalogue(wanted, names)
    elif wanted and names:
        for name in names:
            _print_part(wanted, name)
    else:
        for each in [wanted] if wanted else PACKAGES:
            _print_kind(each)


def kind_of(word: str) -> str:
    """Return the kind of part that a word, singular or plural, names. Raises ConfigError that offers the nearest."""
    forms = {form: kind for kind in kinds() for form in _forms(kind)}
    if word.lower() not in forms:
        raise ConfigError(f"unknown kind {quoted(word)}{meant(word.lower(), forms)} (known: {', '.join(kinds())})")
    return forms[word.lower()]


def _forms(kind: str) -> tuple[str, ...]:
    if kind.endswith("s"):
        return kind, kind[:-1]
    return kind, f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"


def _print_kind(kind: str) -> None:
    from edgesim.cli.grid import GridColumn, print_grid

    places = places_of(kind)
    summaries = [place.summary for place in places.values()]
    print_grid([GridColumn(kind, list(places)), GridColumn("what it is", summaries)])


def _print_catalogue(which: str, names: Sequence[str]) -> None:
    from edgesim.cli.device import print_device, print_devices
    from edgesim.cli.link import print_link, print_links

    one, every = (print_device, print_devices) if which == _DEVICES else (print_link, print_links)
    for name in names:
        one(name)
    if not names:
        every()


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
        print_grid([GridColumn(head, [getattr(key, head) for key in found.keys]) for head in headings])
        for key in found.keys:
            if key.background:
                print(f"{key.key}: {key.background}")
        print()
    else:
        print("It has no keys.\n")
