"""FedDH against the numbers of three devices and the gradient of a server's samples.

Source: "Efficient Federated Learning with Heterogeneous Data and Adaptive Dropout", arXiv 2507.10430. The pure formulas
are tested in tests/methods/test_dynamic.py.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from edgesim.core.errors import ConfigError
from edgesim.core.local_sgd import Training
from edgesim.methods.feddh import FedDH
from tests.conftest import digits_scenario, frames
from tests.contracts.support import MODELS as NETWORKS
from tests.contracts.support import fingerprint, merge_arguments, mixed_scenario, prepare, run
from tests.methods.hand_made import KEY, message_of, model_of, server_of, setting_of, view_of

COUNTS = np.array([[10, 0, 0, 0], [5, 5, 5, 5], [0, 2, 8, 10]])
JS = np.array([0.342014, 0.010188, 0.125761])
MODELS = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 2.0]])
V, B = np.array([1.2, 0.8, 1.0]), np.array([0.05, 0.03, 0.1])
Q = [0.034228, 0.826164, 0.139609]
# dF/dD from the pseudo-gradient (0.4, -2.4) of 5 steps at 0.1 from zero
SLOPES = np.array([-0.230090, -6.389844, 1.549028])
SETTING = setting_of((10, 20, 20), {"w": 2}, labels=COUNTS, training=Training(lr=0.1))


def merge(method, v=V, b=B, devices=(0, 1, 2), round_=0):
    """Return what a method makes of these devices' models after 5 steps each."""
    got = [message_of(k, int(SETTING.samples[k]), {"w": MODELS[k].tolist()})._replace(steps=5) for k in devices]
    state = {**method.init(SETTING, KEY), "v": np.array(v, dtype=float), "b": np.array(b, dtype=float)}
    return method.aggregate(state, model_of({"w": [0.0, 0.0]}), got, server_of(view_of(SETTING, round_)), KEY)


def column(merged, name):
    """Return a note of every device."""
    return list(merged.metrics[name].values())


# --- a round ----------------------------------------------------------------------------------------------------


def test_weights_and_notes_are_those_of_before_the_step():
    """D = v JS + b and q of the round; the step takes effect from the next round on."""
    merged = merge(FedDH())
    assert column(merged, "js") == pytest.approx(JS.tolist(), abs=1e-6)
    assert (column(merged, "v"), column(merged, "b")) == (V.tolist(), B.tolist())
    assert column(merged, "d") == pytest.approx([0.460417, 0.038150, 0.225761], abs=1e-6)
    assert column(merged, "q") == pytest.approx(Q, abs=1e-6)
    assert merged.model["params"]["w.weight"].tolist() == pytest.approx([-0.105381, 1.105381], abs=1e-6)
    assert merge(FedDH(), v=[1, 1, 1], b=[0, 0, 0]).metrics["q"] == pytest.approx(
        {0: 0.013590, 1: 0.912491, 2: 0.073918}, abs=1e-6
    )


def test_a_degree_below_the_least_counts_as_the_least():
    """D = -0.091850 of device 2 counts as 0.01, or as 1e-4; noted is the degree itself."""
    b = [0.05, -0.10, 0.1]
    assert column(merge(FedDH(), b=b), "d") == pytest.approx([0.460417, -0.091850, 0.225761], abs=1e-6)
    assert column(merge(FedDH(), b=b), "q") == pytest.approx([0.010292, 0.947729, 0.041979], abs=1e-6)
    assert column(merge(FedDH(d_min=1e-4), b=b), "q") == pytest.approx([0.000109, 0.999449, 0.000443], abs=1e-6)


def test_v_and_b_go_down_the_gradient():
    """Steps of rates 1e-3 and 2e-3 against JS dF/dD and dF/dD of the pseudo-gradient, none of them limited."""
    after = merge(FedDH(lambda_v=1e-3, lambda_b=2e-3)).state
    assert after["v"].tolist() == pytest.approx((V - 1e-3 * JS * SLOPES).tolist(), abs=1e-8)
    assert after["b"].tolist() == pytest.approx((B - 2e-3 * SLOPES).tolist(), abs=1e-7)


def test_learning_rates_decay():
    """1e-4 x 0.999^100 = 9.0479e-5 in round 100, by which v of device 1 moves, and 1e-4 x 0.99^100 for b."""
    rates = FedDH()._rates(100)
    assert rates.v == pytest.approx(9.0479e-05, abs=1e-9)
    after = merge(FedDH(), round_=100).state
    assert after["v"][1] - V[1] == pytest.approx(9.0479e-05 * JS[1] * 6.389844, rel=1e-4)
    assert after["b"][1] - B[1] == pytest.approx(1e-4 * 0.99**100 * 6.389844, rel=1e-4)


