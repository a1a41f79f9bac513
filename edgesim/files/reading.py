"""Read files that a user names. They may be damaged, endless or no files at all; each fault is one short line.

Libraries that decode a format describe damage in several lines with raw bytes, raise errors of any type, and block on
named pipes. So all reading of files goes through this module.
"""

from __future__ import annotations

import csv
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unicodedata import category

from edgesim.core.errors import DataError, EdgesimError

_SHOWN = 160  # most characters shown of a foreign text
_LONGEST_LINE = 4_000  # most characters of an error, as a user's own part may raise texts of any length
_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
# Most bytes per byte of a deflated file (gzip, zip). Source: zlib technical details, "maximum compression factor".
_DEFLATE_BYTES = 1032
_PADDING_BYTES = 2**20  # most names, comments and zeros that a deflated file may have beside its data

MOST_TEXT_BYTES = 64 * 2**20  # of a file read as one text; texts written by people have kilobytes

Kind = type[EdgesimError]


# --- words ------------------------------------------------------------------------------------------------------


def in_short(value: Any) -> str:
    """Return a text, or the message of an error, on one line: printable, at most 160 characters."""
    text = str(value)
    if not text and isinstance(value, BaseException):  # such as a bare MemoryError
        text = type(value).__name__
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * _SHOWN]).split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."


def one_line(error: Any) -> str:
    """Return the message of an error on one line, with control characters (as of file names) escaped."""
    line = " ".join(str(error).splitlines())[:_LONGEST_LINE]
    return line if line.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)


def visible(text: str) -> str:
    """Return a text for a terminal, with characters that move a cursor, colour or hide as Python escapes, "\\x1b".

    Ends of lines, tabs and spaces of every width stay.
    """
    lines = []
    for line in text.split("\n"):
        kept = (c if c.isprintable() or c == "\t" or category(c) == "Zs" else repr(c)[1:-1] for c in line)
        lines.append(line if line.isprintable() else "".join(kept))
    return "\n".join(lines)


def quoted(value: Any) -> str:
    """Return the Python representation of a value from a file, at most 160 characters of it."""
    try:
        text = repr(value[: 4 * _SHOWN] if isinstance(value, str) else value)
    except ValueError:  # a whole number of more digits than Python writes
        return "a number of thousands of digits"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


# --- before a file is opened ------------------------------------------------------------------------------------


def check_regular(path: Path, kind: Kind = DataError) -> int:
    """Return the size of a regular file in bytes; links are followed.

    Raises `kind` for anything else: a missing file, a folder, or an endless one such as a named pipe or a device.
    """
    try:
        found = path.stat()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise kind(f"{path}: cannot be read: {_reason(error)}") from error
    if not stat.S_ISREG(found.st_mode):
        what = _KINDS.get(stat.S_IFMT(found.st_mode), "a device")
        raise kind(f"{path}: cannot be read: is {what}, a regular file is needed")
    return found.st_size


def check_text(path: Path, kind: Kind = DataError) -> int:
    """Return the size of a regular text file in bytes. Raises `kind` as `check_regular`, and if the file has a hole.

    A hole is a range that was never written. It reads as zeros, takes no space on the disk and may have terabytes.
    """
    size = check_regular(path, kind)
    with reading(path, "text", kind), path.open("rb") as file:
        hole = os.lseek(file.fileno(), 0, os.SEEK_HOLE) if size else 0
    if hole < size:
        raise kind(f"{path}: not a text: nothing was written from byte {hole} on, of {size} bytes")
    return size


def check_room(needed_bytes: int, where: object, kind: Kind = DataError) -> None:
    """Raise `kind` if an allocation needs more memory than this machine has."""
    from edgesim.core.limits import (
        memory_bytes,
    )  # here: it loads pydantic, which would slow `edgesim --help` by a third

    most_bytes = memory_bytes()
    if needed_bytes > most_bytes:
        raise kind(f"{where}: needs {_gib(needed_bytes)} of memory, this machine has {_gib(most_bytes)}")


