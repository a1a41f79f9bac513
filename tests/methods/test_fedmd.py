"""FedMD: what devices do is what plain PyTorch does, what they are charged, and who hears whom."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from edgesim.core.rng import JobStream
from edgesim.learning.train.loop import batch_order
from tests.conftest import digits_scenario, simulate_null
from tests.contracts.support import prepare, run
from tests.methods.recorded import record

SAMPLES, CLASSES = 40, 10
METHOD = {"name": "fedmd", "public_samples": SAMPLES, "public_epochs": 2, "digest_epochs": 3}


def scenario_of(models=("cnn_digits", "mlr"), **changes):
    """Return a scenario on digits in which two devices have each network, with 50 samples each."""
    method = changes.pop("method", METHOD)
    method = {**METHOD, **method} if isinstance(method, dict) else method
    fleet = [{"count": 2, "cpu": {"flops_per_s": "50 MFLOP/s"}, "model": model} for model in models]
    base = {"method": method, "fleet": fleet, "selection": "all", "stop": {"rounds": 2}}
    return digits_scenario(**{**base, "partition": {"name": "iid", "samples_per_device": 50}, **changes})


def by_hand(job, start, public, told, epochs):
    """Return a device's network after its steps on public samples and on its own, and its logits, by torch.optim."""
    network = copy.deepcopy(job.trainer.module.get_submodule(job.assignment.task.submodel.network))
    network.load_state_dict(start)
    network.train()
    for parameter in network.parameters():
        parameter.requires_grad_()
    optimiser, (x, y) = torch.optim.SGD(network.parameters(), 0.1), public
    sgd = replace(job.assignment.task.local_sgd[0], epochs=epochs)
    for places in batch_order(job.assignment.key.at(JobStream.PUBLIC), SAMPLES, sgd, False):
        optimiser.zero_grad()
        said = network(x[places])
        loss = F.cross_entropy(said, y[places]) if told is None else (said - told[places]).abs().mean()
        loss.backward()
        optimiser.step()
    for inputs, labels in job.batches():
        optimiser.zero_grad()
        F.cross_entropy(network(inputs), labels).backward()
        optimiser.step()
    with torch.no_grad():
        return network, network.eval()(x)


def test_two_rounds_by_hand(monkeypatch):
    """Labels, then private data; in the next round the mean logits of all four, of both networks, and private data."""
    done = record(monkeypatch)
    simulation = prepare(scenario_of())
    first = {name: copy.deepcopy(module).state_dict() for name, module in simulation.parts.module.named_children()}
    simulation.run()
    public = simulation.parts.data.batch("train", torch.from_numpy(simulation.parts.server_set.rows))
    jobs = sorted(done, key=lambda job: job.assignment.job)
    assert [job.assignment.device for job in jobs] == [0, 1, 2, 3] * 2
    states, said = {}, []
    for job in jobs[:4]:
        network, logits = by_hand(job, first[job.assignment.task.submodel.network], public, None, epochs=2)
        states[job.assignment.device] = network.state_dict()
        said.append(logits)
        torch.testing.assert_close(job.result.body["tensors"]["answers"], logits, atol=1e-4, rtol=1e-4)
    for job in jobs[4:]:
        network, logits = by_hand(job, states[job.assignment.device], public, sum(said) / 4, epochs=3)
        torch.testing.assert_close(job.result.body["tensors"]["answers"], logits, atol=1e-3, rtol=1e-3)
        for name, value in network.named_parameters():
            kept = job.result.new_device_state["params"][name]
            torch.testing.assert_close(kept, value.detach(), atol=1e-4, rtol=1e-3, check_stride=False)


