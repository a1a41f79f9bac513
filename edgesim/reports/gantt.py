"""The Gantt chart of one round: the activities of each device over time, and the device that held up the round."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import seaborn
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from edgesim.reports.critical_path import critical_jobs, late_jobs, phase_intervals_s, round_row, rounds_of
from edgesim.reports.figures import PALETTE, STYLE, save
from edgesim.reports.format import text, unit_for
from edgesim.reports.load import Run

PHASES = ("download", "compute", "upload")
_BAR = ["device", "job", "phase", "start_s", "end_s", "outcome"]
_MOST_ROWS = 60  # more rows could not be read
_COLOURS = dict(zip(PHASES, seaborn.color_palette(PALETTE), strict=False)) | {"waiting": "0.92", "server": "0.6"}
_INK = "0.25"


class _Round(NamedTuple):
    number: int
    length_s: float
    server_s: float
    deadline_s: float  # since the start of the round; 0 if there is none
    result: str
    critical: list[int]  # devices of the critical path without those that the deadline cut off
    kinds: dict[int, str]


def round_bars(run: Run, number: int) -> pd.DataFrame:
    """Return the activities of each device in a round, one row per stretch of time.

    `number` is 1 for the first round. Columns: device, job, phase (download, compute, upload), start_s and end_s since
    the round's start, outcome. A phase without length has no row. Raises ConfigError if the round did not close.
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
    """Draw a round, one row per device, the last to end at the top. Return the PNG and the SVG written.

    Jobs with another outcome than ok are hatched, and waiting is pale. A solid line is the end of the round, a dashed
    line its deadline. Devices that decided its length are in bold. Of more than 60 devices the last to end are drawn.
    `number` is 1 for the first round, `out` the file name without its ending. Raises ConfigError if the round did not
    close or a file cannot be written.
    """
    about, bars = _about(run, number), round_bars(run, number)
    ended = bars.groupby("device")[["end_s"]].max().reset_index()
    # Of devices that ended together the lowest is on top.
    devices = ended.sort_values(["end_s", "device"], ascending=[True, False])["device"].tolist()
    shown = devices[-_MOST_ROWS:]
    few = len(shown) <= 20
    latest_s = max(about.length_s, about.deadline_s)
    unit = unit_for("_s", latest_s)
    with rc_context(STYLE):
        # A row has room for its name, and a single one leaves some for the legend.
        height_in = 1.3 + max(len(shown), 3) * (0.3 if few else 0.17)
        figure = Figure(figsize=(8.6, height_in), layout="constrained")
        axis = figure.subplots()
        thick = 0.74
        axis.barh(range(len(shown)), about.length_s / unit.size, thick, color=_COLOURS["waiting"], linewidth=0)
        row = {device: place for place, device in enumerate(shown)}
        drawn = bars[bars["device"].isin(shown)]
        for phase in PHASES:
            for outcome, alike in drawn[drawn["phase"] == phase].groupby("outcome"):
                start, end = alike["start_s"] / unit.size, alike["end_s"] / unit.size
                look: Any = {"facecolor": _COLOURS[phase], **_hatch(str(outcome))}
                axis.barh(alike["device"].map(row), end - start, thick, start, **look)
        begin_s = about.length_s - about.server_s
        axis.axvspan(begin_s / unit.size, about.length_s / unit.size, color=_COLOURS["server"], linewidth=0)

        at_deadline = math.isclose(about.length_s, about.deadline_s)
        limits: list[dict[str, Any]] = [
            {"label": "end of the round, at its deadline" if at_deadline else "end of the round"}
        ]
        if about.deadline_s and not at_deadline:
            limits.append({"label": "deadline", "linestyle": (0, (4, 3))})
        for at_s, limit in zip((about.length_s, about.deadline_s), limits, strict=False):
            axis.axvline(at_s / unit.size, color=_INK, linewidth=1.4, **limit)
        axis.set_xlim(0, 1.015 * latest_s / unit.size if latest_s > 0 else 1.0)

        names = [f"{about.kinds[device]}  {device}" for device in shown]
        axis.set_yticks(range(len(shown)), names, fontsize=9 if few else 7)
        for device, label in zip(shown, axis.get_yticklabels(), strict=True):
            label.set_fontweight("bold" if device in about.critical else "normal")
        axis.set_ylim(-0.6, max(len(shown), 1) - 0.4)
        axis.grid(visible=False, axis="y")
        axis.tick_params(axis="x", labelsize=9)
        seaborn.despine(ax=axis, left=True)
        hidden = f"; {len(devices) - len(shown)} faster devices not shown" if len(devices) > len(shown) else ""
        axis.set_title(f"Round {number}: {about.result}{hidden}", loc="left", fontsize=11)
        axis.set_xlabel(f"time since the start of the round ({unit.symbol})", fontsize=10)

        colours = [*PHASES, "waiting", *(["server"] if about.server_s > 0 else [])]
        outcomes = sorted(set(bars["outcome"]) - {"ok"})
        handles: list[Artist] = [
            *(Patch(facecolor=_COLOURS[name], label=name) for name in colours),
            *(Patch(facecolor="0.6", label=outcome, **_hatch(outcome)) for outcome in outcomes),
            *(Line2D([], [], color=_INK, linewidth=1.4, **limit) for limit in limits),
        ]
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


def _hatch(outcome: str) -> dict[str, Any]:
    return {"linewidth": 0} if outcome == "ok" else {"linewidth": 0, "hatch": "/////", "edgecolor": "white"}
