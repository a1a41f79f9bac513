"""A data set: features and labels, gathered by row. Torch is loaded with the first tensor."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from edgesim.core.arrays import Ids
from edgesim.core.metrics import LabelKind
from edgesim.files.user_cache import array_digest, mapped
from edgesim.learning.data.augment import Augment
from edgesim.learning.data.normalise import FeatureScaling

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_GATHERED_BYTES = 2**21  # features gathered at once: fewer calls, and the result still fits a CPU's cache

Side = Literal["train", "test"]
Array: TypeAlias = "np.ndarray | Tensor"


class Numbers:
    """An array that processes may share: in memory, or mapped from a kept file and then pickled as the file's path."""

    def __init__(self, content: Array, file: Path | None = None, digest: str | None = None) -> None:
        """`file`: the file from which the content is mapped. `digest`: its `array_digest`, if known."""
        self._content = content
        self._file = file
        self._digest = digest

    @staticmethod
    def mapped(file: Path, digest: str) -> Numbers:
        """Return the array of a kept file. Raises DataError if it cannot be read."""
        return Numbers(mapped(file), file, digest)

    @property
    def array(self) -> np.ndarray:
        """The numbers, for NumPy."""
        content = self._content
        return content if isinstance(content, np.ndarray) else content.numpy()

    @cached_property
    def tensor(self) -> Tensor:
        """The same memory, for torch."""
        import torch

        return torch.from_numpy(self._content) if isinstance(self._content, np.ndarray) else self._content

    @property
    def digest(self) -> str:
        """The `array_digest` of the numbers, computed once."""
        if self._digest is None:
            self._digest = array_digest(self.array)
        return self._digest

    def to(self, device: torch.device) -> Numbers:
        """Return the numbers on a device of torch."""
        return Numbers(self.tensor.to(device), digest=self.digest)

    def __reduce__(self) -> tuple[object, ...]:
        """Return the call that restores the array in another process of this machine."""
        if self._file is not None:
            return Numbers.mapped, (self._file, self._digest)
        return Numbers, (self._content,)


