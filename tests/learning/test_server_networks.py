"""What the server trains, against PyTorch's own optimisers and autograd, and what it is charged for that."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from edgesim.core.local_sgd import LocalSGD
from edgesim.core.method import ServerSet
from edgesim.core.rng import Key
from edgesim.core.task import Pass, Submodel
from edgesim.learning.models.seeding import seeded
from edgesim.learning.server import TorchServerTools
from edgesim.learning.train.loop import batch_order
from edgesim.methods.fedavg import FedAvg
from edgesim.runs.assembly import assemble
from tests.conftest import digits_scenario
from tests.contracts.support import run
from tests.sizes import full

KEY = Key(5)


@dataclass(frozen=True, kw_only=True)
class Distilling(FedAvg):
    """FedAvg whose server then fits the mean to the labels of its own samples, for which nothing is foreseen."""

    server_set = ServerSet(40, "train", reserved=True)

    def combine(self, state, model, updates, server, key):
        mean, tools = super().combine(state, model, updates, server, key), server.tools
        x, y = tools.inputs(), tools.labels
        trained = tools.fit(
            tools.network, mean.model, LocalSGD(batch=20, lr=0.05, epochs=2),
            lambda model, places: F.cross_entropy(model(x[places]), y[places]), len(x), key,
        )  # fmt: skip
        return mean._replace(model=trained)


def tools_of(method="Distilling", **changes):
    """Return what the server of a scenario on digits computes with."""
    return assemble(digits_scenario(method={"name": f"{__name__}:{method}"}, **changes)).make_tools()


def tools_with(module):
    """Return the tools of a server whose run has this network, and no samples."""
    return TorchServerTools(module, None, None)  # type: ignore[arg-type]


def loaded(module, model):
    """Return a copy of a module with these weights."""
    own = copy.deepcopy(module)
    own.load_state_dict({**model["params"], **model["buffers"]}, strict=False)
    return own


def soft_loss(told, wanted):
    """Return KL(wanted || told) a sample, both as logits."""
    return F.kl_div(F.log_softmax(told, 1), F.softmax(wanted, 1), reduction="batchmean")


@pytest.mark.parametrize(
    ("local_sgd", "optimizer"),
    [
        (LocalSGD(batch=16, lr=0.1, epochs=2, momentum=0.9), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
        (LocalSGD(batch=16, lr=0.01, steps=5, optimizer="adam"), lambda p: torch.optim.Adam(p, 0.01)),
    ],
    ids=["sgd", "adam"],
)
def test_fitting_targets_is_what_torch_optim_does_and_costs_what_devices_pay(local_sgd, optimizer):
    """Any loss on any targets; batches are those of `batch_order`; FLOPs are those of the same work on a device."""
    parts = assemble(digits_scenario(method={"name": f"{__name__}:Distilling"}))
    tools = parts.make_tools()
    network, first, x = tools.network, tools.network.first, tools.inputs()
    targets = torch.randn(40, 10, generator=torch.Generator().manual_seed(1))
    fitted = tools.fit(network, first, local_sgd, lambda m, places: soft_loss(m(x[places]), targets[places]), 40, KEY)
    seen, steps = (80, 6) if local_sgd.epochs else (16 + 16 + 8 + 16 + 16, 5)
    setting = parts.setting
    work = setting.cost.flops(setting.cost_profile, Pass(), Submodel(), np.array([seen]), np.array([steps]))
    assert [tools.take_flops()] == work.tolist()
    own = loaded(parts.module, first).train()
    optimiser = optimizer(own.parameters())
    for places in batch_order(KEY.at(0), 40, local_sgd, False):
        optimiser.zero_grad()
        soft_loss(own(x[places]), targets[places]).backward()
        optimiser.step()
    assert all(torch.allclose(fitted["params"][n], p, atol=1e-6) for n, p in own.named_parameters())
    assert not torch.equal(fitted["params"]["fc1.weight"], first["params"]["fc1.weight"])
    assert torch.equal(network.first["params"]["fc1.weight"], first["params"]["fc1.weight"])


@full
def test_outputs_of_any_weights_are_those_of_a_test_and_cost_a_forward_pass():
    """In pieces of 100, without dropout, with running statistics as they are: 230 samples, one forward pass each."""
    parts = assemble(digits_scenario(method={"name": f"{__name__}:Distilling"}, model="resnet18_bn"))
    tools, x = parts.make_tools(), parts.data.batch("test", torch.arange(230))[0]
    model = tools.network.first
    model["buffers"] = {n: t + 0.1 for n, t in model["buffers"].items()}
    found = tools.network.outputs(model, x)
    assert tools.take_flops() == 230 * parts.setting.cost_profile.forward_flops()
    with torch.no_grad():
        assert torch.allclose(found, loaded(parts.module, model).eval()(x), atol=1e-5)


def test_a_module_of_the_methods_own_learns_through_fixed_models():
    """A generator, 4 -> 6, of which an ensemble of two fixed classifiers 6 -> 3 says how well it does.

    By hand: gradients by autograd of plain products. FLOPs of 5 samples, 2 a multiply-add: generator forward 2*4*6 and
    its weights' gradient as much, its input needs none; each classifier forward 2*6*3 and its input's gradient too.
    """
    with seeded(KEY):
        classifier, generator = nn.Linear(6, 3), nn.Linear(4, 6)
    tools = tools_with(classifier)
    network, own = tools.network, tools.own(generator)
    models = [
        {"params": {n: t * factor for n, t in network.first["params"].items()}, "buffers": {}} for factor in (1, 2)
    ]
    noise, labels = torch.randn(5, 4, generator=torch.Generator().manual_seed(2)), torch.tensor([0, 1, 2, 0, 1])
    ensemble = [network.fixed(model) for model in models]
    learner = own.trained(own.first, LocalSGD(batch=5, lr=0.5, steps=1), KEY)

    def loss():
        made = learner(noise)
        return F.cross_entropy(sum(model(made) for model in ensemble) / 2, labels)

    before = tools.step(loss, learner)
    assert tools.take_flops() == 5 * (2 * 2 * 4 * 6 + 2 * 2 * 2 * 6 * 3)
    w, b = (own.first["params"][name].requires_grad_() for name in ("weight", "bias"))
    made = noise @ w.T + b
    logits = sum(made @ m["params"]["weight"].T + m["params"]["bias"] for m in models) / 2
    loss = F.cross_entropy(logits, labels)
    slope_w, slope_b = torch.autograd.grad(loss, [w, b])
    assert before == pytest.approx(loss.item(), rel=1e-6)
    assert torch.allclose(learner.model["params"]["weight"], w - 0.5 * slope_w, atol=1e-6)
    assert torch.allclose(learner.model["params"]["bias"], b - 0.5 * slope_b, atol=1e-6)


def test_two_models_take_a_step_down_one_loss_each_with_its_own_optimiser():
    """loss = (a + b)^2 with a = 1, b = 2: both slopes are 6; rates 0.1 and 0.01, halved."""
    with seeded(KEY):
        module = nn.Linear(1, 1, bias=False)
    tools, one = tools_with(module), torch.ones(1, 1)
    first, second = (
        tools.network.trained(
            {"params": {"weight": torch.tensor([[value]])}, "buffers": {}}, LocalSGD(1, lr, steps=1), KEY
        )
        for value, lr in ((1.0, 0.1), (2.0, 0.01))
    )
    assert tools.step(lambda: (first(one) + second(one)).square().sum(), first, second, rate=0.5) == 9.0
    assert first.model["params"]["weight"].item() == pytest.approx(1 - 0.05 * 6)
    assert second.model["params"]["weight"].item() == pytest.approx(2 - 0.005 * 6)


def test_steps_that_are_alike_are_charged_as_the_first_of_them():
    """Without a name, and with another one, a step is counted; names hold until the FLOPs are taken.

    FLOPs of a batch of n: forward 2 * 6 * 3 n, the weights' gradient as many.
    """
    with seeded(KEY):
        tools = tools_with(nn.Linear(6, 3))
    learner = tools.network.trained(tools.network.first, LocalSGD(1, 0.1, steps=1), KEY)

    def step(samples, like=None):
        tools.step(lambda: learner(torch.ones(samples, 6)).sum(), learner, like=like)
        return tools.take_flops() if like is None else None

    assert step(5) == 5 * 2 * 36
    step(5, "five")
    step(5, "five")
    step(7, "seven")
    assert tools.take_flops() == (5 + 5 + 7) * 2 * 36
    step(7, "five")
    assert tools.take_flops() == 7 * 2 * 36


class Dropping(nn.Module):
    """A network with dropout, and batch normalisation of momentum 0.1."""

    def __init__(self):
        super().__init__()
        self.drop, self.norm, self.out = nn.Dropout(0.5), nn.BatchNorm1d(4), nn.Linear(4, 2)

    def forward(self, x):
        return self.out(self.drop(self.norm(x)))


def test_dropout_draws_from_the_key_and_running_statistics_move_in_training_alone():
    """Same key, same weights, whatever torch's own generator is at; running mean: 0.9 * 0 + 0.1 * the batch's mean."""
    tools, x = tools_with(Dropping()), torch.arange(12.0).reshape(3, 4)
    assert tools.network.drop_single
    first = tools.network.first

    def fitted(key, steps=1):
        sgd = LocalSGD(batch=3, lr=0.1, steps=steps)
        return tools.fit(tools.network, first, sgd, lambda m, places: m(x[places]).square().mean(), 3, key)

    before = torch.get_rng_state()
    once, again, other = fitted(KEY), fitted(KEY), fitted(Key(6))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(once["params"]["out.weight"], again["params"]["out.weight"])
    assert not torch.equal(once["params"]["out.weight"], other["params"]["out.weight"])
    assert torch.allclose(once["buffers"]["norm.running_mean"], 0.1 * x.mean(0))
    assert torch.equal(first["buffers"]["norm.running_mean"], torch.zeros(4))
    tools.network.outputs(first, x)
    learner = tools.network.trained(first, LocalSGD(3, 0.1, steps=1), KEY)
    learner.as_in_a_test(x)
    assert torch.equal(learner.model["buffers"]["norm.running_mean"], torch.zeros(4))


def test_what_the_server_trains_takes_its_time():
    """Two epochs over 40 samples, at 1 GFLOP/s, beside what averaging takes."""
    server, seconds = {"flops_per_s": "1 GFLOP/s"}, []
    for method in ("fedavg", {"name": f"{__name__}:Distilling"}):
        simulation = run(digits_scenario(method=method, server=server, stop={"rounds": 1}))
        seconds.append(simulation.tables["rounds"].frame()["server_s"][0])
    flops = 80 * simulation.parts.setting.cost_profile.train_flops()
    assert seconds[1] - seconds[0] == pytest.approx(flops / 1e9)
