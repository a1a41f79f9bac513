"""1-bit Adam against numbers on paper and a replay of whole rounds in plain PyTorch.

Source: Tang et al. (2021), algorithm 1.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from edgesim.core.backend import Assignment
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key
from edgesim.learning.codec.kept import Kept
from edgesim.learning.models.build import model_state_of
from edgesim.learning.train.context import first_of
from edgesim.methods.onebit_adam import OneBitAdam
from edgesim.runs.assembly import assemble
from tests.contracts.support import COORDINATORS, merge_arguments, mixed_scenario, prepare, results_of, run
from tests.contracts.whole_runs import check_whole_runs
from tests.kinks import without_kinks
from tests.methods.exact_gradients import exact_gradients, first_job
from tests.methods.hand_made import KEY, message_of, model_of, server_of, setting_of, view_of
from tests.sizes import full

START = [1.0, -2.0, 0.5, 3.0]


def stepped(state: Any, model: Any, told: Any, round_: int, method: OneBitAdam, kind: str = "gradient") -> Any:
    """Return what the server makes of devices that tell a gradient or a momentum of four weights, in two rows."""
    server = server_of(view_of(setting_of([1] * len(told), {"w": 4}), round_))
    updates = [
        message_of(device, 1, {"w": START})._replace(
            body={kind: {"w.weight": torch.tensor(each).view(2, 2)}, "buffers": {}}
        )
        for device, each in enumerate(told)
    ]
    return method.aggregate(state, model, updates, server, KEY)


def started(method: OneBitAdam) -> tuple[Any, Any]:
    """Return the first state and model."""
    model = {"params": {"w.weight": model_of({"w": START})["params"]["w.weight"].view(2, 2)}, "buffers": {}}
    return method.init(setting_of([1, 1], {"w": 4}), KEY), model


# --- steps --------------------------------------------------------------------------------------------------------


def test_a_first_step_of_adam_on_paper() -> None:
    """beta1 = 1/2, beta2 = 3/4: m = g / 2, v = g^2 / 4, so each weight goes lr = 0.01 against its sign; 0 stays."""
    method = OneBitAdam(beta1=0.5, beta2=0.75, eps=1e-30)
    made = stepped(*started(method), [[2.0, -4.0, 0.0, 6.0], [0.0, -4.0, 0.0, 2.0]], 0, method)
    assert made.model["params"]["w.weight"].flatten().tolist() == pytest.approx([0.99, -1.99, 0.5, 2.99])
    scale = math.sqrt(8.25 / 4)  # of 1/2 -2 0 2
    signs, error = (made.model["momentum"]["w.weight"], made.state["error"]["w.weight"])
    assert signs.flatten().tolist() == pytest.approx([scale, -scale, scale, scale])
    assert error.flatten().tolist() == pytest.approx([0.5 - scale, scale - 2.0, -scale, 2.0 - scale])


def test_signs_go_along_the_frozen_moment_on_paper() -> None:
    """v = 1 4 0 16. The mean of momenta, 1 each, and the error 2 -4 0 1: 3 -3 1 2, whose mean square is 23/4.

    Its root is divided by that of v; a weight whose v is 0 stays.
    """
    method = OneBitAdam(warm_up=1, eps=1e-30)
    state, model = started(method)
    state |= {
        "second": {"w.weight": torch.tensor([[1.0, 4.0], [0.0, 16.0]]).double()},
        "error": {"w.weight": torch.tensor([[2.0, -4.0], [0.0, 1.0]]).double()},
    }
    made = stepped(state, model, [[2.0, 2.0, 2.0, 2.0], [0.0, 0.0, 0.0, 0.0]], 1, method, "momentum")
    scale = math.sqrt(23 / 4)
    expected = [1.0 - 0.01 * scale, -2.0 + 0.005 * scale, 0.5, 3.0 - 0.0025 * scale]
    assert made.model["params"]["w.weight"].flatten().tolist() == pytest.approx(expected)
    signs, error = (made.model["momentum"]["w.weight"], made.state["error"]["w.weight"])
    assert signs.flatten().tolist() == pytest.approx([scale, -scale, scale, scale])
    assert error.flatten().tolist() == pytest.approx([3.0 - scale, scale - 3.0, 1.0 - scale, 2.0 - scale])
    assert made.state["second"]["w.weight"].equal(state["second"]["w.weight"])


def test_a_late_gradient_counts_as_the_momentum_that_it_makes() -> None:
    """m = 1 in signs and beta1 = 1/2: a gradient of 3 is a momentum of 2."""
    method = OneBitAdam(warm_up=1, beta1=0.5)
    state, model = started(method)
    state |= {"second": {"w.weight": torch.ones(2, 2).double()}}
    model = {**model, "momentum": {"w.weight": torch.ones(2, 2)}}
    late = stepped(state, model, [[3.0] * 4], 1, method)
    told = stepped(state, model, [[2.0] * 4], 1, method, "momentum")
    assert late.model["params"]["w.weight"].equal(told.model["params"]["w.weight"])


def test_without_a_warm_up_that_arrived_the_first_momentum_is_the_measure() -> None:
    """v = m^2: a step of the rate."""
    method = OneBitAdam(warm_up=1)
    made = stepped(*started(method), [[2.0, -2.0, 2.0, 2.0]], 1, method, "momentum")
    assert made.model["params"]["w.weight"].flatten().tolist() == pytest.approx([0.99, -1.99, 0.49, 2.99])


# --- whole rounds -------------------------------------------------------------------------------------------------


def in_signs(tensors: Any) -> Any:
    """Return norm(x) / sqrt(numel(x)) with each sign, 0 being positive, of tensors of two dimensions or more.

    As `compressed_allreduce` of the authors' code (DeepSpeed) has it.
    """
    return {
        n: t if t.dim() < 2 else torch.where(t < 0, -1.0, 1.0) * (t.double().norm() / math.sqrt(t.numel())).to(t.dtype)
        for n, t in tensors.items()
    }


@pytest.mark.parametrize("lr", [1e-3, 1e-4])
def test_a_device_sends_its_exact_gradient(lr: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Float64 of the warm-up's g_k: within its own rounding, not that of the weights that it would move."""
    without_kinks(monkeypatch)
    simulation = prepare(mixed_scenario(method="onebit_adam", training={"lr": lr, "weight_decay": 0.01}))
    for device in range(2):
        sent = first_job(simulation, device).body["gradient"]
        for name, (gradient, _) in exact_gradients(simulation.parts, device, weight_decay=0.01).items():
            tiny = 4e-6 * float(gradient.abs().max())
            torch.testing.assert_close(sent[name].double(), gradient, rtol=1e-5, atol=tiny)


