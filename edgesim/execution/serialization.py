"""A tree of values in one file: numbers, text, containers, arrays, tensors, and records of named classes.

The file is a safetensors file: each array is stored as bytes, and the array `tree` is JSON with the places of the
arrays in the tree. Reading it runs no code. The header holds the SHA-256 of the whole file. Records are rebuilt only
of classes that the reader names, and nothing that a file names is imported.
"""

from __future__ import annotations

import io
import json
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import load

from edgesim.execution.identity import fields_of, values_of
from edgesim.files.reading import check_regular
from edgesim.learning.codec.packed import Tensors

Records: TypeAlias = Mapping[str, type]  # "module:Class" -> dataclass or NamedTuple that a file may hold

_TREE = "tree"
_NO_DIGEST = "0" * 64
_BLOCK_BYTES = 2**20
_MOST_HEAD_BYTES = 100_000_000  # limit of safetensors
_PLAIN = (type(None), bool, int, float, str)
_LISTS: dict[str, type] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
_MAPPINGS: dict[str, type] = {"dict": dict, "ordered": OrderedDict}
_NUMBERS = "biufc"  # kinds of NumPy's numeric types


def records_in(*modules: str) -> Records:
    """Return the dataclasses and NamedTuples in the namespaces of loaded modules, by name."""
    classes = [each for name in modules for each in vars(sys.modules[name]).values() if isinstance(each, type)]
    return {_name(cls): cls for cls in classes if fields_of(cls) is not None}


def write_tree(file: IO[bytes], parts: Mapping[str, Any], records: Records, most_bytes: float = inf) -> None:
    """Write parts of a tree, by name, to an empty file.

    Raises TypeError for a value that no file can hold, and OverflowError for more than `most_bytes` of arrays.
    """
    writer = _Writer(records)
    nodes = {name: writer.node(part) for name, part in parts.items()}
    if sum(blob.nbytes for blob in writer.blobs) > most_bytes:
        raise OverflowError(f"more than {most_bytes} bytes")
    tree = json.dumps({"parts": nodes, "shared": writer.shared}, separators=(",", ":")).encode()
    blobs = {_TREE: np.frombuffer(tree, np.uint8), **{str(i): blob for i, blob in enumerate(writer.blobs)}}
    header: dict[str, Any] = {"__metadata__": {"sha256": _NO_DIGEST}}
    end = 0
    for name, blob in blobs.items():
        header[name] = {"dtype": "U8", "shape": [blob.size], "data_offsets": [end, end + blob.size]}
        end += blob.size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    found = sha256(head)
    file.write(head)
    for blob in blobs.values():
        found.update(blob.data)
        file.write(blob.data)
    file.seek(head.index(_NO_DIGEST.encode()))
    file.write(found.hexdigest().encode())


def check_tree(value: Any, records: Records) -> None:
    """Raise TypeError, as `write_tree` would, for a value that no file can hold."""
    _Writer(records).node(value)


def read_tree(source: Path | bytes, records: Records, *names: str) -> list[Any]:
    """Return the named parts of the tree in a file, or in the bytes of one.

    Raises ValueError if the file is damaged, of another format, or has a class that is not among `records`, and OSError
    or DataError if it cannot be read. A forged file with inconsistent numbers may raise any error of PyTorch.
    """
    if isinstance(source, bytes):
        _check_digest(io.BytesIO(source), len(source))
        return _parts(load(source).__getitem__, records, names)
    size = check_regular(source)
    with source.open("rb") as file:
        _check_digest(file, size)
    with safe_open(source, framework="np") as arrays:
        return _parts(arrays.get_tensor, records, names)


def _parts(array: Callable[[str], np.ndarray], records: Records, names: Sequence[str]) -> list[Any]:
    tree = json.loads(array(_TREE).tobytes())
    reader = _Reader(lambda blob: array(str(blob)), tree["shared"], records)
    return [reader.value(tree["parts"][name]) for name in names]


def _check_digest(file: IO[bytes], size: int) -> None:
    """Raise ValueError unless the digest in a file's header fits its bytes, with zeros in the place of the digest."""
    length = int.from_bytes(file.read(8), "little")
    if length > min(size, _MOST_HEAD_BYTES):
        raise ValueError("it is no checkpoint, or its head is damaged")
    text = file.read(length)
    try:
        arrays = json.loads(text)
        digest = arrays.pop("__metadata__")["sha256"]
        end = max(each["data_offsets"][1] for each in arrays.values())
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("it is no checkpoint, or its head is damaged") from error
    if not (isinstance(digest, str) and len(digest) == len(_NO_DIGEST)):
        raise ValueError("its head is damaged")
    if 8 + len(text) + end != size:  # checked before the rest is read, which may be endless
        raise ValueError(f"it is damaged: it has {size} bytes, its head promises {8 + len(text) + end}")
    found = sha256(length.to_bytes(8, "little") + text.replace(digest.encode(), _NO_DIGEST.encode()))
    while block := file.read(_BLOCK_BYTES):
        found.update(block)
    if found.hexdigest() != digest:
        raise ValueError("it is damaged: its SHA-256 is not the one that it was written with")


def _name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


