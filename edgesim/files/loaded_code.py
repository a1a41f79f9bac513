"""Digests of Python modules as they were loaded; their files may have changed since.

A finder in front of `sys.meta_path` notes the code of every module from outside edgesim, the standard library and
site-packages when it is loaded. Importing edgesim installs the finder. A module that was loaded before has the digest
of its file, if the file is older than this process.
"""

from __future__ import annotations

import dis
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from hashlib import blake2b
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import resolve_name
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from edgesim.core.errors import EdgesimError

_SLACK_S = 0.015  # resolution of times of file systems
_PLACES = (f"{Path(__file__).parents[1]}/", f"{Path(os.__file__).parent}/")  # of edgesim and of Python
_DYNAMIC = frozenset({"import_module", "__import__"})
SCRIPTS = ("__main__", "__mp_main__")  # run and not imported, so their functions are digested one by one


class Unidentified(Exception):
    """The reason why results must be neither read from a cache nor stored there; it names the file or the object."""


class LoadedModule(NamedTuple):
    """The code of a module at the moment it was loaded."""

    digest: str
    codes: frozenset[str]  # digests of its functions and classes at any depth
    imports: tuple[str, ...]  # absolute names of everything that its code imports, inside functions too
    is_dynamic: bool = False  # True: it also imports by names that its code computes


class LoadedCode(NamedTuple):
    """Outside code that a process has loaded: digests by module, and the process's start in seconds since the epoch."""

    digests: dict[str, str]
    since_s: float


_LOADED: dict[str, LoadedModule] = {}


class _NotingLoader(SourceFileLoader):
    """Loads a module from a source file and notes its code."""

    def get_code(self, fullname: str) -> CodeType | None:
        code = super().get_code(fullname)
        if code is not None:
            _LOADED[fullname] = loaded_code(
                code, fullname if self.is_package(fullname) else fullname.rpartition(".")[0]
            )
        return code


