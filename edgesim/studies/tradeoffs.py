"""Trade-offs between configurations of a study: cheapest, Pareto front, sensitivity, break-even, and weighted cost.

Tables of values and of statistics are those of `edgesim.studies.values`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise, permutations
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from edgesim.core.errors import ConfigError
from edgesim.core.metrics import Better
from edgesim.records.run import RecordedRun
from edgesim.studies.column import directions, parse_column
from edgesim.studies.statistics import bootstrap_interval, share_at_least, told_interval
from edgesim.studies.study import SEED
from edgesim.studies.values import against, axes_of, bounds_of, check_labels, parts_of, readings_of, summarised

# --- typical numbers, and the cheapest configuration that reaches a target by a deadline -----------------------------

Statistic: TypeAlias = Literal["mean", "km_median"]


class Typical(NamedTuple):
    """Typical numbers. `frame`: a row for each configuration with its labels, and a number for each column.

    `statistics`: the statistic over seeds by column. It is the mean, or, if a run of any configuration never reached
    the target, the Kaplan-Meier median for all of them (inf: more than any run has spent). NaN: a run has no such
    number at all.
    """

    frame: pd.DataFrame
    statistics: Mapping[str, Statistic]


def typical(rows: pd.DataFrame, columns: Sequence[str]) -> Typical:
    """Return one number for each configuration and column of a table from `summarised`.

    Raises ConfigError for a column that is named twice.
    """
    if twice := [column for column in columns if list(columns).count(column) > 1]:
        raise ConfigError(f"column {twice[0]!r}: is named twice")
    axes = axes_of(rows)
    frame = rows[rows["column"] == rows["column"].iloc[0]][axes].reset_index(drop=True)
    statistics: dict[str, Statistic] = {}
    for column in columns:
        part = rows[rows["column"] == column].reset_index(drop=True)
        all_there = bool((part["reached"] == part["runs"]).all())
        statistics[column] = "mean" if all_there or not parse_column(column).accumulates else "km_median"
        frame[column] = part[statistics[column]]
    return Typical(frame, statistics)


def names_of(labels: pd.DataFrame) -> list[str]:
    """Return the labels of each row as text, see `name_of`."""
    return [name_of({str(axis): str(label) for axis, label in row.items()}) for row in labels.to_dict("records")]


def name_of(labels: Mapping[str, str]) -> str:
    """Return labels as text, such as "method=fedavg,deadline=30_s"."""
    return ",".join(f"{axis}={label}" for axis, label in labels.items())


def cheapest(
    values: pd.DataFrame, goal: str, within: float, price: str, share: float = 0.5, confidence: float = 0.95
) -> pd.DataFrame:
    """Return a row for each configuration of a table from `values_of`, qualified ones first, sorted by price.

    `goal`: a column such as sim_time_s@0.8. `within`: the most of it that a run may need. `price`: the column to
    minimise. A configuration qualifies if at least `share` of its runs over seeds stay within, with this confidence:
    the exact one-sided lower bound of the share is at least `share`. The confidence holds for each configuration
    separately. A run that stopped before `within` without reaching the target counts as late.
    Columns: the axes; runs; in_time; stopped, the number of runs that were stopped before and might still have arrived
    in time; share, share_at_least; the price, see `typical`; qualifies; cheapest. Raises ConfigError for shares that
    are not between 0 and 1.
    """
    _check_shares(share, confidence)
    rows = []
    for labels, name, part in parts_of(values):
        if name == goal:
            needed, observed = readings_of(part)
            runs, in_time = len(needed), int((observed & (needed <= within)).sum())
            stopped = int((~observed & ~(needed >= within)).sum())
            least = share_at_least(in_time, runs, confidence)
            row = {**labels, "runs": runs, "in_time": in_time, "stopped": stopped, "share": in_time / runs}
            rows.append({**row, "share_at_least": least, "qualifies": least >= share})
    prices = typical(summarised(values[values["column"] == price]), [price]).frame[price]
    found = pd.DataFrame(rows).assign(**{price: prices}).sort_values(price, kind="stable", na_position="last")
    found = found.sort_values("qualifies", ascending=False, kind="stable", ignore_index=True)
    first = (found.index == 0) & found["qualifies"] & np.isfinite(found[price])
    order = [name for name in found if name not in (price, "qualifies")] + [price, "qualifies"]
    return found[order].assign(cheapest=first)


def budgets(values: pd.DataFrame, goal: str, share: float = 0.8, confidence: float = 0.95) -> pd.DataFrame:
    """Return a row for each configuration of a table from `values_of`: the smallest budget that reaches a target.

    `goal`: a column that counts up to a target, such as sim_time_s@0.8. With the budget at least `share` of all runs
    reach the target, with this confidence over seeds. Of n runs the k-th smallest amount has a coverage of the Beta
    distribution with k and n - k + 1, whatever the distribution of amounts. The budget is the amount of the smallest k
    whose coverage is at least `share` with the probability `confidence`, an upper tolerance bound. The confidence holds
    for each configuration separately. A run that missed the target counts as one that would need more than all others.
    Columns: the axes; runs; reached; order, the k, 0 if n runs cannot show the share; share_at_least, the lower bound
    of the share of runs that the budget serves; budget, inf if the k-th run missed the target, NaN without a k;
    runs_needed, the runs that can show the share if all reach the target.
    Raises ConfigError for shares that are not between 0 and 1.
    Source: Wilks, "Determination of Sample Sizes for Setting Tolerance Limits" (1941).
    """
    _check_shares(share, confidence)
    rows = []
    for labels, name, part in parts_of(values):
        if name == goal:
            observed = part["observed"].to_numpy(dtype=bool)
            needed = np.sort(np.where(observed, part["value"].to_numpy(dtype=float), np.inf))
            runs = len(needed)
            least = [share_at_least(order, runs, confidence) for order in range(1, runs + 1)]
            order = next((place + 1 for place, found in enumerate(least) if found >= share), 0)
            row = {**labels, "runs": runs, "reached": int(observed.sum()), "order": order}
            row |= {"share_at_least": least[order - 1] if order else max(least, default=0.0)}
            row |= {"budget": needed[order - 1] if order else np.nan, "runs_needed": runs_needed(share, confidence)}
            rows.append(row)
    return pd.DataFrame(rows).sort_values("budget", kind="stable", na_position="last", ignore_index=True)


def _check_shares(share: float, confidence: float) -> None:
    for name, given in (("--share", share), ("--confidence", confidence)):
        if not 0 < given < 1:
            raise ConfigError(f"{name}: must be between 0 and 1, both excluded, got {given:g}")


def runs_needed(share: float, confidence: float) -> int:
    """Return the number of runs, all in time, that show with this confidence that a share of runs is in time.

    If the true share were lower, n runs would all be in time with a probability of at most share ** n. This has to be
    1 - confidence or less.
    """
    runs = math.ceil(math.log(1 - confidence) / math.log(share))
    while share_at_least(runs, runs, confidence) < share:  # rounding
        runs += 1
    return runs


# --- Pareto fronts and their knee points -----------------------------------------------------------------------------

_LEAST_KNEE = 1e-9  # relative to the width of the front


def front(rows: pd.DataFrame, columns: Sequence[str], better: Mapping[str, Better] | None = None) -> pd.DataFrame:
    """Return a row for each configuration of a table from `summarised`, over two or three columns.

    Columns: the axes; a number for each column, see `typical`; on_front; knee, at most one; dominated_by, the name of a
    configuration on the front that is at least as good in all columns and better in one, "" if there is none. A
    configuration without a number in a column, or that never reaches its target, is not on the front and has
    dominated_by "?". `better`: the better direction of columns that do not define it. Raises ConfigError for another
    number of columns.
    """
    if not 2 <= len(columns) <= 3:
        raise ConfigError(f"--column: a front needs two or three columns, got {len(columns)}")
    ways = directions(columns, better or {})
    frame = typical(rows, columns).frame
    signs = np.array([1.0 if ways[column] == "lower" else -1.0 for column in columns])
    losses = frame[list(columns)].to_numpy(dtype=float) * signs
    known = np.isfinite(losses).all(axis=1)
    dominated = np.array([any(_beats(other, each) for other in losses[known]) for each in losses], dtype=bool)
    on_front = known & ~dominated
    names = names_of(frame[axes_of(rows)])
    members = np.flatnonzero(on_front)
    by = [next((names[int(place)] for place in members if _beats(losses[place], each)), "") for each in losses]
    knees = np.zeros(len(frame), dtype=bool)
    knees[np.flatnonzero(on_front)] = knee(losses[on_front])
    return frame.assign(
        on_front=on_front, knee=knees, dominated_by=["?" if not ok else who for ok, who in zip(known, by, strict=True)]
    )


def knee(losses: np.ndarray) -> np.ndarray:
    """Return a mask of the knee of a front. `losses`: shape (points, columns), lower is better.

    Losses are scaled to 0 for the best and 1 for the worst point of the front in each column. The knee lies farthest
    from the plane through the points that are 1 in one column and 0 in the others, on the side of the ideal point 0. If
    no point lies on that side, as on a straight front or one that bends the other way, there is no knee.
    Source: Das, "On characterizing the knee of the Pareto curve based on normal-boundary intersection" (Structural
    Optimization 18, 1999). Difference: for three columns that paper takes the plane through the three best points, but
    two columns may share a best point. For two columns the line is the same.
    """
    found = np.zeros(len(losses), dtype=bool)
    if len(losses) < 3:
        return found
    width = np.ptp(losses, axis=0)
    if not (width > 0).all():
        return found
    inside = 1.0 - ((losses - losses.min(axis=0)) / width).sum(axis=1)
    if inside.max() > _LEAST_KNEE:
        found[int(inside.argmax())] = True
    return found


def _beats(one: np.ndarray, other: np.ndarray) -> bool:
    return bool((one <= other).all() and (one < other).any())


# --- sensitivity to each axis, from a base configuration -------------------------------------------------------------

_KEPT = ("pairs", "unpaired", "difference", "ratio", "restricted_to")
_TORNADO = ("axis", "label", "pairs", "unpaired", "difference", "low", "high", "ratio", "restricted_to")


def tornado(values: pd.DataFrame, column: str, base: Mapping[str, str] | None = None) -> pd.DataFrame:
    """Return the change of a column with each label of each axis of a table from `values_of`, others at their base.

    Columns: axis; label; pairs, unpaired, difference, ratio and restricted_to, against the base paired by seed, see
    `compared`; low and high, see `told_interval`; least and most, the smallest and the largest difference over all
    labels of the other axes (NaN if they have one); swing, the largest difference of the axis minus the smallest,
    including 0 for the base. The axis with the largest swing comes first. `base`: axis -> label; by default the first
    label in the table. Axes with one label are left out. Raises ConfigError if no run has these labels.
    Source: Eschenbach, "Spiderplots versus tornado diagrams for sensitivity analysis" (Interfaces 22(6), 1992).
    """
    axes = axes_of(values)
    check_labels(values, base or {}, "--base")
    labels = {axis: list(map(str, dict.fromkeys(values[axis]))) for axis in axes}
    at_base = _base(values, base or {})
    bound = bounds_of(values[values["column"] == column])[column]
    parts = {tuple(group.values()): part.set_index(SEED) for group, name, part in parts_of(values) if name == column}
    if tuple(at_base.values()) not in parts:
        raise ConfigError(f"--base: no run has all of {name_of(at_base)}")
    cut = {key: part["value"].clip(upper=bound) for key, part in parts.items()}
    rows = []
    for place, axis in enumerate(axes):
        to_base = {key: (*key[:place], at_base[axis], *key[place + 1 :]) for key in parts}
        for label in labels[axis]:
            part = parts.get(tuple((at_base | {axis: label}).values()))
            if label != at_base[axis] and part is not None:
                moved = against(part, parts[tuple(at_base.values())], False, bound)
                interval = told_interval(moved, moved["pairs"])._asdict()
                pairs = [(key, there) for key, there in to_base.items() if key[place] == label and there in parts]
                means = pd.Series([(cut[key] - cut[there]).mean() for key, there in pairs])
                ends = {"least": means.min(), "most": means.max()} if len(means) > 1 else {}
                rows.append({"axis": axis, "label": label, **{name: moved[name] for name in _KEPT}, **interval, **ends})
    found = pd.DataFrame(rows, columns=[*_TORNADO, "least", "most"])
    by_axis = found.groupby("axis")["difference"]
    swing = by_axis.transform("max").clip(lower=0) - by_axis.transform("min").clip(upper=0)
    return found.assign(swing=swing).sort_values("swing", ascending=False, kind="stable", ignore_index=True)


def of_cut(values: pd.DataFrame, column: str, base: Mapping[str, str]) -> str:
    """Return a note on a tornado with numbers that are cut where a run ended before its target; "" if none are cut.

    The amount that such a run would have spent later is unknown. If no run of the base reaches its target, differences
    mean very little.
    """
    part, bound = values[values["column"] == column], bounds_of(values[values["column"] == column])[column]
    if not math.isfinite(bound):
        return ""
    at_base = _base(values, base)
    ours = part[(part[list(at_base)].astype(str) == list(at_base.values())).all(axis=1)]["observed"]
    return (
        f"{int(ours.sum())} of {len(ours)} runs of the base reached the target of {column}; numbers are cut at "
        f"{bound:.6g}, up to which all are known, so differences beyond it do not show; "
        "choose a --base that reaches it, or a lower target"
    )


def _base(values: pd.DataFrame, base: Mapping[str, str]) -> dict[str, str]:
    """Return the label of each axis at the base, by default the first in the table."""
    return {axis: base.get(axis, str(values[axis].iloc[0])) for axis in axes_of(values)}


# --- the price, or the value of an axis, at which two configurations cost the same -----------------------------------

_NUMBER = re.compile(r"(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)_?(?P<unit>.*)")


class BreakEven(NamedTuple):
    """Value at which two configurations cost the same, with its 95 % BCa interval over the seeds that both have.

    at is NaN if there is no such value; the cheaper configuration is then cheaper everywhere. low and high are NaN if
    the seeds disagree on which configuration spends more, because the interval then has no end. cheaper_below,
    cheaper_above: "one", "other", or "same".
    """

    at: float
    low: float
    high: float
    cheaper_below: str
    cheaper_above: str


def break_even(fixed: np.ndarray, rate: np.ndarray) -> BreakEven:
    """Return the price at which fixed + price x rate is 0 on the mean. The price may be negative.

    fixed, rate: differences of the first configuration minus the second by seed, shape (n,), in the units of their
    columns.
    """
    with np.errstate(all="ignore"):
        at = float(_price(fixed, rate))
    more = float(np.mean(rate))
    if more == 0:
        who = _cheaper(float(np.mean(fixed)))
        return BreakEven(math.nan, math.nan, math.nan, who, who)
    spread = bootstrap_interval([rate])
    low, high = bootstrap_interval([fixed, rate], _price) if spread.low * spread.high > 0 else (math.nan, math.nan)
    return BreakEven(at, low, high, _cheaper(-more), _cheaper(more))


def over_price(
    values: pd.DataFrame, one: Mapping[str, str], other: Mapping[str, str], fixed: str, rate: str
) -> pd.DataFrame:
    """Return the price of a unit of `rate` at which two configurations of a table from `values_of` cost the same.

    Cost is column `fixed` + price x column `rate`. `one` and `other` are the labels in which the configurations differ.
    There is a row for each combination of the other axes. Columns: these axes, pairs, and `BreakEven`. Raises
    ConfigError if a run never reached its target, because a cost then has no mean, or if no seed is common to both.
    """
    rows = []
    for group, parts in _pairs(values, one, other, (fixed, rate)):
        differences = [_difference(*parts[column], group).to_numpy(dtype=float) for column in (fixed, rate)]
        pairs = {"pairs": len(differences[0])}
        rows.append({**group, **pairs, **break_even(*differences)._asdict()})
    return pd.DataFrame(rows)


def over_axis(
    values: pd.DataFrame, one: Mapping[str, str], other: Mapping[str, str], column: str, axis: str
) -> pd.DataFrame:
    """Return the values of an axis at which a column is the same for two configurations of a table from `values_of`.

    The labels of the axis must be numbers in one unit. Between neighbours the column is interpolated linearly. Columns:
    the other axes that both have in common; pairs; between, the labels; `BreakEven`, in the unit of the labels. Without
    a crossing there is no row. Raises ConfigError as `over_price`, and for an axis whose labels are no numbers.
    """
    if axis not in axes_of(values) or axis in {*one, *other}:
        allowed = ", ".join(name for name in axes_of(values) if name not in {*one, *other})
        raise ConfigError(f"--over: {axis!r} is no axis that the two have in common (allowed: {allowed or 'none'})")
    labels = list(map(str, dict.fromkeys(values[axis])))
    matches = {label: _NUMBER.fullmatch(label) for label in labels}
    units = {match["unit"] if match else None for match in matches.values()}
    if None in units or len(units) > 1:
        raise ConfigError(f"--over: labels of axis {axis!r} must be numbers, all in one unit, got {', '.join(labels)}")
    places = {label: float(match["number"]) for label, match in matches.items() if match}
    lines: dict[tuple[tuple[str, str], ...], dict[str, pd.Series]] = {}
    for group, parts in _pairs(values, one, other, (column,)):
        label = group.pop(axis)
        lines.setdefault(tuple(group.items()), {})[label] = _difference(*parts[column], {**group, axis: label})
    rows = [
        {**dict(group), **found}
        for group, line in lines.items()
        for found in _crossings({label: line[label] for label in sorted(line, key=places.__getitem__)}, places)
    ]
    names = [*(dict(next(iter(lines), ()))), "pairs", "between", *BreakEven._fields]
    return pd.DataFrame(rows, columns=names)


def _price(fixed: np.ndarray, rate: np.ndarray, axis: int = -1) -> np.ndarray:
    return np.asarray(-np.mean(fixed, axis=axis) / np.mean(rate, axis=axis))


def _cheaper(difference: float) -> str:
    return "same" if difference == 0 else "one" if difference < 0 else "other"


_Parts = dict[str, tuple[pd.DataFrame, pd.DataFrame]]


def _pairs(
    values: pd.DataFrame, one: Mapping[str, str], other: Mapping[str, str], columns: tuple[str, ...]
) -> list[tuple[dict[str, str], _Parts]]:
    """Return both sides of each column, for each combination of labels that both configurations have."""
    for labels, where in ((one, "--between"), (other, "--and")):
        check_labels(values, labels, where)
    if one.keys() != other.keys() or one == other:
        raise ConfigError(
            f"--and: must have other labels of the same axes as --between {name_of(one)}, got {name_of(other)}"
        )
    parts = {(*group.values(), name): part.set_index(SEED) for group, name, part in parts_of(values)}
    axes, found = axes_of(values), []
    for *here, name in parts:
        group = dict(zip(axes, here, strict=True))
        if name != columns[0] or not one.items() <= group.items():
            continue
        there = (*{**group, **other}.values(),)
        if (*there, name) in parts:
            sides = {column: (parts[*here, column], parts[*there, column]) for column in columns}
            found.append(({axis: label for axis, label in group.items() if axis not in one}, sides))
    if not found:
        raise ConfigError(
            f"--between: no runs of {name_of(one)} and {name_of(other)} have their other labels in common"
        )
    return found


def _difference(one: pd.DataFrame, other: pd.DataFrame, group: Mapping[str, str]) -> pd.Series:
    """Return the differences of two parts by the seeds that both have."""
    seeds = [seed for seed in one.index if seed in other.index]
    where = f" of {name_of(group)}" if group else ""
    if not seeds:
        raise ConfigError(f"--between: the two have no seed in common{where}")
    both = pd.concat([one.loc[seeds], other.loc[seeds]])
    if not both["observed"].all():
        missing = int((~both["observed"]).sum())
        raise ConfigError(
            f"column {both['column'].iloc[0]!r}: {missing} of {len(both)} runs{where} have no such number; "
            "take one that all runs have, such as a total"
        )
    mine, theirs = one["value"].loc[seeds], other["value"].loc[seeds]
    return mine - theirs


def _crossings(line: Mapping[str, pd.Series], places: Mapping[str, float]) -> list[dict[str, object]]:
    """Return the places at which the line through the means of differences, in ascending order, crosses 0."""
    labels, found = list(line), []
    for left, right in pairwise(labels):
        seeds = [seed for seed in line[left].index if seed in line[right].index]
        before, after = (line[label].loc[seeds].to_numpy(dtype=float) for label in (left, right))
        if not len(seeds):
            continue
        starts, ends = float(np.mean(before)), float(np.mean(after))
        if not (starts * ends < 0 or ends == 0 or (starts == 0 and left == labels[0])):  # only the first may start at 0
            continue
        slope = (after - before) / (places[right] - places[left])
        at = break_even(before, slope)
        shift = places[left]
        moved = at._replace(at=at.at + shift, low=at.low + shift, high=at.high + shift)
        found.append({"pairs": len(seeds), "between": f"{left} and {right}", **moved._asdict()})
    return found


# --- time and energy as one cost -------------------------------------------------------------------------------------
# Source: DA-DPFL paper, section VI-B2, unnumbered: (1 - theta) x seconds + theta x joules, at 1 dollar each. Compute
# seconds = inefficiency x FLOPs / speed, transfer seconds = 8 x bytes / rate, joules = seconds x power of the activity.


class RoundCost(NamedTuple):
    """Seconds and joules of one round."""

    time_s: float
    energy_j: float


@dataclass(frozen=True, kw_only=True)
class CostScaling:
    """Factors by which a comparison corrects the spending of one device in a round; 1 = unchanged."""

    compute_energy: float = 1.0
    transfer_energy: float = 1.0
    waiting: float = 1.0  # on the whole time

    def __post_init__(self) -> None:
        for name, factor in asdict(self).items():
            if not factor > 0:
                raise ConfigError(f"scaling.{name}: must be above 0, got {factor!r}")


# Differs from the paper, which draws curves and prints no factors: these are inferred from its text.
SCALINGS: Mapping[str, CostScaling] = {
    "none": CostScaling(),
    # 10 of 100 devices train, and 10 instead of 1,000 models move
    "server_based": CostScaling(compute_energy=0.10, transfer_energy=0.01),
    # mean longest wait in DA-DPFL if each of 100 devices has 10 neighbours and waits for up to 10 of them
    "waiting": CostScaling(waiting=17.0406),
}


def compute_time_s(flops: float, flops_per_s: float, inefficiency: float = 1.0) -> float:
    """Return the seconds of `flops` at the peak speed; `inefficiency`: measured over theoretical seconds."""
    return inefficiency * flops / flops_per_s


def transfer_time_s(nbytes: float, bps: float) -> float:
    """Return the seconds that `nbytes` take at `bps` bit/s."""
    return 8.0 * nbytes / bps


def round_cost(
    compute_s: float, transfer_s: float, compute_j: float, transfer_j: float, scaling: CostScaling = SCALINGS["none"]
) -> RoundCost:
    """Return the seconds and joules of a round from one device's computation and transfer under a scaling."""
    energy_j = scaling.compute_energy * compute_j + scaling.transfer_energy * transfer_j
    return RoundCost(scaling.waiting * (compute_s + transfer_s), energy_j)


