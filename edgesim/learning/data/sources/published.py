"""Published image data sets by name, read from a data folder or downloaded through torchvision."""

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
    """A published data set, identified by its name.

    Below each folder of the search path it may have the layout of torchvision, raw files, or parquet files
    train-*.parquet and test-*.parquet in a folder with the name of the data set.
    """

    reader: ClassVar[str]  # name of torchvision's class
    folders: ClassVar[tuple[str, ...]]  # names below a folder of the search path
    known_classes: ClassVar[int]
    package: ClassVar[str] = ""  # Debian package that puts the files on the search path

    root: ScenarioPath | None = None  # folder to search first
    download: bool = False  # if the data are found nowhere, download them to root, or to the user's cache folder

    @abstractmethod
    def own_files(self, folder: Path) -> list[Path] | None:
        """Return the files in the published layout, or None if the folder does not hold them."""

    @abstractmethod
    def own_layout(self, folder: Path) -> Raw | None:
        """Return the arrays of these files, or None if the folder does not hold them."""

    def fetch(self, folder: Path) -> None:
        """Download both splits into a folder."""
        for train in (True, False):
            _torchvision(self.reader)(str(folder), train=train, download=True)

    def files(self) -> list[Path] | None:
        """Return the files of the first folder that has them, or None if no folder has them."""
        for folder in places(self.root, self.folders):
            own, parquet = self.own_files(folder), _parquet_of(folder)
            if own is not None or parquet:
                return own if own is not None else [file for split in parquet for file in split]
        return None

    def read(self) -> Raw:
        """Return the arrays, from the first folder that has them."""
        raw = self._found()
        if raw is None and self.download:
            folder = cache_folder() if self.root is None else self.root.expanduser()
            try:
                download_into(self.fetch, folder)
            except (OSError, RuntimeError, EOFError, HTTPException) as error:
                raise DataError(
                    f"data.download: cannot download {self.name} ({in_short(error)}); "
                    f"put its files in {folder / self.folders[-1]}, or let {VARIABLE} name a folder that has them, "
                    "or choose a source that needs no files such as digits"
                ) from error
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


def _parquet_of(folder: Path) -> list[list[Path]]:
    """Return the files of both splits, or an empty list if the folder lacks one of them."""
    splits = [parquet_files(folder, split) for split in ("train", "test")]
    return splits if all(splits) else []


def download_into(fetch: Callable[[Path], None], folder: Path) -> None:
    """Download into a temporary folder first, so that an interrupted download leaves no files. Raises as `fetch`."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".download-", dir=folder) as growing:
        fetch(Path(growing))
        for found in Path(growing).iterdir():
            if found.is_dir():  # the target may have folders of the same names
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
        """Return the first parts of the names of the training and of the test files."""
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
        """Return the first parts of the names of the training and of the test files."""
        return f"emnist-{self.split}-train", f"emnist-{self.split}-test"

    def own_layout(self, folder: Path) -> Raw | None:
        """Return the arrays of the split, with labels from 0. The labels of the letters are published from 1."""
        arrays = read_idx_set(folder, self.prefixes())
        return None if arrays is None else self._from_zero(Raw(*arrays))

    def _parquet(self, folder: Path) -> Raw | None:
        """Return the same arrays from parquet files. Their labels tell the split, because their names do not."""
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
        """Return the files of the "python version", if the folder is this version's folder or contains it."""
        layout = self._home(folder) / self.layout
        return sorted(path for path in layout.iterdir() if path.is_file()) if layout.is_dir() else None

    def own_layout(self, folder: Path) -> Raw | None:
        """Return the arrays, if the folder is the folder of the "python version" or contains it."""
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
    from torchvision import datasets  # takes 150 MB, which most runs do not need

    found: Callable[..., Any] = vars(datasets)[name]
    return found


def _read_torchvision(name: str, folder: Path, **which: Any) -> Any:
    with reading(folder, f"folder of {name}"):  # torchvision checks the files' checksums before it unpickles them
        return _torchvision(name)(os.fspath(folder), **which)


PLUGINS = {
    "mnist": Mnist,
    "fashion_mnist": FashionMnist,
    "emnist": Emnist,
    "cifar10": Cifar10,
    "cifar100": Cifar100,
    "svhn": Svhn,
}
