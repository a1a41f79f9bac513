"""Scores of an app: what its server part evaluates, and means of what its clients report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from math import isfinite
from typing import Any

from edgesim.core.app import AppClock
from edgesim.flower import compat

_TEST, _DEVICES = "test", "devices"
_AROUND = {
    *("eval", "evaluate", "evaluation", "test", "val", "valid", "validation", "server", "client", "centralized"),
    *("centralised", "federated", "distributed", "global", "avg", "mean", "average", "aggregated"),
}
_NAMES = {"acc": "accuracy", "accuracy": "accuracy", "loss": "loss"}
_WEIGHTS = ("num-examples", "num_examples")  # names of the weight of a reply, the newer API's first
_LEGACY = "evaluateres."  # before names of records of the older API, whose History gets the means


class Scores:
    """Notes scores of a run on its clock.

    Split "test" holds what the server part evaluates, or the clients' means where it evaluates nothing itself. In the
    first case the clients' means are split "devices".
    """

    def __init__(self, clock: AppClock) -> None:
        self._clock = clock
        self._at_server = False
        self._strategies = 0  # that are running and note the means themselves
        self._group = ""
        self._records: list[tuple[float, dict[str, float]]] = []  # samples and metrics of the group's replies
        self._samples = 0.0  # of the evaluation whose replies came last
        self._loss: float | None = None  # that a History got, before the metrics to it

    def seen(self, replies: list[Any], group: str) -> list[Any]:
        """Look at replies that the app gets, and return them. `group`: of their round.

        Without a strategy, the means over all replies of a round so far are its score.
        """
        answered = (reply for reply in replies if reply.has_content())
        evaluated = [each for each in answered if each.metadata.message_type.partition(".")[0] == "evaluate"]
        if not evaluated:
            return replies
        self._samples = sum(_samples(reply.content) for reply in evaluated)
        own = [reply.content for reply in evaluated if not any(name.startswith(_LEGACY) for name in reply.content)]
        if own and not self._strategies:
            before = self._records if group == self._group else []
            self._group, self._records = group, [*before, *((_samples(each), _metrics(each)) for each in own)]
            samples = sum(weight for weight, _ in self._records)
            names = set.intersection(*(set(metrics) for _, metrics in self._records)).difference(_WEIGHTS)
            pairs = [(weight / samples if samples else 1 / len(self._records), each) for weight, each in self._records]
            self.clients({name: sum(share * each[name] for share, each in pairs) for name in sorted(names)}, samples)
        return replies

    def clients(self, metrics: Mapping[str, Any], samples: float | None = None) -> None:
        """Note metrics that clients have reported, aggregated."""
        split = _DEVICES if self._at_server else _TEST
        self._score(split, metrics, self._samples if samples is None else samples)

    def server(self, metrics: Mapping[str, Any]) -> None:
        """Note metrics of the server part's own evaluation."""
        self._at_server = True
        self._score(_TEST, metrics, _weight(_plain(metrics)))

    def _score(self, split: str, metrics: Mapping[str, Any], samples: float) -> None:
        plain = _plain(metrics)
        scores = {_name(name): value for name, value in plain.items() if _name(name) in _NAMES.values()}
        others = {name: value for name, value in plain.items() if _name(name) not in {*_NAMES.values(), *_WEIGHTS}}
        if scores:
            self._clock.score(split, scores, round(samples))
        self._note(others)

    def _note(self, metrics: Mapping[str, Any]) -> None:
        if plain := _plain(metrics):
            self._clock.note(plain)

    def patches(self) -> dict[tuple[Any, str], Any]:
        """Return patches with which strategies and histories of Flower note their scores here."""
        return {
            (compat.Strategy, "start"): self._starting(compat.Strategy.start),
            (compat.History, "add_loss_centralized"): self._before(
                compat.History.add_loss_centralized, lambda loss: self._keep(loss, True)
            ),
            (compat.History, "add_metrics_centralized"): self._before(
                compat.History.add_metrics_centralized, lambda metrics: self.server(self._with_loss(metrics))
            ),
            (compat.History, "add_loss_distributed"): self._before(
                compat.History.add_loss_distributed, lambda loss: self._keep(loss, False)
            ),
            (compat.History, "add_metrics_distributed"): self._before(
                compat.History.add_metrics_distributed, lambda metrics: self.clients(self._with_loss(metrics))
            ),
            (compat.History, "add_metrics_distributed_fit"): self._before(
                compat.History.add_metrics_distributed_fit, self._note
            ),
        }

    def _starting(self, start: Callable[..., Any]) -> Callable[..., Any]:
        """Return `Strategy.start` that notes what the strategy aggregates and its `evaluate_fn` returns."""

        @wraps(start)
        def starting(strategy: Any, *args: Any, **kwargs: Any) -> Any:
            if len(args) > 6:  # evaluate_fn by its place
                args, kwargs = args[:6], {**kwargs, "evaluate_fn": args[6]}
            evaluate = kwargs.get("evaluate_fn")
            if evaluate is not None:
                self._at_server = True
                kwargs["evaluate_fn"] = _after(evaluate, self.server)
            self._strategies += 1
            after = {
                (strategy, "aggregate_train"): _after(strategy.aggregate_train, lambda both: self._note(both[1] or {})),
                (strategy, "aggregate_evaluate"): _after(strategy.aggregate_evaluate, self.clients),
            }
            try:
                with compat.patched(after):
                    return start(strategy, *args, **kwargs)
            finally:
                self._strategies -= 1

        return starting

    def _before(self, method: Callable[..., None], noting: Callable[[Any], None]) -> Callable[..., None]:
        @wraps(method)
        def noted(history: Any, server_round: int, *args: Any, **kwargs: Any) -> None:
            noting(*args, *kwargs.values())
            method(history, server_round, *args, **kwargs)

        return noted

    def _keep(self, loss: float, at_server: bool) -> None:
        self._loss = loss
        self._at_server = self._at_server or at_server

    def _with_loss(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        loss, self._loss = self._loss, None
        return {**({} if loss is None else {"loss": loss}), **(metrics or {})}


def _after(function: Callable[..., Any], noting: Callable[[Any], None]) -> Callable[..., Any]:
    @wraps(function)
    def noted(*args: Any, **kwargs: Any) -> Any:
        found = function(*args, **kwargs)
        if found is not None:
            noting(found)
        return found

    return noted


def _metrics(records: Any) -> dict[str, float]:
    return {name: value for record in records.metric_records.values() for name, value in _plain(record).items()}


def _samples(records: Any) -> float:
    return _weight(_metrics(records))


def _weight(metrics: Mapping[str, float]) -> float:
    return max(next((metrics[name] for name in _WEIGHTS if name in metrics), 0.0), 0.0)


def _plain(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics that are single finite numbers."""
    numbers = {name: value for name, value in metrics.items() if isinstance(value, int | float)}
    return {name: float(value) for name, value in numbers.items() if isfinite(value)}


def _name(given: str) -> str:
    """Return "accuracy" or "loss" for a metric that is called so, perhaps with words around; else its name."""
    words = [word for word in given.lower().replace("-", "_").replace(" ", "_").split("_") if word not in _AROUND]
    return _NAMES.get(words[0], given) if len(words) == 1 else given