class Dataset:
    """Train and test samples in memory: pixels as bytes, tokens as int64, other features as normalised float32.

    Images are stored as (n, h, w, c), so that a row is one block of memory, and vectors as (n, features).
    `input_shape`: (channels, height, width), (features,) or (positions,). `vocabulary`: number of different tokens, if
    the inputs are tokens, otherwise None. `digest` identifies a data set.
    """

    def __init__(
        self,
        name: str,
        x_train: Array | Numbers,
        y_train: Array | Numbers,
        x_test: Array | Numbers,
        y_test: Array | Numbers,
        classes: int,
        input_shape: tuple[int, ...],
        augment: Augment | None = None,
        train_rows: Array | None = None,
        scaling: FeatureScaling | None = None,
        kind: LabelKind = "classes",
        columns: Mapping[str, tuple[np.ndarray, np.ndarray]] | None = None,
        vocabulary: int | None = None,
    ) -> None:
        """`x_*`: contiguous float32, or bytes that `scaling` turns into float32. `y_*`: int64 (n,) in [0, classes).

        With a `vocabulary` `x_*` are int64 (n, positions) in [0, vocabulary). `kind`: kind of labels. "numbers" and
        "flags" (0 or 1) are float32 (n, classes), where `classes` is the number of labels of a sample. "tokens" are
        int64 (n, positions) in [0, classes), or `IGNORED` at positions that do not count. `columns`: further properties
        of training and of test samples by name, such as their user, for partitions.

        `train_rows`: the row of `x_train` for each training sample, int64 (len(y_train),), if images count several
        times without copies in memory. None: every sample has its own row.
        """
        self.name = name
        self.classes = classes
        self.input_shape = input_shape
        self.augment = augment
        self.kind = kind
        self.columns = columns or {}
        self.vocabulary = vocabulary
        self._scaling = scaling
        self._x = {"train": _numbers(x_train), "test": _numbers(x_test)}
        self._y = {"train": _numbers(y_train), "test": _numbers(y_test)}
        self._rows = None if train_rows is None else _numbers(train_rows)

    def labels(self, split: Side) -> Ids:
        """Return the class of each sample of a split, int64, shape (n,), or 0 for all if labels are not classes."""
        held = self._y[split].array
        return held if self.kind == "classes" else np.zeros(len(held), dtype=np.int64)

    def labels_at(self, split: Side, indices: Tensor) -> Tensor:
        """Return the labels of these rows of a split, of any kind."""
        held = self._y[split].tensor
        return held.index_select(0, indices.to(held.device, non_blocking=True))

    def batch(self, split: Side, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return features and labels of these rows of a split, in their order, features as normalised float32.

        Tokens stay int64. Images come as (n, c, h, w) in channels_last memory, vectors as (n, features).
        """
        indices = indices.to(self._y[split].tensor.device, non_blocking=True)
        places = indices if split == "test" or self._rows is None else self._rows.tensor.index_select(0, indices)
        x = self._normalised(split, places)
        return (x.permute(0, 3, 1, 2) if x.ndim == 4 else x), self.labels_at(split, indices)

    def batches(
        self, split: Side, rows: Iterable[Tensor], among: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batch of each of these rows in turn, as `batch` returns it. A few batches are gathered at once.

        `among`: rows of the split. If it is given, `rows` are places in it.
        """
        import torch

        rows, most = iter(rows), _GATHERED_BYTES // (4 * math.prod(self.input_shape))
        for first in rows:
            some = [first, *islice(rows, max(most // max(len(first), 1), 1) - 1)]
            places = first if len(some) == 1 else torch.cat(some)
            x, y = self.batch(split, places if among is None else among.index_select(0, places))
            sizes = [len(each) for each in some]
            yield from zip(torch.split(x, sizes), torch.split(y, sizes), strict=True)

    @property
    def x_train(self) -> Tensor:
        """All training samples as normalised float32, in their own rows."""
        return self._normalised("train")

    @property
    def x_test(self) -> Tensor:
        """All test samples as normalised float32."""
        return self._normalised("test")

    @property
    def y_train(self) -> Tensor:
        """Labels of the training samples."""
        return self._y["train"].tensor

    @property
    def y_test(self) -> Tensor:
        """Labels of the test samples."""
        return self._y["test"].tensor

    @property
    def train_rows(self) -> Tensor | None:
        """The row of `x_train` for each training sample. None: every sample has its own row."""
        return None if self._rows is None else self._rows.tensor

    @property
    def nbytes(self) -> int:
        """Size of all arrays in bytes."""
        return sum(each.array.nbytes for each in self._all())

    @cached_property
    def digest(self) -> str:
        """SHA-256 of everything that decides batches, in hex: the arrays and their scaling."""
        scaling = [] if self._scaling is None else [array_digest(numbers) for numbers in self._scaling]
        return hashlib.sha256(" ".join([*(each.digest for each in self._all()), *scaling]).encode()).hexdigest()

    def to(self, device: torch.device) -> Dataset:
        """Return the data set with its arrays on a device, or itself if they are already there."""
        if self._y["train"].tensor.device == device:
            return self
        moved = copy(self)
        moved._x = {side: each.to(device) for side, each in self._x.items()}
        moved._y = {side: each.to(device) for side, each in self._y.items()}
        moved._rows = None if self._rows is None else self._rows.to(device)
        moved.__dict__.pop("_row_scaling", None)
        return moved

    def _all(self) -> list[Numbers]:
        return [*self._x.values(), *self._y.values(), *([] if self._rows is None else [self._rows])]

    def _normalised(self, split: Side, places: Tensor | None = None) -> Tensor:
        """Return the samples at these places, or all if None, as (n, h, w, c) or (n, features)."""
        held = self._x[split].tensor
        flat = held.reshape(len(held), -1)  # copying whole rows is far faster than copying number by number
        rows = flat if places is None else flat.index_select(0, places)
        if self._scaling is not None:
            shift, scale = self._row_scaling
            rows = rows.float()
            rows = (rows if shift is None else rows.sub_(shift)).div_(scale)
        return rows.view(-1, *held.shape[1:])

    @cached_property
    def _row_scaling(self) -> tuple[Tensor | None, Tensor]:
        """Shift and scale of each number of a sample, shape (numbers of a sample,). None: the shift is 0."""
        import torch

        assert self._scaling is not None
        sample = self._x["train"].tensor.shape[1:]
        shift, scale = (torch.from_numpy(np.broadcast_to(each, sample).flatten()) for each in self._scaling)
        place = self._x["train"].tensor.device
        return shift.to(place) if shift.any() else None, scale.to(place)


def _numbers(content: Array | Numbers) -> Numbers:
    return content if isinstance(content, Numbers) else Numbers(content)


class DataPart(ABC):
    """A data set as a scenario names it: a frozen dataclass."""

    @abstractmethod
    def load(self) -> Dataset:
        """Return the data set. Raises DataError if files are missing or damaged, ConfigError if keys do not fit."""
