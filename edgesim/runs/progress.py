"""Progress of a run: one live line, a plain line per tenth of the run, or a live view of fleet, jobs and accuracy."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from edgesim.files.reading import visible
from edgesim.reports.format import count, divergence, text
from edgesim.reports.load import Run
from edgesim.runs.host_memory import resident_bytes

# Of a run in another process. Jobs may be many millions, and a glance shows no single one.
SHOWN = ("devices", "rounds", "evals")  # tables
READING = 20  # reading them takes at most a 20th of the time
_MEMORY_S = 5.0  # host seconds between readings of the memory in use, which take some milliseconds a process
_LINES = 10  # approximate number of lines in a log without a terminal


class Left(NamedTuple):
    """Remaining time of a run: the limit that ends it, and approximate seconds on the host and simulated."""

    by: str
    host_s: float
    sim_s: float


@dataclass(frozen=True)
class Limits:
    """Limits of a run, of which the first one reached ends it; None: no such limit."""

    rounds: int | None = None
    accuracy: float | None = None
    sim_time: float | None = None  # s
    energy: float | None = None  # J

    @classmethod
    def of(cls, stop: Any) -> Limits:
        """Return the limits of a scenario's `stop`."""
        return cls(stop.rounds, stop.accuracy, stop.sim_time, stop.energy)

    @property
    def several(self) -> bool:
        """True if there is more than one limit."""
        return sum(value is not None for value in vars(self).values()) > 1

    def shares(self, done: Mapping[str, Any]) -> dict[str, float]:
        """Return the share of each limit that is reached, except accuracy, which does not grow steadily.

        Keys of `done` that are read: round, now_s, energy_j.
        """
        found = {
            "rounds": (done.get("round", 0), self.rounds),
            "sim_time": (done.get("now_s", 0), self.sim_time),
            "energy": (done.get("energy_j", 0), self.energy),
        }
        return {name: min(1.0, value / limit) for name, (value, limit) in found.items() if limit is not None}

    def left(self, done: Mapping[str, Any], host_s: float, start: Mapping[str, float] | None = None) -> Left | None:
        """Return the remaining time of a run that has done `done` in `host_s` seconds; None if it is unknown.

        `start`: the shares of limits that were reached before these seconds, by default none.
        """
        steps = {name: (share, share - (start or {}).get(name, 0.0)) for name, share in self.shares(done).items()}
        ends = {name: host_s * (1 - share) / step for name, (share, step) in steps.items() if step > 0}
        if not ends:
            return None
        by = min(ends, key=lambda each: ends[each])
        share = steps[by][0]
        return Left(by, ends[by], done["now_s"] * (1 - share) / share)

    def in_words(self, left: Left | None) -> str:
        """Return the remaining host time, its limit, and an accuracy that may end the run sooner; "" if unknown."""
        sooner = f"accuracy {self.accuracy:g}" if self.accuracy is not None else ""
        if left is None:
            return f"until {sooner}" if sooner else ""
        time = text("host_s", round(left.host_s))
        by = f", by stop.{left.by}" if self.several else ""
        if sooner:
            return f"host time left at most {time}{by}, less if {sooner} comes first"
        return f"host time left {time}{by}"


