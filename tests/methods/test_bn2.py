"""BN2: numbers on paper for who is chosen, and two exchanges a round in which only the chosen send models.

Source: H. Wu, P. Wang, the FedPNS paper (2022), where it is a comparison; H. Wu, PhD thesis, York University (2023).
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from edgesim.core.errors import ConfigError
from edgesim.core.local_sgd import Training
from edgesim.core.task import Task
from edgesim.core.update import Update
from edgesim.methods.bn2 import BN2
from edgesim.methods.fedavg import FedAvg
from tests.conftest import digits_scenario, frames, simulate_null
from tests.contracts.support import MODELS, fingerprint, merge_arguments, mixed_scenario, prepare, results_of, run
from tests.contracts.test_prices import measured_jobs
from tests.methods.hand_made import KEY, merged_layers, message_of, model_of, server_of, setting_of, view_of
from tests.sizes import full

MOVES = {3: [0.03, 0.04], 7: [0.0, 0.01], 8: [-0.06, 0.08], 11: [0.04, -0.03]}
NORMS = {3: 0.05, 7: 0.01, 8: 0.10, 11: 0.05}
SETTING = setting_of([100] * 12, {"w": 2}, training=Training(lr=1.0))


def norm_of(device, norm, steps=1):
    """Return what a device reports."""
    return Update(device, device, Task("norm"), {}, 100, steps, 0, {"norm": norm})


def chosen(norms, steps=None, setting=SETTING, **settings):
    """Return the devices that are asked for their models after these norms, in order."""
    method = BN2(**settings)
    heard = [norm_of(k, norm, (steps or {}).get(k, 1)) for k, norm in norms.items()]
    state = method.on_exchange(method.init(setting, KEY), heard, view_of(setting), KEY)
    plan = method.plan(state, dataclasses.replace(view_of(setting), exchange=1), KEY)
    assert not plan.more
    return [order.device for order in plan.orders]


def model_from(device):
    """Return the model of a device, which started from (1, 1)."""
    return message_of(device, 100, {"w": (1 + np.array(MOVES[device])).tolist()})


@pytest.mark.parametrize(
    ("keep", "devices", "w"),
    [(2, [3, 8], [0.985, 1.06]), (4, [3, 7, 8, 11], [1.0025, 1.025]), (10, [3, 7, 8, 11], None)],
)
def test_the_largest_are_chosen_and_averaged(keep, devices, w):
    """Norms 0.05, 0.01, 0.10, 0.05: of two equal ones the lower id; as many as there are, and it is FedAvg."""
    assert np.linalg.norm(list(MOVES.values()), axis=1) == pytest.approx(list(NORMS.values()))
    assert chosen(NORMS, keep=keep) == devices
    got = [*(norm_of(k, norm) for k, norm in NORMS.items()), *(model_from(k) for k in devices)]
    base = {"w": [1.0, 1.0]}
    merged = merged_layers(BN2(keep=keep), SETTING, base, got)
    assert merged == merged_layers(FedAvg(), SETTING, base, [model_from(k) for k in devices])
    if w:
        assert merged["w"] == pytest.approx(w, abs=1e-6)


def test_more_steps_are_no_merit():
    """Twice the steps and 1.5 times the norm: ranked by step, the short work wins; by norm the long."""
    norms, steps = {0: 1.5, 1: 1.0}, {0: 20, 1: 10}
    assert chosen(norms, steps, keep=1) == [1]
    assert chosen(norms, steps, keep=1, rank_by="norm") == [0]
    assert chosen({0: 1.0, 1: 0.9}, {0: 0, 1: 1}, keep=1) == [0]  # work that failed before its first step


def test_zero_norms_come_last_and_diverged_devices_never():
    """Zero is a norm like any other; what is no number is none."""
    assert chosen({0: 0.0, 1: float("nan"), 2: 1e-9, 3: float("inf")}, keep=1) == [2]
    assert chosen({0: 0.0, 1: float("nan"), 2: 1e-9, 3: float("inf")}, keep=3) == [0, 2]


def test_who_has_left_is_not_asked_again():
    """The next largest takes the place of device 8."""
    method = BN2(keep=2)
    state = method.on_exchange(
        method.init(SETTING, KEY), [norm_of(k, n) for k, n in NORMS.items()], view_of(SETTING), KEY
    )
    busy = np.arange(12) == 8
    plan = method.plan(state, dataclasses.replace(view_of(SETTING), exchange=1, busy=busy), KEY)
    assert [order.device for order in plan.orders] == [3, 11]


def test_what_does_not_come_is_not_missed():
    """A chosen device fails: the mean of the others. All fail: no new model, and norms of this round are forgotten."""
    norms = [norm_of(k, norm) for k, norm in NORMS.items()]
    assert merged_layers(BN2(keep=2), SETTING, {"w": [1.0, 1.0]}, [*norms, model_from(3)])["w"] == pytest.approx(
        [1.03, 1.04]
    )
    merged = BN2().aggregate({"rank": NORMS}, model_of({"w": [1.0, 1.0]}), norms, server_of(view_of(SETTING)), KEY)
    assert (merged.model, merged.state) == (None, {"rank": None})
    assert merged.metrics == {"norm": NORMS, "chosen": dict.fromkeys(NORMS, 0.0)}


@pytest.mark.parametrize("wrong", [{"keep": 0}, {"rank_by": "loss"}])
def test_settings_out_of_range(wrong):
    """Each key is named."""
    (key,) = wrong
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        digits_scenario(method={"name": "bn2", **wrong})


def test_a_deadline_is_refused():
    """Waiting for norms would use it up."""
    scenario = digits_scenario(method="bn2", protocol={"name": "deadline", "deadline": "1 h"})
    with pytest.raises(ConfigError, match=r"protocol\.name: bn2 runs on sync, found deadline"):
        prepare(scenario)


# --- runs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_norms_of_real_training(model):
    """NumPy's norms of FedAvg's models, which train the same; the chosen are the largest, and their mean the model."""
    runs = {name: prepare(mixed_scenario(method={"name": name, **changes}, model=model))
            for name, changes in (("fedavg", {}), ("bn2", {"keep": 2}))}  # fmt: skip
    _, base, trained, server, _ = merge_arguments(runs["fedavg"])
    state, _, got, server, key = merge_arguments(runs["bn2"])

    def flat(model_state):
        return np.concatenate([t.double().numpy().ravel() for t in model_state["params"].values()])

    norms = [np.linalg.norm(flat(m.body) - flat(base)) / server.setting.training.lr for m in trained]
    merged = runs["bn2"].learner.method.aggregate(state, base, got, server, key)
    assert list(merged.metrics["norm"].values()) == pytest.approx(norms, rel=1e-9)
    largest = sorted(np.argsort(norms)[-2:].tolist())
    assert [m.device for m in got if m.body] == [k for k, flag in merged.metrics["chosen"].items() if flag] == largest
    plain = FedAvg().aggregate({}, base, [trained[k] for k in largest], server, key)
    assert fingerprint(merged.model) == fingerprint(plain.model)


def test_only_the_chosen_send_models():
    """Everybody downloads the model and sends 4 bytes; the first two by id, where nothing is trained, send 4 P more.

    Both are one round: its time is the slowest norm and, after that, the slowest model.
    """
    simulation = simulate_null(mixed_scenario(method={"name": "bn2", "keep": 2}))
    jobs, rounds = frames(simulation)["jobs"], frames(simulation)["rounds"]
    parameter_bytes = 4 * sum(layer.params for layer in simulation.parts.setting.cost_profile.layers)
    second = jobs[jobs["round"] == 1].sort_values("device")
    asked = {name: of_task for name, of_task in second.groupby("task")}
    assert asked["norm"]["device"].tolist() == [0, 1, 2, 3, 4, 5]
    assert set(asked["norm"]["up_bytes"]) == {4}
    assert set(asked["norm"]["down_bytes"]) == {parameter_bytes}
    assert asked["fetch"]["device"].tolist() == [0, 1]
    assert set(asked["fetch"]["up_bytes"]) == {parameter_bytes}
    assert set(asked["fetch"]["down_bytes"]) == set(asked["fetch"]["flops"]) == {0}
    assert set(asked["fetch"]["sent_s"]) == {asked["norm"]["end_s"].max()}
    assert rounds["now_s"][1] == asked["fetch"]["end_s"].max()
    assert rounds["version"].tolist() == [1, 2]
    assert rounds["up_bytes"].tolist() == [6 * 4 + 2 * parameter_bytes] * 2


@pytest.mark.parametrize("model", MODELS)
def test_charged_is_what_was_done(model, monkeypatch):
    """FLOPs by PyTorch's counter and bytes of the tensors sent, in both exchanges."""
    jobs = measured_jobs(mixed_scenario(method={"name": "bn2", "keep": 2}, model=model), monkeypatch)
    assert jobs.groupby("task").size().to_dict() == {"fetch": 4, "norm": 12}
    assert (jobs["flops"] == jobs["real_flops"]).all()
    assert (jobs["flops"] > 0).equals(jobs["task"] == "norm")
    assert (jobs["up_bytes"] == jobs["real_bytes"] + jobs["extra_bytes"]).all()


