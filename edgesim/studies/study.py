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
from edgesim.files.atomic import write_text
from edgesim.files.reading import csv_records, in_short, quoted, read_text
from edgesim.records.lock import hold
from edgesim.runs.warnings import effective
from edgesim.studies.column import parse_column

LABEL = re.compile(r"[\w.+-]+")  # labels become names of folders and words of --only
_NO_LABEL = re.compile(r"[^\w.+-]+")  # characters of values that labels cannot have, such as the blank of "30 s"

Changes: TypeAlias = Mapping[str, tuple[str, ...]]  # label -> overrides


class FixedKeys(BaseModel):
    """A table with fixed keys. An unknown key is refused, and the error offers the nearest known one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @validator(mode="before")
    @classmethod
    def _known_keys(cls, given: Any) -> Any:
        if isinstance(given, Mapping):
            check_keys(given, cls.model_fields)
        return given


def as_label(value: str) -> str:
    """Return a value as a label: each run of characters that labels cannot have becomes "_"."""
    return _NO_LABEL.sub("_", value.strip())


def labelled(key: str, items: list[Any]) -> dict[str, tuple[str, ...]]:
    """Return the overrides of each value of a key, by the label of the value.

    Raises ValidationError for an item that is no value, and for two values with the same label.
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
    """Return a value in TOML syntax, including inf."""
    return repr(value) if isinstance(value, float) else json.dumps(value)


