"""When models are tested, and personal evaluation: what each device would use, on samples like its training data."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.conftest import digits_scenario
from tests.contracts.support import mixed_scenario, run
from tests.sizes import full

EVERY = {"every": 1, "personal": True}


def accuracies(simulation, round_):
    """Return the devices' accuracies after a round, by device."""
    metrics = simulation.tables["metrics"].frame()
    rows = metrics[(metrics["name"] == "personal_accuracy") & (metrics["round"] == round_)]
    return dict(zip(rows["device"], rows["value"], strict=True))


def row(simulation, split):
    """Return the last evaluation of a split."""
    evals = simulation.tables["evals"].frame()
    return evals[evals["split"] == split].iloc[-1]


def test_with_a_server_every_device_uses_the_global_model():
    """Mean over devices and over the worst tenth of them, here one of six; checked against the network itself."""
    simulation = run(mixed_scenario(partition={"name": "x_class", "x": 2, "samples_per_device": 40}, evaluation=EVERY))
    parts, found = simulation.parts, accuracies(simulation, 1)
    trainer = parts.make_trainer("cpu")
    for name, tensor in simulation.learner.weights()["params"].items():
        trainer.module.get_parameter(name).data = tensor
    trainer.module.eval()
    expected = []
    for rows in parts.split.test:
        x, y = parts.data.batch("test", torch.from_numpy(rows))
        expected.append(float((trainer.module(x).argmax(1) == y).double().mean()))
    assert list(found.values()) == pytest.approx(expected)
    assert row(simulation, "personal")["accuracy"] == pytest.approx(np.mean(expected))
    assert row(simulation, "personal_worst")["accuracy"] == pytest.approx(min(expected))
    assert len(set(expected)) > 1


def test_own_test_sets_have_the_class_mix_of_the_device():
    """A device with samples of two classes is tested on these two, where the partition has no test sets itself."""
    parts = run(mixed_scenario(partition={"name": "x_class", "x": 2, "samples_per_device": 40}, evaluation=EVERY)).parts
    for trained, tested in zip(parts.split.train, parts.split.test, strict=True):
        assert set(parts.data.y_test[tested].tolist()) == set(parts.data.y_train[trained].tolist())


@pytest.mark.parametrize(
    "backend", ["serial", pytest.param({"name": "workers", "workers": 2}, marks=[full, pytest.mark.workers])]
)
def test_peers_use_the_models_they_kept(backend):
    """Their accuracies differ from those of the peers' mean, and are the same whoever computes them."""
    simulation = run(mixed_scenario(method="dfedavg", evaluation=EVERY, backend=backend))
    trainer = simulation.parts.make_trainer("cpu")
    expected = {d: trainer.score_personal(d, own).accuracy for d, own in simulation.learner.memory.items()}
    assert len(expected) == 6
    assert accuracies(simulation, 1) == expected
    mean = {d: trainer.score_personal(d, simulation.learner.weights()).accuracy for d in expected}
    assert mean != expected


def test_nothing_is_scored_unless_asked_for():
    """The tables of a run without personal evaluation have the test set alone."""
    assert set(run(digits_scenario()).tables["evals"].frame()["split"]) == {"test"}


@pytest.mark.parametrize(
    ("evaluation", "tested"),
    [({"every": 3}, [2, 5, 7]), ({"every": 3, "last": 2}, [2, 5, 6, 7]), ({"every": 9, "last": 8}, list(range(8)))],
)
def test_models_are_tested_every_so_many_rounds_and_at_the_end(evaluation, tested):
    """Rounds counted from 0, eight of them."""
    simulation = run(digits_scenario(evaluation=evaluation, stop={"rounds": 8}, model="mlr"))
    assert simulation.tables["evals"].frame()["round"].tolist() == tested
