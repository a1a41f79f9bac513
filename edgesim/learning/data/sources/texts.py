"""Text for the next character: a user's own files, and a made-up one whose best perplexity is known."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Le, Lt

from edgesim.config.toml_file import ScenarioPath
from edgesim.core.arrays import Arr
from edgesim.core.errors import ConfigError, DataError
from edgesim.core.limits import Count, PositiveFactor, Share, check_memory
from edgesim.core.rng import Key, Purpose
from edgesim.files.reading import in_short, quoted, read_text
from edgesim.files.tables import read_frame
from edgesim.learning.data.dataset import Dataset
from edgesim.learning.data.texts import Texts, long_enough

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_COMMON, _STYLES, _WRITING = range(3)  # streams


@dataclass(frozen=True, kw_only=True)
class TextSource:
    """Keys common to all texts. Samples of a user follow one another; the last ones are for the test.

    Source of that split: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data"
    (AISTATS 2017), who keep the last fifth of each role's lines for the test, at least one. Here it is of samples.
    """

    length: Count = 80  # characters of a sample; 80 as in McMahan et al.
    test_share: Annotated[float, Gt(0), Lt(1)] = 0.2  # of each user's samples, the last, at least one


@dataclass(frozen=True, kw_only=True)
class TextFiles(TextSource):
    """Texts in UTF-8: a folder with a file NAME.txt for each user, or one file with all of them.

    One file is a CSV file with a line a piece of text, if its name ends in .csv; else a text in which, where `marker`
    is set, a line that ends with it names who wrote the lines after it, as in plays. Pieces of a user are put together
    in their order, a line break after each line. Characters that no training sample has are one token, the last.
    """

    path: ScenarioPath  # of the folder or of the file
    marker: str | None = None  # end of the lines that name a user, such as ":"; unset: the file has one user
    user: str = "user"  # column of a CSV file that names who wrote a piece
    text: str = "text"  # column of a CSV file that has the piece
    users: Count | None = None  # only that many, those with the longest texts; unset: all
    skip_short: bool = False  # leave out users without two samples; else they are an error

    def load(self) -> Dataset:
        """Return the data set. Raises DataError or ConfigError if files and keys do not fit."""
        path, origin = self.path.expanduser(), str(self.path)
        by_user = dict(sorted(self._by_user(path).items()))
        if self.skip_short or self.users is not None:
            by_user = long_enough(origin, by_user, self.length, self.users)
        texts = Texts(origin, by_user, self.length, self.test_share)
        return texts.dataset(path.stem, texts.vocabulary(), unknown=True)

    def _by_user(self, path: Path) -> dict[str, str]:
        if path.is_dir():
            files = sorted(path.glob("*.txt"))
            if not files:
                raise DataError(f"{path}: has no file that ends in .txt")
            return {file.stem: read_text(file) for file in files}
        if path.suffix == ".csv":
            return self._of_rows(path)
        text = read_text(path)
        return {path.stem: text} if self.marker is None else self._of_lines(path, text, self.marker)

    def _of_lines(self, path: Path, text: str, marker: str) -> dict[str, str]:
        """Return what follows the lines that end with the marker. Lines before the first of them are nobody's."""
        if not marker.strip():
            raise ConfigError(f"data.marker: must have a character that is seen, found {quoted(marker)}")
        found: dict[str, list[str]] = {}
        mine: list[str] | None = None
        for line in text.splitlines():
            name = line.rstrip().removesuffix(marker).strip()
            if line.rstrip().endswith(marker) and name:
                mine = found.setdefault(name, [])
            elif mine is not None:
                mine.append(line + "\n")
        if not found:
            raise DataError(f"{path}: no line ends with data.marker, {quoted(marker)}")
        return {user: "".join(lines) for user, lines in found.items()}

    def _of_rows(self, path: Path) -> dict[str, str]:
        frame = read_frame(path)
        for column in (self.user, self.text):
            if column not in frame:
                known = in_short(", ".join(map(str, frame.columns[:20])))
                raise ConfigError(f"data: {path} has no column {quoted(column)} (it has {known})")
            if (missing := frame[column].isna().to_numpy()).any():
                raise DataError(f"{path}: column {quoted(column)} is empty in row {int(missing.argmax()) + 1}")
        if frame.empty:
            raise DataError(f"{path}: has no rows")
        pieces = frame[self.text].astype(str) + "\n"
        return {str(user): "".join(own) for user, own in pieces.groupby(frame[self.user].astype(str))}


