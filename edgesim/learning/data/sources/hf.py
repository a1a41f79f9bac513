"""Data sets of Hugging Face on disk, read with pyarrow."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Lt

from edgesim.config.toml_file import ScenarioPath
from edgesim.core.arrays import Ids
from edgesim.core.errors import ConfigError, DataError
from edgesim.core.limits import Count
from edgesim.core.rng import Key, Purpose
from edgesim.files.reading import in_short, quoted
from edgesim.learning.data.held_out import codes_of, held_out
from edgesim.learning.data.hf_columns import HfColumns, choose_columns, features_of, labels_of, values_of
from edgesim.learning.data.hf_folder import SplitFiles, splits_in
from edgesim.learning.data.source import Raw, Source, check_labels
from edgesim.learning.data.sources.published import download_into
from edgesim.learning.data.tables import standardised

_TESTS = ("test", "validation")  # splits for the test, the first that there is


@dataclass(frozen=True, kw_only=True)
class HuggingFace(Source):
    """A Hugging Face data set on disk: what `save_to_disk` writes, or a folder of parquet files as the hub has them.

    Features are one column of images, one column of lists of numbers, or several columns of one number each. Labels are
    integers from 0, or texts, which count in ascending order. Columns of texts or integers that both splits have and
    that are neither features nor labels serve the partition `by_column`.

    Splits are named by folders and files, such as data/train-00000-of-00002.parquet. A data set without a split for the
    test gives a share `test_share` of each class to it. Nothing is downloaded unless `download` is true. Then the
    parquet files of `repository` go to `path`, if this folder is missing or empty.
    """

    name = "hf"

    path: ScenarioPath  # the folder
    subset: str | None = None  # subfolder of the hub's layout, called a configuration there. None: there is only one
    train: str = "train"  # split for training
    test: str | None = None  # split for the test. None: test or validation, the first that there is
    features: str | tuple[str, ...] = ()  # columns. None given: the images, the lists, or all floating-point numbers
    label: str | None = None  # column. None: the only ClassLabel, or label, labels or fine_label
    resize: Count | tuple[Count, Count] | None = None  # of images: side of a square, or [height, width]
    grey: bool = True  # grey images have one channel. False: three, as needed where only some images are grey
    standardise: bool = False  # numbers have mean 0 and deviation 1 over the training samples
    test_share: Annotated[float, Gt(0), Lt(1)] = 0.2  # of each class, if there is no split for the test
    split_seed: Annotated[int, Ge(0)] = 1  # of this share alone: runs with different seeds of their own share it
    repository: str | None = None  # on the hub, such as "uoft-cs/cifar10"
    revision: str | None = None  # of the repository: a branch, tag or commit. None: its main branch
    download: bool = False  # download the repository; needs edgesim[hf]

    def __post_init__(self) -> None:
        """Raise ConfigError if there is nothing to download."""
        if self.download and self.repository is None:
            raise ConfigError("data.repository: data.download = true needs a repository, such as 'ylecun/mnist'")

    @property
    def origin(self) -> str:
        """The folder."""
        return str(self.path)

    def files(self) -> list[Path] | None:
        """Return the files of both splits."""
        return [file for split in self._splits() for file in split.files]

    def read(self) -> Raw:
        """Return the arrays of both splits. Images beyond a limit are not decoded."""
        splits = self._splits()
        columns = self._columns(splits)
        if self.standardise and columns.kind == "image":
            raise ConfigError("data.standardise: is for numbers; images have data.normalise")
        if self.resize is not None and columns.kind != "image":
            raise ConfigError(f"data.resize: is for images, the features of {self.path} are numbers")
        labels, classes = labels_of(splits, columns)
        for each in labels:
            check_labels(self.origin, each)
        limits, rows = [self.train_limit, self.test_limit], self._held_out(splits, labels)
        arrays = [
            features_of(
                splits[side if rows is None else 0], columns,
                None if rows is None else rows[side][: limits[side]], limits[side] if rows is None else None,
                self.grey, self.resize,
            )
            for side in range(2)
        ]  # fmt: skip
        if rows is not None:
            labels = [labels[0][each] for each in rows]
        if self.standardise:
            arrays = [standardised(each, arrays[0]) for each in arrays]
        return Raw(arrays[0], labels[0], arrays[1], labels[1], classes)

    def columns(self) -> Mapping[str, tuple[np.ndarray, np.ndarray]]:
        """Return the other columns, each of which is read when it is asked for."""
        return HfProperties(self)

    @cached_property
    def other_columns(self) -> tuple[str, ...]:
        """Names of the columns for partitions."""
        splits = self._splits()
        common = set.intersection(*({*split.schema().names} for split in splits))
        return tuple(name for name in self._columns(splits).others if name in common)

    def values(self, column: str) -> tuple[np.ndarray, np.ndarray]:
        """Return a column of all samples that are used, in their order."""
        splits = self._splits()
        held = [values_of(split, column) for split in splits]
        rows = self._held_out(splits, labels_of(splits, self._columns(splits))[0] if len(splits) == 1 else [])
        if rows is not None:
            held = [held[0][each] for each in rows]
        train, test = held[0][: self.train_limit], held[1][: self.test_limit]
        return (train, test) if train.dtype.kind == test.dtype.kind else (train.astype(str), test.astype(str))

    def _columns(self, splits: list[SplitFiles]) -> HfColumns:
        given = (self.features,) if isinstance(self.features, str) else self.features
        return choose_columns(splits[0], given, self.label)

    def _held_out(self, splits: list[SplitFiles], labels: list[Ids]) -> tuple[Ids, Ids] | None:
        """Return the rows of both sides in the only split; None if there are two."""
        return (
            None
            if len(splits) > 1
            else held_out(codes_of(labels[0]), self.test_share, Key(self.split_seed).at(Purpose.DATA))
        )

    def _splits(self) -> list[SplitFiles]:
        """Return the splits for training and for the test, or the only one."""
        found = self._found()
        wanted = self.test or next((name for name in _TESTS if name in found and name != self.train), None)
        for key, name in (("train", self.train), ("test", wanted)):
            if name is not None and name not in found:
                raise ConfigError(
                    f"data.{key}: {self.path} has no split {quoted(name)} (it has {in_short(', '.join(found))})"
                )
        return [found[self.train], *([] if wanted is None else [found[wanted]])]

    def _found(self) -> dict[str, SplitFiles]:
        folder = self.path.expanduser()
        try:
            missing = not folder.exists()
            if self.download and (missing or (folder.is_dir() and not any(folder.iterdir()))):
                download_into(self._fetch, folder)
        except OSError as error:
            raise DataError(f"data.download: cannot write {folder}: {in_short(error)}") from error
        if missing and not self.download:
            ask = "data.repository and data.download = true fetch one from the hub"
            raise DataError(f"data.path: {folder} is no folder; {ask}")
        return splits_in(folder, self.subset)

    def _fetch(self, folder: Path) -> None:
        """Download the parquet files of the repository into a folder."""
        try:
            from huggingface_hub import snapshot_download
        except ImportError as error:
            raise ConfigError('data.download: huggingface_hub is not installed; pip install "edgesim[hf]"') from error
        try:
            snapshot_download(
                self.repository, repo_type="dataset", revision=self.revision, local_dir=os.fspath(folder),
                allow_patterns="*.parquet",
            )  # fmt: skip
        except Exception as error:  # the library raises errors of several other libraries
            raise DataError(
                f"data.download: cannot download {self.repository} ({in_short(error)}); put its parquet files, or what "
                f"save_to_disk of datasets writes, into {self.path}"
            ) from error


class HfProperties(Mapping[str, tuple[np.ndarray, np.ndarray]]):
    """Columns of a data set for partitions, read when they are asked for, because texts take much memory."""

    def __init__(self, source: HuggingFace) -> None:
        self._source = source

    def __getitem__(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        if name not in self._source.other_columns:
            raise KeyError(name)
        return self._source.values(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._source.other_columns)

    def __len__(self) -> int:
        return len(self._source.other_columns)


PLUGINS = {"hf": HuggingFace}
