"""Study files: a base scenario, axes of named changes to it, the columns of its table, and a space to search."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

from annotated_types import Ge, Gt, Lt, MinLen
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    field_validator,
)
from pydantic import model_validator as validator
from pydantic_core import from_json, to_json

from edgesim.config.load import load_scenario, read_overrides, scenario_file
from edgesim.config.origin import Layers
from edgesim.config.plugin_fields import check_keys, refusal_at
from edgesim.config.plugins import meant
from edgesim.config.scenario import Scenario
from edgesim.config.toml_file import located, read_toml
from edgesim.config.units import Seconds, reason, refusal
from edgesim.core.errors import ConfigError
from edgesim.core.limits import Count
from edgesim.core.metrics import ACCURACY
from edgesim.files.atomic import whole_file
from edgesim.files.reading import csv_records, in_short, quoted, read_text
from edgesim.records.lock import hold
from edgesim.runs.warnings import effective
from edgesim.studies.column import parse_column

LABEL = re.compile(r"[\w.+-]+")  # labels become names of folders and words of --only
_NO_LABEL = re.compile(r"[^\w.+-]+")  # what stands in values, such as the blank of "30 s"

Changes: TypeAlias = Mapping[str, tuple[str, ...]]  # label -> overrides


class FixedKeys(BaseModel):
    """A table of fixed keys; any other is refused with the one that may be meant."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @validator(mode="before")
    @classmethod
    def _known_keys(cls, given: Any) -> Any:
        if isinstance(given, Mapping):
            check_keys(given, cls.model_fields)
        return given


def as_label(value: str) -> str:
    """Return the label of a value: the same, with _ for each stretch of characters that labels do not have."""
    return _NO_LABEL.sub("_", value.strip())


def labelled(key: str, items: list[Any]) -> dict[str, tuple[str, ...]]:
    """Return the labels of values of a key, and the overrides that they stand for.

    Raises ValidationError for what is no value, and for two with one label.
    """
    changes: dict[str, tuple[str, ...]] = {}
    for item in items:
        if not isinstance(item, str | int | float):
            raise refusal_at(key, f"values must be numbers, strings or true and false, got {item!r}", item)
        text = as_toml(item)
        label = as_label(item if isinstance(item, str) else text)
        if label in changes:
            raise refusal_at(key, f"two values have the label {label!r}; give them labels in a table", item)
        changes[label] = (f"{key}={text}",)
    return changes


def as_toml(value: str | float) -> str:
    """Return a value as TOML has it, inf among them."""
    return repr(value) if isinstance(value, float) else json.dumps(value)


def check_axes(
    axes: Mapping[str, Changes], size: str, cells: Sequence[Cell], scenario_of: Callable[[Cell], Scenario]
) -> None:
    """Raise ConfigError, which says why, if an axis changes nothing in the cells of a size.

    It changes something if two cells that differ in its label alone differ in a key that has an effect. An axis of
    which no two such cells are there, as `only` pairs its labels with those of others, is not judged.
    """
    runs = [sha256(json.dumps(effective(scenario_of(cell))[0], sort_keys=True).encode()).digest() for cell in cells]
    for axis in axes:
        groups: dict[tuple[str, ...], dict[str, bytes]] = {}
        for cell, run in zip(cells, runs, strict=True):
            others = tuple(label for other, label in cell.labels.items() if other != axis)
            groups.setdefault(others, {})[cell.labels[axis]] = run
        several = [group for group in groups.values() if len(group) > 1]
        if several and all(len(set(group.values())) == 1 for group in several):
            labels = ", ".join(dict.fromkeys(label for group in several for label in group))
            why = _why(axes[axis], effective(scenario_of(cells[0]))[1])
            raise ConfigError(f"axes.{axis}: changes nothing, as in size {size} {labels} are the same run: {why}")


def _why(changes: Changes, void: Mapping[tuple[str, ...], str]) -> str:
    written = [tuple(path) for overrides in changes.values() for path, _ in read_overrides(overrides)]
    for path in written:
        for key, why in void.items():
            if key[: len(path)] == path or path[: len(key)] == key:
                return f"{'.'.join(key)} has no effect{why}"
    keys = ", ".join(dict.fromkeys(".".join(path) for path in written))
    return f"{keys} has these values without it, or the size, [[where]] or a later axis replaces them"


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


SEED = "seed"  # the axis that statistics are taken over
USUAL = "quick"  # the size that is meant if none is named
_COLUMN, _VALUE, _SOURCE = "column", "value", "source"  # the header of a CSV of published numbers, beside axes
_NUMBER = TypeAdapter(FiniteFloat)

