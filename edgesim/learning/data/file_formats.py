"""Readers of data sets' IDX, NPZ, parquet and picture files."""

from __future__ import annotations

import gzip
import io
import math
import struct
import warnings
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.lib import format as npy
from PIL import Image

from edgesim.core.errors import DataError
from edgesim.core.limits import check_memory
from edgesim.files.reading import check_deflated, check_regular, check_room, in_short, reading
from edgesim.files.tables import column_names, read_columns

# Source: the format description of the MNIST data base: two zero bytes, a type code, the number of axes, then each
# axis length as a big-endian 32-bit integer, then the numbers, big-endian, last axis fastest.
_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_AXES = range(1, 5)  # labels have one axis, colour images four


IdxSet: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def idx_files(folder: Path, prefixes: tuple[str, str]) -> list[Path] | None:
    """Return the files of images and labels of the training and of the test split, or None if the folder lacks one.

    `prefixes`: first parts of the names of the training and of the test files, "train" and "t10k" for MNIST.
    """
    patterns = [f"{prefix}-{kind}*idx[13]-ubyte*" for prefix in prefixes for kind in ("images", "labels")]
    found = [min(folder.glob(pattern), default=None) for pattern in patterns]  # a plain file sorts before its .gz
    files = [path for path in found if path is not None]
    return files if len(files) == len(found) else None


def read_idx_set(folder: Path, prefixes: tuple[str, str]) -> IdxSet | None:
    """Return the arrays of `idx_files`, in their order. Raises DataError if a file is truncated or not an idx file."""
    files = idx_files(folder, prefixes)
    if files is None:
        return None
    x_train, y_train, x_test, y_test = map(read_idx, files)
    return x_train, y_train, x_test, y_test


def read_idx(path: Path) -> np.ndarray:
    """Return the array of an idx file, read-only. Raises DataError if it is truncated or not an idx file."""
    packed = path.suffix == ".gz"
    size = check_regular(path)
    with reading(path, "idx file"), gzip.open(path) if packed else path.open("rb") as file:
        magic = file.read(4)
        if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _TYPES or magic[3] not in _AXES:
            start_found = magic.hex() or "nothing"
            raise DataError(f"{path}: not an idx file: starts with {start_found}, expected 0000, type, axes")
        dtype, axes = np.dtype(_TYPES[magic[2]]), magic[3]
        lengths = file.read(4 * axes)
        if len(lengths) < 4 * axes:
            raise DataError(f"{path}: truncated: found {4 + len(lengths)} bytes, the header alone needs {4 + 4 * axes}")
        shape = struct.unpack(f">{axes}I", lengths)
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


