"""Content of a report before its layout: findings, and the sections, charts and tables made from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from edgesim.reports.figure_numbers import RoundBars


@dataclass(frozen=True, kw_only=True)
class Contest:
    """Ranking of settings in one column. `of`: the column. `lower`: less of it is better.

    `ranking`: rows of the summary (see `Findings.summary`), the best first. `against`: all others compared with the
    best, as in `Findings.compared`.
    """

    of: str
    lower: bool
    ranking: pd.DataFrame
    against: pd.DataFrame
    order: str = ""  # how often the best is ahead of the next in draws of the clocks' errors, in words; "": not known
    order_is_sure: bool = True


@dataclass(frozen=True, kw_only=True)
class AxisEffects:
    """Effects of two or more axes on a column, each from the base setting: what `edgesim study sensitivity` prints.

    `rows`: a row for each label of each axis, the axis with the largest effect first. Columns: axis; label, which
    replaces the label base; all of `tornado`; ties and p_holm as in `Findings.compared`; others, the names of the
    other axes. `at_base`: the middle of the base setting. `alike`: the seeds do not tell apart the two axes with the
    largest effects.
    """

    of: str
    lower: bool
    base: str
    at_base: float
    rows: pd.DataFrame
    alike: bool


@dataclass(frozen=True, kw_only=True)
class SeedsNeeded:
    """Number of seeds with which differences can be confirmed.

    `pairs`: the smallest number of seeds that a setting and the baseline have in common. `tests`: comparisons of one
    column, over which p-values are corrected. `least_p`: the smallest corrected p-value with these pairs. `needed`: the
    smallest number of pairs with one below ALPHA. `command`: the commands that add them, in words; "": not known.
    """

    pairs: int
    tests: int
    least_p: float
    needed: int
    command: str = ""


@dataclass(frozen=True, kw_only=True)
class Level:
    """A label of an axis, or a fleet block: its facts by heading, such as speed, power, rate, trust and source.

    `caution`: why its numbers need care, as a clause, or "".
    """

    name: str
    facts: Mapping[str, str]
    caution: str = ""


@dataclass(frozen=True, kw_only=True)
class ClockErrors:
    """Intervals over `draws` draws of the clocks' errors. `rows`: setting, column, low, median and high."""

    draws: int
    rows: pd.DataFrame
    notes: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Tradeoff:
    """Two columns of all settings. `points`: setting, both columns, each with _low and _high, and front."""

    x: str
    y: str
    points: pd.DataFrame


@dataclass(frozen=True, kw_only=True)
class SlowestRound:
    """The longest round of all runs, and the lines of `explain` about it."""

    run: str
    setting: str
    lines: Sequence[str]
    found: RoundBars


