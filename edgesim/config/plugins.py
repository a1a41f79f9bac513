"""Finds the pluggable parts by name. There is no registry: each module of a kind's package lists its parts in PLUGINS.

The names are read from the source text. Only the module of a requested part is loaded, because many modules load torch,
which takes seconds.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import importlib
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, NamedTuple

from edgesim.core.errors import ConfigError
from edgesim.files.own_code import OWN_CLASSES, own_frames
from edgesim.files.reading import in_short, quoted

PACKAGES = {
    "data": "edgesim.learning.data.sources",
    "partition": "edgesim.learning.data.partitions",
    "model": "edgesim.learning.models",
    "cost": "edgesim.learning.cost_models",
    "network": "edgesim.world.links",
    "discipline": "edgesim.world.contention",
    "allocator": "edgesim.world.spectrum",
    "resources": "edgesim.world.resources",
    "energy": "edgesim.world.energy",
    "slowdown": "edgesim.world.compute.slowdowns",
    "battery": "edgesim.world.batteries",
    "tariff": "edgesim.world.prices.tariffs",
    "governor": "edgesim.world.compute.governors",
    "clock": "edgesim.world.clocks",
    "availability": "edgesim.world.availability",
    "failure": "edgesim.world.failures",
    "peers": "edgesim.world.peers",
    "topology": "edgesim.world.topology",
    "mobility": "edgesim.world.mobility",
    "selection": "edgesim.engine.selection",
    "controller": "edgesim.engine.controllers",
    "method": "edgesim.methods",
    "server_optimizer": "edgesim.learning.server_optimizers",
    "objective": "edgesim.learning.objectives",
    "protocol": "edgesim.engine.protocols",
    "backend": "edgesim.execution.backends",
    "app": "edgesim.flower",
}

RENAMED = {"coordinator": "protocol", "units": "channels"}  # keys of scenarios: old -> new
RENAMED_VALUES = {"skip": "average_over_holders", "keep_old": "include_absent"}  # values of keys: old -> new
_FEW = 12  # most names that an error lists
_MOST_ALIKE = 5  # candidates for a hint, the most similar first
_ALIKE = 100  # characters that are compared: a longer name is no typing error

# Names of parts in other software and in the literature.
_ALIASES: Mapping[str, Mapping[str, str]] = {
    "data": {
        "txt": "text", "shakespeare": "text", "markov": "markov_text",
        "csv": "table", "tabular": "table",
        "huggingface": "hf", "hugging_face": "hf", "datasets": "hf",
        "numpy": "npz", "npy": "npz", "folder": "image_folder", "images": "image_folder",
    },
    "partition": {
        "dirichlet": "dirichlet_label", "noniid": "dirichlet_label", "non_iid": "dirichlet_label",
        "natural": "by_column",
    },
    "network": {
        "csv": "trace", "constant": "fixed", "none": "ideal", "4g": "lte", "nr": "5g", "wlan": "wifi", "wi-fi": "wifi",
        "lan": "ethernet", "nb-iot": "nb_iot", "nbiot": "nb_iot", "lorawan": "lora", "satellite": "starlink",
    },
    "discipline": {"max_min": "fair", "processor_sharing": "fair", "queue": "fifo", "fcfs": "fifo"},
    "energy": {"constant": "power", "dvfs": "cpu"},
    "slowdown": {"csv": "replay", "trace": "replay", "exponential": "shifted_exponential", "lognormal": "log_normal"},
    "availability": {"csv": "trace", "daily": "diurnal", "random": "bernoulli", "churn": "sessions"},
    "failure": {"outage": "link_outage", "restart": "server_restart", "dropout": "crash", "partial": "partial_work"},
    "tariff": {"csv": "series", "trace": "series", "hourly": "daily", "flat": "constant"},
    "peers": {"csv": "file", "complete": "full", "clique": "full", "circle": "ring"},
    "topology": {"csv": "file", "regular": "random_regular"},
    "mobility": {"csv": "trace", "random": "markov"},
    "selection": {
        "random": "uniform", "everybody": "all", "best_channel": "bc", "rpow_d": "power_of_choice", "cpow_d": "pow_d",
    },
    "server_optimizer": {"momentum": "sgd", "fedavgm": "sgd", "fedadam": "adam", "adamw": "adam", "fedyogi": "yogi"},
    "objective": {
        "cross_entropy": "classification", "perplexity": "next_token", "language_model": "next_token",
        "next_word": "next_token",
        "mse": "regression", "mae": "regression", "bce": "multi_label", "multilabel": "multi_label",
    },
    "protocol": {"async": "buffered", "asynchronous": "buffered", "synchronous": "sync"},
    "backend": {"process": "workers", "processes": "workers", "parallel": "workers", "none": "null", "cpu": "serial"},
}  # fmt: skip
_LOOKING = ContextVar("looking", default=False)  # see `only_looking`
_IMPORT_FAULTS = (ImportError, SyntaxError, AttributeError, TypeError, ValueError)  # whose messages need no type name


def meant(given: str, known: Collection[str], aliases: Mapping[str, str] | None = None, cutoff: float = 0.5) -> str:
    """Return "; did you mean 'x'?" with the known name that an alias stands for or that is nearest, "" if none is near.

    A name is near if it differs by a few typing errors, at most a third of its length, or if one name begins with the
    other. For a renamed key the answer is its new name: "; it is called 'x' now".
    """
    given = given[:_ALIKE]
    if RENAMED.get(given) in known:
        return f"; it is called {RENAMED[given]!r} now"
    alias = (aliases or {}).get(given.lower())
    alike = difflib.get_close_matches(given, known, n=_MOST_ALIKE, cutoff=cutoff)
    near = [alias] if alias in known else []
    for name in alike if not near else ():
        changes = difflib.SequenceMatcher(None, given, name).get_opcodes()
        errors = sum(max(i2 - i1, j2 - j1) for what, i1, i2, j1, j2 in changes if what != "equal")
        if name.startswith(given) or given.startswith(name) or errors <= max(2, len(name) // 3):
            near.append(name)
    return f"; did you mean {near[0]!r}?" if near else ""


def known_names(known: Collection[str], command: str, word: str = "known") -> str:
    """Return "known: a, b, c", with another first word if it is given, or the command that lists many names."""
    return f"{word}: {', '.join(known)}" if len(known) <= _FEW else f"`{command}` lists all {len(known)}"


def renamed(given: Any, allowed: str) -> str:
    """Return "; it is called 'x' now" for a renamed value of a key whose new name is allowed, else ""."""
    now = RENAMED_VALUES.get(given) if isinstance(given, str) else None
    return f"; it is called {now!r} now" if now and repr(now) in allowed else ""


class Place(NamedTuple):
    """Location of a part: the class `attribute` of a module."""

    module: str
    attribute: str

    @property
    def summary(self) -> str:
        """First line of the class's docstring."""
        return _summaries(self.module)[self.attribute]

    def load(self) -> Any:
        """Return the class."""
        return getattr(importlib.import_module(self.module), self.attribute)