@pytest.mark.parametrize("backend", ["serial", "null"])
def test_only_logits_travel_and_all_work_is_charged(backend):
    """40 x 10 float32 up, as many down from the second round on; FLOPs of public samples, own ones, and of looking."""
    scenario = scenario_of(backend=backend)
    simulation = simulate_null(scenario) if backend == "null" else run(scenario)
    jobs = simulation.tables["jobs"].frame()
    assert set(jobs["up_bytes"]) == {SAMPLES * CLASSES * 4}
    assert jobs.groupby("round")["down_bytes"].unique().map(list).tolist() == [[0], [SAMPLES * CLASSES * 4]]
    profiles = list(simulation.parts.setting.cost_profile.networks.values())
    for job in jobs.itertuples():
        profile, public = profiles[job.device // 2], SAMPLES * (2, 3)[job.round]
        assert job.flops == (50 + public) * profile.train_flops() + SAMPLES * profile.forward_flops()


def test_with_their_own_teachers_networks_hear_themselves_alone():
    """The mean logits of each pair of devices; both pairs' mean is that of all."""
    simulation = run(scenario_of(method={"teachers": "own"}))
    told, learner = simulation.learner.weights()["tensors"], simulation.learner
    orders = learner.plan(simulation.session.view()).orders
    names = [order.task.down.tensors[0].name for order in orders]
    assert names == ["answers_cnn_digits"] * 2 + ["answers_mlr"] * 2
    assert not torch.equal(told["answers_mlr"], told["answers_cnn_digits"])
    assert torch.allclose((told["answers_mlr"] + told["answers_cnn_digits"]) / 2, told["answers"], atol=1e-5)


def test_without_epochs_on_labels_no_device_learns_them_first():
    """The first job is charged for its own samples and for looking."""
    simulation = run(scenario_of(method={"public_epochs": 0}, stop={"rounds": 1}))
    profiles = list(simulation.parts.setting.cost_profile.networks.values())
    for job in simulation.tables["jobs"].frame().itertuples():
        profile = profiles[job.device // 2]
        assert job.flops == 50 * profile.train_flops() + SAMPLES * profile.forward_flops()


def test_the_first_round_may_have_epochs_of_its_own(monkeypatch):
    """Three over own data at first, after two over labels, then the scenario's one; logits are those of torch.optim."""
    done = record(monkeypatch)
    simulation = prepare(scenario_of(method={"first_epochs": 3}))
    first = {name: copy.deepcopy(module).state_dict() for name, module in simulation.parts.module.named_children()}
    simulation.run()
    public = simulation.parts.data.batch("train", torch.from_numpy(simulation.parts.server_set.rows))
    jobs = sorted(done, key=lambda job: job.assignment.job)
    assert [len(list(job.batches())) for job in jobs] == [3 * 4] * 4 + [4] * 4  # of 50 samples, 16 a batch
    for job in jobs[:4]:
        _, logits = by_hand(job, first[job.assignment.task.submodel.network], public, None, epochs=2)
        torch.testing.assert_close(job.result.body["tensors"]["answers"], logits, atol=1e-3, rtol=1e-3)
    profiles = list(simulation.parts.setting.cost_profile.networks.values())
    for job in simulation.tables["jobs"].frame().itertuples():
        profile, seen = profiles[job.device // 2], (3 * 50 + 2 * SAMPLES, 50 + 3 * SAMPLES)[job.round]
        assert job.flops == seen * profile.train_flops() + SAMPLES * profile.forward_flops()


def test_without_digest_epochs_devices_train_alone(monkeypatch):
    """In the second round the device goes on from its own model with its own data, whatever it was told."""
    done = record(monkeypatch)
    simulation = prepare(scenario_of(method={"digest_epochs": 0}))
    simulation.run()
    jobs = sorted(done, key=lambda job: job.assignment.job)
    public = simulation.parts.data.batch("train", torch.from_numpy(simulation.parts.server_set.rows))
    for before, job in zip(jobs[:4], jobs[4:], strict=True):
        start = before.result.new_device_state["params"]
        _, logits = by_hand(job, start, public, torch.zeros(SAMPLES, CLASSES), epochs=0)
        torch.testing.assert_close(job.result.body["tensors"]["answers"], logits, atol=1e-4, rtol=1e-4)
    profiles = list(simulation.parts.setting.cost_profile.networks.values())
    second = simulation.tables["jobs"].frame().query("round == 1")
    for job in second.itertuples():
        profile = profiles[job.device // 2]
        assert job.flops == 50 * profile.train_flops() + SAMPLES * profile.forward_flops()


def test_a_device_uses_its_own_model():
    """The first one until it has trained."""
    method = scenario_of().method.value
    first, own = ({"params": {"w": value}, "buffers": {}} for value in range(2))
    assert method.personal_model(first, None) is first
    assert method.personal_model(first, own) == own


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "fedmd": {
        "public_samples": "test_only_logits_travel_and_all_work_is_charged",
        "digest_epochs": "test_two_rounds_by_hand",
        "public_epochs": "test_without_epochs_on_labels_no_device_learns_them_first",
        "teachers": "test_with_their_own_teachers_networks_hear_themselves_alone",
        "first_epochs": "test_the_first_round_may_have_epochs_of_its_own",
    },
}
