"""Cache of decoded images: kept by the content of their files, and mapped by every process that trains."""

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

_ARRAYS = ("x_train", "y_train", "x_test", "y_test")  # the first fields of Decoded
_CODE = ("core", "files", "learning/data")  # folders of the package


class Decoded(NamedTuple):
    """A data set as read: complete, limited and checked, but not normalised."""

    x_train: Numbers
    y_train: Numbers
    x_test: Numbers
    y_test: Numbers
    classes: int
    copies: Sequence[int] | None  # repetitions of the training samples of each class. None: once


def decoded(files: Sequence[Path] | None, keys: dict[str, Any], read: Callable[[], Decoded]) -> Decoded:
    """Return the cached arrays of these files for a source with these keys, or the result of `read`, and cache it.

    Only pixels are cached, because other numbers need no decoding. `files` None: the cache is not used. Raises the
    errors of `read`.
    """
    decided_by: dict[str, Any] | None = None
    if files is not None:
        folder = Path(os.path.commonpath(files)) if files else None
        try:
            for path in files:
                check_regular(path)
            decided_by = {**keys, "content": digest_of_files(files, folder), "follows_from": identity(None, *_CODE)}
        except (DataError, OSError, Unidentified):  # the error of `read` is clearer
            decided_by = None
    kept = None if decided_by is None else _kept(kept_table(DECODED, decided_by))
    if kept is not None:
        return kept
    fresh = read()
    if decided_by is None or not fresh.x_train.array.dtype == fresh.x_test.array.dtype == np.uint8:
        return fresh
    held = (fresh.x_train, fresh.y_train, fresh.x_test, fresh.y_test)
    arrays = {name: keep_array(DECODED, numbers.array) for name, numbers in zip(_ARRAYS, held, strict=True)}
    content = {**arrays, "classes": fresh.classes, "copies": fresh.copies}
    keep_table(DECODED, decided_by, content)
    return _kept(content) or fresh  # mapped, so that the decoded arrays can be freed


def _kept(content: Any) -> Decoded | None:
    """Return the arrays that a kept table names, or None if one of them is missing or damaged."""
    if content is None:
        return None
    files = {name: kept_array(DECODED, content[name]) for name in _ARRAYS}
    arrays = {name: Numbers.mapped(file, content[name]) for name, file in files.items() if file is not None}
    whole = len(arrays) == len(files)
    return Decoded(**arrays, classes=content["classes"], copies=content["copies"]) if whole else None
