"""Keeps a method's state, or what devices carry, on disk: structure as JSON, arrays and tensors as safetensors."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from edgesim.errors import ContractError, DataError

STRUCTURE, ARRAYS = "state.json", "state.safetensors"
_PLAIN = (NoneType, bool, int, str)  # JSON gives these back as they were
_KEYS = (*_PLAIN, float, tuple)
_ARRAY_KINDS = "biuf"  # bool, int, unsigned, float: what NumPy, torch and safetensors share


def save_state(folder: Path, tree: Any) -> None:
    """Write a plain tree into a folder, which is made if need be; what it held before is replaced.

    A tree is None, bool, int, float, str, NumPy arrays and numbers, torch tensors, and dicts, lists and tuples of
    them. Values, types and dtypes come back exactly; memory layouts, devices and gradients are not kept. Other mappings
    come back as dicts, so that packed tensors are unpacked.
    Raises ContractError that names the place of a value of another type.
    """
    arrays: dict[str, np.ndarray] = {}
    structure = _encoded(tree, "state", arrays)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(arrays, folder / ARRAYS)
    (folder / STRUCTURE).write_text(json.dumps(structure, allow_nan=False), encoding="utf-8")


def load_state(folder: Path) -> Any:
    """Return the tree that `save_state` wrote; tensors are on the CPU. Raises DataError if it cannot be read."""
    try:
        structure = json.loads((folder / STRUCTURE).read_text(encoding="utf-8"))
        return _decoded(structure, load_file(folder / ARRAYS))
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise DataError(f"{folder}: holds no complete state: {error}") from error


def _encoded(value: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    """Return the JSON of a value; what JSON lacks is an object of one key that says what it is."""
    if type(value) in _PLAIN or (type(value) is float and math.isfinite(value)):
        return value
    if type(value) is float:
        return {"float": str(value)}
    if type(value) is list:
        return [_encoded(item, f"{path}[{i}]", arrays) for i, item in enumerate(value)]
    if type(value) is tuple:
        return {"tuple": [_encoded(item, f"{path}[{i}]", arrays) for i, item in enumerate(value)]}
    if isinstance(value, Mapping):
        return {"dict": [_encoded_item(key, item, path, arrays) for key, item in value.items()]}
    return _encoded_array(value, path, arrays)


def _encoded_item(key: Any, value: Any, path: str, arrays: dict[str, np.ndarray]) -> list[Any]:
    if type(key) not in _KEYS:
        raise ContractError(f"{path}: a key of type {type(key).__name__} cannot be saved")
    return [_encoded(key, f"{path} key {key!r}", arrays), _encoded(value, f"{path}[{key!r}]", arrays)]


def _encoded_array(value: Any, path: str, arrays: dict[str, np.ndarray]) -> dict[str, str]:
    kind, array = _as_array(value)
    if array is None or array.dtype.kind not in _ARRAY_KINDS or array.itemsize > 8 or not array.dtype.isnative:
        dtype = getattr(value, "dtype", None)
        found = type(value).__name__ + ("" if dtype is None else f" of {dtype}")
        raise ContractError(f"{path}: a value of type {found} cannot be saved")
    name = str(len(arrays))
    arrays[name] = np.array(array, order="C")
    return {kind: name}


def _as_array(value: Any) -> tuple[str, np.ndarray | None]:
    """Return what a value is and its numbers; None if it has none that NumPy knows."""
    if type(value) is np.ndarray:
        return "array", value
    if isinstance(value, np.generic):
        return "number", np.asarray(value)
    torch = sys.modules.get("torch")  # where it was never imported, nothing is a tensor
    if torch is None or not isinstance(value, torch.Tensor):
        return "unknown", None
    try:
        return "tensor", value.detach().cpu().numpy()
    except TypeError:
        return "unknown", None


def _decoded(node: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(node, list):
        return [_decoded(item, arrays) for item in node]
    if not isinstance(node, dict):
        return node
    ((kind, content),) = node.items()
    match kind:
        case "float":
            return float(content)
        case "tuple":
            return tuple(_decoded(item, arrays) for item in content)
        case "dict":
            return {_decoded(key, arrays): _decoded(item, arrays) for key, item in content}
        case "number":
            return arrays[content][()]
        case "tensor":
            import torch  # a tree without tensors needs none

            return torch.from_numpy(arrays[content])
        case "array":
            return arrays[content]
        case _:
            raise ValueError(f"{STRUCTURE} has an entry {kind!r}")