_Kind = TypeVar("_Kind", bound=FixedKeys)


class Size(FixedKeys):
    """What makes a study small or large: overrides that come last, and the cells it keeps (none named: all)."""

    overrides: tuple[str, ...] = ()
    only: tuple[str, ...] = ()


Labels: TypeAlias = Mapping[str, Annotated[str, AfterValidator(as_label)]]  # axis -> label, or the value it stands for


class Published(FixedKeys):
    """A published number in the unit of its column, for all cells that have the labels of `cell`.

    The seed is none of them; of several numbers for one cell and column the first holds.
    """

    cell: Labels
    column: str
    value: FiniteFloat


class Where(FixedKeys):
    """Overrides of all cells that have the labels of `cell`: what no axis says alone, such as tuned rates."""

    cell: Annotated[Labels, MinLen(1)]
    overrides: Annotated[tuple[str, ...], MinLen(1)]


@dataclass(frozen=True)
class Cell:
    """One run of a study: a label for each axis, and the overrides that the labels stand for."""

    labels: Mapping[str, str]
    overrides: tuple[str, ...]

    @property
    def name(self) -> str:
        """The labels as `--only` takes them, such as "method=fedavg,seed=1"."""
        return ",".join(f"{axis}={label}" for axis, label in self.labels.items())

    @property
    def group(self) -> dict[str, str]:
        """The labels of all axes but the seed."""
        return {axis: label for axis, label in self.labels.items() if axis != SEED}


