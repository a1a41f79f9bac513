"""FedRep against plain PyTorch and prices on paper.

Source: Collins et al. (2021), algorithm 1.
"""

from __future__ import annotations

import pytest

from edgesim.core.backend import Assignment
from edgesim.core.errors import ConfigError
from tests.conftest import digits_scenario, frames, simulate_null
from tests.contracts.support import mixed_scenario, prepare
from tests.methods.hand_made import KEY
from tests.methods.personal_layers import agrees_with_plain_torch
from tests.methods.plain_torch import NORMED_UNITS, PARAMS, trained
from tests.sizes import spread

FORWARD = 18432 + 147456 + 2560  # FLOPs a sample of cnn_digits: two convolutions and the linear layer
HEAD = FORWARD + 2560  # and the gradient of its weights; nothing lies before it that is trained
BODY = FORWARD + (18432 + 147456) + (147456 + 2560)  # gradients of weights, and of inputs but for the pictures


@pytest.mark.parametrize(
    ("model", "method", "own"),
    spread(
        [
            ("cnn_digits", {"head_epochs": 2, "body_epochs": 1}, ["fc1"]),
            ("cnn_digits", {"personal_layers": ["conv2", "fc1"], "body_epochs": 2}, ["conv2", "fc1"]),
            (NORMED_UNITS, {"head_epochs": 1, "body_epochs": 1}, ["fc2"]),
            (NORMED_UNITS, {"personal_layers": 2}, ["norm", "fc2"]),
        ],
        1,
    ),
)
def test_three_rounds_in_plain_torch(monkeypatch, model, method, own):
    """A device's head, then the body received with its head at rest; statistics of layers at rest do not move."""

    def train(job, start):
        names = {name for name, module in job.trainer.module.named_modules() if name}
        after = trained(job, start, 0, own)
        return trained(job, after, 1, sorted(names.difference(own)))

    agrees_with_plain_torch(monkeypatch, {"name": "fedrep", **method}, own, train, model=model)


@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.0, 0.0), (0.5, 0.1)])
def test_layers_at_rest_keep_their_bits(momentum, weight_decay):
    """Momentum and weight decay do not move them either. 40 samples in batches of 16 are three steps a phase.

    Cut off after the first phase the body is as it was received; the second one leaves the head where the first did.
    """
    training = {"batch": 16, "lr": 0.1, "momentum": momentum, "weight_decay": weight_decay}
    simulation = prepare(mixed_scenario(method="fedrep", training=training))
    task = simulation.learner.plan(simulation.session.view()).orders[0].task
    base, trainer = simulation.learner.weights(), simulation.parts.make_trainer("cpu")
    for steps, moves in ((3, {"fc1"}), (6, {"conv1", "conv2"})):
        result = trainer.run(Assignment(0, 0, task, KEY, base, None, steps=steps))
        new = {**result.body["params"], **result.new_device_state["params"]}
        moved = {n.rpartition(".")[0] for n, t in new.items() if not t.equal(base["params"][n])}
        assert moved == {"fc1"} | moves
        if steps == 3:
            head = result.new_device_state["params"]
        else:
            assert all(t.equal(head[n]) for n, t in result.new_device_state["params"].items())


@pytest.mark.parametrize(("head_epochs", "body_epochs", "local_epochs"), [(1, 1, 1), (3, 1, 1), (None, 2, 3)])
def test_work_and_bytes(head_epochs, body_epochs, local_epochs):
    """40 samples an epoch; the head's epochs save the gradients of the body, the body's those of the head's weights."""
    method = {"name": "fedrep", "body_epochs": body_epochs}
    method |= {} if head_epochs is None else {"head_epochs": head_epochs}
    scenario = digits_scenario(
        method=method,
        training={"batch": 16, "local_epochs": local_epochs},
        partition={"name": "iid", "samples_per_device": 40},
        backend="null",
    )
    jobs = frames(simulate_null(scenario))["jobs"]
    expected = 40 * ((head_epochs or local_epochs) * HEAD + body_epochs * BODY)
    assert jobs["flops"].tolist() == pytest.approx([expected] * len(jobs), rel=1e-12)
    assert set(jobs["down_bytes"]) == set(jobs["up_bytes"]) == {4 * (PARAMS["conv1"] + PARAMS["conv2"])}


def test_the_optimiser_updates_what_each_phase_trains():
    """Counted too, 2 FLOPs a parameter and step: three steps an epoch, two epochs of the head and one of the body."""
    scenarios = [
        digits_scenario(
            method={"name": "fedrep", "head_epochs": 2},
            cost={"name": "measured", "include": "all"},
            training={"batch": 16, "weight_decay": decay},
            partition={"name": "iid", "samples_per_device": 40},
            backend="null",
        )
        for decay in (0.0, 0.1)
    ]
    plain, decayed = (frames(simulate_null(scenario))["jobs"]["flops"] for scenario in scenarios)
    updated = 3 * (2 * PARAMS["fc1"] + PARAMS["conv1"] + PARAMS["conv2"])
    assert (decayed - plain).tolist() == pytest.approx([2 * updated] * len(plain))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("personal_layers", 0),
        ("personal_layers", 3),
        ("personal_layers", ["fc"]),
        ("head_epochs", 0),
        ("body_epochs", 0),
    ],
)
def test_settings_out_of_range(key, value):
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        simulate_null(digits_scenario(method={"name": "fedrep", key: value}, backend="null"))


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "fedrep": {
        "aggregate_over": "test_fedavg.py::test_absent_devices_may_count_with_the_old_model",
        "weights": "test_fedavg.py::test_devices_may_count_alike",
        "personal_layers": "test_three_rounds_in_plain_torch",
        "head_epochs": "test_work_and_bytes",
        "body_epochs": "test_work_and_bytes",
    },
}