@pytest.mark.parametrize("gradient", ["pseudo", "server_set"])
def test_no_learning_is_fedjs(gradient):
    """With rates of zero v and b stay for ever, whatever the gradient."""
    method = {"name": "feddh", "lambda_v": 0.0, "lambda_b": 0.0, "gradient": gradient}
    if gradient == "pseudo":
        weights = [run(mixed_scenario(method=m)).learner.weights() for m in (method, "fedjs")]
        assert fingerprint(weights[0]) == fingerprint(weights[1])
    state = run(mixed_scenario(method=method)).learner.state
    assert (state["v"].tolist(), state["b"].tolist()) == ([1.0] * 6, [0.0] * 6)


def test_no_degree_changes_by_more_than_the_limit():
    """At rates of 1 device 2's would change by 6.4: half of 0.038150 is allowed; without a limit it all happens."""
    for limit, change in ((0.5, 0.5 * 0.038150), (math.inf, (JS[1] ** 2 + 1) * 6.389844)):
        after = merge(FedDH(lambda_v=1.0, lambda_b=1.0, step_limit=limit)).state
        assert after["v"][1] * JS[1] + after["b"][1] - 0.038150 == pytest.approx(change, rel=1e-4)


def test_weighing_once_more():
    """`reaggregate`: the same models, weighed by the degrees after the step, which is what is noted then."""
    settings = {"lambda_v": 1e-3, "lambda_b": 2e-3}
    merged, after = merge(FedDH(**settings, reaggregate=True)), merge(FedDH(**settings)).state
    degree = after["v"] * JS + after["b"]
    q = np.array([10, 20, 20]) / degree
    q /= q.sum()
    assert fingerprint(merged.state) == fingerprint(after)
    assert column(merged, "d") == pytest.approx(degree.tolist(), abs=1e-6)
    assert column(merged, "q") == pytest.approx(q.tolist(), abs=1e-5)
    assert merged.model["params"]["w.weight"].tolist() == pytest.approx((q @ MODELS).tolist(), abs=1e-5)


def test_who_did_not_come_keeps_what_was_learned():
    """Device 1 was away; device 0 alone has nobody to differ from: q = 1, gamma = 0."""
    method = FedDH(lambda_v=1e-3, lambda_b=1e-3)
    after = merge(method, devices=(0, 2)).state
    assert (after["v"][1], after["b"][1]) == (V[1], B[1])
    assert (after["v"][[0, 2]] != V[[0, 2]]).all()
    alone = merge(method, devices=(0,))
    assert alone.metrics["q"] == {0: 1.0}
    assert (alone.state["v"].tolist(), alone.state["b"].tolist()) == (V.tolist(), B.tolist())
    assert merge(method, devices=()).model is None


@pytest.mark.parametrize(
    ("changes", "flops_a_number"), [({}, 5), ({"reaggregate": True}, 7), ({"gradient": "server_set"}, 3)]
)
def test_the_server_s_work_is_priced(changes, flops_a_number):
    """2 N D for the pseudo-gradient, 3 N D for the products with it, 2 N D for another mean; 3 models of 2 parameters.

    Beside it samples of the server's own cost a training pass of each, without an optimiser.
    """
    if "gradient" not in changes:
        assert merge(FedDH(**changes)).server_flops == flops_a_number * 3 * 2
        return
    simulation = prepare(mixed_scenario(method={"name": "feddh", **changes}))
    state, base, got, server, key = merge_arguments(simulation)
    server.tools.take_flops()
    merged = simulation.learner.method.aggregate(state, base, got, server, key)
    assert merged.server_flops == flops_a_number * len(got) * server.setting.cost_profile.params
    assert server.tools.take_flops() == 100 * server.setting.cost_profile.train_flops()


# --- real training ----------------------------------------------------------------------------------------------


def flat(params, names):
    """Return parameters in a row, float64."""
    return np.concatenate([params[n].detach().double().numpy().ravel() for n in names])


