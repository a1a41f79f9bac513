"""FedDHE's estimates against numbers on paper, PyTorch's gradients and the labels that devices really have.

Source: "Efficient Federated Learning with Heterogeneous Data and Adaptive Dropout", arXiv 2507.10430, formula 8.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from edgesim.core.errors import ConfigError
from edgesim.methods.feddhe import estimate
from edgesim.methods.weighting.dynamic import js_divergence
from tests.conftest import digits_scenario, frames
from tests.contracts.support import ask, merge_arguments, mixed_scenario, play, prepare, run

SKEWED = {"name": "dirichlet_label", "beta": 0.3}


# --- the formula ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "shares"),
    [
        ("literal", [0.140244, 0.231224, 0.628532]),
        ("inverse_raw", [0.628532, 0.231224, 0.140244]),
        ("inverse", [0.673320, 0.209674, 0.117006]),
    ],
)
def test_estimates_from_squared_gradients(form, shares):
    """Of 0.5, 1 and 2, with beta = 1."""
    assert estimate(np.array([0.5, 1.0, 2.0]), form).tolist() == pytest.approx(shares, abs=1e-6)


def test_beta_sharpens_estimates():
    """exp(3/2), exp(3/4), exp(3/8) in proportion, as 3 / g; and 3 g in the printed form."""
    for form, exponents in (("inverse_raw", [1.5, 0.75, 0.375]), ("literal", [6.0, 12.0, 24.0])):
        expected = np.exp(exponents) / np.exp(exponents).sum()
        assert estimate(np.array([2.0, 4.0, 8.0]), form, 3.0).tolist() == pytest.approx(expected.tolist(), rel=1e-9)


@pytest.mark.parametrize(
    ("form", "squares", "shares"),
    [
        ("inverse", [0.0, 0.0], [0.5, 0.5]),
        ("inverse", [0.0, 1.0], [1.0, np.exp(0.5 - 50)]),  # 1 / 1e-6 is cut to 50; the other is 1 / 2
        ("inverse_raw", [0.0, 1.0], [1.0, np.exp(1.0 - 50)]),
        ("literal", [2000.0, 0.0], [1.0, 0.0]),
    ],
)
def test_extreme_gradients(form, squares, shares):
    """No division by zero, no overflow."""
    with np.errstate(all="raise", under="ignore"):
        assert estimate(np.array(squares), form).tolist() == pytest.approx(shares, rel=1e-9)


# --- real models ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["output", "all"])
def test_squares_are_those_of_pytorch(scope):
    """Of the mean loss on each class: row i of the last layer and its bias, or all parameters."""
    simulation = prepare(mixed_scenario(method={"name": "feddhe", "scope": scope, "server_samples": 50}))
    state, base, got, server, key = merge_arguments(simulation)
    merged = simulation.learner.method.aggregate(state, base, got, server, key)
    module = simulation.parts.module.eval()
    last = server.setting.cost_profile.layer_names[-1]
    x, y = simulation.parts.data.batch("train", torch.from_numpy(simulation.parts.server_set.rows))
    for message in got[:2]:
        squares = []
        for i in range(10):
            leaves = {name: t.clone().requires_grad_(True) for name, t in message.body["params"].items()}
            logits = torch.func.functional_call(module, leaves, (x[y == i],))
            F.cross_entropy(logits, y[y == i]).backward()
            rows = [leaves[f"{last}.weight"].grad[i], leaves[f"{last}.bias"].grad[i]]
            gradients = rows if scope == "output" else [leaf.grad for leaf in leaves.values()]
            squares.append(sum(float((gradient.double() ** 2).sum()) for gradient in gradients))
        exponents = np.mean(squares) / np.array(squares)
        expected = np.exp(np.minimum(exponents, 50))
        assert merged.state["shares"][message.device] == pytest.approx(expected / expected.sum(), rel=1e-3, abs=1e-9)


def test_estimates_are_made_once_and_priced():
    """At a device's first model: a training pass of the last layer on the server's samples a device; then no more."""
    simulation = prepare(mixed_scenario(method="feddhe"))
    *before, _ = (cost_profile := simulation.parts.setting.cost_profile).layer_names
    each = 100 * cost_profile.train_flops(frozenset(before))
    flops, known = [], []
    for _ in range(2):
        merged = simulation.learner.aggregate(ask(simulation), simulation.session.view())
        simulation.session.model, simulation.session.round = merged.model, simulation.session.round + 1
        flops.append(merged.facts.get().server_flops - 5 * 6 * cost_profile.params)
        known.append({device: shares.tolist() for device, shares in simulation.learner.state["shares"].items()})
    assert flops == [pytest.approx(6 * each), pytest.approx(0.0)]
    assert known[0] == known[1]
    assert set(known[0]) == set(range(6))


def test_divergences_are_of_estimates_and_of_evenness_where_there_is_none():
    """The mean is over all devices by size: five of six are even, as they never came."""
    simulation = prepare(mixed_scenario(method="feddhe"))
    state, base, got, server, key = merge_arguments(simulation)
    merged = simulation.learner.method.aggregate(state, base, got[:1], server, key)
    shares, even = merged.state["shares"][0], np.full(10, 0.1)
    js = js_divergence(shares[None], (shares + 5 * even) / 6)
    assert merged.metrics["estimated_js"] == {0: pytest.approx(js[0], rel=1e-9)}
    assert "js" not in merged.metrics
    merged = simulation.learner.method.aggregate(merged.state, base, got[:2], server, key)
    mean = (shares + merged.state["shares"][1] + 4 * even) / 6
    assert merged.metrics["estimated_js"][0] == pytest.approx(js_divergence(shares[None], mean)[0], rel=1e-9)


def test_a_model_whose_gradients_overflow_is_even():
    """Its numbers are finite, its loss is not: nothing is learned of the device, and v and b stay numbers."""
    simulation = prepare(mixed_scenario(method="feddhe"))
    state, base, got, server, key = merge_arguments(simulation)
    body = {kind: {n: torch.full_like(t, 1e30) for n, t in tensors.items()} for kind, tensors in base.items()}
    merged = simulation.learner.method.aggregate(state, base, [got[0]._replace(body=body), got[1]], server, key)
    assert set(merged.state["shares"]) == {1}
    assert np.isfinite([*merged.state["v"], *merged.state["b"]]).all()
    assert np.isfinite(list(merged.metrics["q"].values())).all()


def test_the_inverse_form_finds_the_labels():
    """On skewed digits estimates go with the true shares of labels in the inverse form, against them in the printed."""
    correlation = {}
    for form in ("inverse", "literal"):
        method = {"name": "feddhe", "form": form, "beta": 1.0}
        training = {"batch": 16, "lr": 0.1, "local_epochs": 3}
        simulation = prepare(mixed_scenario(method=method, partition=SKEWED, training=training))
        play(simulation)
        labels = simulation.parts.data.y_train.numpy()
        counts = [np.bincount(labels[rows], minlength=10) for rows in simulation.parts.split.train]
        true = np.array([count / count.sum() for count in counts])
        found = np.array([simulation.learner.state["shares"][device] for device in range(6)])
        correlation[form] = np.corrcoef(true.ravel(), found.ravel())[0, 1]
    assert correlation["inverse"] > 0.3
    assert correlation["literal"] < -0.1


def test_labels_stay_on_the_devices():
    """Nothing travels that FedAvg does not send, and the server never learns label counts."""
    runs = [run(mixed_scenario(method=method, protocol="sync")) for method in ("feddhe", "fedavg")]
    jobs, plain = (frames(simulation)["jobs"] for simulation in runs)
    assert (jobs[["up_bytes", "down_bytes", "flops"]] == plain[["up_bytes", "down_bytes", "flops"]]).all(axis=None)
    assert runs[0].parts.setting.labels is None
    names = set(frames(runs[0])["metrics"]["name"])
    assert names == {"estimated_js", "v", "b", "d", "q"}


@pytest.mark.parametrize("wrong", [{"form": "printed"}, {"beta": 0}, {"scope": "last"}])
def test_settings_out_of_range(wrong):
    """Each key is named."""
    (key,) = wrong
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        digits_scenario(method={"name": "feddhe", **wrong})


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "feddhe": {
        "log_base": "test_divergences_are_of_estimates_and_of_evenness_where_there_is_none",
        "d_min": "test_feddh.py::test_a_degree_below_the_least_counts_as_the_least",
        "q_max": "test_fedjs.py::test_no_weight_is_above_the_cap",
        "gradient": "test_feddh.py::test_a_round_of_real_training",
        "server_samples": "test_squares_are_those_of_pytorch",
        "lambda_v": "test_feddh.py::test_v_and_b_go_down_the_gradient",
        "decay_v": "test_feddh.py::test_learning_rates_decay",
        "lambda_b": "test_feddh.py::test_v_and_b_go_down_the_gradient",
        "decay_b": "test_feddh.py::test_learning_rates_decay",
        "step_limit": "test_feddh.py::test_no_degree_changes_by_more_than_the_limit",
        "reaggregate": "test_feddh.py::test_weighing_once_more",
        "form": "test_the_inverse_form_finds_the_labels",
        "beta": "test_beta_sharpens_estimates",
        "scope": "test_squares_are_those_of_pytorch",
    },
}
