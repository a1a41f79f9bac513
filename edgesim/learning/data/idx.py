"""Reader of idx files, the format of MNIST and its kin, gzipped or not."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import TypeAlias

import numpy as np

from edgesim.errors import DataError

# Source: the format description of the MNIST data base: two zero bytes, a type code, the number of axes, then each
# axis length as a big-endian 32-bit integer, then the numbers, big-endian, last axis fastest.
_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


IdxSet: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def read_idx_set(folder: Path, prefixes: tuple[str, str]) -> IdxSet | None:
    """Return images and labels of the training and of the test split, or None if the folder lacks one of the files.

    `prefixes`: how the names of the training and of the test files start, "train" and "t10k" for MNIST.
    Raises DataError if a file is truncated or not an idx file.
    """
    train, test = prefixes
    x_train, y_train = _find(folder, train, "images"), _find(folder, train, "labels")
    x_test, y_test = _find(folder, test, "images"), _find(folder, test, "labels")
    if x_train is None or y_train is None or x_test is None or y_test is None:
        return None
    return read_idx(x_train), read_idx(y_train), read_idx(x_test), read_idx(y_test)


def _find(folder: Path, prefix: str, kind: str) -> Path | None:
    return min(folder.glob(f"{prefix}-{kind}*idx[13]-ubyte*"), default=None)  # a plain file sorts before its .gz


def read_idx(path: Path) -> np.ndarray:
    """Return the array of an idx file, read-only. Raises DataError if it is truncated or not an idx file."""
    data = _content(path)
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _TYPES:
        raise DataError(
            f"{path}: not an idx file: starts with {data[:4].hex() or 'nothing'}, expected 0000, type, axes"
        )
    dtype, axes = np.dtype(_TYPES[data[2]]), data[3]
    start = 4 + 4 * axes
    if len(data) < start:
        raise DataError(f"{path}: truncated: found {len(data)} bytes, the header alone needs {start}")
    shape = tuple(int(length) for length in np.frombuffer(data, ">u4", axes, 4))
    expected = start + dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    if len(data) != expected:
        raise DataError(f"{path}: found {len(data)} bytes, its header {shape} promises {expected}")
    return np.frombuffer(data, dtype, offset=start).reshape(shape)


def _content(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if path.suffix == ".gz" else data
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read, truncated or damaged: {error}") from error
