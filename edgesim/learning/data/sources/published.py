"""Published image data sets by name, found in a data folder or downloaded through torchvision."""

from __future__ import annotations

import os
import shutil
import tempfile
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from edgesim.config.toml_file import ScenarioPath
from edgesim.core.errors import DataError
from edgesim.files.reading import in_short, reading
from edgesim.files.user_cache import cache_folder
from edgesim.learning.data.file_formats import idx_files, parquet_files, read_idx_set, read_parquet
from edgesim.learning.data.normalise import Moments, Preset
from edgesim.learning.data.source import VARIABLE, Raw, Source, check_labels, places, search_path


@dataclass(frozen=True, kw_only=True)
class Published(Source):
    """A data set known by its name.

    Below each folder of the search path it may lie in the layout of torchvision, as raw files, or as parquet files
    train-*.parquet and test-*.parquet in a folder of its name.
    """

    reader: ClassVar[str]  # name of torchvision's class
    folders: ClassVar[tuple[str, ...]]  # names below a folder of the search path
    known_classes: ClassVar[int]
    package: ClassVar[str] = ""  # Debian's, which puts the files on the search path

    root: ScenarioPath | None = None  # looked in first
    download: bool = False  # to root, or else the user's cache folder, if it is found nowhere

    @abstractmethod
    def own_files(self, folder: Path) -> list[Path] | None:
        """Return the files of this set in the layout it was published in, if the folder holds them."""

    @abstractmethod
    def own_layout(self, folder: Path) -> Raw | None:
        """Return the arrays of these files, None if the folder does not hold them."""

    def fetch(self, folder: Path) -> None:
        """Download both splits into a folder."""
        for train in (True, False):
            _torchvision(self.reader)(str(folder), train=train, download=True)

    def files(self) -> list[Path] | None:
        """Return the files of the first place that has them; None if none has."""
        for folder in places(self.root, self.folders):
            own, parquet = self.own_files(folder), _parquet_of(folder)
            if own is not None or parquet:
                return own if own is not None else [file for split in parquet for file in split]
        return None

    def read(self) -> Raw:
        """Return the arrays, from the first place that has them."""
        raw = self._found()
        if raw is None and self.download:
            self._download()
            raw = self._found()
        if raw is None:
            install = f", or install the Debian package {self.package}" if self.package else ""
            raise DataError(
                f"data.name: {self.name} not found as {' or '.join(self.folders)} below "
                f"{', '.join(map(str, search_path(self.root)))}; put its files there, or let {VARIABLE} or data.root "
                f"name the folder that has them, or set data.download = true{install}"
            )
        return raw

    def _found(self) -> Raw | None:
        for folder in places(self.root, self.folders):
            raw = self.own_layout(folder) or self._parquet(folder)
            if raw is not None:
                return raw
        return None

    def _parquet(self, folder: Path) -> Raw | None:
        splits = _parquet_of(folder)
        if not splits:
            return None
        train, test = splits
        train_set, test_set = read_parquet(train, limit=self.train_limit), read_parquet(test, limit=self.test_limit)
        return Raw(*train_set, *test_set, self.known_classes)

    def _download(self) -> None:
        """Fetch the files into a folder of their own first, so that a download that breaks off leaves none."""
        folder = cache_folder() if self.root is None else self.root.expanduser()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".download-", dir=folder) as growing:
                self.fetch(Path(growing))
                _move_below(Path(growing), folder)
        except (OSError, RuntimeError, EOFError, HTTPException) as error:
            raise DataError(
                f"data.download: cannot download {self.name} ({in_short(error)}); "
                f"put its files in {folder / self.folders[-1]}, "
                f"or let {VARIABLE} name a folder that has them, or choose a source that needs no files such as digits"
            ) from error


def _parquet_of(folder: Path) -> list[list[Path]]:
    """Return the files of both splits, none if the folder lacks one of them."""
    splits = [parquet_files(folder, split) for split in ("train", "test")]
    return splits if all(splits) else []


def _move_below(source: Path, folder: Path) -> None:
    """Move all that lies in one folder into another, which may have folders of the same names."""
    for found in source.iterdir():
        if found.is_dir():
            shutil.copytree(found, folder / found.name, copy_function=shutil.move, dirs_exist_ok=True)
        else:
            shutil.move(found, folder / found.name)


@dataclass(frozen=True, kw_only=True)
class Mnist(Published):
    """60000 + 10000 handwritten digits, 1 x 28 x 28, 10 classes. Source: Y. LeCun, C. Cortes, C. Burges."""

    name = "mnist"
    reader = "MNIST"
    folders: ClassVar[tuple[str, ...]] = ("MNIST/raw", "mnist")
    known_classes = 10

    normalise: Preset | Moments = "mnist"

    def prefixes(self) -> tuple[str, str]:
        """Return how the names of the training and of the test files start."""
        return "train", "t10k"

    def own_files(self, folder: Path) -> list[Path] | None:
        """Return the four idx files, if the folder has them, gzipped or not."""
        return idx_files(folder, self.prefixes())

    def own_layout(self, folder: Path) -> Raw | None:
        """Return the arrays of these files."""
        arrays = read_idx_set(folder, self.prefixes())
        return None if arrays is None else Raw(*arrays, self.known_classes)


@dataclass(frozen=True, kw_only=True)
class FashionMnist(Mnist):
    """60000 + 10000 pieces of clothing, 1 x 28 x 28, 10 classes. Source: H. Xiao et al., arXiv:1708.07747."""

    name = "fashion_mnist"
    reader = "FashionMNIST"
    folders = ("FashionMNIST/raw", "fashion-mnist", "fashion_mnist")
    package = "dataset-fashion-mnist"

    normalise: Preset | Moments = "fashion_mnist"


