"""FedExP against numbers on paper.

Source: Jhunjhunwala et al. (2023), algorithm 1.
"""

from __future__ import annotations

import math

import pytest

from edgesim.methods.fedexp import FedExP
from tests.conftest import frames
from tests.contracts.support import mixed_scenario, prepare
from tests.methods.hand_made import KEY, message_of, model_of, server_of
from tests.sizes import full


def merged(method, models, sizes):
    """Return what a method makes of models of two weights that start from (1, 1), and its metrics."""
    got = [message_of(k, size, {"w": list(model)}) for k, (model, size) in enumerate(zip(models, sizes, strict=True))]
    result = method.aggregate({}, model_of({"w": [1.0, 1.0]}), got, server_of(), KEY)
    return result.model["params"]["w.weight"].tolist(), result.metrics


def test_moves_that_differ_are_extrapolated():
    """Moves (4, 0) and (0, 4) of equal shares: mean (2, 2), eta = (16 + 16) / (2 x 2 x 8) = 1 at epsilon 0.

    Moves (4, 2) and (-2, 2): mean (1, 2), eta = (20 + 8) / (2 x 2 x 5) = 1.4, so the step is (1.4, 2.8).
    """
    method = FedExP(epsilon=0.0)
    assert merged(method, [(5, 1), (1, 5)], (50, 50)) == (pytest.approx([3, 3]), {"server_step": pytest.approx(1.0)})
    model, metrics = merged(method, [(5, 3), (-1, 3)], (50, 50))
    assert (model, metrics["server_step"]) == (pytest.approx([2.4, 3.8]), pytest.approx(1.4))


def test_shares_of_the_data_weigh_moves():
    """Shares 0.25 and 0.75 of moves (4, 0) and (-4, 0): mean (-2, 0), eta = 16 / (2 x (4 + 1)) = 1.6."""
    model, metrics = merged(FedExP(epsilon=1.0), [(5, 1), (-3, 1)], (25, 75))
    assert (model, metrics["server_step"]) == (pytest.approx([1 - 3.2, 1]), pytest.approx(1.6))


def test_moves_that_agree_are_averaged():
    """One device, or devices that move alike: eta is 1, as a mean of moves is never longer than the moves are."""
    for models, sizes in (([(0.8, 1.1)], [10]), ([(0.8, 1.1), (0.8, 1.1)], [10, 30])):
        assert merged(FedExP(), models, sizes) == (pytest.approx([0.8, 1.1]), {"server_step": 1.0})


def test_the_server_is_charged_for_norms():
    """Three FLOPs a parameter of each of four updates and of their mean, beside those of averaging."""
    seconds = {}
    for method in ("fedavg", "fedexp"):
        server = {"flops_per_s": 1e6, "workers": 1, "idle": 0, "busy": 1}
        simulation = prepare(mixed_scenario(method=method, server=server, stop={"rounds": 1}, backend="null"))
        simulation.run()
        rounds = frames(simulation)["rounds"]
        seconds[method], updates = rounds["server_s"].iloc[0], rounds["used"].iloc[0]
    assert seconds["fedexp"] - seconds["fedavg"] == pytest.approx(3 * (updates + 1) * 6090 / 1e6)


@full
def test_it_moves_further_than_fedavg_on_skewed_data():
    """On real data of one class each devices disagree: the first step of the server is longer than the mean."""
    norms, partition = {}, {"name": "x_class", "x": 1, "samples_per_device": 40}
    training = {"batch": 4, "lr": 0.1, "local_epochs": 5}
    for method in ("fedavg", "fedexp"):
        simulation = prepare(mixed_scenario(method=method, partition=partition, training=training, stop={"rounds": 1}))
        first = simulation.learner.weights()
        simulation.run()
        new = simulation.learner.weights()
        change = [(new["params"][name] - old).double().square().sum() for name, old in first["params"].items()]
        norms[method] = math.sqrt(math.fsum(map(float, change)))
    assert norms["fedexp"] > 1.01 * norms["fedavg"]


# The test of each key of the method.
OPTIONS = {"fedexp": {"epsilon": "test_shares_of_the_data_weigh_moves"}}
