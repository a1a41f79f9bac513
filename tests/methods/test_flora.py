"""FLoRA against sums of products, prices by hand and a base that other models do not see."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

import edgesim
from edgesim.core.errors import ConfigError
from edgesim.core.selection import Poll
from edgesim.core.task import Task
from edgesim.learning.models.build import base_of
from edgesim.learning.server_optimizers.adaptive import Adam
from edgesim.methods.flora import FLoRA, stacked_product
from edgesim.methods.lora.adapters import adapters_of
from edgesim.methods.optimised import Optimised
from edgesim.methods.polled import Polled, poll_task
from edgesim.runs.assembly import assemble
from tests.conftest import frames
from tests.contracts.support import fingerprint, mixed_scenario, prepare, run
from tests.methods.adapted import PROFILE, merged, model, product_of, update
from tests.methods.hand_made import KEY, setting_of
from tests.methods.recorded import close_to, record
from tests.plugins.networks import AdaptedDigits

BY_LEVEL = {"name": "flora", "ranks": [2, 4, 8], "tiers": "level"}
SCALING = 16.0 / 8


def network_of(base):
    """Return a network by hand with this frozen weight and the factor 2 of its adapter."""
    holder = nn.Module()
    holder.l = nn.Module()
    holder.l.base_layer, holder.l.scaling = nn.Module(), {"default": 2.0}
    holder.l.base_layer.register_buffer("weight", torch.tensor(base))
    return SimpleNamespace(module=holder)


def test_products_by_hand():
    """A quarter of [[4, 0, 0], [0, 0, 0]] and three quarters of [[0, 0, 0], [0, 4, 0]], twice, on a base of ones."""
    config = {"folded": 0.0}
    updates = [
        update(0, 25, [[2, 0, 0]], [[2], [0]], 4.0, config=config),
        update(1, 75, [[0, 1, 0], [0, 1, 0]], [[0, 0], [2, 2]], config=config),
    ]
    (adapter,) = adapters_of(PROFILE)
    stacked = stacked_product(adapter, [each.body["params"] for each in updates], [0.25, 0.75])
    assert stacked.tolist() == [[1, 0, 0], [0, 3, 0]]
    before, network = model([[7] * 3] * 2, [[0] * 2] * 2), network_of([[1.0] * 3] * 2)
    first = merged(FLoRA(), None, before, updates, network)
    assert first.model["base"]["l.base_layer.weight"].tolist() == [[3, 1, 1], [1, 7, 1]]
    assert first.model["params"]["head.weight"].tolist() == [1]
    assert first.model["params"]["l.lora_A.default.weight"].tolist() == [[7] * 3] * 2
    assert not first.model["params"]["l.lora_B.default.weight"].any()
    assert first.state == {"rank": [2, 2], "stacked": [[0], [3]], "folded": [0, 0]}
    second = merged(FLoRA(), first.state, first.model, updates[1:], network)
    assert second.model["base"]["l.base_layer.weight"].tolist() == [[3, 1, 1], [1, 15, 1]]
    assert network.module.l.base_layer.weight.tolist() == [[1] * 3] * 2


def logits_of(module, params, moved, x):
    """Return what a network says whose base has these weights, without its adapters."""
    h = x.flatten(1)
    for layer in ("fc1", "fc2"):
        h = functional.relu(functional.linear(h, moved[layer], module.get_submodule(layer).base_layer.bias))
    return functional.linear(h, params["head.weight"], params["head.bias"])


def test_a_run_is_the_exact_sum_of_products(monkeypatch):
    """Three rounds of ranks 2, 4 and 8: each job starts where the base has the mean products of the rounds before."""
    jobs = record(monkeypatch, kinks=True)
    training = {"batch": 16, "lr": 0.5, "local_epochs": 2}
    simulation = run(mixed_scenario(method=BY_LEVEL, training=training, stop={"rounds": 3}))
    trainer, rounds = jobs[0].trainer, [jobs[start : start + 6] for start in (0, 6, 12)]
    fresh = mixed_scenario(method=BY_LEVEL, training=training)
    originals = prepare(fresh).parts.module
    moved = {layer: originals.get_submodule(layer).base_layer.weight.double() for layer in ("fc1", "fc2")}
    steps = []
    for own in rounds:
        for layer in moved:
            total = sum(product_of(job.result.body["params"], layer) for job in own)
            moved[layer] = moved[layer] + SCALING * total / 6
            steps.append(float((SCALING * total / 6).norm()))
    last = simulation.learner.weights()
    for layer, expected in moved.items():
        torch.testing.assert_close(last["base"][f"{layer}.base_layer.weight"].double(), expected, atol=1e-6, rtol=0)
    assert min(steps) > 1e-3
    x = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        said = trainer.load_for_test(last)(x)
        expected = logits_of(originals, last["params"], {n: w.float() for n, w in moved.items()}, x)
    torch.testing.assert_close(said, expected, atol=1e-5, rtol=1e-5)


def test_a_job_in_plain_torch(monkeypatch):
    """Of the second round: new A within 1 / sqrt(64), B from 0, on the moved base, which stays."""
    jobs = record(monkeypatch, kinks=True)
    run(mixed_scenario(method=BY_LEVEL))
    job, other = jobs[6], jobs[7]
    received = job.assignment.global_model
    as_drawn = []
    for each in (job, other):
        context = each.trainer.context(each.assignment, each.trainer.network(each.assignment.task.submodel))
        as_drawn.append(each.trainer.rule(each.assignment.task).on_start(context).weights["params"])
    weights, bias = as_drawn[0], job.trainer.module.get_submodule
    a = weights["fc1.lora_A.default.weight"]
    assert a.shape == (2, 64) and a.abs().max() <= 1 / 8 and abs(float(a.std()) - 1 / 8 / 3**0.5) < 0.02
    assert not torch.equal(a, as_drawn[1]["fc1.lora_A.default.weight"])
    assert not weights["fc1.lora_B.default.weight"].any()
    trained = {n: w.clone().requires_grad_() for n, w in weights.items()}
    for x, y in job.batches():
        h = x.flatten(1)
        for layer in ("fc1", "fc2"):
            low = h @ trained[f"{layer}.lora_A.default.weight"].T @ trained[f"{layer}.lora_B.default.weight"].T
            full = functional.linear(h, received["base"][f"{layer}.base_layer.weight"], bias(layer).base_layer.bias)
            h = functional.relu(full + SCALING * low)
        loss = functional.cross_entropy(functional.linear(h, trained["head.weight"], trained["head.bias"]), y)
        for w, g in zip(trained.values(), torch.autograd.grad(loss, list(trained.values())), strict=True):
            w.data -= 0.1 * g
    close_to(job.result.body["params"], {n: w.detach() for n, w in trained.items()})


def test_saved_weights_hold_the_moved_base(tmp_path):
    """A network with these tensors, its whole base among them, has the accuracy of the run's last test."""
    scenario = mixed_scenario(method="flora", weights="final")
    found = edgesim.run(scenario, out=tmp_path / "run")
    parts = assemble(scenario)
    module = parts.module
    moved = load_file(tmp_path / "run" / "final.safetensors")
    assert base_of(module).keys() < moved.keys()
    assert any((moved[name] != tensor).any() for name, tensor in base_of(module).items())
    assert not module.load_state_dict(moved, strict=False).unexpected_keys
    x, labels = parts.data.batch("test", torch.arange(len(parts.data.labels("test"))))
    with torch.no_grad():
        hits = (module.eval()(x).argmax(1) == labels).double().mean().item()
    assert found.evals["accuracy"].iloc[-1] == pytest.approx(hits, abs=0.005)


