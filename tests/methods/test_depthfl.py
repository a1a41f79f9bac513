"""DepthFL against its loss and its averages in plain PyTorch.

Source: Kim et al. (2023), algorithm 1 and its equation of the loss.
"""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from edgesim.core.errors import ConfigError
from edgesim.core.networks import part_of
from edgesim.learning.models.exits import Exits
from edgesim.runs.assembly import assemble
from tests.conftest import digits_scenario
from tests.contracts.support import merge_arguments, prepare, run
from tests.methods.recorded import close_to, record
from tests.sizes import spread

LABELS = ("exits", "exits_2", "exits_3")  # of depths 1, 2 and 3
PARAMS = (160 + 2570, 4640 + 1290, 9248 + 330)  # of each block and its exit, on digits with channels 16, 32 and 32


def scenario_of(depths=(1, 2, 3), **changes):
    """Return a scenario on digits in which a device has each depth."""
    fleet = [
        {"cpu": {"flops_per_s": "50 MFLOP/s"}, "model": {"name": "exits", "depth": depth}, "count": 1}
        for depth in depths
    ]
    method = {"name": "depthfl", **changes.pop("method", {})}
    return digits_scenario(**{"method": method, "fleet": fleet, "selection": "all", "stop": {"rounds": 1}, **changes})


def exits_of(network, x):
    """Return the logits of each exit."""
    found = []
    for number in range(1, network.depth + 1):
        x = network.get_submodule(f"block{number}")(x)
        found.append(network.get_submodule(f"exit{number}")(x.flatten(1)))
    return found


def trained(job, weight):
    """Return the parameters of a job's network after SGD on the losses of all its exits."""
    submodel = job.assignment.task.submodel
    network = copy.deepcopy(job.trainer.network(submodel)).train()
    start = part_of(job.assignment.global_model, submodel.network)["params"]
    network.load_state_dict(dict(start))
    optimiser = torch.optim.SGD(network.parameters(), job.assignment.task.local_sgd[0].lr)
    for x, y in job.batches():
        exits = exits_of(network, x)
        loss = sum(F.cross_entropy(each, y) for each in exits)
        for student in exits:
            for teacher in exits:
                if teacher is not student:
                    p, q = teacher.detach().softmax(1), student.log_softmax(1)
                    loss = loss + weight * (p * (p.log() - q)).sum(1).mean() / (len(exits) - 1)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return {name: parameter.detach() for name, parameter in network.named_parameters()}


