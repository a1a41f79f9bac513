"""Tables: a user's own CSV or parquet file, and three that come with scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from annotated_types import Ge, Gt, Lt

from edgesim.config.toml_file import ScenarioPath
from edgesim.core.errors import DataError
from edgesim.files.reading import quoted, reading
from edgesim.files.tables import column_names, read_columns, read_frame
from edgesim.learning.data.dataset import DataPart, Dataset
from edgesim.learning.data.sources.digits import shipped_numbers
from edgesim.learning.data.tables import LabelledTable, TableLabels

if TYPE_CHECKING:
    import pandas as pd

_SPLITS = ("train", "test")


@dataclass(frozen=True, kw_only=True)
class TableSource(DataPart):
    """Keys common to all tables. Features are standardised by the mean and deviation of the training samples."""

    test_share: Annotated[float, Gt(0), Lt(1)] = 0.2  # share of the samples, chosen at random, for the test
    split_seed: Annotated[int, Ge(0)] = 1  # of this split alone: runs with different seeds of their own share it
    standardise: bool = True  # features have mean 0 and deviation 1 over the training samples


@dataclass(frozen=True, kw_only=True)
class TableFile(TableSource):
    """A CSV or parquet file with one row per sample. Columns that are neither features nor labels serve partitions.

    `labels`: classes are the different values of one column, in ascending order. Numbers are for regression. Flags, 0
    or 1 in each of several columns, are for several labels at once.
    """

    path: ScenarioPath  # of the file. A file that does not end in .parquet is read as CSV with a line of names
    label: str | tuple[str, ...]  # the column of the label, or several columns
    labels: TableLabels = "classes"  # kind of labels
    features: tuple[str, ...] = ()  # columns. None given: all numeric columns without another use
    user: str | None = None  # column of each sample's user. It is no feature. Each user has a share of the test
    ignore: tuple[str, ...] = ()  # columns that are no features
    split: str | None = None  # column with "train" or "test". Unset: `test_share` of the samples are for the test
    scale_labels: bool = False  # standardise numeric labels to mean 0 and deviation 1, so that errors are in deviations

    def load(self) -> Dataset:
        """Return the data set of the file."""
        path = self.path.expanduser()
        if path.suffix == ".parquet":
            content = read_columns(path, column_names(path))
            with reading(path, "parquet file"):  # the index that pandas stores there may be damaged too
                frame: pd.DataFrame = content.to_pandas()
        else:
            frame = read_frame(path)
        label = [self.label] if isinstance(self.label, str) else self.label
        table = LabelledTable(str(self.path), frame, label, self.labels)
        others = [column for column in (self.user, self.split) if column is not None]
        features = table.features(self.features, [*self.ignore, *others])
        if self.split is None:
            train, test = table.split(self.test_share, self.split_seed, self.user)
        else:
            values = table.frame[self.split].astype(str).to_numpy(dtype=str)
            wrong = ~np.isin(values, _SPLITS)
            if wrong.any():
                raise DataError(
                    f"{self.path}: column {quoted(self.split)} says train or test, "
                    f"row {int(wrong.argmax()) + 1} has {quoted(str(values[wrong][0]))}"
                )
            train, test = (np.flatnonzero(values == side) for side in _SPLITS)
            if not len(train) or not len(test):
                raise DataError(f"{self.path}: column {quoted(self.split)} must have both train and test")
        return table.dataset(self.path.stem, features, train, test, self.standardise, self.scale_labels)


@dataclass(frozen=True, kw_only=True)
class Bundled(TableSource):
    """A table in scikit-learn's package. Its file is read without loading scikit-learn."""

    name: ClassVar[str]
    file: ClassVar[str]
    kind: ClassVar[TableLabels] = "classes"

    def load(self) -> Dataset:
        """Return the data set."""
        import pandas as pd

        x, y = self.read()
        frame = pd.DataFrame(x, columns=[f"x{place}" for place in range(x.shape[1])])
        table = LabelledTable(self.name, frame.assign(label=y), ["label"], self.kind)
        train, test = table.split(self.test_share, self.split_seed, None)
        return table.dataset(self.name, table.features((), ()), train, test, self.standardise, self.scales_labels)

    @property
    def scales_labels(self) -> bool:
        """True if labels are standardised."""
        return False

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        """Return features (samples, features) and labels (samples,)."""
        rows = shipped_numbers(self.file, skiprows=1)
        return rows[:, :-1], rows[:, -1].astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class BreastCancer(Bundled):
    """569 tumours of two classes, 30 features of their cells' nuclei.

    Source: W. Wolberg et al., Breast Cancer Wisconsin (Diagnostic), UCI Machine Learning Repository.
    """

    name = "breast_cancer"
    file = "breast_cancer.csv"


@dataclass(frozen=True, kw_only=True)
class Wine(Bundled):
    """178 wines of three growers, 13 features of their chemistry.

    Source: S. Aeberhard, M. Forina, Wine, UCI Machine Learning Repository.
    """

    name = "wine"
    file = "wine_data.csv"


@dataclass(frozen=True, kw_only=True)
class Diabetes(Bundled):
    """442 patients, 10 features, and the progress of their disease after a year, from 25 to 346: for regression.

    Source: B. Efron et al., "Least Angle Regression" (Annals of Statistics 32(2), 2004).
    """

    name = "diabetes"
    kind = "numbers"

    scale_labels: bool = True  # labels have mean 0 and deviation 1 over the training samples. Errors are in deviations

    @property
    def scales_labels(self) -> bool:
        """True if labels are standardised."""
        return self.scale_labels

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        """Return features and labels, from two files."""
        x, y = (shipped_numbers(f"diabetes_{each}.csv.gz", None) for each in ("data_raw", "target"))
        return x, y


PLUGINS = {"table": TableFile, "breast_cancer": BreastCancer, "wine": Wine, "diabetes": Diabetes}
