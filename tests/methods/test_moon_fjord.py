"""MOON with FjORD: it is either of them where the other has nothing to say, and both by hand where both have.

Source: Li, He and Song (2021) and Horvath et al. (2021); sizes by arithmetic from the layers of LeNet5 with a head.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from edgesim.core.errors import ConfigError
from edgesim.learning.models.chains import Lenet5
from edgesim.learning.models.resnets import PLUGINS as RESNETS
from edgesim.learning.submodel.slicing import extract, thinner
from edgesim.methods.fjord import drawn_ranks
from edgesim.methods.moon_fjord import MoonFjORD
from edgesim.runs.network import cost_profile_of
from tests.conftest import digits_scenario, frames
from tests.contracts.support import MODELS, NORMED, mixed_scenario, prepare, results_of, run
from tests.contracts.test_prices import measured_jobs
from tests.methods.hand_made import KEY, setting_of
from tests.methods.recorded import close_to, record
from tests.sizes import full, spread, thinned

HEADED = {"name": "cnn_digits", "projection": 12}


# --- what is sliced ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("width", "conv1", "conv2", "fc1", "fc2"), [(0.2, 2, 4, 24, 17), (0.6, 4, 10, 72, 51), (1.0, 6, 16, 120, 84)]
)
def test_the_projection_stays_whole(width, conv1, conv2, fc1, fc2):
    """ceil(p n) of 6, 16, 120 and 84 units, of which the last are twice there, and 256 numbers to compare at any p."""
    _, cost_profile = cost_profile_of(Lenet5(projection=256), "lenet5", None, None, KEY)
    setting, method = setting_of([1], {}, cost_profile=cost_profile), MoonFjORD(widths=(0.2, 0.6, 1.0))
    submodel = method.submodel(1 + (0.2, 0.6, 1.0).index(width), setting)
    linear = [(25 * conv2, fc1), (fc1, fc2), (fc2, fc2), (fc2, 256), (256, 10)]
    params = 76 * conv1 + (25 * conv1 + 1) * conv2 + sum((n + 1) * m for n, m in linear)
    macs = 75 * conv1 * 28 * 28 + 25 * conv1 * conv2 * 10 * 10 + sum(n * m for n, m in linear)
    assert cost_profile.submodel_params(submodel) == params
    assert cost_profile.forward_flops(submodel) == 2 * macs
    assert width < 1 or (params, macs) == (92626, 682000)  # as the FedDHAD paper's layers give


@full
def test_the_projection_of_a_residual_network_stays_whole_too():
    """Its inner channels and the head's hidden layer are sliced."""
    _, cost_profile = cost_profile_of(RESNETS["resnet18_bn"](projection=256), "resnet18_bn", None, None, KEY)
    submodel = MoonFjORD(widths=(0.5, 1.0)).submodel(1, setting_of([1], {}, cost_profile=cost_profile))
    assert sorted(len(channels) for _, channels in submodel.channels) == [32, 32, 64, 64, 128, 128, 256, 256, 256]


# --- where it is one of its parts -------------------------------------------------------------------------------


@pytest.mark.parametrize("model", spread([*MODELS, HEADED], 1))
def test_the_only_width_is_moon(model):
    """Widths [1.0]: tables, weights and what devices keep are MOON's, bit for bit, but for the name of the part."""
    results = []
    for method in ("moon", {"name": "moon_fjord", "widths": [1.0]}):
        simulation = run(mixed_scenario(method=method, model=model, stop={"rounds": 3}))
        jobs = frames(simulation)["jobs"].drop(columns="submodel").to_csv()
        results.append({**results_of(simulation), "jobs": jobs})
    assert results[0] == results[1]


@pytest.mark.parametrize("model", MODELS)
def test_without_the_term_it_is_fjord(model):
    """With mu = 0 tables and weights are FjORD's, bit for bit."""
    runs = [results_of(run(mixed_scenario(model=model, method=m))) for m in ("fjord", {"name": "moon_fjord", "mu": 0})]
    assert runs[0] == runs[1]


