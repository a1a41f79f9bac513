"""ASO-Fed against numbers on paper, and the mean of the newest models of devices.

Source: Chen, Ning, Slawski and Rangwala (2020), algorithm 1.
"""

from __future__ import annotations

import pytest
import torch

from edgesim.core.errors import ConfigError
from edgesim.methods.aso_fed import ASOFed
from tests.conftest import digits_scenario, frames
from tests.contracts.support import mixed_scenario, prepare, run
from tests.methods.hand_made import KEY, message_of, model_of, server_of, setting_of, view_of
from tests.methods.one_device import Device
from tests.methods.recorded import record
from tests.sizes import full

EACH = {"name": "buffered", "concurrency": 4, "buffer": 1, "staleness": "constant"}
SETTING = setting_of([100, 300], {"w": 1})


def merged(w, state, *arrived, **settings):
    """Return the aggregate of (device, model) pairs at the number w."""
    updates = [message_of(k, int(SETTING.samples[k]), {"w": [new]}) for k, new in arrived]
    server = server_of(view_of(SETTING))
    method = ASOFed(**settings)
    return method.aggregate(state or method.init(SETTING, KEY), model_of({"w": [w]}), updates, server, KEY)


def number(made):
    """Return the number of an aggregate."""
    return made.model["params"]["w.weight"].item()


def test_a_model_replaces_the_last_one_of_its_device():
    """From 1: device 1 of 3/4 of the data brings 5, so 4. Device 0 brings 9: 6. Device 1 brings 1, 4 less: 3."""
    first = merged(1.0, None, (1, 5.0))
    second = merged(4.0, first.state, (0, 9.0))
    third = merged(6.0, second.state, (1, 1.0))
    assert [number(made) for made in (first, second, third)] == [4.0, 6.0, 3.0]
    together = merged(1.0, None, (1, 5.0), (0, 9.0), (1, 1.0))
    assert number(together) == 3.0  # a quarter of 9 and three quarters of 1


def test_past_gradients_are_mixed_in():
    """Gradient 2, `beta` 0.5: steps of 2, then 2 - 2 + 1, then 2 - 2 + 1.5; the next job goes on with 1.75."""
    method = ASOFed(beta=0.5, lam=0.0)
    device = Device(method, [0.0])
    assert device.step([2.0], lr=0.1, steps=1) == pytest.approx([-0.2])
    device = Device(method, [0.0], samples=3)
    assert device.step([2.0], lr=0.1, steps=3) == pytest.approx([-0.45])
    kept = device.kept()
    assert {kind: tensors["w.weight"].item() for kind, tensors in kept.items()} == {"last": 2.0, "mean": 1.5}
    again = Device(method, [0.0], device_state=kept)
    assert again.step([2.0], lr=0.1) == pytest.approx([-0.175])
    assert kept["last"]["w.weight"].item() == 2.0  # as it was


def test_without_decay_steps_are_plain():
    """`beta` 0: g - g' + g', and in the first step g. Different gradients are not mixed."""
    device = Device(ASOFed(beta=0.0, lam=0.0), [0.0])
    assert device.step([2.0], lr=0.1) == pytest.approx([-0.2])
    assert device.step([-5.0], lr=0.1) == pytest.approx([0.3])


def test_the_proximal_term():
    """At 1, received 0: 2 + 0.5 x 1."""
    device = Device(ASOFed(lam=0.5), [0.0]).go_to([1.0])
    assert device.step([2.0], lr=0.1) == pytest.approx([0.75])


def test_features_are_weighted_by_their_softmax():
    """exp(1) to exp(2) in the first row; equal magnitudes halve the second."""
    method, base = ASOFed(features="softmax"), {"params": {}, "buffers": {}}
    new = {"params": {"a.weight": torch.tensor([[1.0, -2.0], [3.0, 3.0]]), "a.bias": torch.ones(2)}, "buffers": {}}
    base = {"params": {name: torch.zeros_like(t) for name, t in new["params"].items()}, "buffers": {}}
    setting = setting_of([100], {"a": 4})
    update = message_of(0, 100, {})._replace(body=new)
    made = method.aggregate(method.init(setting, KEY), base, [update], server_of(view_of(setting)), KEY)
    share = 1 / (1 + 2.718281828459045)
    expected = [[share, -2 * (1 - share)], [1.5, 1.5]]
    torch.testing.assert_close(made.model["params"]["a.weight"], torch.tensor(expected))
    assert made.model["params"]["a.bias"].tolist() == [1.0, 1.0]


# --- runs -------------------------------------------------------------------------------------------------------


def test_the_model_is_the_mean_of_the_newest_models(monkeypatch):
    """Devices without an update count with the first model; data sizes differ."""
    jobs = record(monkeypatch)
    simulation = prepare(
        mixed_scenario(
            method="aso_fed", protocol=EACH, stop={"rounds": 12}, partition={"name": "dirichlet_label", "beta": 0.5}
        )
    )
    first = {name: t.clone().double() for name, t in simulation.learner.weights()["params"].items()}
    simulation.run()
    sizes = torch.tensor(simulation.parts.setting.samples.tolist()).double()
    newest = {job.assignment.device: job.result.body["params"] for job in jobs}
    assert 3 < len(newest) < len(jobs) == 12
    for name, tensor in simulation.learner.weights()["params"].items():
        mean = sum(n / sizes.sum() * newest.get(k, first)[name].double() for k, n in enumerate(sizes))
        torch.testing.assert_close(tensor.double(), mean, rtol=0, atol=1e-6)


def test_the_work_of_mixing():
    """7 FLOPs a parameter and step, 5 without the proximal term; three steps."""
    with_term, without, plain = (
        frames(run(mixed_scenario(method=method, protocol=EACH, stop={"rounds": 1})))["jobs"].set_index("device")
        for method in ("aso_fed", {"name": "aso_fed", "lam": 0}, {"name": "fedasync", "rho": 0})
    )
    device = with_term[with_term["outcome"] == "ok"].index[0]
    base = plain["flops"][device]
    assert with_term["flops"][device] - base == 3 * 7 * 6090  # cnn_digits
    assert without["flops"][device] - base == 3 * 5 * 6090


@full
def test_it_learns():
    """Eighty updates of 4 devices at a time teach most of the digits."""
    tables = frames(
        run(
            digits_scenario(
                method={"name": "aso_fed", "lam": 0.1}, protocol=EACH, selection="all",
                evaluation={"every": 80}, stop={"rounds": 80},
            )
        )
    )  # fmt: skip
    assert tables["evals"]["accuracy"].iloc[-1] > 0.6


@pytest.mark.parametrize("wrong", [{"lam": -1}, {"beta": 1}, {"features": "all"}])
def test_settings_out_of_range(wrong):
    (key,) = wrong
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        digits_scenario(method={"name": "aso_fed", **wrong}, protocol=EACH)


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "aso_fed": {
        "lam": "test_the_proximal_term",
        "beta": "test_past_gradients_are_mixed_in",
        "features": "test_features_are_weighted_by_their_softmax",
    },
}
