"""Samples of Datasets of torch as arrays, and checks of what a user's own Datasets return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL.Image import Image

from edgesim.core.arrays import Ids
from edgesim.core.errors import DataError
from edgesim.files.reading import check_room, quoted

SIDES = ("train", "test")


def sets_of(name: str, made: Any) -> list[Any]:
    """Return the one or two Datasets that a factory made. Raises DataError if they are none."""
    if isinstance(made, Mapping):
        if set(made) != {*SIDES}:
            raise DataError(f"{name}: must return the Datasets train and test, got {quoted(sorted(map(str, made)))}")
        made = [made[side] for side in SIDES]
    sets = list(made) if isinstance(made, tuple | list) and len(made) == 2 else [made]
    for each in sets:
        if not {"__len__", "__getitem__"} <= {*dir(type(each))} or isinstance(each, tuple | list | str):
            raise DataError(
                f"{name}: must return a Dataset with __len__ and __getitem__, or two, got {type(each).__name__}"
            )
        if len(each) == 0:
            raise DataError(f"{name}: a Dataset has no samples")
    return sets


def samples_of(origin: str, made: Any, limit: int | None) -> tuple[np.ndarray, Ids]:
    """Return the features of the first `limit` samples, as `Raw` has them, and the classes of all."""
    count = len(made)
    kept = count if limit is None else min(limit, count)
    x, y = np.empty(0), np.empty(count, dtype=np.int64)
    for row in range(count):
        sample = made[row]
        if not isinstance(sample, tuple | list) or len(sample) != 2:
            raise DataError(f"{origin} sample {row} must be a pair of features and a class, got {_kind(sample)}")
        label = sample[1] if isinstance(sample[1], int) else np.asarray(sample[1])
        if isinstance(label, np.ndarray) and (label.ndim or label.dtype.kind not in "iub"):
            raise DataError(f"{origin} sample {row}: the label must be a whole number from 0, got {_kind(sample[1])}")
        y[row] = int(label)
        if row >= kept:
            continue
        features = _features_of(f"{origin} sample {row}", sample[0])
        if row == 0:
            check_room(kept * features.nbytes, origin)
            x = np.empty((kept, *features.shape), features.dtype)
        if features.shape != x.shape[1:] or features.dtype != x.dtype:
            found, first = (f"shape {each} of {kind}" for each, kind in (
                (features.shape, features.dtype), (x.shape[1:], x.dtype)))  # fmt: skip
            raise DataError(f"{origin} sample {row} has {found}, sample 0 has {first}; all must be the same")
        x[row] = features
    return x, y


def _features_of(where: str, value: Any) -> np.ndarray:
    """Return features as numbers, images as (height, width[, channels])."""
    import torch

    if isinstance(value, torch.Tensor):
        found = value.detach().cpu().numpy()
        found = found.transpose(1, 2, 0) if found.ndim == 3 else found
    elif isinstance(value, Image):
        found = np.asarray(value if value.mode in ("L", "RGB") else value.convert("RGB"))
    elif isinstance(value, np.ndarray | Sequence) and not isinstance(value, str | bytes):
        found = np.asarray(value)
    else:
        found = np.empty(0, dtype=object)
    if found.dtype.kind not in "fiub" or found.ndim not in (1, 2, 3):
        raise DataError(f"{where}: features must be numbers with one to three axes, got {_kind(value)}")
    return found.astype(np.float32) if found.dtype.kind == "b" or found.dtype == np.float16 else found


def columns_of(name: str, made: Any, count: int) -> dict[str, np.ndarray]:
    """Return the columns that a Dataset offers, each of shape (count,). Raises DataError if they do not fit."""
    try:
        offered = made.columns
    except AttributeError:
        return {}
    if not isinstance(offered, Mapping):
        raise DataError(f"{name}: columns of a Dataset must be a table of lists, got {type(offered).__name__}")
    found = {str(column): np.asarray(values) for column, values in offered.items()}
    for column, values in found.items():
        if values.shape != (count,) or values.dtype.kind not in "iubU":
            what = f"a text or whole number for each of the {count} samples"
            shown = f"shape {values.shape} of {values.dtype}"
            raise DataError(f"{name}: column {quoted(column)} needs {what}, got {shown}")
    return found


def _kind(value: Any) -> str:
    """Return a short description of a value: its type, and the shape and type of an array."""
    import torch

    if isinstance(value, torch.Tensor | np.ndarray):
        return f"a {type(value).__name__} of shape {tuple(value.shape)} and type {value.dtype}"
    return f"{quoted(value)} of type {type(value).__name__}"