def total_cost(theta: float, time_s: float, energy_j: float) -> float:
    """Return (1 - theta) x seconds + theta x joules. Raises ConfigError unless 0 <= theta <= 1."""
    if not 0.0 <= theta <= 1.0:
        raise ConfigError(f"theta: must be between 0 (time alone) and 1 (energy alone), got {theta!r}")
    return (1.0 - theta) * time_s + theta * energy_j


def crossing(one: RoundCost, other: RoundCost) -> float | None:
    """Return the theta, between 0 and 1, at which both cost the same; None if one of them is never dearer."""
    later_s, saved_j = one.time_s - other.time_s, other.energy_j - one.energy_j
    return later_s / (later_s + saved_j) if later_s * saved_j > 0 else None


THETAS = (0.0, 0.1, 0.2, 0.3, 0.5, 1.0)


class DeviceRates(NamedTuple):
    """Speed, link and powers of a device, to price FLOPs and bytes without the ledger of a run."""

    flops_per_s: float
    link_bps: float
    busy_w: float
    transmit_w: float

    def seconds(self, flops: float, nbytes: float) -> tuple[float, float]:
        """Return the seconds of computing, and the seconds for which the link is busy in one direction."""
        return compute_time_s(flops, self.flops_per_s), transfer_time_s(nbytes, self.link_bps)

    def cost(self, flops: float, nbytes: float, scaling: CostScaling) -> RoundCost:
        """Return the cost of a round with this work and traffic by the paper's model."""
        compute_s, transfer_s = self.seconds(flops, nbytes)
        return round_cost(compute_s, transfer_s, self.busy_w * compute_s, self.transmit_w * transfer_s, scaling)


