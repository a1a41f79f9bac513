"""HeteroFL against numbers on paper, sizes of thinner ResNets and training in PyTorch.

Source: Diao, Ding and Tarokh (2021); parameters and multiply-adds of ResNet18 by arithmetic on its layers.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from edgesim.core.errors import ConfigError
from edgesim.core.price_list import ChannelGroup, CostProfile, LayerCost
from edgesim.core.task import Payload, Submodel, Task
from edgesim.core.update import Update
from edgesim.learning.submodel.slicing import thinner
from edgesim.methods.heterofl import HeteroFL
from tests.conftest import frames, timing_scenario
from tests.contracts.support import NORMED, fingerprint, mixed_scenario, prepare, run
from tests.methods.hand_made import KEY, merged_layers, message_of, server_of, setting_of, view_of
from tests.methods.recorded import close_to, record

A_TO_E = (0.0625, 0.125, 0.25, 0.5, 1.0)
QUARTER_TO_ALL = {"name": "heterofl", "rates": [0.25, 0.5, 1.0], "tiers": "level"}

FOUR = CostProfile(
    "by hand",
    (1,),
    2,
    (LayerCost("w", "Linear", 4, 0, 8.0, 8.0, 8.0, frozenset(), weights=4, rows="w"),),
    groups=(ChannelGroup("w", 4),),
)


def submodels_of(model, method, **changes):
    """Return the parts that a method has for its rates, from the narrowest, and the cost profile of the model."""
    levels = [{"level": level, "cpu": {"flops_per_s": 1e9}} for level in range(1, len(method["rates"]) + 1)]
    simulation = prepare(timing_scenario(model=model, fleet=levels, method=method, **changes))
    plan = simulation.learner.plan(simulation.session.view())
    return [order.task.submodel for order in plan.orders], simulation.parts.setting.cost_profile


# --- the mean ---------------------------------------------------------------------------------------------------


def test_coordinates_are_averaged_over_who_has_them():
    """Half of four numbers came back as (2, 4), all as (4, 0, 6, 8); data sizes play no part."""
    half = Submodel(channels=(("w", (0, 1)),))
    got = [message_of(0, 100, {"w": [2.0, 4.0]}, half), message_of(1, 300, {"w": [4.0, 0.0, 6.0, 8.0]})]
    setting = setting_of([100, 300], {}, cost_profile=FOUR)
    assert merged_layers(HeteroFL(), setting, {"w": [1.0] * 4}, got) == {"w": [3, 2, 6, 8]}
    assert merged_layers(HeteroFL(weights="samples"), setting, {"w": [1.0] * 4}, got) == {"w": [3.5, 1, 6, 8]}
    assert merged_layers(HeteroFL(), setting, {"w": [1.0] * 4}, got[:1]) == {"w": [2, 4, 1, 1]}
    assert merged_layers(HeteroFL(), setting, {"w": [1.0] * 4}, []) is None


# 2 inputs, 2 hidden units, 3 classes; device 0 has the first unit and classes 0 and 1, device 1 all units and 1 and 2
TWO_LAYERS = CostProfile(
    "by hand",
    (2,),
    3,
    (
        LayerCost("fc1", "Linear", 4, 0, 8.0, 8.0, 8.0, frozenset(), weights=4, rows="fc1"),
        LayerCost("fc2", "Linear", 9, 0, 12.0, 12.0, 12.0, frozenset({"fc1"}), weights=6, columns="fc1"),
    ),
    groups=(ChannelGroup("fc1", 2),),
)
LABELS = np.array([[3, 1, 0], [0, 5, 2], [0, 0, 0]])


def full_of(value, hidden):
    """Return a model of `hidden` units all of whose numbers are alike."""
    shapes = {"fc1.weight": (hidden, 2), "fc2.weight": (3, hidden), "fc2.bias": (3,)}
    return {"params": {name: torch.full(shape, value) for name, shape in shapes.items()}, "buffers": {}}


@pytest.mark.parametrize(
    ("masking", "rows", "bias"),
    [(True, [[1, 9], [3, 5], [5, 5]], [1, 3, 5]), (False, [[3, 5], [3, 5], [3, 5]], [3, 3, 3])],
)
def test_rows_of_classes_are_those_of_who_has_them(masking, rows, bias):
    """Device 0 sends 1 and device 1 sends 5 everywhere, the old model is 9; what device 0 alone may say has unit 0."""
    half = Task(submodel=Submodel(channels=(("fc1", (0,)),)))
    got = [Update(0, 0, half, full_of(1.0, 1), 4, 1, 0, {}), Update(1, 1, Task(), full_of(5.0, 2), 7, 1, 0, {})]
    view = view_of(setting_of([4, 7, 0], {}, cost_profile=TWO_LAYERS, labels=LABELS))
    params = HeteroFL(masking=masking).aggregate({}, full_of(9.0, 2), got, server_of(view), KEY).model["params"]
    assert params["fc1.weight"].tolist() == [[3, 3], [5, 5]]
    assert params["fc2.weight"].tolist() == rows
    assert params["fc2.bias"].tolist() == bias


def test_who_has_no_sample_says_nothing():
    """A device that trained on nothing sends what it got: no row of a class is its."""
    got = [Update(2, 0, Task(), full_of(5.0, 2), 0, 0, 0, {})]
    view = view_of(setting_of([4, 7, 0], {}, cost_profile=TWO_LAYERS, labels=LABELS))
    model = HeteroFL().aggregate({}, full_of(9.0, 2), got, server_of(view), KEY).model
    assert fingerprint(model) == fingerprint(full_of(9.0, 2))


# --- sizes ------------------------------------------------------------------------------------------------------


def test_sizes_of_resnet18():
    """Ten classes, without its normalisation: ceil(r n) channels along the shortcuts too."""
    _, cost_profile = submodels_of("resnet18_gn", {"name": "heterofl", "rates": [1.0], "tiers": "level"})
    method = HeteroFL(rates=tuple(A_TO_E), tiers="level")  # which is for other normalisations
    submodels = [method.submodel(rank, cost_profile, 0) for rank in range(1, 1 + len(A_TO_E))]
    plain = replace(cost_profile, layers=tuple(layer for layer in cost_profile.layers if layer.weights))
    assert [plain.submodel_params(submodel) for submodel in submodels] == [44022, 175202, 699066, 2792810, 11164362]
    assert [plain.forward_flops(submodel) / 2 for submodel in submodels] == [
        2273600,
        8872576,
        35046656,
        139299328,
        555422720,
    ]
    assert [plain.nbytes(Payload(), submodel) for submodel in submodels[:2]] == [4 * 44022, 4 * 175202]


def test_first_units_and_at_least_one():
    """A sixteenth and a third of LeNet's 6, 16, 120 and 84, rounded up."""
    submodels, _ = submodels_of("lenet5", {"name": "heterofl", "rates": [1 / 16, 1 / 3], "tiers": "level"})
    for submodel, counts in zip(submodels, ((1, 1, 8, 6), (2, 6, 40, 28)), strict=True):
        assert [channels for _, channels in submodel.channels] == [tuple(range(count)) for count in counts]
    assert [submodel.width for submodel in submodels] == [1, 2]


