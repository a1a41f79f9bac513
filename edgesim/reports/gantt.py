"""The picture of one round: what each device did when, and what the others waited for."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import seaborn
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from edgesim.reports.critical_path import critical_jobs, late_jobs, phase_intervals_s, round_row, rounds_of
from edgesim.reports.figures import PALETTE, STYLE, save
from edgesim.reports.format import text, unit_for
from edgesim.reports.load import Run

PHASES = ("download", "compute", "upload")
_BAR = ["device", "job", "phase", "start_s", "end_s", "outcome"]
_MOST_ROWS = 60  # more could not be read
_COLOURS = dict(zip(PHASES, seaborn.color_palette(PALETTE), strict=False)) | {"waiting": "0.92", "server": "0.6"}
_INK = "0.25"


class _Round(NamedTuple):
    number: int
    length_s: float
    server_s: float
    deadline_s: float  # since the start of the round; 0 if there is none
    result: str
    critical: list[int]  # devices of the critical path, but for those that the deadline cut off
    kinds: dict[int, str]


def round_bars(run: Run, number: int) -> pd.DataFrame:
    """Return what each device did in a round, a row a stretch of time; `number` is 1 for the first round.

    Columns: device, job, phase (download, compute, upload), start_s and end_s since the round's start, outcome. A phase
    without length has no row. Raises ConfigError if the round did not close.
    """
    row = round_row(run.rounds, number)
    start_s, now_s = run.rounds["start_s"].iloc[row], run.rounds["now_s"].iloc[row]
    jobs = run.jobs[rounds_of(run.jobs, run.rounds) == row]
    begin_s, end_s = (np.clip(times_s, start_s, now_s) - start_s for times_s in phase_intervals_s(jobs))
    bars = pd.concat(
        jobs[["device", "job", "outcome"]].assign(phase=phase, start_s=begin_s[:, i], end_s=end_s[:, i])
        for i, phase in enumerate(PHASES)
    )
    lasting: pd.DataFrame = bars.loc[bars["end_s"] > bars["start_s"], _BAR]
    return lasting.sort_values(["device", "start_s"], ignore_index=True)


def plot_round(run: Run, number: int, out: Path) -> list[Path]:
    """Draw a round, a row a device, the last to end at the top; return the PNG and the SVG written.

    Jobs with another outcome than ok are hatched, waiting is pale; a solid line ends the round, a dashed one is the
    deadline. Devices that decided its length are in bold. Of more than 60 devices those that ended last are drawn.
    `number` is 1 for the first round, `out` the file name without its ending. Raises ConfigError if the round did not
    close or a file cannot be written.
    """
    about, bars = _about(run, number), round_bars(run, number)
    ended = bars.groupby("device")[["end_s"]].max().reset_index()
    # Of devices that ended together the lowest is on top.
    devices = ended.sort_values(["end_s", "device"], ascending=[True, False])["device"].tolist()
    shown = devices[-_MOST_ROWS:]
    unit = unit_for("_s", max(about.length_s, about.deadline_s))
    with rc_context(STYLE):
        figure = Figure(figsize=(8.6, _height(len(shown))), layout="constrained")
        axis = figure.subplots()
        _draw_bars(axis, bars[bars["device"].isin(shown)], shown, about, unit.size)
        limits = _draw_limits(axis, about, unit.size)
        _name_rows(axis, shown, about)
        hidden = f"; {len(devices) - len(shown)} faster devices not shown" if len(devices) > len(shown) else ""
        axis.set_title(f"Round {number}: {about.result}{hidden}", loc="left", fontsize=11)
        axis.set_xlabel(f"time since the start of the round ({unit.symbol})", fontsize=10)
        handles = [*_patches(set(bars["outcome"]) - {"ok"}, about), *limits]
        place: Any = {"loc": "outside lower center", "ncols": len(handles), "columnspacing": 1.4, "handlelength": 1.6}
        figure.legend(handles=handles, frameon=False, fontsize=9, **place)
        return save(figure, out)


def _about(run: Run, number: int) -> _Round:
    row = round_row(run.rounds, number)
    merge = run.rounds.iloc[[row]].to_dict("records")[0]
    path = critical_jobs(run.jobs, run.rounds)
    late = late_jobs(run.jobs, run.rounds, row)
    by_deadline = merge["closed_by"] == "deadline"
    decided_by = path[(path["round"] == merge["round"]) & ~(path["job"].isin(late["job"]) & by_deadline)]
    critical = decided_by["device"].tolist()
    asked = run.jobs[run.jobs["round"] == merge["round"]]
    unasked_s = float(asked["sent_s"].min() - merge["start_s"]) if len(asked) else 0.0
    length_s = merge["now_s"] - merge["start_s"]
    if by_deadline:
        decided = f", ended by its deadline with {len(late)} late"
    else:
        decided = f", device {critical[-1]} was the last" if critical else ""
    return _Round(
        number,
        length_s,
        merge["server_s"],
        merge["deadline_s"] + unasked_s if math.isfinite(merge["deadline_s"]) else 0.0,
        f"{text('_s', length_s)}{decided}, {merge['used']} of {merge['asked']} merged",
        critical,
        dict(zip(run.devices["device"].tolist(), run.devices["kind"].tolist(), strict=True)),
    )


def _height(rows: int) -> float:
    """Return inches: a row has room for its name, and a single one leaves some for the legend."""
    return 1.3 + max(rows, 3) * (0.3 if rows <= 20 else 0.17)


def _draw_bars(axis: Axes, bars: pd.DataFrame, shown: list[int], about: _Round, unit_s: float) -> None:
    height = 0.74
    axis.barh(range(len(shown)), about.length_s / unit_s, height, color=_COLOURS["waiting"], linewidth=0)
    row = {device: place for place, device in enumerate(shown)}
    for phase in PHASES:
        for outcome, drawn in bars[bars["phase"] == phase].groupby("outcome"):
            start, end = drawn["start_s"] / unit_s, drawn["end_s"] / unit_s
            look: Any = {"facecolor": _COLOURS[phase], **_hatch(str(outcome))}
            axis.barh(drawn["device"].map(row), end - start, height, start, **look)
    begin = about.length_s - about.server_s
    axis.axvspan(begin / unit_s, about.length_s / unit_s, color=_COLOURS["server"], linewidth=0)


def _draw_limits(axis: Axes, about: _Round, unit_s: float) -> list[Line2D]:
    """Draw the end of the round, and the deadline if that is another moment; return a legend's lines for them."""
    at_deadline = math.isclose(about.length_s, about.deadline_s)
    looks: list[dict[str, Any]] = [
        {"label": "end of the round, at its deadline" if at_deadline else "end of the round"}
    ]
    if about.deadline_s and not at_deadline:
        looks.append({"label": "deadline", "linestyle": (0, (4, 3))})
    for at_s, look in zip((about.length_s, about.deadline_s), looks, strict=False):
        axis.axvline(at_s / unit_s, color=_INK, linewidth=1.4, **look)
    latest_s = max(about.length_s, about.deadline_s)
    axis.set_xlim(0, 1.015 * latest_s / unit_s if latest_s > 0 else 1.0)
    return [Line2D([], [], color=_INK, linewidth=1.4, **look) for look in looks]


def _name_rows(axis: Axes, shown: list[int], about: _Round) -> None:
    size = 9 if len(shown) <= 20 else 7
    axis.set_yticks(range(len(shown)), [f"{about.kinds[device]}  {device}" for device in shown], fontsize=size)
    for device, label in zip(shown, axis.get_yticklabels(), strict=True):
        label.set_fontweight("bold" if device in about.critical else "normal")
    axis.set_ylim(-0.6, max(len(shown), 1) - 0.4)
    axis.grid(visible=False, axis="y")
    axis.tick_params(axis="x", labelsize=9)
    seaborn.despine(ax=axis, left=True)


def _patches(outcomes: set[str], about: _Round) -> list[Artist]:
    colours = [*PHASES, "waiting", *(["server"] if about.server_s > 0 else [])]
    return [
        *(Patch(facecolor=_COLOURS[name], label=name) for name in colours),
        *(Patch(facecolor="0.6", label=outcome, **_hatch(outcome)) for outcome in sorted(outcomes)),
    ]


def _hatch(outcome: str) -> dict[str, Any]:
    return {"linewidth": 0} if outcome == "ok" else {"linewidth": 0, "hatch": "/////", "edgecolor": "white"}
