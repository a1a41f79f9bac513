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
    """Ranking of the settings in one column. `of`: the column. `lower`: less of it is better.

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
class Effect:
    """Effect of an axis of two values on a column: `label` compared with `base`, all other axes being equal.

    `against`: rows as in `Findings.compared`. Their `setting` has the labels of the other axes.
    """

    axis: str
    label: str
    base: str
    of: str
    against: pd.DataFrame


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
    and column, with setting, column, runs, reached, share, restricted_mean, km_median, km_low and km_high. It also has
    the numbers that the report shows: middle, middle_low, middle_high (95 % interval), and statistic, "mean" or
    "median", the same for all settings of a column. `compared`: a row per setting and column, with setting, column,
    pairs, difference, ratio, low, high and p_holm, paired by seed with `baseline`. `points`, `energy`, `accounts`,
    `devices`, `lengths`, `costs` and `cost_items` are frames of edgesim.reports.figure_numbers. Frames without rows are
    left out of the report.
    """

    title: str
    question: str
    settings: Sequence[str]
    axes: str  # the differences between settings, in words
    columns: Sequence[str]
    lower: Mapping[str, bool | None]  # True: less of a column is better; None: not known
    baseline: str
    values: pd.DataFrame
    summary: pd.DataFrame
    compared: pd.DataFrame
    contests: Sequence[Contest]
    effects: Sequence[Effect]
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


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An entry of a legend: a line with a mark, or a filled square if it has no dashes."""

    label: str
    colour: str
    dash: str = ""
    symbol: str = ""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart: a plotly figure, its description in words for readers who cannot see it, and its numbers as a table."""

    name: str
    title: str
    says: str
    figure: Any
    data: ReportTable
    height: int = 320
    wide: bool = False


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
