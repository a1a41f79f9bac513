"""FedAS against numbers on paper and PyTorch's own SGD.

Source: the published code of Yang, Huang and Ye (2024) for alignment and traces; FL-bench's for class means.
"""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from edgesim.core.backend import Assignment
from edgesim.core.errors import ConfigError
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.method import LocalState
from edgesim.core.task import Payload, Task
from edgesim.learning.models.build import model_state_of
from edgesim.learning.train.context import Batch, Context
from edgesim.learning.train.loop import batch_order
from edgesim.methods.fedas import FedAS, shares_of_traces
from tests.conftest import digits_scenario, frames, simulate_null
from tests.contracts.support import NORMED, fingerprint, mixed_scenario, prepare, results_of, run, run_eagerly
from tests.methods.hand_made import KEY, merged_layers, message_of, model_of, server_of, setting_of, view_of
from tests.methods.recorded import close_to, record
from tests.plugins.networks import TinyNorm
from tests.sizes import full

PARAMS, HEAD_PARAMS = 6090, 1290  # of cnn_digits and its last layer
SETTING = setting_of((10, 20, 30), {"base": 2, "head": 1})
MODELS = ((1.0, 0.0, 3.0), (0.0, 1.0, 6.0), (-1.0, 2.0, 0.0))


def messages(traces):
    """Return a message of each of three devices: two numbers of the base, one of the head, and a trace."""
    return [
        message_of(k, int(SETTING.samples[k]), {"base": MODELS[k][:2], "head": MODELS[k][2:]})._replace(
            statistics={"trace": trace}
        )
        for k, trace in enumerate(traces)
    ]


# --- server -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("traces", "expected"), [((4, 1, 5), (0.4, 0.1, 0.5)), ((0, 0, 0), (1 / 3,) * 3), ((0, 2, 0), (0, 1, 0))]
)
def test_shares(traces, expected):
    """Trace over the sum of traces; all alike if nobody has any. A message that counts half has half its trace."""
    assert shares_of_traces(np.array(traces, dtype=float), np.ones(3)) == pytest.approx(expected, abs=1e-6)
    assert shares_of_traces(np.array([4.0, 1.0, 5.0]), np.array([0.5, 1.0, 1.0])) == pytest.approx([0.25, 0.125, 0.625])


@pytest.mark.parametrize(
    ("global_head", "head"),
    [("average", (10 * 3 + 20 * 6) / 60), ("fisher", 0.4 * 3 + 0.1 * 6), ("none", 9.0)],
)
def test_the_global_model(global_head, head):
    """Base: 0.4 (1, 0) + 0.1 (0, 1) + 0.5 (-1, 2) = (-0.1, 1.1); head by samples, by trace, or that of before."""
    got = messages((4.0, 1.0, 5.0))
    if global_head == "none":
        got = [m._replace(body={**m.body, "params": {"base.weight": m.body["params"]["base.weight"]}}) for m in got]
    base = {"base": [7.0, 7.0], "head": [9.0]}
    model = merged_layers(FedAS(global_head=global_head), SETTING, base, got)
    assert model["base"] == pytest.approx([-0.1, 1.1], abs=1e-6)
    assert model["head"] == pytest.approx([head], abs=1e-6)


def test_notes_and_a_trace_that_is_not_finite():
    """The notes tell traces and weights. Who has no trace is left out as if it had not come."""
    got = messages((4.0, 1.0, math.inf))
    merged = FedAS().aggregate({}, model_of({"base": [0.0, 0.0], "head": [0.0]}), got, server_of(view_of(SETTING)), KEY)
    assert merged.metrics == {"trace": {0: 4.0, 1: 1.0}, "q": {0: 0.8, 1: 0.2}, "left_out": 1.0}
    assert merged.model["params"]["base.weight"].tolist() == pytest.approx([0.8, 0.2])
    nobody = FedAS().aggregate({}, {}, messages((math.nan,) * 3), server_of(view_of(SETTING)), KEY)
    assert (nobody.model, nobody.metrics) == (None, {"left_out": 3.0})


# --- alignment --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("align_loss", "expected"),
    [("sample", (4 / 2 + 4 / 2 + 1 / 2) / 3), ("class", (4 + 4) / 4 + 1 / 2), ("class_mean", 0 / 2 + 1 / 2)],
)
def test_distance_to_prototypes(align_loss, expected):
    """Features (2, 0), (-2, 0) of class 3 whose prototype is (0, 0), (1, 1) of class 5 whose prototype is (1, 2)."""

    class Given:
        """What the network gives for a batch."""

        def features(self, w, x):
            return None, torch.tensor([[2.0, 0.0], [1.0, 1.0], [-2.0, 0.0]])

    means = torch.tensor([[0.0, 0.0], [9.0, 9.0], [1.0, 2.0]])
    prototypes = SimpleNamespace(labels=torch.tensor([3, 4, 5]), means=means)
    batch = Batch(torch.zeros(3, 1), torch.tensor([3, 5, 3]))
    loss = FedAS(align_loss=align_loss)._distance(LocalState({}, prototypes), batch, Given())
    assert loss.item() == pytest.approx(expected)