# --- training ---------------------------------------------------------------------------------------------------


def cut(job, rank, model):
    """Return the network of a width with the first entries of a model's tensors, and those tensors by name.

    In test mode, but for batch normalisation at less than full width: that goes by the statistics of the batch.
    """
    submodels = {work.submodel.width: work.submodel for work in job.assignment.task.passes if work.submodel}
    submodel = {**submodels, job.assignment.task.submodel.width: job.assignment.task.submodel}[rank]
    network = thinner(job.trainer.module, submodel, job.trainer.cost_profile)
    own = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    for name, tensor in own.items():
        if name in model:
            tensor.data = model[name][tuple(slice(size) for size in tensor.shape)].clone()
    network.eval()
    for layer in network.modules():
        layer.training = isinstance(layer, torch.nn.BatchNorm2d) and rank < 3
    return network, own


def in_one(model_state):
    """Return the tensors of a bundle by name."""
    return {name: tensor for tensors in model_state.values() for name, tensor in tensors.items()}


def entered_last(network, x):
    """Return what enters the last layer of a network, and its logits."""
    layers = [layer for layer in network.modules() if not list(layer.children())]
    entered = []
    hook = layers[-1].register_forward_pre_hook(lambda _, given: entered.append(given[0]))
    logits = network(x)
    hook.remove()
    return entered[0], logits


def retrained(job, initial, mu, temperature):
    """Return what a device sends, by plain SGD in networks that are cut out and put back at every step."""
    assignment, (sgd,) = job.assignment, job.assignment.task.local_sgd
    submodel = assignment.task.submodel
    received = in_one(extract(assignment.global_model, submodel, job.trainer.cost_profile))
    previous = in_one(
        extract(initial, submodel, job.trainer.cost_profile)
        if assignment.device_state is None
        else assignment.device_state
    )
    w = {name: tensor.clone() for name, tensor in received.items()}
    batches = list(job.batches())
    ranks = drawn_ranks(int(assignment.task.config["seed"]), submodel.width, len(batches)).tolist()
    for rank, (x, y) in zip(ranks, batches, strict=True):
        network, own = cut(job, rank, w)
        z, logits = entered_last(network.train(), x)
        with torch.no_grad():
            towards, away = (entered_last(cut(job, rank, model)[0], x)[0] for model in (received, previous))
        a, b = (torch.exp(F.cosine_similarity(z, other) / temperature) for other in (towards, away))
        (F.cross_entropy(logits, y) - mu * torch.log(a / (a + b)).mean()).backward()
        for name, tensor in own.items():
            if tensor.grad is not None:
                w[name][tuple(slice(size) for size in tensor.shape)] -= sgd.lr * tensor.grad
            elif rank == submodel.width and name in received:
                w[name] = tensor
    return w, {(rank, assignment.device_state is None) for rank in ranks}


@full
@pytest.mark.parametrize("model", thinned([HEADED, NORMED], [NORMED]))
def test_devices_train_in_slices(model, monkeypatch):
    """Local network, the one received and the last one delivered are cut to the width of the batch.

    Who delivered nothing yet compares with the first model of the run, also in rounds after others have trained.
    """
    jobs = record(monkeypatch)
    method = {"name": "moon_fjord", "widths": [0.5, 0.75, 1.0], "mu": 2.0, "temperature": 0.25}
    scenario = mixed_scenario(
        method=method, model=model, selection={"name": "uniform", "count": 4}, stop={"rounds": 5},
        training={"batch": 16, "lr": 0.1, "local_epochs": 2},
    )  # fmt: skip
    simulation = prepare(scenario)
    for layer in simulation.parts.module.modules():
        if isinstance(layer, torch.nn.Dropout):
            layer.p = 0.0
    initial = copy.deepcopy(simulation.learner.weights())
    simulation.run()
    seen = set()
    for job in jobs:
        expected, ranks = retrained(job, initial, 2.0, 0.25)
        seen |= ranks
        sent = in_one(job.result.body)
        close_to(sent, {name: expected[name] for name in sent})
        close_to(in_one(job.result.new_device_state), expected)
    assert seen == {(rank, new) for rank in (1, 2, 3) for new in (True, False)}
    assert any(job.assignment.device_state is None for job in jobs[4:])