_EMNIST_CLASSES = {"byclass": 62, "bymerge": 47, "balanced": 47, "letters": 26, "digits": 10, "mnist": 10}


@dataclass(frozen=True, kw_only=True)
class Emnist(Mnist):
    """Handwritten letters and digits, 1 x 28 x 28, each image transposed as published.

    Source: G. Cohen et al., EMNIST: an extension of MNIST to handwritten letters, arXiv:1702.05373.
    """

    name = "emnist"
    reader = "EMNIST"
    folders = ("EMNIST/raw", "emnist")

    split: Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist"] = "balanced"  # of EMNIST

    def prefixes(self) -> tuple[str, str]:
        """Return how the names of the training and of the test files start."""
        return f"emnist-{self.split}-train", f"emnist-{self.split}-test"

    def own_layout(self, folder: Path) -> Raw | None:
        """Return the arrays of the split, labels counted from 0: those of the letters are published from 1."""
        arrays = read_idx_set(folder, self.prefixes())
        return None if arrays is None else self._from_zero(Raw(*arrays))

    def _parquet(self, folder: Path) -> Raw | None:
        """Return the same; these files' names do not say of which split they are, but their labels do."""
        raw = super()._parquet(folder)
        if raw is None:
            return None
        found, classes = len(np.unique(raw.y_train)), _EMNIST_CLASSES[self.split]
        if found != classes:
            raise DataError(f"{folder}: its training set has {found} classes, data.split {self.split!r} has {classes}")
        return self._from_zero(raw)

    def _from_zero(self, raw: Raw) -> Raw:
        check_labels(self.name, raw.y_train)
        first = raw.y_train.min()
        return raw._replace(y_train=raw.y_train - first, y_test=raw.y_test - first, classes=_EMNIST_CLASSES[self.split])

    def fetch(self, folder: Path) -> None:
        """Download all splits into a folder."""
        _torchvision(self.reader)(str(folder), split=self.split, download=True)


@dataclass(frozen=True, kw_only=True)
class Cifar10(Published):
    """50000 + 10000 photographs, 3 x 32 x 32, 10 classes. Source: A. Krizhevsky, 2009."""

    name = "cifar10"
    reader = "CIFAR10"
    folders = ("cifar-10-batches-py", "cifar10/cifar-10-batches-py", "cifar-10", "cifar10")
    known_classes = 10
    layout: ClassVar[str] = "cifar-10-batches-py"

    normalise: Preset | Moments = "cifar10"

    def own_files(self, folder: Path) -> list[Path] | None:
        """Return the files of the "python version", if the folder is its own or holds it."""
        layout = self._home(folder) / self.layout
        return sorted(path for path in layout.iterdir() if path.is_file()) if layout.is_dir() else None

    def own_layout(self, folder: Path) -> Raw | None:
        """Return the arrays, if the folder is that of the "python version" or holds it."""
        home = self._home(folder)
        if not (home / self.layout).is_dir():
            return None
        train, test = (_read_torchvision(self.reader, home, train=flag) for flag in (True, False))
        return Raw(train.data, np.array(train.targets), test.data, np.array(test.targets), self.known_classes)

    def _home(self, folder: Path) -> Path:
        return folder.parent if folder.name == self.layout else folder


@dataclass(frozen=True, kw_only=True)
class Cifar100(Cifar10):
    """50000 + 10000 photographs, 3 x 32 x 32, 100 classes. Source: A. Krizhevsky, 2009."""

    name = "cifar100"
    reader = "CIFAR100"
    folders = ("cifar-100-python", "cifar100/cifar-100-python", "cifar-100", "cifar100")
    known_classes = 100
    layout = "cifar-100-python"

    normalise: Preset | Moments = "cifar100"


@dataclass(frozen=True, kw_only=True)
class Svhn(Published):
    """73257 + 26032 house numbers, 3 x 32 x 32, 10 classes. Source: Y. Netzer et al., 2011."""

    name = "svhn"
    reader = "SVHN"
    folders = ("SVHN", "svhn")
    known_classes = 10

    normalise: Preset | Moments = "svhn"

    def own_files(self, folder: Path) -> list[Path] | None:
        """Return the two files of cropped digits, if the folder has the first."""
        files = [folder / f"{split}_32x32.mat" for split in ("train", "test")]
        return files if files[0].exists() else None

    def own_layout(self, folder: Path) -> Raw | None:
        """Return the arrays of these files."""
        if not (folder / "train_32x32.mat").exists():
            return None
        train, test = (_read_torchvision(self.reader, folder, split=split) for split in ("train", "test"))
        x_train, x_test = (part.data.transpose(0, 2, 3, 1) for part in (train, test))
        return Raw(x_train, train.labels, x_test, test.labels, self.known_classes)

    def fetch(self, folder: Path) -> None:
        """Download both splits into a folder."""
        for split in ("train", "test"):
            _torchvision(self.reader)(str(folder / self.name), split=split, download=True)


def _torchvision(name: str) -> Callable[..., Any]:
    from torchvision import datasets  # costs 150 MB, which most runs can do without

    found: Callable[..., Any] = getattr(datasets, name)
    return found


def _read_torchvision(name: str, folder: Path, **which: Any) -> Any:
    with reading(folder, f"folder of {name}"):  # it knows the files by their checksums, and unpickles no others
        return _torchvision(name)(os.fspath(folder), **which)


PLUGINS = {
    "mnist": Mnist,
    "fashion_mnist": FashionMnist,
    "emnist": Emnist,
    "cifar10": Cifar10,
    "cifar100": Cifar100,
    "svhn": Svhn,
}
