"""The manifest of a run folder: its run, the state of the run, and the SHA-256 of every file."""

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
NEXT = ".next"  # a folder in a run folder: files of the next state that are not yet in their places
STAMP = "study.json"  # a file in a run folder of a study: the inputs that the run depends on
PARTS = "parts"  # a folder in the folder of a running run: rows that are written once and not read again
FINISHED, RUNNING = "finished", "running"  # states; others are "interrupted" and "failed"
CUT_OFF = "cut off"  # never written: the status is "running", but its writer is gone

_NO_DIGEST = "0" * 64


def plain_json(value: Any) -> str:
    """Return indented JSON text. NumPy numbers and arrays become plain, and infinities and NaN become strings.

    JSON has no infinity. Pydantic reads the strings back as floats. Raises ValueError on other unknown types, and
    ConfigError on a text that UTF-8 cannot hold, such as the name of a file in another encoding.
    """

    def as_plain(value: Any) -> Any:
        if isinstance(value, np.generic | np.ndarray):
            return value.tolist()
        raise TypeError(f"{type(value).__name__} has no JSON form")

    try:
        return to_json(value, indent=2, inf_nan_mode="strings", fallback=as_plain).decode()
    except PydanticSerializationError as error:
        for text in _texts(value):
            if any("\ud800" <= character <= "\udfff" for character in text):  # surrogates, which UTF-8 cannot hold
                raise ConfigError(
                    f"{in_short(quoted(text))}: a name that is not UTF-8 cannot be recorded; rename it"
                ) from error
        raise


def sealed(manifest: dict[str, Any], digests: dict[str, str]) -> str:
    """Return the text of a manifest with the digests of the files and, last, its own, taken with 0s in its place."""
    text = plain_json({**manifest, "files": digests, "sha256": _NO_DIGEST}) + "\n"
    before, _, after = text.rpartition(_NO_DIGEST)
    return before + sha256(text.encode()).hexdigest() + after


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a run folder. If the writer has died, the status "running" becomes "cut off".

    Raises ConfigError if it cannot be read, is damaged, or is not the manifest of a run.
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

    There is one file. A large table of a run that is running or cut off has several. A run of an earlier version that
    did not know the table has none.
    """
    whole = f"{table}.parquet"
    known = table not in LATER_TABLES or whole in manifest.get("files", {})
    return list(manifest.get("parts", {}).get(table, [whole] if known else []))


def lies(folder: Path, name: str) -> bool:
    """Tell whether a run folder has a file of this name, in its place or on its way there."""
    return any(path.is_file() for path in _places(folder, name))


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file, which is read in pieces."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def read_file(folder: Path, name: str, digests: Mapping[str, str]) -> bytes:
    """Return the content of a file of a run folder, in its place or on its way there.

    `digests`: SHA-256 of the folder's files, from the manifest. Raises OSError if the file cannot be read, ConfigError
    if its SHA-256 differs or it does not fit into memory.
    """
    if name not in digests:
        raise ConfigError(f"{folder / name}: not named in {MANIFEST}")
    digest = digests[name]
    for path in filter(Path.is_file, _places(folder, name)):
        check_room(path.stat().st_size, path, ConfigError)
        with path.open("rb") as file:  # read whole only if its SHA-256 is right
            if file_digest(file, "sha256").hexdigest() == digest:
                file.seek(0)
                return file.read()
    raise ConfigError(f"{folder / name}: damaged: its SHA-256 is not the one in {MANIFEST}")


def _places(folder: Path, name: str) -> Sequence[Path]:
    return folder / name, folder / NEXT / name, folder / name  # it may move while they are tried


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in a tree of mappings and sequences, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | Sequence):
        for item in [*value, *(value.values() if isinstance(value, Mapping) else ())]:
            yield from _texts(item)
