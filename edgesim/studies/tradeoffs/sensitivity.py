"""Sensitivity of a column to each axis of a study, one axis at a time from a base configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd

from edgesim.core.errors import ConfigError
from edgesim.studies.study import SEED
from edgesim.studies.tradeoffs.cheapest import name_of
from edgesim.studies.values import against, axes_of, bounds_of, check_labels, parts_of

_KEPT = ("pairs", "unpaired", "difference", "low", "high", "ratio", "restricted_to")


def tornado(values: pd.DataFrame, column: str, base: Mapping[str, str] | None = None) -> pd.DataFrame:
    """Return the change of a column with each label of each axis of a table from `values_of`, others at their base.

    Columns: axis; label; pairs, unpaired, difference, low, high, ratio and restricted_to, against the base paired by
    seed, see `compared`; swing, the largest difference of the axis minus the smallest, including 0 for the base. The
    axis with the largest swing comes first. `base`: axis -> label; by default the first label in the table. Axes with
    one label are left out. Raises ConfigError if no run has these labels.
    Source: Eschenbach, "Spiderplots versus tornado diagrams for sensitivity analysis" (Interfaces 22(6), 1992).
    """
    axes = axes_of(values)
    check_labels(values, base or {}, "--base")
    labels = {axis: list(map(str, dict.fromkeys(values[axis]))) for axis in axes}
    at_base = _base(values, base or {})
    bound = bounds_of(values[values["column"] == column])[column]
    parts = {tuple(group.values()): part.set_index(SEED) for group, name, part in parts_of(values) if name == column}
    if tuple(at_base.values()) not in parts:
        raise ConfigError(f"--base: no run has all of {name_of(at_base)}")
    rows = []
    for axis in axes:
        for label in labels[axis]:
            part = parts.get(tuple((at_base | {axis: label}).values()))
            if label != at_base[axis] and part is not None:
                moved = against(part, parts[tuple(at_base.values())], False, bound)
                rows.append({"axis": axis, "label": label, **{name: moved[name] for name in _KEPT}})
    found = pd.DataFrame(rows, columns=["axis", "label", *_KEPT])
    by_axis = found.groupby("axis")["difference"]
    swing = by_axis.transform("max").clip(lower=0) - by_axis.transform("min").clip(upper=0)
    return found.assign(swing=swing).sort_values("swing", ascending=False, kind="stable", ignore_index=True)


def of_cut(values: pd.DataFrame, column: str, base: Mapping[str, str]) -> str:
    """Return a note on a tornado with numbers that are cut where a run ended before its target; "" if none are cut.

    The amount that such a run would have spent later is unknown. If no run of the base reaches its target, differences
    mean very little.
    """
    part, bound = values[values["column"] == column], bounds_of(values[values["column"] == column])[column]
    if not math.isfinite(bound):
        return ""
    at_base = _base(values, base)
    ours = part[(part[list(at_base)].astype(str) == list(at_base.values())).all(axis=1)]["observed"]
    return (
        f"{int(ours.sum())} of {len(ours)} runs of the base reached the target of {column}; numbers are cut at "
        f"{bound:.6g}, the least that a run spent without reaching it, so differences beyond it do not show; "
        "choose a --base that reaches it, or a lower target"
    )


def _base(values: pd.DataFrame, base: Mapping[str, str]) -> dict[str, str]:
    """Return the label of each axis at the base, by default the first in the table."""
    return {axis: base.get(axis, str(values[axis].iloc[0])) for axis in axes_of(values)}
