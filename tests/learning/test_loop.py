"""A run of local SGD leaves the bits that torch's own optimiser leaves."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

from edgesim.core.backend import Assignment
from edgesim.core.errors import ConfigError
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.method import LocalPhase, LocalState
from edgesim.core.task import Submodel, Task
from edgesim.engine.pricing import memory_bytes
from edgesim.learning.models.build import model_state_of
from edgesim.learning.models.seeding import seeded
from edgesim.learning.train.context import Context
from edgesim.learning.train.loop import batch_order, run_local_sgd
from edgesim.runs.assembly import assemble
from tests.conftest import digits_scenario, frames, simulate_null
from tests.contracts.support import MODELS, prepare
from tests.methods.hand_made import KEY

SETTINGS = ({}, {"momentum": 0.9}, {"weight_decay": 0.01}, {"momentum": 0.5, "weight_decay": 0.1})
SETTINGS += ({"momentum": 0.9, "nesterov": True}, {"momentum": 0.5, "weight_decay": 0.1, "nesterov": True})
ADAM = ({}, {"weight_decay": 0.1}, {"beta1": 0.5, "beta2": 0.8, "eps": 1e-3})
OPTIMIZERS = [
    *(("sgd", settings) for settings in SETTINGS),
    *((name, settings) for name in ("adam", "adamw") for settings in ADAM),
]
TORCH = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("name", "settings"), OPTIMIZERS)
def test_as_torch_takes_its_steps(model, name, settings):
    """Two epochs, with buffers where the network has some."""
    parts = assemble(digits_scenario(model=model))
    module, data, first = parts.module, parts.data, model_state_of(parts.module)
    shard, sgd = torch.arange(40), LocalSGD(batch=16, lr=0.1, epochs=2, optimizer=name, **settings)
    context = Context(module, data, shard, Assignment(0, 0, Task(), KEY, first, None), False)
    net = copy.deepcopy(module).train()
    local = LocalState(context.copy(first))
    with seeded(KEY):  # one of the networks drops units out
        assert run_local_sgd(local, sgd, LocalPhase(), context, KEY) == 6

    betas = {"betas": (settings.get("beta1", 0.9), settings.get("beta2", 0.999))} if name != "sgd" else {}
    others = {key: value for key, value in settings.items() if key not in ("beta1", "beta2")}
    optimizer = TORCH[name](net.parameters(), lr=0.1, weight_decay=others.pop("weight_decay", 0.0), **betas, **others)
    with seeded(KEY):
        for positions in batch_order(KEY.at(0), 40, sgd, False):
            x, y = data.batch("train", shard[positions])
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
    expected = model_state_of(net)
    for kind, tensors in expected.items():
        for name, tensor in tensors.items():
            assert torch.equal(local.weights[kind][name], tensor), name


def test_without_shuffle_samples_come_as_the_partition_has_them():
    """Two epochs of a device whose first half is one class and whose second half another, with a loop over slices."""
    classes = {"name": "two_class", "samples_per_device": 22}
    scenario = digits_scenario(
        model={"name": "mlp", "hidden": [8]},
        partition=classes,
        training={"batch": 8, "lr": 0.1, "local_epochs": 2, "shuffle": False},
        selection="all",
        stop={"rounds": 1},
        fleet=[{"count": 1, "cpu": {"flops_per_s": "20 MFLOP/s"}}],
    )
    simulation = prepare(scenario)
    simulation.run()
    parts = assemble(scenario)
    shard = torch.from_numpy(parts.split.train[0])
    x, y = parts.data.batch("train", shard)
    assert len(set(y[:11].tolist())) == len(set(y[11:].tolist())) == 1 and y[0] != y[11]

    net = copy.deepcopy(parts.module).train()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for start in (0, 8, 16, 0, 8, 16):
        optimizer.zero_grad()
        F.cross_entropy(net(x[start : start + 8]), y[start : start + 8]).backward()
        optimizer.step()
    for name, tensor in model_state_of(net)["params"].items():
        assert torch.equal(simulation.learner.weights()["params"][name], tensor), name


def test_batches_are_augmented_one_by_one():
    """However many steps' samples are gathered at once, each step has the draws that it has when it is alone."""
    parts = assemble(digits_scenario(data={"name": "digits", "augment": {"crop": 1, "flip": True}}))
    job = Assignment(0, 0, Task(), KEY, model_state_of(parts.module), None)
    context = Context(parts.module, parts.data, torch.arange(40), job, False)
    order = torch.split(torch.arange(40), 16)
    together = list(context.batches(order, torch.Generator().manual_seed(3)))
    draws = torch.Generator().manual_seed(3)
    alone = [context.batch(positions, draws) for positions in order]
    assert all(torch.equal(x, one.x) and torch.equal(y, one.y) for (x, y), one in zip(together, alone, strict=True))
    assert not torch.equal(together[0].x, parts.data.batch("train", order[0])[0])