def test_signs_have_the_norm_of_the_momentum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Float64 of algorithm 1's C[m + error] and of what it leaves, for the first momentum (1 - beta1) g."""
    without_kinks(monkeypatch)
    simulation = prepare(mixed_scenario(method={"name": "onebit_adam", "warm_up": 1}, stop={"rounds": 1}))
    trainer, method = simulation.parts.make_trainer("cpu"), simulation.learner.method
    task = method.plan({}, view_of(simulation.parts.setting, 1), Key(1)).orders[0].task
    result = trainer.run(Assignment(0, 0, task, KEY, first_of(simulation.parts.module), None))
    left = Kept.of(result.new_device_state).left["residual of momentum"]
    for name, (gradient, sure) in exact_gradients(simulation.parts, 0).items():
        momentum, sent = 0.1 * gradient, result.body["momentum"][name].double()
        if momentum.dim() < 2:
            continue
        scale = float(momentum.norm()) / math.sqrt(momentum.numel())
        assert float(sent.norm()) == pytest.approx(float(momentum.norm()), rel=1e-5), name
        torch.testing.assert_close(sent[sure], scale * momentum.sign()[sure], rtol=1e-5, atol=0.0)
        torch.testing.assert_close(left[name].double()[sure], (momentum - sent)[sure], rtol=1e-4, atol=1e-6 * scale)


def test_rounds_are_algorithm_1_in_plain_pytorch() -> None:
    """Two rounds of Adam and two of signs on full gradients, with the errors of six devices and of the server."""
    scenario = mixed_scenario(
        method={"name": "onebit_adam", "warm_up": 2, "eps": 1e-3}, stop={"rounds": 4}, training={"lr": 0.01}
    )
    parts = prepare(scenario).parts
    module = parts.module
    x = {n: t.detach().clone() for n, t in module.named_parameters()}
    m, v, told = ({n: torch.zeros_like(t) for n, t in x.items()} for _ in range(3))
    errors = [{n: torch.zeros_like(t) for n, t in x.items()} for _ in parts.split.train]
    server = {n: torch.zeros_like(t) for n, t in x.items()}
    for round_ in range(4):
        arrived = []
        for rows, error in zip(parts.split.train, errors, strict=True):
            batch, labels = parts.data.batch("train", torch.from_numpy(rows))
            module.load_state_dict(x, strict=False)
            names, params = zip(*module.named_parameters(), strict=True)
            g = dict(zip(names, torch.autograd.grad(F.cross_entropy(module(batch), labels), params), strict=True))
            if round_ >= 2:
                wanted = {n: 0.9 * told[n] + 0.1 * g[n] + error[n] for n in x}
                g = in_signs(wanted)
                error.update({n: wanted[n] - g[n] for n in x})
            arrived.append(g)
        mean = {n: sum(each[n] for each in arrived) / len(arrived) for n in x}
        if round_ < 2:
            m = {n: 0.9 * m[n] + 0.1 * mean[n] for n in x}
            v = {n: 0.999 * v[n] + 0.001 * mean[n] ** 2 for n in x}
            total = m
        else:
            total = {n: mean[n] + server[n] for n in x}
        told = in_signs(total)
        server = {n: total[n] - told[n] for n in x}
        along = total if round_ < 2 else told
        x = {n: x[n] - torch.where(v[n] > 0, 0.01 * along[n] / (v[n].sqrt() + 1e-3), 0.0) for n in x}
    last = run(scenario).learner.weights()["params"]
    for name, tensor in last.items():
        far = (tensor - x[name]).abs() > 1e-4
        assert far.float().mean() < 0.01, name  # signs of numbers that are next to nothing