@dataclass(frozen=True, kw_only=True)
class CatalogueEntry:
    """A plug-in that the runs name, such as a method, with the text and the source of its docstring."""

    kind: str
    name: str
    what: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Made:
    """Origin of one run, from its manifest."""

    run: str
    setting: str
    seed: str
    status: str
    date: str
    digest: str
    command: str
    versions: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Data of a report. Frames have a column `setting`: the label of runs that differ in nothing but their seed.

    `values`: a row per run and column, with setting, seed, column, value and observed. `summary`: a row per setting
    and column, with the axes, setting, column, runs, reached, share, restricted_mean, km_median, km_low and km_high. It
    also has the numbers that the report shows: middle, middle_low, middle_high (95 % interval), and statistic, "mean"
    or "median", the same for all settings of a column. `compared`: a row per setting and column, with setting, column,
    pairs, ties, difference, ratio, restricted_to, low, high (see `told_interval`) and p_holm, paired by seed with
    `baseline`. `points`, `energy`, `accounts`, `devices`, `lengths`, `costs` and `cost_items` are frames of
    edgesim.reports.figure_numbers. Frames without rows are left out of the report.
    """

    title: str
    question: str
    settings: Sequence[str]
    axes: Mapping[str, Mapping[str, str]]  # axis -> label -> its name for readers
    columns: Sequence[str]
    lower: Mapping[str, bool | None]  # True: less of a column is better; None: not known
    baseline: str
    values: pd.DataFrame
    summary: pd.DataFrame
    compared: pd.DataFrame
    contests: Sequence[Contest]
    choice: Sequence[Contest]  # contests in turn, each among the settings that the last one did not tell apart
    effects: AxisEffects | None  # None: fewer than two axes, or no number at the base
    seeds: SeedsNeeded
    levels: Mapping[str, Sequence[Level]]  # what was compared: by axis, and the fleet under ""
    tradeoffs: Sequence[Tradeoff]
    targets: Sequence[float]
    points: pd.DataFrame
    energy: pd.DataFrame
    accounts: pd.DataFrame
    devices: pd.DataFrame
    lengths: pd.DataFrame
    costs: pd.DataFrame
    cost_items: pd.DataFrame
    currency: str
    slowest: SlowestRound | None
    fleet: pd.DataFrame  # result of `participation` for the first run
    scenario: Sequence[tuple[str, str]]
    parts: Sequence[CatalogueEntry]
    made: Sequence[Made]
    commands: Sequence[str]
    notes: Sequence[str] = ()  # such as that some cells are missing
    clocks: ClockErrors | None = None  # None: no draws of the clocks' errors were asked for
    models: Sequence[tuple[str, str]] = ()  # where they differ: the model that learns, and the one that is charged


# --- what is laid out -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text, further lines in small type, and the sort key of its row (None: the text)."""

    text: str
    small: Sequence[str] = ()
    key: float | None = None

    @property
    def order(self) -> str:
        """Sort key of the page, as text. Unknown numbers come last."""
        if self.key is None:
            return self.text.casefold()
        return "" if math.isnan(self.key) else f"{self.key!r}"


@dataclass(frozen=True, kw_only=True)
class ReportTable:
    """A table. The last `numbers` columns are numbers, aligned to the right. The first cell names a row."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    numbers: int = 0
    sortable: bool = False
    best: frozenset[tuple[int, int]] = frozenset()  # row and column of cells that stand out
    censored: frozenset[tuple[int, int]] = frozenset()  # of cells of a target that was not reached


@dataclass(frozen=True, kw_only=True)
class Tile:
    """The best setting in one column: a heading, the number, the setting, and a line on its lead."""

    title: str
    value: str
    who: str
    lead: str


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A number of a grid. `share`: length of its bar, relative to the longest.

    `open`: most runs did not reach the target, so that there is no number.
    """

    text: str
    share: float
    open: bool = False
    best: bool = False


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A column of the study over the axes: a row for each label, or combination, and a column for each label.

    `hatching`: what hatched cells stand for; "" if there is none.
    """

    title: str
    head: Sequence[str]  # names of the columns; none if there is one column
    rows: Sequence[tuple[str, Sequence[Bar | None]]]
    hatching: str = ""


@dataclass(frozen=True, kw_only=True)
class FirstScreen:
    """The first screen of a report: `first` in bold, sentences on effects, one on confidence, tiles and grids."""

    first: str
    told: Sequence[str]
    confidence: Sequence[str]
    tiles: Sequence[Tile]
    grids: Sequence[Grid]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An entry of a legend: a line with a mark, or a filled square if it has no dashes."""

    label: str
    colour: str
    dash: str = ""
    symbol: str = ""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart: a plotly figure, its description in words for readers who cannot see it, and its numbers as a table.

    `figure`: None if it would show nothing. Then the page has the words instead of it. `badges`: whose accuracy it is.
    """

    name: str
    title: str
    says: str
    figure: Any
    data: ReportTable
    height: int = 320
    wide: bool = False
    badges: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section of the page."""

    name: str
    title: str
    text: Sequence[str] = ()
    legend: Sequence[Entry] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[ReportTable] = ()
    after: Sequence[str] = field(default_factory=tuple)  # text below charts and tables
    parts: Sequence[CatalogueEntry] = ()
    code: Sequence[str] = ()