def test_a_data_set_moves_whole():
    """To the device that torch has for tensors without numbers; where it is already it stays the same object."""
    data = assemble(digits_scenario()).data
    moved = data.to(torch.device("meta"))
    assert {moved.x_train.device.type, moved.y_train.device.type, moved.x_test.device.type} == {"meta"}
    assert (moved.name, moved.classes, moved.x_train.shape) == (data.name, data.classes, data.x_train.shape)
    x, y = moved.batch("train", torch.arange(3))
    assert (x.device.type, x.shape[0], y.shape) == ("meta", 3, (3,))
    assert data.to(torch.device("cpu")) is data


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"optimizer": "adam", "momentum": 0.9}, r"training\.momentum: goes with optimizer 'sgd' alone, found 'adam'"),
        (
            {"optimizer": "adamw", "nesterov": True},
            r"training\.nesterov: goes with optimizer 'sgd' alone, found 'adamw'",
        ),
        ({"nesterov": True}, r"training\.nesterov: needs training\.momentum above 0, found 0"),
        ({"lr": 0.1, "lr_floor": 0.2}, r"training\.lr_floor: must be at most training\.lr, 0\.1, got 0\.2"),
        ({"optimizer": "rmsprop"}, r"training\.optimizer: .*'sgd', 'adam' or 'adamw'"),
        ({"optimizer": "adam", "beta2": 1.0}, r"training\.beta2: .*less than 1"),
    ],
)
def test_settings_that_do_not_go_together(settings, says):
    with pytest.raises(ConfigError, match=says):
        assemble(digits_scenario(training=settings))


@pytest.mark.parametrize("method", ["scaffold", "fednova", "fedsgd", "dfedavgm", "dfedsam", "beer"])
def test_methods_that_make_use_of_sgd_s_steps_refuse_others(method):
    peers = {"peers": "ring", "selection": "all"} if method in ("dfedavgm", "dfedsam", "beer") else {}
    with pytest.raises(ConfigError, match=r"training\.optimizer: must be 'sgd' for this method, found 'adam'; "):
        prepare(digits_scenario(method=method, training={"optimizer": "adam"}, **peers))


def test_fednova_does_not_know_nesterov():
    training = {"momentum": 0.9, "nesterov": True}
    with pytest.raises(ConfigError, match=r"training\.nesterov: must be false for this method, found true"):
        prepare(digits_scenario(method="fednova", training=training))


# FLOPs for each trained parameter and step, and numbers that are kept for each.
PRICES = [
    ({}, 2, 0),
    ({"momentum": 0.9}, 4, 1),
    ({"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}, 8, 1),
    ({"optimizer": "adam"}, 13, 2),  # m 3, v 4; root, correction, eps 3; quotient, product, sum 3
    ({"optimizer": "adamw", "weight_decay": 0.1}, 15, 2),
]


@pytest.mark.parametrize(("settings", "flops", "moments"), PRICES)
def test_what_steps_and_moments_cost(settings, flops, moments):
    """40 samples in batches of 16 are 3 steps; with `include = "all"` a step's own FLOPs are charged."""
    changes = {"partition": {"name": "iid", "samples_per_device": 40}, "cost": {"name": "measured", "include": "all"}}
    scenario = digits_scenario(training={"batch": 16, **settings}, backend="null", stop={"rounds": 1}, **changes)
    parts, jobs = assemble(scenario), frames(simulate_null(scenario))["jobs"]
    profile = parts.setting.cost_profile
    assert jobs["flops"].tolist() == pytest.approx(
        [40 * profile.train_flops(include="all") + 3 * flops * profile.params] * len(jobs), rel=1e-12
    )
    sgd = parts.setting.training.local_sgd(0)
    assert sgd.moments == moments
    need = memory_bytes(Task(local_sgd=(sgd,)), parts.setting)
    assert need - profile.memory_bytes(Submodel(), 16).total == 4 * moments * profile.params
