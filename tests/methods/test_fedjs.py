"""FedJS against the numbers of three devices, and what it asks of devices.

Source: "Efficient Federated Learning with Heterogeneous Data and Adaptive Dropout", arXiv 2507.10430.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgesim.core.errors import ConfigError
from edgesim.methods.fedjs import FedJS
from tests.conftest import digits_scenario, frames
from tests.contracts.support import fingerprint, mixed_scenario, prepare, run
from tests.methods.hand_made import KEY, message_of, model_of, server_of, setting_of, view_of

COUNTS = np.array([[10, 0, 0, 0], [5, 5, 5, 5], [0, 2, 8, 10]])
MODELS = [[1.0, 0.0], [0.0, 1.0], [-1.0, 2.0]]
SETTING = setting_of((10, 20, 20), {"w": 2}, labels=COUNTS)


def merge(method, devices=(0, 1, 2), weights=None):
    """Return what a method makes of these devices' models, from its first state; the protocol's weights by device."""
    got = [
        message_of(k, int(SETTING.samples[k]), {"w": MODELS[k]})._replace(weight=(weights or {}).get(k, 1.0))
        for k in devices
    ]
    state = method.init(SETTING, KEY)
    return method.aggregate(state, model_of({"w": [0.0, 0.0]}), got, server_of(view_of(SETTING)), KEY)


@pytest.mark.parametrize(
    ("log_base", "js"), [("e", [0.342014, 0.010188, 0.125761]), ("2", [0.493423, 0.014698, 0.181435])]
)
def test_weights_of_three_devices(log_base, js):
    """By size over divergence, which logarithm does not matter: (0.013590, 0.912491, 0.073918)."""
    merged = merge(FedJS(log_base=log_base, d_min=1e-4))
    q = [0.013590, 0.912491, 0.073918]
    assert list(merged.metrics["js"].values()) == pytest.approx(js, abs=1e-6)
    assert list(merged.metrics["q"].values()) == pytest.approx(q, abs=1e-6)
    w = merged.model["params"]["w.weight"].tolist()
    assert w == pytest.approx((np.array(q) @ MODELS).tolist(), abs=2e-6)  # four rounded numbers are summed


def test_only_those_who_came_share_the_weights():
    """The mean labels are of all devices, so that devices 0 and 2 have the divergences that they had among three.

    A half of its samples counts for an update of weight 1/2.
    """
    for weight, importance in ((1.0, [10 / 0.342014, 20 / 0.125761]), (0.5, [5 / 0.342014, 20 / 0.125761])):
        q = np.array(importance) / sum(importance)
        assert list(merge(FedJS(), (0, 2), {0: weight}).metrics["q"].values()) == pytest.approx(q.tolist(), abs=1e-6)
    assert merge(FedJS(), (0,)).metrics["q"] == {0: 1.0}


def test_small_divergences_count_as_the_least():
    """Beyond every divergence, sizes alone are left."""
    assert list(merge(FedJS(d_min=0.4)).metrics["q"].values()) == pytest.approx([0.2, 0.4, 0.4])


def test_no_weight_is_above_the_cap():
    """0.912491 becomes 0.5; the rest stays in the ratio 0.013590 : 0.073918."""
    q = list(merge(FedJS(q_max=0.5)).metrics["q"].values())
    assert q == pytest.approx([0.5 * 0.013590 / 0.087508, 0.5, 0.5 * 0.073918 / 0.087508], abs=1e-5)


def test_nobody_came():
    """The model and the state stay."""
    merged = merge(FedJS(), ())
    assert merged.model is None
    assert fingerprint(merged.state) == fingerprint(FedJS().init(SETTING, KEY))


def test_without_labels_there_is_nothing_to_weigh_by():
    """One line that says so."""
    with pytest.raises(ConfigError, match=r"^data: the method weighs devices by their labels, found no data set$"):
        FedJS().init(replace(SETTING, labels=None), KEY)


@pytest.mark.parametrize("wrong", [{"log_base": "10"}, {"d_min": 0}, {"q_max": 0}, {"q_max": 1.5}])
def test_settings_out_of_range(wrong):
    """Each key is named."""
    (key,) = wrong
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        digits_scenario(method={"name": "fedjs", **wrong})


# --- runs -------------------------------------------------------------------------------------------------------


def test_label_counts_travel_once():
    """40 bytes for 10 classes with a device's first model, if it arrives; all else is FedAvg's.

    Devices 0 and 1 are late in both rounds, so that they send theirs again.
    """
    for protocol, again in (({"name": "sync"}, []), ({"name": "deadline", "deadline": "1.5 s"}, [0, 1])):
        runs = [run(mixed_scenario(method=method, protocol=protocol)) for method in ("fedjs", "fedavg")]
        jobs, plain = (frames(simulation)["jobs"] for simulation in runs)
        assert (jobs["down_bytes"] == plain["down_bytes"]).all()
        assert (jobs["flops"] == plain["flops"]).all()
        arrived = jobs["outcome"] == "ok"
        extra = (jobs["up_bytes"] - plain["up_bytes"])[arrived]
        assert extra.tolist() == [40 * (round_ == 0) for round_ in jobs["round"][arrived]]
        learner, view = runs[0].learner, runs[0].session.view()
        asked = learner.method.plan(learner.state, view, KEY).orders
        assert [order.device for order in asked if order.task.up.extra_bytes == 40] == again


def test_histograms_are_those_of_the_partition():
    """Divergences by plain logarithms of the labels that devices hold."""
    simulation = prepare(digits_scenario(method="fedjs", partition={"name": "dirichlet_label", "beta": 0.3}))
    labels = simulation.parts.data.y_train.numpy()
    counts = np.array([np.bincount(labels[rows], minlength=10) for rows in simulation.parts.split.train])
    mean = counts.sum(axis=0) / counts.sum()
    for device, js in enumerate(simulation.learner.state["js"]):
        p = counts[device] / counts[device].sum()
        halves = [a[a > 0] @ np.log(a[a > 0] / ((p + mean) / 2)[a > 0]) for a in (p, mean)]
        assert js == pytest.approx(sum(halves) / 2, abs=1e-12)


def test_equal_shares_are_fedavg():
    """Where no device's labels differ by more than `d_min`, the weights are FedAvg's."""
    methods = ({"name": "fedjs", "d_min": 1.0}, "fedavg")
    ours, plain = (run(mixed_scenario(method=method)).learner.weights()["params"] for method in methods)
    assert all(np.allclose(ours[name], plain[name], atol=1e-6) for name in plain)


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "fedjs": {
        "log_base": "test_weights_of_three_devices",
        "d_min": "test_small_divergences_count_as_the_least",
        "q_max": "test_no_weight_is_above_the_cap",
    },
}
