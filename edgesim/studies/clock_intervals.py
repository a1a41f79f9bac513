"""Intervals of a study's numbers over draws of the clocks' errors, and how often configurations keep their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from edgesim.core.errors import ConfigError
from edgesim.reports.load import Run
from edgesim.runs.retiming import Quantiles, quantiles, retimed
from edgesim.studies.study import Study, StudyCell
from edgesim.studies.values import axes_of, parts_of, values_of

SURE = 0.95  # share of draws above which an order does not depend on the clocks' errors


@dataclass(frozen=True)
class ClockIntervals:
    """Numbers of a study in `draws` draws of the clocks' errors. Draws are common to all configurations and seeds.

    `rows`: the axes, column, and low, median and high of the mean over seeds, where the draws move it. `means`: that
    mean in each draw, by the labels of all axes and the column. `notes`: runs that cannot be timed again, and runs
    whose learning the errors would change; one sentence each.
    """

    draws: int
    rows: pd.DataFrame
    means: Mapping[tuple[str, ...], np.ndarray]
    notes: Sequence[str] = ()

    def order_holds(self, one: Sequence[str], other: Sequence[str], column: str, difference: float) -> float:
        """Return the share of draws in which two configurations differ in the direction of `difference`, one - other.

        A configuration is its labels in the order of the axes. NaN: not known, or the two are equal.
        """
        mine, theirs = (self.means.get((*labels, column)) for labels in (one, other))
        if mine is None or theirs is None or not difference:
            return np.nan
        return float(np.mean(np.sign(mine - theirs) == np.sign(difference)))

    def order_in_words(self, one: str, other: str, share: float) -> str:
        """Return the sentence on an order that holds in this share of the draws."""
        return f"the order of {one} and {other} holds in {share:.0%} of {self.draws} draws of the clocks' errors"


def clock_intervals(
    study: Study, runs: Sequence[tuple[StudyCell, Run]], columns: Sequence[str], draws: int
) -> ClockIntervals:
    """Time the runs of a study again with each of `draws` draws, without training.

    Numbers until a target take the evaluations of the run. Where a run misses a target, its configuration has no
    interval. Raises ConfigError if no run can be timed again.
    """
    tables, faults, changed = [], [], []
    for cell, run in runs:
        try:
            again = retimed(run, draws)
        except ConfigError as error:
            faults.append(str(error))
            continue
        values = values_of(study, [(cell, each) for each in again.runs], columns)
        tables.append(values.assign(draw=np.repeat(np.arange(draws), len(columns))))
        if again.changed:
            changed.append(f"{run.name} in {again.changed}")
    if not tables:
        raise ConfigError(faults[0])
    together = pd.concat(tables, ignore_index=True)
    together["value"] = together["value"].where(together["observed"])
    axes, means, rows = axes_of(together), {}, []
    for labels, column, part in parts_of(together):
        of_draws = part.pivot(index="draw", columns="seed", values="value").mean(axis=1, skipna=False).to_numpy()
        if not np.isnan(of_draws).any():
            means[*labels.values(), column] = of_draws
            if np.ptp(of_draws) > 0:
                rows.append({**labels, "column": column, **quantiles(of_draws)._asdict()})
    notes = [f"No interval: {fault}." for fault in dict.fromkeys(faults)]
    if changed:
        notes.append(
            f"Of {draws} draws, other jobs deliver or start from other models in {', '.join(changed)}: there the run "
            "would have learned another model, and numbers until a target are those of the recorded one."
        )
    return ClockIntervals(draws, pd.DataFrame(rows, columns=[*axes, "column", *Quantiles._fields]), means, notes)