# The abstract class that the parts of each kind extend. It says what they must have, and has defaults for the rest.
ABSTRACT: Mapping[str, Place] = {
    "data": Place("edgesim.learning.data.dataset", "DataPart"),
    "partition": Place("edgesim.learning.data.split", "Partition"),
    "model": Place("edgesim.learning.models.base", "ModelPlugin"),
    "cost": Place("edgesim.core.cost_model", "CostModel"),
    "network": Place("edgesim.world.links.base", "NetworkPart"),
    "discipline": Place("edgesim.world.contention.base", "DisciplinePart"),
    "allocator": Place("edgesim.world.spectrum.base", "Allocator"),
    "resources": Place("edgesim.world.resources.base", "Resources"),
    "energy": Place("edgesim.world.energy.base", "EnergyPart"),
    "slowdown": Place("edgesim.world.compute.slowdowns.base", "SlowdownPart"),
    "battery": Place("edgesim.world.batteries.base", "BatteryPart"),
    "tariff": Place("edgesim.world.prices.base", "Tariff"),
    "governor": Place("edgesim.world.compute.governors.dvfs", "Governor"),
    "clock": Place("edgesim.world.clocks.base", "ClockPart"),
    "availability": Place("edgesim.world.availability.base", "AvailabilityPart"),
    "failure": Place("edgesim.world.failures.base", "FailurePart"),
    "peers": Place("edgesim.core.peer_graph", "Peers"),
    "topology": Place("edgesim.world.topology.base", "TopologyPart"),
    "mobility": Place("edgesim.world.mobility.base", "Mobility"),
    "selection": Place("edgesim.core.selection", "Selection"),
    "controller": Place("edgesim.core.controller", "Controller"),
    "server_optimizer": Place("edgesim.learning.server_optimizers.base", "ServerOptimizer"),
    "objective": Place("edgesim.learning.objectives.base", "Objective"),
    "method": Place("edgesim.core.method", "Method"),
    "protocol": Place("edgesim.core.protocol", "RoundProtocol"),
    "backend": Place("edgesim.core.backend", "BackendPart"),
    "app": Place("edgesim.core.app", "App"),
}
APP = "app"  # name of the parts whose place an app takes
_OF_APP: Mapping[str, Place] = {
    "partition": Place("edgesim.runs.app_parts", "AppPartition"),
    "model": Place("edgesim.runs.app_parts", "AppModel"),
    "method": Place("edgesim.runs.app_parts", "AppMethod"),
    "protocol": Place("edgesim.engine.apps", "AppCalls"),
}