def aligned_in_pytorch(job, old, epochs, batch, lr):
    """Return the base received after SGD towards the mean features of each class, by the old network, with its head."""
    trainer, assignment = job.trainer, job.assignment
    x, y = trainer.data.batch("train", trainer.shards[assignment.device])
    teacher, network = job.network(old).eval(), job.network(assignment.global_model)
    with torch.no_grad():
        z = teacher[:-1](x)
    means = {int(c): z[y == c].mean(dim=0) for c in y.unique()}
    optimiser = torch.optim.SGD(network[:-1].parameters(), lr=lr)
    sgd = LocalSGD(batch=batch, lr=lr, epochs=epochs)
    for places in batch_order(assignment.key.at(1).at(0), len(y), sgd, False):
        found = network[:-1](x[places])
        loss = sum(((z - means[int(c)]) ** 2).mean() for z, c in zip(found, y[places], strict=True)) / len(places)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    network[-1].load_state_dict(teacher[-1].state_dict())
    return network


def trained_in_pytorch(job, network):
    """Return the network after the scenario's SGD, and the sum over batches of its squared gradients."""
    (sgd,), weights = job.assignment.task.local_sgd, list(network.parameters())
    optimiser = torch.optim.SGD(weights, lr=sgd.lr)
    for x, y in job.batches():
        optimiser.zero_grad()
        F.cross_entropy(network(x), y).backward()
        optimiser.step()
    shard, trace = job.trainer.shards[job.assignment.device], 0.0
    once = LocalSGD(batch=sgd.batch, lr=0.1, epochs=1)
    for places in batch_order(job.assignment.key.at(2).at(0), len(shard), once, False):
        x, y = job.trainer.data.batch("train", shard[places])
        slopes = torch.autograd.grad(F.cross_entropy(network.eval()(x), y), weights)
        trace += sum(float(g.double().square().sum()) for g in slopes)
    return network, trace


@pytest.mark.parametrize("first_old", ["initial", "received"])
def test_a_device_s_whole_turn(monkeypatch, first_old):
    """Two of six devices a round: what they send, keep and tell, from what they kept at their last turn.

    A newcomer's old base is the run's first or the one received, its head always the first, which is not the global
    one's any more.
    """
    jobs = record(monkeypatch)
    method = {"name": "fedas", "align_epochs": 2, "align_batch": 12, "align_lr": 0.5, "first_old": first_old}
    rounds = {"stop": {"rounds": 4}, "selection": {"name": "uniform", "count": 2}}
    simulation = run(mixed_scenario(method=method, training={"batch": 16, "lr": 0.1}, **rounds))
    first, own = jobs[0].assignment.global_model, {}
    for job in jobs:
        base, device = job.assignment.global_model, job.assignment.device
        old = own.get(device, first)
        if device not in own and first_old == "received":
            old = {"params": {**base["params"], **{n: t for n, t in first["params"].items() if n.startswith("fc1.")}}}
        network, trace = trained_in_pytorch(job, aligned_in_pytorch(job, old, 2, 12, 0.5))
        expected = {name: w.detach() for name, w in network.named_parameters()}
        close_to(job.result.body["params"], expected, atol=1e-5)
        assert fingerprint(dict(job.result.new_device_state["params"])) == fingerprint(dict(job.result.body["params"]))
        assert job.result.statistics["trace"] == pytest.approx(trace, rel=1e-3)
        own[device] = job.result.new_device_state
    assert len(jobs) == 8 > len(own)  # somebody came twice
    assert simulation.learner.memory.keys() == own.keys()


def test_without_alignment_the_base_is_the_one_received(monkeypatch):
    """`align_epochs` 0, in a second round: base of the server, head of the device, then training."""
    jobs = record(monkeypatch)
    run(mixed_scenario(method={"name": "fedas", "align_epochs": 0}))
    job, before = jobs[-1], {j.assignment.device: j.result.new_device_state for j in jobs[:6]}
    network = job.network(job.assignment.global_model)
    own = before[job.assignment.device]["params"]
    network[-1].load_state_dict({"weight": own["fc1.weight"], "bias": own["fc1.bias"]})
    expected, _ = trained_in_pytorch(job, network)
    close_to(job.result.body["params"], {name: w.detach() for name, w in expected.named_parameters()})


