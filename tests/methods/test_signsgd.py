"""signSGD with majority vote against numbers on paper and gradients of PyTorch.

Source: Bernstein et al. (2018), algorithm 3.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from edgesim.core.backend import Assignment
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key
from edgesim.core.task import Task
from edgesim.learning.models.build import model_state_of
from edgesim.methods.signsgd import SignSGD
from edgesim.runs.assembly import assemble
from tests.contracts.support import mixed_scenario, prepare, run
from tests.kinks import without_kinks
from tests.methods.exact_gradients import exact_gradients, first_job
from tests.methods.hand_made import KEY, message_of, model_of, server_of, setting_of, view_of

START = [1.0, -2.0, 0.5, 0.0]


def voted(moves, weights=None, samples=(1, 100, 1)):
    """Return where the model goes when devices moved so; the rate is the setting's."""
    server = server_of(view_of(setting_of(samples, {"w": 4})))
    task = Task(local_sgd=(server.setting.training.local_sgd(0),))
    updates = [
        message_of(device, samples[device], {"w": START})._replace(
            task=task,
            body={"descent": model_of({"w": move})["params"], "buffers": {}},
            weight=(weights or [1, 1, 1])[device],
        )
        for device, move in enumerate(moves)
    ]
    made = SignSGD().aggregate({}, {"params": model_of({"w": START})["params"], "buffers": {}}, updates, server, KEY)
    name = next(iter(made.model["params"]))
    return made.model["params"][name].flatten().tolist(), server.setting.training.lr


def test_the_majority_decides_by_heads():
    """Signs (+ + -), (- - +), (0 - -), (+ - 0): +, -, - and a tie; 100 samples have no more votes than one."""
    found, lr = voted([[0.1, -5.0, 0.0, 1.0], [0.2, -9.0, -1.0, -3.0], [-9.0, 0.1, -0.2, 0.0]])
    assert found == pytest.approx([1.0 + lr, -2.0 - lr, 0.5 - lr, 0.0])


def test_the_protocol_s_weight_counts():
    """One vote of weight 3 against two."""
    found, lr = voted([[-1.0] * 4, [1.0] * 4, [1.0] * 4], weights=[3.0, 1.0, 1.0])
    assert found == pytest.approx([value - lr for value in START])


def test_a_round_is_a_vote_on_the_signs_of_pytorch_s_gradients():
    """Each weight goes lr along what most of the devices' full gradients say; biases and all."""
    simulation = prepare(mixed_scenario(method="signsgd", stop={"rounds": 1}))
    parts, first = simulation.parts, simulation.learner.weights()["params"]
    module, lr = parts.module, parts.setting.training.lr
    votes = {name: torch.zeros_like(tensor) for name, tensor in first.items()}
    start = {name: tensor.clone() for name, tensor in first.items()}
    for rows in parts.split.train:
        x, y = parts.data.batch("train", torch.from_numpy(rows))
        module.load_state_dict(start, strict=False)
        gradients = torch.autograd.grad(F.cross_entropy(module(x), y), list(module.parameters()))
        for (name, _), gradient in zip(module.named_parameters(), gradients, strict=True):
            # a weight that no gradient reaches is sent as one that moved up, a bias as one that stayed
            votes[name] -= torch.where(gradient > 0, 1.0, -1.0) if gradient.dim() > 1 else gradient.sign()
    last = run(mixed_scenario(method="signsgd", stop={"rounds": 1})).learner.weights()["params"]
    for name, tensor in last.items():
        wrong = (tensor - (start[name] + lr * votes[name].sign())).abs() > 1e-6
        assert wrong.float().mean() < 0.01  # signs of gradients that are next to nothing


