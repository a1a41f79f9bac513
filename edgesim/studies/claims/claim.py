"""Claims of papers, and recorded results to judge them by."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

from annotated_types import Gt, MinLen
from pydantic import FiniteFloat, TypeAdapter, ValidationError
from pydantic import model_validator as validator

from edgesim.config.units import refusal
from edgesim.core.errors import ConfigError
from edgesim.files.reading import csv_records, in_short, quoted
from edgesim.reports.load import Run
from edgesim.studies.column import parse_column
from edgesim.studies.study import SEED, FixedKeys, Labels, Study, StudyCell, load_study, read_fixed

_RULES = ("number", "order", "difference", "ratio")
ELSEWHERE = "elsewhere"  # size of recorded results that come from no study
Within: TypeAlias = Annotated[FiniteFloat, Gt(0)]


class NumberRule(FixedKeys):
    """Rule about means over seeds of `columns`, in cells with the labels of `cell` but not all labels of `leave_out`.

    `within`: the mean differs from `value` by at most this share of it. Without `value` the published number of the
    study is used. `above`, `below`: the mean is larger, or smaller, than this number.
    """

    columns: Annotated[tuple[str, ...], MinLen(1)]
    cell: Labels = {}
    leave_out: Labels = {}
    value: FiniteFloat | None = None
    within: Within | None = None
    above: FiniteFloat | None = None
    below: FiniteFloat | None = None

    @validator(mode="after")
    def _one_way(self) -> NumberRule:
        if sum(each is not None for each in (self.within, self.above, self.below)) != 1:
            raise refusal("needs one of within, above and below")
        if self.value is not None and self.within is None:
            raise refusal("value: needs within, the share of it that numbers may be off")
        return self


class PairRule(FixedKeys):
    """Rule about a comparison, paired by seed, of `column` in cells with the labels of `first` and of `than`.

    If `than` is a list, each item is compared separately. Labels of other axes are the same on both sides. Only cells
    with the labels of `cell` take part, and no cell with all labels of `leave_out`. `than_column`: the column of the
    other side, if it differs from `column`. `gap_to`: compare the number of the cell with these labels minus the number
    of each side, instead of the numbers themselves.
    """

    column: str
    first: Labels = {}
    than: Labels | Annotated[tuple[Labels, ...], MinLen(1)] = {}
    than_column: str = ""
    gap_to: Labels = {}
    cell: Labels = {}
    leave_out: Labels = {}

    @property
    def others(self) -> tuple[Mapping[str, str], ...]:
        """Labels of each other side."""
        return (self.than,) if isinstance(self.than, Mapping) else self.than

    @property
    def columns(self) -> tuple[str, str]:
        """Columns of both sides."""
        return self.column, self.than_column or self.column

    @validator(mode="after")
    def _two_sides(self) -> PairRule:
        if self.columns[0] == self.columns[1] and any(
            set(other) != set(self.first) or not other for other in self.others
        ):
            raise refusal("first and than must name the same axes, and at least one")
        return self


class OrderRule(PairRule):
    """Rule that `first` is higher, or lower, than each of `than`."""

    first_is: Literal["higher", "lower"]


class DifferenceRule(PairRule):
    """Rule that `first` minus `than` is `value` plus or minus `within`, both in the unit of the column."""

    value: FiniteFloat
    within: Within


class RatioRule(PairRule):
    """Rule that the mean of `first` divided by the mean of `than` is `value`, plus or minus its share `within`."""

    value: FiniteFloat
    within: Within


class Smaller(FixedKeys):
    """A study and size that test a claim on a smaller scale.

    Labels of the claim whose axes the study lacks are ignored. `cell`: labels of axes of this study; only cells with
    them are tested. `column`: the column to compare instead of the claim's column, such as the seconds to an accuracy
    that the smaller study can reach.
    """

    study: str
    size: str
    cell: Labels = {}
    column: str = ""


class PaperReading(FixedKeys):
    """One of several readings of a paper that leaves something open.

    `says`: the reading in words. `instead`: label in the claim's rule -> label of this reading. `study`, `size`: the
    study of this reading, if it has its own. The reading without these three keys is the one that the claim is judged
    under.
    """

    says: str
    instead: Labels = {}
    study: str = ""
    size: str = "full"

    @property
    def is_chosen(self) -> bool:
        """True for the reading that the claim is judged under."""
        return not (self.instead or self.study)


class Claim(FixedKeys):
    """A claim of a paper.

    `where`: the table, figure or section of the paper. `says`: the claim in our words, with its numbers. `study`: path,
    relative to the claims file, of the study that tests the claim in `size` on the paper's scale. `number`, `order`,
    `difference`, `ratio`: the rule to judge by, one of them. `smaller`: studies to use if `study` was not run. `needs`:
    hardware or data that this machine lacks. `cannot`: the reason why no run can test the claim. `elsewhere`: the
    command that tests it without a study. Its numbers are recorded results of the study `id` and the size "elsewhere",
    by which a rule `number` judges. `readings`: the readings that the paper leaves open, if one was chosen after its
    result was known. `why`: the explanation of a difference.
    """

    id: str
    where: str
    says: str
    study: str | None = None
    size: str = "full"
    smaller: tuple[Smaller, ...] = ()
    number: NumberRule | None = None
    order: OrderRule | None = None
    difference: DifferenceRule | None = None
    ratio: RatioRule | None = None
    needs: str = ""
    cannot: str = ""
    elsewhere: str = ""
    readings: tuple[PaperReading, ...] = ()
    why: str = ""

    @property
    def tests(self) -> tuple[Smaller, ...]:
        """Studies that test the claim, the one on the paper's scale first."""
        return (*([Smaller(study=self.study, size=self.size)] if self.study else []), *self.smaller)

    def by(self, test: Smaller) -> Claim:
        """Return the claim as `test` judges it: the rule also has the labels and the column of the test."""
        for name in _RULES:
            rule = vars(self)[name]
            if rule is not None and (test.cell or test.column):
                changes: dict[str, Any] = {"cell": {**rule.cell, **test.cell}}
                if test.column:
                    changes |= {"column": test.column}
                return self.model_copy(update={name: rule.model_copy(update=changes)})
        return self

    def under(self, reading: PaperReading) -> Claim:
        """Return the claim as another reading has it."""
        changes: dict[str, Any] = {"readings": ()}
        if reading.study:
            changes |= {"study": reading.study, "size": reading.size, "smaller": ()}
        name, rule = next((name, rule) for name in _RULES if (rule := vars(self)[name]) is not None)

        def turned(labels: Mapping[str, str]) -> dict[str, str]:
            return {axis: reading.instead.get(label, label) for axis, label in labels.items()}

        parts: dict[str, Any] = {"cell": turned(rule.cell)}
        if not isinstance(rule, NumberRule):
            parts |= {"first": turned(rule.first), "than": tuple(map(turned, rule.others))}
        return self.model_copy(update={**changes, name: rule.model_copy(update=parts)})

    @property
    def rule(self) -> NumberRule | OrderRule | DifferenceRule | RatioRule | None:
        """Rule by which the claim is judged; None without a study."""
        return self.number or self.order or self.difference or self.ratio

    @validator(mode="after")
    def _one_way(self) -> Claim:
        rules = sum(vars(self)[name] is not None for name in _RULES)
        if sum(map(bool, (self.study, self.cannot, self.elsewhere))) != 1:
            raise refusal(f"claim {self.id!r} needs one of study, cannot and elsewhere")
        if rules != bool(self.study) and not (self.elsewhere and self.number and rules == 1):
            says = "one of number, order, difference and ratio" if self.study else "a study to be judged by"
            raise refusal(f"claim {self.id!r} needs {says}")
        if self.elsewhere and self.number and self.number.value is None and self.number.within is not None:
            raise refusal(f"claim {self.id!r}: number: needs value, because elsewhere has no published numbers")
        if self.readings and (not self.study or sum(each.is_chosen for each in self.readings) != 1):
            raise refusal(f"claim {self.id!r}: readings: goes with a study; exactly one has neither instead nor study")
        return self


