"""LG-FedAvg against plain PyTorch, FedAvg and prices on paper.

Source: Liang et al. (2020), algorithm 1.
"""

from __future__ import annotations

import pytest

from edgesim.core.errors import ConfigError
from tests.conftest import digits_scenario, frames, simulate_null
from tests.contracts.support import NORMED, mixed_scenario, results_of, run
from tests.methods.personal_layers import agrees_with_plain_torch
from tests.methods.plain_torch import NORMED_UNITS, PARAMS
from tests.sizes import thinned


@pytest.mark.parametrize(
    ("model", "layers", "own"),
    thinned(
        [
            ("cnn_digits", 1, ["conv1", "conv2"]),
            ("cnn_digits", ["conv2"], ["conv1", "fc1"]),
            (NORMED_UNITS, 1, ["fc1", "norm"]),
        ],
        [(NORMED_UNITS, 1, ["fc1", "norm"])],
    ),
)
def test_three_rounds_in_plain_torch(monkeypatch, model, layers, own):
    """Last layers are averaged by data size; the representation goes on from where it was."""
    agrees_with_plain_torch(monkeypatch, {"name": "lg_fedavg", "shared_layers": layers}, own, model=model)


@pytest.mark.parametrize("model", ["cnn_digits", NORMED])
def test_with_all_layers_it_is_fedavg(model):
    """Tables and weights are FedAvg's, bit for bit; with the last alone they are not."""
    runs = [
        results_of(run(mixed_scenario(model=model, method=method)))
        for method in ("fedavg", {"name": "lg_fedavg", "shared_layers": 3}, "lg_fedavg")
    ]
    assert runs[0] == runs[1]
    assert runs[0]["weights"] != runs[2]["weights"]


def test_only_shared_layers_travel():
    """The classifier has 1290 parameters of four bytes; the work is FedAvg's."""
    jobs, usual = (
        frames(simulate_null(digits_scenario(method=method, backend="null")))["jobs"]
        for method in ("lg_fedavg", "fedavg")
    )
    assert set(jobs["down_bytes"]) == set(jobs["up_bytes"]) == {4 * PARAMS["fc1"]}
    assert jobs["flops"].tolist() == usual["flops"].tolist()


@pytest.mark.parametrize("layers", [0, 4, ["fc"], []])
def test_layers_that_the_model_does_not_have(layers):
    with pytest.raises(ConfigError, match=r"method\.shared_layers"):
        simulate_null(digits_scenario(method={"name": "lg_fedavg", "shared_layers": layers}, backend="null"))


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "lg_fedavg": {
        "aggregate_over": "test_fedavg.py::test_absent_devices_may_count_with_the_old_model",
        "weights": "test_fedavg.py::test_devices_may_count_alike",
        "shared_layers": "test_three_rounds_in_plain_torch",
    },
}
