"""Numbers of figures: frames of runs, and from them the lines, bars and points that pictures and charts draw.

A frame has a column `setting`, the label of a run's setting. `edgesim.reports.pictures` draws these numbers with
matplotlib, `edgesim.reports.html.charts` with plotly.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.integrate import trapezoid

from edgesim.core.errors import ConfigError
from edgesim.core.metrics import ACCURACY
from edgesim.records.run import RecordedRun
from edgesim.reports.critical_path import critical_jobs, late_jobs, phase_intervals_s, round_row, rounds_of
from edgesim.reports.energy import cost_by, energy_by, split_energy
from edgesim.reports.format import DisplayUnit, text, unit_for
from edgesim.reports.groups import AnyRun, points_of

# --- frames of runs ---------------------------------------------------------------------------------------------


def accuracy_points(settings: Mapping[AnyRun, str]) -> pd.DataFrame:
    """Return a row per evaluation of the test split: setting, run, accuracy and the cost so far; see `points_of`."""
    return _together(settings, points_of)


def energy_by_activity(settings: Mapping[AnyRun, str]) -> pd.DataFrame:
    """Return a row per run and activity of the devices: setting, run, activity, joules; see `energy_by`."""
    return _together(settings, lambda run: energy_by(run, "activity")[["joules"]].reset_index())


def energy_by_account(settings: Mapping[AnyRun, str]) -> pd.DataFrame:
    """Return a row per run: setting, run, and the joules of devices, network and server; see `split_energy`."""
    return _together(settings, lambda run: pd.DataFrame([split_energy(run)]))


def energy_by_device(settings: Mapping[AnyRun, str]) -> pd.DataFrame:
    """Return a row per run and device but the server: setting, run, device, joules, idle power included."""
    uses = ["down_j", "compute_j", "up_j", "idle_j", "sleep_j"]

    def joules(run: RecordedRun) -> pd.DataFrame:
        devices = run.devices[run.devices["device"] >= 0]
        return pd.DataFrame({"device": devices["device"], "joules": devices[uses].sum(axis=1)})

    return _together(settings, joules)


def lengths_of_rounds(settings: Mapping[AnyRun, str]) -> pd.DataFrame:
    """Return a row per closed round: setting, run, round (from 1), length_s."""

    def lengths(run: RecordedRun) -> pd.DataFrame:
        rounds = run.rounds
        return pd.DataFrame({"round": rounds["round"] + 1, "length_s": rounds["now_s"] - rounds["start_s"]})

    return _together(settings, lengths)


def cost_points(settings: Mapping[AnyRun, str]) -> pd.DataFrame:
    """Return a row per closed round of runs with prices: setting, run, sim_time_s, and totals of money and carbon.

    The totals are total_cost and total_co2e_g with low and high, as in the table rounds. No row without priced runs.
    """
    names = re.compile("now_s|total_cost.*|total_co2e.*")

    def totals(run: RecordedRun) -> pd.DataFrame:
        found = run.rounds[[name for name in map(str, run.rounds) if names.fullmatch(name)]]
        return found.rename(columns={"now_s": "sim_time_s"})

    return _together(_priced(settings), totals)


def cost_by_item(settings: Mapping[AnyRun, str]) -> pd.DataFrame:
    """Return a row per item of each run with prices: setting, run, item, and money and carbon with low and high."""
    return _together(_priced(settings), lambda run: cost_by(run, "item"))


def _priced(settings: Mapping[AnyRun, str]) -> dict[AnyRun, str]:
    return {run: label for run, label in settings.items() if run.is_priced}


def _together(settings: Mapping[AnyRun, str], of: Callable[[AnyRun], pd.DataFrame]) -> pd.DataFrame:
    """Return the frames of runs below each other, with setting and run, the number of the run."""
    frames = [of(run).assign(setting=label, run=place) for place, (run, label) in enumerate(settings.items())]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=["setting", "run"])


def settings_of(frame: pd.DataFrame, needs: Sequence[str]) -> list[str]:
    """Return the settings of a frame in their order.

    Raises ConfigError if it has no row or lacks a column, as nothing would be drawn.
    """
    missing = [name for name in ("setting", *needs) if name not in frame]
    if missing:
        raise ConfigError(
            f"picture: the frame lacks {', '.join(missing)} (it has {', '.join(map(str, frame.columns))})"
        )
    if frame.empty:
        raise ConfigError("picture: there is nothing to draw")
    return list(dict.fromkeys(frame["setting"].astype(str)))


# --- lines ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FigureLine:
    """A line of a figure: its points, with x in the unit of the axis, and the lower and upper end of a band, if any."""

    label: str
    x: np.ndarray
    y: np.ndarray
    band: tuple[np.ndarray, np.ndarray] | None = None
    gini: float = math.nan  # mean Gini coefficient of a Lorenz curve


def mean_and_range(curves: Sequence[pd.DataFrame], quantity: str, metric: str = ACCURACY) -> pd.DataFrame:
    """Return the mean of a metric of several curves, and the lowest and highest, wherever one of them has a point.

    Between its points a curve is a straight line. A run that has ended keeps its last value, as its model does, so the
    mean covers the same runs everywhere. The result begins where all curves have begun and ends with the last run.
    Columns: `quantity`, mean, low, high.
    """
    begin = max(each[quantity].iloc[0] for each in curves)
    grid = np.unique(np.concatenate([each[quantity].to_numpy(dtype=float) for each in curves]))
    grid = grid[grid >= begin]
    values = np.array([np.interp(grid, each[quantity], each[metric]) for each in curves])
    return pd.DataFrame(
        {quantity: grid, "mean": values.mean(axis=0), "low": values.min(axis=0), "high": values.max(axis=0)}
    )


def accuracy_lines(points: pd.DataFrame, quantity: str, metric: str = ACCURACY) -> tuple[DisplayUnit, list[FigureLine]]:
    """Return the unit of a quantity and a metric against it, a line per setting: see `mean_and_range`.

    `points`: a row per evaluation, with setting, run, the metric and the quantity, ascending in a run. A single run has
    no band. Raises ConfigError if there is nothing to draw.
    """
    labels = settings_of(points, ["run", metric, quantity])
    unit, lines = unit_for(quantity, float(points[quantity].max())), []
    for label in labels:
        runs = [of_run for _, of_run in points[points["setting"] == label].groupby("run", sort=False)]
        found = mean_and_range(runs, quantity, metric)
        at, mean, low, high = found.to_numpy().T
        lines.append(FigureLine(label=label, x=at / unit.size, y=mean, band=(low, high) if len(runs) > 1 else None))
    return unit, lines


def length_lines(rounds: pd.DataFrame) -> tuple[DisplayUnit, list[FigureLine]]:
    """Return the unit of lengths and the share of rounds that are done within a time, a line per setting.

    `rounds`: a row per round, with setting and length_s. Raises ConfigError if there is nothing to draw.
    """
    labels = settings_of(rounds, ["length_s"])
    unit, lines = unit_for("_s", float(rounds["length_s"].max())), []
    for label in labels:
        lengths = np.sort(rounds["length_s"][rounds["setting"] == label].to_numpy(dtype=float)) / unit.size
        lines.append(FigureLine(label=label, x=lengths, y=np.arange(1, len(lengths) + 1) / len(lengths)))
    return unit, lines


def lorenz_curve(amounts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the share of devices, the thriftiest first, and their share of all amounts.

    Both are of shape (devices + 1,) and run from 0 to 1. If all amounts are 0, they count as equal.
    """
    ascending = np.sort(np.asarray(amounts, dtype=np.float64))
    devices = np.linspace(0.0, 1.0, len(ascending) + 1)
    total = ascending.sum()
    return devices, np.concatenate([[0.0], np.cumsum(ascending)]) / total if total > 0 else devices


