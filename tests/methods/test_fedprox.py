"""FedProx against numbers on paper and against FedAvg.

Source: Li et al. (2020), the objective of algorithm 2.
"""

from __future__ import annotations

import pytest
import torch

from edgesim.core.errors import ConfigError
from edgesim.methods.fedprox import FedProx
from tests.conftest import digits_scenario
from tests.contracts.support import NORMED, mixed_scenario, results_of, run
from tests.methods.one_device import Device, flops_on_top


@pytest.mark.parametrize(
    ("mu", "penalty", "expected"), [(0.1, 0.0625, [0.975, -1.03]), (1.0, 0.625, [0.93, -0.94]), (0.0, 0, [0.98, -1.04])]
)
def test_a_step(mu, penalty, expected):
    """A step of 0.1 along g = (0.2, 0.4) and the gradient of mu/2 |w - received|^2, as PyTorch takes it."""
    w = torch.tensor([1.0, -1.0], requires_grad=True)
    distance = mu / 2 * (w - torch.tensor([0.5, 0.0])).square().sum()
    assert distance.item() == pytest.approx(penalty)
    by_torch = w - 0.1 * (torch.tensor([0.2, 0.4]) + torch.autograd.grad(distance, w)[0])
    assert by_torch.tolist() == pytest.approx(expected, abs=1e-6)
    found = Device(FedProx(mu=mu), [0.5, 0.0]).go_to([1.0, -1.0]).step([0.2, 0.4], lr=0.1)
    assert found == pytest.approx(expected, abs=1e-6)


def test_the_anchor_stays_where_it_was():
    """Received 0, mu lr = 0.5, gradient -1 at lr 1: 1, then half of that and 1 more, ...: 1, 1.5, 1.75."""
    assert [Device(FedProx(mu=0.5), [0.0]).step([-1.0], lr=1.0, steps=n) for n in (1, 2, 3)] == [[1.0], [1.5], [1.75]]


@pytest.mark.parametrize("model", ["cnn_digits", NORMED])
def test_without_the_term_it_is_fedavg(model):
    """With mu = 0 tables and weights are FedAvg's, bit for bit; with more they are not."""
    runs = [
        results_of(run(mixed_scenario(model=model, method=method)))
        for method in ("fedavg", {"name": "fedprox", "mu": 0}, {"name": "fedprox", "mu": 1})
    ]
    assert runs[0] == runs[1]
    assert runs[0]["weights"] != runs[2]["weights"]


def test_the_term_costs_four_flops_a_parameter_and_step():
    """The CNN of the digits has 6090 parameters."""
    assert set(flops_on_top("fedprox")) == {4 * 6090}
    assert set(flops_on_top({"name": "fedprox", "mu": 0})) == {0}


def test_settings_out_of_range():
    with pytest.raises(ConfigError, match=r"method\.mu"):
        digits_scenario(method={"name": "fedprox", "mu": -0.1})


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "fedprox": {
        "aggregate_over": "test_fedavg.py::test_absent_devices_may_count_with_the_old_model",
        "weights": "test_fedavg.py::test_devices_may_count_alike",
        "mu": "test_a_step",
    },
}
