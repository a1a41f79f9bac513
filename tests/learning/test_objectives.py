"""Losses and metrics of objectives against scikit-learn, and how runs use them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn import metrics as sk

import edgesim
from edgesim.core.backend import Score
from edgesim.core.errors import ConfigError
from edgesim.core.metrics import METRICS, is_reached
from edgesim.learning.objectives.base import Objective
from edgesim.learning.objectives.classification import Classification
from edgesim.learning.objectives.multi_label import MultiLabel
from edgesim.learning.objectives.next_token import NextToken
from edgesim.learning.objectives.regression import Regression
from edgesim.learning.train.loop import output_gradients
from edgesim.learning.train.trainer import ChunkScore, total
from edgesim.reports.load import open_run
from edgesim.reports.stats import targets_table
from edgesim.runs.assembly import assemble
from edgesim.studies.column import parse_column
from tests.conftest import digits_scenario
from tests.contracts.support import run

MADE = "tests.plugins.labels:Made"
NETWORKS = {"tokens": "tests.plugins.labels:Bigrams"}
FOR = {"numbers": "regression", "flags": "multi_label", "tokens": "next_token"}


def scenario_of(kind: str, **changes: Any) -> edgesim.Scenario:
    """Return a scenario of ten devices with made-up labels of a kind."""
    base = {
        "data": {"name": MADE, "kind": kind},
        "model": NETWORKS.get(kind, "tests.plugins.labels:Linear"),
        "objective": FOR[kind],
        "training": {"batch": 6, "lr": 0.1, "local_epochs": 2},
        "stop": {"rounds": 2},
    }
    return digits_scenario(**{**base, **changes})


def scored(objective: Objective, outputs: torch.Tensor, y: torch.Tensor, metrics: tuple[str, ...]) -> Score:
    """Return the score of outputs, in two chunks of different sizes."""
    chunks = [
        ChunkScore(
            float(objective.summed(o, t)),
            float(objective.hits(o, t).sum()),
            len(t),
            objective.amount(t),
            objective.counts(o, t).sum(0).tolist(),
        )
        for o, t in zip(outputs.split(40), y.split(40), strict=True)
    ]
    return total(chunks, objective, metrics)


@pytest.fixture
def generator() -> torch.Generator:
    """A stream of numbers."""
    return torch.Generator().manual_seed(3)


def test_classification_is_cross_entropy_with_f1(generator: torch.Generator) -> None:
    logits = torch.randn(70, 5, generator=generator)
    y = torch.randint(0, 4, (70,), generator=generator)  # the last class never occurs
    found = scored(Classification(), logits, y, ("f1_macro", "f1_micro"))
    shares = logits.double().softmax(1).numpy()
    predicted = shares.argmax(1)
    assert found.loss == pytest.approx(sk.log_loss(y, shares, labels=range(5)), rel=1e-6)
    assert found.accuracy == found.rank == sk.accuracy_score(y, predicted)
    assert found.metrics["f1_macro"] == pytest.approx(sk.f1_score(y, predicted, average="macro"))
    assert found.metrics["f1_micro"] == pytest.approx(sk.f1_score(y, predicted, average="micro"))


def test_classes_that_neither_occur_nor_are_predicted_do_not_count() -> None:
    logits, y = torch.eye(4)[[0, 0, 1, 1]], torch.tensor([0, 1, 1, 1])  # F1 of 2/3 and 4/5
    assert scored(Classification(), logits, y, ("f1_macro",)).metrics["f1_macro"] == pytest.approx((2 / 3 + 4 / 5) / 2)


def test_multi_label_is_binary_cross_entropy_with_f1(generator: torch.Generator) -> None:
    logits = torch.randn(70, 4, generator=generator)
    y = (torch.rand(70, 4, generator=generator) < 0.3).float()
    found = scored(MultiLabel(threshold=0.6), logits, y, ("f1_macro", "f1_micro"))
    shares = logits.double().sigmoid().numpy()
    each = [sk.log_loss(y[:, label], shares[:, label], labels=[0, 1]) for label in range(4)]
    predicted = shares > 0.6
    assert found.loss == pytest.approx(np.mean(each), rel=1e-6)
    assert found.accuracy == sk.accuracy_score(y.bool(), predicted)  # of samples all of whose labels are right
    assert found.metrics["f1_macro"] == pytest.approx(sk.f1_score(y, predicted, average="macro"))
    assert found.metrics["f1_micro"] == pytest.approx(sk.f1_score(y, predicted, average="micro"))
    assert found.rank == found.metrics["f1_macro"]


@pytest.mark.parametrize(("error", "metric"), [("squared", "mse"), ("absolute", "mae")])
def test_regression_has_the_error_that_is_asked_for(generator: torch.Generator, error: Any, metric: str) -> None:
    outputs, y = torch.randn(70, 2, generator=generator), torch.randn(70, 2, generator=generator)
    found = scored(Regression(error=error), outputs, y, ("mse", "mae"))
    wanted = {"mse": sk.mean_squared_error(y, outputs), "mae": sk.mean_absolute_error(y, outputs)}
    assert found.metrics == pytest.approx(wanted, rel=1e-6)
    assert found.loss == pytest.approx(wanted[metric], rel=1e-6)
    assert found.rank == pytest.approx(-wanted[metric], rel=1e-6)  # more is better
    assert math.isnan(found.accuracy)


def test_perplexity_is_that_of_all_positions(generator: torch.Generator) -> None:
    logits = torch.randn(70, 6, 5, generator=generator)  # six tokens, five positions
    y = torch.randint(0, 6, (70, 5), generator=generator)
    found = scored(NextToken(), logits, y, ("perplexity",))
    flat, labels = logits.double().transpose(1, 2).reshape(-1, 6).softmax(1).numpy(), y.flatten()
    assert found.metrics["perplexity"] == pytest.approx(math.exp(sk.log_loss(labels, flat, labels=range(6))), rel=1e-6)
    assert found.accuracy == pytest.approx(sk.accuracy_score(labels, flat.argmax(1)))
    even = scored(NextToken(), torch.zeros(70, 6, 5), y, ("perplexity",))
    assert even.metrics["perplexity"] == pytest.approx(6)  # a guess among six


def test_a_perplexity_beyond_numbers_is_infinite() -> None:
    assert NextToken().scores(800.0, 0.0, (), 1) == {"perplexity": math.inf}
    assert math.isnan(NextToken().scores(math.nan, 0.0, (), 1)["perplexity"])


def test_the_mean_loss_is_that_of_the_samples(generator: torch.Generator) -> None:
    numbers, classes = torch.randn(9, 4, generator=generator), torch.randint(0, 4, (9,), generator=generator)
    tokens = torch.randn(9, 4, 3, generator=generator), torch.randint(0, 4, (9, 3), generator=generator)
    cases: list[tuple[Objective, torch.Tensor, torch.Tensor]] = [
        (Classification(), numbers, classes),
        (NextToken(), *tokens),
        (Regression(), numbers, numbers.flip(0)),
        (MultiLabel(), numbers, (numbers.flip(0) > 0).float()),
    ]
    for objective, outputs, y in cases:
        losses = objective.losses(outputs, y)
        assert losses.shape == (9,)
        torch.testing.assert_close(objective.loss(outputs, y), losses.mean())
        torch.testing.assert_close(objective.summed(outputs, y), losses.sum())
        assert objective.some_labels(outputs).shape == y.shape


class Smoothed(Classification):
    """Cross-entropy with smoothed labels: not the loss that the closed form of its base class is of."""

    def losses(self, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the loss of each sample."""
        return F.cross_entropy(outputs, y, reduction="none", label_smoothing=0.1)


