"""Columns of a study. A column is one number of a run, selected by its name."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from edgesim.config.units import Seconds, reason
from edgesim.core.errors import ConfigError
from edgesim.core.metrics import ACCURACY, METRICS, Better
from edgesim.files.reading import quoted
from edgesim.records.schema import TABLES, TEXT
from edgesim.reports.load import Run
from edgesim.reports.stats import COSTS, area, curve, first_crossing, last_crossing, smoothed, summary

_SUMS = ("energy_device_j", "energy_total_j")  # `energy_j` under its full name, and joules of all accounts
_SPENT = ("rounds", "round_s", *COSTS[1:], *_SUMS, "traffic_bytes")
_PERSONAL = ("personal_accuracy", "best_personal_accuracy", "personal_worst")
_BUSIEST = ("busiest_in_bytes", "busiest_out_bytes", "busiest_bytes", "busiest_round_in_bytes")
_OF_OBJECTIVES = tuple(name for name in METRICS if name not in (ACCURACY, "loss"))
_METRICS = {f"{best}{name}": METRICS[name] for best in ("", "best_") for name in _OF_OBJECTIVES}
_AT_END = ("accuracy", "best_accuracy", "loss", "flops", "mean_forward_macs", *_PERSONAL, *_BUSIEST, *_METRICS)
_GAINED = ("accuracy", "best_accuracy", *_PERSONAL, "evals.accuracy")  # larger is better
_LEARNED = ("accuracy", "best_accuracy", "loss", *_PERSONAL, *_METRICS, "evals.loss", "evals.accuracy", "metrics.value")
_MEAN_OF_LAST = re.compile(r"accuracy_last_([1-9]\d*)")
_AREA = re.compile(r"accuracy_area(?:\[([^\[\]]+)\])?")
_NUMBER = r"-?(?:\d+(?:\.\d*)?|\.\d+)(?:e-?\d+)?"
_UNTIL = re.compile(
    rf"(?:(?P<target>0?\.\d+)|(?P<metric>[A-Za-z_]\w*):(?P<value>{_NUMBER}))"
    r"(?:~(?P<mean_of>[2-9]|[1-9]\d+))?(?P<for_good>-on)?"
)
_PRICED = re.compile(r"(_s|_j|_g|_bytes|flops|cost|cost_low|cost_high)$")  # table columns that are costs
_OF_NETWORK = re.compile(r"accuracy_of\[(\w+)\]")
_METRIC = re.compile(r"metric\.(\w+)(?:\[(\d+)-(\d+)\])?")
_MEAN_OF_METRIC = re.compile(r"mean_metric\.(\w+)")
_SESSION = re.compile(r"([A-Za-z0-9_-]+):")
_PATTERNS = (_MEAN_OF_LAST, _AREA, _OF_NETWORK, _METRIC, _MEAN_OF_METRIC)
_NAMED = ", ".join(name for name in _SPENT if not re.search("_low|_high|energy_.+_j", name))
_ALLOWED = (
    f"{_NAMED}, energy_ACCOUNT_j, TABLE.COLUMN, all also as in sim_time_s@0.75, @0.75-on, @0.75~5 or @METRIC:3; "
    f"{', '.join(name for name in _AT_END if name not in {*_METRICS, *_BUSIEST, *_PERSONAL})}, "
    "personal_accuracy, busiest_bytes, a METRIC or the best_ of it, accuracy_last_K, "
    "accuracy_area[TIME], accuracy_of[NETWORK], metric.NAME[FIRST-LAST], mean_metric.NAME; of a session SESSION:COLUMN"
)


class Reading(NamedTuple):
    """A number of a run.

    If `observed` is False, the run did not reach its target, and `value` is the amount spent at its end: a lower bound.
    `never`: it ended as nothing more could happen, so that no amount would do. If the value is NaN, the run has no such
    number and no bound.
    """

    value: float
    observed: bool
    never: bool = False


@dataclass(frozen=True)
class Column:
    """A number of a run: the amount spent until its test accuracy reached `target`, or (None) the number at its end.

    - `for_good`: until the accuracy stays at the target or above in all later evaluations, as it may fluctuate.
    - `mean_of`: the mean of this many latest evaluations has to reach the target, because a single one may by luck.
    - `metric`: the metric of the target, accuracy or one of the objective, as in sim_time_s@perplexity:3.

    `quantity`, with or without a target:

    - rounds, round_s (mean length of a round), sim_time_s
    - energy_j or energy_device_j (joules of the devices), and its parts active_j (above idle power), idle_j (the rest)
      and participant_j (without the idle energy of devices that were never asked)
    - energy_network_j, energy_server_j, energy_total_j (the sum of the three accounts)
    - cost and co2e_g by the scenario's prices (cost_low, cost_high, co2e_low_g, co2e_high_g where prices are bands)
    - up_bytes, down_bytes, traffic_bytes (both)
    - TABLE.COLUMN, a sum over a table of the run

    Only at the end:

    - flops
    - loss and accuracy of the last evaluation, perplexity, f1_macro and other metrics of the objective
    - best_accuracy, best_perplexity and so on
    - accuracy_last_K, the mean of the last K evaluations
    - accuracy_area, the mean accuracy over simulated time, or with [TIME] over its first part (see `area`)
    - accuracy_of[NETWORK], the last accuracy of one of several networks
    - mean_forward_macs, the mean over jobs of the size of the trained model (see `CostProfile.forward_macs`)
    - metric.NAME, the last value that the method reported under this name: the mean over devices, or with [FIRST-LAST]
      over devices with these ids. mean_metric.NAME is the mean over all rounds and devices.
    - personal_accuracy in the last evaluation and best_personal_accuracy, means over devices of the accuracy of the
      model that each device would use itself. personal_worst is the mean over the worst tenth of devices in the last
      evaluation. All three need `evaluation.personal`.
    - busiest_in_bytes, busiest_out_bytes and busiest_bytes, the most bytes that one device received, sent, and both in
      the whole run. busiest_round_in_bytes is the mean over rounds of the most that one device received in a round.
      Tables of papers call it the traffic of the busiest node. The server does not count as a device.
    """

    quantity: str
    target: float | None = None
    for_good: bool = False
    mean_of: int = 1
    metric: str = ACCURACY
    session: str | None = None  # name of the session; None: the current session, or the first

    @property
    def better(self) -> Better | None:
        """Better direction; None for metrics and counts, because only their author knows it."""
        by_pattern = any(pattern.fullmatch(self.quantity) for pattern in (_MEAN_OF_LAST, _AREA, _OF_NETWORK))
        if by_pattern or self.quantity in _GAINED:
            return "higher"
        if self.quantity in _METRICS:
            return _METRICS[self.quantity]
        if (
            self.quantity == "metrics.value"
            or _METRIC.fullmatch(self.quantity)
            or _MEAN_OF_METRIC.fullmatch(self.quantity)
        ):
            return None
        priced = self.quantity in (*_SPENT, *_AT_END) or bool("." in self.quantity and _PRICED.search(self.quantity))
        return "lower" if priced else None

    @property
    def accumulates(self) -> bool:
        """True if the number grows until a target is reached. A run that never reaches it then gives a lower bound."""
        return self.target is not None and self.quantity not in ("round_s", "metrics.value")

    @property
    def is_learned(self) -> bool:
        """True if the number depends on trained weights, whose last bits depend on the machine."""
        by_pattern = any(pattern.fullmatch(self.quantity) for pattern in _PATTERNS)
        return self.quantity in _LEARNED or by_pattern or self.target is not None

    def _seen(self, run: Run) -> Run:
        return run.views[0] if self.session is None else run.session(self.session)

    def reading(self, run: Run) -> Reading:
        """Return the number of a run, or its lower bound."""
        run = self._seen(run)
        value = self.of(run)
        never = bool(run.manifest.get("gave_up"))  # older runs do not say
        if value is None and self.accumulates and (never or not curve(run).empty):
            bound = Column(self.quantity).of(run)
            return Reading(math.nan, False) if bound is None else Reading(bound, False, never)
        return Reading(math.nan if value is None else value, value is not None)

    def of(self, run: Run) -> float | None:
        """Return the number; None if the run missed the target, or has too few evaluations or too little time."""
        run = self._seen(run)
        over = _AREA.fullmatch(self.quantity)
        if over:
            return area(run, _time_s(over[1]) if over[1] else None)
        last = _MEAN_OF_LAST.fullmatch(self.quantity)
        if last:
            accuracy = curve(run)["accuracy"].tail(int(last[1]))
            return float(accuracy.mean()) if len(accuracy) == int(last[1]) else None
        network = _OF_NETWORK.fullmatch(self.quantity)
        if network:
            accuracy = curve(run, f"test_{network[1]}")["accuracy"]
            return None if accuracy.empty else float(accuracy.iloc[-1])
        metric = _METRIC.fullmatch(self.quantity)
        if metric:
            rows = run.metrics[run.metrics["name"] == metric[1]]
            latest = rows[rows["round"] == rows["round"].max()]
            if metric[2]:
                latest = latest[latest["device"].between(int(metric[2]), int(metric[3]))]
            return None if latest.empty else float(latest["value"].mean())
        every = _MEAN_OF_METRIC.fullmatch(self.quantity)
        if every:
            values = run.metrics["value"][run.metrics["name"] == every[1]]
            return None if values.empty else float(values.mean())
        if self.quantity in _PERSONAL:
            personal = curve(run, "personal_worst" if self.quantity == "personal_worst" else "personal")["accuracy"]
            if personal.empty:
                return None
            return float(personal.max() if self.quantity == "best_personal_accuracy" else personal.iloc[-1])
        if self.quantity == "busiest_round_in_bytes":
            closed = run.jobs[run.jobs["round"].isin(run.rounds["round"])]
            received = closed.groupby(["round", "device"])["down_bytes"].sum()
            return float(received.groupby("round").max().sum() / max(1, len(run.rounds)))
        if self.quantity in _BUSIEST:
            ways = {"busiest_in_bytes": ["down_bytes"], "busiest_out_bytes": ["up_bytes"]}
            of_devices = run.devices[run.devices["device"] >= 0]
            return float(of_devices[ways.get(self.quantity, ["down_bytes", "up_bytes"])].sum(axis=1).max())
        spent = _spent(run, self)
        if spent is None:
            return None
        if "." in self.quantity:
            table, _, column = self.quantity.partition(".")
            frame = run.table(table)
            summed = frame if self.target is None else frame[frame["round"] < spent["rounds"]]
            return float(summed[column].sum())
        value = spent.get(self.quantity)  # costs are missing without prices
        return None if value is None else float(value)


def parse_column(text: str) -> Column:
    """Return the column of a name such as "sim_time_s@0.75" or "rounds.late". Raises ConfigError for an unknown name.

    A prefix "NAME:" selects a session.
    """
    session = _SESSION.match(text)
    if session:
        return replace(parse_column(text[session.end() :]), session=session[1])
    quantity, at, until = text.partition("@")
    wanted = _UNTIL.fullmatch(until)
    table, _, of_table = quantity.partition(".")
    types = TABLES.get(table, {})
    is_table_column = types.get(of_table, TEXT) != TEXT and ("round" in types or not at)
    known = quantity in _SPENT or is_table_column
    if known and wanted and (wanted["metric"] or float(wanted["target"])):
        target, metric = float(wanted["target"] or wanted["value"]), wanted["metric"] or ACCURACY
        return Column(quantity, target, bool(wanted["for_good"]), int(wanted["mean_of"] or 1), metric)
    over = _AREA.fullmatch(text)
    if over and over[1]:
        try:
            _time_s(over[1])
        except ValidationError as error:
            raise ConfigError(f"columns: {text!r}: {reason(error)}") from error
    if not at and (known or quantity in _AT_END or any(pattern.fullmatch(quantity) for pattern in _PATTERNS)):
        return Column(quantity)
    now = re.sub(r"^(mean_)?note\.", r"\1metric.", text)
    says = "" if now == text else f"; it is called {now!r} now"
    raise ConfigError(f"columns: unknown column {quoted(text)}{says} (allowed: {_ALLOWED})")


def directions(columns: Sequence[str], told: Mapping[str, Better]) -> dict[str, Better]:
    """Return the better direction of each column: the one in `told`, or else the one of the column.

    Raises ConfigError if neither is known.
    """
    known = {column: told.get(column) or parse_column(column).better for column in columns}
    if unknown := [column for column, better in known.items() if better is None]:
        raise ConfigError(
            f"column {unknown[0]!r}: whether more or less of it is better is not known; say --higher or --lower"
        )
    return {column: better for column, better in known.items() if better is not None}


@cache
def _time_s(given: str) -> float:
    """Return the seconds of a text such as "2 h". Raises ValidationError for a text that is no time."""
    return TypeAdapter[float](Seconds).validate_python(given)


def _spent(run: Run, column: Column) -> dict[str, Any] | None:
    """Return the amounts spent until the target of a column, or until the end; None if the target was not reached."""
    crossing = last_crossing if column.for_good else first_crossing
    points = curve(run)
    if column.target is None:
        found: dict[str, Any] | None = summary(run)
    elif column.metric in points:
        better, smooth = run.better[column.metric], smoothed(points, column.mean_of, column.metric)
        found = crossing(smooth, column.target, column.metric, better)
    else:
        return None
    if found is None:
        return None
    rounds = found["rounds"] if column.target is None else found["round"]
    losses = points["loss"]
    return {
        **found,
        "loss": None if losses.empty else losses.iloc[-1],
        "rounds": rounds,
        "round_s": float(run.rounds["now_s"].iloc[rounds - 1]) / rounds if rounds else None,
        "traffic_bytes": found["up_bytes"] + found["down_bytes"],
        "energy_device_j": found["energy_j"],
        "energy_total_j": found["energy_j"] + found["energy_network_j"] + found["energy_server_j"],
        "mean_forward_macs": run.manifest.get("forward_macs"),  # missing in runs of older versions
    }
