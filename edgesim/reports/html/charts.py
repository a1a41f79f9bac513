"""Charts of a report, drawn with plotly, each with its numbers as a table."""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd
from plotly import graph_objects

from edgesim.reports.figure_numbers import (
    PHASES,
    FigureLine,
    accuracy_lines,
    length_lines,
    lorenz_lines,
    spans_of,
    stacked_bars,
    target_rows,
)
from edgesim.reports.figures import part_colours, setting_looks
from edgesim.reports.format import text, unit_for
from edgesim.reports.html.content import Cell, Chart, Entry, ReportTable, SlowestRound, Tradeoff
from edgesim.reports.html.words import is_money, number, percent, unit_of, words_of

GREY = "#8a9099"
PATTERNS = ("", "/", ".", "x", "\\", "|", "+", "-")
_FONT = {"family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", "size": 12}
_MARGIN = {"l": 52, "r": 14, "t": 10, "b": 44}


def looks(settings: Sequence[str]) -> dict[str, Entry]:
    """Return the colour, dash and mark of each setting."""
    return {
        label: Entry(label=label, colour=look.colour, dash=look.dash, symbol=look.symbol)
        for label, look in zip(settings, setting_looks(len(settings)), strict=True)
    }


def safe(text: str) -> str:
    """Return a text with HTML escaped, since plotly takes some HTML for formatting."""
    return html.escape(text, quote=False)


