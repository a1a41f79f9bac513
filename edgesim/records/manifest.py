"""The file that says what a run folder holds: which run, in which state, and the SHA-256 of every file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

import numpy as np
from pydantic_core import PydanticSerializationError, to_json

from edgesim.core.errors import ConfigError
from edgesim.files.reading import check_room, in_short, quoted, read_text
from edgesim.records.checked import parse_manifest
from edgesim.records.lock import is_held
from edgesim.records.schema import LATER_TABLES

MANIFEST = "manifest.json"
NEXT = ".next"  # a folder in a run folder: of files whose place in it is still taken by those of the state before
STAMP = "study.json"  # a file in a run folder of a study: what the run depends on
PARTS = "parts"  # a folder in that of a run that goes on: of rows that are written once and not looked at again
FINISHED, RUNNING = "finished", "running"  # states; others are "interrupted" and "failed"
CUT_OFF = "cut off"  # is nowhere written: the writer of one that was running is gone

_NO_DIGEST = "0" * 64


def plain_json(value: Any) -> str:
    """Return indented JSON text; NumPy numbers and arrays become plain, and infinities and NaN strings.

    JSON has no infinity; the strings are read back as floats by pydantic. Raises ValueError on other unknown types, and
    ConfigError on a text that UTF-8 cannot hold, such as the name of a file in another encoding.
    """
    try:
        return to_json(value, indent=2, inf_nan_mode="strings", fallback=_plain).decode()
    except PydanticSerializationError as error:
        if wrong := next(filter(_is_no_utf8, _texts(value)), None):
            raise ConfigError(
                f"{in_short(quoted(wrong))}: a name that is not UTF-8 cannot be recorded; rename it"
            ) from error
        raise


def sealed(manifest: dict[str, Any], digests: dict[str, str]) -> str:
    """Return the text of a manifest: the digests of files are in it, and last its own, with 0s in its place."""
    text = plain_json({**manifest, "files": digests, "sha256": _NO_DIGEST}) + "\n"
    before, _, after = text.rpartition(_NO_DIGEST)
    return before + sha256(text.encode()).hexdigest() + after


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a run folder; of one whose writer has died the status "running" is "cut off".

    Raises ConfigError if it cannot be read, is damaged, or is no manifest of a run.
    """
    path = folder / MANIFEST
    text = read_text(path, ConfigError)
    found = parse_manifest(text, path)
    digest = found["sha256"]
    if sha256(text.replace(digest, _NO_DIGEST).encode()).hexdigest() != digest:
        raise ConfigError(f"{path}: damaged: its SHA-256 is not the one that it was written with")
    if found["status"] == RUNNING and not is_held(folder):
        found["status"] = CUT_OFF
    return found


def files_of(table: str, manifest: Mapping[str, Any]) -> Sequence[str]:
    """Return the files of a run folder that hold the rows of a table, in their order.

    It is one file, but for a large table of a run that goes on or was cut off, and none where an earlier version did
    not know the table.
    """
    whole = f"{table}.parquet"
    known = table not in LATER_TABLES or whole in manifest.get("files", {})
    return list(manifest.get("parts", {}).get(table, [whole] if known else []))


def lies(folder: Path, name: str) -> bool:
    """Return whether a run folder has a file of this name, in its place or on its way there."""
    return any(path.is_file() for path in _places(folder, name))


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file, which is not read at once."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def read_file(folder: Path, name: str, digests: Mapping[str, str]) -> bytes:
    """Return the content of a file of a run folder, wherever it lies; `digests`: of its files, from the manifest.

    Raises OSError if it cannot be read, ConfigError if it is not the one that the manifest names or does not fit into
    memory.
    """
    if name not in digests:
        raise ConfigError(f"{folder / name}: not named in {MANIFEST}")
    digest = digests[name]
    for path in filter(Path.is_file, _places(folder, name)):
        check_room(path.stat().st_size, path, ConfigError)
        with path.open("rb") as file:  # read whole only once it is known to be the one
            if file_digest(file, "sha256").hexdigest() == digest:
                file.seek(0)
                return file.read()
    raise ConfigError(f"{folder / name}: damaged: its SHA-256 is not the one in {MANIFEST}")


def _places(folder: Path, name: str) -> Sequence[Path]:
    return folder / name, folder / NEXT / name, folder / name  # it may move in between


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in a tree of mappings and sequences, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | Sequence):
        for item in [*value, *(value.values() if isinstance(value, Mapping) else ())]:
            yield from _texts(item)


def _is_no_utf8(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no JSON form")
