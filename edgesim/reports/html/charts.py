"""Charts of a report, drawn with plotly, each with its numbers as a table."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn
from plotly import graph_objects

from edgesim.reports.curves import mean_and_range
from edgesim.reports.figures import PALETTE
from edgesim.reports.format import DisplayUnit, text, unit_for
from edgesim.reports.gantt import PHASES
from edgesim.reports.html.content import Cell, Chart, Entry, SlowestRound, Table, Tradeoff
from edgesim.reports.html.words import is_accuracy, middle, number, percent, words_of
from edgesim.reports.pictures.lorenz import lorenz_of
from edgesim.reports.pictures.stacked import parts_of

DASHES = ("solid", "dash", "dashdot", "dot", "longdash", "longdashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-down", "triangle-up", "pentagon", "cross", "x", "star")
GREY = "#8a9099"
PATTERNS = ("", "/", ".", "x", "\\", "|", "+", "-")
_FONT = {"family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", "size": 12}
_MARGIN = {"l": 52, "r": 14, "t": 10, "b": 44}
# Places in the palette of colours that are strong on white and on black, unlike its yellow, pink and grey.
_COLOURS = (0, 1, 2, 3, 4, 5, 9)


def colours() -> list[str]:
    """Return the colours of lines, as hexadecimal numbers."""
    palette = seaborn.color_palette(PALETTE).as_hex()
    return [palette[i] for i in _COLOURS]


def looks(settings: Sequence[str]) -> dict[str, Entry]:
    """Return the colour, dash and mark of each setting."""
    palette = colours()
    return {
        label: Entry(
            label=label,
            colour=palette[i % len(palette)],
            dash=DASHES[(i + i // len(palette)) % len(DASHES)],
            symbol=SYMBOLS[i % len(SYMBOLS)],
        )
        for i, label in enumerate(settings)
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


def unit_of(column: str, largest: float) -> DisplayUnit:
    """Return the unit in which a column of a study is drawn."""
    quantity = column.partition("@")[0]
    return unit_for(quantity, largest if math.isfinite(largest) else 0.0)


def titled(words: str, unit: DisplayUnit) -> str:
    """Return the title of an axis."""
    return safe(f"{words} ({unit.symbol})" if unit.symbol else words)


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


def band(colour: str) -> str:
    """Return a colour for a band behind a line of this colour."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"


def numbers(caption: str, head: Sequence[str], rows: Sequence[Sequence[Any]], names: int = 1) -> Table:
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
    return Table(caption=caption, head=head, rows=cells, numbers=len(head) - names)


