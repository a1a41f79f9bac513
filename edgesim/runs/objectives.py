"""Metrics of the objective of training."""

from __future__ import annotations

from edgesim.config.scenario import Scenario
from edgesim.core.metrics import ACCURACY, METRICS, Better

_WITH_COLUMNS = (ACCURACY, "loss")  # of the table evals


def metrics_of(scenario: Scenario) -> dict[str, Better]:
    """Return for each metric of the objective, and the loss, whether higher or lower values are better."""
    return {**scenario.objective.value.metrics, "loss": METRICS["loss"]}


def written_metrics(scenario: Scenario) -> tuple[str, ...]:
    """Return the metrics that tests report beside loss and accuracy.

    They are those of `evaluation.metrics`, by default the objective's usual ones, those of targets and stop rules, and
    the metric that chooses the best model.
    """
    objective, evaluation, stop = scenario.objective.value, scenario.evaluation, scenario.stop
    asked = objective.usual if evaluation.metrics is None else evaluation.metrics
    wanted = (*asked, *evaluation.targets_by_metric, *(stop.metric or ()), objective.goal)
    return tuple(name for name in dict.fromkeys(wanted) if name not in _WITH_COLUMNS)
