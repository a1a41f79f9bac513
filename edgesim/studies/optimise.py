"""Searches the space of a study with optuna: trials are drawn in batches, run as cells of the study, and scored.

The point of a trial follows from the seed of the search, the number of the trial, and the results of all trials before
its batch. So only the runs have to be saved: an interrupted search is drawn again, finds the existing runs, and comes
to the same trials.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgesim.core.errors import ConfigError
from edgesim.core.metrics import ACCURACY
from edgesim.core.rng import Key, Purpose
from edgesim.reports.load import Run, open_run
from edgesim.studies.column import Column, parse_column
from edgesim.studies.plan import outlook, run_missing
from edgesim.studies.runs import Planned, Step, claim, owner_of, plan
from edgesim.studies.study import MILESTONES, TRIAL, Dimension, Study, read_trials, write_trials

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial as Drawn

_SMALLEST_GAP = 1e-6  # smallest gap of a trial that missed its target: optuna reads 0 as reached
_WHOLE_GAP = 1.0  # gap of a trial without such a number
_SEEDS = 2**32  # number of seeds of optuna


@dataclass(frozen=True)
class Trial:
    """A point of the space and the results of its runs.

    `values`: the mean over seeds of each objective; None if a run did not reach the target or has no such number, or if
    the trial was pruned. `behind`: the largest gap in accuracy to its targets, or to the milestones at which it was
    pruned. `accuracies`: its best accuracy by each of the times at which trials are pruned.
    """

    number: int
    point: Mapping[str, Any]
    overrides: tuple[str, ...]
    values: tuple[float | None, ...]
    behind: float
    pruned: bool
    accuracies: tuple[float, ...]

    @property
    def got_there(self) -> bool:
        """True if the trial has a value of every objective, so that it may be the best."""
        return None not in self.values


class Optimisation:
    """The search of a study, from its first trial on.

    `trials`: the scored trials in their order. `warnings`: the warnings that `validate` gives about each cell of the
    current batch.
    """

    def __init__(self, study: Study, file: Path, size: str, out: Path, owner: str = "") -> None:
        """`file`: study file. `out`: folder of the runs. `owner`: name of the study in that folder, default its file.

        Raises ConfigError for a study without a search.
        """
        if study.search is None:
            raise ConfigError(f"{file}: has no section [search]")
        check_installed()
        import optuna  # takes a while

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.trials: list[Trial] = []
        self.warnings: list[Sequence[str]] = []
        self._owner = owner or owner_of(file, out)
        self._study, self._search, self._file, self._size, self._out = study, study.search, file, size, out
        self._columns = [parse_column(name) for name in study.search.objectives]
        self._space = {key: _distribution(each) for key, each in study.search.space.items()}
        wanted = optuna.study.StudyDirection
        ways = [wanted.MINIMIZE] * len(study.search.minimise) + [wanted.MAXIMIZE] * len(study.search.maximise)
        self._optuna = optuna.create_study(directions=ways)  # in memory, rebuilt from the runs

    def run(
        self, trials: int, workers: int = 1, checkpoint_s: float | None = None, fresh: bool = False
    ) -> Iterator[Step | Trial]:
        """Draw and run trials until there are `trials` of them. Yield the steps of cells, and each scored trial.

        Existing runs are reused, as `run_missing` does. Raises EdgesimError if cells cannot be run or failed.
        """
        claim(self._out, self._owner)
        while len(self.trials) < trials:
            first, milestones = len(self.trials), self._milestones()
            numbers = range(first, min(first + self._search.batch, trials))
            asked = [self._draw(number) for number in numbers]
            drawn = [(one, (*self._search.overrides(one.params), *milestones)) for one in asked]
            known = {**self._changes(self.trials), **{str(one.number): texts for one, texts in drawn}}
            self._keep(known)
            batch = self._study.model_copy(
                update={"axes": {TRIAL: {str(one.number): texts for one, texts in drawn}, **self._study.axes}}
            )
            planned = plan(batch, self._file, self._size, (), self._out)
            cells = outlook(planned)
            self.warnings = [each.planned.warnings for each in cells]
            yield from run_missing(cells, workers, checkpoint_s, fresh)
            for one, texts in drawn:
                self.trials.append(self._scored(one, texts, planned))
                yield self.trials[-1]
        self._keep(self._changes(self.trials), all_of_them=True)

    @property
    def best(self) -> list[Trial]:
        """Best trial, or with several objectives the Pareto front, sorted by the first objective.

        Trials that missed a target are left out. With one objective there are several only if they are equal.
        """
        found = [self.trials[one.number] for one in self._optuna.best_trials] if self.trials else []
        sign = 1 if self._search.minimise else -1
        return sorted(found, key=lambda trial: (sign * (trial.values[0] or 0.0), trial.number))

    def _draw(self, number: int) -> Drawn:
        """Draw the trial with this number from all results so far. Points like those of pending trials are avoided."""
        from optuna.samplers import TPESampler

        seed = Key(self._search.seed).at(Purpose.SEARCH, number).word() % _SEEDS
        self._optuna.sampler = TPESampler(
            n_startup_trials=self._search.startup, constant_liar=True, multivariate=True, seed=seed
        )
        return self._optuna.ask(self._space)

    def _milestones(self) -> tuple[str, ...]:
        """Return the override that ends runs that fall behind earlier trials; none until there are enough trials."""
        prune = self._search.prune
        before = [trial.accuracies for trial in self.trials if not trial.pruned]
        if prune is None or len(before) < prune.after:
            return ()
        wanted = np.quantile(before, prune.quantile, axis=0).tolist()
        pairs = [(time_s, accuracy) for time_s, accuracy in zip(prune.at, wanted, strict=True) if accuracy > 0]
        tables = ", ".join(f"{{ sim_time = {time_s!r}, accuracy = {accuracy!r} }}" for time_s, accuracy in pairs)
        return (f"{MILESTONES}=[{tables}]",)

    def _scored(self, drawn: Drawn, overrides: tuple[str, ...], planned: Sequence[Planned]) -> Trial:
        """Score a trial from its runs and tell optuna, whose sampler prefers smaller gaps."""
        cells = [each for each in planned if each.cell.labels[TRIAL] == str(drawn.number)]
        runs = [open_run(each.folder).views[0] for each in cells]
        missed = 0.0  # largest gap in accuracy to a milestone at which a run ended
        for each, run in zip(cells, runs, strict=True):
            ends_s = run.summary()["sim_time_s"]
            milestones = [(one["sim_time"], one["accuracy"]) for one in each.scenario["stop"]["milestones"]]
            short = [accuracy - _best_by(run, time_s) for time_s, accuracy in milestones if time_s <= ends_s]
            missed = max([missed, *short])
        values: list[float | None] = []
        for column in self._columns:
            reached = [] if missed else [column.of(run) for run in runs]
            found = [value for value in reached if value is not None and math.isfinite(value)]
            values.append(float(np.mean(found)) if len(found) == len(runs) else None)
        gaps = [
            0.0 if value is not None else _gap(column, runs)
            for column, value in zip(self._columns, values, strict=True)
        ]
        at = self._search.prune.at if self._search.prune else ()
        accuracies = [float(np.mean([_best_by(run, time_s) for run in runs])) for time_s in at]
        behind = missed or max(gaps)
        drawn.set_constraint("behind", behind)
        worst = [math.inf] * len(self._search.minimise) + [-math.inf] * len(self._search.maximise)
        told = [value if behind == 0 and value is not None else bad for value, bad in zip(values, worst, strict=True)]
        self._optuna.tell(drawn, told)
        return Trial(drawn.number, dict(drawn.params), overrides, tuple(values), behind, missed > 0, tuple(accuracies))

    def _changes(self, trials: Sequence[Trial]) -> dict[str, tuple[str, ...]]:
        return {str(trial.number): trial.overrides for trial in trials}

    def _keep(self, trials: dict[str, tuple[str, ...]], all_of_them: bool = False) -> None:
        """Write the trials, unless the file begins with them already, or with `all_of_them` has exactly these."""
        there = read_trials(self._search, self._out)
        if trials != (there if all_of_them else dict([*there.items()][: len(trials)])):
            write_trials(self._search, trials, self._out)


def check_installed() -> None:
    """Raise ConfigError if optuna is not installed, without importing it."""
    spec = find_spec("optuna")
    if spec is None or spec.origin is None:  # a folder of this name is no module
        raise ConfigError('study optimise: optuna is not installed; pip install "edgesim[optimise]"')


def _distribution(dimension: Dimension) -> BaseDistribution:
    from optuna import distributions

    if dimension.choices:
        return distributions.CategoricalDistribution(list(dimension.choices))
    low, high, log, step = dimension.low, dimension.high, dimension.log, dimension.step
    if dimension.is_whole:
        return distributions.IntDistribution(low, high, log=log, step=step or 1)
    return distributions.FloatDistribution(float(low), float(high), log=log, step=step)


def _gap(column: Column, runs: Sequence[Run]) -> float:
    """Return the mean gap of runs to a target, in accuracy or as a share of another target; 1 without a target."""
    target, gaps = column.target, []
    if target is None:
        return _WHOLE_GAP
    for run in runs:
        if column.metric == ACCURACY:
            gaps.append(max(0.0, target - _best_by(run, math.inf)))
            continue
        points, better = run.accuracy_curve(), run.better.get(column.metric)
        best = math.nan if better is None else float(points[column.metric].agg("max" if better == "higher" else "min"))
        share = max(0.0, target - best if better == "higher" else best - target) / max(abs(target), _SMALLEST_GAP)
        gaps.append(min(_WHOLE_GAP, share) if math.isfinite(best) else _WHOLE_GAP)
    return max(_SMALLEST_GAP, float(np.mean(gaps)))


def _best_by(run: Run, time_s: float) -> float:
    """Return the best test accuracy up to a simulated time; 0 if none was measured or it is not a number."""
    points = run.accuracy_curve()
    best = points["accuracy"][points["sim_time_s"] <= time_s].max()
    return float(best) if math.isfinite(best) else 0.0
