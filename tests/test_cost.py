"""Cost of a training step of any network, against torch's own counter of FLOPs."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from edgesim import cost
from edgesim.config import device_profiles
from edgesim.core.errors import ConfigError
from edgesim.core.work import KINDS, PRICED

BATCH = 4


class Adapted(nn.Module):
    """A frozen linear layer with a trained product of two thin ones beside it, as low-rank adaptation has it."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(features, features), requires_grad=False)
        self.down = nn.Linear(features, 2, bias=False)
        self.up = nn.Linear(2, features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight) + self.up(self.down(x))


def adapted() -> nn.Module:
    stem = nn.Linear(12, 12).requires_grad_(False)
    return nn.Sequential(nn.Flatten(), stem, nn.ReLU(), Adapted(12), nn.ReLU(), Adapted(12), nn.Linear(12, 5))


def convolutional() -> nn.Module:
    body = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 8, 3), nn.ReLU())
    return nn.Sequential(body, nn.Flatten(), nn.Linear(8 * 4 * 4, 5))


def torch_counts(module: nn.Module, shape: tuple[int, ...]) -> float:
    """FLOPs of a step in which those parameters train that require gradients."""
    with FlopCounterMode(display=False) as counter:
        cross_entropy(module(torch.zeros(BATCH, *shape)), torch.zeros(BATCH, dtype=torch.int64)).backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("train", [None, ["2"], ["0"], ["0.3", "2"], ["0.0"]])
def test_frozen_parts_cost_what_torch_counts(train):
    module, shape = convolutional(), (3, 8, 8)
    found = cost.of(module, shape, train, BATCH)
    for name, value in module.named_parameters():
        value.requires_grad_(train is None or name.startswith(tuple(train)))
    assert BATCH * found.train_flops == found.work["flops"] == torch_counts(module, shape)
    assert found.trained_params == sum(w.numel() for w in module.parameters() if w.requires_grad)


def test_an_adapted_network_costs_what_torch_counts():
    """What its author froze is not trained, without a word, and the network stays as it is."""
    module = adapted()
    before = {name: (value.clone(), value.requires_grad) for name, value in module.named_parameters()}
    found = cost.of(module, (3, 4), batch=BATCH)
    assert found.work["flops"] == torch_counts(module, (3, 4))
    assert found.trained == ("3.down", "3.up", "5.down", "5.up", "6")
    assert found.trained_params == 4 * 2 * 12 + 5 * 13
    assert found.memory.total > found.memory.weights + 4 * found.trained_params  # which are there at the update
    assert found.memory.weights == 4 * sum(w.numel() for w in module.parameters())
    after = {name: (value, value.requires_grad) for name, value in module.named_parameters()}
    assert all(torch.equal(before[name][0], after[name][0]) for name in before | after)
    assert {name: needs for name, (_, needs) in before.items()} == {name: needs for name, (_, needs) in after.items()}


def test_seconds_are_the_sum_over_kinds_of_work():
    found = cost.of(convolutional(), (3, 8, 8), batch=BATCH)
    assert set(found.work) == set(PRICED) <= KINDS.keys()
    si = device_profiles.find("raspberry_pi_4").si
    terms = {kind: si[f"terms.{kind}"] for kind in PRICED if f"terms.{kind}" in si}
    assert found.seconds("raspberry_pi_4") == pytest.approx(sum(found.work[kind] * terms[kind] for kind in terms))
    plain = device_profiles.find("jetson_nano")
    assert found.seconds("jetson_nano") == pytest.approx(found.work["flops"] / plain.flops_per_s)
    assert found.work["update_bytes"] == 28 * found.trained_params


def test_mistakes_are_named():
    with pytest.raises(ConfigError, match=r"^train: Sequential has no trainable layer 'fc'.* \(layers: 0\.0, "):
        cost.of(convolutional(), (3, 8, 8), ["fc"])
    with pytest.raises(ConfigError, match=r"^Sequential cannot take inputs of 3: "):
        cost.of(convolutional(), (3,))