class ProgressLine:
    """An observer of a run that writes to stderr, so that stdout stays free for results."""

    def __init__(
        self,
        limits: Limits,
        console: Console | None = None,
        clock_s: Callable[[], float] | None = None,
        warnings: Sequence[str] = (),
        session: str = "",
        memory_bytes: Callable[[], int | None] = resident_bytes,
    ) -> None:
        """`clock_s`: a host clock, default rich's. `warnings`: of a scenario, printed once it runs.

        `session`: name of the session if there are several; lines begin with it, and there is no live line.
        `memory_bytes`: returns the memory in use, None if it is unknown.
        """
        self._memory_bytes = memory_bytes
        self._memory = "", -inf  # in words, and the host time of the reading
        self._session = f"{session}: " if session else ""
        self._warnings = warnings
        self._told: set[str] = set()
        self._limits = limits
        self._console = console or Console(file=sys.stderr, markup=False, highlight=False)
        columns = (BarColumn(bar_width=20), TextColumn("{task.description}", markup=False))
        self._bar = Progress(*columns, console=self._console, transient=True, get_time=clock_s)
        self._task = self._bar.add_task("starting", total=1.0 if limits.shares({}) else None)
        self._accuracy: float | None = None
        self._before = 0
        self._start: dict[str, float] = {}  # share of each limit reached before the rounds that tell the speed
        self._start_s = 0.0  # host time at which these rounds began
        self._tenths = 0
        self._live = self._console.is_interactive and not session
        if self._live:
            self._bar.start()

    def round_closed(self, info: Mapping[str, Any]) -> None:
        """Show a closed round.

        Keys of `info`: round (number of closed rounds), accuracy (None if not evaluated), now_s, energy_j (of the fleet
        so far), active_j (its part above idle power), diverged (in the round in which training diverged), warnings (so
        far; each is printed once), and in a run continued from a checkpoint before (rounds of the earlier run).
        """
        for line in (each for each in (*self._warnings, *info.get("warnings", ())) if each not in self._told):
            self._console.print(f"warning: {line}", soft_wrap=True)
            self._told.add(line)
        shares = self._limits.shares(info)
        if info.get("before", 0) > self._before:
            # An earlier run's rounds took no time of this process. Its last round is known, its clock is not.
            self._before = info["before"]
            self._console.print(f"goes on after round {self._before}")
            self._start = dict(shares)
            if "rounds" in shares:
                self._start["rounds"] = self._before / (self._limits.rounds or 1)
            self._tenths = _tenths(self._start)
        if info.get("diverged"):
            self._console.print(f"{self._session}{divergence(info['diverged'])}", soft_wrap=True)
        if info["accuracy"] is not None:
            self._accuracy = info["accuracy"]
        if self._live:
            self._bar.update(self._task, completed=max(shares.values(), default=0.0), description=self._line(info))
        elif _tenths(shares) > self._tenths:
            self._console.print(self._line(info), soft_wrap=True)  # a line of a log has no width
        self._tenths = _tenths(shares)
        if self._start_s == 0.0:  # the first round was slowed by the start of the run
            self._start, self._start_s = shares, self._elapsed_s

    def close(self) -> None:
        """Remove the live line. May be called twice."""
        if self._live:
            self._bar.stop()

    def _line(self, info: Mapping[str, Any]) -> str:
        done, limit = info["round"], self._limits.rounds
        parts = [f"{self._session}round {done}/{limit}" if limit else f"{self._session}round {done}"]
        if self._accuracy is not None:
            parts.append(f"accuracy {self._accuracy:.4f}")
        parts += [text("now_s", info["now_s"]), text("energy_j", info["energy_j"])]
        parts[-1] += f" ({text('active_j', info['active_j'])} above idle)"
        left = self._limits.left(info, self._elapsed_s - self._start_s, self._start)
        return "  ".join(filter(None, [*parts, self._memory_in_words(), self._limits.in_words(left)]))

    @property
    def _elapsed_s(self) -> float:
        return self._bar.tasks[0].elapsed or 0.0

    def _memory_in_words(self) -> str:
        said, read_s = self._memory
        if not self._live or self._elapsed_s - read_s >= _MEMORY_S:
            nbytes = self._memory_bytes()
            said = "" if nbytes is None else f"memory {text('memory_bytes', nbytes)}"
            self._memory = said, self._elapsed_s
        return said


class ProgressOfSessions:
    """An observer of a run of several sessions: each has lines of its own."""

    def __init__(self, limits: Mapping[str, Limits], console: Console, warnings: Sequence[str] = ()) -> None:
        """`limits`: of each session, by its name. `warnings`: as for `ProgressLine`."""
        first = next(iter(limits))
        self._lines = {
            name: ProgressLine(own, console, warnings=warnings if name == first else (), session=name)
            for name, own in limits.items()
        }

    def round_closed(self, info: Mapping[str, Any]) -> None:
        """Show a closed round of the session that `info` names."""
        self._lines[info["session"]].round_closed(info)

    def close(self) -> None:
        """Close the lines of all sessions. May be called twice."""
        for line in self._lines.values():
            line.close()


def _tenths(shares: Mapping[str, float]) -> int:
    return int(max(shares.values(), default=0.0) * _LINES + 1e-9)  # 0.3 x 10 is 3, whatever its last bit


_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 40  # of the curve and the bar, in characters
_FRAMES_A_SECOND = 4


@dataclass(frozen=True)
class Glance:
    """Snapshot of a run for display.

    `done`: round (number of closed rounds), now_s, energy_j, active_j; empty before the first round. `fleet`: now_s,
    devices, busy, away, running, as last reported; empty if never. `accuracies`: of the evaluations so far. `host_s`:
    host time since the run began.
    """

    name: str
    method: str
    status: str
    limits: Limits
    done: Mapping[str, Any] = field(default_factory=dict)
    fleet: Mapping[str, Any] = field(default_factory=dict)
    accuracies: Sequence[float] = ()
    host_s: float = 0.0
    start: Mapping[str, float] = field(default_factory=dict)  # shares of limits reached when host_s was start_s
    start_s: float = 0.0

    @property
    def rounds(self) -> str:
        """Number of closed rounds and of all rounds, such as "round 3/10"."""
        done, limit = self.done.get("round", 0), self.limits.rounds
        return f"round {done}/{limit}" if limit else f"round {done}"

    @property
    def share(self) -> float | None:
        """Share of the run that is done, by the limit that is nearest; None without such a limit."""
        return max(self.limits.shares(self.done).values(), default=None)