def folded(label: str, most: int) -> str:
    """Return a label for a row of a chart: safe, in at most three lines of at most `most` characters."""
    words, lines = label.split(" "), [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + 1 + len(word) > most:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    cut = [line if len(line) <= most else f"{line[: most - 1]}…" for line in lines]
    return "<br>".join(safe(line) for line in cut[:3])


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    """Return an axis with few ticks and a pale grid. The style sheet of the page sets its colours."""
    return {
        "title": {"text": title, "standoff": 10, "font": {"size": 12}},
        "showline": False,
        "zeroline": False,
        "ticks": "",
        "tickangle": 0,
        "nticks": 6,
        "automargin": True,
        "fixedrange": True,
        "gridcolor": "#e3e6ea",
        **more,
    }


def drawn(traces: Sequence[Any], x: Mapping[str, Any], y: Mapping[str, Any], **more: Any) -> Any:
    """Return a transparent figure, to fit light and dark pages. It has no legend, as the page has buttons for it."""
    layout = {
        "template": "none",
        "font": _FONT,
        "margin": _MARGIN,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "showlegend": False,
        "hovermode": "closest",
        "hoverlabel": {"bgcolor": "#1d2126", "font": {"color": "#ffffff", **_FONT}, "bordercolor": "#1d2126"},
        "dragmode": False,
        "xaxis": dict(x),
        "yaxis": dict(y),
        **more,
    }
    return graph_objects.Figure(data=list(traces), layout=layout)


def numbers(caption: str, head: Sequence[str], rows: Sequence[Sequence[Any]], names: int = 1) -> ReportTable:
    """Return the table behind a chart. The first `names` columns are names, all others numbers of four digits."""
    cells = []
    for row in rows:
        texts = []
        for each in row:
            if isinstance(each, str):
                texts.append(each)
            elif not math.isfinite(each):
                texts.append("–")
            else:
                texts.append(f"{each:.4g}" if abs(each) < 1e5 else f"{each:.3e}")
        cells.append([Cell(text) for text in texts])
    return ReportTable(caption=caption, head=head, rows=cells, numbers=len(head) - names)


def thinned(count: int, most: int) -> list[int]:
    """Return at most `most` of `count` places, evenly spread, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


_SEEN = 1e-3  # of the height or the width of a chart; less is neither seen in it nor in the numbers below it


Emptiness: TypeAlias = Literal["equal", "straight", "upright"]


def without_information(lines: Sequence[FigureLine]) -> frozenset[Emptiness]:
    """Return the reasons why a chart of lines would show nothing.

    "straight": all lie on one straight line of at least three points. "equal": two or more have the same points and
    bands. "upright": each has a single x. A distance below a thousandth of the chart counts as none.
    """
    found: set[Emptiness] = set()
    x, y = (np.concatenate(each) for each in ([line.x for line in lines], [line.y for line in lines]))
    sizes = [float(np.ptp(each)) for each in (x, y)]
    if all(np.ptp(line.x) <= _SEEN * abs(line.x[-1]) for line in lines):
        found.add("upright")
    same_band = all(line.band is None or np.ptp(line.band, axis=0).max() <= _SEEN * sizes[1] for line in lines)
    if len(x) >= 3 and sizes[0] > 0 and same_band:
        first, last = int(x.argmin()), int(x.argmax())
        on_line = y[first] + (y[last] - y[first]) * (x - x[first]) / sizes[0]
        if np.abs(y - on_line).max() <= _SEEN * sizes[1]:
            found.add("straight")
    at, tracks = np.unique(x), []
    for line in lines:
        tracks.append([np.interp(at, line.x, each) for each in (line.y, *(line.band or (line.y, line.y)))])
    ends = np.array([[line.x[0], line.x[-1]] for line in lines])
    alike = np.ptp(ends, axis=0).max() <= _SEEN * sizes[0] and np.ptp(tracks, axis=0).max() <= _SEEN * sizes[1]
    return frozenset(found | {"equal"} if alike and len(lines) > 1 else found)


def swarm(values: Sequence[float] | np.ndarray, apart: float, most: int) -> list[tuple[float, int, list[int]]]:
    """Return dots of a row of values so that no two overlap: x, lane from 0, and the places of its values.

    Dots of a lane differ by at least `apart`, which is the diameter of a dot. If they need more than `most` lanes, near
    values become one dot at their mean, and dots differ by three diameters, so that a number fits beside each.
    """
    order = sorted(range(len(values)), key=lambda i: (values[i], i))
    ends: list[float] = []  # the last x of each lane
    dots: list[tuple[float, int, list[int]]] = []
    for i in order:
        lane = next((place for place, end in enumerate(ends) if values[i] - end >= apart), len(ends))
        ends[lane : lane + 1] = [values[i]]
        dots.append((values[i], lane, [i]))
    if len(ends) <= most:
        return dots
    heaps = [[i] for i in order]
    while len(heaps) > 1:
        means = np.array([np.mean([values[i] for i in heap]) for heap in heaps])
        nearest = int(np.diff(means).argmin())
        if means[nearest + 1] - means[nearest] >= 3 * apart:
            break
        heaps[nearest : nearest + 2] = [heaps[nearest] + heaps[nearest + 1]]
    return [(float(np.mean([values[i] for i in heap])), 0, heap) for heap in heaps]


def height_of(rows: int, each: int = 34) -> int:
    """Return the height in pixels of a chart with this number of rows."""
    return 74 + each * max(rows, 2)


_AGAINST = {
    "sim_time_s": ("time", "simulated time"),
    "energy_j": ("energy", "energy of devices, idle included"),
    "round": ("rounds", "rounds"),
}
_ROWS_BEHIND = 12  # rows of each setting in the table behind a curve
_NAME = 22  # characters per line of a row's name


def line(look: Entry, x: Any, y: Any, **more: Any) -> Any:
    """Return the trace of a setting's line."""
    style = {"color": look.colour, "dash": look.dash, "width": 2, **more.pop("line", {})}
    about = {"mode": "lines", "name": safe(look.label), "meta": {"setting": look.label, "named": "end"}, **more}
    return graph_objects.Scatter(x=x, y=y, line=style, **about)


def band(look: Entry, x: Any, low: Any, high: Any) -> list[Any]:
    """Return the two traces of a band behind a line."""
    red, green, blue = (int(look.colour[i : i + 2], 16) for i in (1, 3, 5))
    quiet = {"hoverinfo": "skip", "mode": "lines", "line": {"width": 0}, "meta": {"setting": look.label}}
    return [
        graph_objects.Scatter(x=x, y=low, **quiet),
        graph_objects.Scatter(x=x, y=high, fill="tonexty", fillcolor=f"rgba({red},{green},{blue},0.18)", **quiet),
    ]


def row_axis(names: Sequence[str], at: Sequence[float] = (), **more: Any) -> dict[str, Any]:
    """Return the vertical axis of a chart with a row for each name, the first on top. `at`: middles of the rows."""
    return axis(
        tickmode="array",
        tickvals=list(at or range(len(names))),
        ticktext=names,
        showgrid=False,
        ticklabelstandoff=6,
        **more,
    )


def accuracy_charts(
    points: pd.DataFrame, settings: Sequence[str], targets: Sequence[float], badges: Sequence[str] = ()
) -> list[Chart]:
    """Return charts of accuracy against time, energy and rounds: see `accuracy_lines`.

    Equal curves are drawn only if they are equal in all charts, and then only against time.
    """
    each = looks(settings)
    dashed = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "line": {"color": GREY, "width": 1, "dash": "dash"}}
    shapes = [{**dashed, "y0": 100 * target, "y1": 100 * target} for target in targets]
    charts = []
    every = "the configuration" if len(settings) == 1 else f"all {len(settings)} configurations"
    drawings = {quantity: accuracy_lines(points, quantity) for quantity in _AGAINST}
    empty = {quantity: without_information(lines) - {"upright"} for quantity, (_, lines) in drawings.items()}
    if all(empty.values()) and "straight" not in empty["sim_time_s"]:
        empty["sim_time_s"] = frozenset()
    for quantity, (name, words) in _AGAINST.items():
        unit, lines = drawings[quantity]
        traces: list[Any] = []
        rows: list[tuple[Any, ...]] = []
        for found in lines:
            look, (low, high) = each[found.label], found.band or (found.y, found.y)
            if found.band:
                traces += band(look, found.x, 100 * low, 100 * high)
            marked = thinned(len(found.x), 8)
            sizes = [8 if i in marked else 0 for i in range(len(found.x))]
            marker = {"symbol": look.symbol, "size": sizes, "color": look.colour}
            hover = "%{y:.1f} % at %{x:.4g}"
            traces.append(line(look, found.x, 100 * found.y, mode="lines+markers", marker=marker, hovertemplate=hover))
            rows += [
                (found.label, float(found.x[i]), *(100 * float(of[i]) for of in (found.y, low, high)))
                for i in thinned(len(found.x), _ROWS_BEHIND)
            ]
        title = safe(unit.after(words))
        last = {row[0]: row for row in rows}
        ends = "; ".join(f"{label} {row[2]:.1f} %" for label, row in last.items())
        says = f"Lines of test accuracy against {words}, one for each configuration. At the end: {ends}."
        if empty[quantity]:
            before = "round " if quantity == "round" else ""
            (x, y), (x_end, y_end) = (
                (f"{before}{lines[0].x[i]:.3g} {unit.symbol}".strip(), f"{100 * lines[0].y[i]:.1f} %") for i in (0, -1)
            )
            says = f"The curve is the same for {every}: {y} at {x}, {y_end} at {x_end}."
            if "straight" in empty[quantity]:
                says = f"Test accuracy stays at {y} in {every}." if y == y_end else f"{says[:-1]}, in a straight line."
        chart = Chart(
            name=f"accuracy-{name}",
            title=f"Accuracy against {words}",
            says=says.replace(" %", "\u00a0%"),
            figure=None
            if empty[quantity]
            else drawn(traces, axis(title, rangemode="tozero"), axis("test accuracy (%)"), shapes=shapes),
            data=numbers(
                f"Test accuracy against {words}",
                ["configuration", title, "mean (%)", "lowest (%)", "highest (%)"],
                rows,
            ),
            badges=badges,
        )
        charts.append(chart)
    return charts


