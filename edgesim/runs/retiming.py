"""Runs timed again with draws of the devices' clock errors, without training: intervals of their seconds and joules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from edgesim.config.load import load_scenario
from edgesim.config.scenario import Scenario, Stop
from edgesim.core.arrays import Arr
from edgesim.core.errors import ConfigError
from edgesim.core.job import DELIVERED
from edgesim.core.work import LEVEL
from edgesim.reports.load import Run
from edgesim.runs.assembly import Assembly, assemble
from edgesim.runs.job_sample import timed
from edgesim.runs.simulation import Simulation

_RELATIVE = 1e-9  # as far the times of a run and of its repetition without training may differ
_TIMED = ("jobs", "rounds", "costs", "edges")  # tables that a run without training has too
_WORK = ["round", "device", "base_version", "task", "submodel"]


class Quantiles(NamedTuple):
    """Quantiles over draws, numbers or arrays: the two ends of an interval that holds LEVEL of them, and the middle."""

    low: Any
    median: Any
    high: Any


def quantiles(of_draws: Arr) -> Quantiles:
    """Return the quantiles of an array of shape (draws, ...) over its first axis."""
    return Quantiles(*np.quantile(of_draws, [(1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2], axis=0))


def check_spread(scenario: Scenario) -> None:
    """Raise ConfigError if the clock of no device has a spread, as then there is no error to draw."""
    if not any(block.cpu.spread for block in scenario.fleet):
        raise ConfigError("--intervals: no device has a spread; name a profile, or give fleet.0.cpu.spread such as 0.1")


def redrawn(parts: Assembly, draw: int) -> Assembly:
    """Return the parts of a run with draw number `draw` of the clocks' errors, and the same data and network."""
    scenario = parts.scenario.model_copy(update={"clock_error": draw})
    return assemble(scenario, load=lambda _: parts.data, build=lambda *_: parts.network)


@dataclass(frozen=True)
class Retimed:
    """A run with the times and joules of draws 1, 2, ... of the clocks' errors, and its own evaluations.

    `changed`: number of draws in which other jobs deliver, or start from other models, than in the run. There the run
    would have learned another model.
    """

    runs: Sequence[Run]
    changed: int


def retimed(run: Run, draws: int) -> Retimed:
    """Return a run timed again for its rounds with each of `draws` draws, without training.

    Raises ConfigError if that is impossible: the method plans from training results, the run has several sessions or
    no round, the clock of no device has a spread, or even without new draws the rounds end at other times.
    """
    scenario = load_scenario(run.manifest["scenario"]).trainings[0]
    check_spread(scenario)
    feedback, polls = scenario.method.value.needs_training, scenario.selection.value.poll is not None
    if len(run.sessions) > 1 or feedback or polls or scenario.controller or run.rounds.empty:
        why = "selection" if polls else "method"
        why = f"{why} {scenario.selection.name if polls else scenario.method.name} plans from training results"
        why = f"controller {scenario.controller.name} adapts its rounds" if scenario.controller else why
        why = "it has several sessions" if len(run.sessions) > 1 else "no round closed" if run.rounds.empty else why
        raise ConfigError(f"{run.name}: cannot be timed again, as {why}")
    parts = assemble(scenario.model_copy(update={"stop": Stop(rounds=len(run.rounds))}))
    same = _timed_like(run, parts)
    ends_s, again_s = run.rounds["now_s"].to_numpy(), same.rounds["now_s"].to_numpy()
    if len(ends_s) != len(again_s) or not np.allclose(ends_s, again_s, rtol=_RELATIVE, atol=0.0):
        raise ConfigError(f"{run.name}: cannot be timed again: without training its rounds end at other times")
    runs = [_timed_like(run, redrawn(parts, draw)) for draw in range(1, draws + 1)]
    return Retimed(runs, sum(not _work(each).equals(_work(same)) for each in runs))


def _timed_like(run: Run, parts: Assembly) -> Run:
    """Return a run of these parts without training, with the evaluations and metrics of `run`."""
    simulation: Simulation = timed(parts)
    simulation.run()
    frames = {name: simulation.tables[name].frame() for name in _TIMED if len(simulation.tables[name])}
    ends = frames["rounds"].set_index("round")["now_s"]
    evals = run.evals.assign(now_s=run.evals["round"].map(ends).fillna(0.0))  # before the first round: at the start
    found = Run(run.folder)
    vars(found)["manifest"] = {**run.manifest, "totals": simulation.totals}
    recorded = {name: run.table(name) for name in (*_TIMED, "metrics")}  # the empty ones among them
    vars(found)["_read"] = {**recorded, **frames, "devices": pd.DataFrame(simulation.devices()), "evals": evals}
    return found


def _work(run: Run) -> pd.DataFrame:
    """Return the jobs that deliver, in an order that does not depend on their times."""
    jobs = run.jobs[run.jobs["outcome"].isin(DELIVERED)]
    return jobs[[*_WORK, "outcome"]].sort_values(_WORK, ignore_index=True)
