"""Shows a run as it goes: a live line on a terminal, one plain line every tenth of the run elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from edgesim.reports.readable import divergence, text

_LINES = 10  # where there is no terminal, a log gets about this many lines


class Left(NamedTuple):
    """How much longer a run takes: by which limit, and about how long on the host and in simulated time."""

    by: str
    host_s: float
    sim_s: float


@dataclass(frozen=True)
class Limits:
    """Where a run ends, whichever comes first; None: not there."""

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
        """Return whether there is more than one."""
        return sum(value is not None for value in vars(self).values()) > 1

    def shares(self, done: Mapping[str, Any]) -> dict[str, float]:
        """Return which share of the way to each limit is done. Accuracy is none of them: it does not grow steadily.

        Keys of `done` that are read: round, now_s, energy_j.
        """
        keys = {"rounds": "round", "sim_time": "now_s", "energy": "energy_j"}
        found = {name: (done.get(key, 0), getattr(self, name)) for name, key in keys.items()}
        return {name: min(1.0, value / limit) for name, (value, limit) in found.items() if limit is not None}

    def left(self, done: Mapping[str, Any], host_s: float, start: Mapping[str, float] | None = None) -> Left | None:
        """Return how much longer a run takes that has done so much in `host_s`; None if nothing can be said.

        `start`: the shares that were done when these seconds began, none if not given.
        """
        steps = {name: (share, share - (start or {}).get(name, 0.0)) for name, share in self.shares(done).items()}
        ends = {name: host_s * (1 - share) / step for name, (share, step) in steps.items() if step > 0}
        if not ends:
            return None
        by = min(ends, key=lambda each: ends[each])
        share = steps[by][0]
        return Left(by, ends[by], done["now_s"] * (1 - share) / share)

    def in_words(self, left: Left | None) -> str:
        """Return the host's time that is left, by which limit, and what may end the run sooner; "": nothing known."""
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
    ) -> None:
        """`clock_s`: a host clock, default rich's. `warnings`: of a scenario, told once it turns out that it runs.

        `session`: whose rounds, if there are several; lines begin with it, and there is no live one.
        """
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
        self._start: dict[str, float] = {}  # how far each limit was when this process began
        self._tenths = 0
        self._live = self._console.is_interactive and not session
        if self._live:
            self._bar.start()

    def round_closed(self, info: Mapping[str, Any]) -> None:
        """Show a closed round.

        Keys of `info`: round (how many are done), accuracy (None if not evaluated), now_s, energy_j (of the fleet so
        far), active_j (of it, what is above idle power), diverged (how, in the round in which training did), and in a
        run that goes on from a checkpoint before (how many an earlier run did), warnings (so far; each is told once).
        """
        for line in (each for each in (*self._warnings, *info.get("warnings", ())) if each not in self._told):
            self._console.print(f"warning: {line}", soft_wrap=True)
            self._told.add(line)
        shares = self._limits.shares(info)
        if info.get("before", 0) > self._before:
            self._go_on(info, shares)
        if info.get("diverged"):
            self._console.print(f"{self._session}{divergence(info['diverged'])}", soft_wrap=True)
        if info["accuracy"] is not None:
            self._accuracy = info["accuracy"]
        if self._live:
            self._bar.update(self._task, completed=max(shares.values(), default=0.0), description=self._line(info))
        elif _tenths(shares) > self._tenths:
            self._console.print(self._line(info), soft_wrap=True)  # a line of a log has no width
        self._tenths = _tenths(shares)

    def close(self) -> None:
        """Take the live line away. May be called twice."""
        if self._live:
            self._bar.stop()

    def _go_on(self, info: Mapping[str, Any], shares: dict[str, float]) -> None:
        """Count from here: what an earlier run did took no time now. Its last round is known, its clock is not."""
        self._before = info["before"]
        self._console.print(f"goes on after round {self._before}")
        self._start = dict(shares)
        if "rounds" in shares:
            self._start["rounds"] = self._before / (self._limits.rounds or 1)
        self._tenths = _tenths(self._start)

    def _line(self, info: Mapping[str, Any]) -> str:
        done, limit = info["round"], self._limits.rounds
        parts = [f"{self._session}round {done}/{limit}" if limit else f"{self._session}round {done}"]
        if self._accuracy is not None:
            parts.append(f"accuracy {self._accuracy:.4f}")
        parts += [text("now_s", info["now_s"]), text("energy_j", info["energy_j"])]
        parts[-1] += f" ({text('active_j', info['active_j'])} above idle)"
        elapsed_s = self._bar.tasks[0].elapsed
        left = None if elapsed_s is None else self._limits.left(info, elapsed_s, self._start)
        return "  ".join(filter(None, [*parts, self._limits.in_words(left)]))


class ProgressOfSessions:
    """An observer of a run of several sessions: each has lines of its own."""

    def __init__(self, limits: Mapping[str, Limits], console: Console, warnings: Sequence[str] = ()) -> None:
        """`limits`: of each session, by its name. `warnings`: as those of `ProgressLine`."""
        first = next(iter(limits))
        self._lines = {
            name: ProgressLine(own, console, warnings=warnings if name == first else (), session=name)
            for name, own in limits.items()
        }

    def round_closed(self, info: Mapping[str, Any]) -> None:
        """Show a closed round of the session that `info` names."""
        self._lines[info["session"]].round_closed(info)

    def close(self) -> None:
        """Do nothing more; may be called twice."""
        for line in self._lines.values():
            line.close()


def _tenths(shares: Mapping[str, float]) -> int:
    return int(max(shares.values(), default=0.0) * _LINES + 1e-9)  # 0.3 x 10 is 3, whatever its last bit
