"""Checks that data, method, selection, failures and metrics fit the objective of training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from edgesim.config.scenario import Scenario
from edgesim.core.errors import ConfigError
from edgesim.core.metrics import ACCURACY, METRICS, Better
from edgesim.learning.data.dataset import Dataset
from edgesim.learning.objectives.base import Objective
from edgesim.runs.selection_checks import wants_of
from edgesim.world.failures.attackers import Attackers

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


def check_objective(scenario: Scenario) -> None:
    """Raise ConfigError if a part needs classes and the labels are of another kind, or a metric is unknown."""
    name, objective = scenario.objective.name, scenario.objective.value
    if not isinstance(objective, Objective):
        raise ConfigError(f"objective.name: {name} must extend edgesim.learning.objectives.base.Objective")
    if objective.labels != "classes":
        for key, why in _needing_classes(scenario):
            raise ConfigError(f"{key}: {why}; it needs classes, objective {name} has {objective.labels}")
    known, evaluation, stop = metrics_of(scenario), scenario.evaluation, scenario.stop
    named = [
        *(("evaluation.metrics", metric) for metric in evaluation.metrics or ()),
        *(("evaluation.targets", metric) for metric in evaluation.targets_by_metric),
        *(("stop.metric", metric) for metric in stop.metric or ()),
        *((("stop.accuracy", ACCURACY),) if stop.accuracy is not None else ()),
        *((("stop.milestones", ACCURACY),) if stop.milestones else ()),
    ]
    for key, metric in named:
        if metric not in known:
            raise ConfigError(f"{key}: objective {name} has no {metric} (it has {', '.join(sorted(known))})")


def with_fitting_labels(scenario: Scenario, data: Dataset | None) -> Dataset | None:
    """Return the data set. Raises ConfigError if its labels are of another kind than the objective's."""
    objective = scenario.objective
    if data is not None and data.kind != objective.value.labels:
        raise ConfigError(
            f"objective.name: {objective.name} is for {objective.value.labels} as labels, those of data {data.name} "
            f"are {data.kind}; use {_FOR[data.kind]}"
        )
    return data


_FOR: Mapping[str, str] = {
    "classes": "classification",
    "numbers": "regression",
    "flags": "multi_label",
    "tokens": "next_token",
}


def _needing_classes(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """Yield the key of each part of a scenario that needs classes as labels, and the reason."""
    method, selection = scenario.method, scenario.selection
    if method.value.needs_classes:
        yield "method.name", f"{method.name} {method.value.needs_classes}"
    if method.value.server_set is not None and method.value.server_set.draw == "balanced":
        yield "method.name", f"{method.name} gives its server equally many samples of each class"
    if "labels" in wants_of(scenario):
        yield "selection.name", f"{selection.name} looks at the devices' classes"
    for place, failure in enumerate(scenario.failures):
        if isinstance(failure.value, Attackers) and failure.value.labels != "kept":
            yield f"failures.{place}.labels", "a flipped label is that of another class"