_DOT = 6  # pixels
_LANES = 10  # of dots in a row, at most
_NARROWEST = 190  # pixels of the drawing of a row on a phone
_INTERVAL_Y, _DOTS_Y = 14, 26  # pixels from the top of a row to its interval, and to its first lane of dots


def target_chart(
    values: pd.DataFrame, summary: pd.DataFrame, column: str, settings: Sequence[str], currency: str = ""
) -> Chart:
    """Return a chart of the cost of a target: a row per setting, a dot per run, an open triangle if not reached.

    Dots do not overlap: see `swarm`. A dot of several runs has their number beside it.
    """
    of_column = summary[summary["column"] == column]
    statistic = str(of_column["statistic"].iloc[0])
    unit, largest, found = target_rows(
        values[values["column"] == column], of_column, column.partition("@")[0], ("middle", "middle_low", "middle_high")
    )
    unit = unit_of(column, largest, currency) if is_money(column) else unit
    edge = 1.06 * (largest or 1.0)
    apart = (_DOT + 1) / _NARROWEST * 1.06 * edge
    traces: list[Any] = []
    tops = [0]  # of rows, in pixels
    for look, row in zip(looks(settings).values(), found, strict=True):
        meta, middle_y, below_y = {"setting": look.label}, tops[-1] + _INTERVAL_Y, tops[-1] + _DOTS_Y
        for runs, symbol, note in ((row.arrived, "circle", ""), (row.censored, "triangle-right-open", ", not reached")):
            dots = swarm(runs["value"].to_numpy(dtype=float), apart, _LANES)
            heaped = any(len(those) > 1 for _, _, those in dots)
            seeds = [safe(str(seed)) for seed in runs["seed"]]
            of_runs = graph_objects.Scatter(
                x=[x / unit.size for x, _, _ in dots],
                y=[below_y + (_DOT + 1) * lane for _, lane, _ in dots],
                mode="markers+text",
                text=[f"{len(those)}" if heaped else "" for _, _, those in dots],
                textposition="bottom center",
                marker={"color": look.colour, "size": _DOT, "symbol": symbol},
                meta=meta,
                hovertemplate="%{customdata}: %{x:.4g}" + f"{note}<extra></extra>",
                customdata=[
                    f"{len(those)} runs, mean" if len(those) > 1 else f"seed {seeds[those[0]]}" for _, _, those in dots
                ],
            )
            traces.append(of_runs)
            below_y += 3 * (_DOT + 1) if heaped else (_DOT + 1) * (1 + max((lane for _, lane, _ in dots), default=-1))
        tops.append(max(below_y, tops[-1] + _DOTS_Y + 2 * _DOT) + 4)
        if not math.isfinite(row.begin):
            continue
        # An interval without a known end ends in an arrow.
        end = row.high if math.isfinite(row.high) else row.middle if math.isnan(row.high) else edge
        interval = graph_objects.Scatter(
            x=[row.begin / unit.size, end / unit.size],
            y=[middle_y] * 2,
            mode="lines+markers",
            line={"color": look.colour, "width": 2},
            marker={"symbol": "triangle-right", "size": [0, 10 if end == edge else 0], "color": look.colour},
            hoverinfo="skip",
            meta=meta,
        )
        there = math.isfinite(row.middle)
        diamond = graph_objects.Scatter(
            x=[row.middle / unit.size] if there else [],
            y=[middle_y] if there else [],
            mode="markers",
            marker={"symbol": "diamond", "size": 11, "color": look.colour, "line": {"color": "white", "width": 1}},
            hovertemplate=f"{statistic} %{{x:.4g}}<extra></extra>",
            meta=meta,
        )
        traces += [interval, diamond]
    middles = [(top + bottom) / 2 for top, bottom in itertools.pairwise(tops)]
    y = row_axis([folded(label, _NAME) for label in settings], middles, range=[tops[-1], 0])
    rows = of_column.to_dict("records")
    arrived = {row["setting"]: f"{int(row['reached'])} of {int(row['runs'])}" for row in rows}
    table = [
        (
            row.label,
            *(number(column, each, None, currency) for each in (row.middle, row.low, row.high)),
            arrived[row.label],
        )
        for row in found
    ]
    said = "; ".join(f"{row[0]}: {statistic} {row[1]}, {row[4]} runs" for row in table)
    title = words_of(column).capitalize()
    return Chart(
        name=f"target-{column.replace('@', '-at-')}",
        title=title,
        says=f"A row for each configuration with its runs and their {statistic}. {said}.",
        figure=drawn(traces, axis(safe(unit.after(words_of(column))), rangemode="tozero"), y),
        data=numbers(title, ["configuration", statistic, "low", "high", "reached"], table),
        height=height_of(0, 0) + max(50, tops[-1]),
    )


