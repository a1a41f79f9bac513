"""DiLoCo against torch.optim, numbers on paper, and data-parallel training in a few lines of PyTorch.

Source: Douillard et al. (2023), algorithm 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from edgesim.core.errors import ConfigError
from edgesim.methods.diloco import DiLoCo
from edgesim.runs.assembly import assemble
from tests.contracts.support import mixed_scenario, run
from tests.methods.hand_made import KEY, message_of, model_of, server_of, setting_of, view_of
from tests.methods.plain_torch import flat, mean, network_of, rounds_of, three_devices, weights_of
from tests.methods.recorded import Recorded, close_to, record

START = [1.0, -2.0, 0.5]
# End of two workers with 1 and 3 samples, seen from wherever the global model then is, in each of five rounds.
MOVES = (
    ([0.3, -0.1, 0.0], [0.1, 0.2, 0.01]),
    ([-0.2, 0.05, 0.1], [0.4, -0.2, 0.02]),
    ([0.0, 0.3, -0.3], [-0.1, 0.1, 0.0]),
    ([0.05, 0.0, 0.2], [0.2, -0.3, 0.1]),
    ([0.1, 0.1, -0.1], [0.0, 0.2, 0.3]),
)


def path(method: DiLoCo) -> list[list[float]]:
    """Return the global model after each round of MOVES."""
    server = server_of(view_of(setting_of([1, 3], {"w": 3})))
    state, x, seen = method.init(server.setting, KEY), START, []
    for moves in MOVES:
        updates = [message_of(k, (1, 3)[k], {"w": np.add(x, move).tolist()}) for k, move in enumerate(moves)]
        merged = method.aggregate(state, model_of({"w": x}), updates, server, KEY)
        assert merged.model is not None
        state, x = merged.state, merged.model["params"]["w.weight"].tolist()
        seen.append(x)
    return seen


@pytest.mark.parametrize(
    ("method", "sizes"),
    [
        (DiLoCo(), (1, 1)),
        (DiLoCo(weights="samples"), (1, 3)),
        (DiLoCo(lr=0.4, momentum=0.5), (1, 1)),
        (DiLoCo(nesterov=False), (1, 1)),
        (DiLoCo(momentum=0.0), (1, 1)),
    ],
)
def test_the_outer_step_is_that_of_torch(method: DiLoCo, sizes: tuple[int, int]) -> None:
    """torch.optim.SGD on the mean of (start - end), five rounds."""
    weight = torch.nn.Parameter(torch.tensor(START, dtype=torch.float64))
    nesterov = method.nesterov and method.momentum > 0  # torch refuses it without momentum
    outer = torch.optim.SGD([weight], lr=method.lr, momentum=method.momentum, nesterov=nesterov)
    seen = []
    for one, other in MOVES:
        weight.grad = -(sizes[0] * torch.tensor(one).double() + sizes[1] * torch.tensor(other).double()) / sum(sizes)
        outer.step()
        seen.append(weight.tolist())
    assert np.array(path(method)) == pytest.approx(np.array(seen), abs=1e-6)


def test_a_first_round_on_paper() -> None:
    """The mean move (0.2, 0.05, 0.005), times 0.7 x (1 + 0.9) = 1.33."""
    assert path(DiLoCo())[0] == pytest.approx([1.266, -1.9335, 0.50665], abs=1e-6)


def test_flops_of_an_outer_step() -> None:
    """For each of 3 parameters: the move 1, the velocity 2, looking ahead 2, the step 2."""
    setting = setting_of([1, 3], {"w": 3})
    assert DiLoCo().merge_flops(2, setting) == 3 * 7
    assert DiLoCo(nesterov=False).merge_flops(2, setting) == 3 * 5


# --- whole rounds -------------------------------------------------------------------------------------------------


def test_one_step_of_sgd_is_data_parallel_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """H = 1, lr 1, no momentum: each round the model steps along the mean gradient of the workers' batches."""
    jobs, lr = record(monkeypatch), 0.05
    made = run(
        three_devices(
            {"name": "diloco", "lr": 1.0, "momentum": 0.0},
            training={"batch": 16, "lr": lr, "local_steps": 1},
            stop={"rounds": 5},
        )
    )
    weights: Any = flat(jobs[0].assignment.global_model)
    for round_ in rounds_of(jobs):
        network = network_of(round_[0], weights)
        batches = [next(job.batches()) for job in round_]
        torch.stack([cross_entropy(network(x), y) for x, y in batches]).mean().backward()
        torch.optim.SGD(network.parameters(), lr=lr).step()
        weights = weights_of(network)
    close_to(flat(made.learner.weights()), weights, atol=1e-6)


