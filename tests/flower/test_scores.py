"""Scores of apps."""

from __future__ import annotations

import pytest

from edgesim.flower import compat
from edgesim.flower.scores import Scores
from tests.flower.fake_clock import FakeClock


def scored(noting):
    """Return the clock on which a function notes scores."""
    clock = FakeClock(None, 1)
    noting(Scores(clock))
    return clock


@pytest.mark.parametrize(("given", "scores", "notes"), [
    ({"eval_acc": 0.5, "eval_loss": 2}, {"accuracy": 0.5, "loss": 2.0}, []),
    ({"Test-Accuracy": 0.5, "centralized_loss": 1.0, "f1": 0.1}, {"accuracy": 0.5, "loss": 1.0}, [{"f1": 0.1}]),
    ({"accuracy_top5": 0.5, "num-examples": 7}, None, [{"accuracy_top5": 0.5}]),
    ({"loss": float("nan"), "acc": [1.0]}, None, []),
])  # fmt: skip
def test_names_of_metrics(given, scores, notes):
    """Loss and accuracy by their usual names; others by their own."""
    clock = scored(lambda noted: noted.clients(given, 5))
    assert [each[1:] for each in clock.scores] == ([] if scores is None else [("test", scores, 5)])
    assert clock.notes == notes


def test_the_server_part_comes_first():
    """Once it evaluates, means of clients are another split."""

    def noting(scores):
        scores.clients({"loss": 1.0}, 3)
        scores.server({"loss": 2.0, "num-examples": 9})
        scores.clients({"loss": 3.0}, 3)

    assert [(split, metrics["loss"], samples) for _, split, metrics, samples in scored(noting).scores] == [
        *(("test", 1.0, 3), ("test", 2.0, 9), ("devices", 3.0, 3)),
    ]


def test_replies_of_a_loop_are_averaged_by_round():
    """Weighted by their samples; replies of a round that come later move its mean."""

    def reply(**metrics):
        with compat.task_identity(1):
            message = compat.Message(compat.RecordDict(), 5, "evaluate")
        return compat.Message(compat.RecordDict({"m": compat.MetricRecord(metrics)}), reply_to=message)

    def noting(scores):
        scores.seen([reply(loss=1.0, **{"num-examples": 1}), reply(loss=4.0, **{"num-examples": 2})], "1")
        scores.seen([reply(loss=7.0, **{"num-examples": 3})], "1")
        scores.seen([reply(loss=2.0), reply(loss=4.0)], "2")

    found = [(metrics["loss"], samples) for _, _, metrics, samples in scored(noting).scores]
    assert found == [(pytest.approx(3.0), 3), (pytest.approx(5.0), 6), (pytest.approx(3.0), 0)]