def tradeoff_chart(tradeoff: Tradeoff, settings: Sequence[str], currency: str = "") -> Chart:
    """Return a chart of settings by two of their columns: the front is joined, dominated settings are grey."""
    x, y = tradeoff.x, tradeoff.y
    points = tradeoff.points
    units = {name: unit_of(name, float(points[name].max()), currency) for name in (x, y)}
    each = looks(settings)
    front = points[points["front"]].sort_values(x, kind="stable")
    joined = graph_objects.Scatter(
        x=front[x] / units[x].size, y=front[y] / units[y].size, mode="lines", line={"color": GREY, "width": 1.2},
        hoverinfo="skip",
    )  # fmt: skip
    traces = [joined]
    for row in points.to_dict("records"):
        look = each[row["setting"]]
        colour = look.colour if row["front"] else GREY
        bars = {}
        for bar, name in (("error_x", x), ("error_y", y)):
            if spans := spans_of(row, name):
                below, above = (span / units[name].size for span in spans)
                ends = {"array": [above], "arrayminus": [below]}
                bars[bar] = {"symmetric": False, "thickness": 1, "width": 3, "color": colour, **ends}
        spot = graph_objects.Scatter(
            x=[row[x] / units[x].size],
            y=[row[y] / units[y].size],
            mode="markers",
            name=safe(look.label),
            marker={"symbol": look.symbol, "size": 12, "color": colour, "line": {"color": "white", "width": 1}},
            meta={"setting": look.label, "named": "spot"},
            hovertemplate="%{x:.4g}, %{y:.4g}",
            **bars,
        )
        traces.append(spot)
    axes = [axis(safe(units[name].after(words_of(name)))) for name in (x, y)]
    on_front = ", ".join(front["setting"]) or "none"
    rows = [
        (row["setting"], *(number(name, row[name], None, currency) for name in (x, y)), "yes" if row["front"] else "no")
        for row in points.to_dict("records")
    ]
    title = f"{words_of(y).capitalize()} and {words_of(x)}"
    return Chart(
        name=f"pareto-{x}-{y}".replace("@", "-at-").replace(".", "-"),
        title=title,
        says=f"A point for each configuration. On the front, where no other one is better in both: {on_front}.",
        figure=drawn(traces, *axes),
        data=numbers(title, ["configuration", words_of(x), words_of(y), "on the front"], rows),
    )