@pytest.mark.parametrize("lr", [1e-3, 1e-4])
@pytest.mark.parametrize("values", ["sign", "float32"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_signs_are_those_of_the_gradient_however_small_the_rate(lr, values, weight_decay, monkeypatch):
    """Float64 of Bernstein et al., algorithm 3, line 3, sign(g): none of some 6000 signs a device is lost or wrong.

    At these rates a step moves many a weight by less than a digit of float32, or by nothing.
    """
    without_kinks(monkeypatch)
    training = {"lr": lr, "weight_decay": weight_decay, "clip_norm": 1e-3}
    simulation = prepare(mixed_scenario(method={"name": "signsgd", "values": values}, training=training))
    for device in range(3):
        sent = first_job(simulation, device).body["descent"]
        clipped = exact_gradients(simulation.parts, device, clip_norm=1e-3, weight_decay=weight_decay)
        for name, exact in clipped.items():
            assert exact.sure.float().mean() > 0.8, name
            assert sent[name].sign()[exact.sure].equal(-exact.gradient.sign()[exact.sure].float()), name


def test_a_round_votes_on_exact_signs(monkeypatch):
    """Float64 of w - lr sign(sum of sign(g_k)), six devices: at a rate of 1e-4 no weight goes astray."""
    without_kinks(monkeypatch)
    simulation = prepare(mixed_scenario(method="signsgd", stop={"rounds": 1}, training={"lr": 1e-4}))
    start = {name: tensor.double() for name, tensor in simulation.learner.weights()["params"].items()}
    exact = [exact_gradients(simulation.parts, device) for device in range(6)]
    simulation.run()
    for name, tensor in simulation.learner.weights()["params"].items():
        votes = sum(each[name].gradient.sign() for each in exact)
        sure = torch.stack([each[name].sure for each in exact]).all(0)
        assert sure.float().mean() > 0.8, name
        after = start[name] - 1e-4 * votes.sign()
        torch.testing.assert_close(tensor.double()[sure], after[sure], rtol=0, atol=2.0**-24 * float(after.abs().max()))


def test_signs_cost_bytes_less_and_flops_more():
    """cnn_digits: a bit for each of 6032 weights, 4 bytes for 58 other numbers and three layers; down goes the model.

    The move is a FLOP for each weight, and the mean of magnitudes 2.
    """
    scenarios = [
        mixed_scenario(method={"name": "signsgd", "values": values}, backend="null") for values in ("sign", "float32")
    ]
    sign, whole = (run(scenario).tables["jobs"].frame() for scenario in scenarios)
    assert set(sign["up_bytes"]) == {6032 // 8 + 4 * 58 + 4 * 3}
    assert set(whole["up_bytes"]) == set(sign["down_bytes"]) == set(whole["down_bytes"]) == {4 * 6090}
    assert (sign["flops"] - whole["flops"]).tolist() == [3 * 6032] * 12


def test_whole_numbers_give_the_same_vote():
    """A round of signs and one of float32 differ where a gradient is 0 alone: a bit says something, a zero abstains."""
    scenarios = [
        mixed_scenario(method={"name": "signsgd", "values": values}, stop={"rounds": 1})
        for values in ("sign", "float32")
    ]
    start = prepare(scenarios[0]).learner.weights()["params"]
    sign, whole = (run(scenario).learner.weights()["params"] for scenario in scenarios)
    for name, tensor in whole.items():
        stayed = tensor == start[name]  # a tie of six votes, some of which one bit turns
        assert bool((tensor == sign[name])[~stayed].float().mean() > 0.95)


def test_batches_may_be_drawn():
    """A batch of ten is one step of ten samples."""
    method = {"name": "signsgd", "batch_size": 10}
    parts = assemble(mixed_scenario(method=method))
    view = prepare(mixed_scenario(method=method)).session.view()
    task = parts.scenario.method.value.plan({}, view, Key(1)).orders[0].task
    assert (task.local_sgd[0].batch, task.local_sgd[0].steps, task.local_sgd[0].epochs) == (10, 1, 0)
    result = parts.make_trainer("cpu").run(Assignment(0, 0, task, KEY, model_state_of(parts.module), None))
    assert result.steps == 1
    assert len(result.body["descent"]["conv2.weight"].abs().unique()) == 1  # a sign and the layer's scale


def test_other_encodings_of_updates_are_refused():
    with pytest.raises(
        ConfigError, match=r"encoding\.up: signsgd sends signs already; it can encode values, not updates"
    ):
        assemble(mixed_scenario(method="signsgd", encoding={"up": {"sparsify": "top_k", "share": 0.1}}))


def test_other_values_are_refused():
    with pytest.raises(ConfigError, match=r"encoding\.up: of signsgd, method\.values says .* found values = 'float16'"):
        prepare(mixed_scenario(method="signsgd", encoding={"up": {"values": "float16"}}))


def test_it_learns():
    """Fifteen rounds at a small rate, on digits."""
    training = {"lr": 0.005, "batch": 16, "local_epochs": 1}
    evals = run(mixed_scenario(method="signsgd", stop={"rounds": 15}, training=training)).tables["evals"].frame()
    assert evals["accuracy"].iloc[-1] > 0.5


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "signsgd": {
        "batch_size": "test_batches_may_be_drawn",
        "values": "test_signs_cost_bytes_less_and_flops_more",
    },
}