class Around(NamedTuple):
    """Keys that a table of a kind may have beside those of its part.

    `place`: a dataclass with these keys, whose function `around(part)` returns the part that takes its place.
    """

    place: Place
    first: str  # key without which a table has none of them
    others: tuple[str, ...]


AROUND: Mapping[str, Around] = {"method": Around(Place("edgesim.foreign.loops", "Loop"), "local", ("config",))}


@cache
def places_of(kind: str) -> dict[str, Place]:
    """Return the location of every part of a kind that edgesim ships, sorted by name, without loading any.

    A module has to write PLUGINS as {"name": Class, ...}.
    """
    package = importlib.util.find_spec(PACKAGES[kind])
    folders = package.submodule_search_locations if package else None
    found: dict[str, Place] = {}
    for module in pkgutil.iter_modules(folders):
        name = f"{PACKAGES[kind]}.{module.name}"
        source = _source(name, module.module_finder.find_spec(name, None))
        start = source.find("\nPLUGINS")  # parsing the text before it would take ten times as long
        for node in ast.parse(source[start:]).body if start >= 0 else ():
            if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, ast.Dict):
                continue
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if ast.unparse(target) == "PLUGINS":
                parts = zip(node.value.keys, node.value.values, strict=True)
                found |= {str(ast.literal_eval(key or "")): Place(name, ast.unparse(cls)) for key, cls in parts}
    return dict(sorted(found.items()))


def plugins_of(kind: str) -> dict[str, type]:
    """Return every part of a kind that edgesim ships, by name, sorted."""
    return {name: place.load() for name, place in places_of(kind).items()}


def find(kind: str, name: str) -> tuple[Any, dict[str, Any]]:
    """Return the class of the part `name` and the arguments that the name itself fixes.

    A name in PLUGINS that ends with ":" is a family: "torchvision:resnet18" gives its class and
    {"member": "resnet18"}. Any other name with a colon is a user's own class, `package.module:Class`.
    Raises ConfigError that offers the nearest name if none fits, or that names the missing part of a user's class.
    """
    if name == APP and kind in _OF_APP:
        return _OF_APP[kind].load(), {}
    known = places_of(kind)
    if name in known and not name.endswith(":"):
        return known[name].load(), {}
    family, colon, member = name.partition(":")
    if colon and f"{family}:" in known:
        return known[f"{family}:"].load(), {"member": member}
    if colon:
        return _outside(kind, name), {}
    hint = meant(name, known, _ALIASES.get(kind))
    names = known_names(known, f"edgesim list {kind}")
    raise ConfigError(f"{kind}.name: unknown {kind} {quoted(name)}{hint} ({names})")


def is_outside(kind: str, name: str) -> bool:
    """Return True if a name stands for a user's own class, so that finding it runs code that edgesim does not ship."""
    return ":" in name and f"{name.partition(':')[0]}:" not in places_of(kind)


@contextmanager
def only_looking() -> Iterator[None]:
    """Forbid imports of users' own classes in the with-block, because the run folder may come from another user."""
    token = _LOOKING.set(True)
    try:
        yield
    finally:
        _LOOKING.reset(token)


@cache
def _summaries(module: str) -> dict[str, str]:
    """Return the first lines of the docstrings of a module's classes, by name."""
    body = ast.parse(_source(module, importlib.util.find_spec(module))).body
    classes = (node for node in body if isinstance(node, ast.ClassDef))
    return {node.name: (ast.get_docstring(node) or "").partition("\n")[0] for node in classes}


def _source(module: str, spec: ModuleSpec | None) -> str:
    """Return the source of a module without loading it, "" if it has none."""
    if spec and isinstance(spec.loader, InspectLoader):
        return spec.loader.get_source(module) or ""
    # pytest loads the modules of a package with a pytest plug-in through a loader without get_source
    return Path(spec.origin).read_text(encoding="utf-8") if spec and spec.has_location and spec.origin else ""


