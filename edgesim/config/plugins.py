"""Finds the pluggable parts by name. There is no registry: a module of a kind's package lists its own in PLUGINS.

What there is, is read from the source. Only the module of a part that is asked for is loaded, as many of them load
torch, which takes seconds.
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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
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
    "energy": "edgesim.world.energy",
    "slowdown": "edgesim.world.compute.slowdowns",
    "battery": "edgesim.world.batteries",
    "tariff": "edgesim.world.prices.tariffs",
    "governor": "edgesim.world.compute.governors",
    "availability": "edgesim.world.availability",
    "failure": "edgesim.world.failures",
    "peers": "edgesim.world.peers",
    "topology": "edgesim.world.topology",
    "mobility": "edgesim.world.mobility",
    "selection": "edgesim.engine.selection",
    "method": "edgesim.methods",
    "server_optimizer": "edgesim.learning.server_optimizers",
    "objective": "edgesim.learning.objectives",
    "protocol": "edgesim.engine.protocols",
    "backend": "edgesim.execution.backends",
}

# Offers of a part of each kind: one of these, or all of them. A class from outside may be fit for something else.
# Functions stand with what they are called with, which a class from outside may call as it likes, values without.
ASKED: Mapping[str, tuple[tuple[str, ...], Callable[[Iterable[bool]], bool]]] = {
    "data": (("load()",), all),
    "partition": (
        (
            "split(y_train, y_test, devices, classes, key)",
            "divide(data, rows, tests, devices)",
            "counts(devices, key)",
        ),
        any,
    ),
    "model": ((), all),  # any torch.nn.Module, which is looked at where torch is known
    "cost": (("check(*, widths)", "flops(cost_profile, work, submodel, samples, steps)"), all),
    "network": (("build(n, key, path)",), all),
    "discipline": (("links(capacity_bps)",), all),
    "energy": (("columns(n, cpu, key, path)",), all),
    "slowdown": (("build(n, key, path)",), all),
    "battery": (("build(n, key, path)",), all),
    "tariff": (("unit", "steps(path)"), all),
    "governor": (("check(cpu, path)", "choose(cycles, comm_s, deadline_s, cpu)"), all),
    "availability": (("build(n, key, path)",), all),
    "failure": (("build(n, key, path)",), all),
    "peers": (("redrawn", "check(n)", "graph(online, round, key)"), all),
    "topology": (("paths(access, key)",), all),
    "mobility": (("moves(edge, edges, key)",), all),
    "selection": (("check(level)", "choose(idle, level, key)"), all),
    # a ServerOptimizer
    "server_optimizer": (("step(kept, move)", "flops_per_parameter", "is_identity"), all),
    # an Objective
    "objective": (("losses(outputs, y)", "hits(outputs, y)", "some_labels(outputs)", "labels", "metrics"), all),
    "method": ((), all),  # a Method of edgesim.core.method, whose functions say what they take
    "protocol": (("protocol", "deadline_s", "check(devices, asked)", "run(session, rounds)"), all),
    "backend": (("trains", "open(make_trainer)"), all),
}
RENAMED = {"coordinator": "protocol", "units": "channels"}  # keys of scenarios: old -> new
RENAMED_VALUES = {"skip": "average_over_holders", "keep_old": "include_absent"}  # and values of keys
_FEW = 12  # names that an error lists
_MOST_ALIKE = 5  # names that are looked at, the most alike first
_ALIKE = 100  # characters that are compared: beyond them nothing is a slip of the pen

# What parts are called elsewhere.
_ALIASES: Mapping[str, Mapping[str, str]] = {
    "data": {
        "txt": "text", "shakespeare": "text", "markov": "markov_text",
        "csv": "table", "tabular": "table",
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
    "selection": {"random": "uniform", "everybody": "all", "best_channel": "bc", "rpow_d": "power_of_choice"},
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
_IMPORT_FAULTS = (ImportError, SyntaxError, AttributeError, TypeError, ValueError)  # that say themselves what is wrong


def meant(given: str, known: Collection[str], aliases: Mapping[str, str] | None = None, cutoff: float = 0.5) -> str:
    """Return "; did you mean 'x'?" with the known name that an alias stands for or that is nearest; "" if none is near.

    A key that was renamed is answered with its new name: "; it is called 'x' now".
    """
    given = given[:_ALIKE]
    if RENAMED.get(given) in known:
        return f"; it is called {RENAMED[given]!r} now"
    alias = (aliases or {}).get(given.lower())
    alike = difflib.get_close_matches(given, known, n=_MOST_ALIKE, cutoff=cutoff)
    near = [alias] if alias in known else [name for name in alike if _is_near(given, name)]
    return f"; did you mean {near[0]!r}?" if near else ""


def known_names(known: Collection[str], command: str) -> str:
    """Return "known: a, b, c", or where there are many names the command that lists them."""
    return f"known: {', '.join(known)}" if len(known) <= _FEW else f"`{command}` lists all {len(known)}"


def _is_near(given: str, name: str) -> bool:
    """Return whether a name is another by slips of the pen, at most a third of it, or begins with it."""
    if name.startswith(given) or given.startswith(name):
        return True
    changes = difflib.SequenceMatcher(None, given, name).get_opcodes()
    slips = sum(max(i2 - i1, j2 - j1) for what, i1, i2, j1, j2 in changes if what != "equal")
    return slips <= max(2, len(name) // 3)


def renamed(given: Any, allowed: str) -> str:
    """Return "; it is called 'x' now" for a value of a key that has another name among those allowed; "" for others."""
    now = RENAMED_VALUES.get(given) if isinstance(given, str) else None
    return f"; it is called {now!r} now" if now and repr(now) in allowed else ""


class Place(NamedTuple):
    """Where a part is: the class `attribute` of a module."""

    module: str
    attribute: str

    @property
    def summary(self) -> str:
        """The first line of its docstring."""
        return _summaries(self.module)[self.attribute]

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
        found.update(_listed(name, _source(name, module.module_finder.find_spec(name, None))))
    return dict(sorted(found.items()))


def plugins_of(kind: str) -> dict[str, type]:
    """Return every part of a kind that edgesim ships, by name, sorted."""
    return {name: place.load() for name, place in places_of(kind).items()}


def find(kind: str, name: str) -> tuple[Any, dict[str, Any]]:
    """Return the class of the part `name` and the arguments that the name itself fixes.

    A name in PLUGINS that ends with ":" is a family: "torchvision:resnet18" gives its class and
    {"member": "resnet18"}. Any other name with a colon is `package.module:Class` from outside.
    Raises ConfigError that offers the nearest name if there is none, or says what a class from outside lacks.
    """
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
    """Return whether a name is that of a class that edgesim does not ship, so that finding it runs somebody's code."""
    return ":" in name and f"{name.partition(':')[0]}:" not in places_of(kind)


