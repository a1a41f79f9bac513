"""Tokenizers: characters of the training texts, bytes, or a tokenizer.json of Hugging Face on disk.

Texts are first encoded, then cut into rows, and rows are numbered last: which characters are known follows from the
rows for training.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np

from edgesim.config.toml_file import ScenarioPath
from edgesim.core.arrays import Ids
from edgesim.core.errors import ConfigError, DataError
from edgesim.files.reading import check_regular, in_short, quoted, reading

PADDING = -1  # in rows, at places that have no token

TokenizerKey: TypeAlias = Literal["characters", "bytes"] | ScenarioPath

_MOST_TOKENS = 10_000  # different characters: a network has a row of weights for each
_AFTER_UNICODE = 0x110000
_SHOWN = 20  # tokens in an error


class Numbered(NamedTuple):
    """Rows of both splits as tokens in [0, size), with `PADDING` where there is none, and the token that pads."""

    train: Ids
    test: Ids
    size: int
    pad: int


class Tokenizer(ABC):
    """Encoder of texts as numbers. `end`: the number that stands after a document."""

    unit: ClassVar[str]  # of an encoded text, for messages
    end: int

    @abstractmethod
    def encode(self, text: str) -> Ids:
        """Return the numbers of a text, int64, shape (units,), without an end."""

    @abstractmethod
    def numbered(self, train: Ids, test: Ids, origin: str) -> Numbered:
        """Return rows of numbers as tokens. Raises DataError, which names `origin`, if there are too many tokens."""


class Characters(Tokenizer):
    """Each different character of the training rows is a token, in ascending order. One more stands for all others.

    With `marks` two more follow: the end of a document, and padding.
    """

    unit = "characters"
    end = _AFTER_UNICODE

    def __init__(self, marks: bool) -> None:
        self._marks = marks

    def encode(self, text: str) -> Ids:
        """Return the code points."""
        return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.int64)

    def numbered(self, train: Ids, test: Ids, origin: str) -> Numbered:
        """Return the place of each character among the known ones."""
        known = np.unique(train)
        known = known[(known >= 0) & (known < self.end)]
        if len(known) > _MOST_TOKENS:
            raise DataError(f"{origin}: has {len(known)} different characters, allowed are {_MOST_TOKENS}")

        def places(rows: Ids) -> Ids:
            found = np.searchsorted(known, rows).clip(max=len(known) - 1)
            numbers = np.where(known[found] == rows, found, len(known))
            numbers = np.where(rows == self.end, len(known) + 1, numbers)
            return np.where(rows == PADDING, PADDING, numbers)

        size = len(known) + (3 if self._marks else 1)
        return Numbered(places(train), places(test), size, size - 1)


class Bytes(Tokenizer):
    """Each byte of the text in UTF-8 is a token. 256 is the end of a document, 257 padding."""

    unit = "bytes"
    end = 256

    def encode(self, text: str) -> Ids:
        """Return the bytes."""
        return np.frombuffer(text.encode("utf-8", "surrogatepass"), dtype=np.uint8).astype(np.int64)

    def numbered(self, train: Ids, test: Ids, origin: str) -> Numbered:
        """Return the rows as they are."""
        return Numbered(train, test, 258, 257)


class FromFile(Tokenizer):
    """A tokenizer of Hugging Face. Special tokens that its template would add are left out."""

    unit = "tokens"

    def __init__(self, path: Path, end: str | None, pad: str | None) -> None:
        """`end`, `pad`: tokens of the file. Raises ConfigError if the library or a token is missing, DataError."""
        try:
            from tokenizers import Tokenizer as Library
        except ImportError as error:
            raise ConfigError('data.tokenizer: tokenizers is not installed; pip install "edgesim[llm]"') from error
        check_regular(path)
        with reading(path, "tokenizer.json of Hugging Face"):
            self._library: Any = Library.from_file(str(path))
        self._library.no_truncation()
        self._library.no_padding()
        numbers = self._library.get_vocab(with_added_tokens=True)
        self._size = max(numbers.values(), default=-1) + 1
        special = [each.content for each in self._library.get_added_tokens_decoder().values()]
        shown = in_short(", ".join(special[:_SHOWN])) or "none"
        if end is None:
            raise ConfigError(f"data.end: name the token of {path} that ends a document (special tokens: {shown})")
        pad = end if pad is None else pad
        for key, token in (("end", end), ("pad", pad)):
            if token not in numbers:
                raise ConfigError(f"data.{key}: {path} has no token {quoted(token)} (special tokens: {shown})")
        self.end, self._pad = numbers[end], numbers[pad]

    def encode(self, text: str) -> Ids:
        """Return the tokens."""
        return np.array(self._library.encode(text, add_special_tokens=False).ids, dtype=np.int64)

    def numbered(self, train: Ids, test: Ids, origin: str) -> Numbered:
        """Return the rows as they are."""
        return Numbered(train, test, self._size, self._pad)


def tokenizer_of(key: TokenizerKey, end: str | None, pad: str | None, marks: bool) -> Tokenizer:
    """Return the tokenizer that a scenario names. `marks`: characters need an end and padding."""
    if isinstance(key, Path):
        return FromFile(key.expanduser(), end, pad)
    if end is not None or pad is not None:
        which = "end" if end is not None else "pad"
        raise ConfigError(f"data.{which}: is for a tokenizer of a file, {key} have an end and padding of their own")
    return Characters(marks) if key == "characters" else Bytes()