class _NotingFinder:
    """Asks the finders behind it, and gives outside source files a loader that notes their code."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if self not in sys.meta_path:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if type(spec.loader) is SourceFileLoader and is_outside_file(spec.loader.path):
                    spec.loader = _NotingLoader(spec.loader.name, spec.loader.path)
                return spec
        return None


def note_imports() -> None:
    """Start noting the code of modules that are loaded. May be called twice."""
    if not any(isinstance(finder, _NotingFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _NotingFinder())


def is_outside(module: str) -> bool:
    """Return True if a module belongs neither to edgesim nor to Python nor to an installed package."""
    top = module.partition(".")[0]
    if top in {"edgesim", "builtins"} or top in sys.stdlib_module_names:
        return False
    file = file_of(module)
    return file is None or is_outside_file(str(file))


def file_of(module: str) -> Path | None:
    """Return the file of a loaded module, or the archive that contains it; None if there is none."""
    given = vars(sys.modules[module]).get("__file__") if module in sys.modules else None
    if not isinstance(given, str):
        return None
    path = Path(given)
    return next((each for each in (path, *path.parents) if each.is_file()), None)


def loaded_module(module: str) -> LoadedModule | None:
    """Return the code of a loaded module, None for one without a file, such as a notebook.

    Raises Unidentified if its file has changed since it was loaded, or may have.
    """
    file = file_of(module)
    if file is None or module in SCRIPTS:
        return None
    found = _LOADED.get(module)
    if found is None:
        check_older(_STARTED_S, file)
        return _of_file(file, module, file.stat().st_mtime_ns)
    if file.suffix == ".py" and _now(file, module, file.stat().st_mtime_ns, file.stat().st_size) != found.digest:
        raise Unidentified(f"{file} has changed since it was loaded")
    return found


def loaded_here() -> LoadedCode:
    """Return the outside code that this process has loaded, for `check_same` in its worker processes."""
    digests = {name: loaded.digest for name, loaded in _LOADED.items() if name in sys.modules}
    return LoadedCode(digests, _STARTED_S)


def check_same(theirs: LoadedCode) -> None:
    """Raise EdgesimError if this process has loaded other code than the process for which it works."""
    files = [
        file_of(name)
        for name, loaded in _LOADED.items()
        if name in sys.modules and theirs.digests.get(name, loaded.digest) != loaded.digest
    ]
    script = file_of(SCRIPTS[0])
    if script is not None and script.stat().st_ctime > theirs.since_s + _SLACK_S:  # a script may be new when it is run
        files.append(script)
    if files:
        raise EdgesimError(f"{files[0]}: has changed since the run began; start the run again")


def check_own(files: Iterable[Path]) -> None:
    """Raise Unidentified if files of edgesim have changed since this module was loaded."""
    check_older(_IMPORTED_S, *files)


def check_older(instant_s: float, *files: Path) -> None:
    """Raise Unidentified unless the files were last changed before `instant_s`, in seconds since the epoch."""
    for file in files:
        if file.stat().st_ctime > instant_s - _SLACK_S:
            raise Unidentified(f"{file} is newer than this process, which may have loaded another version")


def digest_of_code(code: CodeType) -> str:
    """Return the digest of a code object's behaviour, without its place in a file and without comments."""
    found = blake2b(digest_size=16)
    facts = (
        *(code.co_qualname, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags),
        *(code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_exceptiontable),
    )
    found.update(repr(facts).encode() + code.co_code)
    for value in code.co_consts:
        found.update(_constant(value).encode() + b";")
    return found.hexdigest()


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and the code objects of all functions and classes in it."""
    yield code
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from codes_in(value)


def imported_by(code: CodeType, package: str) -> Iterator[str]:
    """Yield the absolute names of modules that code of a package imports, and names of objects imported from them."""
    for each in codes_in(code):
        before: list[Any] = []
        for step in dis.get_instructions(each):
            if step.opname == "IMPORT_NAME":
                level, names = before[-2:]
                base = resolve_name("." * level + step.argval, package) if level else step.argval
                yield base
                yield from (f"{base}.{name}" for name in names or ())
            if step.opname != "EXTENDED_ARG":
                before = [*before[-1:], step.argval]


def loaded_code(code: CodeType, package: str) -> LoadedModule:
    """Return digests and imports of code of a package: of a module, or of a function outside modules."""
    parts = list(codes_in(code))
    is_dynamic = any(_DYNAMIC.intersection(each.co_names) for each in parts)
    codes, imports = frozenset(map(digest_of_code, parts)), tuple(dict.fromkeys(imported_by(code, package)))
    return LoadedModule(digest_of_code(code), codes, imports, is_dynamic)


@cache
def _of_file(file: Path, module: str, mtime_ns: int) -> LoadedModule:
    """Return the code in a file that is older than the process."""
    content = file.read_bytes()
    if file.suffix != ".py":
        return LoadedModule(blake2b(content, digest_size=16).hexdigest(), frozenset(), ())
    is_package = file.name == "__init__.py"
    return loaded_code(_compiled(file, content), module if is_package else module.rpartition(".")[0])


@cache
def _now(file: Path, module: str, mtime_ns: int, size: int) -> str:
    try:
        return digest_of_code(_compiled(file, file.read_bytes()))
    except (OSError, SyntaxError, ValueError) as error:
        raise Unidentified(f"{file} has changed since it was loaded") from error


def _compiled(file: Path, content: bytes) -> CodeType:
    return compile(content, str(file), "exec", dont_inherit=True)


def _constant(value: Any) -> str:
    if isinstance(value, CodeType):
        return digest_of_code(value)
    if isinstance(value, tuple):
        return f"({','.join(map(_constant, value))})"
    if isinstance(value, frozenset):
        return f"{{{','.join(sorted(map(_constant, value)))}}}"
    return f"{type(value).__name__} {value!r}"


def is_outside_file(file: str) -> bool:
    """Return True if a file belongs neither to edgesim, nor to Python, nor to an installed package."""
    return not file.startswith(_PLACES) and "/site-packages/" not in file and "/dist-packages/" not in file


def _started_s() -> float:
    """Return the start of this process in seconds since the epoch; 0 if the system does not tell it."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        since_boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    except (OSError, ValueError, AttributeError):
        return 0.0
    return time.time() - since_boot_s + ticks / os.sysconf("SC_CLK_TCK")


# A forked process has the loaded modules of its parent, and so inherits these times.
_STARTED_S = _started_s()
_IMPORTED_S = time.time()  # before nearly all of edgesim
