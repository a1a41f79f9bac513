"""Texts for the prediction of the next character: a user's own files, and a made-up text of known best perplexity."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Le, Lt

from edgesim.config.toml_file import ScenarioPath
from edgesim.core.arrays import Arr, Ids
from edgesim.core.errors import ConfigError, DataError
from edgesim.core.limits import Count, PositiveFactor, Share, check_memory
from edgesim.core.rng import Key, Purpose
from edgesim.files.reading import check_room, in_short, quoted, read_text
from edgesim.files.tables import read_frame
from edgesim.learning.data.dataset import DataPart, Dataset
from edgesim.learning.data.text_records import read_records
from edgesim.learning.data.texts import (
    BYTES_PER_TOKEN,
    last_for_the_test,
    next_token_dataset,
    packed,
    padded,
    with_two_rows,
)
from edgesim.learning.data.tokenizers import Numbered, TokenizerKey, tokenizer_of

_MOST_LETTERS = 26
_COMMON, _STYLES, _WRITING = range(3)  # streams


@dataclass(frozen=True, kw_only=True)
class TextSource(DataPart):
    """Keys common to all texts. Samples of a user are consecutive, and the last ones are for the test.

    Source of this split: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data"
    (AISTATS 2017), keep the last fifth of each role's lines for the test, at least one. Here it is a share of samples.
    """

    length: Count = 80  # characters of a sample, 80 as in McMahan et al.
    test_share: Annotated[float, Gt(0), Lt(1)] = 0.2  # share of each user's last samples for the test, at least one


@dataclass(frozen=True, kw_only=True)
class TextFiles(TextSource):
    """Texts in UTF-8: a folder with a file NAME.txt for each user, or one file with all texts.

    A file that ends in .csv has a piece of text per row, one that ends in .jsonl has one per line, each with its user.
    Any other file is plain text. If `marker` is set, a line that ends with the marker names the author of the
    following lines, as in plays. Pieces are documents.

    Packed documents of a user are one text, cut into samples that follow one another. The rest at its end, shorter than
    a sample, is left out. Padded documents are samples of their own, and padding counts in no loss and no accuracy. A
    document longer than a sample is several samples. The end of a document is a token; only packed characters are
    joined as they are, with a line break after each row or line of a file.

    Characters that no training sample has are one token. With `tokenizer` a file, tokens are those of Hugging Face's
    tokenizer.json, and `end` names the one after each document.
    """

    path: ScenarioPath  # of the folder or of the file
    length: Count = 80  # tokens of a sample, 80 characters in McMahan et al.
    tokenizer: TokenizerKey = "characters"  # or "bytes", or the path of a tokenizer.json, which needs edgesim[llm]
    packing: bool = True  # documents of a user follow one another in samples. False: each is padded to whole samples
    end: str | None = None  # token of the tokenizer's file after a document, such as "</s>"
    pad: str | None = None  # token of the tokenizer's file in padding. Unset: `end`
    marker: str | None = None  # end of the lines that name a user, such as ":". Unset: the file has one user
    user: str = "user"  # column or field with the author of a piece
    text: str = "text"  # column or field with the piece
    users: Count | None = None  # use only this many users, with the longest texts. Unset: all
    skip_short: bool = False  # leave out users without two samples. Otherwise they are an error

    def load(self) -> Dataset:
        """Return the data set. Raises DataError or ConfigError if files and keys do not fit."""
        path, origin = self.path.expanduser(), str(self.path)
        tokenizer = tokenizer_of(self.tokenizer, self.end, self.pad, marks=not self.packing)
        listed = path.suffix in (".csv", ".jsonl")  # with a piece in each row or line
        if path.is_dir():
            files = sorted(path.glob("*.txt"))
            if not files:
                raise DataError(f"{path}: has no file that ends in .txt")
            by_user = {file.stem: [read_text(file)] for file in files}
        elif path.suffix == ".csv":
            by_user = self._rows_by_user(path)
        elif listed:
            by_user = {}
            for record in read_records(path):
                by_user.setdefault(record.text(self.user), []).append(record.text(self.text))
        elif self.marker is None:
            by_user = {path.stem: [read_text(path)]}
        else:
            by_user = self._lines_by_user(path, read_text(path), self.marker)
        by_user = dict(sorted(by_user.items()))
        check_room(BYTES_PER_TOKEN * sum(len(piece) for own in by_user.values() for piece in own), origin)
        plain = self.packing and self.tokenizer == "characters"
        documents: dict[str, list[Ids]] = {}
        for user, own in by_user.items():
            ends = tokenizer.encode("\n" if listed else "") if plain else np.array([tokenizer.end])
            documents[user] = [np.append(tokenizer.encode(piece), ends) for piece in own]
        cut = packed if self.packing else padded
        rows = {user: cut(own, self.length) for user, own in documents.items()}
        sizes = {user: sum(map(len, own)) for user, own in documents.items()}
        least = 2 * self.length + 1 if self.packing else "two documents or more"
        needed = f"{tokenizer.unit}, needed are {least} for two samples of {self.length}"
        rows = with_two_rows(origin, rows, sizes, needed, self.users, self.skip_short)
        train, test, *users = last_for_the_test(rows, self.test_share)
        own_names = {self.user} if listed else set[str]()
        columns = {name: (users[0], users[1]) for name in sorted({"user"} | own_names)}
        return next_token_dataset(path.stem, tokenizer.numbered(train, test, origin), columns)

    def _lines_by_user(self, path: Path, text: str, marker: str) -> dict[str, list[str]]:
        """Return the lines after each line that ends with the marker. Lines before the first one are left out."""
        if not marker.strip():
            raise ConfigError(f"data.marker: must have a character that is seen, found {quoted(marker)}")
        found: dict[str, list[list[str]]] = {}  # lines of each piece
        mine: list[str] | None = None
        for line in text.splitlines():
            name = line.rstrip().removesuffix(marker).strip()
            if line.rstrip().endswith(marker) and name:
                mine = []
                found.setdefault(name, []).append(mine)
            elif mine is not None:
                mine.append(line + "\n")
        if not found:
            raise DataError(f"{path}: no line ends with data.marker, {quoted(marker)}")
        return {user: ["".join(lines) for lines in pieces] for user, pieces in found.items()}

    def _rows_by_user(self, path: Path) -> dict[str, list[str]]:
        """Return the pieces of the rows of a CSV file."""
        frame = read_frame(path)
        for column in (self.user, self.text):
            if column not in frame:
                known = in_short(", ".join(map(str, frame.columns[:20])))
                raise ConfigError(f"data: {path} has no column {quoted(column)} (it has {known})")
            if (missing := frame[column].isna().to_numpy()).any():
                raise DataError(f"{path}: column {quoted(column)} is empty in row {int(missing.argmax()) + 1}")
        if frame.empty:
            raise DataError(f"{path}: has no rows")
        pieces = frame[self.text].astype(str)
        return {str(user): list(own) for user, own in pieces.groupby(frame[self.user].astype(str))}


@dataclass(frozen=True, kw_only=True)
class MarkovText(TextSource):
    """Made-up text: each letter depends on the letter before it, by a table of the user's style.

    The table of a style is (1 - own) C + own S, with a common table C and the style's own table S. Rows of both are
    drawn from a symmetric Dirichlet distribution. User u has style u modulo `styles`. Its text starts from the style's
    stationary distribution, so that every letter has this distribution. In expectation, no network has a smaller
    perplexity than the exponential of the entropy rate, which `floor_of` returns in closed form.

    Source: Shannon, "A Mathematical Theory of Communication" (1948), section 7, for the entropy of such a source. The
    sizes are not from a paper.
    """

    length: Count = 20  # characters of a sample
    seed: Annotated[int, Ge(0)] = 1  # of the data alone: runs with different seeds of their own share the data
    users: Count = 10  # equal to the number of devices of the fleet, with partition by_column
    samples_per_user: Annotated[int, Ge(2), Le(1_000_000)] = 50  # of both splits together
    letters: Annotated[int, Ge(2), Le(_MOST_LETTERS)] = 8  # of the alphabet
    styles: Count = 2  # tables of transitions
    own: Share = 0.5  # share of a style's table that is its own. 0: all users write alike
    concentration: PositiveFactor = 0.1  # of the Dirichlet distribution. Smaller makes letters easier to predict

    def load(self) -> Dataset:
        """Return the data set, which follows from the keys. Raises ConfigError if it does not fit into memory."""
        characters = self.samples_per_user * self.length + 1
        check_memory("data.samples_per_user", 48.0 * characters * self.users, f"{self.users} texts of {characters}")
        tables = self.transitions()[np.arange(self.users) % self.styles]
        draws = np.stack([self._key(_WRITING, user).numpy().random(characters) for user in range(self.users)])
        starts = np.stack([stationary(table) for table in tables])
        letters = np.empty((self.users, characters), dtype=np.int64)
        letters[:, 0] = _drawn(starts, draws[:, 0])
        users = np.arange(self.users)
        for place in range(1, characters):
            letters[:, place] = _drawn(tables[users, letters[:, place - 1]], draws[:, place])
        digits = len(str(self.users - 1))  # so that the alphabetical order of names is the order of numbers
        rows = {f"{user:0{digits}d}": packed([own], self.length) for user, own in enumerate(letters)}
        train, test, of_train, of_test = last_for_the_test(rows, self.test_share)
        numbered = Numbered(train, test, self.letters, 0)  # no row has padding
        return next_token_dataset("markov_text", numbered, {"user": (of_train, of_test)})

    def transitions(self) -> Arr:
        """Return the probability of each letter after each letter, shape (styles, letter before, letter after)."""
        shape = np.full(self.letters, self.concentration)
        common = self._key(_COMMON).numpy().dirichlet(shape, self.letters)
        own = [self._key(_STYLES, style).numpy().dirichlet(shape, self.letters) for style in range(self.styles)]
        mixed = (1 - self.own) * common + self.own * np.stack(own)
        found: Arr = mixed / mixed.sum(2, keepdims=True)
        return found

    def floor_of(self, user: int) -> float:
        """Return the least expected perplexity on a user's text, which a model that knows the style's table reaches.

        It is exp(-sum_i pi_i sum_j P_ij ln P_ij), with the stationary distribution pi of the table P.
        """
        table = self.transitions()[user % self.styles]
        entropies: Arr = -(table * np.log(np.where(table > 0, table, 1.0))).sum(1)  # of each row, in nats
        return math.exp(float(stationary(table) @ entropies))

    def _key(self, *stream: int) -> Key:
        return Key(self.seed).at(Purpose.DATA, *stream)


def stationary(table: Arr) -> Arr:
    """Return the distribution pi with pi P = pi of a table of transitions P, (letters,)."""
    letters = len(table)
    equations = np.vstack([table.T - np.eye(letters), np.ones(letters)])
    solved: Arr = np.linalg.lstsq(equations, np.append(np.zeros(letters), 1.0), rcond=None)[0].clip(min=0)
    return solved / solved.sum()


def _drawn(shares: Arr, draws: Arr) -> np.ndarray:
    """Return the letter that a uniform number draws from each row of shares."""
    found: np.ndarray = (shares.cumsum(1) <= draws[:, None]).sum(1)
    return found.clip(max=shares.shape[1] - 1)


PLUGINS = {"text": TextFiles, "markov_text": MarkovText}