# --- training ---------------------------------------------------------------------------------------------------


def logits_of(weights, images, rate):
    """Return what cnn_digits of a rate says, what a ReLU gives divided by the rate: before it would be the same."""
    maps = images
    for name in ("conv1", "conv2"):
        maps = functional.conv2d(maps, weights[f"{name}.weight"], weights[f"{name}.bias"], padding=1)
        maps = functional.relu(functional.max_pool2d(maps, 2)) / rate
    return functional.linear(maps.flatten(1), weights["fc1.weight"], weights["fc1.bias"])


def corner(name, tensor, rate):
    """Return the first units of a tensor of cnn_digits: 16 and 32 channels, 4 pixels a channel, 10 classes."""
    rows, columns = {"conv1": (16, None), "conv2": (32, 16), "fc1": (None, 4 * 32)}[name.partition(".")[0]]
    tensor = tensor if rows is None else tensor[: math.ceil(rate * rows)]
    return tensor if columns is None or tensor.dim() == 1 else tensor[:, : math.ceil(rate * columns)]


@pytest.mark.parametrize("masking", [True, False])
def test_devices_train_thin_networks_on_their_classes(monkeypatch, masking):
    """Rates 1/4, 1/2 and 1, two of ten classes each: SGD in PyTorch, in which other classes' logits are 0."""
    jobs = record(monkeypatch)
    partition = {"name": "x_class", "x": 2, "samples_per_device": 40}
    run(mixed_scenario(method={**QUARTER_TO_ALL, "masking": masking}, partition=partition))
    rates = set()
    for job in jobs:
        trainer, assignment = job.trainer, job.assignment
        rate = (0.25, 0.5, 1.0)[assignment.task.submodel.width - 1]
        weights = {n: corner(n, t, rate).clone().requires_grad_() for n, t in assignment.global_model["params"].items()}
        labels = trainer.data.y_train[trainer.shards[assignment.device]]
        has = torch.tensor([bool((labels == label).any()) for label in range(10)])
        for x, y in job.batches():
            logits = logits_of(weights, x, rate)
            loss = functional.cross_entropy(logits * has if masking else logits, y)
            grads = torch.autograd.grad(loss, list(weights.values()))
            with torch.no_grad():
                for w, g in zip(weights.values(), grads, strict=True):
                    w -= 0.1 * g
        close_to(job.result.body["params"], {n: w.detach() for n, w in weights.items()}, atol=1e-5)
        assert has.sum() == 2
        rates.add(rate)
    assert rates == {0.25, 0.5, 1.0}


