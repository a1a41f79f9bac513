"""LAQ against numbers on paper, FedSGD, and algorithm 2 in NumPy on the gradients of PyTorch.

Source: Sun, Chen, Giannakis and Yang (2019), algorithm 2; Chen, Giannakis, Sun and Yin (2018).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from edgesim.core.errors import ConfigError
from edgesim.core.local_sgd import Training
from edgesim.core.task import Task
from edgesim.core.update import Update
from edgesim.methods.laq import LAQ, on_grid
from tests.conftest import digits_scenario, frames
from tests.contracts.support import MODELS, mixed_scenario, prepare, run
from tests.methods.hand_made import KEY, model_of, server_of, setting_of, view_of
from tests.methods.plain_torch import flat, gradient, network_of
from tests.methods.recorded import record
from tests.sizes import spread

SETTING = setting_of([100, 300], {"w": 2}, training=Training(lr=0.5))


def told(device, uploads):
    """Return the first message of a device in a round."""
    return Update(device, device, Task(), {}, int(SETTING.samples[device]), 1, 0, {"uploads": float(uploads)})


def sent(device, change):
    """Return an upload."""
    return told(device, 1)._replace(body={"change": {"w.weight": torch.tensor(change)}, "buffers": {}}, statistics={})


def vector(tensors):
    """Return the numbers of tensors as one vector."""
    return np.concatenate([t.double().numpy().ravel() for t in tensors.values()])


def stepped(start, state, *updates, **settings):
    """Return the aggregate of a round that begins at the model `start`."""
    return LAQ(**settings).aggregate(state, model_of({"w": start}), updates, server_of(view_of(SETTING)), KEY)


@pytest.mark.parametrize(("bits", "expected"), [(1, [4.0, -2.0, 1.0]), (2, [4.0, 0.0, 1.0])])
def test_the_grid_on_paper(bits, expected):
    """Around (1, 1, -2) with R = 3, changes of 2.9999, -1.4 and 3. One bit: -3 or 3. Two bits: -3, -1, 1 or 3."""
    held = {"w": torch.tensor([1.0, 1.0, -2.0])}
    found = on_grid({"w": torch.tensor([3.9999, -0.4, 1.0])}, held, bits)["w"].tolist()
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("bits", [1, 3, 8])
def test_the_grid_s_error_is_at_most_half_a_step(bits):
    """Sun et al.: the largest error is tau R, tau = 1 / (2^b - 1)."""
    drawn = np.random.default_rng(0)
    g, held = ({"w": torch.tensor(drawn.normal(size=500))} for _ in range(2))
    width = float((g["w"] - held["w"]).abs().max())
    error = (on_grid(g, held, bits)["w"] - g["w"]).abs()
    assert float(error.max()) <= width / (2**bits - 1) * (1 + 1e-12)
    assert len(np.unique(((on_grid(g, held, bits)["w"] - held["w"]) / width).numpy().round(9))) <= 2**bits
    assert on_grid(held, held, bits)["w"].equal(held["w"])


def test_steps_go_along_all_last_gradients():
    """Changes (1, 0) and (1, 2) sum to (2, 2): w = (1, 1) - 0.5 (2, 2). Then only device 1 changes, by (-2, 0)."""
    first = stepped(
        [1.0, 1.0], LAQ().init(SETTING, KEY), told(0, 1), told(1, 1), sent(0, [1.0, 0.0]), sent(1, [1.0, 2.0])
    )
    assert first.model["params"]["w.weight"].tolist() == [0.0, 0.0]
    assert first.state["squares"] == [2.0]
    assert first.metrics == {"uploaded": {0: 1.0, 1: 1.0}}
    second = stepped([0.0, 0.0], first.state, told(0, 0), told(1, 1), sent(1, [-2.0, 0.0]))
    assert second.model["params"]["w.weight"].tolist() == [0.0, -1.0]
    assert second.state["squares"] == [1.0, 2.0]
    assert second.metrics == {"uploaded": {0: 0.0, 1: 1.0}}
    third = stepped([0.0, -1.0], second.state, told(0, 0), told(1, 0), differences=2)
    assert third.model["params"]["w.weight"].tolist() == [0.0, -2.0]
    assert third.state["squares"] == [1.0, 1.0]


def test_nothing_heard_is_no_step():
    """Neither without any message nor before the first gradient."""
    state = LAQ().init(SETTING, KEY)
    assert stepped([1.0, 1.0], state).model is None
    assert stepped([1.0, 1.0], state, told(0, 1)).model is None


def test_the_criterion_travels_with_the_model():
    """0.08 x (3 + 5) / (0.5 x 2)^2, and 4 bytes down; the flag is 1 byte."""
    state = {**LAQ().init(SETTING, KEY), "squares": [3.0, 5.0]}
    plan = LAQ().plan(state, view_of(SETTING), KEY)
    assert plan.more
    for order in plan.orders:
        assert order.task.config == {"least": pytest.approx(0.08 * 8), "samples": 400.0}
        assert SETTING.cost_profile.nbytes(order.task.down) == 4 * 2 + 4
        assert SETTING.cost_profile.nbytes(order.task.up) == 1


# --- runs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_without_threshold_and_rounding_it_is_fedsgd(model, monkeypatch):
    """`xi` 0 and 32 bits: a sum of gradients by data size, so FedSGD up to the rounding of sums."""
    jobs = record(monkeypatch)
    laq, fedsgd = (
        run(mixed_scenario(method=method, model=model, stop={"rounds": 3})).learner.weights()
        for method in ({"name": "laq", "bits": 32, "xi": 0.0}, "fedsgd")
    )
    assert jobs
    for kind, tensors in fedsgd.items():
        for name, tensor in tensors.items():
            torch.testing.assert_close(laq[kind][name], tensor, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "settings", spread([{"bits": 10, "xi": 0.01}, {"longest": 2, "xi": 0.8}, {"bits": 32, "xi": 0.01}], 1)
)
def test_rounds_are_algorithm_2_in_numpy(settings, monkeypatch):
    """Gradients of plain PyTorch at the run's own models; who uploads, what the server knows, and where it steps."""
    jobs = record(monkeypatch)
    rounds, lr = 8, 0.5
    simulation = run(
        mixed_scenario(
            method={"name": "laq", **settings}, training={"lr": lr}, stop={"rounds": rounds},
            partition={"name": "dirichlet_label", "beta": 0.5},
        )
    )  # fmt: skip
    asked = [job for job in jobs if job.assignment.task.local_sgd]
    metrics = frames(simulation)["metrics"]
    devices, bits, xi, longest = 6, settings.get("bits", 4), settings.get("xi", 0.08), settings.get("longest", 100)
    sizes = np.array([len(asked[0].trainer.shards[k]) for k in range(devices)])
    held, errors, clocks, squares, before = {}, np.zeros(devices), np.zeros(devices), [], None
    uploads = 0
    for round_ in range(rounds):
        of_round = sorted(asked[devices * round_ : devices * (round_ + 1)], key=lambda job: job.assignment.device)
        start = vector(of_round[0].assignment.global_model["params"])
        if before is not None:
            total = sum(held.values())
            # rounding of a float takes a few numbers to the next point of the grid
            assert (abs(start - (before - lr * total)) < 2e-6).mean() > 0.999
            squares = [((start - before) ** 2).sum(), *squares][:10]
        before = start
        for k, job in enumerate(of_round):
            ((x, y),) = job.batches()
            slopes = gradient(network_of(job, flat(job.assignment.global_model)), x, y)
            g = sizes[k] / sizes.sum() * vector(slopes)
            last = held.get(k, np.zeros_like(g))
            width = abs(g - last).max()
            tau = 1 / (2**bits - 1)
            q = last - width + 2 * tau * width * np.floor((g - last + width) / (2 * tau * width) + 0.5)
            q = g if bits == 32 else q
            error = ((g - q) ** 2).sum()
            right = xi * sum(squares) / (lr * devices) ** 2 + 3 * (error + errors[k])
            goes = k not in held or clocks[k] >= longest or ((q - last) ** 2).sum() >= right
            named = metrics[(metrics["round"] == round_) & (metrics["device"] == k)].set_index("name")["value"]
            assert named["uploaded"] == goes, (round_, k)
            uploads += goes
            if goes:
                held[k], errors[k], clocks[k] = q, error, 0
            else:
                clocks[k] += 1
    assert devices < uploads < rounds * devices


