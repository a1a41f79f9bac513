"""A user's own map-style Datasets of torch, by the name of what makes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge, Gt, Lt

from edgesim.config.plugins import factory_of
from edgesim.core.errors import ConfigError, EdgesimError
from edgesim.core.rng import Key, Purpose
from edgesim.files.own_code import own_frames
from edgesim.files.reading import in_short
from edgesim.learning.data.held_out import codes_of, held_out
from edgesim.learning.data.source import Raw, Source
from edgesim.learning.data.torch_samples import SIDES, columns_of, samples_of, sets_of

if TYPE_CHECKING:
    from edgesim.learning.data.dataset import Dataset


@dataclass(frozen=True, kw_only=True)
class TorchDatasets(Source):
    """Map-style Datasets of torch, which a function or class of the user's own makes from `options`.

    The factory returns a Dataset, or a pair or table of two, train and test. A single one gives a share `test_share` of
    each class to the test. `test_options` calls the factory a second time for the test, as classes with train = false
    need it.

    A sample is a pair of features and a class from 0. Features are a tensor, an array, an image of Pillow or a list of
    numbers, of one shape for all samples. A tensor of three axes is (channels, height, width), an array (height,
    width, channels). Bytes are pixels. A Dataset may have an attribute `columns`, a table of lists with a value for
    each sample, for the partition `by_column`.

    Every sample is read once, with torch's generator at the start of a stream of its own. Random transforms are thus
    drawn once for the whole run; `augment` draws anew for every batch.
    """

    name = "torch"

    dataset: str  # function or class, as package.module:factory
    options: dict[str, Any] = field(default_factory=dict)  # its keyword arguments
    test_options: dict[str, Any] | None = None  # those that differ in a second call, which makes the test set
    test_share: Annotated[float, Gt(0), Lt(1)] = 0.2  # of each class, if there is only one Dataset
    split_seed: Annotated[int, Ge(0)] = 1  # of this share, and of transforms that draw

    @property
    def origin(self) -> str:
        """The name of the factory."""
        return self.dataset

    def read(self) -> Raw:
        """Return all samples as arrays."""
        return self._read()[0]

    def load(self) -> Dataset:
        """Return the data set. Raises DataError or ConfigError if the user's code fails, or its samples do not fit."""
        raw, columns = self._read()
        return self.assembled(self.checked(raw), columns)

    def _read(self) -> tuple[Raw, Mapping[str, tuple[np.ndarray, np.ndarray]]]:
        from edgesim.learning.models.seeding import seeded  # loads torch

        make = factory_of("data.dataset", self.dataset)
        key = Key(self.split_seed).at(Purpose.DATA)
        try:
            with seeded(key):
                made = make(**self.options)
                sets = sets_of(self.dataset, made)
                if self.test_options is not None:
                    sets = [sets[0], *sets_of(self.dataset, make(**{**self.options, **self.test_options}))[:1]]
                limits = (self.train_limit, self.test_limit) if len(sets) == 2 else (None,)
                sides = [
                    samples_of(f"{self.dataset}: {side}", each, limit)
                    for side, each, limit in zip(SIDES, sets, limits, strict=False)
                ]
        except EdgesimError:
            raise
        except Exception as error:  # the user's code may raise anything
            frames = own_frames(error)
            place = f" ({frames.place})" if frames else ""
            fault = f"{type(error).__name__}: {in_short(error)}"
            raise ConfigError(f"data.dataset: {self.dataset} fails: {fault}{place}") from error
        columns = [columns_of(self.dataset, each, len(y)) for each, (_, y) in zip(sets, sides, strict=True)]
        if len(sets) == 2:
            (x_train, y_train), (x_test, y_test) = sides
            limited = {
                name: (columns[0][name][: self.train_limit], columns[1][name][: self.test_limit])
                for name in columns[0].keys() & columns[1].keys()
            }
            return Raw(x_train, y_train, x_test, y_test), limited
        [(x, y)], [of_all] = sides, columns
        train, test = held_out(codes_of(y), self.test_share, key)
        both = {
            name: (values[train][: self.train_limit], values[test][: self.test_limit])
            for name, values in of_all.items()
        }
        return Raw(x[train], y[train], x[test], y[test]), both


PLUGINS = {"torch": TorchDatasets}
