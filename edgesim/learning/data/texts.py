"""From what each user wrote to a data set for the objective `next_token`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edgesim.core.arrays import Ids
from edgesim.core.errors import ConfigError, DataError
from edgesim.files.reading import check_room, quoted
from edgesim.learning.data.dataset import Dataset

_BYTES_PER_TOKEN = 40  # as characters, numbers, inputs and labels, and copies of them on the way
_MOST_TOKENS = 10_000  # different characters: a network has a row of weights for each


class Texts:
    """The texts of users, by their names, cut into windows of `length` characters that follow one another.

    A sample is a window and, as labels, the character after each of its own. Of each user the last windows are for the
    test, a share `test_share` of them, rounded, at least one.
    """

    def __init__(self, origin: str, by_user: Mapping[str, str], length: int, test_share: float) -> None:
        """`origin`: what a message names. Raises DataError if a user has not two windows."""
        self._origin, self._by_user, self._length = origin, by_user, length
        check_room(_BYTES_PER_TOKEN * sum(map(len, by_user.values())), origin)
        self._counts = {user: self._divided(user, len(text), test_share) for user, text in by_user.items()}

    def vocabulary(self) -> str:
        """Return the different characters of the training samples, their labels included, in ascending order."""
        parts = (text[: self._counts[user][0] * self._length + 1] for user, text in self._by_user.items())
        found = "".join(sorted(set().union(*map(set, parts))))
        if len(found) > _MOST_TOKENS:
            raise DataError(f"{self._origin}: has {len(found)} different characters, allowed are {_MOST_TOKENS}")
        return found

    def dataset(self, name: str, vocabulary: str, unknown: bool) -> Dataset:
        """Return the data set: user after user, in each the windows in their order.

        A token is the place of a character in `vocabulary`; `unknown`: one more stands for all others. The column
        `user` says who wrote a sample.
        """
        tokens = len(vocabulary) + unknown
        windows = {user: self._windows(text, vocabulary) for user, text in self._by_user.items()}
        sides: list[tuple[np.ndarray, Ids, np.ndarray]] = []
        for side in (0, 1):
            own = [rows[: self._counts[user][0]] if side == 0 else rows[self._counts[user][0] :]
                   for user, rows in windows.items()]  # fmt: skip
            rows = np.concatenate(own)
            users = np.repeat(np.array(list(windows)), [len(each) for each in own])
            sides.append((rows[:, :-1].astype(np.float32), np.ascontiguousarray(rows[:, 1:]), users))
        (x_train, y_train, of_train), (x_test, y_test, of_test) = sides
        return Dataset(
            name, x_train, y_train, x_test, y_test, tokens, (self._length,),
            kind="tokens", columns={"user": (of_train, of_test)},
        )  # fmt: skip

    def _divided(self, user: str, characters: int, test_share: float) -> tuple[int, int]:
        """Return how many windows of a user are for training and for the test."""
        windows = (characters - 1) // self._length
        if windows < 2:
            raise DataError(
                f"{self._origin}: user {quoted(user)} has {characters} characters, needed are {2 * self._length + 1} "
                f"for two samples of {self._length}; data.skip_short = true leaves such users out"
            )
        tests = min(max(1, round(test_share * windows)), windows - 1)
        return windows - tests, tests

    def _windows(self, text: str, vocabulary: str) -> Ids:
        """Return the tokens of a user's windows, each with the one that follows it, int64 (windows, length + 1)."""
        known, codes = (np.array([ord(c) for c in each], dtype=np.int64) for each in (vocabulary, text))
        places = np.searchsorted(known, codes).clip(max=len(known) - 1)
        tokens = np.where(known[places] == codes, places, len(known))
        windows = np.lib.stride_tricks.sliding_window_view(tokens, self._length + 1)
        found: Ids = windows[:: self._length]
        return found


def long_enough(origin: str, by_user: Mapping[str, str], length: int, users: int | None) -> dict[str, str]:
    """Return the users who have two windows, and of them the `users` with the longest texts, in their order.

    Raises DataError if none has, ConfigError if fewer than `users` have.
    """
    found = [user for user, text in by_user.items() if len(text) > 2 * length]
    if not found:
        raise DataError(f"{origin}: no user has the {2 * length + 1} characters of two samples of {length}")
    if users is not None and users > len(found):
        raise ConfigError(f"data.users: {origin} has {len(found)} users with two samples of {length}, found {users}")
    longest = set(sorted(found, key=lambda user: -len(by_user[user]))[:users])
    return {user: by_user[user] for user in found if user in longest}