def gini(amounts: np.ndarray) -> float:
    """Return the Gini coefficient: twice the area between the Lorenz curve and the diagonal, from 0 to below 1."""
    return float(1.0 - 2.0 * trapezoid(*lorenz_curve(amounts)[::-1]))


def lorenz_lines(devices: pd.DataFrame, value: str = "joules") -> list[FigureLine]:
    """Return Lorenz curves, a line per setting: the mean of the curves of its runs.

    `devices`: a row per run and device, with setting, run and `value`. Raises ConfigError if there is nothing to draw.
    """
    lines = []
    for label in settings_of(devices, ["run", value]):
        of_setting = devices[devices["setting"] == label].groupby("run", sort=False)[value]
        runs = [of_run.to_numpy() for _, of_run in of_setting]
        curves = [lorenz_curve(amounts) for amounts in runs]
        at = np.unique(np.concatenate([shares for shares, _ in curves]))
        mean = np.mean([np.interp(at, *curve) for curve in curves], axis=0)
        lines.append(FigureLine(label=label, x=at, y=mean, gini=float(np.mean([gini(amounts) for amounts in runs]))))
    return lines


# --- bars, intervals and points ---------------------------------------------------------------------------------

ACTIVITIES = ("compute", "transmit", "receive", "idle", "sleep")  # of devices, as `attribute_energy` names them


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Stacked bars in base units: means over runs, settings by parts, and the ends of whole bars at other prices."""

    unit: DisplayUnit
    means: pd.DataFrame
    low: np.ndarray | None = None
    high: np.ndarray | None = None


def stacked_bars(spent: pd.DataFrame, part: str, value: str) -> Bars:
    """Return the mean spending on each part over the runs of a setting, the parts in the order of a legend.

    `spent`: with setting, run, `part` and `value`. A run without a row of a part spent nothing on it. With columns
    `value`_low and `value`_high, the bars also have ends at low and high prices. Raises ConfigError if there is nothing
    to draw.
    """
    labels = settings_of(spent, ["run", part, value])
    sums = spent.groupby(["setting", "run", part], sort=False)[value].sum().unstack(fill_value=0)
    means = sums.groupby(level="setting", sort=False).mean().loc[labels]
    known = [name for name in ACTIVITIES if name in means.columns]
    means = means[[*known, *(name for name in means.columns if name not in known)]]
    most, low, high = float(means.sum(axis=1).max()), None, None
    if f"{value}_low" in spent:
        ends = spent.groupby(["setting", "run"], sort=False)[[f"{value}_low", f"{value}_high"]].sum()
        low, high = ends.groupby(level="setting", sort=False).mean().loc[labels].to_numpy().T
        most = max(most, float(high.max()))
    return Bars(unit=unit_for(value, most), means=means, low=low, high=high)


@dataclass(frozen=True, kw_only=True)
class TargetRow:
    """Costs of a target in the runs of a setting, in base units, and their middle with its interval.

    `arrived` and `censored`: the runs that reached the target, and those that ended before it, of all `runs`.
    """

    label: str
    runs: int
    arrived: pd.DataFrame
    censored: pd.DataFrame
    middle: float
    low: float
    high: float

    @property
    def begin(self) -> float:
        """Start of the line of the interval; NaN if neither the interval nor its middle is known."""
        return self.low if math.isfinite(self.low) else self.middle if math.isfinite(self.middle) else math.nan


def target_rows(
    values: pd.DataFrame,
    summary: pd.DataFrame,
    quantity: str,
    middle: Sequence[str] = ("km_median", "km_low", "km_high"),
) -> tuple[DisplayUnit, float, list[TargetRow]]:
    """Return the unit of a cost, the largest known number, and the cost of a target for each setting.

    `values`: a row per run, with setting, value (for a run that did not reach the target, the cost at its end) and
    observed (True if it reached it). `summary`: a row per setting, with setting and the columns `middle`: a middle and
    the ends of its interval, where an unknown number is NaN or inf. Raises ConfigError if there is nothing to draw.
    """
    labels = settings_of(values, ["value", "observed"])
    settings_of(summary, middle)
    numbers = np.concatenate([values["value"], *(summary[name] for name in middle)]).astype(float)
    largest = float(numbers[np.isfinite(numbers)].max(initial=0.0))
    there, reached = values["value"].notna(), values["observed"].astype(bool)
    rows = []
    for label in labels:
        own = values["setting"] == label
        ends = summary.loc[summary["setting"] == label, list(middle)]
        at, low, high = ends.iloc[0].astype(float) if len(ends) else (math.nan,) * 3
        row = TargetRow(
            label=label, runs=int(own.sum()),
            arrived=values[own & there & reached], censored=values[own & there & ~reached],
            middle=at, low=low, high=high,
        )  # fmt: skip
        rows.append(row)
    return unit_for(quantity, largest), largest, rows


def jitter(count: int, width: float) -> np.ndarray:
    """Return offsets of runs across a row of a chart, within `width`, so that equal runs do not cover each other.

    Shape (count,). Neighbours differ by about half the width. The same count gives the same offsets.
    """
    return width * ((0.618034 * np.arange(count) + 0.5) % 1.0 - 0.5)


def spans_of(point: Mapping[Any, Any], name: str) -> tuple[float, float] | None:
    """Return the distances from a number to the ends of its interval, below and above; None if one is not known."""
    low, high = (float(point.get(f"{name}_{end}", math.nan)) for end in ("low", "high"))
    if not math.isfinite(low + high):
        return None
    return max(0.0, point[name] - low), max(0.0, high - point[name])


# --- the activities of devices in a round -----------------------------------------------------------------------

PHASES = ("download", "compute", "upload")


@dataclass(frozen=True, kw_only=True)
class RoundBars:
    """Activities of the devices in a round, and what decided its length.

    `bars`: device, job, phase (one of PHASES), start_s and end_s since the round's start, outcome. A phase without
    length has no row. `critical`: devices of the critical path without those that the deadline cut off.
    """

    number: int
    length_s: float
    server_s: float
    deadline_s: float  # since the start of the round; 0 if there is none
    result: str
    critical: list[int]
    kinds: dict[int, str]
    bars: pd.DataFrame

    def last_to_end(self, most: int) -> tuple[list[int], int]:
        """Return the devices that ended last, the last one first, and the number of devices left out."""
        ended = self.bars.groupby("device")[["end_s"]].max().reset_index()
        # Of devices that ended together the lowest goes first.
        devices = ended.sort_values(["end_s", "device"], ascending=[False, True])["device"].tolist()
        return devices[:most], max(0, len(devices) - most)


def round_bars(run: RecordedRun, number: int) -> RoundBars:
    """Return the activities in a round; `number` is 1 for the first. Raises ConfigError if the round did not close."""
    row = round_row(run.rounds, number)
    merge = run.rounds.iloc[[row]].to_dict("records")[0]
    jobs = run.jobs[rounds_of(run.jobs, run.rounds) == row]
    start_s, now_s = merge["start_s"], merge["now_s"]
    begin_s, end_s = (np.clip(times_s, start_s, now_s) - start_s for times_s in phase_intervals_s(jobs))
    bars = pd.concat(
        jobs[["device", "job", "outcome"]].assign(phase=phase, start_s=begin_s[:, i], end_s=end_s[:, i])
        for i, phase in enumerate(PHASES)
    )
    columns = ["device", "job", "phase", "start_s", "end_s", "outcome"]
    lasting = bars.loc[bars["end_s"] > bars["start_s"], columns].sort_values(["device", "start_s"], ignore_index=True)

    path = critical_jobs(run.jobs, run.rounds)
    late = late_jobs(run.jobs, run.rounds, row)
    by_deadline = merge["closed_by"] == "deadline"
    decided_by = path[(path["round"] == merge["round"]) & ~(path["job"].isin(late["job"]) & by_deadline)]
    critical = decided_by["device"].tolist()
    asked = run.jobs[run.jobs["round"] == merge["round"]]
    unasked_s = float(asked["sent_s"].min() - start_s) if len(asked) else 0.0
    if by_deadline:
        decided = f", ended by its deadline with {len(late)} late"
    else:
        decided = f", device {critical[-1]} was the last" if critical else ""
    return RoundBars(
        number=number,
        length_s=now_s - start_s,
        server_s=merge["server_s"],
        deadline_s=merge["deadline_s"] + unasked_s if math.isfinite(merge["deadline_s"]) else 0.0,
        result=f"{text('_s', now_s - start_s)}{decided}, {merge['used']} of {merge['asked']} merged",
        critical=critical,
        kinds=dict(zip(run.devices["device"].tolist(), run.devices["kind"].astype(str).tolist(), strict=True)),
        bars=lasting,
    )
