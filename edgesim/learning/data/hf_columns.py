"""Columns of Hugging Face data sets: which are features and labels, and their values as arrays."""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from edgesim.core.arrays import Ids
from edgesim.core.errors import ConfigError, DataError
from edgesim.files.reading import in_short, quoted
from edgesim.learning.data.file_formats import LABEL_COLUMNS, Size, checked_size, decode, stack
from edgesim.learning.data.hf_folder import SplitFiles, column_features

ColumnKind: TypeAlias = Literal["image", "vector", "number", "integer", "string", "other"]
_NUMERIC: tuple[ColumnKind, ...] = ("number", "integer")


@dataclass(frozen=True)
class HfColumns:
    """The columns of a split by use. `names`: names of the classes, if the data set has them."""

    features: tuple[str, ...]
    kind: ColumnKind  # of the features: image, vector, or number for several columns of one number each
    label: str
    names: tuple[str, ...] | None
    others: tuple[str, ...]  # columns of texts or integers that partitions can use


def choose_columns(split: SplitFiles, features: Sequence[str], label: str | None) -> HfColumns:
    """Return the use of the columns of a split: the given ones, or those that types and names tell.

    The label is the only ClassLabel, or else `label`, `labels` or `fine_label`. Features are the only column of images,
    or the only column of lists of numbers, or all columns of floating-point numbers. Raises ConfigError if columns are
    missing or ambiguous, and DataError if no column fits.
    """
    schema = split.schema()
    kinds = {field.name: kind_of(field.type) for field in schema}
    noted = column_features(schema)
    for each in (*features, *([] if label is None else [label])):
        if each not in kinds:
            raise ConfigError(f"data: {split.origin} has no column {quoted(each)} (it has {_listed(kinds)})")
    label = label or _label_among(split, noted.keys() & kinds.keys(), kinds, noted)
    if label in features:
        raise ConfigError(f"data.features: {quoted(label)} is no feature, as it is the label")
    chosen = tuple(features) or _features_among(split, {name: kinds[name] for name in kinds if name != label})
    names = noted.get(label, {}).get("names")
    known = isinstance(names, list) and all(isinstance(each, str) for each in names)
    others = [name for name in kinds if name not in {label, *chosen} and kinds[name] in ("integer", "string")]
    return HfColumns(
        chosen, _kind_of_all(split, {each: kinds[each] for each in chosen}), label,
        tuple(map(str, names)) if known and names else None, tuple(others),
    )  # fmt: skip


def kind_of(kind: pa.DataType) -> ColumnKind:
    """Return the kind of a column of an arrow type. Images are encoded files, or structs with these in `bytes`."""
    if isinstance(kind, pa.BaseExtensionType):
        return kind_of(kind.storage_type)
    if pa.types.is_struct(kind):
        place = kind.get_field_index("bytes")
        return "image" if place >= 0 and _is_binary(kind.field(place).type) else "other"
    if _is_binary(kind):
        return "image"
    if _is_list(kind):
        while _is_list(kind):
            kind = kind.value_type
        return "vector" if kind_of(kind) in _NUMERIC else "other"
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return "integer"
    if pa.types.is_floating(kind):
        return "number"
    return "string" if pa.types.is_string(kind) or pa.types.is_large_string(kind) else "other"


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _listed(names: Collection[str]) -> str:
    return in_short(", ".join(names)) or "none"


def _label_among(
    split: SplitFiles, noted_names: Collection[str], kinds: Mapping[str, ColumnKind], noted: Mapping[str, Any]
) -> str:
    classes = sorted(name for name in noted_names if noted[name].get("_type") == "ClassLabel")
    usual = [name for name in LABEL_COLUMNS if name in kinds]
    if len(classes) == 1 or (not classes and usual):
        return (classes or usual)[0]
    which = f"several columns of classes ({_listed(classes)})" if classes else f"the columns {_listed(kinds)}"
    raise ConfigError(f"data.label: {split.origin} has {which}; name the column of the label")


def _features_among(split: SplitFiles, kinds: Mapping[str, ColumnKind]) -> tuple[str, ...]:
    for wanted, what in (("image", "images"), ("vector", "lists of numbers")):
        found = [name for name, kind in kinds.items() if kind == wanted]
        if len(found) > 1:
            several = f"several columns of {what}; name one of them: {_listed(found)}"
            raise ConfigError(f"data.features: {split.origin} has {several}")
        if found:
            return tuple(found)
    numbers = [name for name, kind in kinds.items() if kind == "number"]
    integers = [name for name, kind in kinds.items() if kind == "integer"]
    if integers:  # a column of integers may be a feature, or the number of a user
        raise ConfigError(
            f"data.features: {split.origin} has the columns of integers {_listed(integers)}, which may be features "
            "or not; name all features"
        )
    if not numbers:
        texts = [name for name, kind in kinds.items() if kind == "string"]
        hint = f"; its text ({_listed(texts)}) is not read, data 'text' reads texts of other files" if texts else ""
        raise DataError(f"{split.origin}: has no column of images or numbers beside the label{hint}")
    return tuple(numbers)


