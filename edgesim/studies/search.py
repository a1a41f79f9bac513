"""The section `[search]` of a study file: a space of scenario keys, and what is wanted of them; and its trials."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from annotated_types import Ge, Gt, Lt, MinLen
from pydantic import AfterValidator, BeforeValidator, StringConstraints, TypeAdapter, field_validator
from pydantic import model_validator as validator
from pydantic_core import from_json, to_json

from edgesim.config.units import Seconds, refusal
from edgesim.core.errors import ConfigError
from edgesim.core.numbers import Count
from edgesim.files.atomic import whole_file
from edgesim.files.reading import in_short, quoted, read_text
from edgesim.records.lock import hold
from edgesim.studies.keys import Changes, FixedKeys, as_toml, labelled

if TYPE_CHECKING:
    from edgesim.studies.study import Study

TRIAL = "trial"  # the axis of a study that its trials make
MILESTONES = "stop.milestones"  # the key by which trials are pruned
_FILE = "trials.json"
_TRIALS = TypeAdapter(dict[Annotated[str, StringConstraints(pattern=r"^[0-9]+$")], tuple[str, ...]])  # names of folders

_PLAIN = re.compile(r"-?\d+(\.\d+)?(e[-+]\d+)?")  # a number as Python writes it


def _number(given: Any) -> int | float:
    """Return a number as it is written: 1 asks for whole numbers, 1.0 for any."""
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        raise refusal(f"must be a finite number, got {quoted(given)}")
    return given


_Number: TypeAlias = Annotated[Any, BeforeValidator(_number)]


class Dimension(FixedKeys):
    """What a key may be: a number from `low` to `high`, whole if both are written so, or one of some choices.

    `log`: equal ratios are equally likely. `step`: only low, low + step, ... `unit`: what is written behind the number,
    such as "Mbit/s". `choices`: labels with their overrides; a list of values, and a table of labels alone, are such.
    """

    low: _Number = None
    high: _Number = None
    log: bool = False
    step: _Number = None
    unit: str = ""
    choices: Changes = {}

    @validator(mode="after")
    def _one_of_both(self) -> Dimension:
        if self.choices:
            if self.low is not None or self.high is not None:
                raise refusal("has choices or a range, low and high, not both")
            return self
        if self.low is None or self.high is None:
            raise refusal("needs low and high, a list of values, or a table of labels with their overrides")
        if not self.low < self.high:
            raise refusal(f"low must be below high, got {self.low!r} and {self.high!r}")
        if self.log and (self.low <= 0 or self.step is not None):
            raise refusal("log needs low above 0, and no step")
        if self.step is not None and (self.step <= 0 or (self.is_whole and not isinstance(self.step, int))):
            raise refusal(f"step must be above 0, and whole between whole numbers, got {self.step!r}")
        return self

    @property
    def is_whole(self) -> bool:
        """Return whether it is a range of whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def ends(self) -> list[Any]:
        """Return both ends of a range, or all choices."""
        return [*self.choices] if self.choices else [self.low, self.high]

    def overrides(self, key: str, value: Any) -> tuple[str, ...]:
        """Return the overrides that a number, or the label of a choice, stands for."""
        if self.choices:
            return self.choices[value]
        return (f"{key}={as_toml(f'{value!r} {self.unit}' if self.unit else value)}",)

    def allows(self, key: str, override: str) -> bool:
        """Return whether an override is one that a choice or a number stands for."""
        if self.choices:
            return any(override in each for each in self.choices.values())
        value = override.removeprefix(f"{key}=").strip('"').removesuffix(f" {self.unit}")
        return override.startswith(f"{key}=") and bool(_PLAIN.fullmatch(value))


