"""CMFL against numbers on paper, FedAvg, and NumPy's count of signs.

Source: Wang, Wang and Li (2019), algorithm 1.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from edgesim.core.errors import ConfigError
from edgesim.core.task import Task
from edgesim.core.update import Update
from edgesim.methods.cmfl import CMFL, relevance
from tests.conftest import digits_scenario, frames
from tests.contracts.support import MODELS, fingerprint, mixed_scenario, prepare, run
from tests.methods.hand_made import KEY, merged_layers, message_of, model_of, server_of, setting_of, view_of
from tests.methods.recorded import record

SETTING = setting_of([100, 300, 100], {"w": 2})


def notice(device, share):
    """Return the first message of a device in a round."""
    return Update(device, device, Task(), {}, int(SETTING.samples[device]), 1, 0, {"relevance": share})


def asked(shares, round_=0, **settings):
    """Return the devices that are asked for their models after these notices."""
    method = CMFL(**settings)
    server = server_of(view_of(SETTING, round_))
    state = method.on_exchange(method.init(SETTING, KEY), [notice(*pair) for pair in shares.items()], server, KEY)
    plan = method.plan(state, dataclasses.replace(view_of(SETTING, round_), exchange=1), KEY)
    assert not plan.more
    return [order.device for order in plan.orders]


def test_relevance_is_the_share_of_equal_signs():
    """Signs + - 0 + against + + 0 -: the first and the third agree, a half. Without a last move all agree."""
    move = {"w": torch.tensor([0.1, -2.0, 0.0]), "b": torch.tensor([3.0])}
    last = {"w": torch.tensor([1, 1, 0], dtype=torch.int8), "b": torch.tensor([-1], dtype=torch.int8)}
    assert relevance(move, last) == 0.5
    assert relevance(move, {}) == 1.0


def test_the_relevant_upload():
    """A relevance of the threshold itself is enough; what diverged has none."""
    shares = {0: 0.6, 1: 0.59, 2: float("nan")}
    assert asked(shares, threshold=0.6) == [0]
    assert asked(shares, threshold=0.0) == [0, 1]
    assert asked(shares, threshold=0.7) == []


def test_the_threshold_falls_with_the_root_of_rounds():
    """0.8 in the first round is 0.4 in the fourth, unless it stays."""
    shares = {0: 0.41, 1: 0.39}
    assert asked(shares, round_=3) == [0]
    assert asked(shares, round_=3, decay="none") == []


def test_uploads_are_averaged_by_data_size():
    """Models 2 of 100 samples and 6 of 300: 5. Nothing arrives: the model stays."""
    notices = [notice(k, 1.0) for k in range(3)]
    models = [message_of(0, 100, {"w": [2.0, 0.0]}), message_of(1, 300, {"w": [6.0, 4.0]})]
    assert merged_layers(CMFL(), SETTING, {"w": [1.0, 1.0]}, [*notices, *models])["w"] == [5.0, 3.0]
    made = CMFL().aggregate({}, model_of({"w": [1.0, 1.0]}), notices, server_of(view_of(SETTING)), KEY)
    assert (made.model, made.state) == (None, {"relevant": None})
    assert made.metrics == {"relevance": dict.fromkeys(range(3), 1.0), "uploaded": dict.fromkeys(range(3), 0.0)}


# --- runs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_at_a_threshold_of_zero_it_is_fedavg(model):
    """Bit for bit, as all devices upload."""
    cmfl, fedavg = (
        run(mixed_scenario(method=method, model=model, stop={"rounds": 3}))
        for method in ({"name": "cmfl", "threshold": 0}, "fedavg")
    )
    assert fingerprint(cmfl.learner.weights()) == fingerprint(fedavg.learner.weights())


def test_relevance_of_real_training(monkeypatch):
    """NumPy: signs of a device's move against signs of the global model's, round by round."""
    jobs = record(monkeypatch)
    simulation = run(mixed_scenario(method={"name": "cmfl", "threshold": 0.69, "decay": "none"}, stop={"rounds": 4}))
    metrics = frames(simulation)["metrics"]

    def flat(model):
        return np.concatenate([t.numpy().ravel() for t in model["params"].values()])

    trained = [job for job in jobs if job.assignment.task.local_sgd]
    start = {}
    for place, job in enumerate(trained):
        round_, device = place // 6, job.assignment.device
        start[round_] = flat(job.assignment.global_model)
        expected = 1.0
        if round_:
            moved = flat(job.result.new_device_state) - start[round_]
            expected = (np.sign(moved) == np.sign(start[round_] - start[round_ - 1])).mean()
        of_device = metrics[(metrics["round"] == round_) & (metrics["device"] == device)].set_index("name")["value"]
        assert of_device["relevance"] == expected
        assert of_device["uploaded"] == (expected >= 0.69)
    assert 0 < metrics[metrics["name"] == "uploaded"]["value"].mean() < 1


def test_only_the_relevant_pay_for_a_model():
    """All download the model and send 4 bytes. Those that upload send 4 P more, in the same round."""
    simulation = run(mixed_scenario(method={"name": "cmfl", "threshold": 0.69, "decay": "none"}, stop={"rounds": 4}))
    jobs, metrics = frames(simulation)["jobs"], frames(simulation)["metrics"]
    whole = 4 * sum(layer.params for layer in simulation.parts.setting.cost_profile.layers)
    trains, uploads = (jobs[jobs["task"] == task] for task in ("train", "upload"))
    assert set(trains["up_bytes"]) == {4} and set(trains["down_bytes"]) == {whole}
    assert set(uploads["up_bytes"]) == {whole} and set(uploads["down_bytes"]) == {0}
    said = metrics[(metrics["name"] == "uploaded") & (metrics["value"] == 1)]
    assert sorted(zip(uploads["round"], uploads["device"], strict=True)) == sorted(
        zip(said["round"], said["device"], strict=True)
    )
    assert 6 <= len(uploads) < len(trains)


def test_a_model_that_stayed_leaves_the_last_move():
    """After a round without uploads the relevance is still a share of signs, and not that against zeros."""
    simulation = run(mixed_scenario(method={"name": "cmfl", "threshold": 0.95, "decay": "none"}, stop={"rounds": 4}))
    means = frames(simulation)["metrics"].groupby(["name", "round"])["value"].mean()
    assert means["uploaded"].tolist() == [1, 0, 0, 0]
    assert means["relevance"][0] == 1.0
    assert min(means["relevance"][1:]) > 0.6 and max(means["relevance"][1:]) < 0.8


def test_the_check_costs_four_flops_a_parameter():
    """A job trains as FedAvg's does, once 4 P more."""
    cmfl, fedavg = (
        frames(run(mixed_scenario(method=method, stop={"rounds": 1})))["jobs"] for method in ("cmfl", "fedavg")
    )
    more = cmfl[cmfl["task"] == "train"]["flops"].to_numpy() - fedavg["flops"].to_numpy()
    assert set(more) == {4 * 6090}  # cnn_digits


@pytest.mark.parametrize("wrong", [{"threshold": 1.5}, {"threshold": -0.1}, {"decay": "linear"}])
def test_settings_out_of_range(wrong):
    (key,) = wrong
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        digits_scenario(method={"name": "cmfl", **wrong})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"protocol": {"name": "deadline", "deadline": "1 h"}}, r"protocol\.name: cmfl runs on sync, found deadline"),
        ({"backend": "null"}, r"backend\.name: cmfl plans from training results"),
    ],
)
def test_what_it_does_not_run_on_is_refused(changes, says):
    with pytest.raises(ConfigError, match=says):
        prepare(mixed_scenario(method="cmfl", **changes))


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "cmfl": {
        "threshold": "test_the_relevant_upload",
        "decay": "test_the_threshold_falls_with_the_root_of_rounds",
    },
}
