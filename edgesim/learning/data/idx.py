"""Reader of idx files, the format of MNIST and its kin, gzipped or not."""

from __future__ import annotations

import gzip
import math
import struct
from pathlib import Path
from typing import IO, TypeAlias

import numpy as np

from edgesim.core.errors import DataError
from edgesim.files.reading import check_deflated, check_regular, check_room, reading

# Source: the format description of the MNIST data base: two zero bytes, a type code, the number of axes, then each
# axis length as a big-endian 32-bit integer, then the numbers, big-endian, last axis fastest.
_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_AXES = range(1, 5)  # labels have one, images of colours four


IdxSet: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def idx_files(folder: Path, prefixes: tuple[str, str]) -> list[Path] | None:
    """Return the files of images and labels of the training and of the test split; None if the folder lacks one.

    `prefixes`: how the names of the training and of the test files start, "train" and "t10k" for MNIST.
    """
    found = [_find(folder, prefix, kind) for prefix in prefixes for kind in ("images", "labels")]
    files = [path for path in found if path is not None]
    return files if len(files) == len(found) else None


def read_idx_set(folder: Path, prefixes: tuple[str, str]) -> IdxSet | None:
    """Return the arrays of `idx_files`, in their order. Raises DataError if a file is truncated or not an idx file."""
    files = idx_files(folder, prefixes)
    if files is None:
        return None
    x_train, y_train, x_test, y_test = map(read_idx, files)
    return x_train, y_train, x_test, y_test


def _find(folder: Path, prefix: str, kind: str) -> Path | None:
    return min(folder.glob(f"{prefix}-{kind}*idx[13]-ubyte*"), default=None)  # a plain file sorts before its .gz


def read_idx(path: Path) -> np.ndarray:
    """Return the array of an idx file, read-only. Raises DataError if it is truncated or not an idx file."""
    packed = path.suffix == ".gz"
    size = check_regular(path)
    with reading(path, "idx file"), gzip.open(path) if packed else path.open("rb") as file:
        dtype, shape = _header(path, file)
        start, needed = file.tell(), dtype.itemsize * math.prod(shape)
        if packed:
            check_deflated(size, needed, path)
        elif size != start + needed:
            raise DataError(f"{path}: found {size} bytes, its header {shape} promises {start + needed}")
        check_room(needed, path)
        data = file.read(needed + 1)
        if len(data) != needed:
            found = "more" if len(data) > needed else f"{start + len(data)} bytes"
            raise DataError(f"{path}: found {found}, its header {shape} promises {start + needed}")
        return np.frombuffer(data, dtype).reshape(shape)


def _header(path: Path, file: IO[bytes] | gzip.GzipFile) -> tuple[np.dtype, tuple[int, ...]]:
    """Return the type of the numbers and the lengths of the axes, 1 to 4 of them."""
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _TYPES or magic[3] not in _AXES:
        raise DataError(f"{path}: not an idx file: starts with {magic.hex() or 'nothing'}, expected 0000, type, axes")
    axes = magic[3]
    lengths = file.read(4 * axes)
    if len(lengths) < 4 * axes:
        raise DataError(f"{path}: truncated: found {4 + len(lengths)} bytes, the header alone needs {4 + 4 * axes}")
    return np.dtype(_TYPES[magic[2]]), struct.unpack(f">{axes}I", lengths)
