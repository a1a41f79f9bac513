"""Images decoded once for all runs: kept by the content of their files, and mapped by every process that trains."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edgesim.core.errors import DataError
from edgesim.files.code_identity import digest_of_files, identity
from edgesim.files.loaded_code import Unidentified
from edgesim.files.reading import check_regular
from edgesim.files.user_cache import DECODED, keep_array, keep_table, kept_array, kept_table
from edgesim.learning.data.dataset import Numbers

_ARRAYS = ("x_train", "y_train", "x_test", "y_test")
_CODE = ("core", "files", "learning/data")  # folders of the package


class Decoded(NamedTuple):
    """A data set as it is held: whole, limited and checked, but not normalised."""

    x_train: Numbers
    y_train: Numbers
    x_test: Numbers
    y_test: Numbers
    classes: int
    copies: Sequence[int] | None  # how often the training samples of each class count; None: once


def decoded(files: Sequence[Path] | None, keys: dict[str, Any], read: Callable[[], Decoded]) -> Decoded:
    """Return what was kept of these files, read by a part with these keys, or else what `read` returns, and keep it.

    Only pixels are kept, as other numbers need no decoding. `files` None: it is read. Raises what `read` raises.
    """
    identity = None if files is None else _identity(files, keys)
    kept = None if identity is None else _kept(kept_table(DECODED, identity))
    if kept is not None:
        return kept
    fresh = read()
    if identity is None or not fresh.x_train.array.dtype == fresh.x_test.array.dtype == np.uint8:
        return fresh
    arrays = {name: keep_array(DECODED, getattr(fresh, name).array) for name in _ARRAYS}
    content = {**arrays, "classes": fresh.classes, "copies": fresh.copies}
    keep_table(DECODED, identity, content)
    return _kept(content) or fresh  # mapped, so that what was decoded need not be held


def _identity(files: Sequence[Path], keys: dict[str, Any]) -> dict[str, Any] | None:
    """Return all that decides the arrays; None if a file cannot be read, which `read` says better."""
    folder = Path(os.path.commonpath(files)) if files else None
    try:
        for path in files:
            check_regular(path)
        return {**keys, "content": digest_of_files(files, folder), "follows_from": identity(None, *_CODE)}
    except (DataError, OSError, Unidentified):
        return None


def _kept(content: Any) -> Decoded | None:
    """Return the arrays that a kept table names; None if one of them is missing or damaged."""
    if content is None:
        return None
    files = {name: kept_array(DECODED, content[name]) for name in _ARRAYS}
    arrays = {name: Numbers.mapped(file, content[name]) for name, file in files.items() if file is not None}
    whole = len(arrays) == len(files)
    return Decoded(**arrays, classes=content["classes"], copies=content["copies"]) if whole else None