def stacked_chart(spent: pd.DataFrame, part: str, value: str, name: str, words: str) -> tuple[Chart, list[Entry]]:
    """Return a chart with a bar per setting, stacked by `part`, and the entries of its legend: see `stacked_bars`."""
    bars = stacked_bars(spent, part, value)
    unit, labels, kinds = bars.unit, list(bars.means.index), list(map(str, bars.means.columns))
    names = [kind.replace("_", " ") for kind in kinds]
    entries = [Entry(label=name, colour=colour) for name, colour in zip(names, part_colours(kinds), strict=True)]
    pattern = {"fgcolor": "#ffffff", "fillmode": "overlay", "size": 6}
    traces = [
        graph_objects.Bar(
            x=bars.means[kind] / unit.size,
            y=list(range(len(labels))),
            orientation="h",
            name=entry.label,
            marker={
                "color": entry.colour,
                "line": {"color": "white", "width": 0.5},
                "pattern": {"shape": PATTERNS[i % len(PATTERNS)], **pattern},
            },
            hovertemplate="%{x:.4g} " + safe(unit.symbol),
        )
        for i, (kind, entry) in enumerate(zip(kinds, entries, strict=True))
    ]
    y = row_axis([folded(label, _NAME) for label in labels], autorange="reversed")
    rows = [
        (label, *(number(value, each) for each in [*of_parts, sum(of_parts)]))
        for label, of_parts in zip(labels, bars.means.to_numpy().tolist(), strict=True)
    ]
    said = "; ".join(f"{row[0]} {row[-1]}" for row in rows)
    chart = Chart(
        name=name,
        title=f"{words[:1].upper()}{words[1:]} by {part}",
        says=f"A bar for each configuration, stacked by {part}. In all: {said}.",
        figure=drawn(traces, axis(safe(unit.after(words))), y, barmode="stack", bargap=0.35),
        data=numbers(f"Mean {words} by {part}", ["configuration", *names, "in all"], rows),
        height=height_of(len(labels)),
        wide=True,
    )
    return chart, entries


