"""Finds the pluggable parts by name. There is no registry: a module of a kind's package lists its own in PARTS."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from typing import Any

from edgesim.errors import ConfigError

PACKAGES = {
    "data": "edgesim.learning.data.sources",
    "partition": "edgesim.learning.data.partitions",
    "model": "edgesim.learning.models",
    "cost": "edgesim.world.costs",
    "network": "edgesim.world.networks",
    "energy": "edgesim.world.energies",
    "slowdown": "edgesim.world.slowdowns",
    "battery": "edgesim.world.batteries",
    "governor": "edgesim.world.governors",
    "availability": "edgesim.world.availabilities",
    "failure": "edgesim.world.failures",
    "peers": "edgesim.world.peer_graphs",
    "topology": "edgesim.world.topologies",
    "selection": "edgesim.engine.selections",
    "method": "edgesim.methods",
    "coordinator": "edgesim.coordinators",
    "backend": "edgesim.backends",
}


def parts_of(kind: str) -> dict[str, type]:
    """Return every part of a kind that edgesim ships, by name, sorted."""
    package = importlib.import_module(PACKAGES[kind])
    found: dict[str, type] = {}
    for module in pkgutil.iter_modules(package.__path__):
        found.update(getattr(importlib.import_module(f"{package.__name__}.{module.name}"), "PARTS", {}))
    return dict(sorted(found.items()))


def find(kind: str, name: str) -> tuple[Any, dict[str, Any]]:
    """Return the class of the part `name` and the arguments that the name itself fixes.

    A name in PARTS that ends with ":" is a family: "torchvision:resnet18" gives its class and
    {"member": "resnet18"}. Any other name with a colon is `package.module:Class` from outside.
    Raises ConfigError that offers the nearest name if there is none.
    """
    known = parts_of(kind)
    if name in known and not name.endswith(":"):
        return known[name], {}
    family, colon, member = name.partition(":")
    if colon and f"{family}:" in known:
        return known[f"{family}:"], {"member": member}
    if colon:
        return _outside(kind, name), {}
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ConfigError(f"{kind}.name: unknown {kind} {name!r}{hint} (known: {', '.join(known)})")


def _outside(kind: str, name: str) -> Any:
    module_name, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, SyntaxError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"{kind}.name: cannot import {name!r}: {error}") from error