def test_price_of_the_stacks():
    """Ranks 2, 2, 4, 4, 8, 8 sum to 28; of two layers, 64 + 64 numbers a rank down and 2 x 64 x 64 FLOPs to fold.

    So it is with training and without. A classifier of 64 x 10 + 10 numbers travels whatever the rank.
    """
    for backend in ("serial", "null"):
        simulation = run(mixed_scenario(method=BY_LEVEL, stop={"rounds": 3}, backend=backend))
        jobs = frames(simulation)["jobs"].sort_values(["device", "job"])
        down, flops, up = (jobs[name].to_numpy().reshape(6, 3) for name in ("down_bytes", "flops", "up_bytes"))
        assert down[:, 0].tolist() == [4 * 650] * 6
        assert (down[:, 1] - down[:, 0]).tolist() == [4 * 28 * 2 * 128] * 6
        assert (flops[:, 1] - flops[:, 0]).tolist() == [2 * 28 * 2 * 64 * 64] * 6
        assert (down[:, 2] == down[:, 1]).all()
        assert sorted(up[:, 0].tolist()) == [4 * (650 + rank * 2 * 128) for rank in (2, 2, 4, 4, 8, 8)]


def test_only_those_whose_updates_arrived_are_in_the_stacks():
    """Two devices are late: four ranks of 8 come down in the next round, with training and without."""
    protocol = {"name": "deadline", "deadline": "1.5 s"}
    found = []
    for backend in ("serial", "null"):
        scenario = mixed_scenario(method="flora", protocol=protocol, stop={"rounds": 2}, backend=backend)
        found.append(frames(run(scenario))["jobs"])
        second = found[-1][found[-1]["round"] == 1]
        assert set(second["down_bytes"]) == {4 * (650 + 4 * 8 * 2 * 128)}
    assert found[0].equals(found[1])


