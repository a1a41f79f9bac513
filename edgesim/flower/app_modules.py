"""Modules of an app's folder, loaded apart from those of other apps and of edgesim.

Two apps may both have a module `task`, and the two parts of one app do not share their modules, as in Flower.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from edgesim.core.errors import ConfigError
from edgesim.files.loaded_code import is_outside
from edgesim.flower.process_state import exception_line


class AppModules:
    """Modules that code of a folder has loaded from there. They are in `sys.modules` only in `entered` blocks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self._prefix = f"{self.folder}/"
        self._modules: dict[str, ModuleType] = {}
        paths = list(self.folder.iterdir())
        self._tops = {path.stem for path in paths if path.suffix == ".py" or (path / "__init__.py").is_file()}

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Import from the folder first, in a block."""
        # modules of a script or of another app that have names of the folder's
        tops = {top for top in self._tops if top in sys.modules and is_outside(top)}
        names = {name for name in sys.modules if name.partition(".")[0] in tops} if tops else set[str]()
        hidden = {name: sys.modules.pop(name) for name in names | (self._modules.keys() & sys.modules.keys())}
        last = next(reversed(sys.modules))
        sys.modules.update(self._modules)
        sys.path.insert(0, str(self.folder))
        try:
            yield
        finally:
            if str(self.folder) in sys.path:
                sys.path.remove(str(self.folder))
            new = list(takewhile(lambda name: name != last, reversed(list(sys.modules))))
            self._modules = {name: sys.modules.pop(name) for name in reversed(new) if self._owns(sys.modules[name])}
            sys.modules.update(hidden)

    def attribute(self, reference: str, kind: type[Any]) -> Any:
        """Return the object "package.module:name" of the folder, of class `kind`. To be called in an `entered` block.

        Raises ConfigError if there is none, or if code of the folder raises an exception.
        """
        module, _, path = reference.partition(":")
        importlib.invalidate_caches()  # the folder may be new
        try:
            found = attrgetter(path)(importlib.import_module(module))
        except (Exception, SystemExit) as error:
            line = exception_line(error, self._prefix)
            raise ConfigError(f"app.path: {reference} in {self.folder} cannot be loaded: {line}") from error
        if not isinstance(found, kind):
            raise ConfigError(
                f"app.path: {reference} in {self.folder} is no {kind.__name__}, but a {type(found).__name__}"
            )
        return found

    def _owns(self, module: Any) -> bool:
        attributes = vars(module)
        file = attributes.get("__file__")
        if isinstance(file, str):
            return file.startswith(self._prefix) and "/site-packages/" not in file
        return any(str(path).startswith(self._prefix) for path in attributes.get("__path__", ()))