class Study(FixedKeys):
    """A study as its file has it. `base` is meant from the folder of the file, paths in overrides from the current one.

    `without`: keys of the base that the study drops, such as the data set where only times are wanted. `overrides`:
    those of all cells. An axis is a table of labels with their overrides, or a list of values of the key that it is
    named after. Of overrides of one key the last one holds: the study's, the axes' in their order, those of `where` in
    theirs, the size's. `only`: the cells that make sense, if not all products of the axes do. `published`: the file may
    name a CSV with these numbers instead, see `read_published`. `base` may also be the scenario itself, as a table, or
    one that comes with edgesim: "edgesim:quickstart". `search`: its trials are an axis, see `with_trials`. `question`:
    what the study's report answers.
    """

    name: str
    question: str = ""
    base: str | dict[str, Any]
    without: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    axes: Mapping[str, Changes] = {}
    where: tuple[Where, ...] = ()
    only: tuple[str, ...] = ()
    sizes: Annotated[Mapping[str, Size], MinLen(1)] = Field(default_factory=lambda: {USUAL: Size()})
    columns: Annotated[tuple[str, ...], MinLen(1)]
    published: tuple[Published, ...] = ()
    search: Search | None = None

    @field_validator("axes", mode="before")
    @classmethod
    def _named(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        return {axis: labelled(axis, items) if isinstance(items, list) else items for axis, items in given.items()}

    @validator(mode="after")
    def _some_axis(self) -> Study:
        if not self.axes and self.search is None:
            raise refusal("needs axes, or a search")
        return self

    def cells(self, size: str, only: Sequence[str] = ()) -> list[Cell]:
        """Return the cells of a size; `only` keeps those that have all labels of one of its "axis=label,axis=label".

        Raises ConfigError for a size or a label that the study does not have.
        """
        if size not in self.sizes:
            raise ConfigError(f"--size: unknown size {size!r} (known: {', '.join(self.sizes)})")
        filters = (self.only, self.sizes[size].only, only)
        for text in itertools.chain(*filters):
            self._check_labels(_pairs(text), f"only {text!r}")
        products = itertools.product(*(changes.items() for changes in self.axes.values()))
        cells = [self._cell(chosen) for chosen in products]
        kept = [cell for cell in cells if all(_kept(cell, texts) for texts in filters)]
        if not kept:
            raise ConfigError(f"--only: size {size} has no cell {' or '.join(itertools.chain(*reversed(filters)))}")
        return kept

    def check(self, folder: Path) -> None:
        """Raise ConfigError at the first thing that does not fit together; `folder` is that of the study's file."""
        for axis, changes in self.axes.items():
            wrong = [label for label in (axis, *changes) if not LABEL.fullmatch(label)]
            if wrong:
                raise ConfigError(f"axes.{axis}: {wrong[0]!r} must be of letters, digits and . _ + -")
            for label, overrides in changes.items():
                self._check_overrides(axis, label, overrides)
            if not any(changes.values()):
                raise ConfigError(f"axes.{axis}: names no key; give its labels overrides, such as ['method=fedavg']")
        for column in self.columns:
            parse_column(column)
        for place, entry in enumerate(self.published):
            self.check_published(entry, f"published.{place}.cell", f"published.{place}.column")
        for place, change in enumerate(self.where):
            self._check_labels(change.cell.items(), f"where.{place}.cell")
        for size in self.sizes:
            if not LABEL.fullmatch(size):
                raise ConfigError(f"sizes: {size!r} must be of letters, digits and . _ + -")
            check_axes(self.axes, size, self.cells(size), partial(self.scenario, folder, size=size))
        if self.search:
            self._check_search(self.search, folder)

    def check_column(self, column: str, where: str) -> None:
        """Raise ConfigError, offering the nearest, if the study has no such column."""
        if column not in self.columns:
            offer = meant(column, self.columns)
            raise ConfigError(f"{where}: {column!r} is no column of the study{offer} ({', '.join(self.columns)})")

    def check_published(self, entry: Published, cell_at: str, column_at: str) -> None:
        """Raise ConfigError, which names these places, if a published number is of no column or cell of the study."""
        self.check_column(entry.column, column_at)
        if SEED in entry.cell:
            raise ConfigError(f"{cell_at}: a published value belongs to no seed")
        self._check_labels(entry.cell.items(), cell_at)

    def scenario(self, folder: Path, cell: Cell, size: str) -> Scenario:
        """Return the scenario of a cell. Raises ConfigError that names the cell and the key at fault."""
        try:
            base = {**self._base(folder), **dict.fromkeys(self.without)}
            return load_scenario(base, self._overrides(cell, size))
        except ConfigError as error:
            raise ConfigError(f"size {size}, cell {cell.name}: {error}") from error

    def layers(self, folder: Path, cell: Cell, size: str) -> Layers:
        """Return the layers in which the scenario of a cell is written. Raises ConfigError as `load_scenario` does."""
        return Layers.of(self._base(folder), self._overrides(cell, size), self.without)

    def _overrides(self, cell: Cell, size: str) -> list[str]:
        return [*self.overrides, *cell.overrides, *self.sizes[size].overrides]

    def _base(self, folder: Path) -> dict[str, Any]:
        if isinstance(self.base, str):
            return {"extends": str(scenario_file(self.base, folder).resolve())}
        return dict(located(self.base, folder.resolve(), "base"))

    def _check_search(self, search: Search, folder: Path) -> None:
        """Raise ConfigError unless objectives are columns, and each key may be what the space says that it may."""
        if others := [axis for axis in self.axes if axis != SEED]:
            raise ConfigError(
                f"axes.{others[0]}: beside a search there is the axis seed alone; put it into search.space"
            )
        for column in search.objectives:
            self.check_column(column, "search")
        for key, each in search.space.items():
            for label, overrides in each.choices.items():
                self._check_overrides(key, label, overrides, "search.space")
        for size in self.sizes:
            for key, end, overrides in search.corners():
                self.scenario(folder, Cell({key: end}, overrides), size)
            backend = self.scenario(folder, Cell({}, ()), size).backend
            if search.prune and not backend.value.trains:
                raise ConfigError(f"search.prune: goes by accuracy, and backend {backend.name} trains nothing")
            objective = self.scenario(folder, Cell({}, ()), size).objective
            if search.prune and ACCURACY not in objective.value.metrics:
                raise ConfigError(f"search.prune: goes by accuracy, which objective {objective.name} does not have")

    def _cell(self, chosen: Sequence[tuple[str, tuple[str, ...]]]) -> Cell:
        labels = {axis: label for axis, (label, _) in zip(self.axes, chosen, strict=True)}
        changes = [overrides for _, overrides in chosen]
        changes += [change.overrides for change in self.where if change.cell.items() <= labels.items()]
        return Cell(labels, tuple(itertools.chain(*changes)))

    def _check_overrides(self, axis: str, label: str, overrides: Sequence[str], section: str = "axes") -> None:
        """Raise ConfigError if a label has values in place of overrides, as TOML takes dots of a key for tables."""
        wrong = [text for text in overrides if "=" not in text]
        if wrong:
            raise ConfigError(
                f"{section}.{axis}.{label}: {wrong[0]!r} is no override, key=value; an axis that is named after a key "
                f'with dots needs quotation marks: "{axis}.{label}" = [...]'
            )

    def _check_labels(self, pairs: Any, where: str) -> None:
        for axis, label in pairs:
            if label not in self.axes.get(axis, ()):
                known = (
                    f"{axis}: {', '.join(self.axes[axis])}" if axis in self.axes else f"axes: {', '.join(self.axes)}"
                )
                raise ConfigError(f"{where}: no cell has {axis}={label} ({known})")


def load_study(path: Path) -> Study:
    """Return the study of a TOML file, all of its scenarios tried. Raises ConfigError, one line that names the file."""
    table = read_toml(path)
    if table.keys() & {*Scenario.model_fields, "extends"} - {"name"} and not table.keys() & {"base", "axes", "columns"}:
        raise ConfigError(f"{path}: is a scenario, not a study; run it with: edgesim run {path}")
    named = table.get("published")
    study = _as_kind(path, table if not isinstance(named, str) else {**table, "published": ()}, Study)
    try:
        if isinstance(named, str):
            study = study.model_copy(update={"published": read_published(path.parent / named, study)})
        study.check(path.parent)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return study


def study_of(table: Mapping[str, Any], folder: Path) -> Study:
    """Return the study of a table, all of its scenarios tried. Raises ConfigError, one line that begins with "study".

    `folder`: from which the base is meant.
    """
    study = _as_kind("study", table, Study)
    try:
        study.check(folder)
    except ConfigError as error:
        raise ConfigError(f"study: {error}") from error
    return study


def read_fixed(path: Path, kind: type[_Kind]) -> _Kind:
    """Return the table of a TOML file as `kind`. Raises ConfigError, one line that names the file and the key."""
    return _as_kind(path, read_toml(path), kind)


def read_labels(option: str, text: str) -> dict[str, str]:
    """Return the labels of a text such as "method=fedavg,deadline=30 s" by axis. Raises ConfigError if it is none."""
    if not all("=" in word for word in text.split(",")):
        raise ConfigError(f"{option}: must be labels such as method=fedavg,deadline=30_s, got {quoted(text)}")
    return dict(_pairs(text))


def read_published(path: Path, study: Study) -> tuple[Published, ...]:
    """Return the published numbers of a study's CSV file, in the order of its rows.

    Its header has names of axes, `column` and `value`, and may have `source`, a text for readers. An empty label: all
    cells, whatever label of that axis they have. Raises ConfigError, one line that names the file and its line.
    """
    header, records = csv_records(path, ConfigError)
    _check_header(path, header, study)
    return tuple(_published(row, f"{path} line {line}", study) for line, row in records)


def _check_header(path: Path, header: Sequence[str], study: Study) -> None:
    words = (_COLUMN, _VALUE, _SOURCE)
    if taken := [axis for axis in study.axes if axis in words]:
        raise ConfigError(f"{path}: {taken[0]!r} is a name of its own there; rename the axis of the study")
    allowed = [*(axis for axis in study.axes if axis != SEED), *words]
    if len(set(header)) < len(header) or not {_COLUMN, _VALUE} <= set(header) <= set(allowed):
        found = in_short(", ".join(header)) or "nothing"
        needs = f"the header needs {_COLUMN} and {_VALUE}, no name twice (allowed: {', '.join(allowed)})"
        raise ConfigError(f"{path} line 1: {needs}, got {found}")


def _published(row: Mapping[str, str], where: str, study: Study) -> Published:
    try:
        value = _NUMBER.validate_python(row[_VALUE].strip())
    except ValidationError as error:
        raise ConfigError(f"{where}: {_VALUE}: must be a finite number, got {quoted(row[_VALUE])}") from error
    labels = {axis: label for axis, label in row.items() if axis in study.axes and label.strip()}
    entry = Published(cell=labels, column=row[_COLUMN].strip(), value=value)
    study.check_published(entry, where, f"{where}: {_COLUMN}")
    return entry


def _as_kind(path: Path | str, table: Mapping[str, Any], kind: type[_Kind]) -> _Kind:
    try:
        return kind.model_validate(table)
    except ValidationError as error:
        keys = ".".join(map(str, error.errors(include_url=False)[0]["loc"]))
        raise ConfigError(": ".join(filter(None, (str(path), keys, reason(error))))) from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _pairs(text: str) -> list[tuple[str, str]]:
    pairs = (word.partition("=") for word in text.split(","))
    return [(axis.strip(), as_label(label)) for axis, _, label in pairs]


def _kept(cell: Cell, only: Sequence[str]) -> bool:
    return not only or any(set(_pairs(text)) <= cell.labels.items() for text in only)
