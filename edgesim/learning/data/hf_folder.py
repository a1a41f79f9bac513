"""Folders of Hugging Face data sets: their splits, and the arrow and parquet files of each split.

Three layouts are known: the folder that `save_to_disk` of `datasets` writes, a folder of arrow files as `datasets`
keeps in its cache, and the hub's folders of parquet files. pyarrow reads all of them. Importing `datasets` would take
1.5 s and adds nothing, because the files carry the types of their columns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from edgesim.core.errors import ConfigError, DataError
from edgesim.files.reading import check_regular, in_short, quoted, read_text, reading
from edgesim.files.tables import check_names, read_columns

# Source: documentation of the hub, "File names and splits": a keyword between separators names the split.
_KEYWORDS = {
    "train": ("train", "training"),
    "test": ("test", "testing", "eval", "evaluation"),
    "validation": ("validation", "valid", "val", "dev"),
}
_NUMBERED = re.compile(r"(\w+(?:\.\w+)*)-\d{5}-of-\d{5}")  # any name of a split, then the number of the file
_SEPARATOR = re.compile(r"[-._ 0-9]+")


@dataclass(frozen=True)
class SplitFiles:
    """The files of one split, in order. All have the same columns."""

    folder: Path
    name: str
    files: tuple[Path, ...]

    @property
    def origin(self) -> str:
        """Folder and split, for error messages."""
        return f"{self.folder} split {self.name}"

    def schema(self) -> pa.Schema:
        """Return the columns and types of the first file. Raises DataError if the file is damaged."""
        path = self.files[0]
        check_regular(path)
        with reading(path, "Hugging Face data file"):
            with pa.memory_map(str(path)) as source:
                found = pq.read_schema(source) if path.suffix == ".parquet" else pa.ipc.open_stream(source).schema
            names = [str(name) for name in found.names]
        check_names(path, names)
        return found

    def read(self, columns: Sequence[str], limit: int | None = None) -> pa.Table:
        """Return columns of all rows, or of the first `limit`. Arrow files are mapped into memory and not copied.

        Raises DataError if a file is damaged, lacks a column, or has other types than the first file.
        """
        tables: list[pa.Table] = []
        left = limit
        for path in self.files:
            table = _read_file(path, columns, left)
            if tables and table.schema.types != tables[0].schema.types:
                kinds = in_short(f"{table.schema.types}, {self.files[0].name} has {tables[0].schema.types}")
                raise DataError(f"{path}: columns {', '.join(columns)} are {kinds}")
            tables.append(table)
            left = None if left is None else left - len(table)
            if left == 0:
                break
        return pa.concat_tables(each.replace_schema_metadata() for each in tables)


def _read_file(path: Path, columns: Sequence[str], limit: int | None) -> pa.Table:
    check_regular(path)
    with reading(path, "Hugging Face data file"), pa.memory_map(str(path)) as source:
        packed = path.suffix == ".parquet"
        names = pq.read_schema(source).names if packed else pa.ipc.open_stream(source).schema.names
    if absent := [column for column in columns if column not in names]:
        raise DataError(f"{path}: has no column {quoted(absent[0])} (it has {in_short(', '.join(names))})")
    if packed:
        table = read_columns(path, columns, limit=limit)
    else:
        options = pa.ipc.IpcReadOptions(included_fields=sorted(names.index(column) for column in columns))
        with reading(path, "arrow file"), pa.memory_map(str(path)) as source:
            table = pa.ipc.open_stream(source, options=options).read_all().select(list(columns)).slice(0, limit)
            table.validate(full=True)
    for place, field in enumerate(table.schema):
        if isinstance(field.type, pa.BaseExtensionType):  # only if this process has loaded `datasets`
            chunks = [chunk.storage for chunk in table.column(place).chunks]
            table = table.set_column(place, field.name, pa.chunked_array(chunks, field.type.storage_type))
    return table


def column_features(schema: pa.Schema) -> dict[str, dict[str, Any]]:
    """Return the notes of `datasets` about the columns of a file, as {"label": {"_type": "ClassLabel", ...}}.

    Columns of which nothing is known are left out.
    """
    noted = (schema.metadata or {}).get(b"huggingface", b"{}")
    with suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
        features = json.loads(noted)["info"]["features"]
        return {str(name): about for name, about in features.items() if isinstance(about, dict)}
    return {}


def splits_in(folder: Path, subset: str | None) -> dict[str, SplitFiles]:
    """Return the splits of a data set on disk by name.

    `subset`: subfolder of the hub's layout; None: there is only one. Raises DataError if the folder holds no data set
    or is damaged, ConfigError if the subset is needed or unknown.
    """
    if not folder.is_dir():
        raise DataError(f"data.path: {folder} is no folder")
    if (folder / "dataset_dict.json").exists():
        about = _table(folder / "dataset_dict.json")
        names = about.get("splits")
        if not isinstance(names, list) or not names or not all(map(_is_plain, names)):
            raise DataError(f"{folder / 'dataset_dict.json'}: splits must be names of folders, found {quoted(names)}")
        return {name: SplitFiles(folder, name, _saved_files(folder / name)) for name in names}
    if (folder / "state.json").exists():
        return {"train": SplitFiles(folder, "train", _saved_files(folder))}
    return _hub_splits(folder, subset)


def _saved_files(folder: Path) -> tuple[Path, ...]:
    """Return the arrow files that `save_to_disk` wrote into a folder."""
    about = _table(folder / "state.json")
    listed = about.get("_data_files")
    entries = listed if isinstance(listed, list) else []
    names = [each.get("filename") if isinstance(each, dict) else None for each in entries]
    if not names or not all(map(_is_plain, names)):
        raise DataError(f"{folder / 'state.json'}: _data_files must name files of this folder, found {quoted(listed)}")
    if about.get("_indices_data_files") or about.get("_indices_files"):
        raise DataError(f"{folder}: was saved by an old version of datasets; save it again with a newer one")
    return tuple(folder / str(name) for name in names)


def _table(path: Path) -> dict[str, Any]:
    with reading(path, "JSON file"):
        found = json.loads(read_text(path))
    if not isinstance(found, dict):
        raise DataError(f"{path}: must hold a table, found {quoted(found)}")
    return found


def _is_plain(name: Any) -> bool:
    return isinstance(name, str) and name not in ("", ".", "..") and "\0" not in name and PurePath(name).name == name


def _hub_splits(folder: Path, subset: str | None) -> dict[str, SplitFiles]:
    """Return the splits of a folder of parquet files, or of arrow files if there are none."""
    for suffix in (".parquet", ".arrow"):
        found: dict[str, dict[str, list[Path]]] = {}  # subset -> split -> files
        for path in sorted(folder.rglob(f"*{suffix}")):
            inside = path.relative_to(folder)
            if not any(part.startswith((".", "cache-")) for part in inside.parts):  # datasets caches results of `map`
                part, split = _place_of(inside)
                found.setdefault(part, {}).setdefault(split, []).append(path)
        if found:
            break
    else:
        raise DataError(
            f"data.path: {folder} holds no data set: needs what save_to_disk of datasets writes, or *.parquet files"
        )
    known = ", ".join(sorted(each or "." for each in found))
    if subset is None and len(found) > 1:
        raise ConfigError(f"data.subset: {folder} has several, name one of them: {in_short(known)}")
    chosen = next(iter(found.values())) if subset is None else found.get("" if subset == "." else subset)
    if chosen is None:
        raise ConfigError(f"data.subset: {folder} has no subset {quoted(subset)} (it has {in_short(known)})")
    return {name: SplitFiles(folder, name, tuple(files)) for name, files in chosen.items()}


def _place_of(inside: Path) -> tuple[str, str]:
    """Return the subset and the split of a file, by its path in the folder of the data set."""
    folders = list(inside.parts[:-1])
    split = _split_of(inside.stem)
    if folders and (split is None or _split_of(folders[-1]) == split):
        split = _split_of(folders[-1]) or split
        folders = folders[:-1] if _split_of(folders[-1]) else folders
    return "/".join(each for each in folders if each != "data"), split or "train"


def _split_of(name: str) -> str | None:
    """Return the split that the name of a file or folder tells; None if it tells none."""
    if numbered := _NUMBERED.fullmatch(name):
        return numbered[1]
    words = _SEPARATOR.split(name.lower())
    return next((split for split, keywords in _KEYWORDS.items() if not {*keywords}.isdisjoint(words)), None)
