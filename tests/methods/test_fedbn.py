"""FedBN against plain PyTorch, FedAvg and prices on paper.

Source: Li et al. (2021), algorithm 1.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgesim.core.errors import ConfigError
from edgesim.core.price_list import LayerCost
from edgesim.methods.fedbn import FedBN
from tests.conftest import digits_scenario, frames, simulate_null
from tests.contracts.support import NORMED, mixed_scenario, results_of, run
from tests.methods.hand_made import setting_of
from tests.methods.personal_layers import agrees_with_plain_torch
from tests.methods.plain_torch import NORMED_UNITS


def test_three_rounds_in_plain_torch(monkeypatch):
    """Scales, shifts and running statistics stay on devices; all else is averaged by data size."""
    agrees_with_plain_torch(monkeypatch, "fedbn", ["norm"], model=NORMED_UNITS)


def test_without_normalisation_it_is_fedavg():
    """Tables and weights, bit for bit."""
    runs = [results_of(run(mixed_scenario(method=method))) for method in ("fedavg", "fedbn")]
    assert runs[0] == runs[1]


def test_normalisation_does_not_travel():
    """The 40 parameters of the convolution and 370 of the linear layer do, at four bytes; 8 and 8 of the norm stay."""
    jobs, usual = (
        frames(simulate_null(digits_scenario(method=method, model=NORMED, backend="null")))["jobs"]
        for method in ("fedbn", "fedavg")
    )
    assert set(jobs["down_bytes"]) == set(jobs["up_bytes"]) == {4 * (40 + 370)}
    assert set(usual["up_bytes"]) == {4 * (40 + 370 + 8 + 8)}
    assert jobs["flops"].tolist() == usual["flops"].tolist()


@pytest.mark.parametrize("kind", ["BatchNorm2d", "GroupNorm", "LayerNorm", "InstanceNorm2d"])
def test_all_kinds_of_normalisation_count(kind):
    """By the class of their module; a linear layer does not."""
    profile = setting_of((1,), {"a": 3, "b": 4}).cost_profile
    normalised = replace(profile, layers=(profile.layers[0], replace(profile.layers[1], kind=kind)))
    assert FedBN().own_layers(normalised) == {"b"}
    assert FedBN().own_layers(profile) == frozenset()


def test_a_model_of_normalisation_alone_is_refused():
    """There would be nothing to share."""
    layers = (LayerCost("a", "LayerNorm", 3, 0, 0.0, 0.0, 0.0, frozenset()),)
    profile = replace(setting_of((1,), {"a": 3}).cost_profile, layers=layers)
    with pytest.raises(ConfigError, match=r"method\.name: must leave at least one"):
        FedBN().own_layers(profile)


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "fedbn": {
        "aggregate_over": "test_fedavg.py::test_absent_devices_may_count_with_the_old_model",
        "weights": "test_fedavg.py::test_devices_may_count_alike",
    },
}