def test_bytes_of_both_stages() -> None:
    """cnn_digits: 6090 float32, or a bit for 6032 weights, three scales and 58 other numbers; m goes down beside x."""
    method = {"name": "onebit_adam", "warm_up": 1}
    jobs = run(mixed_scenario(method=method, backend="null")).tables["jobs"].frame()
    signs = 6032 // 8 + 4 * 58 + 4 * 3
    warm, short = (jobs[jobs["round"] == round_] for round_ in range(2))
    assert (set(warm["up_bytes"]), set(warm["down_bytes"])) == ({4 * 6090}, {4 * 6090})
    assert (set(short["up_bytes"]), set(short["down_bytes"])) == ({signs}, {4 * 6090 + signs})
    each = short.sort_values("device")["flops"].to_numpy() - warm.sort_values("device")["flops"].to_numpy()
    assert each == pytest.approx(np.full(6, 3 * 6090 + 5 * 6032))  # momenta; a move, the error there and back, a scale


def test_flops_of_the_server() -> None:
    """15 for each of 6090 parameters in the warm-up, and 9 after it."""
    method, setting = OneBitAdam(warm_up=1), prepare(mixed_scenario(method="onebit_adam")).parts.setting
    for round_, each in ((0, 15), (1, 9)):
        tasks = [order.task for order in method.plan({}, view_of(setting, round_), Key(1)).orders]
        assert method.merge_flops_of(tasks, setting) == each * 6090
    assert method.merge_flops(6, setting) == 9 * 6090


def test_updates_that_count_nothing_leave_the_model() -> None:
    simulation = prepare(mixed_scenario(method="onebit_adam"))
    state, base, updates, server, key = merge_arguments(simulation)
    stale = [update._replace(weight=0.0) for update in updates]
    merged = simulation.learner.method.combine(state, base, stale, server, key)
    assert merged.model is None and merged.state == state


UP = {"name": "onebit_adam", "warm_up": 1}


@full
def test_signs_are_timed_answered_and_resumed(tmp_path: Any) -> None:
    """With signs from the second round on: as the common contracts have it of the warm-up."""
    check_whole_runs(partial(mixed_scenario, method=UP, protocol=COORDINATORS["deadline"]), tmp_path)


@full
@pytest.mark.workers
def test_workers_give_the_same_signs() -> None:
    backends = ("serial", {"name": "workers", "workers": 2})
    first, second = (results_of(run(mixed_scenario(method=UP, stop={"rounds": 4}, backend=b))) for b in backends)
    assert first == second


@pytest.mark.parametrize(("round_", "kind"), [(0, "gradient"), (1, "momentum")])
def test_batches_may_be_drawn(round_: int, kind: str) -> None:
    """A batch of ten is one step of ten samples in both stages."""
    parts = assemble(mixed_scenario(method={"name": "onebit_adam", "batch_size": 10, "warm_up": 1}))
    task = parts.scenario.method.value.plan({}, view_of(parts.setting, round_), Key(1)).orders[0].task
    sgd = task.local_sgd[0]
    assert (sgd.batch, sgd.steps, sgd.epochs) == (10, 1, 0)
    result = parts.make_trainer("cpu").run(Assignment(0, 0, task, KEY, model_state_of(parts.module), None))
    assert result.steps == 1
    assert kind in result.body


@pytest.mark.parametrize("up", [{"values": "float16"}, {"sparsify": "top_k", "share": 0.1}])
def test_other_encodings_are_refused(up: Any) -> None:
    with pytest.raises(ConfigError, match=r"encoding\.up: onebit_adam "):
        prepare(mixed_scenario(method="onebit_adam", encoding={"up": up}))


@full
def test_it_learns() -> None:
    """Thirty rounds of Adam and thirty of signs, on digits; the moments take a while to be of their size."""
    training = {"lr": 0.001, "batch": 16, "local_epochs": 1}
    method = {"name": "onebit_adam", "warm_up": 30}
    evals = run(mixed_scenario(method=method, stop={"rounds": 60}, training=training)).tables["evals"].frame()
    accuracy = evals["accuracy"].to_numpy()
    assert accuracy[-1] > 0.9
    assert accuracy[-1] > accuracy[29] + 0.02
    assert math.isfinite(float(evals["loss"].iloc[-1]))


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "onebit_adam": {
        "batch_size": "test_batches_may_be_drawn",
        "warm_up": "test_bytes_of_both_stages",
        "beta1": "test_a_first_step_of_adam_on_paper",
        "beta2": "test_a_first_step_of_adam_on_paper",
        "eps": "test_rounds_are_algorithm_1_in_plain_pytorch",
    },
}
