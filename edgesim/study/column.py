"""Columns of a study: one number of a run, by a name that says which."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from edgesim.analysis.load import Run
from edgesim.analysis.stats import curve, first_crossing, summary
from edgesim.errors import ConfigError
from edgesim.records.schema import TABLES, TEXT

_SPENT = ("rounds", "round_s", "sim_time_s", "energy_j", "up_bytes", "down_bytes", "traffic_bytes")
_AT_END = ("accuracy", "best_accuracy", "flops")
_MEAN_OF_LAST = re.compile(r"accuracy_last_([1-9]\d*)")
_ALLOWED = (
    f"{', '.join(_SPENT)} and TABLE.COLUMN, each also until a test accuracy as in sim_time_s@0.75; "
    f"{', '.join(_AT_END)}, accuracy_last_K"
)


@dataclass(frozen=True)
class Column:
    """A number of a run: what was spent until a test accuracy `target` was first reached, or (None) at its end.

    `quantity`: rounds, round_s (mean length of a round), sim_time_s, energy_j, up_bytes, down_bytes, traffic_bytes
    (both), or TABLE.COLUMN, a sum over a table of the run; at the end also flops, accuracy, best_accuracy and
    accuracy_last_K, the mean of the last K evaluations.
    """

    quantity: str
    target: float | None = None

    def of(self, run: Run) -> float | None:
        """Return the number; None if the run did not get there, or has not so many evaluations."""
        last = _MEAN_OF_LAST.fullmatch(self.quantity)
        if last:
            accuracy = curve(run)["accuracy"].tail(int(last[1]))
            return float(accuracy.mean()) if len(accuracy) == int(last[1]) else None
        spent = _spent(run, self.target)
        if spent is None:
            return None
        if "." in self.quantity:
            return _table_sum(run, self.quantity, None if self.target is None else spent["rounds"])
        value = spent[self.quantity]
        return None if value is None else float(value)


def parse_column(text: str) -> Column:
    """Return the column of a name such as "sim_time_s@0.75" or "merges.late". Raises ConfigError for any other."""
    quantity, at, accuracy = text.partition("@")
    target = float(accuracy) if re.fullmatch(r"0?\.\d+", accuracy) else None
    known = quantity in _SPENT or _is_table_column(quantity, by_round=bool(at))
    if at and known and target:
        return Column(quantity, target)
    if not at and (known or quantity in _AT_END or _MEAN_OF_LAST.fullmatch(quantity)):
        return Column(quantity)
    raise ConfigError(f"columns: unknown column {text!r} (allowed: {_ALLOWED})")


def _is_table_column(text: str, by_round: bool) -> bool:
    table, _, column = text.partition(".")
    types = TABLES.get(table, {})
    return types.get(column, TEXT) != TEXT and ("round" in types or not by_round)


def _spent(run: Run, target: float | None) -> dict[str, Any] | None:
    found = summary(run) if target is None else first_crossing(curve(run), target)
    if found is None:
        return None
    rounds = found["rounds"] if target is None else found["round"]
    return {
        **found,
        "rounds": rounds,
        "round_s": found["sim_time_s"] / rounds if rounds else None,
        "traffic_bytes": found["up_bytes"] + found["down_bytes"],
    }


def _table_sum(run: Run, quantity: str, rounds: int | None) -> float:
    table, _, column = quantity.partition(".")
    frame = run.table(table)
    rows = frame if rounds is None else frame[frame["round"] < rounds]
    return float(rows[column].sum())