class _Writer:
    """Converts values to JSON nodes and arrays of bytes. Objects shared in memory are written once."""

    def __init__(self, records: Records) -> None:
        self.blobs: list[np.ndarray] = []
        self.shared: list[Any] = []
        self._records = records
        self._blob_of: dict[Any, int] = {}  # location of bytes in memory -> their place in `blobs`
        self._shared_of: dict[int, int] = {}  # id of a tensor or record -> its place in `shared`

    def node(self, value: Any) -> Any:
        """Return the JSON of a value. Raises TypeError if it has none."""
        cls = type(value)
        if cls in _PLAIN:
            return value
        for tag, container in _LISTS.items():
            if cls is container or (tag == "tuple" and cls is torch.Size):
                return [tag, [self.node(item) for item in value]]
        for tag, container in _MAPPINGS.items():
            if cls is container:
                return [tag, [[self.node(key), self.node(item)] for key, item in value.items()]]
        if cls is Tensors:
            return ["packed", self.node(dict(value.stored))]
        if cls is torch.dtype:
            return ["dtype", str(value)]
        if isinstance(value, np.generic) and value.dtype.kind in "biuf":
            return ["number", value.dtype.str, value.item()]
        if id(value) not in self._shared_of:
            node = self._large(value)
            self._shared_of[id(value)] = len(self.shared)
            self.shared.append(node)
        return ["shared", self._shared_of[id(value)]]

    def _large(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.layout == torch.strided:
            return self._tensor(value)
        if type(value) is np.ndarray and value.dtype.kind in _NUMBERS:
            order: Literal["C", "F"] = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
            flat = np.ascontiguousarray(value.ravel(order))
            blob = self._blob(flat.view(np.uint8), (value.__array_interface__["data"], value.strides, value.nbytes))
            return ["array", value.dtype.str, list(value.shape), order, blob]
        if type(value) is bytes:
            return ["bytes", self._blob(np.frombuffer(value, np.uint8), id(value))]
        name = _name(type(value))
        if self._records.get(name) is not type(value):
            raise TypeError(f"a {name} cannot be saved: only numbers, text, containers, tensors and known records can")
        return ["record", name, [self.node(each) for each in values_of(value)]]

    def _tensor(self, tensor: torch.Tensor) -> Any:
        """Return the node of a tensor with its strides, as sums may depend on the order of numbers in memory."""
        here = tensor.detach().resolve_conj().resolve_neg().cpu()
        steps = zip(here.shape, here.stride(), strict=True)
        span = 1 + sum((size - 1) * stride for size, stride in steps) if here.numel() else 0
        flat = here.as_strided((span,), (1,)).view(torch.uint8).numpy()
        blob = self._blob(flat, (tensor.data_ptr(), tensor.device, flat.size))
        return ["tensor", str(here.dtype), list(here.shape), list(here.stride()), str(tensor.device), blob]

    def _blob(self, content: np.ndarray, where: Any) -> int:
        if where not in self._blob_of:
            self._blob_of[where] = len(self.blobs)
            self.blobs.append(content)
        return self._blob_of[where]


class _Reader:
    """Converts nodes back to values; shared objects are shared again."""

    def __init__(self, read_blob: Callable[[int], np.ndarray], shared: list[Any], records: Records) -> None:
        self._read_blob = read_blob
        self._shared = shared
        self._records = records
        self._blobs: dict[int, np.ndarray] = {}
        self._values: dict[int, Any] = {}  # by their place in `shared`
        self._makers: dict[str, Callable[..., Any]] = {
            **{tag: lambda items, made=made: made(map(self.value, items)) for tag, made in _LISTS.items()},
            **{
                tag: lambda pairs, made=made: made((self.value(key), self.value(item)) for key, item in pairs)
                for tag, made in _MAPPINGS.items()
            },
            "packed": lambda stored: Tensors(self.value(stored)),
            "dtype": _dtype,
            "number": lambda dtype, number: np.dtype(dtype).type(number),
            "shared": self._one_of_shared,
            "tensor": self._tensor,
            "array": self._array,
            "bytes": lambda blob: self._blob(blob).tobytes(),
            "record": self._record,
        }

    def value(self, node: Any) -> Any:
        """Return the value of a node. Raises ValueError or LookupError if it is none."""
        if not isinstance(node, list):
            return node
        tag, *rest = node
        return self._makers[tag](*rest)

    def _one_of_shared(self, place: int) -> Any:
        if place not in self._values:
            self._values[place] = self.value(self._shared[place])
        return self._values[place]

    def _blob(self, place: int) -> np.ndarray:
        if place not in self._blobs:
            self._blobs[place] = self._read_blob(place)
        return self._blobs[place]

    def _tensor(self, dtype: str, shape: list[int], stride: list[int], device: str, blob: int) -> torch.Tensor:
        content = self._blob(blob)
        flat = torch.from_numpy(content).view(_dtype(dtype)) if content.size else torch.empty(0, dtype=_dtype(dtype))
        return flat.as_strided(shape, stride).to(device)

    def _array(self, dtype: str, shape: list[int], order: Any, blob: int) -> np.ndarray:
        kind = np.dtype(dtype)
        if kind.kind not in _NUMBERS:
            raise ValueError(f"an array of {dtype}")
        return self._blob(blob).view(kind).reshape(shape, order=order)

    def _record(self, name: str, nodes: list[Any]) -> Any:
        cls = self._records.get(name)
        names = fields_of(cls) or ()
        if cls is None or len(nodes) != len(names):
            raise ValueError(f"has a record {name[:80]!r}, which this run does not know in that form")
        values = [self.value(node) for node in nodes]
        if issubclass(cls, tuple):
            return tuple.__new__(cls, values)
        made = object.__new__(cls)  # without the class's own code: the record was complete when it was written
        for field, value in zip(names, values, strict=True):
            object.__setattr__(made, field, value)
        return made


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name.removeprefix("torch."))
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is no type of numbers")
    return dtype