def glance_of(run: Run) -> Glance:
    """Return the snapshot of a run from its folder. Raises ConfigError as its tables do."""
    scenario = run.manifest["scenario"]
    stop = scenario.get("stop") or {}
    limits = Limits(*(stop.get(name) for name in ("rounds", "accuracy", "sim_time", "energy")))
    done: dict[str, Any] = {}
    if len(run.rounds):
        last = run.rounds.iloc[-1]
        done = {"round": len(run.rounds), "now_s": float(last["now_s"])}
        done |= {name: float(last[f"total_{name}"]) for name in ("energy_j", "active_j")}
    accuracies = [float(accuracy) for accuracy in run.accuracy_curve()["accuracy"]]
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
    left = glance.limits.left(glance.done, glance.host_s - glance.start_s, glance.start) if glance.done else None
    said = glance.limits.in_words(left)
    if left is None or left.host_s == 0:
        return said if left is None else ""
    return f"{said}, simulated {text('sim_s', left.sim_s)}"


# --- on a terminal ----------------------------------------------------------------------------------------------


def facts_of(glance: Glance) -> dict[str, str]:
    """Return the known facts of a run in words, by name: accuracy, simulated, energy, fleet, jobs, host, left."""
    done, facts = glance.done, {}
    if glance.accuracies:
        facts["accuracy"] = f"{glance.accuracies[-1]:.4f}, best {max(glance.accuracies):.4f}"
    if done:
        facts |= {"simulated": text("now_s", done["now_s"]), "energy": _joules(done)}
    if glance.fleet:
        running = glance.fleet["running"]
        facts["fleet"] = f"{glance.fleet['devices']} devices: {_fleet(glance)}"
        facts["jobs"] = f"{count(running, 'job')} at work {text('now_s', glance.fleet['now_s'])} into the run"
    facts["host"] = f"{text('host_s', round(glance.host_s))} so far"
    if said := _left(glance):
        facts["left"] = said
    return facts


def panel_of(glance: Glance, ascii_only: bool = False) -> RenderableType:
    """Return a glance as a panel for a terminal; `ascii_only`: for a terminal that cannot show a curve."""
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="bold")
    rows.add_column()
    for name, said in facts_of(glance).items():
        curve = "" if name != "accuracy" or ascii_only else f"  {curve_of(glance.accuracies)}"
        rows.add_row(name, said + curve)
    share = glance.share
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
    """Shows glances as they arrive: as a panel on a terminal, which is redrawn regularly, and elsewhere as lines."""

    def __init__(self, console: Console, clock_s: Callable[[], float] = time.perf_counter) -> None:
        """`clock_s`: a host clock."""
        self._console = console
        self._clock_s = clock_s
        self._glance: Glance | None = None
        self._since_s = 0.0  # arrival of the glance
        self._told: Mapping[str, Any] = {}  # `done` of the last line
        self._live: Live | None = None
        if console.is_interactive:
            self._live = Live(
                get_renderable=self._drawn, console=console, transient=True, refresh_per_second=_FRAMES_A_SECOND
            )
            self._live.start()

    def show(self, glance: Glance) -> None:
        """Show a glance."""
        self._glance, self._since_s = glance, self._clock_s()
        if self._live is None and glance.done != self._told:  # a new estimate of the remaining time is no news
            self._console.print(line_of(glance), soft_wrap=True)  # a line of a log has no width
            self._told = dict(glance.done)

    def tell(self, line: str) -> None:
        """Print a line that stays, above the panel if there is one."""
        self._console.print(line, soft_wrap=True)

    def close(self) -> None:
        """Remove the panel. May be called twice."""
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
        """`first`: the glance before the first round. `warnings`: of the scenario, printed once it runs."""
        self._glance = first
        self._display = display
        self._warnings = warnings
        self._told: set[str] = set()
        self._began_s = time.perf_counter()
        display.show(first)

    def round_closed(self, info: Mapping[str, Any]) -> None:
        """Show a closed round; `info` as for `ProgressLine.round_closed`, with now, which returns the fleet's state."""
        for line in (each for each in (*self._warnings, *info.get("warnings", ())) if each not in self._told):
            self._display.tell(f"warning: {line}")
            self._told.add(line)
        glance = self._glance
        if glance.done and not glance.start_s:  # the first round was slowed by the start of the run
            glance = replace(glance, start=glance.limits.shares(glance.done), start_s=glance.host_s)
        if info.get("before") and not glance.done:
            self._display.tell(f"goes on after round {info['before']}")
            glance = replace(glance, start=glance.limits.shares(info))  # the earlier run took no time of this one
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
        """Remove the panel. May be called twice."""
        self._display.close()


def stderr_console() -> Console:
    """Return a console on stderr without markup."""
    return Console(file=sys.stderr, markup=False, highlight=False)
