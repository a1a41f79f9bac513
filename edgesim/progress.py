"""Shows a run as it goes: a live line on a terminal, one plain line every tenth of the rounds elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from edgesim.analysis.readable import text

_LINES = 10  # where there is no terminal, a log gets about this many lines


class ProgressLine:
    """An observer of a run that writes to stderr, so that stdout stays free for results."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(file=sys.stderr, markup=False, highlight=False)
        self._bar = Progress(
            BarColumn(bar_width=20), TextColumn("{task.description}"), console=self._console, transient=True
        )
        self._task = self._bar.add_task("starting", total=None)
        self._accuracy: float | None = None
        self._live = self._console.is_interactive
        if self._live:
            self._bar.start()

    def round_closed(self, info: Mapping[str, Any]) -> None:
        """Show a closed round.

        Keys of `info`: round (from 0), rounds_limit (or None), accuracy (or None if not evaluated), now_s, energy_j
        (of the fleet so far), host_s (since the run began).
        """
        done, limit = info["round"] + 1, info["rounds_limit"]
        if info["accuracy"] is not None:
            self._accuracy = info["accuracy"]
        if self._live:
            self._bar.update(self._task, completed=done, total=limit, description=self._line(info))
        elif limit and done * _LINES // limit > (done - 1) * _LINES // limit:
            self._console.print(self._line(info))

    def close(self) -> None:
        """Take the live line away. May be called twice."""
        if self._live:
            self._bar.stop()

    def _line(self, info: Mapping[str, Any]) -> str:
        done, limit, host_s = info["round"] + 1, info["rounds_limit"], info["host_s"]
        parts = [f"round {done}/{limit}" if limit else f"round {done}"]
        if self._accuracy is not None:
            parts.append(f"accuracy {self._accuracy:.4f}")
        parts += [text("now_s", info["now_s"]), text("energy_j", info["energy_j"])]
        if limit:
            parts.append(f"host time left {text('host_s', host_s * (limit - done) / done)}")
        return "  ".join(parts)
