"""FedDF against its algorithm in plain PyTorch, with one network and with two."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from edgesim.core.errors import ConfigError
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.networks import part_of
from edgesim.learning.train.loop import batch_order
from edgesim.runs.assembly import assemble
from tests.conftest import digits_scenario
from tests.contracts.support import merge_arguments, prepare, run

METHOD = {"name": "feddf", "public_samples": 60, "steps": 5, "batch": 25, "lr": 0.01}
FLEETS = {"one network": ["cnn_digits"], "two networks": ["cnn_digits", "mlr"]}


def scenario_of(models=("cnn_digits", "mlr"), **changes):
    """Return a scenario on digits in which two devices have each network."""
    method = {**METHOD, **changes.pop("method", {})}
    fleet = [{"count": 2, "cpu": {"flops_per_s": "50 MFLOP/s"}, "model": model} for model in models]
    return digits_scenario(**{"method": method, "fleet": fleet, "selection": "all", "stop": {"rounds": 1}, **changes})


def networks_of(parts):
    """Return the modules of a run, by name."""
    several = parts.setting.networks is not None
    return dict(parts.module.named_children()) if several else {"": parts.module}


def loaded(module, model):
    """Return a copy of a module with these weights."""
    own = copy.deepcopy(module)
    own.load_state_dict({**model["params"], **model["buffers"]})
    return own


@pytest.mark.parametrize("models", FLEETS.values(), ids=FLEETS)
def test_the_mean_learns_what_the_models_of_all_say_together(models):
    """Algorithms 1 and 3 by hand: mean logits, softmax, KL; Adam of torch.optim with half a cosine."""
    simulation = prepare(scenario_of(models))
    state, base, updates, server, key = merge_arguments(simulation)
    merged = simulation.learner.method.combine(state, base, updates, server, key)
    parts = simulation.parts
    networks, rows = networks_of(parts), torch.from_numpy(parts.server_set.rows)
    x = parts.data.batch("train", rows)[0]
    with torch.no_grad():
        said = [
            loaded(networks[u.task.submodel.network], part_of(u.body, u.task.submodel.network)).eval()(x)
            for u in updates
        ]
    teacher = torch.softmax(sum(said) / len(said), 1)
    for place, (name, module) in enumerate(networks.items()):
        own = [u for u in updates if u.task.submodel.network == name]
        whole, mean = sum(u.samples for u in own), {}
        for param in dict(module.named_parameters()):
            mean[param] = sum(part_of(u.body, name)["params"][param] * (u.samples / whole) for u in own)
        student = loaded(module, {"params": mean, "buffers": {}}).train()
        optimiser = torch.optim.Adam(student.parameters(), 0.01)
        order = batch_order(key.at(place).at(0), 60, LocalSGD(batch=25, lr=1.0, steps=5), False)
        for step, places in enumerate(order):
            optimiser.param_groups[0]["lr"] = 0.01 * (1 + math.cos(math.pi * step / 5)) / 2
            optimiser.zero_grad()
            F.kl_div(torch.log_softmax(student(x[places]), 1), teacher[places], reduction="batchmean").backward()
            optimiser.step()
        for param, value in student.named_parameters():  # Adam lets gradients of next to nothing take whole steps
            moved, off = value - mean[param], part_of(merged.model, name)["params"][param] - value
            assert float(off.abs().mean()) < 0.01 * float(moved.abs().mean())


def test_the_server_is_charged_for_looking_and_for_its_steps():
    """60 samples through each of four models, and 25 + 25 + 10 + 25 + 25 samples of training a network."""
    simulation = run(scenario_of(server={"flops_per_s": "1 GFLOP/s"}))
    profiles = simulation.parts.setting.cost_profile.networks.values()
    flops = sum(2 * 60 * profile.forward_flops() + 110 * profile.train_flops() for profile in profiles)
    averaging = sum(2 * 2 * profile.params for profile in profiles)
    assert simulation.tables["rounds"].frame()["server_s"][0] == pytest.approx((flops + averaging) / 1e9)


def test_a_network_without_updates_learns_from_those_of_others():
    """It starts from the model before; the labels of the samples play no part."""
    simulation = prepare(scenario_of())
    state, base, updates, server, key = merge_arguments(simulation)
    own = [u for u in updates if u.task.submodel.network == "mlr"]
    merged = simulation.learner.method.combine(state, base, own, server, key)
    old, new = (part_of(model, "cnn_digits")["params"] for model in (base, merged.model))
    assert all(not torch.equal(old[name], new[name]) for name in old)
    server.tools.data.y_train.zero_()
    again = simulation.learner.method.combine(state, base, own, server, key)
    assert all(torch.equal(new[n], part_of(again.model, "cnn_digits")["params"][n]) for n in new)


def test_with_their_own_teachers_networks_learn_apart():
    """A network becomes what it becomes if the others' updates had not come, bit for bit; and else it does not."""
    simulation = prepare(scenario_of(method={"teachers": "own"}))
    state, base, updates, server, key = merge_arguments(simulation)
    method = simulation.learner.method
    merged = method.combine(state, base, updates, server, key)
    for name in ("cnn_digits", "mlr"):
        own = [u for u in updates if u.task.submodel.network == name]
        alone, taught = (replace(method.method, teachers=who) for who in ("own", "all"))
        found = part_of(merged.model, name)["params"]
        alone = part_of(alone.combine(state, base, own, server, key).model, name)["params"]
        taught = part_of(taught.combine(state, base, updates, server, key).model, name)["params"]
        assert all(torch.equal(found[n], alone[n]) for n in found)
        assert not all(torch.equal(found[n], taught[n]) for n in found)


def test_steps_that_diverge_leave_the_mean():
    """With a rate at which numbers overflow; the metric says how many networks."""
    simulation = prepare(scenario_of(method={"lr": 1e30, "steps": 20}))
    state, base, updates, server, key = merge_arguments(simulation)
    merged = simulation.learner.method.combine(state, base, updates, server, key)
    assert merged.metrics["not_finite"] >= 1
    assert all(bool(t.isfinite().all()) for tensors in merged.model.values() for t in tensors.values())


def test_nobody_trains_on_the_servers_samples():
    """They are drawn from the training set at random, and there has to be something left."""
    parts = assemble(scenario_of())
    held = {int(row) for shard in parts.split.train for row in shard}
    assert len(parts.server_set.rows) == 60 and held.isdisjoint(parts.server_set.rows.tolist())
    with pytest.raises(ConfigError, match=r"^method\.public_samples: the server asks for 1501 train samples, allowed"):
        assemble(scenario_of(method={"public_samples": 1501}))


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "feddf": {
        "public_samples": "test_nobody_trains_on_the_servers_samples",
        "steps": "test_the_server_is_charged_for_looking_and_for_its_steps",
        "batch": "test_the_mean_learns_what_the_models_of_all_say_together",
        "lr": "test_the_mean_learns_what_the_models_of_all_say_together",
        "aggregate_over": "test_fedavg.py::test_absent_devices_may_count_with_the_old_model",
        "weights": "test_fedavg.py::test_devices_may_count_alike",
        "teachers": "test_with_their_own_teachers_networks_learn_apart",
    },
}