def lengths_chart(lengths: pd.DataFrame, settings: Sequence[str]) -> Chart:
    """Return a chart of the share of rounds that are done within a time, a line per setting: see `length_lines`."""
    unit, lines = length_lines(lengths)
    each = looks(settings)
    traces, rows = [], []
    for found in lines:
        places, hover = thinned(len(found.x), 400), "%{y:.0f} % within %{x:.4g}"
        steps = {"line": {"shape": "hv"}, "hovertemplate": hover}
        traces.append(line(each[found.label], found.x[places], 100 * found.y[places], **steps))
        quantiles = unit.size * np.quantile(found.x, (0, 0.5, 0.9, 1))
        rows.append((found.label, *(number("_s", float(length_s)) for length_s in quantiles)))
    x = axis(safe(unit.after("length of a round")), rangemode="tozero")
    said = "; ".join(f"{row[0]}: median {row[2]}, longest {row[4]}" for row in rows)
    says, empty = f"The share of rounds that are done within a time. {said}.", without_information(lines)
    if "upright" in empty:
        all_rows = "; ".join(f"{row[0]} {row[4]}" for row in rows)
        says = f"All rounds of a configuration take equally long: {all_rows}."
    elif "equal" in empty:
        says = f"Rounds are equally long in all {len(rows)} configurations: median {rows[0][2]}, longest {rows[0][4]}."
    return Chart(
        name="lengths",
        title="How long rounds are",
        says=says,
        figure=None if empty - {"straight"} else drawn(traces, x, axis("rounds (%)", range=[0, 102])),
        data=numbers("Lengths of rounds", ["configuration", "shortest", "median", "90 % within", "longest"], rows),
    )


def lorenz_chart(devices: pd.DataFrame, settings: Sequence[str]) -> Chart:
    """Return a chart of the share of energy spent by the thriftiest devices, a line per setting: see `lorenz_lines`."""
    diagonal = {"x": [0, 100], "y": [0, 100], "mode": "lines", "hoverinfo": "skip"}
    traces = [graph_objects.Scatter(**diagonal, line={"color": GREY, "width": 1, "dash": "dot"})]
    each, rows, lines = looks(settings), [], lorenz_lines(devices)
    for found in lines:
        places, hover = thinned(len(found.x), 200), "%{x:.0f} % of devices spent %{y:.1f} %"
        traces.append(line(each[found.label], 100 * found.x[places], 100 * found.y[places], hovertemplate=hover))
        half = float(np.interp(0.5, found.x, found.y))
        rows.append((found.label, f"{found.gini:.3f}", percent(round(half, 3))))
    said = "; ".join(f"{label}: Gini {coefficient}" for label, coefficient, _ in rows)
    says, empty = f"Lorenz curves: the lower a curve, the more unequal the devices. {said}.", without_information(lines)
    if "straight" in empty:
        says = "All devices of a configuration spend the same energy."
    elif empty:
        says = f"Devices share energy alike in all {len(rows)} configurations: Gini {rows[0][1]}."
    return Chart(
        name="lorenz",
        title="How evenly devices spend energy",
        says=says,
        figure=None
        if empty
        else drawn(traces, axis("devices (%)", range=[0, 100]), axis("energy (%)", range=[0, 100])),
        data=numbers("Energy over devices", ["configuration", "Gini", "spent by the thriftier half"], rows),
    )


_MOST_ROWS = 30
_ROW_NAME = 24  # characters of a row's name, which is one line


def phases() -> list[Entry]:
    """Return the legend of a Gantt chart."""
    return [Entry(label=phase, colour=colour) for phase, colour in zip(PHASES, part_colours(PHASES), strict=True)]