def check_axes(
    axes: Mapping[str, Changes], size: str, cells: Sequence[StudyCell], scenario_of: Callable[[StudyCell], Scenario]
) -> None:
    """Raise ConfigError with the reason if an axis changes nothing in the cells of a size.

    An axis changes something if two cells that differ only in its label also differ in a key that has an effect. An
    axis without two such cells is not checked. That happens where `only` ties its labels to labels of other axes.
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
            void = effective(scenario_of(cells[0]))[1]  # key without effect -> reason
            written = [tuple(path) for overrides in axes[axis].values() for path, _ in read_overrides(overrides)]
            reasons = (
                f"{'.'.join(key)} has no effect{why}"
                for path, (key, why) in itertools.product(written, void.items())
                if key[: len(path)] == path or path[: len(key)] == key
            )
            keys = ", ".join(dict.fromkeys(".".join(path) for path in written))
            replaced = f"{keys} has these values without it, or the size, [[where]] or a later axis replaces them"
            why = next(reasons, replaced)
            raise ConfigError(f"axes.{axis}: changes nothing, as in size {size} {labels} are the same run: {why}")


TRIAL = "trial"  # the axis that the trials of a search add to their study
MILESTONES = "stop.milestones"  # the scenario key that prunes trials
_FILE = "trials.json"
_TRIALS = TypeAdapter(dict[Annotated[str, StringConstraints(pattern=r"^[0-9]+$")], tuple[str, ...]])  # names of folders

_PLAIN = re.compile(r"-?\d+(\.\d+)?(e[-+]\d+)?")  # a number as Python writes it


def _number(given: Any) -> int | float:
    """Return a number with its type: 1 stands for whole numbers, 1.0 for real ones."""
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        raise refusal(f"must be a finite number, got {quoted(given)}")
    return given


_Number: TypeAlias = Annotated[Any, BeforeValidator(_number)]


class Dimension(FixedKeys):
    """Possible values of a scenario key: a number from `low` to `high`, or one of several choices.

    The number is whole if `low` and `high` are both written as whole numbers. `log`: equal ratios are equally likely.
    `step`: only the values low, low + step, ... `unit`: the text behind the number, such as "Mbit/s". `choices`: labels
    with their overrides. A list of values, or a table with labels alone, also counts as `choices`.
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
        """True if the dimension is a range of whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def ends(self) -> list[Any]:
        """Return both ends of a range, or all choices."""
        return [*self.choices] if self.choices else [self.low, self.high]

    def overrides(self, key: str, value: Any) -> tuple[str, ...]:
        """Return the overrides for a number, or for the label of a choice."""
        if self.choices:
            return self.choices[value]
        return (f"{key}={as_toml(f'{value!r} {self.unit}' if self.unit else value)}",)

    def allows(self, key: str, override: str) -> bool:
        """Return True if an override belongs to one of the choices, or sets the key to a number with the unit."""
        if self.choices:
            return any(override in each for each in self.choices.values())
        value = override.removeprefix(f"{key}=").strip('"').removesuffix(f" {self.unit}")
        return override.startswith(f"{key}=") and bool(_PLAIN.fullmatch(value))


class Prune(FixedKeys):
    """Early stopping of trials whose accuracy falls behind at one of the simulated times `at`.

    The accuracy compared is the best so far, averaged over seeds. It must be at least the `quantile` of the earlier
    trials that were not pruned, once there are `after` of them. The default `quantile` 0.5 is their median.
    """

    at: Annotated[tuple[Seconds, ...], MinLen(1), AfterValidator(lambda times_s: tuple(sorted(set(times_s))))]
    after: Count = 5
    quantile: Annotated[float, Gt(0), Lt(1)] = 0.5


class Search(FixedKeys):
    """Search of a study: a space of scenario keys, and the columns of the study to minimise or maximise.

    `batch`: number of trials that are drawn together, from all trials before the batch. It does not depend on how many
    trials run in parallel. `startup`: number of trials that are drawn at random. `seed`: seed of these draws. The seeds
    of the runs are the axis seed.
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
        if not isinstance(given, Mapping):
            return given
        space = dict(given)
        for key, item in given.items():
            if isinstance(item, list):
                space[key] = {"choices": labelled(key, item)}
            elif isinstance(item, Mapping) and item and all(isinstance(each, list) for each in item.values()):
                space[key] = {"choices": item}
        return space

    @validator(mode="after")
    def _objectives(self) -> Search:
        if not self.objectives:
            raise refusal("needs minimise or maximise, lists of columns of the study")
        if len(set(self.objectives)) < len(self.objectives):
            raise refusal("minimise and maximise name a column twice")
        if self.prune and len(self.objectives) > 1:
            raise refusal("prune goes with one objective: a trial that is late at one may be the best at another")
        return self

    @property
    def objectives(self) -> tuple[str, ...]:
        """Columns to optimise: those to minimise, then those to maximise."""
        return (*self.minimise, *self.maximise)

    def overrides(self, point: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the overrides of a point of the space (key -> number or label), in the order of the space."""
        return tuple(text for key, each in self.space.items() for text in each.overrides(key, point[key]))

    def corners(self) -> Iterator[tuple[str, str, tuple[str, ...]]]:
        """Yield each key with each end of its range, or each of its choices, and the overrides of that value."""
        for key, each in self.space.items():
            for end in each.ends():
                yield key, str(end), each.overrides(key, end)


# --- trials ---------------------------------------------------------------------------------------------------


def with_trials(study: Study, folder: Path) -> Study:
    """Return a study with the trials of its search as the first axis, read from the folder of its runs.

    A study without a search, or with this axis, is returned unchanged. Raises ConfigError if no trial was drawn, or if
    the trials belong to another search.
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
    """Return the trials in a folder, label -> overrides. They are empty if the file is missing or of another search.

    Raises ConfigError if the file is damaged, or has an override that the search does not draw.
    """
    file = folder / _FILE
    if not file.exists():
        return {}
    try:
        table = from_json(read_text(file, ConfigError))
        trials = _TRIALS.validate_python(table["trials"])
        same = to_json(table["search"]) == to_json(search.model_dump(mode="json"))
        for label, override in ((label, each) for label, overrides in trials.items() for each in overrides):
            drawn = override.startswith(f"{MILESTONES}=[") or any(
                dimension.allows(key, override) for key, dimension in search.space.items()
            )
            if same and not drawn:  # the file may come from elsewhere, and an override may name any class to import
                raise ValueError(f"trial {label} has {quoted(override)}, which the search does not draw")
    except (ValueError, TypeError, LookupError) as error:
        raise ConfigError(f"{file}: is damaged; remove it, the runs stay: {in_short(error)}") from error
    return trials if same else {}


def write_trials(search: Search, trials: Changes, folder: Path) -> None:
    """Write the trials of a search atomically. Raises ConfigError if the file cannot be written."""
    file = folder / _FILE
    table = {"search": search.model_dump(mode="json"), "trials": trials}
    with hold(file, wait=True):  # two commands may work on one search
        write_text(file, to_json(table, indent=1).decode())


SEED = "seed"  # the axis over which statistics are computed
USUAL = "quick"  # the default size
_COLUMN, _VALUE, _SOURCE = "column", "value", "source"  # header of a CSV file of published numbers, beside axes
_NUMBER = TypeAdapter(FiniteFloat)

_Kind = TypeVar("_Kind", bound=FixedKeys)


class Size(FixedKeys):
    """Size of a study: overrides that are applied last, and the cells to keep (all if none are named)."""

    overrides: tuple[str, ...] = ()
    only: tuple[str, ...] = ()


Labels: TypeAlias = Mapping[str, Annotated[str, AfterValidator(as_label)]]  # axis -> label, or its value


class PublishedValue(FixedKeys):
    """A published number in the unit of its column, for all cells that have the labels of `cell`.

    `cell` cannot name the seed. Where several numbers fit one cell and column, the first one counts.
    """

    cell: Labels
    column: str
    value: FiniteFloat


class Where(FixedKeys):
    """Overrides of all cells with the labels of `cell`, for values that depend on several axes, such as tuned rates."""

    cell: Annotated[Labels, MinLen(1)]
    overrides: Annotated[tuple[str, ...], MinLen(1)]


@dataclass(frozen=True)
class StudyCell:
    """One run of a study: a label for each axis, and the overrides of these labels."""

    labels: Mapping[str, str]
    overrides: tuple[str, ...]

    @property
    def name(self) -> str:
        """Labels in the form of `--only`, such as "method=fedavg,seed=1"."""
        return ",".join(f"{axis}={label}" for axis, label in self.labels.items())

    @property
    def group(self) -> dict[str, str]:
        """Labels of all axes except the seed."""
        return {axis: label for axis, label in self.labels.items() if axis != SEED}


class Study(FixedKeys):
    """Contents of a study file.

    `base`: path of the base scenario relative to the study file, a scenario as a table, or a scenario that comes with
    edgesim, such as "edgesim:quickstart". Paths in overrides are relative to the current folder. `without`: keys of the
    base that the study drops, such as the data set where only times are wanted. `overrides`: overrides of all cells.
    `axes`: each is a table of labels with their overrides, or a list of values of the key that the axis is named after.
    If one key is overridden several times, the last override counts: first those of the study, then of the axes in
    their order, of `where` in its order, and of the size. `only`: the cells to keep where not every combination of
    labels makes sense. `published`: numbers to compare with, or a CSV file with them (see `read_published`). `search`:
    a search whose trials become an axis (see `with_trials`). `question`: the question that the report answers.
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
    published: tuple[PublishedValue, ...] = ()
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

    def cells(self, size: str, only: Sequence[str] = ()) -> list[StudyCell]:
        """Return the cells of a size. `only` keeps those with all labels of one of its texts "axis=label,axis=label".

        Raises ConfigError for a size or a label that the study does not have.
        """
        if size not in self.sizes:
            raise ConfigError(f"--size: unknown size {size!r} (known: {', '.join(self.sizes)})")
        filters = (self.only, self.sizes[size].only, only)
        for text in itertools.chain(*filters):
            self._check_labels(_pairs(text), f"only {text!r}")
        kept = []
        for chosen in itertools.product(*(changes.items() for changes in self.axes.values())):
            labels = {axis: label for axis, (label, _) in zip(self.axes, chosen, strict=True)}
            changes = [overrides for _, overrides in chosen]
            changes += [change.overrides for change in self.where if change.cell.items() <= labels.items()]
            if all(not texts or any(set(_pairs(text)) <= labels.items() for text in texts) for texts in filters):
                kept.append(StudyCell(labels, tuple(itertools.chain(*changes))))
        if not kept:
            raise ConfigError(f"--only: size {size} has no cell {' or '.join(itertools.chain(*reversed(filters)))}")
        return kept

    def check(self, folder: Path) -> None:
        """Raise ConfigError at the first contradiction in the study. `folder`: the folder of the study's file."""
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
        """Raise ConfigError, which offers the nearest name, if the study has no such column."""
        if column not in self.columns:
            offer = meant(column, self.columns)
            raise ConfigError(f"{where}: {column!r} is no column of the study{offer} ({', '.join(self.columns)})")

    def check_published(self, entry: PublishedValue, cell_at: str, column_at: str) -> None:
        """Raise ConfigError, which names `cell_at` or `column_at`, if a published number fits no cell or no column."""
        self.check_column(entry.column, column_at)
        if SEED in entry.cell:
            raise ConfigError(f"{cell_at}: a published value belongs to no seed")
        self._check_labels(entry.cell.items(), cell_at)

    def published_for(self, group: Mapping[str, str], column: str) -> float | None:
        """Return the published number of a column for cells with these labels; None without one."""
        fits = (each for each in self.published if each.column == column and each.cell.items() <= group.items())
        return next((each.value for each in fits), None)

    def scenario(self, folder: Path, cell: StudyCell, size: str) -> Scenario:
        """Return the scenario of a cell. Raises ConfigError that names the cell and the key at fault."""
        try:
            base = {**self._base(folder), **dict.fromkeys(self.without)}
            return load_scenario(base, self._overrides(cell, size))
        except ConfigError as error:
            raise ConfigError(f"size {size}, cell {cell.name}: {error}") from error

    def layers(self, folder: Path, cell: StudyCell, size: str) -> Layers:
        """Return the layers of files and overrides that make up a cell's scenario. Raises as `load_scenario` does."""
        return Layers.of(self._base(folder), self._overrides(cell, size), self.without)

    def _overrides(self, cell: StudyCell, size: str) -> list[str]:
        return [*self.overrides, *cell.overrides, *self.sizes[size].overrides]

    def _base(self, folder: Path) -> dict[str, Any]:
        if isinstance(self.base, str):
            return {"extends": str(scenario_file(self.base, folder).resolve())}
        return dict(located(self.base, folder.resolve(), "base"))

    def _check_search(self, search: Search, folder: Path) -> None:
        """Raise ConfigError unless objectives are columns, and the scenario accepts the values of the space."""
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
                self.scenario(folder, StudyCell({key: end}, overrides), size)
            backend = self.scenario(folder, StudyCell({}, ()), size).backend
            if search.prune and not backend.value.trains:
                raise ConfigError(f"search.prune: goes by accuracy, and backend {backend.name} trains nothing")
            objective = self.scenario(folder, StudyCell({}, ()), size).objective
            if search.prune and ACCURACY not in objective.value.metrics:
                raise ConfigError(f"search.prune: goes by accuracy, which objective {objective.name} does not have")

    def _check_overrides(self, axis: str, label: str, overrides: Sequence[str], section: str = "axes") -> None:
        """Raise ConfigError if a label has values, not overrides: TOML reads dots in an unquoted key as tables."""
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
    """Return the study of a TOML file, after building all its scenarios. Raises ConfigError, one line with the file."""
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
    """Return the study of a table, after building all its scenarios. Raises ConfigError, one line from "study" on.

    `folder`: the folder to which the path of the base is relative.
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
    """Return the labels in a text such as "method=fedavg,deadline=30 s" by axis. Raises ConfigError for other texts."""
    if not all("=" in word for word in text.split(",")):
        raise ConfigError(f"{option}: must be labels such as method=fedavg,deadline=30_s, got {quoted(text)}")
    return dict(_pairs(text))


def read_published(path: Path, study: Study) -> tuple[PublishedValue, ...]:
    """Return the published numbers of a study's CSV file, in the order of its rows.

    Its header has names of axes, `column` and `value`, and may have `source`, a text for readers. An empty label stands
    for all labels of its axis. Raises ConfigError, one line that names the file and its line.
    """
    header, records = csv_records(path, ConfigError)
    words = (_COLUMN, _VALUE, _SOURCE)
    if taken := [axis for axis in study.axes if axis in words]:
        raise ConfigError(f"{path}: {taken[0]!r} is a name of its own there; rename the axis of the study")
    allowed = [*(axis for axis in study.axes if axis != SEED), *words]
    if len(set(header)) < len(header) or not {_COLUMN, _VALUE} <= set(header) <= set(allowed):
        found = in_short(", ".join(header)) or "nothing"
        needs = f"the header needs {_COLUMN} and {_VALUE}, no name twice (allowed: {', '.join(allowed)})"
        raise ConfigError(f"{path} line 1: {needs}, got {found}")
    entries = []
    for line, row in records:
        where = f"{path} line {line}"
        try:
            value = _NUMBER.validate_python(row[_VALUE].strip())
        except ValidationError as error:
            raise ConfigError(f"{where}: {_VALUE}: must be a finite number, got {quoted(row[_VALUE])}") from error
        labels = {axis: label for axis, label in row.items() if axis in study.axes and label.strip()}
        entry = PublishedValue(cell=labels, column=row[_COLUMN].strip(), value=value)
        study.check_published(entry, where, f"{where}: {_COLUMN}")
        entries.append(entry)
    return tuple(entries)


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