def _kind_of_all(split: SplitFiles, kinds: Mapping[str, ColumnKind]) -> ColumnKind:
    if all(kind in _NUMERIC for kind in kinds.values()):
        return "number"
    for name, kind in kinds.items():
        if kind == "string":
            raise ConfigError(
                f"data.features: column {quoted(name)} of {split.origin} is text, needed are images or numbers; "
                "data 'text' reads texts of other files"
            )
        if kind == "other" or (len(kinds) > 1 and kind not in _NUMERIC):
            alone = "a column of images or lists is the only feature" if kind != "other" else "no images or numbers"
            raise ConfigError(f"data.features: column {quoted(name)} of {split.origin}: {alone}")
    return next(iter(kinds.values()))


# --- values -----------------------------------------------------------------------------------------------------


def features_of(
    split: SplitFiles, columns: HfColumns, rows: Ids | None, limit: int | None, grey: bool, resize: int | Size | None
) -> np.ndarray:
    """Return the features of the first `limit` rows, or of these `rows` in their order.

    Images are bytes (n, h, w, c) as `decode` returns them, other features have the shape (n, features) or that of
    their lists. Numbers are float32 or float64. Lists of bytes are pixels. Raises DataError for a value that does not
    fit.
    """
    table = split.read(columns.features, limit)
    if rows is not None:
        table = table.take(rows)
    if columns.kind == "image":
        size, chunks = checked_size(resize, len(table)), table.column(0).chunks
        encoded = (cell for each in chunks for cell in (each.field("bytes") if pa.types.is_struct(each.type) else each))
        images = (_picture(f"{split.origin}: image {row}", cell, grey, size) for row, cell in enumerate(encoded))
        return stack(images, len(table), f"{split.origin} (data.resize and data.grey can make all equal)")
    if columns.kind == "vector":
        return _nested(f"{split.origin}: column {quoted(columns.features[0])}", table.column(0))
    plain = (_scalars(split, name, table.column(name)) for name in columns.features)
    return np.stack([each.astype(np.float64) for each in plain], axis=1)


def labels_of(splits: Sequence[SplitFiles], columns: HfColumns) -> tuple[list[Ids], int | None]:
    """Return the classes of all rows of each split, int64, and the number of classes; None if only labels tell it.

    Labels that are texts become the places of these texts in ascending order.
    """
    held = [split.read([columns.label]).column(0) for split in splits]
    kinds = {kind_of(each.type) for each in held}
    if kinds == {"integer"}:
        numbers = [_scalars(split, columns.label, each) for split, each in zip(splits, held, strict=True)]
        return [each.astype(np.int64) for each in numbers], len(columns.names) if columns.names else None
    if kinds != {"string"}:
        found = " and ".join(sorted({in_short(each.type) for each in held}))
        raise DataError(
            f"{splits[0].origin}: label {quoted(columns.label)} is {found}, expected integers or texts; "
            "data 'table' has labels that are numbers"
        )
    texts = [_scalars(split, columns.label, each) for split, each in zip(splits, held, strict=True)]
    values, codes = np.unique(np.concatenate(texts), return_inverse=True)
    return np.split(codes.astype(np.int64), [len(texts[0])])[: len(splits)], len(values)


def values_of(split: SplitFiles, column: str) -> np.ndarray:
    """Return the values of a column of texts or integers, for partitions. Raises DataError if one is missing."""
    return _scalars(split, column, split.read([column]).column(0))


def _scalars(split: SplitFiles, name: str, column: pa.ChunkedArray) -> np.ndarray:
    if column.null_count:
        row = pc.index(column.is_null(), True).as_py()
        raise DataError(f"{split.origin}: column {quoted(name)} has no value in row {row}")
    found: np.ndarray = column.to_numpy()
    return found.astype(str) if found.dtype == object and kind_of(column.type) == "string" else found


def _picture(where: str, cell: pa.Scalar, grey: bool, size: Size | None) -> np.ndarray:
    if not cell.is_valid:
        raise DataError(f"{where} has no bytes; save the data set with its images, not with their paths")
    return decode(io.BytesIO(cell.as_buffer()), where, grey, size)


def _nested(where: str, column: pa.ChunkedArray) -> np.ndarray:
    """Return lists of numbers of equal lengths as an array of shape (n, length[, length ...])."""
    values, shape = column.combine_chunks(), [len(column)]
    if isinstance(values, pa.ChunkedArray):  # of no rows
        values = pa.array([], column.type)
    while _is_list(values.type):
        lengths = pc.unique(pc.list_value_length(values)).to_pylist()
        if values.null_count or len(lengths) != 1:
            found = "a missing list" if values.null_count else f"lengths {in_short(sorted(lengths)) or 'none'}"
            raise DataError(f"{where} needs lists of one length, found {found}")
        shape.append(lengths[0])
        values = values.flatten()
    if values.null_count:
        raise DataError(f"{where} has a list with a missing number")
    flat = values.to_numpy(zero_copy_only=False)
    return flat.reshape(shape) if flat.dtype != bool else flat.reshape(shape).astype(np.float32)
