"""A user's own data, in one of the usual file formats."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
from annotated_types import Ge, Gt, Lt

from edgesim.config.toml_file import ScenarioPath
from edgesim.core.arrays import Ids
from edgesim.core.errors import ConfigError, DataError
from edgesim.core.limits import Count
from edgesim.core.rng import Key, Purpose
from edgesim.files.reading import in_short
from edgesim.learning.data.file_formats import (
    IMAGE_COLUMNS,
    LABEL_COLUMNS,
    checked_size,
    decode,
    idx_files,
    parquet_files,
    read_idx_set,
    read_npz,
    read_parquet,
    stack,
)
from edgesim.learning.data.held_out import held_out
from edgesim.learning.data.source import Raw, Source

if TYPE_CHECKING:
    from torchvision.datasets import ImageFolder

_PREFIXES = ("train", "t10k")


@dataclass(frozen=True, kw_only=True)
class Idx(Source):
    """Four idx files in a folder, named like the files of MNIST: train-images-idx3-ubyte and so on, gzipped or not."""

    name = "idx"

    root: ScenarioPath  # the folder

    @property
    def origin(self) -> str:
        """The folder."""
        return str(self.root)

    def files(self) -> list[Path] | None:
        """Return the four files."""
        return idx_files(self.root.expanduser(), _PREFIXES)

    def read(self) -> Raw:
        """Return the arrays of the four files."""
        folder = self.root.expanduser()
        arrays = read_idx_set(folder, _PREFIXES)
        if arrays is None:
            raise DataError(
                f"data.root: {folder} needs train-images, train-labels, t10k-images and t10k-labels idx files"
            )
        return Raw(*arrays)


@dataclass(frozen=True, kw_only=True)
class Parquet(Source):
    """Parquet files with a column of encoded images and a column of integer labels.

    Either `root`, a folder with train*.parquet and test*.parquet, or the two files `train` and `test`.
    """

    name = "parquet"

    root: ScenarioPath | None = None
    train: ScenarioPath | None = None
    test: ScenarioPath | None = None
    image: str | None = None  # column name; None: img or image
    label: str | None = None  # column name; None: label, labels or fine_label

    def __post_init__(self) -> None:
        """Raise ConfigError unless exactly one way to name the files is used."""
        if (self.root is None) == (self.train is None) or (self.train is None) != (self.test is None):
            raise ConfigError("data.root: parquet needs either root (a folder) or both train and test (files)")

    @property
    def origin(self) -> str:
        """The folder, or the file of training samples."""
        return str(self.root or self.train)

    def files(self) -> list[Path] | None:
        """Return the files of both splits."""
        return [*self._files("train", self.train), *self._files("test", self.test)]

    def read(self) -> Raw:
        """Return the arrays of both splits."""
        images = IMAGE_COLUMNS if self.image is None else (self.image,)
        labels = LABEL_COLUMNS if self.label is None else (self.label,)
        train = read_parquet(self._files("train", self.train), images, labels, self.train_limit)
        test = read_parquet(self._files("test", self.test), images, labels, self.test_limit)
        return Raw(*train, *test)

    def _files(self, split: str, file: Path | None) -> list[Path]:
        if file is not None:
            return [file.expanduser()]
        assert self.root is not None  # by __post_init__
        folder = self.root.expanduser()
        files = parquet_files(folder, split)
        if not files:
            raise DataError(f"data.root: {folder} has no {split}*.parquet")
        return files


@dataclass(frozen=True, kw_only=True)
class Npz(Source):
    """One NumPy archive with x_train, y_train, x_test and y_test. Bytes are pixels. Other types are kept."""

    name = "npz"

    file: ScenarioPath  # the archive

    @property
    def origin(self) -> str:
        """The file."""
        return str(self.file)

    def files(self) -> list[Path] | None:
        """Return the archive."""
        return [self.file.expanduser()]

    def read(self) -> Raw:
        """Return the four arrays."""
        x_train, y_train, x_test, y_test = read_npz(self.file.expanduser(), Raw._fields[:4])
        return Raw(x_train, y_train, x_test, y_test)


@dataclass(frozen=True, kw_only=True)
class Folder(Source):
    """Image files in root/train/<class>/ and root/test/<class>/, read as red, green, blue.

    With `test_share` the files are in root/<class>/, and this share of each class, rounded, becomes the test split.
    Both splits are then in random order. With `replicate` every training image counts several times. It has one number
    for each class, in the order of the folders' names. Limits count images before they are repeated.
    """

    name = "image_folder"

    root: ScenarioPath  # the folder
    resize: Count | tuple[Count, Count] | None = None  # side of a square, or [height, width]
    test_share: Annotated[float, Gt(0), Lt(1)] | None = None
    seed: Annotated[int, Ge(0)] = 1  # of the split alone: runs with different seeds of their own share the split
    replicate: tuple[Count, ...] | None = None

    @property
    def origin(self) -> str:
        """The folder."""
        return str(self.root)

    def files(self) -> list[Path] | None:
        """Return all files below the folder. Links to other folders are followed, as in `ImageFolder`."""
        below = os.walk(self.root.expanduser(), followlinks=True)
        return sorted(Path(folder, name) for folder, _, names in below for name in names)

    def read(self) -> Raw:
        """Return all images in the order of their class and file names, or in the order of the split."""
        if self.test_share is not None:
            listed = self._listed()
            if {"train", "test"} <= set(listed.classes):
                raise ConfigError(f"data.test_share: {self.root} has its own train and test folders; leave it out")
            labels = np.array(listed.targets)
            rows, test_rows = held_out(labels, self.test_share, Key(self.seed).at(Purpose.DATA))
            x_train = self._pixels(listed, rows[: self.train_limit])
            x_test = self._pixels(listed, test_rows[: self.test_limit])
            return Raw(x_train, labels[rows], x_test, labels[test_rows], len(listed.classes), self.replicate)
        train, test = self._listed("train"), self._listed("test")
        if train.classes != test.classes:
            raise DataError(f"data.root: {self.root} has training classes {train.classes}, test classes {test.classes}")
        y_train, y_test = np.array(train.targets), np.array(test.targets)
        x_train = self._pixels(train, np.arange(len(y_train))[: self.train_limit])
        x_test = self._pixels(test, np.arange(len(y_test))[: self.test_limit])
        return Raw(x_train, y_train, x_test, y_test, len(train.classes), self.replicate)

    def _listed(self, split: str = "") -> ImageFolder:
        """Return the classes and files of a folder below the root, or of the root itself."""
        try:
            from torchvision.datasets import ImageFolder  # takes 150 MB, which most runs do not need

            return ImageFolder(str(self.root.expanduser() / split))
        except OSError as error:
            wanted = f"{split}/<class>/<image files>".lstrip("/")
            raise DataError(f"data.root: {self.root} needs {wanted}: {in_short(error)}") from error

    def _pixels(self, listed: ImageFolder, rows: Ids) -> np.ndarray:
        size = checked_size(self.resize, len(rows))
        files = [listed.samples[row][0] for row in rows.tolist()]
        images = (decode(Path(file), file, grey=False, size=size) for file in files)
        return stack(images, len(files), f"{listed.root} (data.resize can make all equal)")


PLUGINS = {"idx": Idx, "parquet": Parquet, "npz": Npz, "image_folder": Folder}