def test_gradients_by_outputs_are_those_of_autograd(generator: torch.Generator) -> None:
    """Of each sample's loss times its share: by a closed form, or by autograd where an objective has none."""
    numbers, classes = torch.randn(9, 4, generator=generator), torch.randint(0, 4, (9,), generator=generator)
    tokens = torch.randn(9, 4, 3, generator=generator), torch.randint(0, 4, (9, 3), generator=generator)
    shares = torch.rand(9, generator=generator)
    cases: list[tuple[Objective, bool, torch.Tensor, torch.Tensor]] = [
        (Classification(), True, numbers, classes),
        (Smoothed(), False, numbers, classes),
        (NextToken(), False, *tokens),
        (Regression(), False, numbers, numbers.flip(0)),
        (MultiLabel(), False, numbers, (numbers.flip(0) > 0).float()),
    ]
    for objective, is_closed, outputs, y in cases:
        assert (objective.slopes(outputs, y) is not None) == is_closed
        leaf = outputs.clone().requires_grad_()
        (objective.losses(leaf, y) * shares).sum().backward()
        torch.testing.assert_close(output_gradients(objective, outputs, y, shares), leaf.grad)


@pytest.mark.parametrize("kind", FOR)
@pytest.mark.parametrize("backend", [{"name": "workers", "workers": 2}, {"name": "cohort", "workers": 1}])
def test_runs_are_those_of_a_serial_backend(kind: str, backend: dict[str, Any]) -> None:
    rows = []
    for each in ({"name": "serial"}, backend):
        simulation = run(scenario_of(kind, backend=each))
        simulation.learner.backend.close()
        frames = {name: simulation.tables[name].frame() for name in ("evals", "metrics")}
        rows.append(frames)
    exact = backend["name"] == "workers"
    for name in rows[0]:
        one, other = rows[0][name], rows[1][name]
        assert len(one) > 0
        for column in one.columns:
            if one[column].dtype == float:
                np.testing.assert_allclose(one[column], other[column], rtol=0 if exact else 1e-4, equal_nan=True)