def test_the_null_backend_is_refused():
    """Who is chosen follows from training."""
    with pytest.raises(ConfigError, match=r"backend\.name: bn2 plans from training results"):
        prepare(mixed_scenario(method="bn2", backend="null"))


@full
@pytest.mark.workers
def test_workers_agree_with_serial():
    """What a device kept in one process is sent from another."""
    outcomes = []
    for backend in ("serial", {"name": "workers", "workers": 2}):
        simulation = run(mixed_scenario(method={"name": "bn2", "keep": 2}, model=MODELS[1], backend=backend))
        simulation.learner.backend.close()
        outcomes.append(results_of(simulation))
    assert outcomes[0] == outcomes[1]


def test_devices_that_stay_far_are_heard():
    """Among devices with all labels and devices of one, the latter move further and are chosen more often."""
    simulation = run(
        digits_scenario(
            method={"name": "bn2", "keep": 5},
            partition={"name": "sigma_rho", "sigma": 0.5, "rho": 1, "samples_per_device": 40},
            selection={"name": "stratified", "count": 10},
            fleet=[{"count": 10, "level": level, "cpu": {"flops_per_s": "50 MFLOP/s"}} for level in (1, 2)],
            stop={"rounds": 8},
        )
    )
    metrics = frames(simulation)["metrics"]
    for name, least in (("norm", 80), ("chosen", 80)):
        of_name = metrics[metrics["name"] == name]
        assert len(of_name) == least
        one_label = of_name["device"] >= 10
        assert of_name["value"][one_label].mean() > of_name["value"][~one_label].mean()


def test_a_rate_of_zero_is_a_norm_of_zero():
    """Rates decay until a float holds no smaller one."""
    training = {"batch": 16, "lr": 0.1, "lr_decay": 1e-200}
    simulation = run(mixed_scenario(method="bn2", training=training, stop={"rounds": 3}))
    norms = frames(simulation)["metrics"].query("name == 'norm'").groupby("round")["value"].max()
    assert norms[0] > 0 and norms[2] == 0


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "bn2": {
        "keep": "test_the_largest_are_chosen_and_averaged",
        "rank_by": "test_more_steps_are_no_merit",
    },
}