class ClaimsFile(FixedKeys):
    """The claims of a paper. `paper`: heading. `source`: authors, year and place of publication.

    `readings`: name -> readings that several claims share. A claim gives the name in place of its own list.
    """

    paper: str
    source: str
    readings: Mapping[str, tuple[PaperReading, ...]] = {}
    claims: Annotated[tuple[Claim, ...], MinLen(1)]

    @validator(mode="before")
    @classmethod
    def _named_readings(cls, given: Any) -> Any:
        """Put shared readings in the place of their names."""
        if not isinstance(given, Mapping) or not isinstance(listed := given.get("claims"), list):
            return given
        claims = []
        for claim in listed:
            match claim, given.get("readings", {}):
                case {"id": name, "readings": str(wanted)}, Mapping() as shared:
                    if wanted not in shared:
                        known = ", ".join(shared) or "none"
                        raise refusal(f"claim {name!r}: readings: [readings] has no {wanted!r} (known: {known})")
                    claims.append({**claim, "readings": shared[wanted]})
                case _:
                    claims.append(claim)
        return {**given, "claims": claims}


def load_claims(path: Path, load: Callable[[Path], Study] = load_study) -> ClaimsFile:
    """Return the claims of a file, checked against their studies, each of which `load` returns.

    Raises ConfigError, one line that names the file.
    """
    found, load = read_fixed(path, ClaimsFile), cache(load)
    seen: set[str] = set()
    for claim in found.claims:
        if claim.id in seen:
            raise ConfigError(f"{path}: two claims have the id {claim.id!r}")
        seen.add(claim.id)
        for test in claim.tests:
            try:
                _check(claim.by(test), test, load(path.parent / test.study), smaller=test != claim.tests[0])
            except ConfigError as error:
                raise ConfigError(f"{path}: claim {claim.id!r}: {error}") from error
        for reading in (each for each in claim.readings if not each.is_chosen):
            other = claim.under(reading)
            test = other.tests[0]
            try:
                _check(other, test, load(path.parent / test.study), smaller=bool(reading.study))
            except ConfigError as error:
                raise ConfigError(f"{path}: claim {claim.id!r}: reading {reading.says!r}: {error}") from error
    return found