def check_deflated(packed_bytes: int, promised_bytes: int, where: object, kind: Kind = DataError) -> None:
    """Raise `kind` unless the deflated bytes (of gzip or zip) can hold the promised bytes, and memory can, too.

    Far more deflated bytes than promised are refused, as a file may end in terabytes of zeros, which gzip reads.
    """
    if packed_bytes > _PADDING_BYTES + 2 * promised_bytes:
        raise kind(f"{where}: damaged: {packed_bytes} bytes for the {promised_bytes} that they promise")
    if promised_bytes > _DEFLATE_BYTES * packed_bytes:
        raise kind(f"{where}: damaged: {packed_bytes} bytes cannot hold the {promised_bytes} that they promise")
    check_room(promised_bytes, where, kind)


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"


# --- reading ----------------------------------------------------------------------------------------------------


@contextmanager
def reading(path: Path | str, what: str, kind: Kind = DataError) -> Iterator[None]:
    """Turn any error of a library about a damaged file into `kind`: "PATH: not a readable WHAT: why".

    The with-block should hold only the call of the library. Errors of edgesim pass unchanged.
    """
    try:
        yield
    except EdgesimError:
        raise
    except (FileNotFoundError, PermissionError) as error:
        raise kind(f"{path}: cannot be read: {_reason(error)}") from error
    except Exception as error:  # decoders of damaged bytes raise anything, from IndexError to MemoryError
        raise kind(f"{path}: not a readable {what}, truncated or damaged: {in_short(error)}") from error


def read_text(path: Path, kind: Kind = DataError, most_bytes: int = MOST_TEXT_BYTES) -> str:
    """Return the text of a regular file in UTF-8, without a byte order mark.

    Raises `kind` if it is no regular file, has more than `most_bytes`, or is not UTF-8.
    """
    size = check_regular(path, kind)
    if size > most_bytes:
        raise kind(f"{path}: has {size} bytes, at most {most_bytes} are read")
    try:
        with path.open("rb") as file:
            data = file.read(most_bytes + 1)  # files of /proc have the size 0
        return data.decode("utf-8-sig")
    except OSError as error:
        raise kind(f"{path}: cannot be read: {_reason(error)}") from error
    except UnicodeDecodeError as error:
        raise kind(f"{path}: not UTF-8 text: {_byte(error)}") from error


def csv_rows(path: Path, kind: Kind = DataError) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV file in UTF-8, each with its line number from 1; blank lines are skipped.

    Raises `kind`, with the line if possible, if it is not a regular file, not UTF-8 or not CSV.
    """
    check_room(check_text(path, kind), path, kind)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file, strict=True)
            for row in filter(None, rows):
                _check_characters(row)
                yield rows.line_num, row
    except OSError as error:
        raise kind(f"{path}: cannot be read: {_reason(error)}") from error
    except UnicodeDecodeError as error:
        raise kind(f"{path}: not UTF-8 text: {_byte(error)}, after line {rows.line_num}") from error
    except csv.Error as error:
        raise kind(f"{path} line {rows.line_num}: not valid CSV: {in_short(error)}") from error


def _check_characters(row: list[str]) -> None:
    """Raise csv.Error if a row has control characters, as zeroed blocks are valid UTF-8."""
    text = "".join(row)
    if not text.isprintable() and (wrong := next((c for c in text if c != "\t" and not c.isprintable()), "")):
        raise csv.Error(f"has the character {wrong!r}")


def csv_records(
    path: Path, kind: Kind = DataError, rows: Iterator[tuple[int, list[str]]] | None = None
) -> tuple[list[str], Iterator[tuple[int, dict[str, str]]]]:
    """Return the header of a CSV file, and its rows by the header's names, each with its line, as `csv_rows` does.

    `rows`: the remaining rows of the file; None: all. Raises `kind` at a row with more or fewer values than names.
    """
    rows = csv_rows(path, kind) if rows is None else rows
    _, header = next(rows, (1, list[str]()))
    return header, _records(path, header, rows, kind)


def _records(
    path: Path, header: list[str], rows: Iterator[tuple[int, list[str]]], kind: Kind
) -> Iterator[tuple[int, dict[str, str]]]:
    for line, row in rows:
        if len(row) != len(header):
            fault = "has not as many values as the header has names"
            raise kind(f"{path} line {line}: {fault}: {len(row)}, not {len(header)}")
        yield line, dict(zip(header, row, strict=True))


def _reason(error: OSError | ValueError) -> str:
    return in_short((error.strerror if isinstance(error, OSError) else None) or error)


def _byte(error: UnicodeDecodeError) -> str:
    return f"byte 0x{error.object[error.start]:02x} ({error.reason})"