def test_states_of_methods_around_it():
    """A server optimiser and a poll keep the method's state inside their own."""
    setting, task = setting_of([25, 75], {}, cost_profile=PROFILE), Task(config={"folded": 0.0})
    first = FLoRA().init(setting, KEY)
    ends = update(1, 75, [[0] * 3] * 2, [[0] * 2] * 2, config=task.config)
    then = {"rank": [2, 2], "stacked": [[0], [2]], "folded": [0, 0]}
    optimised = Optimised(method=FLoRA(), optimizer=Adam())
    assert optimised.foreseen({"method": first, "moments": {}}, [ends], setting)["method"] == then
    polled = Polled(method=FLoRA(), poll=Poll(1))
    answer = ends._replace(task=poll_task(5))
    assert polled.foreseen({"method": first, "loss": None}, [answer, ends], setting) == {"method": then, "loss": None}
    assert (optimised.needs_training, polled.needs_training) == (False, True)


def test_an_absent_device_catches_up():
    """It downloads the stacks of all rounds since its last update, and never one twice."""
    scenario = mixed_scenario(method="flora", selection={"name": "uniform", "count": 2}, stop={"rounds": 6})
    jobs = frames(run(scenario))["jobs"].sort_values("job")
    plain = jobs["down_bytes"].min()
    last = dict.fromkeys(range(6), 0)
    for place, (device, found) in enumerate(zip(jobs["device"], jobs["down_bytes"], strict=True)):
        round_ = place // 2
        assert found - plain == 4 * 16 * 2 * 128 * (round_ - last[device])
        last[device] = round_
    assert len(set(jobs["down_bytes"])) > 2


def test_models_do_not_see_the_base_of_others():
    """The first model is scored alike before and after models with a moved base, in this process and in others."""
    simulation = prepare(mixed_scenario(method="flora"))
    first, trainer = simulation.learner.weights(), simulation.parts.make_trainer("cpu")
    before = trainer.score_chunks(first, [0])
    simulation.run()
    last = simulation.learner.weights()
    moved = trainer.score_chunks(last, [0])
    assert trainer.score_chunks(first, [0]) == before != moved
    assert trainer.score_chunks({**last, "base": {}}, [0]) != moved
    runs = [run(mixed_scenario(method="flora", backend=backend)) for backend in ("serial", {"name": "cohort"})]
    assert fingerprint(runs[0].learner.weights()["base"]) == fingerprint(last["base"])
    close_to(dict(runs[1].learner.weights()["base"]), dict(last["base"]))


class Turned(AdaptedDigits):
    """Its first layer keeps its weight as (inputs, outputs), as Conv1D of transformers does."""

    def __init__(self) -> None:
        super().__init__()
        turned = Conv1D()
        turned.weight = nn.Parameter(self.fc1.base_layer.weight.detach().T.clone(), requires_grad=False)
        turned.bias = nn.Parameter(self.fc1.base_layer.bias.detach(), requires_grad=False)
        self.fc1.base_layer = turned


class Conv1D(nn.Module):
    """Affine layer with the weight (inputs, outputs)."""

    def forward(self, x):
        return x @ self.weight + self.bias


def test_a_turned_weight():
    """The base of both networks is the same, turned, after two rounds."""
    turned, plain = (
        run(mixed_scenario(method="flora", model=name)).learner.weights()["base"]
        for name in ("tests.methods.test_flora:Turned", "tests.plugins.networks:AdaptedDigits")
    )
    torch.testing.assert_close(turned["fc1.base_layer.weight"].T, plain["fc1.base_layer.weight"], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(turned["fc2.base_layer.weight"], plain["fc2.base_layer.weight"], atol=1e-6, rtol=1e-5)


class Unfrozen(AdaptedDigits):
    """Its first layer is trained beside its adapter."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1.base_layer.requires_grad_(True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model": "tests.methods.test_flora:Unfrozen"},
            r"method\.name: flora adds .*; fc1\.base_layer of .* a trained",
        ),
        ({"server_optimizer": "adam"}, r"frozen weights, which a server optimiser would not see"),
    ],
)
def test_what_does_not_fit(changes, message):
    with pytest.raises(ConfigError, match=message):
        prepare(mixed_scenario(method="flora", **changes))


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "flora": {
        "ranks": "test_a_run_is_the_exact_sum_of_products",
        "tiers": "test_price_of_the_stacks",
        "proportions": "test_ranks.py::test_proportions",
    },
}
