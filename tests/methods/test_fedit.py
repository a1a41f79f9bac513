"""FedIT against FedAvg."""

from __future__ import annotations

import pytest

from edgesim.methods.fedit import FedIT
from tests.conftest import frames
from tests.contracts.support import WITH_ADAPTERS, fingerprint, mixed_scenario, run
from tests.methods.adapted import merged, update


def test_matrices_by_hand():
    """A quarter and three quarters of the data: the means of A and B, whose product is not the mean product."""
    updates = [
        update(0, 25, [[4, 0, 0], [0, 0, 0]], [[4, 0], [0, 0]], 4.0),
        update(1, 75, [[0] * 3] * 2, [[0] * 2] * 2),
    ]
    params = merged(FedIT(), None, updates[1].body, updates).model["params"]
    assert params["l.lora_A.default.weight"].tolist() == [[1, 0, 0], [0, 0, 0]]
    assert params["l.lora_B.default.weight"].tolist() == [[1, 0], [0, 0]]
    assert params["head.weight"].tolist() == [1]


@pytest.mark.parametrize("model", list(WITH_ADAPTERS.values()))
def test_it_is_fedavg_bit_for_bit(model):
    runs = [run(mixed_scenario(method=method, model=model)) for method in ("fedit", "fedavg")]
    assert fingerprint(runs[0].learner.weights()) == fingerprint(runs[1].learner.weights())
    assert frames(runs[0])["jobs"]["up_bytes"].tolist() == frames(runs[1])["jobs"]["up_bytes"].tolist()


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "fedit": {
        "aggregate_over": "test_fedavg.py::test_absent_devices_may_count_with_the_old_model",
        "weights": "test_fedavg.py::test_devices_may_count_alike",
    }
}
