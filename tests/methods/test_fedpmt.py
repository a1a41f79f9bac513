"""FedPMT against numbers on paper.

Source: FedPMT paper, its Table 5.2 in the thesis for the masks of the study; the layer lists of its networks for sizes.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from edgesim.core.errors import ConfigError
from edgesim.core.task import Submodel
from edgesim.learning.train.trainer import Trainer
from edgesim.methods.fedpmt import FedPMT
from edgesim.runs.simulation import Simulation
from tests.conftest import digits_scenario, frames, simulate_null, timing_scenario
from tests.contracts.support import NORMED, fingerprint, mixed_scenario, prepare, run
from tests.methods.hand_made import KEY, merged_layers, message_of, setting_of
from tests.sizes import full

SIZES = {"a": 3, "b": 2, "c": 4}
BASE = {"a": [1.0, 1.0, 1.0], "b": [2.0, 2.0], "c": [3.0, 3.0, 3.0, 3.0]}
MOVES = (
    {"a": [-0.3, 0.6, 0.0], "b": [0.4, -0.2], "c": [0.1, 0.2, 0.3, 0.4]},
    {"b": [-0.2, 0.2], "c": [0.4, -0.1, 0.0, 0.2]},
    {"c": [-0.2, 0.5, 0.3, 0.0]},
)


def moved(arrived, samples=(1, 1, 1), **changes):
    """Return the layers that FedPMT makes of the moves of these devices."""
    messages = []
    for k in arrived:
        trained = {name: np.add(BASE[name], move).tolist() for name, move in MOVES[k].items()}
        submodel = Submodel(f"last{3 - k}", frozen=frozenset(list(SIZES)[:k]), width=3 - k)
        messages.append(message_of(k, samples[k], trained, submodel))
    return merged_layers(FedPMT(**changes), setting_of(samples, SIZES), BASE, messages)


def approximately(layers):
    """Return layers ready to be compared within float32."""
    return {name: pytest.approx(values, rel=1e-6) for name, values in layers.items()}


def test_layers_are_averaged_over_who_trained_them():
    """Layer a has one trainer, b two, c three. Averaging in zeros would give (0.9, 1.2, 1.0) for layer a."""
    assert moved([0, 1, 2]) == approximately({"a": [0.7, 1.6, 1.0], "b": [2.1, 2.0], "c": [3.1, 3.2, 3.2, 3.2]})


def test_averages_are_weighted_by_data():
    """D = (300, 100, 600): layer b is 3/4 device 0 and 1/4 device 1; layer c is 0.3, 0.1, 0.6."""
    expected = {"a": [0.7, 1.6, 1.0], "b": [2.25, 1.9], "c": [2.95, 3.35, 3.27, 3.14]}
    assert moved([0, 1, 2], (300, 100, 600)) == approximately(expected)


def test_who_did_not_train_a_layer_may_count_with_the_old_one():
    """The average that the sheet warns of: two of three devices count with the old layer a, one with the old b."""
    expected = {"a": [0.9, 1.2, 1.0], "b": [2 + 0.2 / 3, 2.0], "c": [3.1, 3.2, 3.2, 3.2]}
    assert moved([0, 1, 2], absent="include_absent") == approximately(expected)


def test_a_layer_that_nobody_trained_stays():
    """Without device 0 layer a keeps its bits and b is device 1's."""
    layers = moved([1, 2])
    assert layers["a"] == BASE["a"]
    assert layers == approximately({"a": [1, 1, 1], "b": [1.8, 2.2], "c": [3.1, 3.2, 3.15, 3.1]})
    assert moved([]) is None