def test_bytes_of_both_exchanges():
    """cnn_digits: 6090 numbers of 4 bits, 4 bytes for R. With 32 bits float32 as it is."""
    for bits, nbytes in ((4, 6090 * 4 // 8 + 4), (7, -(-6090 * 7 // 8) + 4), (32, 4 * 6090)):
        jobs = frames(run(mixed_scenario(method={"name": "laq", "bits": bits})))["jobs"]
        first, second = jobs[jobs["task"] != "upload"], jobs[jobs["task"] == "upload"]
        assert set(first["up_bytes"]) == {1} and set(first["down_bytes"]) == {4 * 6090 + 4}
        assert set(second["up_bytes"]) == {nbytes} and set(second["down_bytes"]) == {0}
        assert len(second[second["round"] == 0]) == 6  # none has told the server anything yet


def test_batches_may_be_drawn():
    """A batch of ten is one step of ten samples, which makes it stochastic LAQ."""
    simulation = prepare(mixed_scenario(method={"name": "laq", "batch_size": 10}))
    plan = simulation.learner.plan(simulation.session.view())
    assert {order.task.local_sgd[0].batch for order in plan.orders} == {10}


@pytest.mark.parametrize("wrong", [{"bits": 0}, {"bits": 33}, {"differences": 0}, {"xi": -1}, {"longest": 0}])
def test_settings_out_of_range(wrong):
    (key,) = wrong
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        digits_scenario(method={"name": "laq", **wrong})


def test_other_encodings_are_refused():
    with pytest.raises(ConfigError, match=r"encoding\.up: laq sends method\.bits"):
        prepare(mixed_scenario(method="laq", encoding={"up": {"values": "int8"}}))


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "laq": {
        "batch_size": "test_batches_may_be_drawn",
        "bits": "test_bytes_of_both_exchanges",
        "differences": "test_steps_go_along_all_last_gradients",
        "xi": "test_the_criterion_travels_with_the_model",
        "longest": "test_rounds_are_algorithm_2_in_numpy",
    },
}
