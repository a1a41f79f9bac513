"""FedPer against plain PyTorch, FedAvg and prices on paper.

Source: Arivazhagan et al. (2019), algorithms 1 and 2.
"""

from __future__ import annotations

import pytest

from edgesim.core.errors import ConfigError
from edgesim.methods.fedper import FedPer
from tests.conftest import digits_scenario, frames, simulate_null
from tests.contracts.support import NORMED, mixed_scenario, results_of, run
from tests.methods.hand_made import setting_of
from tests.methods.personal_layers import agrees_with_plain_torch
from tests.methods.plain_torch import NORMED_UNITS, PARAMS
from tests.sizes import thinned


@pytest.mark.parametrize(
    ("model", "layers", "own"),
    thinned(
        [
            ("cnn_digits", 1, ["fc1"]),
            ("cnn_digits", ["conv1", "fc1"], ["conv1", "fc1"]),
            (NORMED_UNITS, 2, ["norm", "fc2"]),
        ],
        [(NORMED_UNITS, 2, ["norm", "fc2"])],
    ),
)
def test_three_rounds_in_plain_torch(monkeypatch, model, layers, own):
    """Bases are averaged by data size; what is personal goes on from where it was, running statistics too."""
    agrees_with_plain_torch(monkeypatch, {"name": "fedper", "personal_layers": layers}, own, model=model)


@pytest.mark.parametrize("model", ["cnn_digits", NORMED])
def test_without_personal_layers_it_is_fedavg(model):
    """Tables and weights are FedAvg's, bit for bit; with one they are not."""
    runs = [
        results_of(run(mixed_scenario(model=model, method=method)))
        for method in ("fedavg", {"name": "fedper", "personal_layers": 0}, "fedper")
    ]
    assert runs[0] == runs[1]
    assert runs[0]["weights"] != runs[2]["weights"]


@pytest.mark.parametrize(("layers", "own"), [(1, ["fc1"]), (2, ["conv2", "fc1"]), (["conv1"], ["conv1"])])
def test_only_the_base_travels(layers, own):
    """Four bytes a parameter of the base, both ways; the work is FedAvg's."""
    jobs, usual = (
        frames(simulate_null(digits_scenario(method=method, backend="null")))["jobs"]
        for method in ({"name": "fedper", "personal_layers": layers}, "fedavg")
    )
    base_bytes = 4 * (sum(PARAMS.values()) - sum(PARAMS[name] for name in own))
    assert set(jobs["down_bytes"]) == set(jobs["up_bytes"]) == {base_bytes}
    assert jobs["flops"].tolist() == usual["flops"].tolist()


def test_each_device_is_tested_with_its_own_layers():
    """After a round with two of six devices the others use the global model."""
    changes = {"selection": {"name": "uniform", "count": 2}, "stop": {"rounds": 1}, "evaluation": {"personal": True}}
    simulation = run(mixed_scenario(method="fedper", **changes))
    learner, trainer = simulation.learner, simulation.parts.make_trainer("cpu")
    metrics = simulation.tables["metrics"].frame()
    found = metrics[metrics["name"] == "personal_accuracy"].set_index("device")["value"].to_dict()
    base = learner.weights()
    for device in range(6):
        own = learner.memory.get(device, {"params": {}})["params"]
        model = {"params": {**base["params"], **own}, "buffers": {}}
        assert found[device] == trainer.score_personal(device, model).accuracy
    assert len(learner.memory) == 2
    assert all(state["params"].keys() == {"fc1.weight", "fc1.bias"} for state in learner.memory.values())


def test_own_layers_that_diverged_are_forgotten():
    """A rate of a million makes everything infinite: nothing is kept, and nothing reaches the server."""
    simulation = run(mixed_scenario(method="fedper", training={"batch": 16, "lr": 1e30}, stop={"rounds": 1}))
    assert simulation.learner.memory == {}
    assert set(simulation.tables["metrics"].frame().query("name == 'left_out'")["value"]) == {6.0}


@pytest.mark.parametrize(
    ("layers", "found"),
    [
        (3, "must leave at least one of the 3 layers"),
        (4, "has 3 layers, found 4"),
        (["conv1", "conv2", "fc1"], "must leave at least one"),
        (["fc2"], r"has no layer or block 'fc2'; did you mean '\w+'\? \(layers: conv1, conv2, fc1\)"),
        (-1, "must be greater than or equal to 0, got -1"),
        ([], r"must be .*, got \[\]"),
    ],
)
def test_layers_that_the_model_does_not_have(layers, found):
    with pytest.raises(ConfigError, match=rf"method\.personal_layers.*{found}"):
        simulate_null(digits_scenario(method={"name": "fedper", "personal_layers": layers}, backend="null"))


def test_a_block_is_named_by_what_its_layers_begin_with():
    """Of a network with stages: all of the fourth, and the classifier; a name that only begins alike is another."""
    sizes = {"layer1.0.conv": 1, "layer4.0.conv": 2, "layer4.1.norm": 3, "layer40": 4, "fc": 5}
    profile = setting_of((1,), sizes).cost_profile
    own = FedPer(personal_layers=("layer4", "fc")).own_layers(profile)
    assert own == {"layer4.0.conv", "layer4.1.norm", "fc"}


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "fedper": {
        "aggregate_over": "test_fedavg.py::test_absent_devices_may_count_with_the_old_model",
        "weights": "test_fedavg.py::test_devices_may_count_alike",
        "personal_layers": "test_three_rounds_in_plain_torch",
    },
}
