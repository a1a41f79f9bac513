"""Numbers and columns of studies in the words of a report."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from edgesim.reports.format import DisplayUnit, heading, unit_for

ALPHA = 0.05  # a difference with a larger p-value may be luck
HATCHED = "Hatched: at least half of the runs ended before the target"
_FAR = 100  # values that differ by more are shown in the unit of the largest

_UNTIL = {
    "sim_time_s": "time",
    "energy_j": "energy",
    "active_j": "energy above idle power",
    "idle_j": "idle energy",
    "participant_j": "energy without devices never asked",
    "energy_device_j": "energy of the devices",
    "energy_network_j": "energy of the network",
    "energy_server_j": "energy of the server",
    "energy_total_j": "energy of devices, network and server",
    "rounds": "rounds",
    "round_s": "mean length of a round",
    "up_bytes": "uploaded",
    "down_bytes": "downloaded",
    "traffic_bytes": "traffic",
    "cost": "cost",
    "co2e_g": "carbon",
}
_AT_END = {
    "accuracy": "final accuracy",
    "best_accuracy": "best accuracy",
    "loss": "final loss",
    "flops": "computed",
    "sim_time_s": "simulated time",
    "energy_j": "energy",
    "mean_forward_macs": "mean model size (MACs)",
}
_ACCURACY = re.compile(
    r"([^:@]+:)?((best_)?accuracy(_last_\d+|_area(\[.*\])?|_of\[.*\])?|(best_)?personal_accuracy|personal_worst)"
)


def target_of(column: str) -> float | None:
    """Return the target accuracy of a column such as "energy_j@0.8-on"; None if it has none."""
    _, at, until = column.partition("@")
    found = re.match(r"(accuracy:)?(0?\.\d+)", until)
    return float(found[2]) if at and found else None


def is_accuracy(column: str) -> bool:
    """Tell whether a column is a share of right answers."""
    return _ACCURACY.fullmatch(column) is not None


def is_money(column: str) -> bool:
    """Tell whether a column is an amount of money."""
    return column.partition("@")[0] in ("cost", "cost_low", "cost_high")


def words_of(column: str) -> str:
    """Return a column in words: "time to 80 %", "best accuracy"."""
    quantity, _, until = column.partition("@")
    target = target_of(column)
    metric = re.match(r"(\w+):([^~]+?)(?=-on|~|$)", until)
    if target is not None or metric:
        goal = f"{metric[1]} {metric[2]}" if metric and target is None else percent(target or 0.0)
        good = " for good" if until.endswith("-on") else ""
        smooth = f" (mean of {until.partition('~')[2].partition('-')[0]})" if "~" in until else ""
        return f"{_UNTIL.get(quantity, heading(quantity))} to {goal}{smooth}{good}"
    last = re.fullmatch(r"accuracy_last_(\d+)", quantity)
    if last:
        return f"accuracy, mean of last {last[1]}"
    return _AT_END.get(quantity) or _UNTIL.get(quantity) or heading(quantity).replace(".", ": ")


def percent(share: float) -> str:
    """Return a share as percent without trailing zeros: "80 %", "99.5 %"."""
    return f"{100 * share:.4g} %".replace(" ", "\u00a0")


def number(column: str, value: float | None, like: float | None = None, currency: str = "") -> str:
    """Return a value of a column with its unit and three digits, accuracies as percent, or a dash if it is not known.

    `like`: a value of the column whose unit to take, so that values beside each other have one unit: see `common`.
    """
    if value is None or not math.isfinite(value):
        return "–"
    unit = unit_of(column, value if like is None else like, currency)
    return f"{_digits(column, value / unit.size)} {unit.symbol}".rstrip().replace(" ", "\u00a0")


def interval(column: str, low: float, high: float, like: float | None = None, currency: str = "") -> str:
    """Return an interval in words, its unit once: "56.4 to 75.9 s"; "" if neither end is known or both read alike."""
    ends = [math.isfinite(each) for each in (low, high)]
    if all(ends):
        unit = unit_of(column, max(abs(low), abs(high)) if like is None else like, currency)
        said = [_digits(column, each / unit.size) for each in (low, high)]
        return f"{said[0]} to {said[1]}\u00a0{unit.symbol}".rstrip() if said[0] != said[1] else ""
    if ends[0]:
        return f"at least {number(column, low, like, currency)}"
    return f"at most {number(column, high, like, currency)}" if ends[1] else ""


def common(values: Iterable[float]) -> float:
    """Return the value in whose unit all of these read well: the smallest, or the largest if it is far larger."""
    sizes = [abs(value) for value in values if math.isfinite(value) and value != 0]
    if not sizes:
        return 0.0
    return min(sizes) if max(sizes) < _FAR * min(sizes) else max(sizes)


def unit_of(column: str, value: float, currency: str = "") -> DisplayUnit:
    """Return the unit in which a value of a column is a short number, percent for accuracies."""
    if is_accuracy(column):
        return DisplayUnit("%", 0.01)
    quantity = column.partition("@")[0]
    if is_money(column):
        return DisplayUnit(currency, 1.0)
    if quantity == "co2e_g":
        return DisplayUnit("kg", 1e3) if abs(value) >= 2e3 else DisplayUnit("g", 1.0)
    return unit_for(quantity.rpartition(".")[2], abs(value))


def _digits(column: str, value: float) -> str:
    """Return a number with three digits, percent with one and money with two behind the point, and a true minus."""
    if is_accuracy(column):
        return f"{value:.1f}".replace("-", "−")
    if is_money(column) and 1 <= abs(value) < 100:
        return f"{value:.2f}".replace("-", "−")
    return (f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}").replace("-", "−")


def middle(row: Mapping[Any, Any]) -> tuple[float, float, float]:
    """Return the middle of a row of a summary and the ends of its 95 % interval."""
    return float(row["middle"]), float(row["middle_low"]), float(row["middle_high"])


def p_text(value: float) -> str:
    """Return a p-value in the usual form, such as "p < 0.001", or "" if there is none."""
    if value is None or math.isnan(value):
        return ""
    return "p < 0.001" if value < 0.001 else f"p = {value:.2g}"


def change(ratio: float) -> str:
    """Return a ratio as a change: "−26 %", "×3.1"; "" if there is none."""
    if not math.isfinite(ratio) or ratio <= 0:
        return ""
    if ratio >= 2:
        return f"×{ratio:.3g}"
    share = abs(ratio - 1)
    said = f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"
    return f"{'+' if ratio >= 1 else '−'}{said}".replace("%", "\u00a0%")