@full
def test_newcomers_may_compare_with_what_they_receive():
    """`first_previous` "received": other weights from the second round on, the same tables of jobs."""
    few = {"name": "uniform", "count": 2}
    runs = [
        results_of(run(digits_scenario(method={"name": "moon_fjord", "first_previous": name}, selection=few)))
        for name in ("initial", "received")
    ]
    assert runs[0]["jobs"] == runs[1]["jobs"]
    assert runs[0]["weights"] != runs[1]["weights"]


@full
@pytest.mark.workers
def test_worker_processes_know_the_initial_model_too():
    """Newcomers of later rounds cut it out of the same network there, bit for bit."""
    few, outcomes = {"name": "uniform", "count": 2}, []
    for backend in ("serial", {"name": "workers", "workers": 1}):
        simulation = run(digits_scenario(method="moon_fjord", selection=few, backend=backend))
        simulation.learner.backend.close()
        outcomes.append(results_of(simulation))
    assert outcomes[0] == outcomes[1]


# --- prices -----------------------------------------------------------------------------------------------------


def test_two_more_forward_passes_at_every_width_are_paid():
    """Of each batch 4 F(p) FLOPs a sample on top of FjORD's, which has the same draws; no byte more.

    8x8 digits in steps of 16, 16 and 8 samples; the forward MACs of a width are those of its channels.
    """
    partition, stop = {"name": "iid", "samples_per_device": 40}, {"rounds": 1}
    given = {"partition": partition, "backend": "null", "selection": "all", "stop": stop}
    runs = [prepare(digits_scenario(method=method, **given)) for method in ("moon_fjord", "fjord")]
    plan = runs[0].learner.plan(runs[0].session.view())
    for simulation in runs:
        simulation.run()
    jobs = [frames(simulation)["jobs"].set_index("device").sort_index() for simulation in runs]
    assert len(plan.orders) == len(jobs[0]) == 10
    for order in plan.orders:
        on_top = 0
        ranks = drawn_ranks(int(order.task.config["seed"]), order.task.submodel.width, 3)
        for rank, samples in zip(ranks.tolist(), (16, 16, 8), strict=True):
            a, b = int(np.ceil(16 * rank / 5)), int(np.ceil(32 * rank / 5))
            on_top += 4 * samples * (9 * a * 64 + 9 * a * b * 16 + 4 * b * 10)
        assert jobs[0]["flops"][order.device] - jobs[1]["flops"][order.device] == on_top
    assert jobs[0]["up_bytes"].tolist() == jobs[1]["up_bytes"].tolist()


@full
def test_charged_is_what_was_done_with_a_head(monkeypatch):
    """PyTorch's counter sees what was charged for the slices that were drawn, and the message has the bytes."""
    jobs = measured_jobs(mixed_scenario(method="moon_fjord", model=HEADED), monkeypatch)
    assert (jobs["flops"] == jobs["real_flops"]).all()
    assert (jobs["up_bytes"] == jobs["real_bytes"]).all()


# --- what does not fit ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong", [{"mu": -1}, {"temperature": 0}, {"first_previous": "last"}, {"widths": []}, {"distill": True}]
)
def test_settings_out_of_range(wrong):
    """The error names the key; FjORD's distillation is none of this method."""
    (key,) = wrong
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        digits_scenario(method={"name": "moon_fjord", **wrong})


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "moon_fjord": {
        "absent": "test_fjord.py::test_rings_are_averaged_over_who_has_them",
        "widths": "test_the_only_width_is_moon",
        "tiers": "test_fjord.py::test_every_tier_has_as_many_devices",
        "channels": "test_fjord.py::test_units_of_several_layers",
        "mu": "test_without_the_term_it_is_fjord",
        "temperature": "test_devices_train_in_slices",
        "first_previous": "test_newcomers_may_compare_with_what_they_receive",
    },
}