def thinned(count: int, most: int) -> list[int]:
    """Return at most `most` of `count` places, evenly spread, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


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


def accuracy_charts(points: pd.DataFrame, settings: Sequence[str], targets: Sequence[float]) -> list[Chart]:
    """Return charts of accuracy against time, energy and rounds: the mean over seeds, with a band from low to high."""
    each = {label: look for label, look in looks(settings).items() if (points["setting"] == label).any()}
    dashed = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "line": {"color": GREY, "width": 1, "dash": "dash"}}
    shapes = [{**dashed, "y0": 100 * target, "y1": 100 * target} for target in targets]
    charts = []
    for quantity, (name, words) in _AGAINST.items():
        unit = unit_of(quantity, float(points[quantity].max()))
        traces: list[Any] = []
        rows: list[tuple[Any, ...]] = []
        for label, look in each.items():
            runs = [of_run for _, of_run in points[points["setting"] == label].groupby("run", sort=False)]
            line = mean_and_range(runs, quantity)
            at = line[quantity] / unit.size
            if len(runs) > 1:
                traces += _band(at, 100 * line["low"], 100 * line["high"], look)
            marked = thinned(len(at), 8)
            sizes = [8 if i in marked else 0 for i in range(len(at))]
            mean = graph_objects.Scatter(
                x=at,
                y=100 * line["mean"],
                mode="lines+markers",
                name=safe(label),
                line={"color": look.colour, "dash": look.dash, "width": 2},
                marker={"symbol": look.symbol, "size": sizes, "color": look.colour},
                meta={"setting": label},
                hovertemplate="%{y:.1f} % at %{x:.4g}",
            )
            traces.append(mean)
            rows += [
                (label, float(at[i]), *(100 * float(line[column][i]) for column in ("mean", "low", "high")))
                for i in thinned(len(line), _ROWS_BEHIND)
            ]
        x = axis(titled(words, unit), rangemode="tozero")
        last = {row[0]: row for row in rows}
        ends = "; ".join(f"{label} {row[2]:.1f} %" for label, row in last.items())
        head = ["configuration", titled(words, unit), "mean (%)", "lowest (%)", "highest (%)"]
        chart = Chart(
            name=f"accuracy-{name}",
            title=f"Accuracy against {words}",
            says=f"Lines of test accuracy against {words}, one for each configuration. At the end: {ends}.",
            figure=drawn(traces, x, axis("test accuracy (%)"), shapes=shapes),
            data=numbers(f"Test accuracy against {words}", head, rows),
        )
        charts.append(chart)
    return charts


def _band(at: pd.Series, low: pd.Series, high: pd.Series, look: Entry) -> list[Any]:
    """Return the two traces of a band behind a line."""
    quiet = {"hoverinfo": "skip", "mode": "lines", "line": {"width": 0}, "meta": {"setting": look.label}}
    return [
        graph_objects.Scatter(x=at, y=low, **quiet),
        graph_objects.Scatter(x=at, y=high, fill="tonexty", fillcolor=band(look.colour), **quiet),
    ]


def target_chart(values: pd.DataFrame, summary: pd.DataFrame, column: str, settings: Sequence[str]) -> Chart:
    """Return a chart of the cost of a target: a row per setting, a dot per run, an open triangle if not reached."""
    of = values[values["column"] == column]
    rows = {row["setting"]: row for row in summary[summary["column"] == column].to_dict("records")}
    finite = [each for each in [*of["value"], *(row["middle_high"] for row in rows.values())] if math.isfinite(each)]
    unit = unit_of(column, max(finite, default=0.0))
    traces = []
    for place, look in enumerate(looks(settings).values()):
        runs = of[(of["setting"] == look.label) & of["value"].notna()]
        for arrived in (True, False):
            shown = runs[runs["observed"] == arrived]
            dots = graph_objects.Scatter(
                x=shown["value"] / unit.size,
                y=[place + 0.16] * len(shown),
                mode="markers",
                marker={"color": look.colour, "size": 7, "symbol": "circle" if arrived else "triangle-right-open"},
                meta={"setting": look.label},
                hovertemplate="seed %{customdata}: %{x:.4g}" + ("" if arrived else ", not reached") + "<extra></extra>",
                customdata=[safe(str(seed)) for seed in shown["seed"]],
            )
            traces.append(dots)
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


def _middle(row: Mapping[Any, Any], look: Entry, size: float, place: int, edge: float) -> list[Any]:
    """Return the traces of a mean or median with its interval, or nothing if neither is known.

    An interval without a known end ends in an arrow at `edge`.
    """
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
    """Return a chart of settings by two of their columns: the front is joined, dominated settings are grey."""
    x, y = tradeoff.x, tradeoff.y
    points = tradeoff.points
    units = {name: unit_of(name, float(points[name].max())) for name in (x, y)}
    sizes = {name: 0.01 if is_accuracy(name) else units[name].size for name in (x, y)}
    each = looks(settings)
    front = points[points["front"]].sort_values(x, kind="stable")
    joined = graph_objects.Scatter(
        x=front[x] / sizes[x], y=front[y] / sizes[y], mode="lines", line={"color": GREY, "width": 1.2}, hoverinfo="skip"
    )
    traces = [joined]
    for row in points.to_dict("records"):
        look = each[row["setting"]]
        colour = look.colour if row["front"] else GREY
        bars = {}
        for bar, name in (("error_x", x), ("error_y", y)):
            low, high = (float(row.get(f"{name}_{end}", math.nan)) for end in ("low", "high"))
            if math.isfinite(low) and math.isfinite(high):
                ends = {
                    "array": [max(0.0, high - row[name]) / sizes[name]],
                    "arrayminus": [max(0.0, row[name] - low) / sizes[name]],
                }
                bars[bar] = {"symmetric": False, "thickness": 1, "width": 3, "color": colour, **ends}
        spot = graph_objects.Scatter(
            x=[row[x] / sizes[x]],
            y=[row[y] / sizes[y]],
            mode="markers",
            name=safe(look.label),
            marker={"symbol": look.symbol, "size": 12, "color": colour, "line": {"color": "white", "width": 1}},
            meta={"setting": look.label},
            hovertemplate="%{x:.4g}, %{y:.4g}",
            **bars,
        )
        traces.append(spot)
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


def stacked_chart(
    spent: pd.DataFrame, part: str, value: str, name: str, words: str, settings: Sequence[str]
) -> tuple[Chart, list[Entry]]:
    """Return a chart with a bar per setting, stacked by `part`, and the entries of its legend."""
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
    """Return a chart of the share of rounds that are done within a time, a line per setting."""
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
    """Return a chart of the share of energy spent by the thriftiest devices (Lorenz curves), a line per setting."""
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


_MOST_ROWS = 30
_ROW_NAME = 24  # characters of a row's name, which is one line


def phases() -> list[Entry]:
    """Return the legend of a Gantt chart."""
    return [Entry(label=phase, colour=colour) for phase, colour in zip(PHASES, colours(), strict=False)]


def gantt_chart(slowest: SlowestRound) -> Chart:
    """Return a Gantt chart of a round, the last device to end on top. Of many devices the last to end are shown."""
    bars = slowest.bars
    ended = bars.groupby("device")["end_s"].max().reset_index()
    ended = ended.sort_values(["end_s", "device"], ascending=[False, True])
    shown = ended["device"].tolist()[:_MOST_ROWS]
    unit = unit_of("_s", slowest.length_s)
    place = {device: row for row, device in enumerate(shown)}
    bars = bars[bars["device"].isin(shown)]
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
    end = slowest.length_s / unit.size
    limit = {
        "type": "line",
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "x0": end,
        "x1": end,
        "line": {"color": GREY, "width": 1.5},
    }
    names = []
    for device in shown:
        kind, room = slowest.kinds.get(device, ""), _ROW_NAME - len(f" {device}")
        names.append(safe(f"{kind if len(kind) <= room else f'{kind[: room - 1]}…'} {device}"))
    y = axis(tickmode="array", tickvals=list(range(len(shown))), ticktext=names, showgrid=False)
    y |= {"range": [len(shown) - 0.5, -0.5]}
    x = axis(titled("since the start of the round", unit), range=[0, 1.02 * end if end else 1])
    figure = drawn(traces, x, y, barmode="overlay", bargap=0.25, shapes=[limit])
    rows = [
        (f"{slowest.kinds.get(row['device'], '')} {row['device']}", row["phase"], row["outcome"],
         text("_s", row["start_s"]), text("_s", row["end_s"]))
        for row in bars.to_dict("records")
    ]  # fmt: skip
    hidden = f"; {len(ended) - len(shown)} faster devices are not shown" if len(ended) > len(shown) else ""
    return Chart(
        name="gantt",
        title=f"Round {slowest.number} of {slowest.run}: who did what when{hidden}",
        says=f"Bars of downloading, computing and uploading, a row for each device. {' '.join(slowest.lines[:2])}",
        figure=figure,
        data=numbers("What devices did in this round", ["device", "activity", "outcome", "from", "to"], rows, names=3),
        height=80 + 20 * max(4, len(shown)),
        wide=True,
    )


_BANDS = {
    "total_cost": ("total_cost_low", "total_cost_high"),
    "total_co2e_g": ("total_co2e_low_g", "total_co2e_high_g"),
}


def cost_charts(costs: pd.DataFrame, settings: Sequence[str], currency: str) -> list[Chart]:
    """Return charts of money and carbon against time: a line per setting, its first run, in a band of low to high."""
    in_kg = costs["total_co2e_high_g"].max() >= 2000
    wanted = {
        "total_cost": ("cost", f"cost ({currency})" if currency else "cost", 1.0),
        "total_co2e_g": ("carbon", f"carbon ({'kg' if in_kg else 'g'} CO₂e)", 1000.0 if in_kg else 1.0),
    }
    unit = unit_of("_s", float(costs["sim_time_s"].max()))
    charts = []
    for column, (name, words, size) in wanted.items():
        if not costs[column].any():
            continue
        low, high = _BANDS[column]
        traces: list[Any] = []
        rows: list[tuple[Any, ...]] = []
        for look in looks(settings).values():
            of = costs[(costs["setting"] == look.label) & costs[column].notna()]
            if of.empty:
                continue
            first = of[of["run"] == of["run"].iloc[0]]
            picked = first.iloc[thinned(len(first), 300)]
            at = picked["sim_time_s"] / unit.size
            traces += _band(at, picked[low] / size, picked[high] / size, look)
            line = {"color": look.colour, "dash": look.dash, "width": 2}
            mean = graph_objects.Scatter(
                x=at,
                y=picked[column] / size,
                mode="lines",
                name=safe(look.label),
                line=line,
                meta={"setting": look.label},
            )
            traces.append(mean)
            last = of.groupby("run").tail(1)
            rows.append((look.label, *(float(last[each].mean()) / size for each in (column, low, high))))
        said = "; ".join(f"{row[0]} {row[1]:.3g}" for row in rows)
        x = axis(titled("simulated time", unit), rangemode="tozero")
        title = f"{name.capitalize()} against simulated time"
        told = f"Lines of {words} against time, the first run of each configuration."
        chart = Chart(
            name=name,
            title=title,
            says=f"{told} At the end, mean over runs: {said}.",
            figure=drawn(traces, x, axis(safe(words), rangemode="tozero")),
            data=numbers(f"{words} at the end, mean over runs", ["configuration", "typical", "low", "high"], rows),
        )
        charts.append(chart)
    return charts