def test_weights_of_the_cifar_study():
    """Ten devices, two a width of five: layers 1..5 have 2, 4, 6, 8, 10 trainers of equal weight."""
    names = [f"layer{i}" for i in range(1, 6)]
    base = {name: [0.0] for name in names}
    messages = []
    for device in range(10):
        trained = names[4 - device // 2 :]
        submodel = Submodel(frozen=frozenset(names) - frozenset(trained), width=device // 2 + 1)
        messages.append(message_of(device, 500, {n: [float(device == 9)] for n in trained}, submodel))
    setting = setting_of([500] * 10, dict.fromkeys(names, 1))
    layers = merged_layers(FedPMT(), setting, base, messages)
    assert [layers[name][0] for name in names] == pytest.approx([0.5, 0.25, 1 / 6, 0.125, 0.1])


# (network, layers trained by each width, MACs a sample, parameters uploaded). MACs: forward of all layers, weight
# gradients of the trained ones, input gradients of the trained ones but the first.
STUDY = [
    (
        "fcnn",
        [2, 3, 4, 5],
        [536_600, 616_600, 796_600, 1_230_200],
        [21_110, 81_310, 201_610, 515_610],
    ),
    ("cnn_mnist", None, [355_328, 389_376, 626_944, 946_944], [1_290, 34_186, 37_402, 37_610]),
    (
        "cnn_cifar10",
        None,
        [2_776_800, 2_929_800, 3_479_800, 5_159_800, 7_380_600],
        [3_010, 153_310, 553_810, 566_642, 567_858],
    ),
    ("cnn_cifar10", [4, 5], [5_159_800, 7_380_600], [566_642, 567_858]),
]


@pytest.mark.parametrize(("model", "widths", "macs", "uploads"), STUDY)
def test_costs_and_uploads_of_the_study(model, widths, macs, uploads):
    """2 FLOPs a MAC and 500 samples; uploads of 4 bytes a trained parameter; downloads of the whole model."""
    method = {"name": "fedpmt", **({} if widths is None else {"widths": widths})}
    fleet = [{"level": i + 1, "cpu": {"flops_per_s": 1e9}} for i in range(len(macs))]
    jobs = frames(simulate_null(timing_scenario(model=model, method=method, fleet=fleet)))["jobs"]
    jobs = jobs.sort_values("device")
    assert jobs["flops"].tolist() == [2 * 500 * mac for mac in macs]
    assert (jobs["up_bytes"] - 8).tolist() == [4 * parameters for parameters in uploads]
    assert set(jobs["down_bytes"] - 1) == {4 * uploads[-1]}


@pytest.mark.parametrize(("split", "down_extra", "up_extra"), [("server", 1, 8), ("device", 4, 1)])
def test_who_splits_changes_the_messages(split, down_extra, up_extra):
    """Server: a mask of 5 bits down, a capability of 8 bytes up. Device: 5 masks of 5 bits down, one mask up."""
    assert (math.ceil(5 / 8), math.ceil(5 * 5 / 8)) == (1, 4)
    scenario = timing_scenario(method={"name": "fedpmt", "split": split})
    jobs = frames(simulate_null(scenario))["jobs"].set_index("device")
    assert jobs["down_bytes"][0] - 4 * 567_858 == down_extra
    assert jobs["up_bytes"][0] - 4 * 3_010 == up_extra


def test_splits_and_uploads_learn_the_same():
    """Options I and II, and uploading what was not trained, differ in messages only."""
    variants = [{}, {"split": "device"}, {"upload": "full"}]
    runs = [run(mixed_scenario(method={"name": "fedpmt", **variant})) for variant in variants]
    assert len({fingerprint(r.learner.weights()) for r in runs}) == 1
    jobs = [r.tables["jobs"].frame().set_index("job").sort_index() for r in runs]
    assert jobs[0]["flops"].tolist() == jobs[1]["flops"].tolist() == jobs[2]["flops"].tolist()
    assert set(jobs[2]["up_bytes"] - 8) == {4 * 6090} != set(jobs[0]["up_bytes"] - 8)


@pytest.mark.parametrize("model", ["cnn_digits", NORMED])
def test_frozen_layers_keep_their_bits(model, monkeypatch):
    """After local training frozen parameters and running statistics are those received; all others have moved."""
    seen = []
    really_run = Trainer.run

    def recorded(self, assignment):
        result = really_run(self, assignment)
        seen.append((assignment, result.body))
        return result

    monkeypatch.setattr(Trainer, "run", recorded)
    run(mixed_scenario(model=model, method={"name": "fedpmt", "upload": "full"}, stop={"rounds": 1}))
    assert {len(assignment.task.submodel.frozen) for assignment, _ in seen} == {0, 1, 2}
    for assignment, body in seen:
        for name, tensor in {**body["params"], **body["buffers"]}.items():
            old = {**assignment.global_model["params"], **assignment.global_model["buffers"]}[name]
            assert torch.equal(tensor, old) == (name.rpartition(".")[0] in assignment.task.submodel.frozen)


def widths_in_time(seconds, deadline_s):
    """Return the widths of devices whose full model of three equal layers takes this many seconds.

    Each layer costs 2 FLOPs forward, 2 for weights and 2 for input gradients, which a layer without layers upstream
    does not pay; transfers take no time.
    """
    endless, n = np.full(len(seconds), np.inf), len(seconds)
    full_flops = 6 + 6
    setting = setting_of(
        [10] * n, SIZES, flops_per_s=10 * full_flops / np.array(seconds), up_bps=endless, down_bps=endless,
        deadline_s=deadline_s,
    )  # fmt: skip
    return FedPMT(rule="deadline").init(setting, KEY)["width"]


def test_largest_width_in_time():
    """Widths 1, 2, 3 take 8/12, 10/12, 12/12 of the full model's seconds. In time to the dot counts; the least is 1."""
    assert widths_in_time([9.0, 10.0, 12.0, 14.0, 15.0, 16.0, 100.0], 10.0) == [3, 3, 2, 1, 1, 1, 1]


def test_transfers_count_against_the_deadline():
    """Down 36 bytes of model and 1 of mask, up the trained layers and 8 bytes, twice the latency."""
    times_s = {1: 8 * 37 + 8 * (16 + 8) + 1, 2: 8 * 37 + 8 * (24 + 8) + 1, 3: 8 * 37 + 8 * (36 + 8) + 1}
    for width, seconds in times_s.items():
        setting = setting_of(
            [10], SIZES, flops_per_s=np.array([np.inf]), latency_s=np.array([0.5]), deadline_s=float(seconds)
        )
        assert FedPMT(rule="deadline").init(setting, KEY) == {"width": [width]}


WORK = {
    "optimiser": {"training": {"batch": 1, "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4}},
    "coding": {"encoding": {"up": {"flops_per_number": 300}, "down": {"flops_per_number": 300}}},
    "clock": {"fleet": {"clock": {"name": "terms", "flops": {"log_uniform": ["10 ns", "200 ns"]}, "steps": "50 ms"}}},
}


@pytest.mark.parametrize("changes", WORK.values(), ids=WORK)
def test_all_that_is_charged_counts_against_the_deadline(changes):
    """Nobody is late with more than the last layer, whatever else than forward and backward takes time."""
    cpu = {"flops_per_s": {"log_uniform": [5e6, 1e8]}, **changes.get("fleet", {})}
    plain = {"training": {"batch": 1, "lr": 0.01}, "fleet": [{"count": 100, "cpu": cpu}], "network": "ideal"}
    scenario = digits_scenario(
        method={"name": "fedpmt", "rule": "deadline"}, protocol={"name": "deadline", "deadline": "1 s"},
        cost={"name": "measured", "include": "all"}, partition={"name": "sizes", "samples_per_device": 15},
        selection="all", backend="null", stop={"rounds": 1}, **{**plain, **changes, "fleet": plain["fleet"]},
    )  # fmt: skip
    jobs = simulate_null(scenario).tables["jobs"].frame()
    assert set(jobs["submodel"][jobs["outcome"] == "late"]) <= {"last1"}
    assert jobs["submodel"].nunique() == 3


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        ({}, {}, r"fleet\.level: .* levels up to the 3 widths, found 5"),
        ({"widths": [2, 3]}, {}, r"fleet\.level: .* levels up to the 2 widths, found 5"),
        ({"rule": "deadline"}, {}, r"method\.rule: 'deadline' needs a protocol with a deadline"),
        ({"widths": [1, 2]}, {}, r"method\.widths: must rise to the model's 3 layers.*found \[1, 2\]"),
        ({"widths": [2, 1, 3]}, {}, r"method\.widths: must rise to the model's 3 layers.*found \[2, 1, 3\]"),
        ({"widths": [1, 1, 3]}, {}, r"method\.widths: must rise"),
        ({"widths": [1, 4]}, {}, r"method\.widths: must rise"),
        ({}, {"cost": {"name": "table", "ratios": [0.5, 1.0]}}, r"cost\.ratios: .*3 widths, found 2 ratios"),
    ],
)
def test_settings_that_do_not_fit(method, changes, message):
    """The error names the key, what was found and what would do."""
    fleet = [{"level": level, "cpu": {"flops_per_s": 1e8}} for level in (1, 5)]
    scenario = mixed_scenario(method={"name": "fedpmt", **method}, fleet=fleet, backend="null", **changes)
    with pytest.raises(ConfigError, match=message):
        prepare(scenario)


@pytest.mark.parametrize("widths", [[], [0, 3], [-1, 3]])
def test_widths_that_are_none(widths):
    """No width, or one without a layer, is refused."""
    with pytest.raises(ConfigError, match=r"method\.widths"):
        prepare(mixed_scenario(method={"name": "fedpmt", "widths": widths}, backend="null"))


@full
def test_slow_devices_still_teach():
    """Where a deadline shuts slow devices and their classes out of FedAvg, FedPMT keeps everybody and learns more.

    Source: FedPMT paper, experiments "with constraint" on non-i.i.d. data, at toy size.
    """
    fleet = [
        {"count": 5, "level": 1, "cpu": {"flops_per_s": "30 MFLOP/s"}},
        {"count": 5, "level": 3, "cpu": {"flops_per_s": "100 MFLOP/s"}},
    ]
    runs: list[Simulation] = [
        run(
            digits_scenario(
                method=method, fleet=fleet, network="ideal", selection="all", training={"batch": 20, "lr": 0.1},
                partition={"name": "two_class", "samples_per_device": 120}, evaluation={"every": 20},
                protocol={"name": "deadline", "deadline": "1 s"}, stop={"rounds": 20},
            )
        )
        for method in ("fedavg", "fedpmt")
    ]  # fmt: skip
    assert [set(r.tables["rounds"].frame()["used"]) for r in runs] == [{5}, {10}]
    accuracy = [r.tables["evals"].frame()["accuracy"].iloc[-1] for r in runs]
    assert accuracy[1] > accuracy[0] + 0.1


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "fedpmt": {
        "absent": "test_who_did_not_train_a_layer_may_count_with_the_old_one",
        "widths": "test_costs_and_uploads_of_the_study",
        "split": "test_who_splits_changes_the_messages",
        "rule": "test_largest_width_in_time",
        "upload": "test_splits_and_uploads_learn_the_same",
    },
}
