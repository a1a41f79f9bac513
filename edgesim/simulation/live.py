"""A live view of a run: fleet, jobs at work, accuracy so far, energy, and how much longer it takes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from edgesim.files.reading import visible
from edgesim.reports.load import Run
from edgesim.reports.readable import divergence, text
from edgesim.reports.stats import curve
from edgesim.simulation.progress import Limits

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 40  # of the curve and the bar, in characters
_FRAMES_A_SECOND = 4


@dataclass(frozen=True)
class Glance:
    """What is seen of a run at one moment.

    `done`: round (how many are done), now_s, energy_j, active_j; empty before the first round. `fleet`: now_s, devices,
    busy, away, running, as the run last said; empty if it did not. `accuracies`: of the evaluations so far. `host_s`:
    of the host since the run began.
    """

    name: str
    method: str
    status: str
    limits: Limits
    done: Mapping[str, Any] = field(default_factory=dict)
    fleet: Mapping[str, Any] = field(default_factory=dict)
    accuracies: Sequence[float] = ()
    host_s: float = 0.0
    start: Mapping[str, float] = field(default_factory=dict)  # shares of limits that were done when host_s was 0

    @property
    def rounds(self) -> str:
        """Return how many rounds are done, of how many."""
        done, limit = self.done.get("round", 0), self.limits.rounds
        return f"round {done}/{limit}" if limit else f"round {done}"


def glance_of(run: Run) -> Glance:
    """Return what is seen of a run in its folder. Raises ConfigError as its tables do."""
    scenario = run.manifest["scenario"]
    stop = scenario.get("stop") or {}
    limits = Limits(*(stop.get(name) for name in ("rounds", "accuracy", "sim_time", "energy")))
    done: dict[str, Any] = {}
    if len(run.rounds):
        last = run.rounds.iloc[-1]
        done = {"round": len(run.rounds), "now_s": float(last["now_s"])}
        done |= {name: float(last[f"total_{name}"]) for name in ("energy_j", "active_j")}
    accuracies = [float(accuracy) for accuracy in curve(run)["accuracy"]]
    fleet = run.manifest.get("now") or {}
    name, method, status = map(visible, (run.name, run.method, run.status))  # rich lets control codes pass
    return Glance(name, method, status, limits, done, fleet, accuracies, run.manifest["host_s"])


# --- as text ----------------------------------------------------------------------------------------------------


def line_of(glance: Glance) -> str:
    """Return a glance on one line, for logs."""
    done, parts = glance.done, [glance.rounds]
    if glance.accuracies:
        parts.append(f"accuracy {glance.accuracies[-1]:.4f}")
    if done:
        parts += [text("now_s", done["now_s"]), _joules(done)]
    parts += [_fleet(glance), _left(glance)]
    return "  ".join(filter(None, parts))


def _joules(done: Mapping[str, Any]) -> str:
    return f"{text('energy_j', done['energy_j'])} ({text('active_j', done['active_j'])} above idle)"


def _fleet(glance: Glance) -> str:
    if not glance.fleet:
        return ""
    devices, busy, away = (glance.fleet[name] for name in ("devices", "busy", "away"))
    return f"{busy} busy, {devices - busy - away} idle, {away} away"


def _left(glance: Glance) -> str:
    left = glance.limits.left(glance.done, glance.host_s, glance.start) if glance.done else None
    said = glance.limits.in_words(left)
    if left is None or left.host_s == 0:
        return said if left is None else ""
    return f"{said}, simulated {text('sim_s', left.sim_s)}"


# --- on a terminal ----------------------------------------------------------------------------------------------


def panel_of(glance: Glance, ascii_only: bool = False) -> RenderableType:
    """Return a glance as a panel for a terminal; `ascii_only`: one that cannot show a curve."""
    done, rows = glance.done, Table.grid(padding=(0, 2))
    rows.add_column(style="bold")
    rows.add_column()
    if glance.accuracies:
        best = f"{glance.accuracies[-1]:.4f}, best {max(glance.accuracies):.4f}"
        rows.add_row("accuracy", best if ascii_only else f"{best}  {curve_of(glance.accuracies)}")
    if done:
        rows.add_row("simulated", text("now_s", done["now_s"]))
        rows.add_row("energy", _joules(done))
    if glance.fleet:
        running = glance.fleet["running"]
        jobs = f"{running} job{'s'[: running != 1]} at work {text('now_s', glance.fleet['now_s'])} into the run"
        rows.add_row("fleet", f"{glance.fleet['devices']} devices: {_fleet(glance)}")
        rows.add_row("jobs", jobs)
    rows.add_row("host", f"{text('host_s', round(glance.host_s))} so far")
    if said := _left(glance):
        rows.add_row("left", said)
    share = max(glance.limits.shares(done).values(), default=None)
    head = Text(f"{glance.rounds}  {glance.status}" + ("" if share is None else f"  {share:.0%}"))
    bar = [] if share is None else [Text(_bar(share, "#." if ascii_only else "█░"))]
    return Panel(Group(head, *bar, rows), title=Text(f"{glance.name}: {glance.method}"), title_align="left")


def _bar(share: float, signs: str) -> str:
    done = round(_WIDTH * share)
    return signs[0] * done + signs[1] * (_WIDTH - done)


def curve_of(values: Sequence[float]) -> str:
    """Return values between 0 and 1 as a row of bars, the newest last; of many, evenly spaced ones."""
    shown = values
    if len(values) > _WIDTH:
        shown = [values[round(place * (len(values) - 1) / (_WIDTH - 1))] for place in range(_WIDTH)]
    return "".join(
        _BARS[min(len(_BARS) - 1, max(0, int(value * len(_BARS))))] if value == value else "?" for value in shown
    )


class Display:
    """Shows glances as they come: a panel on a terminal, which is drawn anew all the time; a line each elsewhere."""

    def __init__(self, console: Console, clock_s: Callable[[], float] = time.perf_counter) -> None:
        """`clock_s`: of the host."""
        self._console = console
        self._clock_s = clock_s
        self._glance: Glance | None = None
        self._since_s = 0.0  # when the glance came
        self._told: Mapping[str, Any] = {}  # what was done as the last line had it
        self._live: Live | None = None
        if console.is_interactive:
            self._live = Live(
                get_renderable=self._drawn, console=console, transient=True, refresh_per_second=_FRAMES_A_SECOND
            )
            self._live.start()

    def show(self, glance: Glance) -> None:
        """Show a glance."""
        self._glance, self._since_s = glance, self._clock_s()
        if self._live is None and glance.done != self._told:  # how long the rest takes is no news
            self._console.print(line_of(glance), soft_wrap=True)  # a line of a log has no width
            self._told = dict(glance.done)

    def tell(self, line: str) -> None:
        """Print a line that stays, above the panel if there is one."""
        self._console.print(line, soft_wrap=True)

    def close(self) -> None:
        """Take the panel away. May be called twice."""
        if self._live is not None:
            self._live.stop()

    def _drawn(self) -> RenderableType:
        if self._glance is None:
            return Text("starting")
        aged = replace(self._glance, host_s=self._glance.host_s + self._clock_s() - self._since_s)
        return panel_of(aged, ascii_only=self._console.options.ascii_only)


class LiveView:
    """An observer of a run that shows it on a terminal, on stderr, so that stdout stays free for results."""

    def __init__(self, first: Glance, display: Display, warnings: Sequence[str] = ()) -> None:
        """`first`: before anything is done. `warnings`: of the scenario, told once it turns out that it runs."""
        self._glance = first
        self._display = display
        self._warnings = warnings
        self._told: set[str] = set()
        self._began_s = time.perf_counter()
        display.show(first)

    def round_closed(self, info: Mapping[str, Any]) -> None:
        """Show a closed round: `info` as `ProgressLine.round_closed` takes it, and now, which asks the fleet."""
        for line in (each for each in (*self._warnings, *info.get("warnings", ())) if each not in self._told):
            self._display.tell(f"warning: {line}")
            self._told.add(line)
        glance = self._glance
        if info.get("before") and not glance.done:
            self._display.tell(f"goes on after round {info['before']}")
            glance = replace(glance, start=glance.limits.shares(info))  # what an earlier run did took no time now
        if info.get("diverged"):
            self._display.tell(divergence(info["diverged"]))
        more = [] if info["accuracy"] is None else [info["accuracy"]]
        self._glance = replace(
            glance,
            done={name: info[name] for name in ("round", "now_s", "energy_j", "active_j")},
            fleet=info["now"](),
            accuracies=[*glance.accuracies, *more],
            host_s=time.perf_counter() - self._began_s,
        )
        self._display.show(self._glance)

    def close(self) -> None:
        """Take the panel away. May be called twice."""
        self._display.close()


def stderr_console() -> Console:
    """Return a console on stderr that takes no text for markup."""
    return Console(file=sys.stderr, markup=False, highlight=False)
