"""Names of devices, methods and other labels as readers know them: "Raspberry Pi 4" instead of raspberry_pi_4."""

from __future__ import annotations

import re
from functools import lru_cache

from edgesim.config import device_profiles
from edgesim.config.plugins import places_of


@lru_cache(maxsize=1024)
def display_name(label: str) -> str:
    """Return a label of a study for readers.

    A device of the catalogue has the spelling of its title, and a method that of its class. Of any other label each
    "_" becomes a blank.
    """
    words = label.replace("_", " ")
    if label in device_profiles.names():
        title = device_profiles.find(label).title
        spelt = {word.casefold(): word for word in re.findall(r"\w+", title)}
        return " ".join(spelt.get(word, word) for word in words.split())
    place = places_of("method").get(label)
    if place is not None and place.attribute.casefold() == label.replace("_", ""):
        return place.attribute
    return words


def level_name(axis: str, label: str) -> str:
    """Return a label of an axis for readers. A label that begins with a digit has the axis beside it: "5 phones"."""
    shown, name = display_name(label), axis_name(axis)
    if not label[:1].isdigit():
        return shown
    return f"{shown} {name}" if name.endswith("s") and label.isdigit() else f"{name} {shown}"


def axis_name(axis: str) -> str:
    """Return an axis for readers: the last word of a scenario key, so "count" for selection.count."""
    return axis.rpartition(".")[2].replace("_", " ")