@dataclass(frozen=True, kw_only=True)
class MarkovText(TextSource):
    """Made-up text: which letter follows depends on the letter before it, by a table of the user's style.

    The table of a style is (1 - own) C + own S, of a common table C and one of its own S; rows of both are drawn from
    a symmetric Dirichlet distribution. User u has style u modulo `styles`; its text starts from the style's stationary
    distribution, so that every letter of it has the same. No network has a smaller perplexity, in expectation, than
    the exponential of the entropy rate: `floor_of` has it in closed form.

    Source: Shannon, "A Mathematical Theory of Communication" (1948), section 7, for the entropy of such a source. The
    sizes are no paper's.
    """

    length: Count = 20  # characters of a sample
    seed: Annotated[int, Ge(0)] = 1  # of the data alone: runs that differ in their own seed share them
    users: Count = 10  # as many as the fleet has devices, with partition by_column
    samples_per_user: Annotated[int, Ge(2), Le(1_000_000)] = 50  # of both splits together
    letters: Annotated[int, Ge(2), Le(len(_LETTERS))] = 8  # of the alphabet
    styles: Count = 2  # tables of transitions
    own: Share = 0.5  # what of a style's table is its own; 0: all users write alike
    concentration: PositiveFactor = 0.1  # of the Dirichlet distribution; the smaller, the easier letters are foretold

    def load(self) -> Dataset:
        """Return the data set, which follows from the keys. Raises ConfigError if it does not fit into memory."""
        characters = self.samples_per_user * self.length + 1
        check_memory("data.samples_per_user", 48.0 * characters * self.users, f"{self.users} texts of {characters}")
        digits = len(str(self.users - 1))  # names in alphabetical order are in that of their numbers
        by_user = {f"{user:0{digits}d}": text for user, text in enumerate(self._written(characters))}
        return Texts("markov_text", by_user, self.length, self.test_share).dataset(
            "markov_text", _LETTERS[: self.letters], unknown=False
        )

    def transitions(self) -> Arr:
        """Return the probability of each letter after each, (styles, letter before, letter after)."""
        shape = np.full(self.letters, self.concentration)
        common = self._key(_COMMON).numpy().dirichlet(shape, self.letters)
        own = [self._key(_STYLES, style).numpy().dirichlet(shape, self.letters) for style in range(self.styles)]
        mixed = (1 - self.own) * common + self.own * np.stack(own)
        found: Arr = mixed / mixed.sum(2, keepdims=True)
        return found

    def floor_of(self, user: int) -> float:
        """Return the least perplexity that can be expected on a user's text, by who knows the table of its style.

        That is exp(-sum_i pi_i sum_j P_ij ln P_ij), with the stationary distribution pi of the table P.
        """
        table = self.transitions()[user % self.styles]
        return math.exp(float(stationary(table) @ _entropies(table)))

    def _written(self, characters: int) -> list[str]:
        """Return the text of each user; it depends on no other user."""
        tables = self.transitions()[np.arange(self.users) % self.styles]
        draws = np.stack([self._key(_WRITING, user).numpy().random(characters) for user in range(self.users)])
        starts = np.stack([stationary(table) for table in tables])
        letters = np.empty((self.users, characters), dtype=np.int64)
        letters[:, 0] = _drawn(starts, draws[:, 0])
        everybody = np.arange(self.users)
        for place in range(1, characters):
            letters[:, place] = _drawn(tables[everybody, letters[:, place - 1]], draws[:, place])
        alphabet = np.array(list(_LETTERS))
        return ["".join(row) for row in alphabet[letters]]

    def _key(self, *stream: int) -> Key:
        return Key(self.seed).at(Purpose.DATA, *stream)


def stationary(table: Arr) -> Arr:
    """Return the distribution pi with pi P = pi of a table of transitions P, (letters,)."""
    letters = len(table)
    equations = np.vstack([table.T - np.eye(letters), np.ones(letters)])
    solved: Arr = np.linalg.lstsq(equations, np.append(np.zeros(letters), 1.0), rcond=None)[0].clip(min=0)
    return solved / solved.sum()


def _entropies(table: Arr) -> Arr:
    """Return the entropy of each row in nats."""
    found: Arr = -(table * np.log(np.where(table > 0, table, 1.0))).sum(1)
    return found


def _drawn(shares: Arr, draws: Arr) -> np.ndarray:
    """Return for each row of shares the letter that a uniform number draws."""
    found: np.ndarray = (shares.cumsum(1) <= draws[:, None]).sum(1)
    return found.clip(max=shares.shape[1] - 1)


PLUGINS = {"text": TextFiles, "markov_text": MarkovText}
