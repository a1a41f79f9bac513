"""Identity of results: digests of the code, files and numeric environment that decide them.

It is part of everything that edgesim caches: answers of trainings, cells of studies, cost profiles, decoded data.
edgesim's own code counts as its source. Other code counts as it was loaded, with all modules that it imports, down to
the names and versions of installed packages. Classes of notebooks and scripts count as their functions, with everything
to which these refer. Results of code that cannot be identified are computed and not cached.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from edgesim.core.limits import memory_bytes
from edgesim.files.code_walk import code_digest, version_of
from edgesim.files.loaded_code import Unidentified, check_own

_LIBRARIES = ("torch", "torchvision", "numpy", "transformers", "peft", "timm")
_DECODERS = ("pillow", "pyarrow")
# Prefixes of environment variables that choose kernels, whose values may change rounding.
_KERNELS = ("ATEN_", "MKL_", "DNNL_", "ONEDNN_", "OPENBLAS_", "NVIDIA_TF32", "CUBLAS_", "TORCH_ALLOW_TF32")
_SOURCES = {".py", ".toml"}  # code and the device catalogue
_PACKAGE = Path(__file__).parents[1]
_PLUGIN = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")  # package.module:Class
_LONGEST_PATH = 4096  # characters, on Linux
_RECENT_S = 0.1  # a file written just now may change again without a new time of change


def identity(table: Any, *folders: str) -> dict[str, Any]:
    """Return digests of the code, files and environment that decide results of a resolved table, as JSON.

    `folders`: folders of the package whose source counts; none: all of it. Raises Unidentified, with the reason, if
    the code that ran or would run cannot be known.
    """
    return {
        "source": source_digest(*folders),
        "code": code_digest(plugins_in(table)),
        "files": named_files_digest(table),
        "environment": numeric_environment(),
    }


# --- edgesim and the machine ------------------------------------------------------------------------------------------


def source_digest(*folders: str) -> str:
    """Return the SHA-256 of source files and their names. Raises Unidentified if they changed since loading."""
    files = sources(*folders)
    check_own(files)
    return _digest_of_sources(*folders)


@cache
def sources(*folders: str) -> tuple[Path, ...]:
    """Return the sources of the package, or of some folders of it, sorted."""
    roots = [_PACKAGE / folder for folder in folders] or [_PACKAGE]
    return tuple(path for root in roots for path in sorted(root.rglob("*")) if path.suffix in _SOURCES)


@cache
def _digest_of_sources(*folders: str) -> str:
    return digest_of_files(sources(*folders), _PACKAGE)


def numeric_environment() -> dict[str, str]:
    """Return versions of the libraries that compute and decode, and all settings that choose their kernels.

    `edgesim.runs.cache_identity` adds the processor, which is known once torch is loaded.
    """
    versions = {name: version_of(name) for name in (*_LIBRARIES, *_DECODERS)}
    settings = {name: value for name, value in sorted(os.environ.items()) if name.startswith(_KERNELS)}
    return {"python": platform.python_version(), "machine": platform.machine(), **versions, **settings}


# --- files ------------------------------------------------------------------------------------------------------------


def digest_of_files(files: Iterable[Path], folder: Path | None = None) -> str:
    """Return the SHA-256 of files and their names, below `folder` if one is given. Raises OSError as reading does."""
    found = sha256()
    for path in files:
        content = _content_digest(path)
        found.update(f"{path.relative_to(folder) if folder else path.name} {content}\n".encode())
    return found.hexdigest()


def named_files_digest(table: Any) -> str:
    """Return the SHA-256 of all files and folders that a resolved table names by an absolute path.

    Arguments of classes from outside may be relative to the current folder, too. Raises Unidentified if one cannot be
    read.
    """
    found = sha256()
    for path in sorted(set(_paths_in(table))):
        try:
            found.update(f"{path.name} {_folder_digest(path) if path.is_dir() else _content_digest(path)}\n".encode())
        except OSError as error:
            raise Unidentified(f"{path} cannot be read: {error.strerror}") from error
    return found.hexdigest()


def _paths_in(value: Any, outside: bool = False) -> Iterator[Path]:
    if isinstance(value, str):
        path = Path(value)
        if value and len(value) < _LONGEST_PATH and "\0" not in value and (outside or path.is_absolute()):
            path = path.expanduser() if outside else path
            if path.is_file() or path.is_dir():
                yield path.resolve()
    elif isinstance(value, Mapping):
        names = map(value.get, ("name", "dataset", "local"))
        named = (text for text in names if isinstance(text, str))  # own code
        below = outside or any(_PLUGIN.fullmatch(text) for text in named)
        for key, item in value.items():
            yield from _paths_in(item, below and key != "name")
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _paths_in(item, outside)


def _folder_digest(folder: Path) -> str:
    """Return the SHA-256 of all files below a folder; links are followed, and each folder is entered once."""
    files, seen = list[Path](), set[str]()
    for root, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [each for each in sorted(folders) if os.path.realpath(f"{root}/{each}") not in seen]
        seen.update(os.path.realpath(f"{root}/{each}") for each in folders)
        files += [path for name in sorted(names) if (path := Path(root, name)).is_file()]
    return digest_of_files(files, folder)


_CONTENTS: dict[tuple[int, ...], str] = {}


def _content_digest(path: Path) -> str:
    """Return the SHA-256 of a file, which a process reads once while its inode does not change."""
    at = path.stat()
    if at.st_size > memory_bytes():  # such as a file with terabytes of holes, which its reader refuses
        raise Unidentified(f"{path} has {at.st_size} bytes, more than memory holds")
    mark = at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns
    known = _CONTENTS.get(mark)
    if known is None:
        with path.open("rb") as file:
            known = file_digest(file, "sha256").hexdigest()
        if time.time() - at.st_ctime > _RECENT_S:
            _CONTENTS[mark] = known
    return known


# --- other code -------------------------------------------------------------------------------------------------------


def plugins_in(value: Any) -> list[tuple[str, Any]]:
    """Return the modules and classes that a resolved table names as package.module:Class, each once, sorted."""
    named = sorted({text for text in _strings(value) if _PLUGIN.fullmatch(text)})
    found = ((text.partition(":")[0], _found(text)) for text in named)
    return [(module, cls) for module, cls in found if cls is not None]


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ():
        yield from _strings(item)


def _found(text: str) -> Any:
    """Return the class that a text names; None if there is none."""
    module, _, attribute = text.partition(":")
    if module not in sys.modules:
        try:
            if importlib.util.find_spec(module) is None:
                return None
            importlib.import_module(module)
        except (ImportError, ValueError, AttributeError):
            return None
        except Exception as error:  # the error is reported when the part is built
            raise Unidentified(f"{module} cannot be imported") from error
    return getattr(sys.modules[module], attribute, None)
