"""The views of the catalogue of links: one row a link, or every number of one link with its source."""

from __future__ import annotations

from typing import Any

from edgesim.cli.device import print_quantities, rows_of
from edgesim.cli.show import print_json, print_table
from edgesim.config import link_profiles
from edgesim.config.link_profiles import QUANTITIES, LinkProfile


def print_links(as_json: bool = False) -> None:
    """Print the catalogue: name, rates, latency, jitter, loss and energy of every link."""
    found = link_profiles.all()
    if as_json:
        print_json({profile.name: describe(profile) for profile in found})
        return
    rows = []
    for link in found:
        shown = {key: link.quantities[key].text if key in link.quantities else None for key in QUANTITIES}
        rows.append({"link": link.name, "what it is": link.title, **shown})
    print_table(rows, {heading: heading.replace("_", " ") for heading in rows[0]})


def print_link(name: str, as_json: bool = False) -> None:
    """Print every number of one link. Raises ConfigError if there is none."""
    link = link_profiles.find(name)
    print_quantities(link.name, describe(link), as_json)


def describe(link: LinkProfile) -> dict[str, Any]:
    """Return a link as plain values: title, and by quantity its value with unit, SI number, source, year, estimate.

    `estimate` says what the number was derived from; it is empty for a number that the source gives.
    """
    return {"title": link.title, "quantities": rows_of(link.quantities, link.si)}