@contextmanager
def only_looking() -> Iterator[None]:
    """Let no module of a class from outside be imported in the with-block: somebody else's run folder may name it."""
    token = _LOOKING.set(True)
    try:
        yield
    finally:
        _LOOKING.reset(token)


def _listed(module: str, source: str) -> Iterator[tuple[str, Place]]:
    """Yield name and place of the parts in a module's PLUGINS, which has to be written as {"name": Class, ...}."""
    start = source.find("\nPLUGINS")  # what comes before it takes ten times as long to parse
    for node in ast.parse(source[start:]).body if start >= 0 else ():
        if (
            isinstance(node, ast.Assign | ast.AnnAssign)
            and isinstance(node.value, ast.Dict)
            and _name(node) == "PLUGINS"
        ):
            for name, cls in zip(node.value.keys, node.value.values, strict=True):
                yield str(ast.literal_eval(name or "")), Place(module, ast.unparse(cls))


@cache
def _summaries(module: str) -> dict[str, str]:
    """Return the first lines of the docstrings of a module's classes, by name."""
    body = ast.parse(_source(module, importlib.util.find_spec(module))).body
    classes = (node for node in body if isinstance(node, ast.ClassDef))
    return {node.name: (ast.get_docstring(node) or "").partition("\n")[0] for node in classes}


