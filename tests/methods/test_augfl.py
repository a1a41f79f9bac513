"""AugFL against numbers on paper and PyTorch: a device's step, the server's sum, the teacher and what it costs.

Source: the published code of Yue et al. (2025), client and server; Hinton et al. (2015) for the distance to a teacher.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from edgesim.core.backend import Assignment
from edgesim.core.errors import ConfigError
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.rng import Key
from edgesim.core.task import Task
from edgesim.learning.models.build import build_model
from edgesim.learning.models.chains import CnnDigits
from edgesim.learning.models.flop_counter import flop_counter
from edgesim.learning.server import Soft
from edgesim.learning.submodel import masks
from edgesim.learning.train.context import Context
from edgesim.learning.train.loop import batch_order, run_local_sgd
from edgesim.methods import augfl
from edgesim.methods.augfl import AugFL, split_sizes
from edgesim.methods.augfl_teacher import taught
from edgesim.runs.assembly import assemble
from tests.conftest import digits_scenario
from tests.contracts.support import (
    MODELS,
    NORMED,
    arrived_at,
    fingerprint,
    merge_arguments,
    mixed_scenario,
    prepare,
    results_of,
    run,
    run_eagerly,
)
from tests.methods.hand_made import KEY, message_of, model_of, server_of, setting_of, view_of
from tests.methods.recorded import close_to, record
from tests.plugins.one_number import Ones
from tests.sizes import full

SMALL = {"name": "augfl", "teacher": "cnn_digits", "teacher_epochs": 2, "server_samples": 20}
PARAMS = 6090  # of cnn_digits
# 8x8 images: 9 x 16 weights on 64 pixels, 9 x 16 x 32 on 16, 128 x 10 at the end. Images need no gradient.
CONV1, CONV2, HEAD = 2 * 9 * 16 * 64, 2 * 9 * 16 * 32 * 16, 2 * 128 * 10
FORWARD, GRADIENT = CONV1 + CONV2 + HEAD, 2 * CONV1 + 3 * CONV2 + 3 * HEAD


# --- a step on paper --------------------------------------------------------------------------------------------


def own_of(dual, taken):
    """Return what a device keeps: its dual and how many steps it took."""
    kinds = {"dual": torch.tensor([dual]), "adapted": torch.zeros(1)}
    return {"steps": {"taken": torch.tensor(float(taken))}, **{kind: {"w.weight": t} for kind, t in kinds.items()}}


def step_of_one_number(monkeypatch, method, taken=0, steps=1):
    """Return what a device sends and keeps, and where gradients were taken, in its next step from 0 with y = 0.1.

    (th - 1)^2 is the loss on the support, (th - 1/2)^2 / 2 that on the query; the device has a quarter of all samples.
    """
    module = nn.Module()
    module.w = nn.Module()
    module.w.weight = nn.Parameter(torch.zeros(1))
    places = []

    def loss(w, batch, context, moving=False):
        given = w["params"]["w.weight"]
        th = given if given.requires_grad else module.w.weight
        places.append(float(th.detach()))
        return ((th - 1) ** 2 if int(batch.y[0]) == 0 else (th - 0.5) ** 2 / 2).sum()

    monkeypatch.setattr(augfl, "objective_loss", loss)
    monkeypatch.setattr(masks, "objective_loss", loss)
    sgd = LocalSGD(batch=1, lr=1 / method.rho, steps=1)
    task = Task(local_sgd=(sgd,), config={"share": 0.25, "support": 1.0})
    received, own = model_of({"w": [0.0]}), own_of(0.1, taken)
    context = Context(
        module, Ones(samples=2).load(), torch.arange(2), Assignment(0, 0, task, KEY, received, own), False
    )
    rule = method.local(task)
    local = rule.on_start(context)
    w, scratch = local.weights, local.scratch
    scratch.query = scratch.query._replace(y=torch.ones(1, dtype=torch.int64))  # so that the losses can be told apart
    run_local_sgd(local, sgd, rule.phases[0], context, KEY, most=steps)
    body, keep, *_ = rule.on_finish(local, context)
    assert float(received["params"]["w.weight"]) == 0
    return float(w["params"]["w.weight"]), float(body["params"]["w.weight"]), keep, places


def test_a_step(monkeypatch):
    """phi = 0.1, g = -0.4, H g = -0.8: th_i = -(0.1 + 0.25 (-0.4 + 0.05 x 0.8)) / 0.7; y = 0.1 + 0.7 th_i = 0.09."""
    moved, sent, keep, places = step_of_one_number(monkeypatch, AugFL())
    assert places == pytest.approx([0, 0.1, -0.4 / 110, 0.4 / 110], abs=1e-6)
    assert moved == pytest.approx(-0.014286, abs=1e-6)
    assert float(keep["dual"]["w.weight"]) == pytest.approx(0.09, abs=1e-6)
    assert sent == pytest.approx(-0.014286 + 0.09 / 0.7, abs=1e-6)
    assert (float(keep["steps"]["taken"]), float(keep["adapted"]["w.weight"])) == (1, pytest.approx(0.1))


def test_hyper_parameters_of_a_step(monkeypatch):
    """alpha = 0.1: phi = 0.2, g = -0.3, H g = -0.6; rho = 2: th_i = -(0.1 + 0.25 (-0.3 + 0.06)) / 2 = -0.02."""
    moved, _, keep, _ = step_of_one_number(monkeypatch, AugFL(alpha=0.1, rho=2.0))
    assert moved == pytest.approx(-0.02, abs=1e-6)
    assert float(keep["dual"]["w.weight"]) == pytest.approx(0.06, abs=1e-6)


def test_the_difference_shrinks_with_a_device_s_own_steps(monkeypatch):
    """d = 1 / (10 k + 100): 1/150 in its fifth step."""
    *_, keep, places = step_of_one_number(monkeypatch, AugFL(), taken=4)
    assert places[2:] == pytest.approx([-0.4 / 150, 0.4 / 150], abs=1e-6)
    assert float(keep["steps"]["taken"]) == 5


def test_no_step_changes_nothing(monkeypatch):
    """A device that stopped before its step sends th + y / rho and keeps what it had."""
    moved, sent, keep, _ = step_of_one_number(monkeypatch, AugFL(), steps=0)
    assert (moved, sent, keep) == (0, pytest.approx(0.1 / 0.7), None)


@pytest.mark.parametrize(
    ("samples", "share", "expected"),
    [(40, 0.8, (32, 8)), (5, 0.5, (2, 3)), (3, 0.99, (2, 1)), (9, 0.01, (1, 8)), (2, 0.8, (1, 1)), (1, 0.8, (1, 1))],
)
def test_split_sizes(samples, share, expected):
    """A share for adaptation, at least one sample each; a single one is for both."""
    assert split_sizes(samples, share) == expected


# --- the server's sum -------------------------------------------------------------------------------------------


class Given:
    """Tools whose samples have this gradient of the distance to the teacher."""

    def __init__(self, gradient):
        self.found = gradient

    def gradient(self, model, soft):
        """Return the gradient at any model."""
        return {"w.weight": torch.tensor([self.found], dtype=torch.float64)}


def test_the_server_s_sum():
    """(0.09 + 0.7 (-0.014286) - 0.05 + 0.7 x 0.2 - 0.05) / 1.4 = 0.085714: the second device spoke in another round."""
    sent = {0: -0.01 / 0.7 + 0.09 / 0.7, 1: 0.2 - 0.05 / 0.7}
    heard = {1: {"w.weight": torch.tensor([sent[1]])}}
    state = {"seed": 1, "logits": torch.zeros(1, 2), "first": {"w.weight": torch.tensor([9.0])}, "heard": heard}
    view = view_of(setting_of((10, 30), {"w": 1}))
    got = [message_of(0, 10, {"w": [sent[0]]})]
    merged = AugFL(lam=5.0).aggregate(state, model_of({"w": [0.3]}), got, server_of(view, Given(0.01)), KEY)
    assert merged.model["params"]["w.weight"].item() == pytest.approx(0.085714, abs=1e-6)
    assert float(merged.state["heard"][0]["w.weight"]) == pytest.approx(sent[0])


@pytest.mark.parametrize(("absent", "first", "second"), [("all", 2.5, 3.5), ("seen", 4.0, 6.0), ("none", 4.0, 7.0)])
def test_absent_devices(absent, first, second):
    """Of four devices that start from 1, two send 3 and 5: (3 + 5 + 1 + 1) / 4. Then the first sends 7."""
    method, view = AugFL(lam=0.0, absent=absent), view_of(setting_of((1,) * 4, {"w": 1}))
    got = [message_of(0, 1, {"w": [3.0]}), message_of(1, 1, {"w": [5.0]})]
    merged = method.aggregate(method.init(view.setting, KEY), model_of({"w": [1.0]}), got, server_of(view), KEY)
    assert merged.model["params"]["w.weight"].item() == pytest.approx(first)
    got = [message_of(0, 1, {"w": [7.0]})]
    merged = method.aggregate(merged.state, merged.model, got, server_of(view), KEY)
    assert merged.model["params"]["w.weight"].item() == pytest.approx(second)


def test_a_message_that_counts_half_goes_half_the_way():
    """From the 3 that the device sent before to 7: 5."""
    method, view = AugFL(lam=0.0, absent="seen"), view_of(setting_of((1, 1), {"w": 1}))
    state, model = method.init(view.setting, KEY), model_of({"w": [1.0]})
    for sent, weight, expected in ((3.0, 1.0, 3.0), (7.0, 0.5, 5.0)):
        got = [message_of(0, 1, {"w": [sent]})._replace(weight=weight)]
        state, model, *_ = method.aggregate(state, model, got, server_of(view), KEY)
        assert model["params"]["w.weight"].item() == pytest.approx(expected)


@pytest.mark.parametrize("model", MODELS)
def test_nobody_moved_without_a_teacher(model):
    """If all devices arrive where they started, every bit of the global model stays."""
    simulation = prepare(mixed_scenario(method={"name": "augfl", "lam": 0.0}, model=model))
    state, base, got, server, key = merge_arguments(simulation)
    merged = simulation.learner.method.aggregate(state, base, arrived_at(simulation, got, base, base), server, key)
    assert fingerprint(merged.model) == fingerprint(base)


# --- real devices -----------------------------------------------------------------------------------------------


def gradient_in_pytorch(job, params, x, y):
    """Return the gradient of the cross-entropy at these parameters, by name."""
    network = job.network({"params": params})
    names, weights = zip(*network.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(F.cross_entropy(network(x), y), weights), strict=True))


@pytest.mark.parametrize("split", ["fixed", "redrawn"])
def test_devices_of_two_rounds(monkeypatch, split):
    """All of six devices, 40 samples each: what they send and keep, with duals and step counts of the round before."""
    jobs = record(monkeypatch)
    simulation = run(mixed_scenario(method={"name": "augfl", "lam": 0.0, "split": split, "alpha": 0.5}))
    seed, own = simulation.learner.state["seed"], {}
    for job in jobs:
        trainer, assignment = job.trainer, job.assignment
        device, th = assignment.device, assignment.global_model["params"]
        fixed = split == "fixed"
        order = (Key(seed).at(device) if fixed else assignment.key.at(1)).numpy().permutation(40)
        x, y = trainer.data.batch("train", trainer.shards[device][torch.from_numpy(order)])
        slope = gradient_in_pytorch(job, th, x[:32], y[:32])
        phi = {n: t - 0.5 * slope[n] for n, t in th.items()}
        g = gradient_in_pytorch(job, phi, x[32:], y[32:])
        dual, k = own.get(device, ({n: torch.zeros_like(t) for n, t in th.items()}, 0))
        d = 1 / (10 * (k + 1) + 100)
        ahead, behind = (
            gradient_in_pytorch(job, {n: t + way * g[n] for n, t in th.items()}, x[:32], y[:32]) for way in (d, -d)
        )
        moved = {n: t - (dual[n] + (g[n] - 0.5 * (ahead[n] - behind[n]) / (2 * d)) / 6) / 0.7 for n, t in th.items()}
        dual = {n: y_i + 0.7 * (moved[n] - th[n]) for n, y_i in dual.items()}
        close_to(job.result.body["params"], {n: t + dual[n] / 0.7 for n, t in moved.items()}, atol=2e-5)
        close_to(job.result.new_device_state["dual"], dual, atol=2e-5)
        close_to(job.result.new_device_state["adapted"], phi)
        own[device] = dual, k + 1
    assert [k for _, k in own.values()] == [2] * 6


def test_each_device_is_tested_with_the_model_that_it_adapted():
    """After a round with two of six devices the others use the global model."""
    changes = {"selection": {"name": "uniform", "count": 2}, "stop": {"rounds": 1}, "evaluation": {"personal": True}}
    simulation = run(mixed_scenario(method={**SMALL, "alpha": 1.0}, **changes))
    learner, trainer = simulation.learner, simulation.parts.make_trainer("cpu")
    metrics = simulation.tables["metrics"].frame()
    found = metrics[metrics["name"] == "personal_accuracy"].set_index("device")["value"].to_dict()
    adapted = {d: {"params": own["adapted"], "buffers": own["buffers"]} for d, own in learner.memory.items()}
    models = {device: adapted.get(device, learner.weights()) for device in range(6)}
    assert found == {device: trainer.score_personal(device, model).accuracy for device, model in models.items()}
    assert len(adapted) == 2


@full
@pytest.mark.workers
def test_all_agree_whoever_trains():
    """With normalisation and dropout, newcomers in every round: when each job ends, or in a worker process."""
    changes = {"method": SMALL, "model": NORMED, "selection": {"name": "uniform", "count": 3}}
    lazy = results_of(run(mixed_scenario(**changes)))
    assert results_of(run_eagerly(mixed_scenario(**changes))[0]) == lazy
    simulation = run(mixed_scenario(**changes, backend={"name": "workers", "workers": 2}))
    simulation.learner.backend.close()
    assert results_of(simulation) == lazy


# --- the teacher ------------------------------------------------------------------------------------------------


def tools_of(**settings):
    """Return what the server computes with, in a scenario on digits."""
    return assemble(digits_scenario(method={**SMALL, **settings})).make_tools()


def test_a_teacher_is_trained_on_the_server_s_samples():
    """Three epochs of SGD with momentum, as PyTorch does them; the FLOPs are those that PyTorch counts."""
    tools, key = tools_of(), Key(8)
    sgd = LocalSGD(batch=6, lr=0.1, epochs=3, momentum=0.5)
    found = taught("cnn_digits", tools, sgd, key)
    x, y = tools.data.batch("train", tools.rows)
    network = build_model(CnnDigits(), (1, 8, 8), 10, key.at(0))
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.5)
    with flop_counter() as counter:
        for places in batch_order(key.at(2).at(0), 20, sgd, False):
            optimiser.zero_grad()
            F.cross_entropy(network(x[places]), y[places]).backward()
            optimiser.step()
        logits = network(x).detach()
    torch.testing.assert_close(found.logits, logits, atol=1e-5, rtol=1e-4)
    assert found.flops == counter.get_total_flops() == 60 * GRADIENT + 20 * FORWARD


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_gradient_towards_a_teacher(temperature):
    """Of T^2 sum_c p_c log(p_c / q_c) for softmaxes at T, the mean over samples, 120 in chunks of 100."""
    parts = assemble(digits_scenario(method={**SMALL, "server_samples": 120}))
    tools, key = parts.make_tools(), Key(4)
    logits = torch.from_numpy(key.numpy().normal(size=(120, 10)).astype(np.float32))
    network = build_model(CnnDigits(), (1, 8, 8), 10, key)
    p, q = (torch.softmax(z / temperature, dim=1) for z in (logits, network(tools.data.batch("train", tools.rows)[0])))
    distance = temperature**2 * (p * (p / q).log()).sum() / 120
    names, weights = zip(*network.named_parameters(), strict=True)
    expected = dict(zip(names, torch.autograd.grad(distance, weights), strict=True))
    model = {"params": {n: w.detach() for n, w in network.named_parameters()}, "buffers": {}}
    found = tools.gradient(model, soft=Soft(logits, temperature))
    close_to({n: t.float() for n, t in found.items()}, expected)
    assert tools.take_flops() == 120 * GRADIENT


@pytest.mark.parametrize("lam", [1.0, 5.0])
def test_the_teacher_pulls(lam):
    """Nobody moved: the model goes lam / (rho x 6) along the gradient at the old one, and so nearer to the teacher."""
    simulation = prepare(mixed_scenario(method={**SMALL, "lam": lam, "temperature": 2.0}))
    state, base, got, server, key = merge_arguments(simulation)
    merged = simulation.learner.method.aggregate(state, base, arrived_at(simulation, got, base, base), server, key)
    soft = Soft(merged.state["logits"], 2.0)
    slope = server.tools.gradient(base, soft=soft)
    expected = {n: (t - lam / (0.7 * 6) * slope[n]).float() for n, t in base["params"].items()}
    close_to(merged.model["params"], expected)
    x = server.tools.data.batch("train", server.tools.rows)[0]
    distances = [
        float(soft.distance(torch.func.functional_call(server.tools.module, model["params"], (x,))))
        for model in (base, merged.model)
    ]
    assert distances[1] < distances[0]


def test_the_teacher_is_trained_once_and_by_its_own_keys():
    """What it says stays for all rounds, and is something else for every key of it."""
    said = {}
    for key, value in {"teacher": "mlr", "teacher_epochs": 3, "teacher_batch": 5, "teacher_lr": 0.2,
                       "teacher_momentum": 0.0, "server_samples": 30}.items():  # fmt: skip
        simulation = prepare(mixed_scenario(method={**SMALL, key: value}, stop={"rounds": 1}))
        simulation.run()
        said[key] = fingerprint(simulation.learner.state["logits"])
    once, thrice = (run(mixed_scenario(method=SMALL, stop={"rounds": n})).learner.state["logits"] for n in (1, 3))
    assert torch.equal(once, thrice)
    assert len({*said.values(), fingerprint(once)}) == 7


def test_server_set():
    """As many training samples of each class, which no device has; none without a teacher."""
    parts = assemble(digits_scenario(method=SMALL))
    rows = parts.server_set.rows
    assert np.bincount(parts.data.y_train[rows].numpy()).tolist() == [2] * 10
    assert set(rows.tolist()).isdisjoint(np.concatenate(parts.split.train).tolist())
    assert assemble(digits_scenario(method={"name": "augfl", "lam": 0.0})).server_set is None
    with pytest.raises(ConfigError, match="asks for 25 train samples, equally many of each of 10 classes"):
        assemble(digits_scenario(method={**SMALL, "server_samples": 25}))


# --- what it costs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("share", "support"), [(0.8, 32), (0.25, 10)])
def test_work_and_bytes(share, support):
    """Three gradients of the support and one of the query of 40 samples; one model each way."""
    jobs = run(mixed_scenario(method={**SMALL, "support": share}, stop={"rounds": 1})).tables["jobs"].frame()
    assert set(jobs["flops"]) == {GRADIENT * (3 * support + 40 - support)}
    assert set(jobs["up_bytes"]) == set(jobs["down_bytes"]) == {4 * PARAMS}


def test_work_of_the_server():
    """In both rounds the mean of six models, the gradient of 20 samples and the step along it; once, the teacher."""
    server = {"flops_per_s": "1 MFLOP/s"}
    rounds = run(mixed_scenario(method=SMALL, server=server)).tables["rounds"].frame()
    every_round = 2 * 6 * PARAMS + 20 * GRADIENT + 2 * PARAMS
    teacher = 2 * 20 * GRADIENT + 20 * FORWARD
    assert rounds["server_s"].tolist() == pytest.approx([(every_round + teacher) / 1e6, every_round / 1e6])


def test_absent_devices_are_work_too():
    """Two of six come: those not heard so far are one more term of the sum, the two of the round before two more."""
    method, view = AugFL(lam=0.0), view_of(setting_of((1,) * 6, {"w": 100}))
    state, model = method.init(view.setting, KEY), model_of({"w": [1.0]})
    for devices, terms in (((0, 1), 1), ((2, 3), 3), ((0, 4), 4)):
        got = [message_of(d, 1, {"w": [2.0]}) for d in devices]
        state, model, flops, _ = method.aggregate(state, model, got, server_of(view), KEY)
        assert flops == 2 * 100 * terms


@pytest.mark.parametrize(
    ("teacher", "message"),
    [
        ("resnet9", r"method\.teacher: unknown model 'resnet9'"),
        ("tests.plugins.networks:Missing", r"method\.teacher: cannot import"),
        ("lenet5", r"method\.teacher: .*8x8"),
    ],
)
def test_a_teacher_that_cannot_be(teacher, message):
    """Said before anything runs."""
    with pytest.raises(ConfigError, match=message):
        prepare(mixed_scenario(method={**SMALL, "teacher": teacher}))


@pytest.mark.parametrize(
    "wrong",
    [
        {"alpha": 0}, {"rho": 0}, {"lam": -1}, {"support": 1}, {"split": "x"}, {"absent": "x"}, {"temperature": 0},
        {"teacher": 3}, {"teacher_epochs": 0}, {"teacher_batch": 0}, {"teacher_lr": 0}, {"teacher_momentum": 1},
        {"server_samples": 0},
    ],
)  # fmt: skip
def test_settings_out_of_range(wrong):
    (key,) = wrong
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        digits_scenario(method={"name": "augfl", **wrong})


def test_networks_that_need_two_samples():
    """As for batch normalisation of single numbers: 2 and 3 samples are for both, and who has one takes no step."""
    assert [split_sizes(n, 0.8, least=2) for n in (1, 2, 3, 4, 5, 20)] == [
        (1, 1),
        (2, 2),
        (3, 3),
        (2, 2),
        (3, 2),
        (16, 4),
    ]
    for samples, steps in ((1, 0), (2, 1), (5, 1)):
        scenario = mixed_scenario(
            method={"name": "augfl", "lam": 0.0},
            model="tests.plugins.networks:NormedUnits",
            partition={"name": "iid", "samples_per_device": samples},
        )
        simulation = prepare(scenario)
        got = merge_arguments(simulation)[2]
        assert {m.steps for m in got} == {steps}
        assert bool(simulation.tables["jobs"].frame()["flops"].max()) == bool(steps)


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "augfl": {
        "alpha": "test_hyper_parameters_of_a_step",
        "rho": "test_hyper_parameters_of_a_step",
        "lam": "test_the_teacher_pulls",
        "support": "test_split_sizes",
        "split": "test_devices_of_two_rounds",
        "absent": "test_absent_devices",
        "temperature": "test_gradient_towards_a_teacher",
        "teacher": "test_the_teacher_is_trained_once_and_by_its_own_keys",
        "teacher_epochs": "test_a_teacher_is_trained_on_the_server_s_samples",
        "teacher_batch": "test_a_teacher_is_trained_on_the_server_s_samples",
        "teacher_lr": "test_a_teacher_is_trained_on_the_server_s_samples",
        "teacher_momentum": "test_a_teacher_is_trained_on_the_server_s_samples",
        "server_samples": "test_server_set",
    },
}
