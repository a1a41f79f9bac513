"""FedBuff against numbers on paper.

Source: Nguyen et al. (2022), algorithm 1.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from edgesim.core.errors import ConfigError, ContractError
from edgesim.learning.aggregate.mean import mean_of_holders
from edgesim.methods.fedbuff import FedBuff
from tests.conftest import digits_scenario, frames
from tests.contracts.support import fingerprint, prepare, run
from tests.methods.hand_made import KEY, message_of, server_of
from tests.plugins.one_number import moved, numbers, scenario
from tests.sizes import full, thinned

TWO = {"name": "buffered", "concurrency": 2, "buffer": 2, "reassign": "same"}


def message(device, delta, weight=1.0, samples=100, buffers=()):
    """Return a message that brings these moves, and running statistics."""
    body = {"delta": {"w": torch.tensor(delta)}, "buffers": {"b": torch.tensor(buffers)}}
    return message_of(device, samples, {})._replace(body=body, weight=weight)


def merged(x, updates, buffers=(), state=None, **settings):
    """Return what FedBuff makes of parameters x and these messages."""
    base = {"params": {"w": torch.tensor(x)}, "buffers": {"b": torch.tensor(buffers)}}
    method = FedBuff(**settings)
    return method.aggregate(state or {"velocity": {}}, base, updates, server_of(), KEY)


def parameters(result):
    """Return the parameters of a merge as a list."""
    return result.model["params"]["w"].tolist()


STALE = [message(0, [-1.0, -2.0]), message(1, [-3.0, 2.0], weight=1 / math.sqrt(1 + 3))]


def test_moves_are_weighted_by_staleness_and_divided_by_their_number():
    """x = (10, 10), moves (-1, -2) and, of staleness 3, (-3, 2): divided by the sum 1.5 it would be (8.33, 9.33)."""
    by_hand = np.array([10, 10]) + (np.array([-1, -2]) + 0.5 * np.array([-3, 2])) / 2
    assert by_hand.tolist() == [8.75, 9.5]
    assert parameters(merged([10.0, 10.0], STALE)) == [8.75, 9.5]
    assert parameters(merged([10.0, 10.0], STALE, eta_g=2.0)) == [7.5, 9.0]


def test_neither_data_sizes_nor_order_matter():
    """The sums are those of (8.75, 9.5)."""
    uneven = [m._replace(samples=n) for m, n in zip(STALE, (1, 999), strict=True)]
    assert parameters(merged([10.0, 10.0], uneven)) == parameters(merged([10.0, 10.0], STALE[::-1])) == [8.75, 9.5]


def test_a_device_may_be_there_twice():
    """Moves 1 and 3 of one device: the mean is 2."""
    assert parameters(merged([0.0], [message(0, [1.0]), message(0, [3.0])])) == [2.0]


def test_momentum_of_the_server():
    """Means 1 and 1 with momentum 0.9: velocities 1 and 1.9, so 0 -> 1 -> 2.9. States are not changed."""
    first = merged([0.0], [message(0, [1.0])], momentum=0.9)
    before = fingerprint(first.state)
    second = merged(parameters(first), [message(0, [1.0])], state=first.state, momentum=0.9)
    assert (parameters(first), parameters(second)) == ([1.0], [pytest.approx(2.9)])
    assert fingerprint(first.state) == before
    assert merged([0.0], [message(0, [1.0])]).state == {"velocity": {}}


def test_running_statistics_go_part_of_the_way():
    """From 2 towards 4 in full and 8 by half: 2 + (1 x 2 + 0.5 x 6) / 2 = 4.5, whatever the server's step."""
    got = [message(0, [0.0], buffers=[4.0]), message(1, [0.0], weight=0.5, buffers=[8.0])]
    for eta_g in (1.0, 3.0):
        assert merged([0.0], got, [2.0], eta_g=eta_g).model["buffers"]["b"].tolist() == [4.5]


def test_a_diverged_device_is_left_out():
    """It counts as if it had not come, in the number as well; if nobody else came the model stays."""
    broken = message(2, [float("nan")])
    result = merged([0.0], [message(0, [1.0]), message(1, [2.0]), broken])
    assert parameters(result) == [1.5]
    assert result.metrics == {"left_out": 1.0}
    assert merged([0.0], [broken]).model is None