def at_thetas(cost: RoundCost, thetas: Sequence[float] = THETAS) -> dict[str, float]:
    """Return the total cost at some weights of energy, as "theta0.3"."""
    return {f"theta{theta:g}": total_cost(theta, *cost) for theta in thetas}


def crossings(costs: Mapping[str, RoundCost]) -> Iterator[dict[str, Any]]:
    """Yield each pair with the theta from which the first is cheaper: cheaper, than, from_theta."""
    for one, other in permutations(costs, 2):
        theta = crossing(costs[one], costs[other])
        if theta is not None and costs[one].energy_j < costs[other].energy_j:
            yield {"cheaper": one, "than": other, "from_theta": theta}


def cheapest_over_theta(costs: Mapping[str, RoundCost]) -> list[dict[str, Any]]:
    """Return the ranges of theta, from 0 to 1, with the cheapest name in each: from_theta, to_theta, cheapest.

    Of equal costs the first is named. Without costs the list is empty.
    """
    if not costs:
        return []
    ends = sorted({0.0, 1.0, *(pair["from_theta"] for pair in crossings(costs))})
    found: list[dict[str, Any]] = []
    for low, high in pairwise(ends):
        best = min(costs, key=lambda name: total_cost((low + high) / 2, *costs[name]))
        if found and found[-1]["cheapest"] == best:
            found[-1]["to_theta"] = high
        else:
            found.append({"from_theta": low, "to_theta": high, "cheapest": best})
    return found