def gantt_chart(slowest: SlowestRound) -> Chart:
    """Return a Gantt chart of a round, the last device to end on top. Of many devices the last to end are shown."""
    found = slowest.found
    shown, left_out = found.last_to_end(_MOST_ROWS)
    unit = unit_for("_s", found.length_s)
    place = {device: row for row, device in enumerate(shown)}
    bars = found.bars[found.bars["device"].isin(shown)]
    traces = []
    for entry in phases():
        of_phase = bars[bars["phase"] == entry.label]
        hatches = ["" if outcome == "ok" else "/" for outcome in of_phase["outcome"]]
        trace = graph_objects.Bar(
            base=of_phase["start_s"] / unit.size,
            x=(of_phase["end_s"] - of_phase["start_s"]) / unit.size,
            y=of_phase["device"].map(place),
            orientation="h",
            name=entry.label,
            marker={"color": entry.colour, "pattern": {"shape": hatches, "fillmode": "overlay", "fgcolor": "#ffffff"}},
            customdata=of_phase[["device", "outcome"]],
            hovertemplate="%{fullData.name} %{x:.3g}, %{customdata[1]}<extra>device %{customdata[0]}</extra>",
        )
        traces.append(trace)
    end = found.length_s / unit.size
    upright = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "line": {"color": GREY, "width": 1.5}}
    names = []
    for device in shown:
        kind, room = found.kinds.get(device, ""), _ROW_NAME - len(f" {device}")
        names.append(safe(f"{kind if len(kind) <= room else f'{kind[: room - 1]}…'} {device}"))
    x = axis(safe(unit.after("since the start of the round")), range=[0, 1.02 * end if end else 1])
    y = row_axis(names, range=[len(shown) - 0.5, -0.5])
    rows = [
        (f"{found.kinds.get(row['device'], '')} {row['device']}", row["phase"], row["outcome"],
         text("_s", row["start_s"]), text("_s", row["end_s"]))
        for row in bars.to_dict("records")
    ]  # fmt: skip
    hidden = f"; {left_out} faster devices are not shown" if left_out else ""
    return Chart(
        name="gantt",
        title=f"Round {found.number} of {slowest.run}: who did what when{hidden}",
        says=f"Bars of downloading, computing and uploading, a row for each device. {' '.join(slowest.lines[:2])}",
        figure=drawn(traces, x, y, barmode="overlay", bargap=0.25, shapes=[{**upright, "x0": end, "x1": end}]),
        data=numbers("What devices did in this round", ["device", "activity", "outcome", "from", "to"], rows, names=3),
        height=80 + 20 * max(4, len(shown)),
        wide=True,
    )


def cost_charts(costs: pd.DataFrame, settings: Sequence[str], currency: str) -> list[Chart]:
    """Return charts of money and carbon against time: a line per setting, its first run, in a band of low to high."""
    in_kg = costs["total_co2e_high_g"].max() >= 2000
    wanted = [
        (("total_cost", "total_cost_low", "total_cost_high"), "cost", f"cost ({currency})" if currency else "cost", 1),
        (("total_co2e_g", "total_co2e_low_g", "total_co2e_high_g"), "carbon", f"carbon ({'kg' if in_kg else 'g'} CO₂e)",
         1000 if in_kg else 1),
    ]  # fmt: skip
    unit = unit_for("_s", float(costs["sim_time_s"].max()))
    charts = []
    for columns, name, words, size in wanted:
        if not costs[columns[0]].any():
            continue
        traces: list[Any] = []
        lines: list[FigureLine] = []
        rows: list[tuple[Any, ...]] = []
        for look in looks(settings).values():
            of = costs[(costs["setting"] == look.label) & costs[columns[0]].notna()]
            if of.empty:
                continue
            first = of[of["run"] == of["run"].iloc[0]]
            picked = first.iloc[thinned(len(first), 300)]
            at = picked["sim_time_s"] / unit.size
            typical, low, high = (picked[column] / size for column in columns)
            traces += [*band(look, at, low, high), line(look, at, typical)]
            lines.append(FigureLine(label=look.label, x=at.to_numpy(), y=typical.to_numpy(), band=(low, high)))
            last = of.groupby("run").tail(1)
            rows.append((look.label, *(float(last[column].mean()) / size for column in columns)))
        said = "; ".join(f"{row[0]} {row[1]:.3g}" for row in rows)
        x = axis(safe(unit.after("simulated time")), rangemode="tozero")
        told, empty = f"Lines of {words} against time, the first run of each configuration.", without_information(lines)
        if empty:
            same = " and at the same rate in every configuration" if len(rows) > 1 else ""
            told = f"The {words} grows evenly with time{same}."
            if "straight" not in empty:
                told = "The lines are the same." if "equal" in empty else "A line would have a single point."
        chart = Chart(
            name=name,
            title=f"{name.capitalize()} against simulated time",
            says=f"{told} At the end, mean over runs: {said}.",
            figure=None if empty else drawn(traces, x, axis(safe(words), rangemode="tozero")),
            data=numbers(f"{words} at the end, mean over runs", ["configuration", "typical", "low", "high"], rows),
        )
        charts.append(chart)
    return charts