def fitting(labels: Mapping[str, str], study: Study) -> dict[str, str]:
    """Return the labels whose axes the study has."""
    return {axis: label for axis, label in labels.items() if axis in study.axes}


def _check(claim: Claim, test: Smaller, study: Study, smaller: bool) -> None:
    """Raise ConfigError unless a study has the size, columns and labels that a claim names."""
    for axis, label in test.cell.items():
        if label not in study.axes.get(axis, ()):
            raise ConfigError(f"{test.study}: smaller.cell: no cell has {axis}={label}")
    if test.size not in study.sizes:
        raise ConfigError(f"{test.study}: unknown size {test.size!r} (known: {', '.join(study.sizes)})")
    rule = claim.rule
    if rule is None:
        return
    if test.column and (isinstance(rule, NumberRule) or rule.than_column):
        raise ConfigError(f"smaller.column: goes with a claim about one column of several cells, found {test.column!r}")
    for column in rule.columns:
        parse_column(column)
    pairs = [] if isinstance(rule, NumberRule) else [rule.first, *rule.others, rule.gap_to]
    sides = [rule.cell, rule.leave_out, *pairs]
    for labels in sides:
        for axis, label in (fitting(labels, study) if smaller else labels).items():
            if axis == SEED or label not in study.axes.get(axis, ()):
                known = ", ".join(study.axes.get(axis, ())) or f"axes: {', '.join(study.axes)}"
                raise ConfigError(f"{test.study}: no cell has {axis}={label} ({known})")


_NUMBER = TypeAdapter(FiniteFloat)
_OBSERVED = {"yes": True, "no": False}


class RecordedResult(NamedTuple):
    """A number of a run: the value of `column` in a cell of a study and size.

    Size "elsewhere": the number of another program; `study` is the id of the claim and `column` any name.

    `observed`: False if the run did not reach the target, so that the value is only the amount it spent. `revision`:
    revision of the code, `date`: day of the run, "" if unknown. `source`: the page with the number, "" if the number
    was read from a run folder.
    """

    study: str
    size: str
    cell: str
    seed: str
    column: str
    value: float
    observed: bool
    revision: str = ""
    date: str = ""
    source: str = ""

    @property
    def key(self) -> tuple[str, ...]:
        """Identity of the number: study, size, cell, seed and column."""
        return self.study, self.size, self.cell, self.seed, self.column

    @property
    def labels(self) -> dict[str, str]:
        """Labels of all axes except the seed."""
        return dict(word.split("=", 1) for word in self.cell.split(",") if word)


def read_results(path: Path) -> list[RecordedResult]:
    """Return the numbers of a file of results. Raises ConfigError, one line that names the file and its line."""
    header, records = csv_records(path, ConfigError)
    if header != list(RecordedResult._fields):
        raise ConfigError(
            f"{path} line 1: the header must be {', '.join(RecordedResult._fields)}, got {in_short(header)}"
        )
    results = []
    for line, row in records:
        where = f"{path} line {line}"
        try:
            value = _NUMBER.validate_python(row["value"])
        except ValidationError as error:
            raise ConfigError(f"{where}: value: must be a finite number, got {quoted(row['value'])}") from error
        if row["observed"] not in _OBSERVED:
            raise ConfigError(f"{where}: observed: must be yes or no, got {quoted(row['observed'])}")
        if not all("=" in word for word in row["cell"].split(",") if word):
            raise ConfigError(f"{where}: cell: must be labels such as method=fedavg,x=1, got {quoted(row['cell'])}")
        try:
            if row["size"] != ELSEWHERE:
                parse_column(row["column"])
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
        observed = _OBSERVED[row["observed"]]
        results.append(RecordedResult(**{**row, "value": value, "observed": observed}))  # type: ignore[arg-type]
    return results


def written(results: Iterable[RecordedResult]) -> str:
    """Return the text of a file of results, sorted by study, size, cell, seed and column."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(RecordedResult._fields)
    for each in sorted(results, key=lambda one: one.key):
        lines.writerow(each._replace(value=repr(each.value), observed="yes" if each.observed else "no"))  # type: ignore[arg-type]
    return text.getvalue()


def results_of(study: str, size: str, cell: StudyCell, run: Run, columns: Iterable[str]) -> list[RecordedResult]:
    """Return the numbers of a run for the columns; columns without a number are left out."""
    about = run.manifest
    group = ",".join(f"{axis}={label}" for axis, label in cell.group.items())
    made = (str((about.get("git") or {}).get("revision") or "")[:7], str(about.get("date", ""))[:10])
    found = []
    for column in columns:
        number = parse_column(column).reading(run)
        if not math.isnan(number.value):
            seed = cell.labels.get(SEED, "")
            found.append(RecordedResult(study, size, group, seed, column, number.value, number.observed, *made))
    return found