def spent(run: RecordedRun) -> RoundCost:
    """Return the cost of a run by its ledger, over all rounds: seconds, and joules per device."""
    devices = int((run.devices["device"] >= 0).sum())
    time_s = float((run.rounds["now_s"] - run.rounds["start_s"]).sum())
    return RoundCost(time_s, float(run.rounds["energy_j"].sum()) / devices)


def counted(run: RecordedRun, prices: DeviceRates) -> pd.DataFrame:
    """Return the cost of a device in a run by two counts: all rounds, and the last round as in the paper.

    Columns: flops, bytes, time_s, energy_j. The index names the count. The paper's count lengthens a round of peers by
    waiting, here by the average factor of this run. With a server it counts only the computing of devices that were
    asked, and their messages once, shared among all devices. This count is missing if devices do not compute at the
    speed of `prices`. Bytes are, like the paper's, those that the busiest node receives: a peer on the mean, or the
    server from all.
    """
    cost, times, devices = spent(run), len(run.rounds), int((run.devices["device"] >= 0).sum())
    peers = run.manifest["scenario"]["peers"]
    rounds = run.jobs.groupby("round").agg(
        flops=("flops", "mean"), bytes=("down_bytes", "mean") if peers else ("up_bytes", "sum")
    )
    rows: list[tuple[float, ...]] = [(*rounds[["flops", "bytes"]].sum(), *cost)]
    if abs(run.jobs["compute_s"].sum() / compute_time_s(run.jobs["flops"].sum(), prices.flops_per_s) - 1) < 1e-6:
        last = rounds.iloc[-1]
        if peers:  # active: seconds of a round without waiting
            active_s = pd.Series([sum(prices.seconds(*row)) for row in rounds.itertuples(index=False)]).sum()
            scaling = CostScaling(waiting=cost.time_s / active_s)
        else:
            asked = (run.jobs["round"] == rounds.index[-1]).sum()
            scaling = CostScaling(compute_energy=asked / devices, transfer_energy=1 / devices)
        again = prices.cost(last["flops"], last["bytes"], scaling)
        rows.append(tuple(times * number for number in (last["flops"], last["bytes"], *again)))
    names = ["all rounds", f"last round x {times}"][: len(rows)]
    return pd.DataFrame(rows, names, ["flops", "bytes", "time_s", "energy_j"])
