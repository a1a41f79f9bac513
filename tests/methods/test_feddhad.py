"""FedDHAD: FedAD's parts with FedDH's weights, against numbers on paper and NumPy.

Source: "Efficient Federated Learning with Heterogeneous Data and Adaptive Dropout", arXiv 2507.10430.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from edgesim.core.local_sgd import Training
from edgesim.core.price_list import ChannelGroup, CostProfile, LayerCost
from edgesim.core.task import Submodel, Task
from edgesim.core.update import Update
from edgesim.methods.fedad import FedAD
from edgesim.methods.feddh import FedDH
from edgesim.methods.feddhad import FedDHAD
from tests.conftest import frames
from tests.contracts.support import fingerprint, mixed_scenario, run
from tests.contracts.test_prices import measured_jobs
from tests.methods.hand_made import KEY, server_of, setting_of, view_of
from tests.methods.test_fedad import FLEET, digits, noted
from tests.sizes import full

COUNTS = np.array([[10, 0, 0, 0], [5, 5, 5, 5], [0, 2, 8, 10]])
JS = np.array([0.342014, 0.010188, 0.125761])
MODELS = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 2.0]])
HELD = np.array([[True, False], [True, True], [False, True]])
V, B, Q = np.array([1.2, 0.8, 1.0]), np.array([0.05, 0.03, 0.1]), np.array([0.034228, 0.826164, 0.139609])
CARD = CostProfile(
    "w", (1,), 4, (LayerCost("w", "Linear", 2, 0, 2.0, 2.0, 2.0, frozenset(), 2, "w"),), groups=(ChannelGroup("w", 2),)
)
SETTING = replace(setting_of((10, 20, 20), {}, labels=COUNTS, training=Training(lr=0.1)), cost_profile=CARD)
STRETCHES = (SETTING.training.local_sgd(0),)


def model_from(device):
    """Return what a device sends of the units that it had, after 5 steps."""
    channels = np.flatnonzero(HELD[device])
    body = {"params": {"w.weight": torch.tensor(MODELS[device][channels], dtype=torch.float32)}, "buffers": {}}
    task = Task(submodel=Submodel(channels=(("w", tuple(channels.tolist())),)), local_sgd=STRETCHES)
    return Update(device, device, task, body, int(SETTING.samples[device]), 5, 0, {})


def test_weights_and_slopes_are_of_who_had_a_unit():
    """The first device lacks the second unit, the third the first: w by q over holders, gamma by NumPy with 1 / Q."""
    method = FedDHAD(lambda_v=5e-4, lambda_b=1e-3)
    state = {**method.init(SETTING, KEY), "v": V, "b": B}
    base = {"params": {"w.weight": torch.zeros(2)}, "buffers": {}}
    merged = method.aggregate(state, base, [model_from(k) for k in range(3)], server_of(view_of(SETTING)), KEY)
    w = merged.model["params"]["w.weight"].double().numpy()
    assert w == pytest.approx([0.039782, 1.144556], abs=1e-6)
    assert list(merged.metrics["q"].values()) == pytest.approx(Q.tolist(), abs=1e-6)
    n, of_unit = SETTING.samples, Q @ HELD
    g = (n @ (HELD * -MODELS)) / (n @ HELD) / (0.1 * 5)
    gamma = (HELD * (MODELS - w) * g / of_unit).sum(axis=1)
    assert Q @ gamma == pytest.approx(0, abs=1e-5)
    slopes = -Q / (V * JS + B) * gamma
    assert merged.state["v"].tolist() == pytest.approx((V - 5e-4 * JS * slopes).tolist(), abs=1e-6)
    assert merged.state["b"].tolist() == pytest.approx((B - 1e-3 * slopes).tolist(), abs=1e-6)
    assert merged.metrics["drop"] == {0: 0.0, 1: 0.0, 2: 0.0}


def test_rates_of_learning_are_those_of_the_paper():
    """Table 5 has another row for FedDHAD on LeNet and CIFAR-10 than for FedDH."""
    method = FedDHAD()
    assert (method.lambda_v, method.decay_v, method.lambda_b, method.decay_b) == (0.01, 0.9999, 0.0001, 0.99)
    assert method._rates(100).v == pytest.approx(0.01 * 0.9999**100)


ALIKE = {"selection": "all", "fleet": FLEET, "stop": {"rounds": 4}}
HEAD = {"name": "feddhad", "rate_source": "fixed", "fixed_ratio": 0.9}


def test_a_run_has_smaller_jobs_and_learned_weights():
    """Slow devices leave units out from round 2 on; label counts, 4 bytes each, go up with the first model alone."""
    simulation = run(digits(method=HEAD))
    jobs = frames(simulation)["jobs"]
    train = jobs[jobs["task"] == "train"].set_index(["round", "device"])
    parameters = simulation.parts.setting.cost_profile.params
    assert train["up_bytes"][0].tolist() == [4 * parameters + 40] * 4
    assert train["up_bytes"][1].tolist() == [4 * parameters] * 4
    assert max(train["up_bytes"][3, device] for device in (2, 3)) < 0.9 * 4 * parameters
    assert max(train["flops"][3, device] for device in (2, 3)) < 0.9 * train["flops"][0, 2]
    assert noted(simulation, "et_max_s").keys() == noted(simulation, "rho").keys() == {2}
    assert {round_: sum(q) for round_, q in noted(simulation, "q").items()} == pytest.approx(
        dict.fromkeys(range(4), 1.0)
    )
    assert (simulation.learner.state["v"] != 1).all()


def test_it_is_feddh_before_any_rate_and_fedad_without_weights():
    """Without checks it learns what FedDH does with the same rates; its parts are those of FedAD."""
    rates = {"lambda_v": 0.01, "lambda_b": 0.01}
    feddh = {"name": "feddh", "decay_v": 0.9999, **rates}
    whole = [digits(method={"name": "feddhad", "check_every": 99, **rates}), mixed_scenario(**ALIKE, method=feddh)]
    weights = [fingerprint(run(scenario).learner.weights()) for scenario in whole]
    assert weights[0] == weights[1]
    submodels = [
        run(digits(method={**HEAD, "name": name})).learner.state["drop"].tolist() for name in ("feddhad", "fedad")
    ]
    assert submodels[0] == submodels[1]
    assert set(FedDHAD.__dataclass_fields__) == (set(FedAD.__dataclass_fields__) | set(FedDH.__dataclass_fields__)) - {
        "absent"
    }


@full
def test_charged_is_what_was_done(monkeypatch):
    """FLOPs by PyTorch's counter, decompositions and vectors by formula; bytes of the tensors sent and the rest."""
    jobs = measured_jobs(digits(method={"name": "feddhad"}), monkeypatch)
    assert (jobs["flops"] == jobs["real_flops"]).all()
    assert (jobs["up_bytes"] == jobs["real_bytes"] + jobs["extra_bytes"]).all()


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "feddhad": {
        "log_base": "test_feddh.py::test_a_round_of_real_training",
        "d_min": "test_feddh.py::test_a_degree_below_the_least_counts_as_the_least",
        "q_max": "test_fedjs.py::test_no_weight_is_above_the_cap",
        "gradient": "test_weights_and_slopes_are_of_who_had_a_unit",
        "server_samples": "test_feddh.py::test_server_samples_are_a_multiple_of_the_classes",
        "lambda_v": "test_rates_of_learning_are_those_of_the_paper",
        "decay_v": "test_rates_of_learning_are_those_of_the_paper",
        "lambda_b": "test_rates_of_learning_are_those_of_the_paper",
        "decay_b": "test_rates_of_learning_are_those_of_the_paper",
        "step_limit": "test_feddh.py::test_no_degree_changes_by_more_than_the_limit",
        "reaggregate": "test_feddh.py::test_weighing_once_more",
        "check_every": "test_fedad.py::test_a_timing_only_run_trains_the_whole_model",
        "patience": "test_unit_rates.py::test_patience_and_the_latest_round",
        "gain": "test_unit_rates.py::test_a_gain_below_the_least_is_none",
        "force_first_at": "test_unit_rates.py::test_patience_and_the_latest_round",
        "probe_samples": "test_unit_ranks.py::test_ranks_of_maps_after_relu",
        "neuron_weight": "test_unit_ranks.py::test_weights_of_neurons",
        "rank_norm": "test_unit_rates.py::test_importances_of_a_layer_are_over_its_largest",
        "rate_convention": "test_fedad.py::test_rates_of_three_devices",
        "rate_source": "test_fedad.py::test_where_ratios_come_from",
        "fallback": "test_fedad.py::test_a_poor_spectrum_is_replaced_and_the_notes_say_so",
        "fixed_ratio": "test_fedad.py::test_where_ratios_come_from",
        "hessian_samples": "test_fedad.py::test_charged_is_what_was_done",
        "hessian_of": "test_unit_ranks.py::test_curvature_of_a_network",
        "lanczos_steps": "test_fedad.py::test_a_poor_spectrum_is_replaced_and_the_notes_say_so",
        "lanczos_starts": "test_fedad.py::test_more_starts_and_larger_zeros_change_the_ratio_only",
        "residual": "test_fedad.py::test_a_poor_spectrum_is_replaced_and_the_notes_say_so",
        "zero": "test_fedad.py::test_more_starts_and_larger_zeros_change_the_ratio_only",
        "ratio_min": "test_fedad.py::test_bounds_of_shares",
        "keep_min": "test_fedad.py::test_bounds_of_shares",
        "time_map": "test_fedad.py::test_exact_shares_take_the_time",
        "drop_cap": "test_fedad.py::test_no_unit_is_left_out_more_often_than_the_cap",
        "rescale": "test_fedad.py::test_multipliers_can_be_left_out",
        "fold": "test_fedad.py::test_multipliers_folded_into_weights",
        "exact_k": "test_fedad.py::test_exact_numbers_of_units",
        "channels": "test_fjord.py::test_units_of_several_layers",
    },
}