@pytest.mark.parametrize(("scaler", "factor"), [(True, 4.0), (False, 1.0)])
def test_a_quarter_gives_four_times_as_much(scaler, factor):
    """Beside the network on paper, with and without; the cut network is the one that devices train."""
    method = {"name": "heterofl", "rates": [0.25], "tiers": "level", "scaler": scaler}
    fleet = [{"level": 1, "cpu": {"flops_per_s": 1e9}}]
    simulation = prepare(mixed_scenario(method=method, fleet=fleet))
    task = simulation.learner.plan(simulation.session.view()).orders[0].task
    thin = thinner(simulation.parts.module, task.submodel, simulation.parts.setting.cost_profile)
    images, weights = torch.linspace(-1, 1, 128).reshape(2, 1, 8, 8), dict(thin.named_parameters())
    torch.testing.assert_close(thin(images), logits_of(weights, images, 1 / factor), check_stride=False)


def test_a_normalisation_takes_a_factor_out_itself():
    """Where one follows, nothing is scaled; in a network without any all groups are."""
    half = {"name": "heterofl", "rates": [0.5], "tiers": "level"}
    (submodel, *_), cost_profile = submodels_of(NORMED, half, data="digits", partition="iid")
    assert [name for name, _ in submodel.channels] == [group.name for group in cost_profile.groups] == ["conv"]
    assert submodel.scale == ()
    (submodel, *_), _ = submodels_of("lenet5", half)
    assert [name for name, _ in submodel.scale] == ["conv1", "conv2", "fc1", "fc2"]
    assert {factor for _, factors in submodel.scale for factor in factors} == {2.0}


def test_the_only_rate_is_fedavg():
    """Rate 1 without masks: FedAvg of equal data sizes, also of a network without hidden units."""
    for model in ("cnn_digits", "mlr"):
        fedavg, mine = (
            run(mixed_scenario(method=method, model=model)).learner.weights()["params"]
            for method in ("fedavg", {"name": "heterofl", "rates": [1.0], "masking": False})
        )
        close_to(mine, fedavg)


# --- who has which rate -----------------------------------------------------------------------------------------


def ranks(devices=20, **settings):
    """Return the rank of every device."""
    method = HeteroFL(**settings)
    return method.init(setting_of([1] * devices, {}, cost_profile=FOUR), KEY)["rank"]