@pytest.mark.parametrize(
    ("method", "weights"),
    spread(
        [
            ({}, [math.exp(-5), math.exp(-5 * (299 / 300) ** 2)]),
            ({"rampup_rounds": 2}, [math.exp(-5), math.exp(-5 / 4)]),
            ({"rampup_rounds": 0}, [1.0, 1.0]),
            ({"distil": False}, [0.0, 0.0]),
        ],
        1,
    ),
    ids=["300 rounds", "2 rounds", "at once", "without"],
)
def test_devices_train_all_their_exits_which_learn_from_each_other(method, weights, monkeypatch):
    """Of the distillation comes exp(-5) in the first round, exp(-5 (1 - t/T)^2) in the next."""
    jobs = record(monkeypatch)
    run(scenario_of(method=method, stop={"rounds": 2}))
    assert len(jobs) == 6
    for number, job in enumerate(jobs):  # those of a round follow each other
        expected = trained(job, weights[number // 3])
        sent = part_of(job.result.body, job.assignment.task.submodel.network)["params"]
        close_to(dict(sent), expected, atol=2e-5)


@pytest.mark.parametrize("weights", ["equal", "samples"])
def test_a_parameter_is_averaged_over_the_devices_that_have_it(weights):
    """The first block over all three, the third is the deepest device's; all networks get the same."""
    simulation = prepare(
        scenario_of(method={"weights": weights}, partition={"name": "dirichlet_label", "beta": 0.5, "balance": False})
    )
    state, base, updates, server, key = merge_arguments(simulation)
    merged = simulation.learner.method.combine(state, base, updates, server, key)
    sizes = [1.0] * 3 if weights == "equal" else [float(update.samples) for update in updates]
    assert weights == "equal" or len(set(sizes)) > 1
    bodies = [part_of(u.body, u.task.submodel.network)["params"] for u in updates]
    for depth, label in enumerate(LABELS, start=1):
        new = part_of(merged.model, label)["params"]
        assert {name.split(".")[0][-1] for name in new} == {str(number) for number in range(1, depth + 1)}
        for name, tensor in new.items():
            have = [(size, body[name]) for size, body in zip(sizes, bodies, strict=True) if name in body]
            expected = sum(size * value for size, value in have) / sum(size for size, _ in have)
            torch.testing.assert_close(tensor, expected)


def test_what_nobody_sent_stays():
    """Without the deepest device's update its own block and exit are those before."""
    simulation = prepare(scenario_of())
    state, base, updates, server, key = merge_arguments(simulation)
    merged = simulation.learner.method.combine(state, base, updates[:2], server, key)
    old, new = (part_of(model, "exits_3")["params"] for model in (base, merged.model))
    assert {name for name in old if torch.equal(old[name], new[name])} == {n for n in old if "3" in n.split(".")[0]}


def test_networks_of_all_depths_start_and_stay_alike():
    """What two depths have in common has the same weights, before training and after."""
    simulation = run(scenario_of(stop={"rounds": 2}))
    first = merge_arguments(prepare(scenario_of()))[1]
    for model in (first, simulation.learner.weights()):
        deepest = part_of(model, "exits_3")["params"]
        for label in LABELS[:2]:
            assert all(torch.equal(deepest[n], t) for n, t in part_of(model, label)["params"].items())


def test_a_device_sends_and_computes_its_own_depth():
    """4 bytes a parameter; FLOPs by hand of 8x8, 4x4 and 2x2 maps."""
    simulation = run(scenario_of())
    jobs = simulation.tables["jobs"].frame().sort_values("device")
    sizes = [4 * sum(PARAMS[:depth]) for depth in (1, 2, 3)]
    assert list(jobs["up_bytes"]) == sizes and list(jobs["down_bytes"]) == sizes
    forward = [2 * (64 * 9 * 16 + 256 * 10), 2 * (16 * 144 * 32 + 128 * 10), 2 * (4 * 288 * 32 + 32 * 10)]
    for depth, profile in enumerate(simulation.parts.setting.cost_profile.networks.values(), start=1):
        assert profile.params == sum(PARAMS[:depth])
        products = sum(2 * macs for macs in [f // 2 for f in forward[:depth]])
        assert products <= profile.forward_flops() < 1.2 * products


def test_one_network_without_exits_is_fedavg_by_equal_weights(monkeypatch):
    """The loss is that of its logits."""
    jobs = record(monkeypatch)
    run(digits_scenario(method="depthfl", selection="all", stop={"rounds": 1}))
    job = jobs[0]
    network = job.network(job.assignment.global_model)
    optimiser = torch.optim.SGD(network.parameters(), job.assignment.task.local_sgd[0].lr)
    for x, y in job.batches():
        optimiser.zero_grad()
        F.cross_entropy(network(x), y).backward()
        optimiser.step()
    close_to(dict(job.result.body["params"]), {n: p.detach() for n, p in network.named_parameters()}, atol=2e-5)


def test_answers_in_a_test():
    """The mean of all exits, or the deepest; in training always the mean, from which all exits are priced."""
    torch.manual_seed(0)
    x = torch.randn(3, 1, 8, 8)
    for answer in ("mean", "deepest"):
        network = Exits(answer=answer).build((1, 8, 8), 10)
        exits = exits_of(network, x)
        mean = torch.stack(exits).mean(0)
        torch.testing.assert_close(network.train()(x), mean)
        torch.testing.assert_close(network.eval()(x), exits[-1] if answer == "deepest" else mean)


def test_settings_that_do_not_go():
    with pytest.raises(ConfigError, match=r"^model\.depth: must be at most the 3 of model\.channels, found 4"):
        assemble(scenario_of(depths=(4,)))
    with pytest.raises(ConfigError, match=r"^method\.rampup_rounds"):
        scenario_of(method={"rampup_rounds": -1})
    fleet = [
        {"cpu": {"flops_per_s": "50 MFLOP/s"}, "model": {"name": "exits", "channels": [width]}} for width in (8, 16)
    ]
    with pytest.raises(
        ConfigError, match=r"^fleet\.model: layers of one name .* block1\.conv1 is a Conv2d of 160 parameters in"
    ):
        prepare(digits_scenario(method="depthfl", fleet=fleet, selection="all"))
    with pytest.raises(ConfigError, match=r"^method\.name: depthfl lets exits learn the classes that others see"):
        assemble(scenario_of(objective="regression"))


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "depthfl": {
        "distil": "test_devices_train_all_their_exits_which_learn_from_each_other",
        "rampup_rounds": "test_devices_train_all_their_exits_which_learn_from_each_other",
        "weights": "test_a_parameter_is_averaged_over_the_devices_that_have_it",
    },
}
