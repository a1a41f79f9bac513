"""COMET: clusters by hand, the loss of a step by PyTorch, and what is charged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from edgesim.core.rng import JobStream, Key
from edgesim.methods.comet import Comet, k_means
from tests.conftest import digits_scenario
from tests.contracts.support import merge_arguments, prepare, run
from tests.methods.recorded import record

SAMPLES = 40
METHOD = {"name": "comet", "public_samples": SAMPLES, "clusters": 2}


def scenario_of(models=("cnn_digits", "mlr"), **changes):
    """Return a scenario on digits in which two devices have each network, with 50 samples each."""
    method = {**METHOD, **changes.pop("method", {})}
    fleet = [{"count": 2, "cpu": {"flops_per_s": "50 MFLOP/s"}, "model": model} for model in models]
    base = {"method": method, "fleet": fleet, "selection": "all", "stop": {"rounds": 2}}
    return digits_scenario(**{**base, "partition": {"name": "iid", "samples_per_device": 50}, **changes})


@pytest.mark.parametrize("seed", range(5))
def test_k_means_finds_two_heaps_whatever_it_begins_with(seed):
    """Two rows near 0 and three near 10; one cluster holds all; as many clusters as rows hold one each."""
    rows = torch.tensor([[0.0, 0.1], [10.0, 10.0], [0.1, 0.0], [9.0, 10.0], [10.0, 9.0]], dtype=torch.float64)
    places, _ = k_means(rows, 2, Key(seed))
    assert places[0] == places[2] != places[1] == places[3] == places[4]
    assert k_means(rows, 1, Key(seed))[0].tolist() == [0] * 5
    assert sorted(k_means(rows, 5, Key(seed))[0].tolist()) == [0, 1, 2, 3, 4]


def test_devices_are_told_the_mean_of_their_cluster():
    """Of each cluster of the state, in float32; the server's FLOPs are 3 a pass, device, cluster and number."""
    simulation = prepare(scenario_of())
    state, base, updates, server, key = merge_arguments(simulation)
    merged = simulation.learner.method.combine(state, base, updates, server, key)
    said = {u.device: u.body["tensors"]["answers"] for u in updates}
    told = merged.model["tensors"]
    assert set(told) == set(merged.state["clusters"].values())
    for name in told:
        own = [said[device] for device, cluster in merged.state["clusters"].items() if cluster == name]
        assert torch.allclose(told[name], sum(own) / len(own), atol=1e-5)
    assert merged.server_flops % (3 * 4 * 2 * SAMPLES * 10) == 0 and merged.server_flops > 0


def test_a_step_is_drawn_to_what_the_cluster_said(monkeypatch):
    """The second round of a device by hand: cross-entropy plus `lam` times the distance."""
    done = record(monkeypatch)
    simulation = run(scenario_of(method={"lam": 0.7}))
    x = simulation.parts.data.batch("train", torch.from_numpy(simulation.parts.server_set.rows))[0]
    before, job = (each for each in sorted(done, key=lambda j: j.assignment.job) if each.assignment.device == 0)
    network = simulation.parts.module.get_submodule("cnn_digits")
    network.load_state_dict(before.result.new_device_state["params"])
    network.train()
    for parameter in network.parameters():
        parameter.requires_grad_()
    name = job.assignment.task.down.tensors[0].name
    told = job.assignment.global_model["tensors"][name]
    order = job.assignment.key.at(JobStream.PUBLIC).numpy().permutation(SAMPLES)
    optimiser, taken = torch.optim.SGD(network.parameters(), 0.1), 0
    for inputs, labels in job.batches():
        places = torch.from_numpy(np.take(order, range(taken, taken + len(labels)), mode="wrap"))
        taken += len(labels)
        optimiser.zero_grad()
        own = torch.nn.functional.cross_entropy(network(inputs), labels)
        (own + 0.7 * (network(x[places]) - told[places]).square().mean()).backward()
        optimiser.step()
    for param, value in network.named_parameters():
        kept = job.result.new_device_state["params"][param]
        torch.testing.assert_close(kept, value.detach(), atol=1e-4, rtol=1e-3, check_stride=False)


@pytest.mark.parametrize(("lam", "times"), [(1.0, 2), (0.0, 1)])
def test_each_step_has_as_many_public_samples(lam, times):
    """From the second round on, when devices are told something; without `lam` there are none."""
    simulation = run(scenario_of(method={"lam": lam}))
    profiles = list(simulation.parts.setting.cost_profile.networks.values())
    for job in simulation.tables["jobs"].frame().itertuples():
        profile = profiles[job.device // 2]
        trained = 50 * (times if job.round else 1)
        assert job.flops == trained * profile.train_flops() + SAMPLES * profile.forward_flops()
        assert job.up_bytes == SAMPLES * 40 and job.down_bytes == SAMPLES * 40 * (job.round > 0)


def test_who_was_not_heard_trains_alone():
    """A device that is asked for the first time is told nothing."""
    simulation = prepare(scenario_of())
    method, view = simulation.learner.method, simulation.session.view()
    orders = method.plan({"clusters": {1: "answers_0_0"}}, view, Key(1)).orders
    assert [order.task.down is None for order in orders] == [True, False, True, True]


def test_who_did_not_come_is_told_again_what_its_cluster_said():
    """The tensors of clusters are kept as long as a device may be told them."""
    simulation = prepare(scenario_of())
    state, base, updates, server, key = merge_arguments(simulation)
    method = Comet(public_samples=SAMPLES, clusters=1)
    first = method.combine(state, base, updates, server, key)
    second = method.combine(first.state, first.model, updates[:2], replace(server, round=1), key)
    names = [second.state["clusters"][update.device] for update in updates]
    assert names == ["answers_1_0", "answers_1_0", "answers_0_0", "answers_0_0"]
    third = method.combine(second.state, second.model, updates, replace(server, round=2), key)
    assert set(third.model["tensors"]) == {"answers_2_0"}


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "comet": {
        "public_samples": "test_each_step_has_as_many_public_samples",
        "clusters": "test_k_means_finds_two_heaps_whatever_it_begins_with",
        "lam": "test_a_step_is_drawn_to_what_the_cluster_said",
    },
}
