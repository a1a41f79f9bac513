"""Pictures drawn with matplotlib, without a display: functions of frames, of which `figure_numbers` takes the numbers.

Each setting has its own colour, and its own dash, mark or hatch. `width_in` is the width of the whole figure in inches.
`words` name an axis, and names of columns its unit.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import seaborn
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from edgesim.core.errors import ConfigError
from edgesim.core.metrics import ACCURACY
from edgesim.records.run import RecordedRun
from edgesim.reports.figure_numbers import (
    PHASES,
    accuracy_lines,
    jitter,
    length_lines,
    lorenz_lines,
    round_bars,
    settings_of,
    spans_of,
    stacked_bars,
    target_rows,
)
from edgesim.reports.figures import (
    GREY,
    HATCHES,
    INK,
    STYLE,
    USUAL,
    Drawing,
    colours,
    figure,
    folded,
    legend_below,
    legend_in,
    looks,
    part_colours,
    save,
    shortened,
    style,
)
from edgesim.reports.format import DisplayUnit, heading, span, unit_for
from edgesim.reports.groups import groups, mark, points_of
from edgesim.reports.html.words import unit_of, words_of

# --- accuracy ---------------------------------------------------------------------------------------------------

QUANTITIES = {
    "sim_time_s": "simulated time",
    "energy_j": "energy of devices, idle included",
    "active_j": "energy of the devices above idle power",
    "participant_j": "energy without devices never asked",
    "energy_network_j": "energy of the network",
    "energy_server_j": "energy of the server",
    "traffic_bytes": "sent and received",
    "up_bytes": "uploaded",
    "down_bytes": "downloaded",
    "flops": "computed",
    "round": "round",
}
AXES = {
    "time": "sim_time_s",
    "energy": "energy_j",
    "active": "active_j",
    "participants": "participant_j",
    "network": "energy_network_j",
    "server": "energy_server_j",
    "bytes": "traffic_bytes",
    "rounds": "round",
    "up": "up_bytes",
    "down": "down_bytes",
    "flops": "flops",
}
_PANEL_IN = (3.7, 3.0)
_CHARACTER_IN = 0.062  # approximate width of a character of a title
_LEAST_PANEL_IN = 2.2  # narrower panels stand below each other


def accuracy(
    points: pd.DataFrame,
    against: Sequence[str] = ("sim_time_s",),
    targets: Sequence[float] = (),
    width_in: float | None = None,
    title: str = "",
    metric: str = ACCURACY,
) -> Drawing:
    """Return panels of test accuracy, or another metric, against each of `against`, side by side as far as they fit.

    `points`: a row per evaluation, with setting, run, the metric and the columns of `against`, ascending in a run.
    Several runs are drawn as their mean, with a band from the lowest to the highest, see `mean_and_range`. `targets`
    are dashed, or named above the panels if they are outside the range of the curves. Raises ConfigError for an unknown
    x axis or nothing to draw.
    """
    unknown = [name for name in against if name not in QUANTITIES]
    if unknown:
        raise ConfigError(f"against: unknown {', '.join(unknown)} (known: {', '.join(QUANTITIES)})")
    labels = settings_of(points, ["run", metric, *against])
    width = width_in or _PANEL_IN[0] * len(against) + 0.6
    columns = min(len(against), max(1, int(width / _LEAST_PANEL_IN)))
    rows = math.ceil(len(against) / columns)
    panel_in = _PANEL_IN[0] if width_in is None else width / columns
    measure = unit_of(metric, 0.0)
    with style(panel_in):
        lines_below = folded(labels, width)[1]
        height = rows * min(_PANEL_IN[1], (0.85 if rows == 1 else 0.6) * width / columns)
        drawn = Drawing(figsize=(width, height + 0.6 + 0.2 * lines_below + 0.3 * bool(title)), layout="constrained")
        axes = list(drawn.subplots(rows, columns, sharey=True, squeeze=False).flat)
        for empty in axes[len(against) :]:
            empty.remove()
        each = looks(len(labels), min(1.0, width / columns / _PANEL_IN[0]))
        for axis, quantity in zip(axes, against, strict=False):
            unit, lines = accuracy_lines(points, quantity, metric)
            for line, look in zip(lines, each, strict=True):
                axis.plot(line.x, line.y / measure.size, label=line.label, **look)
            bands = [(line.x, *line.band, look["color"]) for line, look in zip(lines, each, strict=True) if line.band]
            for x, low, high, colour in bands:
                axis.fill_between(x, low / measure.size, high / measure.size, color=colour, alpha=0.18, linewidth=0)
            axis.set(xlabel=shortened(unit.after(QUANTITIES[quantity]), int(panel_in / _CHARACTER_IN)), ylabel="")
            axis.set_xlim(left=0)
            seaborn.despine(ax=axis)
        for first in axes[: len(against) : columns]:
            first.set_ylabel(measure.after(f"test {heading(metric)}"))
        _mark_targets(axes[: len(against)], targets, measure)
        if title:
            drawn.suptitle(title, fontsize="large")
        legend_below(drawn, axes[0].get_legend_handles_labels()[0], labels)
        drawn.draw_without_rendering()  # ticks are made when they are first drawn, in the style of that moment
        return drawn


def _mark_targets(axes: Sequence[Axes], targets: Sequence[float], unit: DisplayUnit) -> None:
    """Draw targets as dashed lines. Those outside the common y axis, which would squeeze the curves, become a title."""
    low, high = axes[0].get_ylim()
    shown = [target / unit.size for target in targets]
    for target in shown:
        if low <= target <= high:
            for axis in axes:
                axis.axhline(target, color="0.45", linestyle="--", linewidth=0.9, zorder=1)
    sides = {"above": [each for each in shown if each > high], "below": [each for each in shown if each < low]}
    words = [
        f"{side} the axis: {', '.join(f'{each:g}' for each in of)} {unit.symbol}".rstrip()
        for side, of in sides.items()
        if of
    ]
    if words:
        axes[-1].set_title(f"targets {'; '.join(words)}", loc="right", fontsize="small", color="0.35")


def plot_runs(
    runs: Sequence[RecordedRun],
    against: Sequence[str] = ("sim_time_s", "energy_j", "round"),
    out: Path = Path("accuracy"),
    formats: Sequence[str] = USUAL,
    width_in: float | None = None,
    names: Mapping[Any, str] | None = None,
    title: str = "",
    metric: str = ACCURACY,
) -> list[Path]:
    """Draw test accuracy, or another metric, of runs and return the files written: see `draw_runs`.

    `out`: the file name, with or without an ending. Raises ConfigError also for a file that cannot be written.
    """
    return save(draw_runs(runs, against, width_in, names, title, metric), out, formats)


def draw_runs(
    runs: Sequence[RecordedRun],
    against: Sequence[str] = ("sim_time_s", "energy_j", "round"),
    width_in: float | None = None,
    names: Mapping[Any, str] | None = None,
    title: str = "",
    metric: str = ACCURACY,
) -> Drawing:
    """Return the picture `accuracy` of runs, a line per group, which says if its runs are several or unfinished.

    `against`: columns, or names in AXES, such as time. `names`: the name of each run's group, in place of those of
    `groups`. Raises ConfigError for an unknown x axis or no evaluation.
    """
    against = [AXES.get(name, name) for name in against]
    unknown = [name for name in against if name not in QUANTITIES]
    if unknown or not against:
        raise ConfigError(f"against: unknown {', '.join(unknown)} (known: {', '.join((*QUANTITIES, *AXES))})")
    metric = metric_to_draw(metric, runs)
    found: dict[str, list[RecordedRun]] = {}
    for run, label in (names or groups(runs)).items():
        found.setdefault(label, []).append(run)
    frames = []
    for label, group in found.items():
        curves = [points_of(run) for run in group]
        known = [each.dropna(subset=metric) for each in curves if metric in each]
        curves = [each for each in known if len(each)]
        seeds = f" ({len(curves)} seeds)" if len(curves) > 1 else ""
        frames += [each.assign(setting=label + mark(group) + seeds, run=place) for place, each in enumerate(curves)]
    if not frames:
        raise ConfigError(f"{', '.join(run.name for run in runs)}: no evaluation of the test split to plot")
    return accuracy(pd.concat(frames), against, targets_of(runs, metric), width_in, title, metric)


def metric_to_draw(metric: str, runs: Sequence[RecordedRun]) -> str:
    """Return the metric to draw: if accuracy is asked for and all runs have the same goal, that goal."""
    goals = {run.goal for run in runs}
    return goals.pop() if metric == ACCURACY and len(goals) == 1 else metric


def targets_of(runs: Sequence[RecordedRun], metric: str) -> list[float]:
    """Return the targets of a metric in all runs, ascending."""
    if metric == ACCURACY:
        return sorted({target for run in runs for target in run.targets})
    return sorted({target for run in runs for name, target in run.metric_targets if name == metric})


# --- a row per setting ------------------------------------------------------------------------------------------

_MARKS = {"a run": "o", "a run that ended before the target": ">", "median and 95 % interval": "D"}


def _row_names(labels: Sequence[str], width_in: float) -> list[str]:
    return [shortened(label, 18 if width_in < 5 else 34) for label in labels]


def time_to_target(
    values: pd.DataFrame, summary: pd.DataFrame, columns: Sequence[str], width_in: float = 3.5, note: str = ""
) -> Drawing:
    """Return forest plots of the costs of targets below each other, a row per setting, the first on top.

    `columns`: one quantity until each target, such as sim_time_s@0.8. `values` and `summary`: see `target_rows`, here
    with the name of the column in `column`. A run is a dot, a censored run an open triangle that points towards its
    target. An interval without a known end runs off to the right. `note` is a line below the axis. Raises ConfigError
    if there is nothing to draw.
    """
    settings_of(values, ["column"])
    settings_of(summary, ["column"])
    quantity = columns[0].partition("@")[0]
    panels = [
        target_rows(values[values["column"] == column], summary[summary["column"] == column], quantity)
        for column in columns
    ]
    unit, largest, _ = max(panels, key=lambda panel: panel[1])
    names = _row_names([row.label for row in panels[0][2]], width_in)
    folds = sum(name.count("\n") for name in names)
    shown = values[values["column"].isin(columns)]
    most = max(row.runs for row in panels[0][2])
    there = {"o": True, ">": not shown["observed"].all(), "D": most > 1}  # a single run has no interval
    marks = [name for name, mark in _MARKS.items() if there[mark]]
    several = len(columns) > 1
    each_in = 0.3 * len(names) + 0.13 * folds + 0.25 * several
    with figure(width_in, 0.75 + each_in * len(columns) + 0.13 * bool(note) + legend_in(marks, width_in)) as drawn:
        axes = drawn.subplots(len(columns), 1, sharex=True, squeeze=False)[:, 0]
        edge = 1.08 * largest / unit.size
        colours_of = [look["color"] for look in looks(len(names))]
        every = [(axis, *each) for axis, panel in zip(axes, panels, strict=True) for each in enumerate(panel[2], 1)]
        for axis, number, row in every:
            place, colour = len(names) - number, colours_of[number - 1]
            dots: dict[str, Any] = {"s": 13, "color": colour, "alpha": 0.75, "linewidth": 0}
            open_: dict[str, Any] = {"s": 24, "marker": ">", "facecolor": "none", "edgecolor": colour, "linewidth": 0.9}
            for runs, how in ((row.arrived, dots), (row.censored, open_)):
                # as in the report; seaborn's jitter is of the global random state, or drops runs for lack of room
                axis.scatter(runs["value"] / unit.size, place - 0.2 + jitter(len(runs), 0.22), **how)
            ends = (row.begin, row.high, row.middle) if row.runs > 1 else (math.nan,) * 3
            begin, high, middle = (each / unit.size for each in ends)
            if math.isfinite(begin) and math.isfinite(high):
                axis.plot([begin, high], [place + 0.1] * 2, color=colour, linewidth=1.4, solid_capstyle="butt")
            elif math.isfinite(begin):
                arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.4, "shrinkA": 0, "shrinkB": 0}
                at = place + 0.1
                axis.annotate("", (edge, at), (begin, at), arrowprops={**arrow, "mutation_scale": 7})
            if math.isfinite(middle):
                axis.plot([middle], [place + 0.1], marker="D", markersize=5, color=colour, markeredgecolor="white")
            axis.annotate(
                f"{len(row.arrived)}/{row.runs}",
                (1.01, place), xycoords=("axes fraction", "data"), va="center", fontsize=7, color=INK,
            )  # fmt: skip
        for axis, column in zip(axes, columns, strict=True):
            axis.set_yticks(range(len(names)), names[::-1])
            axis.set(ylim=(-0.6, len(names) - 0.4), xlim=(0, edge))
            if several:
                axis.set_title(words_of(column), loc="left")
            axis.grid(visible=False, axis="y")
            seaborn.despine(ax=axis, left=True)
        words = words_of(columns[0]) if not several else f"{words_of(columns[0]).partition(' to ')[0]} to the target"
        axes[-1].set_xlabel("\n".join(filter(None, [unit.after(words), note])))
        handles = []
        for name in marks:
            mark = _MARKS[name]
            mark_style: dict[str, Any] = {"linestyle": "-" if mark == "D" else "none", "markersize": 5}
            if mark == ">":
                mark_style["markerfacecolor"] = "none"
            handles.append(Line2D([], [], color=INK, marker=mark, **mark_style))
        legend_below(drawn, handles, marks)
    return drawn


def stacked(
    spent: pd.DataFrame, part: str = "activity", value: str = "joules", words: str = "energy", width_in: float = 3.5
) -> Drawing:
    """Return a bar per setting, its parts beside each other, the mean over the setting's runs: see `stacked_bars`.

    Where low and high prices are known, a line shows the ends of the whole bar. Raises ConfigError if there is nothing
    to draw.
    """
    bars = stacked_bars(spent, part, value)
    unit, labels, kinds = bars.unit, list(map(str, bars.means.index)), list(map(str, bars.means.columns))
    totals = bars.means.sum(axis=1).to_numpy()
    most = float(totals.max()) if bars.high is None else max(float(totals.max()), float(bars.high.max()))
    with figure(width_in, 0.65 + 0.34 * len(labels) + legend_in(kinds, width_in)) as drawn:
        axis = drawn.subplots()
        places = np.arange(len(labels))[::-1]
        left = np.zeros(len(labels))
        patches = []
        for i, (name, colour) in enumerate(zip(kinds, part_colours(kinds), strict=True)):
            width = bars.means[name].to_numpy() / unit.size
            look: dict[str, Any] = {
                "facecolor": colour,
                "edgecolor": "white",
                "hatch": HATCHES[i % len(HATCHES)],
                "linewidth": 0.4,
            }
            axis.barh(places, width, 0.68, left, label=name, **look)
            patches.append(Patch(**look))
            left += width
        if bars.low is not None and bars.high is not None:
            beside = np.maximum(0.0, [totals - bars.low, bars.high - totals]) / unit.size
            axis.errorbar(totals / unit.size, places, xerr=beside, fmt="none", color=INK, linewidth=1, capsize=2)
        axis.set_yticks(places, _row_names(labels, width_in))
        axis.set_xlabel(unit.after(words))
        axis.set_xlim(0, 1.04 * most / unit.size if most > 0 else 1.0)
        axis.grid(visible=False, axis="y")
        seaborn.despine(ax=axis, left=True)
        legend_below(drawn, patches, kinds)
    return drawn


# --- two quantities ---------------------------------------------------------------------------------------------


def pareto(
    points: pd.DataFrame, x: str, y: str, x_words: str = "", y_words: str = "", width_in: float = 3.5
) -> Drawing:
    """Return a picture of settings by two of their quantities, with intervals as crosses.

    `points`: a row per setting, with setting, `x`, `y`, front (True if no other is better in both) and, if there are
    intervals, `x`_low, `x`_high, `y`_low and `y`_high. The front is joined in the order of `x`. Dominated settings are
    grey. Raises ConfigError if there is nothing to draw.
    """
    known = points.dropna(subset=[name for name in (x, y) if name in points])
    labels, every = settings_of(known, [x, y, "front"]), settings_of(points, [x, y, "front"])
    units = {name: unit_of(name, float(known[name].max())) for name in (x, y)}
    front = known[known["front"]].sort_values(x, kind="stable")
    names = [
        label if on_front else f"{label} (dominated)" for label, on_front in zip(labels, known["front"], strict=True)
    ]
    with figure(width_in, min(3.2, 0.72 * width_in) + legend_in(names, width_in)) as drawn:
        axis = drawn.subplots()
        joined = axis.plot(front[x] / units[x].size, front[y] / units[y].size, color="0.4", linewidth=0.9, zorder=1)
        joined[0].set_gid("front")
        handles = []
        each = dict(zip(every, looks(len(every)), strict=True))
        for row in known.to_dict("records"):
            look = each[row["setting"]]
            colour = look["color"] if row["front"] else GREY
            at_x, at_y = (row[name] / units[name].size for name in (x, y))
            ends = [[[span / units[name].size] for span in spans_of(row, name) or (0.0, 0.0)] for name in (x, y)]
            axis.errorbar(at_x, at_y, xerr=ends[0], yerr=ends[1], color=colour, linewidth=0.8, fmt="none", zorder=2)
            mark_style: dict[str, Any] = {"marker": look["marker"], "markersize": 6, "markeredgecolor": "white"}
            handles += axis.plot(at_x, at_y, linestyle="none", color=colour, zorder=3, **mark_style)
        axis.set(xlabel=units[x].after(x_words or x), ylabel=units[y].after(y_words or y))
        axis.margins(0.1)
        seaborn.despine(ax=axis)
        legend_below(drawn, handles, names)
    return drawn


def heat(cells: pd.DataFrame, x: str, y: str, value: str, words: str = "", width_in: float = 3.5) -> Drawing:
    """Return a heat map with a field for each pair of labels. A field without a number is hatched.

    `cells`: a row per pair, with the columns `x`, `y` (labels, in the order in which they stand) and `value`, which
    names its unit. inf: the target was not reached, so the colours span the other fields alone. Raises ConfigError if
    there is nothing to draw, or a pair comes twice.
    """
    missing = [name for name in (x, y, value) if name not in cells]
    cells = cells if missing else cells.assign(**{value: cells[value].where(np.isfinite(cells[value]))})
    if missing or cells.empty or cells[value].notna().sum() == 0:
        lacks = f"the frame lacks {', '.join(missing)}" if missing else "there is nothing to draw"
        raise ConfigError(f"picture: {lacks}")
    if cells.duplicated([x, y]).any():
        raise ConfigError(f"picture: several numbers for one pair of {x} and {y}; choose cells with --only")
    columns, rows = (list(dict.fromkeys(cells[name].astype(str))) for name in (x, y))
    grid = cells.astype({x: str, y: str}).pivot(index=y, columns=x, values=value).reindex(index=rows, columns=columns)
    unit = unit_of(value, float(grid.abs().max().max()))
    numbers = grid.to_numpy(dtype=float) / unit.size
    low, high = float(np.nanmin(numbers)), float(np.nanmax(numbers))
    if low == high:  # a single colour: its scale begins at 0
        low, high = min(0.0, low), max(0.0, high) or 1.0
    texts = np.array([[f"{number:.3g}" for number in row] for row in numbers])
    title = textwrap.fill(unit.after(words or value), int(width_in / _CHARACTER_IN))
    lines = title.count("\n") + sum(shortened(row, 16).count("\n") for row in rows)
    with figure(width_in, max(1.6, 1.1 + 0.3 * len(rows)) + 0.13 * lines) as drawn:
        axis = drawn.subplots()
        # text is small where it has to be: three digits in a field
        size = min(8.0, 72 * 0.62 * width_in / len(columns) / 3.2)
        frame = pd.DataFrame(numbers, index=[shortened(row, 16) for row in rows], columns=columns)
        look = {"linewidths": 0.8, "linecolor": "white", "annot_kws": {"fontsize": size}, "vmin": low, "vmax": high}
        # of these colours equal steps are equal in grey, and the same for colour-blind readers
        seaborn.heatmap(frame, ax=axis, annot=texts, fmt="", cmap="cividis", **look)
        blank = "not reached" if "@" in value and size == 8.0 else "–"
        for row, column in np.argwhere(np.isnan(numbers)):  # seaborn leaves them empty
            hatched: dict[str, Any] = {"facecolor": "0.96", "edgecolor": "0.75", "hatch": "////", "linewidth": 0}
            axis.add_patch(Rectangle((column, row), 1, 1, **hatched))
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1.2}
            told: dict[str, Any] = {
                "ha": "center",
                "va": "center",
                "fontsize": min(size, 7.0),
                "color": INK,
                "bbox": box,
            }
            axis.text(column + 0.5, row + 0.5, blank, **told)
        axis.set(xlabel=x, ylabel=y)
        axis.set_title(title, loc="left")
        axis.tick_params(length=0)
        axis.set_yticklabels(axis.get_yticklabels(), rotation=0)
    return drawn


# --- rounds and devices -----------------------------------------------------------------------------------------

_WIDE = 50.0  # longest over shortest length above which the axis is logarithmic


def round_lengths(rounds: pd.DataFrame, width_in: float = 3.5) -> Drawing:
    """Return a picture of the lengths of rounds, a line per setting, all of its runs together: see `length_lines`.

    Raises ConfigError if there is nothing to draw.
    """
    unit, lines = length_lines(rounds)
    labels = [line.label for line in lines]
    longest, shortest = (each(line.x[place] for line in lines) for each, place in ((max, -1), (min, 0)))
    with figure(width_in, min(2.8, 0.66 * width_in) + legend_in(labels, width_in)) as drawn:
        axis = drawn.subplots()
        handles = []
        for line, look in zip(lines, looks(len(lines)), strict=True):
            how = {"color": look["color"], "linestyle": look["linestyle"], "linewidth": 1.4, "label": line.label}
            seaborn.ecdfplot(x=line.x, ax=axis, legend=False, **how)
            handles.append(axis.get_lines()[-1])
        if shortest > 0 and longest / shortest > _WIDE:
            axis.set_xscale("log")
        else:
            axis.set_xlim(left=0)
        axis.set(xlabel=unit.after("length of a round"), ylabel="share of rounds", ylim=(0, 1.02))
        seaborn.despine(ax=axis)
        legend_below(drawn, handles, labels)
    return drawn


def lorenz(devices: pd.DataFrame, value: str = "joules", words: str = "energy", width_in: float = 3.5) -> Drawing:
    """Return a picture of Lorenz curves with their Gini coefficients, a line per setting: see `lorenz_lines`.

    On the diagonal all devices spend the same. Raises ConfigError if there is nothing to draw.
    """
    lines = lorenz_lines(devices, value)
    names = [f"{line.label} (Gini {line.gini:.2f})" for line in lines]
    with figure(width_in, min(3.4, 0.9 * width_in) + legend_in(names, width_in)) as drawn:
        axis = drawn.subplots()
        axis.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
        handles = []
        for line, look in zip(lines, looks(len(lines), 0.8), strict=True):
            handles += axis.plot(line.x, line.y, **look)
        axis.set(xlim=(0, 1), ylim=(0, 1), xlabel="share of devices", ylabel=f"share of {words}", box_aspect=1)
        seaborn.despine(ax=axis)
        legend_below(drawn, handles, names)
    return drawn


_MOST_ROWS = 60  # more rows could not be read
_BAR_COLOURS: dict[str, Any] = dict(zip(PHASES, part_colours(PHASES), strict=True)) | {
    "waiting": "0.92",
    "server": "0.6",
}


def plot_round(run: RecordedRun, number: int, out: Path) -> list[Path]:
    """Draw a round, one row per device, the last to end at the top. Return the PNG and the SVG written.

    Jobs with another outcome than ok are hatched, and waiting is pale. A solid line is the end of the round, a dashed
    line its deadline. Devices that decided its length are in bold. Of more than 60 devices the last to end are drawn.
    `number` is 1 for the first round, `out` the file name without its ending. Raises ConfigError if the round did not
    close or a file cannot be written.
    """
    found = round_bars(run, number)
    last_first, left_out = found.last_to_end(_MOST_ROWS)
    shown = last_first[::-1]
    few = len(shown) <= 20
    latest_s = max(found.length_s, found.deadline_s)
    unit = unit_for("_s", latest_s)
    length = found.length_s / unit.size

    def hatch(outcome: str) -> dict[str, Any]:
        return {"linewidth": 0} | ({} if outcome == "ok" else {"hatch": "/////", "edgecolor": "white"})

    with rc_context(STYLE):
        # A row has room for its name, and a single one leaves some for the legend.
        height_in = 1.3 + max(len(shown), 3) * (0.3 if few else 0.17)
        drawn = Figure(figsize=(8.6, height_in), layout="constrained")
        axis: Axes = drawn.subplots()
        thick = 0.74
        axis.barh(range(len(shown)), length, thick, color=_BAR_COLOURS["waiting"], linewidth=0)
        bars = found.bars[found.bars["device"].isin(shown)]
        row = {device: place for place, device in enumerate(shown)}
        for phase in PHASES:
            for outcome, alike in bars[bars["phase"] == phase].groupby("outcome"):
                start, end = alike["start_s"] / unit.size, alike["end_s"] / unit.size
                look: Any = {"facecolor": _BAR_COLOURS[phase], **hatch(str(outcome))}
                axis.barh(alike["device"].map(row), end - start, thick, start, **look)
        begin = (found.length_s - found.server_s) / unit.size
        axis.axvspan(begin, length, color=_BAR_COLOURS["server"], linewidth=0)

        at_deadline = math.isclose(found.length_s, found.deadline_s)
        limits: list[dict[str, Any]] = [
            {"label": "end of the round, at its deadline" if at_deadline else "end of the round"}
        ]
        if found.deadline_s and not at_deadline:
            limits.append({"label": "deadline", "linestyle": (0, (4, 3))})
        for at_s, limit in zip((found.length_s, found.deadline_s), limits, strict=False):
            axis.axvline(at_s / unit.size, color=INK, linewidth=1.4, **limit)
        axis.set_xlim(0, 1.015 * latest_s / unit.size if latest_s > 0 else 1.0)

        names = [f"{found.kinds[device]}  {device}" for device in shown]
        axis.set_yticks(range(len(shown)), names, fontsize=9 if few else 7)
        for device, label in zip(shown, axis.get_yticklabels(), strict=True):
            label.set_fontweight("bold" if device in found.critical else "normal")
        axis.set_ylim(-0.6, max(len(shown), 1) - 0.4)
        axis.grid(visible=False, axis="y")
        axis.tick_params(axis="x", labelsize=9)
        seaborn.despine(ax=axis, left=True)
        hidden = f"; {left_out} faster devices not shown" if left_out else ""
        axis.set_title(f"Round {number}: {found.result}{hidden}", loc="left", fontsize=11)
        axis.set_xlabel(unit.after("time since the start of the round"), fontsize=10)

        activities = [*PHASES, "waiting", *(["server"] if found.server_s > 0 else [])]
        outcomes = sorted(set(found.bars["outcome"]) - {"ok"})
        handles: list[Artist] = [
            *(Patch(facecolor=_BAR_COLOURS[name], label=name) for name in activities),
            *(Patch(facecolor="0.6", label=outcome, **hatch(outcome)) for outcome in outcomes),
            *(Line2D([], [], color=INK, linewidth=1.4, **limit) for limit in limits),
        ]
        place: Any = {"loc": "outside lower center", "ncols": len(handles), "columnspacing": 1.4, "handlelength": 1.6}
        drawn.legend(handles=handles, frameon=False, fontsize=9, **place)
        return save(drawn, out)


# --- the map of a fleet -----------------------------------------------------------------------------------------


_MOST_NODES = 2_000  # more nodes would cover each other
_MOST_EXACT = 150  # nodes of a layout by all distances, which takes long for more
_MARKERS = "ovD^PX*<>h"
_SERVER, _SERVER_MARK = "server", "s"


def topology(nodes: pd.DataFrame, links: pd.DataFrame, width_in: float = 3.5) -> Drawing:
    """Return a map of nodes and the links between them, with a colour and a mark for each kind of node.

    `nodes`: node and kind, such as the name of a fleet block or server. `links`: a, b and bps, the rate of the slower
    direction. A faster link is a thicker line, unless all are alike. A single hub is drawn in the middle with all other
    nodes around it, sorted by kind. Other graphs are laid out by distances along their links, the same for the same
    graph. Raises ConfigError if there are no nodes, too many, or a link of an unknown node.
    """
    import networkx

    if nodes.empty or len(nodes) > _MOST_NODES:
        raise ConfigError(f"topology: a map shows 1 to {_MOST_NODES:,} nodes, got {len(nodes):,}")
    kind = dict(zip(nodes["node"].tolist(), nodes["kind"].astype(str).tolist(), strict=True))
    strangers = sorted({*links["a"], *links["b"]} - kind.keys())
    if strangers:
        raise ConfigError(f"topology: a link leads to node {strangers[0]}, which is none of the nodes")
    graph = networkx.Graph()
    graph.add_nodes_from(kind)
    graph.add_weighted_edges_from(links[["a", "b", "bps"]].itertuples(index=False, name=None), weight="bps")
    hubs = [node for node, degree in graph.degree if degree == len(graph) - 1]
    if len(graph) > 2 and len(hubs) == 1 and graph.number_of_edges() == len(graph) - 1:
        around = sorted((node for node in graph if node != hubs[0]), key=lambda node: (kind[node], node))
        place = _rings(around) | {hubs[0]: np.zeros(2)}
    elif networkx.is_connected(graph) and len(graph) <= _MOST_EXACT:
        place = dict(networkx.kamada_kawai_layout(graph, weight=None))
    else:
        place = dict(networkx.spring_layout(graph, seed=1, iterations=100))
    bps = np.array([speed for _, _, speed in graph.edges(data="bps")], dtype=float)
    finite = bps[np.isfinite(bps) & (bps > 0)]
    widths = [0.7] * len(bps)  # points
    if finite.size and finite.max() != finite.min():  # by orders of magnitude
        share = np.log(np.clip(bps, finite.min(), finite.max()) / finite.min()) / np.log(finite.max() / finite.min())
        widths = list(0.4 + 1.6 * share)

    names = list(dict.fromkeys(kind.values()))
    others = iter(zip(colours(len(names)), (_MARKERS * math.ceil(len(names) / len(_MARKERS))), strict=False))
    styles: list[dict[str, Any]] = []
    labels = []
    for name in names:
        colour, marker = (INK, _SERVER_MARK) if name == _SERVER else next(others)
        styles.append({"color": colour, "marker": marker})
        number = list(kind.values()).count(name)
        labels.append(name if number == 1 else f"{name} ({number})")
    speeds = links["bps"][np.isfinite(links["bps"])]
    if not speeds.empty:
        labels.append(span("_bps", float(speeds.min()), float(speeds.max())))
    with figure(width_in, width_in * 0.86 + legend_in(labels, width_in)) as drawn:
        axis = drawn.subplots()
        lines = networkx.draw_networkx_edges(graph, place, ax=axis, width=widths, edge_color="0.72")
        if graph.number_of_edges():
            lines.set_gid("links")
        handles = []
        size = max(9.0, min(70.0, 2_600 * (width_in / 3.5) ** 2 / len(kind)))
        for name, look in zip(names, styles, strict=True):
            members = [node for node, of in kind.items() if of == name]
            at = np.array([place[node] for node in members])
            large = 1.7 if name == _SERVER else 1.0
            axis.scatter(
                at[:, 0], at[:, 1], s=large * size, label=name, edgecolor="white", linewidth=0.5, zorder=2, **look
            )
            handles.append(Line2D([], [], linestyle="none", markeredgecolor="white", markersize=7, **look))
        handles += [Line2D([], [], color="0.72")] * (len(labels) - len(names))
        axis.set_aspect("equal")
        axis.axis("off")
        axis.margins(0.06)
        legend_below(drawn, handles, labels)
    return drawn


def _rings(nodes: list[Any]) -> dict[Any, Any]:
    """Return places on rings around the middle, on more rings the more nodes there are."""
    rings = max(1, math.ceil(len(nodes) / 60))
    found = {}
    for ring in range(rings):
        members = nodes[ring::rings]
        radius = 1.0 - 0.6 * ring / rings
        for i, node in enumerate(members):
            angle = 2 * math.pi * (i + 0.5 * (ring % 2)) / len(members) + math.pi / 2
            found[node] = radius * np.array([math.cos(angle), math.sin(angle)])
    return found
