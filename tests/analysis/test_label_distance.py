"""How far a device's optimum is from the common one, against the divergence of its labels, at digits size.

Source: arXiv 2507.10430, Figure 7.
"""

import runpy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from edgesim.core.errors import ConfigError
from edgesim.runs.assembly import assemble
from tests.conftest import digits_scenario
from tests.sizes import full

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "analysis" / "label_distance.py"))
SKEWED = {"partition": {"name": "dirichlet_label", "beta": 0.3}, "evaluation": {"personal": True}}


def optima():
    """Return what trains the models of ten devices with skewed labels."""
    parts = assemble(digits_scenario(**SKEWED))
    return SCRIPT["Optima"](parts.scenario, parts.make_trainer("cpu"), SCRIPT["model_state_of"](parts.module))


def test_losses_on_test_samples_are_those_of_personal_evaluation():
    found = optima()
    for device in range(3):
        score = found.trainer.score_personal(device, found.start)
        assert found.losses(found.start, device)[1] == pytest.approx(score.loss, rel=1e-6)


def test_loss_on_training_samples_of_an_untrained_network_is_that_of_guessing():
    found = optima()
    assert found.losses(found.start, 0)[0] == pytest.approx(np.log(10), abs=0.1)


def test_an_optimum_is_the_best_of_its_epochs():
    found = optima()
    each = [found.losses(model, 4) for model in found.epochs(found.trainer.shards[4], 5, 6)]
    assert found.of_device(4, 6).tolist() == np.min(each, axis=0).tolist()


@full
def test_the_common_model_is_that_of_the_epoch_with_the_least_mean_loss():
    found = optima()
    shards = found.trainer.shards
    rows = SCRIPT["torch"].cat(list(shards))
    each = np.array([[found.losses(m, k) for k in range(10)] for m in found.epochs(rows, 0, 3)])
    for side in (0, 1):
        means = [sum(len(s) * loss for s, loss in zip(shards, of_epoch[:, side], strict=True)) for of_epoch in each]
        assert found.in_common(3)[:, side].tolist() == each[int(np.argmin(means)), :, side].tolist()


@full
def test_devices_with_few_classes_are_farther_from_the_common_optimum():
    parts = assemble(digits_scenario(**SKEWED))
    table = SCRIPT["distances"](parts, 6)
    assert table["samples"].sum() == len(parts.data.labels("train"))
    for row in SCRIPT["correlations"](table):
        assert row["r"] > 0.4


def test_a_file_in_no_folder_is_refused_before_anything_is_trained(tmp_path):
    with pytest.raises(ConfigError, match="--points: there is no folder"):
        SCRIPT["main"](points=tmp_path / "none" / "points.csv")


def test_data_without_classes_are_refused():
    parts = assemble(digits_scenario(backend="null", data=None, partition="sizes"))
    with pytest.raises(ConfigError, match="labels have to be classes"):
        SCRIPT["distances"](parts, 1)


def test_the_printed_p_value_is_not_that_of_the_printed_correlation():
    """A correlation of 0.552 over 100 points has t = 6.55 and p = 2.6e-9; over 217 it has the printed 9.27e-19."""
    for points, p in ((100, 2.6e-9), (217, 9.27e-19)):
        x, other = np.random.default_rng(1).standard_normal((2, points))
        x = (x - x.mean()) / x.std()
        other -= other.mean() + x * (x @ other) / points
        y = 0.552 * x + np.sqrt(1 - 0.552**2) * other / other.std()
        row = SCRIPT["correlations"](pd.DataFrame({"js": x, "gamma_train": y, "gamma_test": -y}))
        assert [r["r"] for r in row] == pytest.approx([0.552, -0.552])
        assert row[0]["p"] == pytest.approx(p, rel=0.1)
        half = 1.959964 / np.sqrt(points - 3)  # Fisher's interval
        assert [row[0]["low"], row[0]["high"]] == pytest.approx(np.tanh(np.arctanh(0.552) + np.array([-half, half])))