@pytest.mark.parametrize("model", NETWORKS)
@pytest.mark.parametrize("gradient", ["pseudo", "server_set"])
def test_a_round_of_real_training(gradient, model):
    """NumPy's weights and steps of v and b, the gradient being the round's own or PyTorch's on the server's samples."""
    partition = {"name": "dirichlet_label", "beta": 0.5}
    method = {"name": "feddh", "gradient": gradient, "server_samples": 50, "lambda_v": 0.01, "lambda_b": 0.01}
    simulation = prepare(mixed_scenario(method=method, model=model, partition=partition, training={"lr": 0.1}))
    state, base, got, server, key = merge_arguments(simulation)
    merged = simulation.learner.method.aggregate(state, base, got, server, key)
    names, n, js = list(base["params"]), np.array([m.samples for m in got], dtype=float), state["js"]
    w, w_k = flat(merged.model["params"], names), np.array([flat(m.body["params"], names) for m in got])
    q = n / np.maximum(js, 0.01)
    q /= q.sum()
    assert w == pytest.approx(q @ w_k, abs=1e-6)
    if gradient == "pseudo":
        steps = np.array([m.steps for m in got])
        g = (n / n.sum() / (0.1 * steps)) @ (flat(base["params"], names) - w_k)
    else:
        rows = simulation.parts.server_set.rows
        assert np.bincount(simulation.parts.data.y_train[rows]).tolist() == [5] * 10
        x, y = simulation.parts.data.batch("train", torch.from_numpy(rows))
        module = simulation.parts.module.eval()
        leaves = {name: t.clone().requires_grad_(True) for name, t in merged.model["params"].items()}
        everything = {**leaves, **merged.model["buffers"]}
        F.cross_entropy(torch.func.functional_call(module, everything, (x,)), y).backward()
        g = flat({name: t.grad for name, t in leaves.items()}, names)
    slopes = -q / np.maximum(js, 0.01) * ((w_k - w) @ g)
    steps_v, steps_b = -0.01 * js * slopes, -0.01 * slopes
    shorter = np.minimum(1, 0.5 * np.maximum(js, 0.01) / np.abs(js * steps_v + steps_b))
    stays = (js < 0.01) & (slopes >= 0)
    moves = ~stays * shorter
    assert merged.state["v"] - 1 == pytest.approx(moves * steps_v, abs=1e-7, rel=1e-4)
    assert merged.state["b"] == pytest.approx(moves * steps_b, abs=1e-7, rel=1e-4)
    assert np.abs(moves * steps_b).max() > 1e-5


def test_notes_are_written():
    """A row for every device, round and name; weights of a round sum to 1."""
    metrics = frames(run(mixed_scenario(method="feddh")))["metrics"]
    assert metrics.groupby(["round", "name"]).size().to_dict() == {
        (round_, name): 6 for round_ in (0, 1) for name in ("js", "v", "b", "d", "q")
    }
    assert metrics[metrics["name"] == "q"].groupby("round")["value"].sum().tolist() == pytest.approx([1.0, 1.0])
    assert (metrics[(metrics["name"] == "v") & (metrics["round"] == 1)]["value"] != 1).any()


@pytest.mark.parametrize(
    "wrong",
    [
        {"gradient": "probe"},
        {"server_samples": 0},
        {"lambda_v": -1},
        {"decay_v": 0},
        {"lambda_b": -1},
        {"decay_b": 1.1},
        {"step_limit": 0},
        {"reaggregate": "maybe"},
    ],
)
def test_settings_out_of_range(wrong):
    """Each key is named."""
    (key,) = wrong
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        digits_scenario(method={"name": "feddh", **wrong})


def test_server_samples_are_a_multiple_of_the_classes():
    """As each class has equally many; without a server set nobody asks."""
    with pytest.raises(
        ConfigError, match=r"method\.server_samples: the server asks for 55 train samples, equally many of each of 10"
    ):
        prepare(mixed_scenario(method={"name": "feddh", "gradient": "server_set", "server_samples": 55}))
    assert prepare(mixed_scenario(method={"name": "feddh", "server_samples": 55})).parts.server_set is None


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "feddh": {
        "log_base": "test_a_round_of_real_training",
        "d_min": "test_a_degree_below_the_least_counts_as_the_least",
        "q_max": "test_fedjs.py::test_no_weight_is_above_the_cap",
        "gradient": "test_a_round_of_real_training",
        "server_samples": "test_server_samples_are_a_multiple_of_the_classes",
        "lambda_v": "test_v_and_b_go_down_the_gradient",
        "decay_v": "test_learning_rates_decay",
        "lambda_b": "test_v_and_b_go_down_the_gradient",
        "decay_b": "test_learning_rates_decay",
        "step_limit": "test_no_degree_changes_by_more_than_the_limit",
        "reaggregate": "test_weighing_once_more",
    },
}
