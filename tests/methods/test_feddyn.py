"""FedDyn against numbers on paper.

Source: Acar et al. (2021), algorithm 1; its authors' published code for clipping and scaled alphas.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from edgesim.core.errors import ConfigError
from edgesim.methods.feddyn import FedDyn
from tests.conftest import digits_scenario, frames
from tests.contracts.support import COORDINATORS, mixed_scenario, run
from tests.methods.hand_made import KEY, message_of, model_of, server_of, setting_of, view_of
from tests.methods.one_device import Device, flops_on_top

ALPHA = 0.1
RECEIVED = [1.0, -1.0]
G = ([0.1, 0.0], [0.0, 0.2])  # of the paper, as are h and the sheet's numbers: -alpha times what is kept
MODELS = ([0.6, -0.5], [0.8, -1.4])


def owning(g, alpha=ALPHA):
    """Return what a device with the paper's g_k keeps."""
    return {"moved": {"w.weight": -torch.tensor(g) / alpha}}


def merged(h, models, samples=(1, 1, 1, 1), global_model=RECEIVED, **settings):
    """Return the paper's h and the model after a merge of these models by device."""
    state = {"moved": {"w.weight": -torch.tensor(h, dtype=torch.float64) / ALPHA}}
    got = [message_of(k, samples[k], {"w": model}) for k, model in enumerate(models)]
    view = view_of(setting_of(samples, {"w": len(global_model)}))
    after = FedDyn(alpha=ALPHA, **settings).aggregate(state, model_of({"w": global_model}), got, server_of(view), KEY)
    h = (-ALPHA * after.state["moved"]["w.weight"]).tolist()
    return h, None if after.model is None else after.model["params"]["w.weight"].tolist(), after.metrics


@pytest.mark.parametrize(
    ("device", "scale", "expected"), [(0, False, [0.14, -0.05]), (1, False, [0.02, 0.24]), (0, True, [0.18, -0.1])]
)
def test_what_a_device_remembers(device, scale, expected):
    """g - alpha (w_k - w): 0.1 - 0.1 (0.6 - 1) = 0.14, 0 - 0.1 (-0.5 + 1) = -0.05; with twice the alpha 0.18, -0.1."""
    alpha = 2 * ALPHA if scale else ALPHA
    settings, config = ({"scale_alpha": True}, {"mean_samples": 2.0}) if scale else ({}, {})
    worker = Device(FedDyn(alpha=ALPHA, **settings), RECEIVED, owning(G[device], alpha), **config)
    moved = worker.go_to(MODELS[device]).kept()["moved"]["w.weight"]
    assert (-alpha * moved).tolist() == pytest.approx(expected, abs=1e-6)


def test_the_server_goes_beyond_the_mean():
    """h = (0.02, 0.01) - 0.1 / 4 x (-0.6, 0.1) and the plain mean (0.7, -0.95) - h / 0.1, whatever the data sizes."""
    for samples in ((1, 1, 1, 1), (9, 1, 5, 5)):
        h, model, _ = merged([0.02, 0.01], MODELS, samples)
        assert h == pytest.approx([0.035, 0.0075], abs=1e-6)
        assert model == pytest.approx([0.35, -1.025], abs=1e-6)


def test_a_step():
    """g_1 = (0.1, 0), gradient of the loss (0.3, 0.3) at (0.9, -0.9): 0.3 - 0.1 + 0.1 (0.9 - 1) = 0.19, and 0.31."""
    device = Device(FedDyn(alpha=ALPHA), RECEIVED, owning(G[0])).go_to([0.9, -0.9])
    assert device.step([0.3, 0.3], lr=0.1) == pytest.approx([0.881, -0.931], abs=1e-6)


def test_a_device_that_never_took_part_has_no_memory():
    """Then only the distance counts: 0.3 + 0.1 (0.9 - 1) = 0.29 and 0.3 + 0.1 (-0.9 + 1) = 0.31."""
    device = Device(FedDyn(alpha=ALPHA), RECEIVED).go_to([0.9, -0.9])
    assert device.step([0.3, 0.3], lr=1.0) == pytest.approx([0.61, -1.21], abs=1e-6)


@pytest.mark.parametrize(
    ("clip", "expected"), [(10.0, [6.1, 7.9]), (100.0, [30.1, 39.9]), (float("inf"), [30.1, 39.9])]
)
def test_only_the_gradient_of_the_loss_is_clipped(clip, expected):
    """(30, 40) has length 50: clipped to 10 it is (6, 8). 0.1 x (2 - 1) and 0.1 x (-2 + 1) come on top."""
    device = Device(FedDyn(alpha=ALPHA, clip_norm=clip), RECEIVED).go_to([2.0, -2.0])
    assert device.step([30.0, 40.0], lr=1.0) == pytest.approx(np.array([2, -2]) - expected, abs=1e-4)


def test_alpha_by_data_size():
    """Devices have 2 samples on average. With 1 its alpha is 0.2, with 4 it is 0.05; the loss has no slope here."""
    for samples, alpha in ((1, 0.2), (4, 0.05)):
        method = FedDyn(alpha=ALPHA, scale_alpha=True)
        device = Device(method, [0.0], samples=samples, mean_samples=2.0).go_to([1.0])
        assert device.step([0.0], lr=1.0) == pytest.approx([1 - alpha], abs=1e-6)
    (order, *_) = FedDyn(scale_alpha=True).plan({}, view_of(setting_of((1, 1, 4), {"w": 1})), KEY).orders
    assert order.task.config == {"mean_samples": 2.0}


def test_server_and_devices_remember_the_same():
    """After rounds in which some are late, the server's sum is the mean of all devices' own, absent ones 0."""
    simulation = run(mixed_scenario(method="feddyn", protocol=COORDINATORS["deadline"], stop={"rounds": 4}))
    memory, state = simulation.learner.memory, simulation.learner.state
    assert len(memory) == 4  # of six
    for name, moved in state["moved"].items():
        of_devices = sum(own["moved"][name].double() for own in memory.values()) / 6
        assert moved.numpy() == pytest.approx(of_devices.numpy(), abs=1e-6)


def test_a_model_out_of_range_leaves_the_server_as_it_was():
    """3e38 is a number, 3e38 + 3e38 / 4 is not; a device that diverged remembers what it did before."""
    h, model, metrics = merged([0.0, 0.0], [[3e38, 0.0]], global_model=[0.0, 0.0])
    assert (h, model, metrics) == ([0, 0], None, {"not_finite": 1.0})
    assert Device(FedDyn(), RECEIVED).go_to([float("nan"), 0.0]).kept() is None


def test_the_regulariser_costs_four_flops_a_parameter_and_step():
    """The CNN of the digits has 6090 parameters; nothing else is sent."""
    assert set(flops_on_top("feddyn")) == {4 * 6090}
    jobs = frames(run(mixed_scenario(method="feddyn", backend="null", stop={"rounds": 1})))["jobs"]
    assert set(jobs["up_bytes"]) == {4 * 6090}


@pytest.mark.parametrize("wrong", [{"alpha": 0}, {"clip_norm": 0}])
def test_settings_out_of_range(wrong):
    (key,) = wrong
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        digits_scenario(method={"name": "feddyn", **wrong})


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "feddyn": {
        "alpha": "test_a_step",
        "scale_alpha": "test_alpha_by_data_size",
        "clip_norm": "test_only_the_gradient_of_the_loss_is_clipped",
    },
}
