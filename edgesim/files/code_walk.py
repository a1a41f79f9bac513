"""Digest of code from outside edgesim: of classes as they are now, and of everything that their code reaches."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from functools import cache
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from threading import Condition, Event, Lock, RLock
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

from edgesim.files.loaded_code import (
    SCRIPTS,
    LoadedModule,
    Unidentified,
    codes_in,
    digest_of_code,
    file_of,
    is_outside,
    loaded_code,
    loaded_module,
)

_BUILTIN = (
    BuiltinFunctionType, GetSetDescriptorType, MemberDescriptorType, MethodDescriptorType, WrapperDescriptorType
)  # fmt: skip
_LOCKS = (type(Lock()), type(RLock()), Condition, Event)  # results do not depend on them
_NO_CODE = {"__dict__", "__weakref__", "__doc__", "__module__", "__firstlineno__", "__static_attributes__", "_abc_impl"}


def code_digest(plugins: Iterable[tuple[str, Any]]) -> str:
    """Return the digest of classes, with the modules by which they were named, and of all code that they reach.

    Raises Unidentified if some code changed since it was loaded, or the state of an object cannot be told.
    """
    given = list(plugins)
    if not given:
        return ""
    walk = _Walk()
    for module, cls in given:
        walk.add_module(module)
        walk.feed(cls)
        walk.feed(settings_of(cls))
    return walk.digest()


def version_of(distribution: str) -> str:
    """Return the version of a distribution; after an upgrade also the older version that this process has loaded."""
    try:
        installed = version(distribution)
    except PackageNotFoundError:
        return "none"
    loaded = str(getattr(sys.modules.get(distribution), "__version__", installed))
    return installed if _public(loaded) == _public(installed) else f"{installed}, {loaded} is loaded"


def _public(release: str) -> str:
    """Return a version without its local part, such as the CUDA of a torch."""
    return release.partition("+")[0]


def settings_of(cls: Any) -> dict[str, Any]:
    """Return the plain attributes of a class, inherited ones included, as a script may have changed them."""
    plain = (bool, int, float, str, bytes, tuple, list, type(None))
    named = ((name, getattr(cls, name, None)) for name in dir(cls) if not name.startswith("_"))
    return {name: value for name, value in named if isinstance(value, plain)}


class _Walk:
    """Feeds a digest with objects and everything to which they refer. Each object and each module counts once."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=16)
        self._seen: dict[int, tuple[int, Any]] = {}  # by id; the objects are held so that ids stay unique
        self._modules: set[str] = set()
        self._waiting: deque[str] = deque()

    def digest(self) -> str:
        """Return the digest of everything that was fed, and of all outside modules that it reaches."""
        while self._waiting:
            self._feed_module(self._waiting.popleft())
        return self._hash.hexdigest()

    def add_module(self, name: str) -> None:
        """Add a module and its parent packages, each once."""
        parts = name.split(".")
        for module in (".".join(parts[: n + 1]) for n in range(len(parts))):
            if module not in self._modules:
                self._modules.add(module)
                self._waiting.append(module)

    def _feed_module(self, name: str) -> None:
        top = name.partition(".")[0]
        if top in _distributions():
            if name == top and top != "edgesim":
                self._say("installed", top, *(f"{each} {version_of(each)}" for each in _distributions()[top]))
            if not (name in sys.modules and is_outside(name)):  # True for a package installed in place
                return
        if name not in sys.modules and not self._is_imported(name):  # a function may import it later
            return
        loaded = loaded_module(name) if is_outside(name) else None
        if loaded is None:
            return
        self._say("module", name, loaded.digest)
        self._follow(str(file_of(name)), loaded)

    def _follow(self, name: str, loaded: LoadedModule) -> None:
        """Add the modules that code imports, by the names in the code."""
        if loaded.is_dynamic:
            raise Unidentified(f"{name} imports modules by names that it works out")
        for each in loaded.imports:
            if each in sys.modules or is_outside(each):
                self.add_module(each)

    def _is_imported(self, name: str) -> bool:
        """Import a module that code would import later; return False if it is missing or fails."""
        try:
            if importlib.util.find_spec(name) is not None:
                importlib.import_module(name)
                return True
        except Exception:  # the module's error is raised where it is used
            self._say("missing", name)
        return False

    def _say(self, *words: str) -> None:
        for word in words:
            content = word.encode("utf-8", "surrogatepass")
            self._hash.update(b"%d:" % len(content) + content)

    def feed(self, value: Any) -> None:
        """Add an object. Raises Unidentified if its state cannot be told."""
        cls = type(value)
        if value is None or value is Ellipsis or cls in (bool, int, float, complex, str, bytes):
            self._say(cls.__name__, repr(value))
            return
        if id(value) in self._seen:
            self._say("again", str(self._seen[id(value)][0]))
            return
        self._seen[id(value)] = len(self._seen), value
        try:
            self._feed_object(value)
        except RecursionError as error:
            raise Unidentified(f"{_name_of(value)} is nested too deep") from error

    def _feed_object(self, value: Any) -> None:
        if isinstance(value, ModuleType):
            self._say("module", _as_script(value.__name__))
            if is_outside(value.__name__) and file_of(value.__name__) is None:
                self._feed_all(sorted((k, v) for k, v in vars(value).items() if not k.startswith("__")))
            else:
                self.add_module(value.__name__)
        elif isinstance(value, CodeType):
            self._say("code", digest_of_code(value))
        elif isinstance(value, FunctionType):
            self._feed_function(value)
        elif isinstance(value, type):
            self._feed_class(value)
        elif isinstance(value, staticmethod | classmethod | MethodType):
            bound_to = value.__self__ if isinstance(value, MethodType) else None
            self._feed_all((type(value).__name__, value.__func__, bound_to))
        elif isinstance(value, property):
            self._feed_all(("property", value.fget, value.fset, value.fdel))
        elif isinstance(value, _BUILTIN):
            self._say("builtin", value.__qualname__)
        elif isinstance(value, CellType):
            try:
                self.feed(value.cell_contents)
            except ValueError:  # empty
                self._say("empty")
        elif isinstance(value, Mapping) and type(value) in (dict, MappingProxyType):
            self._feed_all(("mapping", *(part for item in value.items() for part in item)))
        elif type(value) in (list, tuple):
            self._feed_all((type(value).__name__, *value))
        elif type(value) in (set, frozenset):
            self._say("set", *sorted(_digest_of(item) for item in value))
        else:
            self._feed_instance(value)

    def _feed_all(self, values: Iterable[Any]) -> None:
        for value in values:
            self.feed(value)

    def _feed_function(self, function: FunctionType) -> None:
        """Add a function: its code, and everything outside to which it refers."""
        if self._is_as_loaded(function.__module__, function.__code__):
            self._say("function", function.__module__, function.__qualname__)
            self.add_module(function.__module__)
            self._feed_all((function.__defaults__, function.__kwdefaults__, function.__closure__))
            return
        code = loaded_code(function.__code__, function.__globals__.get("__package__") or "")
        self._say("function", code.digest)
        self._follow(_name_of(function), code)
        self._feed_all((function.__defaults__, function.__kwdefaults__, function.__closure__, vars(function)))
        names = sorted({name for code in codes_in(function.__code__) for name in code.co_names})
        self._feed_all((name, function.__globals__[name]) for name in names if name in function.__globals__)

    def _feed_class(self, cls: type) -> None:
        self._say("class", _as_script(cls.__module__), cls.__qualname__)
        if not is_outside(cls.__module__):
            self.add_module(cls.__module__)
            return
        own = {name: value for name, value in vars(cls).items() if name not in _NO_CODE}
        functions = [each for each in own.values() if isinstance(each, FunctionType)]
        file = file_of(cls.__module__)
        ours = [f for f in functions if file is not None and Path(f.__code__.co_filename) == file]
        if ours and cls.__module__ not in SCRIPTS and all(self._is_as_loaded(f.__module__, f.__code__) for f in ours):
            self.add_module(cls.__module__)
            for each in own.values():  # some functions are generated, as by dataclass, or added by other code
                if isinstance(each, FunctionType) and each.__code__.co_filename == "<string>":
                    self.feed(each.__code__)
                elif isinstance(each, FunctionType | staticmethod | classmethod | property):
                    self.feed(each)
            self._feed_all(cls.__bases__)
        else:
            self._feed_all((cls.__bases__, *(part for item in sorted(own.items()) for part in item)))

    def _feed_instance(self, value: Any) -> None:
        """Add any other object as pickle would: its class and its state; numbers of arrays and tensors as bytes."""
        cls = type(value)
        if isinstance(value, _LOCKS):
            return
        try:
            if hasattr(value, "untyped_storage"):  # a tensor; NumPy lacks some of torch's types
                self._say("tensor", str(value.dtype), str(value.shape))
                numbers = value.detach().cpu().contiguous().flatten().view(sys.modules["torch"].uint8)
                self._hash.update(numbers.numpy().tobytes())
                return
            if hasattr(value, "dtype") and hasattr(value, "tobytes") and not value.dtype.hasobject:
                self._say("array", str(value.dtype), str(value.shape))
                self._hash.update(value.tobytes())
                return
            reduced = value.__reduce_ex__(4)
        except Exception as error:
            raise Unidentified(f"the state of {_name_of(value)} cannot be told") from error
        self._say("instance", f"{_as_script(cls.__module__)}.{cls.__qualname__}")
        if isinstance(reduced, str):
            self._say(reduced)
        else:
            self._feed_all(list(part) if n in (3, 4) and part is not None else part for n, part in enumerate(reduced))

    def _is_as_loaded(self, module: str | None, code: CodeType) -> bool:
        """Return True if code is the same as when its module was loaded, so that the module's digest covers it."""
        if module is None or not is_outside(module):
            return module is not None
        loaded = loaded_module(module)
        return loaded is not None and digest_of_code(code) in loaded.codes


def _digest_of(value: Any) -> str:
    walk = _Walk()
    walk.feed(value)
    return walk.digest()


@cache
def _distributions() -> Mapping[str, list[str]]:
    return {module: sorted(set(names)) for module, names in packages_distributions().items()}


def _as_script(module: str) -> str:
    """Return the name of a module; a script has one name in every process."""
    return SCRIPTS[0] if module in SCRIPTS else module


def _name_of(value: Any) -> str:
    of = value if isinstance(value, type | FunctionType | BuiltinFunctionType) else type(value)
    return f"{of.__module__}.{of.__qualname__}"
