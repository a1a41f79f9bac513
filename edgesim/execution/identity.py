"""Identities of values: hashes of all their inputs. Equal identities stand for equal values, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

_BYTES = 16
_PLAIN = (type(None), bool, int, float)
_MOST_KNOWN = 4096


class Digests:
    """Hashes of values. Records such as tasks, which many jobs share, are hashed once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, bytes]] = {}  # by id of the record, which is kept alive

    def of(self, *values: Any) -> bytes:
        """Return the hash of values: numbers, text, bytes, containers, arrays, tensors and records.

        Equal values of different types, such as 1 and 1.0, have different hashes, and so have mappings in different
        order. Raises TypeError for a value of another type, such as a function.
        """
        found = blake2b(digest_size=_BYTES)
        for value in values:
            self._feed(found, value)
        return found.digest()

    def _feed(self, found: blake2b, value: Any) -> None:
        cls = type(value)
        if cls is bytes:
            found.update(b"bytes %d:" % len(value) + value)
        elif cls in _PLAIN:
            found.update(f"{cls.__name__} {value!r};".encode())
        elif cls is str:
            text = value.encode("utf-8", "surrogatepass")
            found.update(b"str %d:" % len(text) + text)
        elif cls in (list, tuple):
            self._feed_all(found, cls.__name__, value)
        elif isinstance(value, set | frozenset):
            found.update(f"set {len(value)}:".encode() + b"".join(sorted(self.of(item) for item in value)))
        elif fields_of(cls) is not None:
            found.update(self._record(value))
        elif isinstance(value, Mapping):
            self._feed_all(found, "mapping", [part for item in value.items() for part in item])
        else:
            numbers = value.detach().cpu().numpy() if hasattr(value, "detach") else value
            if not isinstance(numbers, np.ndarray | np.generic) or numbers.dtype.hasobject:
                raise TypeError(f"a {cls.__module__}.{cls.__qualname__} has no identity")
            content = np.asarray(numbers).tobytes()
            found.update(f"{cls.__name__} {numbers.dtype.str} {numbers.shape} {len(content)}:".encode() + content)

    def _feed_all(self, found: blake2b, what: str, values: Any) -> None:
        found.update(f"{what} {len(values)}:".encode())
        for value in values:
            self._feed(found, value)

    def _record(self, value: Any) -> bytes:
        known = self._known.get(id(value))
        if known is not None:
            return known[1]
        cls: Any = type(value)
        digest = self.of(f"{cls.__module__}:{cls.__qualname__}", *values_of(value))
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[id(value)] = value, digest
        return digest


def fields_of(cls: Any) -> tuple[str, ...] | None:
    """Return the names of the fields of a record: a NamedTuple or a dataclass. None: the class is no record."""
    if is_dataclass(cls):
        return tuple(field.name for field in fields(cls))
    return getattr(cls, "_fields", None)


def values_of(record: Any) -> Iterator[Any]:
    """Yield the values of the fields of a record, in the order of `fields_of`."""
    return (getattr(record, name) for name in fields_of(type(record)) or ())
