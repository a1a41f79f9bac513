"""Data sets for the objective `next_token` from the texts of users."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edgesim.core.arrays import Ids
from edgesim.core.errors import ConfigError, DataError
from edgesim.files.reading import check_room, quoted
from edgesim.learning.data.dataset import Dataset

_BYTES_PER_TOKEN = 40  # characters, numbers, inputs and labels, with intermediate copies
_MOST_TOKENS = 10_000  # different characters: a network has a row of weights for each


class Texts:
    """The texts of users, by their names, cut into consecutive windows of `length` characters.

    A sample is a window. Its labels are the characters that follow each of its characters. The last windows of each
    user are for the test: a share `test_share` of them, rounded, and at least one.
    """

    def __init__(self, origin: str, by_user: Mapping[str, str], length: int, test_share: float) -> None:
        """`origin`: name in error messages. Raises DataError if a user has fewer than two windows."""
        self._origin, self._by_user, self._length = origin, by_user, length
        check_room(_BYTES_PER_TOKEN * sum(map(len, by_user.values())), origin)
        self._train: dict[str, int] = {}  # number of training windows of each user
        for user, text in by_user.items():
            windows = (len(text) - 1) // length
            if windows < 2:
                raise DataError(
                    f"{origin}: user {quoted(user)} has {len(text)} characters, needed are {2 * length + 1} "
                    f"for two samples of {length}; data.skip_short = true leaves such users out"
                )
            self._train[user] = windows - min(max(1, round(test_share * windows)), windows - 1)

    def vocabulary(self) -> str:
        """Return the different characters of the training samples, their labels included, in ascending order."""
        parts = (text[: self._train[user] * self._length + 1] for user, text in self._by_user.items())
        found = "".join(sorted(set().union(*map(set, parts))))
        if len(found) > _MOST_TOKENS:
            raise DataError(f"{self._origin}: has {len(found)} different characters, allowed are {_MOST_TOKENS}")
        return found

    def dataset(self, name: str, vocabulary: str, unknown: bool) -> Dataset:
        """Return the data set: user after user, with the windows of each user in order.

        A token is the place of a character in `vocabulary`. `unknown`: one more token stands for all other characters.
        The column `user` names the author of a sample.
        """
        tokens = len(vocabulary) + unknown
        known = np.array([ord(character) for character in vocabulary], dtype=np.int64)
        windows: dict[str, Ids] = {}  # tokens of each window and the one that follows, int64 (windows, length + 1)
        for user, text in self._by_user.items():
            codes = np.array([ord(character) for character in text], dtype=np.int64)
            places = np.searchsorted(known, codes).clip(max=len(known) - 1)
            numbers = np.where(known[places] == codes, places, len(known))
            windows[user] = np.lib.stride_tricks.sliding_window_view(numbers, self._length + 1)[:: self._length]
        sides: list[tuple[np.ndarray, Ids, np.ndarray]] = []
        for test in (False, True):
            split = ((each, self._train[user]) for user, each in windows.items())
            own = [each[ends:] if test else each[:ends] for each, ends in split]
            rows = np.concatenate(own)
            users = np.repeat(np.array(list(windows)), [len(each) for each in own])
            sides.append((rows[:, :-1].astype(np.float32), np.ascontiguousarray(rows[:, 1:]), users))
        (x_train, y_train, of_train), (x_test, y_test, of_test) = sides
        return Dataset(
            name, x_train, y_train, x_test, y_test, tokens, (self._length,),
            kind="tokens", columns={"user": (of_train, of_test)},
        )  # fmt: skip


def long_enough(origin: str, by_user: Mapping[str, str], length: int, users: int | None) -> dict[str, str]:
    """Return the users with at least two windows, limited to the `users` longest texts, in their order.

    Raises DataError if no user has two windows, and ConfigError if fewer than `users` have.
    """
    found = [user for user, text in by_user.items() if len(text) > 2 * length]
    if not found:
        raise DataError(f"{origin}: no user has the {2 * length + 1} characters of two samples of {length}")
    if users is not None and users > len(found):
        raise ConfigError(f"data.users: {origin} has {len(found)} users with two samples of {length}, found {users}")
    longest = set(sorted(found, key=lambda user: -len(by_user[user]))[:users])
    return {user: by_user[user] for user in found if user in longest}
