"""A recorded run with its most common numbers and pictures. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from edgesim.core.metrics import ACCURACY
from edgesim.records.run import RecordedRun

if TYPE_CHECKING:
    from rich.table import Table

    from edgesim.reports.figures import Drawing


class Run(RecordedRun):
    """A run with its most common numbers and pictures. Tables are read on first use.

    For a run of several sessions, `session` returns one of them as a run of its own. Only its `devices`, joules and
    money are those of the whole world. Without this choice, rounds, jobs and everything derived from them are refused.
    """

    def accuracy_curve(self, split: str = "test") -> pd.DataFrame:
        """Return a row per evaluation of a split: rounds done, the cost so far, loss, accuracy and metrics.

        Columns: round, sim_time_s, energy_j, active_j, idle_j, participant_j, energy_network_j, energy_server_j,
        up_bytes, down_bytes, flops, loss, accuracy, and the objective's metrics by name. `split`: test, or with
        `evaluation.personal` also personal and personal_worst. A split that was not evaluated has no rows.
        """
        from edgesim.reports.stats import curve

        return curve(self, split)

    def until(self, target: float, for_good: bool = False, metric: str = ACCURACY) -> dict[str, Any] | None:
        """Return the cost until a test accuracy or metric was first reached, or with `for_good` until it stayed.

        Keys: round (rounds done), sim_time_s, energy_j, active_j, idle_j, participant_j, energy_network_j,
        energy_server_j, up_bytes, down_bytes. None if the run did not reach the target.
        """
        from edgesim.reports.stats import curve, first_crossing, last_crossing

        return (last_crossing if for_good else first_crossing)(curve(self), target, metric, self.better[metric])

    def summary(self) -> dict[str, Any]:
        """Return the run as one mapping of plain numbers, as `edgesim table --json` prints it.

        Keys: method, status, rounds, accuracy, best_accuracy, sim_time_s, energy_j, active_j, idle_j, participant_j,
        energy_network_j, energy_server_j, up_bytes, down_bytes, flops, host_s, diverged, targets.
        """
        from edgesim.reports.stats import summary

        return summary(self)

    def energy_by_activity(self) -> pd.Series[float]:
        """Return joules of the devices by activity, the largest first: compute, receive, transmit, idle, sleep."""
        return self.energy_by("activity")["joules"]

    def energy_by(self, *keys: str) -> pd.DataFrame:
        """Return joules of the devices and their shares by one or several keys (the index), the largest first.

        Keys: device, kind, component, activity, job, round. Jobs and rounds count from 0, and are -1 where joules
        belong to none. With the key account, rows of the network and the server (device -1) are included, and shares
        are relative to the account. Raises ConfigError for another key.
        """
        from edgesim.reports.energy import energy_by

        return energy_by(self, *keys)

    def participation(self, each: bool = False) -> pd.DataFrame:
        """Return a row per kind of device, or with `each` per device: jobs, late share, mean times, bytes, joules."""
        from edgesim.reports.participation import participation

        return participation(self, each)

    def plot(self, against: Sequence[str] = ("time", "energy", "rounds"), title: str = "") -> Drawing:
        """Return a figure of test accuracy against each of `against`, side by side, which notebooks show.

        `against`: some of time, energy, active, participants, bytes, up, down, flops, rounds. The figure's `savefig`
        writes it. Raises ConfigError for other names, and if nothing was evaluated.
        """
        from edgesim.reports.pictures import draw_runs

        return draw_runs([self], against, title=title)

    def __rich__(self) -> Table:
        from edgesim.reports.format import rich_table

        return rich_table(self.name, [], self._facts())

    def _repr_html_(self) -> str:
        from edgesim.reports.format import html_table

        return html_table(self.name, [], self._facts())

    def _facts(self) -> list[tuple[str, str]]:
        """Return the results and the cost of a run as pairs of words. Its targets come last."""
        from edgesim.reports.format import divergence, text

        found = self.summary()
        facts = [("method", self.method), ("status", found["status"]), ("rounds", str(found["rounds"]))]
        if found["accuracy"] is not None:
            facts.append(("test accuracy", f"{found['accuracy']:.4f}, at best {found['best_accuracy']:.4f}"))
        for metric in self.better:
            if found.get(f"best_{metric}") is not None and metric != ACCURACY:
                facts.append((f"test {metric}", f"{found[metric]:.4g}, at best {found[f'best_{metric}']:.4g}"))
        facts.append(("simulated time", text("sim_time_s", found["sim_time_s"])))
        facts.append(
            ("energy", f"{text('energy_j', found['energy_j'])}, {text('active_j', found['active_j'])} above idle")
        )
        facts.append(("up, down", f"{text('up_bytes', found['up_bytes'])}, {text('down_bytes', found['down_bytes'])}"))
        if found["diverged"]:
            facts.append(("training", divergence(found["diverged"])))
        for target, spent in found["targets"].items():
            took = "not reached"
            if spent is not None:
                costs = (text(name, spent[name]) for name in ("sim_time_s", "energy_j"))
                took = f"{', '.join(costs)}, {spent['round']} rounds"
            facts.append((f"accuracy {target}" if ":" not in target else target.replace(":", " "), took))
        return facts


open_run = Run.open
