"""A user's own data, in one of the usual file formats."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
from annotated_types import Ge

from edgesim.config.paths import ScenarioPath
from edgesim.errors import ConfigError, DataError
from edgesim.learning.data.idx import read_idx_set
from edgesim.learning.data.parquet import IMAGE_COLUMNS, LABEL_COLUMNS, parquet_files, read_parquet
from edgesim.learning.data.pixels import decode, stack
from edgesim.learning.data.source import Raw, Source

if TYPE_CHECKING:
    from torchvision.datasets import ImageFolder

Pixels = Annotated[int, Ge(1)]


@dataclass(frozen=True, kw_only=True)
class Idx(Source):
    """Four idx files in a folder, named as those of MNIST: train-images-idx3-ubyte and so on, gzipped or not."""

    name = "idx"

    root: ScenarioPath

    def read(self) -> Raw:
        """Return the arrays of the four files."""
        folder = self.root.expanduser()
        arrays = read_idx_set(folder, ("train", "t10k"))
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
    """One NumPy archive with x_train, y_train, x_test and y_test. Bytes are pixels; other types are kept."""

    name = "npz"

    file: ScenarioPath

    def read(self) -> Raw:
        """Return the four arrays."""
        path = self.file.expanduser()
        wanted = Raw._fields[:4]
        try:
            with np.load(path) as archive:
                missing = [key for key in wanted if key not in archive.files]
                if missing:
                    raise DataError(f"{path}: lacks {', '.join(missing)}; it has {', '.join(archive.files)}")
                return Raw(*(archive[key] for key in wanted))
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise DataError(f"{path}: not a readable .npz archive of plain arrays: {error}") from error


@dataclass(frozen=True, kw_only=True)
class Folder(Source):
    """Image files in root/train/<class>/ and root/test/<class>/, read as red, green, blue."""

    name = "image_folder"

    root: ScenarioPath
    resize: Pixels | tuple[Pixels, Pixels] | None = None  # side of a square, or [height, width]

    def read(self) -> Raw:
        """Return all images in the order of their class and file names."""
        train, test = self._split("train"), self._split("test")
        if train.classes != test.classes:
            raise DataError(f"data.root: {self.root} has training classes {train.classes}, test classes {test.classes}")
        x_train, x_test = self._pixels(train, self.train_limit), self._pixels(test, self.test_limit)
        return Raw(x_train, np.array(train.targets), x_test, np.array(test.targets), len(train.classes))

    def _split(self, split: str) -> ImageFolder:
        try:
            from torchvision.datasets import ImageFolder  # costs 150 MB, which most runs can do without

            return ImageFolder(str(self.root.expanduser() / split))
        except OSError as error:
            raise DataError(f"data.root: {self.root} needs {split}/<class>/<image files>: {error}") from error

    def _pixels(self, listed: ImageFolder, limit: int | None) -> np.ndarray:
        files = [file for file, _ in listed.samples[:limit]]
        size = (self.resize, self.resize) if isinstance(self.resize, int) else self.resize
        images = (decode(Path(file), file, grey=False, size=size) for file in files)
        return stack(images, len(files), f"{listed.root} (data.resize can make all equal)")


PARTS = {part.name: part for part in (Idx, Parquet, Npz, Folder)}
