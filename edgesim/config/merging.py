"""How a table of settings is laid over another: a file over the one that it extends, a session over its scenario."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgesim.config.plugin_fields import as_table
from edgesim.config.plugins import PACKAGES


def merged(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the sections of `top` laid over it.

    Tables merge one level deep, so that a distribution or another inner table is replaced as a whole. A part of
    another name replaces its section, as the keys of the old part mean nothing to the new one.
    """
    found = dict(base)
    for key, section in top.items():
        old = as_table(base.get(key)) if key in PACKAGES else base.get(key)
        same = isinstance(section, Mapping) and section.get("name", _name_of(old)) == _name_of(old)
        found[key] = {**old, **section} if same and isinstance(old, Mapping) else section
    return found


def _name_of(section: Any) -> Any:
    return section.get("name") if isinstance(section, Mapping) else None
