"""Samples for the objective `next_token`: documents of users as packed or padded rows of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from edgesim.core.arrays import Ids
from edgesim.core.errors import ConfigError, DataError
from edgesim.core.metrics import IGNORED
from edgesim.files.reading import quoted
from edgesim.learning.data.dataset import Dataset
from edgesim.learning.data.tokenizers import PADDING, Numbered

BYTES_PER_TOKEN = 40  # characters, numbers, inputs and labels, with intermediate copies


def packed(documents: Sequence[Ids], length: int) -> Ids:
    """Return documents, one after another, as consecutive rows, int64 (rows, length + 1).

    The last token of a row is the first one of the next row: `length` inputs, and the token after each of them. A rest
    of at most `length` tokens is left out.
    """
    stream = np.concatenate([*documents, np.zeros(0, dtype=np.int64)])
    if len(stream) <= length:
        return np.zeros((0, length + 1), dtype=np.int64)
    return np.lib.stride_tricks.sliding_window_view(stream, length + 1)[::length]


def padded(documents: Sequence[Ids], length: int) -> Ids:
    """Return documents as rows of their own, int64 (rows, length + 1), filled up with `PADDING`.

    A document of more than `length` + 1 tokens has several rows, as in `packed`, but nothing is left out.
    """
    parts = [each[start : start + length + 1] for each in documents for start in range(0, len(each) - 1, length)]
    rows = np.full((len(parts), length + 1), PADDING, dtype=np.int64)
    for row, part in zip(rows, parts, strict=True):
        row[: len(part)] = part
    return rows


def with_two_rows(
    origin: str, rows: Mapping[str, Ids], sizes: Mapping[str, int], needed: str, users: int | None, skip_short: bool
) -> dict[str, Ids]:
    """Return the rows of users with at least two, limited to the `users` longest texts, in their order.

    `sizes`: length of each user's text. `needed`: what two rows need, for messages. Raises DataError if a user has
    fewer rows, or with `users` or `skip_short` if all have, and ConfigError if fewer than `users` have enough.
    """
    found = [user for user, own in rows.items() if len(own) >= 2]
    short = next((user for user in rows if len(rows[user]) < 2), None)
    if short is not None and not skip_short and users is None:
        has = f"{origin}: user {quoted(short)} has {sizes[short]}"
        raise DataError(f"{has} {needed}; data.skip_short = true leaves such users out")
    if not found:
        raise DataError(f"{origin}: no user has enough for two samples: the longest has {max(sizes.values())} {needed}")
    if users is not None and users > len(found):
        raise ConfigError(f"data.users: {origin} has {len(found)} users with two samples, found {users}")
    longest = set(sorted(found, key=lambda user: -sizes[user])[:users])
    return {user: rows[user] for user in found if user in longest}


def last_for_the_test(rows: Mapping[str, Ids], test_share: float) -> tuple[Ids, Ids, np.ndarray, np.ndarray]:
    """Return rows for training and for the test, and the user of each, user after user.

    The last rows of each user are for the test: a share `test_share` of them, rounded, and at least one.
    """
    ends = {user: len(own) - min(max(1, round(test_share * len(own))), len(own) - 1) for user, own in rows.items()}
    sides = [{user: own[: ends[user]] for user, own in rows.items()}, {user: rows[user][ends[user] :] for user in rows}]
    train, test = (np.concatenate(list(side.values())) for side in sides)
    of_train, of_test = (np.repeat(np.array(list(side)), [len(own) for own in side.values()]) for side in sides)
    return train, test, of_train, of_test


def next_token_dataset(
    name: str,
    numbered: Numbered,
    columns: Mapping[str, tuple[np.ndarray, np.ndarray]],
    counted: tuple[np.ndarray, np.ndarray] | None = None,
) -> Dataset:
    """Return the data set of rows of tokens. The label of a position is the token after it.

    `counted`: the tokens of both splits that count as labels, booleans of the shape of the rows; None: all but padding.
    """
    sides: list[Ids] = []
    for side, rows in enumerate(numbered[:2]):
        absent = rows == PADDING
        without = absent if counted is None else absent | ~counted[side]
        sides.append(np.ascontiguousarray(np.where(absent, numbered.pad, rows)[:, :-1]))
        sides.append(np.ascontiguousarray(np.where(without, IGNORED, rows)[:, 1:]))
    x_train, y_train, x_test, y_test = sides
    return Dataset(
        name, x_train, y_train, x_test, y_test, numbered.size, x_train.shape[1:],
        kind="tokens", columns=columns, vocabulary=numbered.size,
    )  # fmt: skip