def _source(module: str, spec: ModuleSpec | None) -> str:
    """Return the source of a module that need not be loaded, "" if there is none."""
    if get_source := getattr(spec and spec.loader, "get_source", None):
        return get_source(module) or ""
    # pytest loads the modules of a package that has a plug-in of its own through a loader that knows no source
    return Path(spec.origin).read_text(encoding="utf-8") if spec and spec.has_location and spec.origin else ""


def _name(node: ast.Assign | ast.AnnAssign) -> str:
    return ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)


def _outside(kind: str, name: str) -> Any:
    """Return a class from outside. It is looked at before anybody calls it, as anything may be named."""
    module_name, _, attribute = name.partition(":")
    if _LOOKING.get() and module_name not in sys.modules:
        raise ConfigError(f"{kind}.name: {quoted(name)} is a class from outside, and looking at a run imports none")
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except (Exception, SystemExit) as error:  # whatever somebody's module raises when it is loaded
        fault = f"{type(error).__name__}: {error}" if not isinstance(error, _IMPORT_FAULTS) else str(error)
        frames = own_frames(error)
        place = f" ({frames.place})" if frames else ""
        raise ConfigError(f"{kind}.name: cannot import {quoted(name)}: {in_short(fault)}{place}") from error
    if not (isinstance(found, type) or (kind == "model" and inspect.isfunction(found))):
        raise ConfigError(f"{kind}.name: {quoted(name)} must be the name of a class, found {quoted(found)}")
    OWN_CLASSES[name] = kind
    if kind == "method":
        _check_method(name, found)
    elif kind != "model":
        asked, enough = ASKED[kind]
        offered = {*dir(found), *getattr(found, "__dataclass_fields__", ())}
        if not (dataclasses.is_dataclass(found) and enough(each.partition("(")[0] in offered for each in asked)):
            joint = ", " if enough is all else " or "
            raise ConfigError(f"{kind}.name: {name} must be a dataclass with {joint.join(asked)}")
        _check_functions(kind, name, found, asked)
    return found


def _check_method(name: str, found: Any) -> None:
    """Raise ConfigError unless a class from outside is a method whose functions take what Method's take."""
    from edgesim.core.method import Method  # loads NumPy, which commands that only tell something need not

    if not (isinstance(found, type) and issubclass(found, Method) and dataclasses.is_dataclass(found)):
        raise ConfigError(f"method.name: {name} must be a dataclass that extends edgesim.core.method.Method")
    functions = {each: value for each, value in vars(Method).items() if inspect.isfunction(value)}
    taken = (f"{each}({', '.join([*inspect.signature(value).parameters][1:])})" for each, value in functions.items())
    _check_functions("method", name, found, taken)


def _check_functions(kind: str, name: str, found: Any, asked: Iterable[str]) -> None:
    """Raise ConfigError if a function of a class from outside cannot be called as those of its kind are."""
    for each in asked:
        function, bracket, taken = each.rstrip(")").partition("(")
        own = inspect.getattr_static(found, function, None)
        if not bracket or own is None or function in getattr(found, "__dataclass_fields__", ()):
            continue
        if isinstance(own, property) or not callable(getattr(found, function)):
            raise ConfigError(f"{kind}.name: {name}.{function} must be a function, found {type(own).__name__}")
        first = [] if isinstance(own, staticmethod) else ["self"]
        words = [*first, *filter(None, taken.split(", "))]
        positional = words[: words.index("*")] if "*" in words else words
        signature = inspect.signature(getattr(own, "__func__", own))
        try:
            signature.bind(*positional, **dict.fromkeys(words[len(positional) + 1 :]))
        except TypeError as error:
            bare = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
            has = signature.replace(parameters=bare, return_annotation=signature.empty)
            raise ConfigError(
                f"{kind}.name: {name} must have {function}({', '.join(words)}), found {function}{has}"
            ) from error