_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_npz(path: Path, wanted: Sequence[str]) -> list[np.ndarray]:
    """Return these arrays of an archive, in this order.

    The sizes in its directory and in the arrays' headers are compared before any array is allocated. Raises DataError
    if an array is missing, or if the archive is damaged or does not hold plain arrays.
    """
    check_regular(path)
    with reading(path, ".npz archive of plain arrays"), zipfile.ZipFile(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        missing = [key for key in wanted if key not in names]
        if missing:
            raise DataError(f"{path}: lacks {', '.join(missing)}; it has {in_short(', '.join(names))}")
        members = [archive.getinfo(f"{key}.npy") for key in wanted]
        check_room(sum(member.file_size for member in members), path)
        return [_array(path, archive, member) for member in members]


def _array(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    check_deflated(member.compress_size, member.file_size, f"{path}: {member.filename}")
    with archive.open(member) as file:
        shape, _, dtype = _HEADERS[npy.read_magic(file)](file)
        promised, held = dtype.itemsize * math.prod(shape), member.file_size - file.tell()
        if promised != held and not dtype.hasobject:  # objects, which would be code, are refused below
            raise DataError(f"{path}: {member.filename}: holds {held} bytes, its header {shape} promises {promised}")
    with archive.open(member) as file:
        return npy.read_array(file, allow_pickle=False)


IMAGE_COLUMNS = ("img", "image")
LABEL_COLUMNS = ("label", "labels", "fine_label")


def parquet_files(folder: Path, split: str) -> list[Path]:
    """Return the parquet files of a split ("train" or "test") in a folder, in the order of their numbers."""
    return sorted(folder.glob(f"{split}*.parquet"))


def read_parquet(
    files: Sequence[Path],
    images: Sequence[str] = IMAGE_COLUMNS,
    labels: Sequence[str] = LABEL_COLUMNS,
    limit: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return images (n, h, w, c) as bytes and all labels (m,), the files in their order.

    Only the first `limit` images are decoded (n = min(m, limit)), because decoding takes most of the time. `images` and
    `labels`: accepted column names, of which the first existing one is used. An image is the bytes of a PNG or JPEG
    file, or a struct with these bytes in the field `bytes`. Raises DataError that names the file.
    """
    xs, ys = [], []
    left = limit
    for path in files:
        encoded, label = _columns(path, images, labels)
        encoded = encoded[:left]
        left = None if left is None else left - len(encoded)
        ys.append(label)
        if len(encoded):
            pictures = ((row, io.BytesIO(scalar.as_buffer())) for row, scalar in enumerate(encoded))
            decoded = (decode(picture, f"{path}: image {row}") for row, picture in pictures)
            xs.append(stack(decoded, len(encoded), str(path)))
    shapes = {x.shape[1:] for x in xs}
    if len(shapes) != 1:
        raise DataError(f"{files[0].parent}: needs images of one shape, found {sorted(shapes) or 'no images'}")
    return np.concatenate(xs), np.concatenate(ys)


def _columns(path: Path, images: Sequence[str], labels: Sequence[str]) -> tuple[pa.Array, np.ndarray]:
    names = column_names(path)
    image, label = _pick(path, "image", images, names), _pick(path, "label", labels, names)
    table = read_columns(path, [image, label])
    encoded, label_column = table[image].combine_chunks(), table[label].combine_chunks()
    if pa.types.is_struct(encoded.type) and encoded.type.get_field_index("bytes") >= 0:
        encoded = encoded.field("bytes")
    if not (pa.types.is_binary(encoded.type) or pa.types.is_large_binary(encoded.type)) or encoded.null_count:
        raise DataError(f"{path}: column {image!r} is {in_short(encoded.type)}, expected encoded images without gaps")
    if not pa.types.is_integer(label_column.type) or label_column.null_count:
        raise DataError(f"{path}: column {label!r} is {in_short(label_column.type)}, expected integers without gaps")
    return encoded, label_column.to_numpy(zero_copy_only=False)


def _pick(path: Path, role: str, wanted: Sequence[str], names: Sequence[str]) -> str:
    for name in wanted:
        if name in names:
            return name
    raise DataError(f"{path}: no {role} column {' or '.join(wanted)}; its columns are {in_short(', '.join(names))}")


Size = tuple[int, int]
_PIXEL_BYTES = 3 + 3 * 4  # red, green, blue, as read and as trained on


def checked_size(resize: int | Size | None, images: int) -> Size | None:
    """Return the height and width that data.resize asks for: the side of a square, or both; None: images keep theirs.

    Raises ConfigError if so many images of this size need more memory than there is.
    """
    size = (resize, resize) if isinstance(resize, int) else resize
    if size is not None:
        check_memory("data.resize", images * size[0] * size[1] * _PIXEL_BYTES, f"{images} images of {size}")
    return size


# Other formats are rarer, and Pillow hands PostScript to an interpreter, whatever the name of the file.
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")


def decode(source: Path | BinaryIO, origin: str, grey: bool = True, size: Size | None = None) -> np.ndarray:
    """Return an encoded image as bytes (h, w, c), with c = 1 for a grey image if `grey` allows it, else c = 3.

    `size`: height and width of the scaled image. Raises DataError that names `origin` if it cannot be decoded.
    """
    if isinstance(source, Path):
        check_regular(source)
    with warnings.catch_warnings(), reading(origin, "image"):
        warnings.simplefilter("error", Image.DecompressionBombWarning)  # more than 89 million pixels
        with Image.open(source, formats=_FORMATS) as image:
            mode = "L" if grey and image.mode in ("1", "L") else "RGB"
            plain = image.convert(mode)
    scaled = plain if size is None else plain.resize(size[::-1], Image.Resampling.BILINEAR)
    return np.asarray(scaled).reshape(scaled.height, scaled.width, -1)


def stack(images: Iterable[np.ndarray], count: int, origin: str) -> np.ndarray:
    """Return `count` images (h, w, c) as one uint8 array (count, h, w, c). They are stored only once in memory.

    Raises DataError that names `origin` if two images differ in shape.
    """
    out = np.empty(0, dtype=np.uint8)
    for row, image in enumerate(images):
        if row == 0:
            check_room(count * image.nbytes, origin)
            out = np.empty((count, *image.shape), dtype=np.uint8)
        if image.shape != out.shape[1:]:
            raise DataError(
                f"{origin}: image {row} has shape {image.shape}, image 0 has {out.shape[1:]}; all must be the same"
            )
        out[row] = image
    return out