def test_runs_stop_and_report_by_metrics(tmp_path: Path) -> None:
    scenario = scenario_of(
        "numbers",
        evaluation={"targets": {"mse": [0.5, 0.001], "mae": 0.6}},
        stop={"rounds": 30, "metric": {"mse": 0.05}},
        weights="best",
    )
    edgesim.run(scenario, out=tmp_path / "run")
    found = open_run(tmp_path / "run")
    curve = found.accuracy_curve()
    assert found.manifest["stop_reason"] == "mse 0.05 reached"
    assert curve["mse"].iloc[-1] <= 0.05 < curve["mse"].iloc[-2]
    np.testing.assert_allclose(curve["mse"], curve["loss"], rtol=1e-6)
    summary = found.summary()
    assert summary["accuracy"] is None and summary["best_accuracy"] is None
    assert summary["best_mse"] == curve["mse"].min()
    first = curve[curve["mse"] <= 0.5].iloc[0]
    assert summary["targets"]["mse:0.5"]["sim_time_s"] == first["sim_time_s"]
    assert summary["targets"]["mse:0.001"] is None
    table = targets_table([found])
    assert table[["metric", "target"]].to_numpy().tolist() == [["mse", 0.001], ["mse", 0.5], ["mae", 0.6]]
    assert parse_column("sim_time_s@mse:0.5").of(found) == first["sim_time_s"]
    assert parse_column("rounds@mse:0.001").of(found) is None
    assert parse_column("rounds@perplexity:3").of(found) is None  # of which the run knows nothing
    assert parse_column("best_mse").of(found) == curve["mse"].min()
    assert parse_column("mae").of(found) == curve["mae"].iloc[-1]