def factory_of(key: str, name: str, what: str = "factory") -> Callable[..., Any]:
    """Return a user's own function or class, `package.module:factory`, which makes something from keyword arguments.

    `what`: word for it in errors. Raises ConfigError that names the key if there is none.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute.isidentifier():
        raise ConfigError(f"{key}: must be package.module:{what}, got {quoted(name)}")
    found = _imported(key, name, what)
    if not callable(found):
        raise ConfigError(f"{key}: {quoted(name)} must be a function or class, found {quoted(found)}")
    OWN_CLASSES[name] = key
    factory: Callable[..., Any] = found
    return factory


def function_of(key: str, name: str, *arguments: str) -> Callable[..., Any]:
    """Return a user's own function, `package.module:function`, that takes arguments of these names by position.

    Raises ConfigError that names the key if there is no such function.
    """
    found = factory_of(key, name, "function")
    wanted = f"function({', '.join(arguments)})"
    if isinstance(found, type):
        raise ConfigError(f"{key}: {quoted(name)} must be a {wanted}, found {quoted(found)}")
    try:
        signature = inspect.signature(found)
        signature.bind(*arguments)
    except ValueError:  # of a builtin
        pass
    except TypeError as error:
        has = f"{found.__name__}{_bare(signature, defaults=True)}"
        raise ConfigError(f"{key}: {quoted(name)} must be a {wanted}, found {has}") from error
    return found


def _imported(key: str, name: str, what: str) -> Any:
    """Return the object that `package.module:attribute` names. Raises ConfigError that names the key."""
    module_name, _, attribute = name.partition(":")
    if _LOOKING.get() and module_name not in sys.modules:
        raise ConfigError(f"{key}: {quoted(name)} is a {what} from outside, and looking at a run imports none")
    try:
        return Place(module_name, attribute).load()
    except (Exception, SystemExit) as error:  # a user's module may raise anything when it is loaded
        fault = f"{type(error).__name__}: {error}" if not isinstance(error, _IMPORT_FAULTS) else str(error)
        frames = own_frames(error)
        place = f" ({frames.place})" if frames else ""
        raise ConfigError(f"{key}: cannot import {quoted(name)}: {in_short(fault)}{place}") from error


def _outside(kind: str, name: str) -> Any:
    """Return a user's own class. It is checked before it is called, because a scenario may name any object."""
    found = _imported(f"{kind}.name", name, "class")
    if not (isinstance(found, type) or (kind == "model" and inspect.isfunction(found))):
        raise ConfigError(f"{kind}.name: {quoted(name)} must be the name of a class, found {quoted(found)}")
    OWN_CLASSES[name] = kind
    if kind != "model":  # any torch.nn.Module, which is checked where torch is loaded
        _check_class(kind, name, found)
    return found


def _check_class(kind: str, name: str, found: Any) -> None:
    """Raise ConfigError unless a user's class extends the abstract class of its kind and has what this asks for."""
    module, attribute = ABSTRACT[kind]
    base = ABSTRACT[kind].load()
    if not (issubclass(found, base) and dataclasses.is_dataclass(found)):
        raise ConfigError(f"{kind}.name: {name} must be a dataclass that extends {module}.{attribute}")
    fields = {each.name: each for each in dataclasses.fields(found)}
    values = (each for each in inspect.get_annotations(base) if each not in (*fields, *dir(found)))
    abstract: frozenset[str] = vars(found)["__abstractmethods__"]
    for each in (*sorted(abstract), *values):
        own = inspect.getattr_static(found, each, None)
        arguments = _bare(inspect.signature(own)) if inspect.isfunction(own) else ""
        raise ConfigError(f"{kind}.name: {name} must have {each}{arguments}, as {module}.{attribute} asks for it")
    for each, field in fields.items():
        if isinstance(field.default, property):
            raise ConfigError(f"{kind}.name: {name}.{each} must have a default, as {attribute} has one")
    for each, asked in vars(base).items():
        own = inspect.getattr_static(found, each)
        if each.startswith("_") or each in fields or not inspect.isfunction(asked) or own is asked:
            continue
        function = own.__func__ if isinstance(own, staticmethod | classmethod) else own
        if not callable(function):
            raise ConfigError(f"{kind}.name: {name}.{each} must be a function, found {type(own).__name__}")
        first, *others = inspect.signature(asked).parameters.values()
        taken = others if isinstance(own, staticmethod) else [first, *others]
        positional = [one.name for one in taken if one.kind is not one.KEYWORD_ONLY]
        named = {one.name: None for one in taken if one.kind is one.KEYWORD_ONLY}
        try:
            inspect.signature(function).bind(*positional, **named)
        except TypeError as error:
            wanted = _bare(inspect.Signature(taken))
            has = _bare(inspect.signature(function), defaults=True)
            raise ConfigError(f"{kind}.name: {name} must have {each}{wanted}, found {each}{has}") from error


def _bare(signature: inspect.Signature, defaults: bool = False) -> inspect.Signature:
    """Return a signature without annotations, and without default values unless `defaults` is set."""
    bare = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
    bare = bare if defaults else [each.replace(default=each.empty) for each in bare]
    return signature.replace(parameters=bare, return_annotation=signature.empty)