def test_traces_are_taken_as_in_a_test():
    """Batch normalisation by its running statistics, which stay, and no dropout; a last batch of one counts too."""
    network = TinyNorm()
    network.norm.running_mean.fill_(0.25)
    data, training = digits_scenario().data.value.load(), LocalSGD(batch=4, lr=0.1, epochs=1)
    layers = frozenset({"conv", "norm"})
    task = Task(local_sgd=(training,), down=Payload(layers=layers))
    base, shard = model_state_of(network), torch.arange(9)
    context = Context(copy.deepcopy(network), data, shard, Assignment(0, 0, task, KEY, base, None), True)
    w = context.copy(base)
    statistics = FedAS().local(task).on_finish(LocalState(w), context).statistics
    trace, network = 0.0, network.eval()
    for places in batch_order(KEY.at(2).at(0), 9, training, False):
        x, y = data.batch("train", places)
        slopes = torch.autograd.grad(F.cross_entropy(network(x), y), list(network.parameters()))
        trace += sum(float(g.square().sum()) for g in slopes)
    assert statistics["trace"] == pytest.approx(trace, rel=1e-4)
    assert fingerprint(w) == fingerprint(base)


# --- on the whole -----------------------------------------------------------------------------------------------


def test_each_device_is_tested_with_its_own_model():
    """After a round with two of six devices the others use the global model."""
    changes = {"selection": {"name": "uniform", "count": 2}, "stop": {"rounds": 1}, "evaluation": {"personal": True}}
    simulation = run(mixed_scenario(method={"name": "fedas"}, **changes))
    learner, trainer = simulation.learner, simulation.parts.make_trainer("cpu")
    metrics = simulation.tables["metrics"].frame()
    found = metrics[metrics["name"] == "personal_accuracy"].set_index("device")["value"].to_dict()
    models = {device: learner.memory.get(device, learner.weights()) for device in range(6)}
    assert found == {device: trainer.score_personal(device, model).accuracy for device, model in models.items()}
    assert len(learner.memory) == 2


def test_a_head_that_is_not_sent_stays():
    """`global_head` "none": the head of the global model is the first one for ever, each device has another."""
    simulation = prepare(mixed_scenario(method={"name": "fedas", "global_head": "none"}))
    first = simulation.learner.weights()["params"]
    simulation.run()
    last, memory = simulation.learner.weights()["params"], simulation.learner.memory
    assert {name for name, t in first.items() if torch.equal(t, last[name])} == {"fc1.weight", "fc1.bias"}
    assert len({fingerprint(model["params"]["fc1.bias"]) for model in [{"params": first}, *memory.values()]}) == 7


@full
@pytest.mark.workers
def test_aligning_devices_agree_whoever_trains_them():
    """With normalisation and dropout: when each job ends, or in a worker process, to the last bit."""
    changes = {"method": {"name": "fedas"}, "model": NORMED, "selection": {"name": "uniform", "count": 3}}
    lazy = results_of(run(mixed_scenario(**changes)))
    assert results_of(run_eagerly(mixed_scenario(**changes))[0]) == lazy
    simulation = run(mixed_scenario(**changes, backend={"name": "workers", "workers": 2}))
    simulation.learner.backend.close()
    assert results_of(simulation) == lazy


# --- what it costs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("global_head", "sent"), [("average", PARAMS), ("fisher", PARAMS), ("none", 4800)])
def test_work_and_bytes(global_head, sent):
    """Beside training of 40 samples: a gradient of each, one pass for prototypes and three for aligning the base.

    8x8 images: 9 x 16 weights on 64 pixels, 9 x 16 x 32 on 16, 128 x 10 at the end. Images need no gradient.
    """
    given = {"partition": {"name": "iid", "samples_per_device": 40}, "backend": "null"}
    mine, usual = (
        frames(simulate_null(digits_scenario(method=m, **given)))["jobs"]
        for m in ({"name": "fedas", "global_head": global_head}, "fedavg")
    )
    conv1, conv2, head = 2 * 9 * 16 * 64, 2 * 9 * 16 * 32 * 16, 2 * 128 * 10
    forward = conv1 + conv2 + head
    gradient = 2 * conv1 + 3 * conv2 + 3 * head
    assert set(mine["flops"] - usual["flops"]) == {40 * (gradient + 2 * forward + conv1 + 2 * conv2)}
    assert set(mine["up_bytes"]) == {4 * sent + 4}
    assert set(mine["down_bytes"]) == {4 * (PARAMS - HEAD_PARAMS)}


def test_a_model_of_one_layer_is_refused():
    with pytest.raises(ConfigError, match=r"model\.name: by hand has one layer, w; needed is a base below"):
        FedAS().init(setting_of((1,), {"w": 2}), KEY)


@pytest.mark.parametrize(
    "wrong",
    [
        {"align_epochs": -1}, {"align_batch": 0}, {"align_lr": 0}, {"align_loss": "x"}, {"global_head": "x"},
        {"first_old": "x"},
    ],
)  # fmt: skip
def test_settings_out_of_range(wrong):
    (key,) = wrong
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        digits_scenario(method={"name": "fedas", **wrong})


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "fedas": {
        "align_epochs": "test_without_alignment_the_base_is_the_one_received",
        "align_batch": "test_a_device_s_whole_turn",
        "align_lr": "test_a_device_s_whole_turn",
        "align_loss": "test_distance_to_prototypes",
        "global_head": "test_the_global_model",
        "first_old": "test_a_device_s_whole_turn",
    },
}