@pytest.mark.parametrize("inner", ["adamw", "momentum"])
@pytest.mark.parametrize("inner_state", ["keep", "reset"])
def test_three_rounds_in_plain_torch(inner: str, inner_state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker has one optimiser of torch for the whole run, or a new one in each round."""
    settings = {
        "adamw": {"optimizer": "adamw", "lr": 2e-3, "weight_decay": 0.1},
        "momentum": {"lr": 0.02, "momentum": 0.8},
    }[inner]
    jobs = record(monkeypatch)
    training = {"batch": 16, "local_steps": 4, **settings}
    made = run(three_devices({"name": "diloco", "inner_state": inner_state}, training=training))
    assert len(jobs) == 9
    weights, workers = flat(jobs[0].assignment.global_model), dict[int, Any]()
    names = list(jobs[0].assignment.global_model["params"])
    outer_weights = [torch.nn.Parameter(weights[name].double()) for name in names]
    outer = torch.optim.SGD(outer_weights, lr=0.7, momentum=0.9, nesterov=True)
    for round_ in rounds_of(jobs):
        ends = [_trained(job, weights, workers, settings, keep=inner_state == "keep") for job in round_]
        middle = mean(ends, [1, 1, 1])
        for name, weight in zip(names, outer_weights, strict=True):
            weight.grad = (weights[name] - middle[name]).double()
        outer.step()
        weights = {**middle, **{n: w.detach().float() for n, w in zip(names, outer_weights, strict=True)}}
    close_to(flat(made.learner.weights()), weights, atol=1e-5)


def _trained(job: Recorded, start: Any, workers: dict[int, Any], settings: Any, keep: bool) -> dict[str, Any]:
    """Return the weights after a worker's steps; `workers`: its network and optimiser."""
    settings = {key: value for key, value in settings.items() if key != "optimizer"}
    device = job.assignment.device
    if device not in workers or not keep:
        network = network_of(job, start)
        kind = torch.optim.SGD if "momentum" in settings else torch.optim.AdamW
        workers[device] = network, kind(network.parameters(), **settings)
    network, optimizer = workers[device]
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.copy_(start[name])
    for x, y in job.batches():
        optimizer.zero_grad()
        cross_entropy(network(x), y).backward()
        optimizer.step()
    return weights_of(network)


def test_bad_keys_end_in_a_line() -> None:
    with pytest.raises(ConfigError, match=r"method\.inner_state: .*'keep'"):
        assemble(mixed_scenario(method={"name": "diloco", "inner_state": "drop"}))
    with pytest.raises(ConfigError, match=r"method\.lr: .*greater than 0"):
        assemble(mixed_scenario(method={"name": "diloco", "lr": 0}))


# The test of each key of the method.
OPTIONS = {
    "diloco": {
        "lr": "test_the_outer_step_is_that_of_torch",
        "momentum": "test_the_outer_step_is_that_of_torch",
        "nesterov": "test_the_outer_step_is_that_of_torch",
        "weights": "test_the_outer_step_is_that_of_torch",
        "inner_state": "test_three_rounds_in_plain_torch",
    }
}