def test_the_best_model_is_that_with_the_best_metric(tmp_path: Path) -> None:
    scenario = scenario_of("tokens", training={"batch": 6, "lr": 3.0, "local_epochs": 3}, stop={"rounds": 4})
    result = edgesim.run(scenario, out=tmp_path / "run")
    found = open_run(tmp_path / "run")
    perplexity = found.accuracy_curve()["perplexity"]
    np.testing.assert_allclose(perplexity, np.exp(found.accuracy_curve()["loss"]), rtol=1e-12)
    table = torch.from_numpy(found.weights("best")["table.weight"])
    data = scenario.data.value.load()  # type: ignore[union-attr]
    x, y = data.batch("test", torch.arange(120))
    own = torch.nn.functional.cross_entropy(table[x.long()].transpose(1, 2), y)
    assert float(own.exp()) == pytest.approx(perplexity.min(), rel=1e-5)
    assert perplexity.idxmin() != len(perplexity) - 1  # so steep a descent gets worse again
    assert result is not None


def test_classification_reports_f1_where_it_is_asked_for(tmp_path: Path) -> None:
    edgesim.run(digits_scenario(evaluation={"metrics": ["f1_macro"]}, stop={"rounds": 1}), out=tmp_path / "run")
    found = open_run(tmp_path / "run")
    assert set(found.metrics["name"]) == {"f1_macro"}
    assert found.goal == "accuracy" and found.summary()["f1_macro"] == found.metrics["value"].iloc[-1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": "classification"},
         "objective.name: classification is for classes as labels, those of data made are numbers; use regression"),
        ({"partition": {"name": "dirichlet_label", "beta": 0.5}},
         "partition.name: dirichlet_label divides samples by their classes, those of data made are numbers; "
         "use iid or by_column"),
        ({"method": "fedjs"},
         "method.name: fedjs weighs devices by their classes; it needs classes, objective regression has numbers"),
        ({"method": "heterofl"},
         "method.name: heterofl masks the logits of classes that a device has not; it needs classes, "
         "objective regression has numbers"),
        ({"failures": {"name": "attackers", "devices": [1], "labels": "next"}},
         "failures.0.labels: a flipped label is that of another class; it needs classes, "
         "objective regression has numbers"),
        ({"stop": {"accuracy": 0.9}}, "stop.accuracy: objective regression has no accuracy (it has loss, mae, mse)"),
        ({"evaluation": {"targets": [0.9]}},
         "evaluation.targets: objective regression has no accuracy (it has loss, mae, mse)"),
        ({"evaluation": {"metrics": ["f1_macro"]}},
         "evaluation.metrics: objective regression has no f1_macro (it has loss, mae, mse)"),
        ({"evaluation": {"personal": True}},
         "evaluation.personal: test sets of devices have the classes of their training sets, those of data made are "
         "numbers; use a partition that divides the test samples too, such as by_column"),
        ({"objective": {"name": "regression", "error": "cubed"}},
         "objective.error: must be 'squared' or 'absolute', got 'cubed'"),
        ({"objective": "next_word"},
         "objective.name: unknown objective 'next_word'; did you mean 'next_token'? "
         "(known: classification, multi_label, next_token, regression)"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        assemble(scenario_of("numbers", **changes))
    assert str(caught.value) == message


def test_columns_know_which_numbers_are_better() -> None:
    assert {name: parse_column(name).better for name in ("perplexity", "best_mse", "f1_macro", "best_f1_micro")} == {
        "perplexity": "lower",
        "best_mse": "lower",
        "f1_macro": "higher",
        "best_f1_micro": "higher",
    }
    assert parse_column("energy_j@perplexity:3.5~4-on").mean_of == 4
    assert parse_column("energy_j@perplexity:3.5").is_learned
    with pytest.raises(ConfigError, match="unknown column"):
        parse_column("energy_j@perplexity")
    assert is_reached(3.0, 3.0, METRICS["perplexity"]) and not is_reached(math.nan, 3.0, "lower")


def test_devices_report_losses_of_any_objective() -> None:
    scenario = scenario_of("numbers", selection={"name": "oort", "count": 4}, stop={"rounds": 2})
    assert len(run(scenario).tables["rounds"]) == 2