@pytest.mark.parametrize(
    ("settings", "counts"),
    [
        ({}, [4, 4, 4, 4, 4]),
        ({"rates": (0.25, 0.5, 1.0), "proportions": (1.0, 1.0, 3.0)}, [4, 4, 12]),
        ({"rates": (0.5,)}, [20]),
    ],
)
def test_proportions(settings, counts):
    """Of 20 devices, in an order that is drawn once."""
    found = ranks(**settings)
    assert np.bincount(found)[1:].tolist() == counts
    assert found == ranks(**settings)
    assert len(counts) == 1 or found != sorted(found)


def test_rates_may_be_drawn_every_round():
    """40 devices in 25 rounds, three quarters of them wide: 750 +- 13.7 of 1000; every device has both."""
    method = {"name": "heterofl", "rates": [0.25, 1.0], "tiers": "dynamic", "proportions": [1.0, 3.0]}
    fleet = [{"count": 40, "cpu": {"flops_per_s": 1e9}}]
    simulation = prepare(timing_scenario(model="lenet5", method=method, fleet=fleet))
    wide = []
    for round_ in range(25):
        simulation.session.round = round_
        plan = simulation.learner.plan(simulation.session.view())
        assert plan == simulation.learner.plan(simulation.session.view())
        wide.append([order.task.submodel.width == 2 for order in plan.orders])
    assert abs(np.sum(wide) - 750) < 5 * math.sqrt(1000 * 0.25 * 0.75)
    assert (np.std(wide, axis=0) > 0).all()


def test_levels_and_a_cost_table():
    """Level i has the i-th rate, which a table prices as the i-th width."""
    cost = {"name": "table", "ratios": [0.1, 0.4, 1.0]}
    jobs = frames(run(mixed_scenario(method=QUARTER_TO_ALL, backend="null", cost=cost, stop={"rounds": 1})))["jobs"]
    jobs = jobs.sort_values("device")
    assert jobs["submodel"].tolist() == ["rate0.25"] * 2 + ["rate0.5"] * 2 + ["rate1"] * 2
    assert (jobs["flops"] / jobs["flops"].max()).tolist() == pytest.approx([0.1] * 2 + [0.4] * 2 + [1] * 2)


# --- what does not fit ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        ({"rates": [0.5, 0.25]}, {}, r"method\.rates: must rise, found \[0\.5, 0\.25\]"),
        ({"rates": [0.5, 0.5]}, {}, r"method\.rates: must rise"),
        ({"rates": []}, {}, r"method\.rates"),
        ({"rates": [0.0, 1.0]}, {}, r"method\.rates"),
        ({"rates": [0.5, 1.5]}, {}, r"method\.rates"),
        ({"proportions": [0.5, 0.5]}, {}, r"method\.proportions: must be as many as the 5 of method\.rates, found 2"),
        ({"proportions": [1, 1, 1, 1, 0]}, {}, r"method\.proportions"),
        ({"tiers": "level", "proportions": [1] * 5}, {}, r"method\.proportions: .*, found method\.tiers 'level'"),
        ({"rates": [0.5, 1.0], "tiers": "level"}, {}, r"fleet\.level: method\.rates .* for 2 levels, found level 3"),
        ({"tiers": "random"}, {}, r"method\.tiers"),
        ({"weights": "loss"}, {}, r"method\.weights"),
        ({}, {"model": "mlr"}, r"model\.name: mlr has no hidden unit .* method\.rates must be \[1\.0\] for it"),
        ({}, {"cost": {"name": "table", "ratios": [0.5, 1.0]}}, r"cost\.ratios: .*5 widths, found 2 ratios"),
    ],
)
def test_settings_that_do_not_fit(method, changes, message):
    """The error names the key, what was found and what would do."""
    with pytest.raises(ConfigError, match=message):
        prepare(mixed_scenario(method={"name": "heterofl", **method}, backend="null", **changes))


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "heterofl": {
        "rates": "test_sizes_of_resnet18",
        "tiers": "test_rates_may_be_drawn_every_round",
        "proportions": "test_proportions",
        "scaler": "test_a_quarter_gives_four_times_as_much",
        "masking": "test_devices_train_thin_networks_on_their_classes",
        "weights": "test_coordinates_are_averaged_over_who_has_them",
    },
}
