"""Finds the pluggable parts by name. There is no registry: a module of a kind's package lists its own in PARTS.

What there is, is read from the source. Only the module of a part that is asked for is loaded, as many of them load
torch, which takes seconds.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import pkgutil
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

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


class Place(NamedTuple):
    """Where a part is: the class `attribute` of a module. `summary`: the first line of its docstring."""

    module: str
    attribute: str
    summary: str

    def load(self) -> Any:
        """Return the class."""
        return getattr(importlib.import_module(self.module), self.attribute)


@cache
def places_of(kind: str) -> dict[str, Place]:
    """Return where every part of a kind is that edgesim ships, by name, sorted. None of them is loaded."""
    package = importlib.util.find_spec(PACKAGES[kind])
    folders = package.submodule_search_locations if package else None
    found: dict[str, Place] = {}
    for module in pkgutil.iter_modules(folders):
        name = f"{PACKAGES[kind]}.{module.name}"
        spec = module.module_finder.find_spec(name, None)
        source = getattr(spec and spec.loader, "get_source", lambda _: None)(name)
        found.update(_listed(name, source or ""))
    return dict(sorted(found.items()))


def parts_of(kind: str) -> dict[str, type]:
    """Return every part of a kind that edgesim ships, by name, sorted."""
    return {name: place.load() for name, place in places_of(kind).items()}


def find(kind: str, name: str) -> tuple[Any, dict[str, Any]]:
    """Return the class of the part `name` and the arguments that the name itself fixes.

    A name in PARTS that ends with ":" is a family: "torchvision:resnet18" gives its class and
    {"member": "resnet18"}. Any other name with a colon is `package.module:Class` from outside.
    Raises ConfigError that offers the nearest name if there is none.
    """
    known = places_of(kind)
    if name in known and not name.endswith(":"):
        return known[name].load(), {}
    family, colon, member = name.partition(":")
    if colon and f"{family}:" in known:
        return known[f"{family}:"].load(), {"member": member}
    if colon:
        return _outside(kind, name), {}
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ConfigError(f"{kind}.name: unknown {kind} {name!r}{hint} (known: {', '.join(known)})")


def _listed(module: str, source: str) -> Iterator[tuple[str, Place]]:
    """Yield name and place of the parts in a module's PARTS, which has to be written as {"name": Class, ...}."""
    body = ast.parse(source).body
    classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
    for node in body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict) and _name(node) == "PARTS":
            for name, cls in zip(node.value.keys, node.value.values, strict=True):
                attribute = ast.unparse(cls)
                summary = (ast.get_docstring(classes[attribute]) or "").partition("\n")[0]
                yield str(ast.literal_eval(name or "")), Place(module, attribute, summary)


def _name(node: ast.Assign | ast.AnnAssign) -> str:
    return ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)


def _outside(kind: str, name: str) -> Any:
    module_name, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, SyntaxError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"{kind}.name: cannot import {name!r}: {error}") from error
