"""Data sets from data frames: features, labels of any kind, and other columns of samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from edgesim.core.arrays import Ids
from edgesim.core.errors import ConfigError, DataError
from edgesim.core.rng import Key, Purpose
from edgesim.files.reading import in_short, quoted
from edgesim.learning.data.dataset import Dataset
from edgesim.learning.data.held_out import held_out

if TYPE_CHECKING:
    import pandas as pd

TableLabels: TypeAlias = Literal["classes", "numbers", "flags"]
_LARGEST = float(np.finfo(np.float32).max)  # of features and labels
_MOST_CLASSES = 10_000  # with more, the label is probably a number and not a class


class LabelledTable:
    """A frame with one row per sample, and the choice of its label and feature columns."""

    def __init__(self, origin: str, frame: pd.DataFrame, label: Sequence[str], kind: TableLabels) -> None:
        """`origin`: name in error messages. Raises DataError if the frame has no row or lacks a label."""
        self.origin, self.frame, self.label, self.kind = origin, frame, list(label), kind
        self._check(self.label)
        if frame.empty:
            raise DataError(f"{origin}: has no rows")
        if kind == "classes" and len(self.label) != 1:
            raise ConfigError(f"data.label: classes stand in one column, found {len(self.label)}")

    def dataset(
        self, name: str, features: Sequence[str], train: Ids, test: Ids, standardise: bool, scale_labels: bool
    ) -> Dataset:
        """Return the data set of these features and rows.

        `standardise`: standardise features by mean and deviation of the training samples. `scale_labels`: standardise
        labels that are numbers likewise. Raises DataError for a value that is not of the required kind.
        """
        x, (y, outputs) = self.numbers(features), self._labels()
        if standardise:
            x = self._standardised(features, x, train)
        if scale_labels and self.kind == "numbers":
            y = self._standardised(self.label, y, train)
        others = [column for column in self.frame if column not in {*features, *self.label}]
        texts = {str(column): self.frame[column].astype(str).to_numpy(dtype=str) for column in others}
        y = y if self.kind == "classes" else np.ascontiguousarray(y, dtype=np.float32)
        x = np.ascontiguousarray(x, dtype=np.float32)
        return Dataset(
            name, x[train], y[train], x[test], y[test], outputs, (len(features),),
            kind=self.kind, columns={column: (values[train], values[test]) for column, values in texts.items()},
        )  # fmt: skip

    def features(self, given: Sequence[str], left_out: Sequence[str]) -> list[str]:
        """Return the feature columns: the given ones, or all numeric ones except labels and columns left out."""
        self._check([*given, *left_out])
        numeric = self.frame.select_dtypes("number").columns
        found = list(given) or [str(column) for column in numeric if column not in {*self.label, *left_out}]
        if twice := set(found) & {*self.label, *left_out}:
            raise ConfigError(f"data.features: {quoted(min(twice))} is no feature, as it is a label or left out")
        if not found:
            raise DataError(f"{self.origin}: has no column of numbers beside labels and those left out")
        return found

    def split(self, share: float, seed: int, by: str | None) -> tuple[Ids, Ids]:
        """Return training and test rows. The test has `share` of every class, or of every value of the column `by`."""
        if by is not None:
            self._check([by])
        wanted = self.label[0] if by is None and self.kind == "classes" else by
        codes = np.zeros(len(self.frame), dtype=np.int64)
        if wanted is not None:
            codes = np.unique(self.frame[wanted].astype(str).to_numpy(dtype=str), return_inverse=True)[1]
        return held_out(codes, share, Key(seed).at(Purpose.DATA))

    def numbers(self, columns: Sequence[str]) -> np.ndarray:
        """Return columns as float64, (rows, columns). Raises DataError for the first that float32 cannot hold."""
        found = np.empty((len(self.frame), len(columns)))
        for place, column in enumerate(columns):
            found[:, place] = _as_numbers(self.frame[column])
            held = np.abs(found[:, place]) <= _LARGEST  # False if there is no number
            if not held.all():
                row = int(held.argmin())
                value = self.frame[column].iloc[row]
                shown = quoted(value.item() if isinstance(value, np.generic) else value)  # as Python writes it
                what = f"numbers up to {_LARGEST:.2g}" if np.isfinite(found[row, place]) else "finite numbers"
                raise DataError(f"{self.origin}: column {quoted(column)} needs {what}, row {row + 1} has {shown}")
        return found

    def _standardised(self, columns: Sequence[str], values: np.ndarray, train: Ids) -> np.ndarray:
        """Return values standardised by the rows `train`. Raises DataError if float32 cannot hold a result."""
        scaled = standardised(values, values[train])
        held = np.abs(scaled) <= _LARGEST
        if not held.all():
            row, place = np.argwhere(~held)[0].tolist()
            raise DataError(
                f"{self.origin}: column {quoted(columns[place])} cannot be standardised, as training samples hardly "
                f"differ: {scaled[row, place]:g} in row {row + 1}"
            )
        return scaled

    def _labels(self) -> tuple[np.ndarray, int]:
        """Return the labels and the number of a network's outputs for them."""
        if self.kind != "classes":
            y = self.numbers(self.label)
            if self.kind == "flags" and not np.isin(y, (0.0, 1.0)).all():
                row, column = np.argwhere(~np.isin(y, (0.0, 1.0)))[0].tolist()
                name, found = quoted(self.label[column]), f"{y[row, column]:g}"
                raise DataError(f"{self.origin}: column {name} needs 0 or 1, row {row + 1} has {found}")
            return y, y.shape[1]
        [label] = self.label
        if (missing := self.frame[label].isna().to_numpy()).any():
            raise DataError(f"{self.origin}: column {quoted(label)} has no class in row {int(missing.argmax()) + 1}")
        from pandas.api.types import is_scalar

        # Parquet files may have lists or records, which cannot name classes.
        for row, value in enumerate(self.frame[label]) if self.frame[label].dtype == object else ():
            if not is_scalar(value):
                raise DataError(
                    f"{self.origin}: column {quoted(label)} needs texts or numbers, row {row + 1} has {quoted(value)}"
                )
        values, y = np.unique(self.frame[label].to_numpy(), return_inverse=True)
        if len(values) > _MOST_CLASSES:
            raise DataError(
                f"{self.origin}: column {quoted(label)} has {len(values)} different classes, allowed are "
                f"{_MOST_CLASSES}; if it holds numbers say labels = 'numbers'"
            )
        return y.astype(np.int64), len(values)

    def _check(self, columns: Sequence[str]) -> None:
        if absent := [column for column in columns if column not in self.frame]:
            known = in_short(", ".join(map(str, self.frame.columns[:20])))
            raise ConfigError(f"data: {self.origin} has no column {quoted(absent[0])} (it has {known})")


def _as_numbers(column: pd.Series) -> np.ndarray:
    """Return a column as float64, with NaN for values that are not numbers and the largest float for larger ones."""
    import pandas as pd

    try:
        return pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64)
    except OverflowError:  # integers of more than 308 digits stay Python objects
        largest = float(np.finfo(np.float64).max)
        within = column.map(lambda value: max(-largest, min(largest, value)) if isinstance(value, int) else value)
        return pd.to_numeric(within, errors="coerce").to_numpy(dtype=np.float64)


def standardised(values: np.ndarray, of: np.ndarray) -> np.ndarray:
    """Return (values - mean) / deviation of each column, with moments of `of`. A constant column is only centred."""
    deviation = of.std(axis=0)
    scaled: np.ndarray = (values - of.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
    return scaled
