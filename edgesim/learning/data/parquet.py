"""Reader of image data sets in parquet files: a column of encoded images and a column of labels."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from edgesim.core.errors import DataError
from edgesim.files.parquet import column_names, read_columns
from edgesim.files.reading import in_short
from edgesim.learning.data.pixels import decode, stack

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

    Only the first `limit` images are decoded (n = min(m, limit)), as decoding is what takes time. `images` and
    `labels` are the column names accepted, the first found is used. An image is the bytes of a PNG or JPEG file,
    or a struct with a field `bytes` of that. Raises DataError that names the file.
    """
    xs, ys = [], []
    left = limit
    for path in files:
        encoded, label = _columns(path, images, labels)
        encoded = encoded[:left]
        left = None if left is None else left - len(encoded)
        ys.append(label)
        if len(encoded):
            xs.append(stack(_decoded(path, encoded), len(encoded), str(path)))
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


def _decoded(path: Path, encoded: pa.Array) -> Iterator[np.ndarray]:
    for row, scalar in enumerate(encoded):
        yield decode(io.BytesIO(scalar.as_buffer()), f"{path}: image {row}")
