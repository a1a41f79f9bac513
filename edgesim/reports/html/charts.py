"""The charts of a report, as plotly figures, each with its words and with the numbers behind it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from plotly import graph_objects

from edgesim.reports.curves import mean_and_range
from edgesim.reports.html.content import Chart, Entry, Tradeoff
from edgesim.reports.html.drawing import (
    GREY,
    PATTERNS,
    axis,
    band,
    colours,
    drawn,
    folded,
    height_of,
    looks,
    numbers,
    safe,
    thinned,
    titled,
    unit_of,
)
from edgesim.reports.html.words import is_accuracy, middle, number, percent, words_of
from edgesim.reports.pictures.lorenz import lorenz_of
from edgesim.reports.pictures.stacked import parts_of

_AGAINST = {
    "sim_time_s": ("time", "simulated time"),
    "energy_j": ("energy", "energy of devices, idle included"),
    "round": ("rounds", "rounds"),
}
_ROWS_BEHIND = 12  # of each setting in the table behind a curve
_NAME = 22  # characters of a line of a row's name


def accuracy_charts(points: pd.DataFrame, settings: Sequence[str], targets: Sequence[float]) -> list[Chart]:
    """Return accuracy against time, energy and rounds: the mean over seeds, and a band from lowest to highest."""
    each = looks(settings)
    known = [label for label in settings if (points["setting"] == label).any()]
    return [_accuracy(points, {label: each[label] for label in known}, name, targets) for name in _AGAINST]


def _accuracy(points: pd.DataFrame, each: Mapping[str, Entry], quantity: str, targets: Sequence[float]) -> Chart:
    unit = unit_of(quantity, float(points[quantity].max()))
    name, words = _AGAINST[quantity]
    traces, rows = [], []
    for label, look in each.items():
        runs = [of_run for _, of_run in points[points["setting"] == label].groupby("run", sort=False)]
        line = mean_and_range(runs, quantity)
        at = line[quantity] / unit.size
        traces += _line(at, line, look, len(runs) > 1)
        rows += [
            (label, float(at[i]), *(100 * float(line[column][i]) for column in ("mean", "low", "high")))
            for i in thinned(len(line), _ROWS_BEHIND)
        ]
    dashed = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "line": {"color": GREY, "width": 1, "dash": "dash"}}
    shapes = [{**dashed, "y0": 100 * target, "y1": 100 * target} for target in targets]
    x = axis(titled(words, unit), rangemode="tozero")
    figure = drawn(traces, x, axis("test accuracy (%)"), shapes=shapes)
    ends = "; ".join(f"{label} {rows_of[-1][2]:.1f} %" for label, rows_of in _by_label(rows).items())
    says = f"Lines of test accuracy against {words}, one for each configuration. At the end: {ends}."
    head = ["configuration", titled(words, unit), "mean (%)", "lowest (%)", "highest (%)"]
    behind = numbers(f"Test accuracy against {words}", head, rows)
    return Chart(name=f"accuracy-{name}", title=f"Accuracy against {words}", says=says, figure=figure, data=behind)


def _by_label(rows: Sequence[tuple[Any, ...]]) -> dict[str, list[tuple[Any, ...]]]:
    found: dict[str, list[tuple[Any, ...]]] = {}
    for row in rows:
        found.setdefault(row[0], []).append(row)
    return found


def _line(at: pd.Series, line: pd.DataFrame, look: Entry, several: bool) -> list[Any]:
    """Return the traces of a setting: its band, if it has several runs, below its line."""
    quiet = {"hoverinfo": "skip", "mode": "lines", "line": {"width": 0}, "meta": {"setting": look.label}}
    low = graph_objects.Scatter(x=at, y=100 * line["low"], **quiet)
    high = graph_objects.Scatter(x=at, y=100 * line["high"], fill="tonexty", fillcolor=band(look.colour), **quiet)
    shown = thinned(len(at), 8)
    mean = graph_objects.Scatter(
        x=at,
        y=100 * line["mean"],
        mode="lines+markers",
        name=safe(look.label),
        line={"color": look.colour, "dash": look.dash, "width": 2},
        marker={"symbol": look.symbol, "size": [8 if i in shown else 0 for i in range(len(at))], "color": look.colour},
        meta={"setting": look.label},
        hovertemplate="%{y:.1f} % at %{x:.4g}",
    )
    return [low, high, mean] if several else [mean]


def target_chart(values: pd.DataFrame, summary: pd.DataFrame, column: str, settings: Sequence[str]) -> Chart:
    """Return what a target took: a row a setting, each run as a dot, open triangles where it did not get there."""
    of = values[values["column"] == column]
    rows = {row["setting"]: row for row in summary[summary["column"] == column].to_dict("records")}
    finite = [each for each in [*of["value"], *(row["middle_high"] for row in rows.values())] if math.isfinite(each)]
    unit = unit_of(column, max(finite, default=0.0))
    traces = []
    for place, look in enumerate(looks(settings).values()):
        runs = of[(of["setting"] == look.label) & of["value"].notna()]
        traces += [_dots(runs[runs["observed"] == there], look, unit.size, place, there) for there in (True, False)]
        traces += _middle(rows[look.label], look, unit.size, place, 1.06 * max(finite, default=1.0))
    names = list(range(len(settings)))
    y = axis(tickmode="array", tickvals=names, ticktext=[folded(label, _NAME) for label in settings], showgrid=False)
    y |= {"range": [len(settings) - 0.5, -0.5]}
    figure = drawn(traces, axis(titled(words_of(column), unit), rangemode="tozero"), y)
    table = [
        (label, *(number(column, each) for each in middle(rows[label])),
         f"{int(rows[label]['reached'])} of {int(rows[label]['runs'])}")
        for label in settings
    ]  # fmt: skip
    statistic = str(rows[settings[0]]["statistic"])
    said = "; ".join(f"{row[0]}: {statistic} {row[1]}, {row[4]} runs" for row in table)
    behind = numbers(words_of(column).capitalize(), ["configuration", statistic, "low", "high", "reached"], table)
    return Chart(
        name=f"target-{column.replace('@', '-at-')}",
        title=words_of(column).capitalize(),
        says=f"A row for each configuration with its runs and their {statistic}. {said}.",
        figure=figure,
        data=behind,
        height=height_of(len(settings), 44),
    )


def _dots(runs: pd.DataFrame, look: Entry, size: float, place: int, arrived: bool) -> Any:
    marker = {"color": look.colour, "size": 7, "symbol": "circle" if arrived else "triangle-right-open"}
    return graph_objects.Scatter(
        x=runs["value"] / size,
        y=[place + 0.16] * len(runs),
        mode="markers",
        marker=marker,
        meta={"setting": look.label},
        hovertemplate="seed %{customdata}: %{x:.4g}" + ("" if arrived else ", not reached") + "<extra></extra>",
        customdata=[safe(str(seed)) for seed in runs["seed"]],
    )


def _middle(row: Mapping[Any, Any], look: Entry, size: float, place: int, edge: float) -> list[Any]:
    at, low, high = middle(row)
    if not math.isfinite(at) and not math.isfinite(low):
        return []
    begin = low if math.isfinite(low) else at
    end = high if math.isfinite(high) else at if math.isnan(high) else edge
    arrow = 10 if end == edge else 0
    line = graph_objects.Scatter(
        x=[begin / size, end / size],
        y=[place - 0.12] * 2,
        mode="lines+markers",
        line={"color": look.colour, "width": 2},
        marker={"symbol": "triangle-right", "size": [0, arrow], "color": look.colour},
        hoverinfo="skip",
        meta={"setting": look.label},
    )
    diamond = graph_objects.Scatter(
        x=[at / size] if math.isfinite(at) else [],
        y=[place - 0.12] if math.isfinite(at) else [],
        mode="markers",
        marker={"symbol": "diamond", "size": 11, "color": look.colour, "line": {"color": "white", "width": 1}},
        hovertemplate=f"{row['statistic']} %{{x:.4g}}<extra></extra>",
        meta={"setting": look.label},
    )
    return [line, diamond]


def tradeoff_chart(tradeoff: Tradeoff, settings: Sequence[str]) -> Chart:
    """Return settings by two of their columns, the front joined and what is dominated in grey."""
    x, y = tradeoff.x, tradeoff.y
    points = tradeoff.points
    units = {name: unit_of(name, float(points[name].max())) for name in (x, y)}
    sizes = {name: 0.01 if is_accuracy(name) else units[name].size for name in (x, y)}
    each = looks(settings)
    front = points[points["front"]].sort_values(x, kind="stable")
    joined = graph_objects.Scatter(
        x=front[x] / sizes[x], y=front[y] / sizes[y], mode="lines", line={"color": GREY, "width": 1.2}, hoverinfo="skip"
    )
    traces = [joined, *(_spot(row, (x, y), sizes, each[row["setting"]]) for row in points.to_dict("records"))]
    titles = [safe(f"{words_of(n)} (%)") if is_accuracy(n) else titled(words_of(n), units[n]) for n in (x, y)]
    figure = drawn(traces, axis(titles[0]), axis(titles[1]))
    on_front = ", ".join(front["setting"]) or "none"
    rows = [
        (row["setting"], number(x, row[x]), number(y, row[y]), "yes" if row["front"] else "no")
        for row in points.to_dict("records")
    ]
    title = f"{words_of(y).capitalize()} and {words_of(x)}"
    return Chart(
        name=f"pareto-{x}-{y}".replace("@", "-at-").replace(".", "-"),
        title=title,
        says=f"A point for each configuration. On the front, where no other one is better in both: {on_front}.",
        figure=figure,
        data=numbers(title, ["configuration", words_of(x), words_of(y), "on the front"], rows),
    )


def _spot(row: Mapping[Any, Any], names: tuple[str, str], sizes: Mapping[str, float], look: Entry) -> Any:
    colour = look.colour if row["front"] else GREY
    bars = {}
    for bar, name in zip(("error_x", "error_y"), names, strict=True):
        low, high = (float(row.get(f"{name}_{end}", math.nan)) for end in ("low", "high"))
        if math.isfinite(low) and math.isfinite(high):
            ends = {
                "array": [max(0.0, high - row[name]) / sizes[name]],
                "arrayminus": [max(0.0, row[name] - low) / sizes[name]],
            }
            bars[bar] = {"symmetric": False, "thickness": 1, "width": 3, "color": colour, **ends}
    return graph_objects.Scatter(
        x=[row[names[0]] / sizes[names[0]]],
        y=[row[names[1]] / sizes[names[1]]],
        mode="markers",
        name=safe(look.label),
        marker={"symbol": look.symbol, "size": 12, "color": colour, "line": {"color": "white", "width": 1}},
        meta={"setting": look.label},
        hovertemplate="%{x:.4g}, %{y:.4g}",
        **bars,
    )


def stacked_chart(
    spent: pd.DataFrame, part: str, value: str, name: str, words: str, settings: Sequence[str]
) -> tuple[Chart, list[Entry]]:
    """Return a bar a setting, stacked by `part`, with the entries of its legend."""
    known = [label for label in settings if (spent["setting"] == label).any()]
    means = parts_of(spent, part, value).loc[known]
    totals = means.sum(axis=1).tolist()
    unit = unit_of(value, max(totals))
    kinds, palette = list(map(str, means.columns)), colours()
    entries = [Entry(label=kind, colour=palette[i % len(palette)]) for i, kind in enumerate(kinds)]
    traces = [
        graph_objects.Bar(
            x=means[kind] / unit.size,
            y=list(range(len(known))),
            orientation="h",
            name=kind,
            marker={
                "color": entry.colour,
                "line": {"color": "white", "width": 0.5},
                "pattern": {
                    "shape": PATTERNS[i % len(PATTERNS)],
                    "fgcolor": "#ffffff",
                    "fillmode": "overlay",
                    "size": 6,
                },
            },
            hovertemplate="%{x:.4g} " + safe(unit.symbol),
        )
        for i, (kind, entry) in enumerate(zip(kinds, entries, strict=True))
    ]
    labels = [folded(label, _NAME) for label in known]
    y = axis(tickmode="array", tickvals=list(range(len(known))), ticktext=labels, showgrid=False, autorange="reversed")
    figure = drawn(traces, axis(titled(words, unit)), y, barmode="stack", bargap=0.35)
    rows = [
        (label, *(number(value, each) for each in [*of_parts, total]))
        for label, of_parts, total in zip(known, means.to_numpy().tolist(), totals, strict=True)
    ]
    said = "; ".join(f"{row[0]} {row[-1]}" for row in rows)
    chart = Chart(
        name=name,
        title=f"{words[:1].upper()}{words[1:]} by {part}",
        says=f"A bar for each configuration, stacked by {part}. In all: {said}.",
        figure=figure,
        data=numbers(f"Mean {words} by {part}", ["configuration", *kinds, "in all"], rows),
        height=height_of(len(known)),
        wide=True,
    )
    return chart, entries


def lengths_chart(lengths: pd.DataFrame, settings: Sequence[str]) -> Chart:
    """Return which share of rounds is done within how many seconds, a line a setting."""
    unit = unit_of("_s", float(lengths["length_s"].max()))
    traces, rows = [], []
    for look in looks(settings).values():
        found = np.sort(lengths["length_s"][lengths["setting"] == look.label].to_numpy(dtype=float))
        if not len(found):
            continue
        places = thinned(len(found), 400)
        traces.append(
            graph_objects.Scatter(
                x=found[places] / unit.size,
                y=[100 * (i + 1) / len(found) for i in places],
                mode="lines",
                name=safe(look.label),
                line={"color": look.colour, "dash": look.dash, "width": 2, "shape": "hv"},
                meta={"setting": look.label},
                hovertemplate="%{y:.0f} % within %{x:.4g}",
            )
        )
        rows.append((look.label, *(number("_s", float(np.quantile(found, q))) for q in (0, 0.5, 0.9, 1))))
    figure = drawn(
        traces, axis(titled("length of a round", unit), rangemode="tozero"), axis("rounds (%)", range=[0, 102])
    )
    said = "; ".join(f"{row[0]}: median {row[2]}, longest {row[4]}" for row in rows)
    return Chart(
        name="lengths",
        title="How long rounds are",
        says=f"The share of rounds that are done within a time. {said}.",
        figure=figure,
        data=numbers("Lengths of rounds", ["configuration", "shortest", "median", "90 % within", "longest"], rows),
    )


def lorenz_chart(devices: pd.DataFrame, settings: Sequence[str]) -> Chart:
    """Return the share of energy spent by the devices that spent least, a line a setting."""
    diagonal = {"x": [0, 100], "y": [0, 100], "mode": "lines", "hoverinfo": "skip"}
    traces = [graph_objects.Scatter(**diagonal, line={"color": GREY, "width": 1, "dash": "dot"})]
    rows = []
    for look in looks(settings).values():
        at, mean, gini = lorenz_of(devices, look.label, "joules")
        places = thinned(len(at), 200)
        line = {"color": look.colour, "dash": look.dash, "width": 2}
        hover = "%{x:.0f} % of devices spent %{y:.1f} %"
        traces.append(
            graph_objects.Scatter(
                x=100 * at[places], y=100 * mean[places], mode="lines", name=safe(look.label), line=line,
                meta={"setting": look.label}, hovertemplate=hover,
            )
        )  # fmt: skip
        half = float(np.interp(0.5, at, mean))
        rows.append((look.label, f"{gini:.3f}", percent(round(half, 3))))
    figure = drawn(traces, axis("devices (%)", range=[0, 100]), axis("energy (%)", range=[0, 100]))
    said = "; ".join(f"{label}: Gini {coefficient}" for label, coefficient, _ in rows)
    return Chart(
        name="lorenz",
        title="How evenly devices spend energy",
        says=f"Lorenz curves: the lower a curve, the more unequal the devices. {said}.",
        figure=figure,
        data=numbers("Energy over devices", ["configuration", "Gini", "spent by the thriftier half"], rows),
    )