def test_moves_are_no_models():
    """Who takes a mean of models is told that these are none."""
    base = {"params": {"w": torch.zeros(2)}, "buffers": {}}
    with pytest.raises(ContractError, match=r"cannot average \['delta'\]"):
        mean_of_holders(base, STALE, [1.0, 1.0])


@pytest.mark.parametrize(
    ("settings", "buffer", "expected"),
    [
        ({}, 2, [(2, 1.0), (3, 0.792893)]),
        ({"eta_g": 0.5}, 1, [(1, 0.5), (2, 1.0), (3, 1.5), (3, 1.0)]),
    ],
)
def test_timeline(settings, buffer, expected):
    """A needs 1 s and moves by +1, B needs 3 s and moves by -2; polynomial staleness.

    By twos: A's first two moves make 1.0 at 2 s; at 3 s A's third, fresh, and B's, one merge old, make
    1 + (1 - 2 / sqrt(2)) / 2. One by one with half steps: 0.5, 1.0, 1.5, and B, three merges old: 1.5 - 0.5 x 2 / 2.
    """
    given = scenario(
        [1, 3], method=moved("Buff", [1, -2], **settings), protocol={**TWO, "buffer": buffer}, backend="serial",
        stop={"rounds": len(expected)},
    )  # fmt: skip
    assert numbers(given)[1] == [pytest.approx(pair, abs=1e-6) for pair in expected]


@pytest.mark.parametrize("model", ["cnn_digits", "tests.plugins.networks:TinyNorm"])
def test_messages_weigh_what_models_weigh(model):
    """Moves of all parameters and all running statistics: the bytes of FedAvg, and of the tensors really sent."""
    given = {"model": model, "backend": "null", "stop": {"rounds": 1}}
    runs = [
        run(digits_scenario(method=method, protocol=protocol, **given))
        for method, protocol in (("fedbuff", TWO), ("fedavg", "sync"))
    ]
    sent = [set(r.tables["jobs"].frame().query("outcome == 'ok'")["up_bytes"]) for r in runs]
    floats = sum(
        t.numel()
        for tensors in prepare(digits_scenario(model=model)).learner.weights().values()
        for t in tensors.values()
    )
    assert sent == [{4 * floats}, {4 * floats}]


def test_one_device_at_a_time_is_sgd():
    """Nobody is stale: x + (w - x) is FedAvg with that device, up to the rounding of a difference."""
    fleet = [{"cpu": {"flops_per_s": "100 MFLOP/s"}}]
    given = {"fleet": fleet, "selection": "all", "partition": {"name": "iid", "samples_per_device": 60}}
    alone = {**TWO, "concurrency": 1, "buffer": 1}
    weights = [
        run(digits_scenario(method=method, protocol=protocol, **given)).learner.weights()["params"]
        for method, protocol in (("fedbuff", alone), ("fedavg", "sync"))
    ]
    for name, tensor in weights[0].items():
        assert tensor.numpy() == pytest.approx(weights[1][name].numpy(), abs=1e-6)


@full
@pytest.mark.parametrize("method", thinned(["fedasync", "fedbuff"], ["fedbuff"]))
def test_it_learns(method):
    """Eighty updates of 4 devices at a time teach most of the digits."""
    buffer = {"fedasync": 1, "fedbuff": 4}[method]
    simulation = run(
        digits_scenario(
            method=method, protocol={"name": "buffered", "concurrency": 4, "buffer": buffer}, selection="all",
            evaluation={"every": 80 // buffer}, stop={"rounds": 80 // buffer},
        )
    )  # fmt: skip
    tables = frames(simulation)
    assert tables["rounds"]["staleness_mean"].max() >= 1
    assert tables["evals"]["accuracy"].iloc[-1] > 0.6


def test_rounds_are_refused():
    """It is a method without rounds."""
    with pytest.raises(ConfigError, match=r"protocol\.name: fedbuff runs on buffered, found deadline"):
        prepare(digits_scenario(method="fedbuff", protocol={"name": "deadline", "deadline": 1}))


@pytest.mark.parametrize("wrong", [{"eta_g": 0}, {"momentum": 1}, {"momentum": -0.1}])
def test_settings_out_of_range(wrong):
    (key,) = wrong
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        digits_scenario(method={"name": "fedbuff", **wrong}, protocol=TWO)


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "fedbuff": {
        "eta_g": "test_moves_are_weighted_by_staleness_and_divided_by_their_number",
        "momentum": "test_momentum_of_the_server",
    },
}
