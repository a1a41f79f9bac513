"""Shows a run as it goes: a live line on a terminal, one plain line every tenth of the rounds elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from edgesim.analysis.readable import divergence, text

_LINES = 10  # where there is no terminal, a log gets about this many lines


class ProgressLine:
    """An observer of a run that writes to stderr, so that stdout stays free for results."""

    def __init__(
        self, rounds_limit: int | None, console: Console | None = None, clock_s: Callable[[], float] | None = None
    ) -> None:
        """`rounds_limit`: the run stops there at the latest. `clock_s`: a host clock, default rich's."""
        self._limit = rounds_limit
        self._console = console or Console(file=sys.stderr, markup=False, highlight=False)
        columns = (BarColumn(bar_width=20), TextColumn("{task.description}", markup=False))
        self._bar = Progress(*columns, console=self._console, transient=True, get_time=clock_s)
        self._task = self._bar.add_task("starting", total=rounds_limit)
        self._accuracy: float | None = None
        self._before = 0
        self._live = self._console.is_interactive
        if self._live:
            self._bar.start()

    def round_closed(self, info: Mapping[str, Any]) -> None:
        """Show a closed round.

        Keys of `info`: round (how many are done), accuracy (None if not evaluated), now_s, energy_j (of the fleet so
        far), active_j (of it, what is above idle power), diverged (how, in the round in which training did), and in a
        run that goes on from a checkpoint before (how many an earlier run did).
        """
        done = info["round"]
        if info.get("before", 0) > self._before:
            self._before = info["before"]
            self._console.print(f"goes on after round {self._before}")
        if info.get("diverged"):
            self._console.print(divergence(info["diverged"]), soft_wrap=True)
        if info["accuracy"] is not None:
            self._accuracy = info["accuracy"]
        if self._live:
            self._bar.update(self._task, completed=done, description=self._line(info))
        elif self._limit and done * _LINES // self._limit > (done - 1) * _LINES // self._limit:
            self._console.print(self._line(info))

    def close(self) -> None:
        """Take the live line away. May be called twice."""
        if self._live:
            self._bar.stop()

    def _line(self, info: Mapping[str, Any]) -> str:
        done = info["round"]
        parts = [f"round {done}/{self._limit}" if self._limit else f"round {done}"]
        if self._accuracy is not None:
            parts.append(f"accuracy {self._accuracy:.4f}")
        parts += [text("now_s", info["now_s"]), text("energy_j", info["energy_j"])]
        parts[-1] += f" ({text('active_j', info['active_j'])} above idle)"
        elapsed_s = self._bar.tasks[0].elapsed
        if self._limit and elapsed_s is not None:
            left_s = round(elapsed_s * (self._limit - done) / (done - self._before))
            parts.append(f"host time left {text('host_s', left_s)}")
        return "  ".join(parts)