def _ascending(times_s: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(sorted(set(times_s)))


class Prune(FixedKeys):
    """When a trial is given up: at simulated times `at` if its accuracy is below what others had by then.

    That is the best accuracy so far, the mean over seeds; it must be at least the `quantile` of the trials before it
    that were not pruned, once there are `after` of them. `quantile` 0.5, the median, is the usual one.
    """

    at: Annotated[tuple[Seconds, ...], MinLen(1), AfterValidator(_ascending)]
    after: Count = 5
    quantile: Annotated[float, Gt(0), Lt(1)] = 0.5


class Search(FixedKeys):
    """What is searched for, and where: columns of the study to be made small or large, and a space of scenario keys.

    `batch`: so many trials are drawn together, each by all before the batch, however many run at a time. `startup`: so
    many are drawn at random. `seed`: of these draws; those of the runs are the axis seed.
    """

    space: Annotated[Mapping[str, Dimension], MinLen(1)]
    minimise: tuple[str, ...] = ()
    maximise: tuple[str, ...] = ()
    seed: Annotated[int, Ge(0)] = 1
    batch: Count = 4
    startup: Count = 10
    prune: Prune | None = None

    @field_validator("space", mode="before")
    @classmethod
    def _choices(cls, given: Any) -> Any:
        return {key: _dimension(key, item) for key, item in given.items()} if isinstance(given, Mapping) else given

    @validator(mode="after")
    def _objectives(self) -> Search:
        if not self.objectives:
            raise refusal("needs minimise or maximise, lists of columns of the study")
        if len(set(self.objectives)) < len(self.objectives):
            raise refusal("minimise and maximise name a column twice")
        if self.prune and len(self.objectives) > 1:
            raise refusal("prune goes with one objective: who is late at one may be the best at another")
        return self

    @property
    def objectives(self) -> tuple[str, ...]:
        """Return the columns wanted, first those to be made small."""
        return (*self.minimise, *self.maximise)

    def overrides(self, point: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the overrides of a point of the space, key -> number or label, in the order of the space."""
        return tuple(text for key, each in self.space.items() for text in each.overrides(key, point[key]))

    def corners(self) -> Iterator[tuple[str, str, tuple[str, ...]]]:
        """Yield each key with both ends of its range, or each of its choices, and the overrides."""
        for key, each in self.space.items():
            for end in each.ends():
                yield key, str(end), each.overrides(key, end)


def _dimension(key: str, given: Any) -> Any:
    """Return a dimension as a table; lists of values, and tables of labels with lists of overrides, become choices."""
    if isinstance(given, list):
        return {"choices": labelled(key, given)}
    if isinstance(given, Mapping) and given and all(isinstance(item, list) for item in given.values()):
        return {"choices": given}
    return given


# --- trials ---------------------------------------------------------------------------------------------------


def with_trials(study: Study, folder: Path) -> Study:
    """Return a study with the trials of its search, as they stand in the folder of its runs, as its first axis.

    One without a search, or that has them, is returned as it is. Raises ConfigError if no trial was drawn, or they are
    those of another search.
    """
    if study.search is None or TRIAL in study.axes:
        return study
    trials = read_trials(study.search, folder)
    if not trials:
        file = folder / _FILE
        other = "has trials of another search" if file.exists() else "no trial was drawn"
        raise ConfigError(f"{file}: {other}; first: edgesim study optimise, of this study and size")
    return study.model_copy(update={"axes": {TRIAL: trials, **study.axes}})


def read_trials(search: Search, folder: Path) -> dict[str, tuple[str, ...]]:
    """Return the trials in a folder, label -> overrides; none if there are none, or they are of another search.

    Raises ConfigError if the file is damaged.
    """
    file = folder / _FILE
    if not file.exists():
        return {}
    try:
        table = from_json(read_text(file, ConfigError))
        trials = _TRIALS.validate_python(table["trials"])
        same = to_json(table["search"]) == to_json(search.model_dump(mode="json"))
        if same:
            _check_drawn(search, trials)
    except (ValueError, TypeError, LookupError) as error:
        raise ConfigError(f"{file}: is damaged; remove it, the runs stay: {in_short(error)}") from error
    return trials if same else {}


def _check_drawn(search: Search, trials: Changes) -> None:
    """Raise ValueError for an override that the search does not draw: somebody else may have named any class."""
    for label, overrides in trials.items():
        for each in (each for each in overrides if not each.startswith(f"{MILESTONES}=[")):
            if not any(dimension.allows(key, each) for key, dimension in search.space.items()):
                raise ValueError(f"trial {label} has {quoted(each)}, which the search does not draw")


def write_trials(search: Search, trials: Changes, folder: Path) -> None:
    """Write the trials of a search, whole or not at all. Raises ConfigError if that is not possible."""
    file = folder / _FILE
    table = {"search": search.model_dump(mode="json"), "trials": trials}
    with hold(file, wait=True):  # of two commands at work on one search
        try:
            with whole_file(file) as growing:
                growing.write_bytes(to_json(table, indent=1))
        except OSError as error:
            raise ConfigError(f"{file}: cannot be written: {error.strerror}") from error
