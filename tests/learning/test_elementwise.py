"""Work that PyTorch's counter scores as zero: every formula written out once more, by hand."""

import pytest
import torch
from torch import Tensor, nn

from edgesim.config.plugins import find
from edgesim.core.price_list import CostProfile
from edgesim.core.task import Submodel
from edgesim.core.workload import update_flops
from edgesim.learning.measure.step import measure
from tests.sizes import full, thinned

LOSS_OF_3 = 5 * 3 + 4 * 3 + 1 + 1  # log-softmax of three classes forward and backward, the mean of likelihoods


def formula(cost_profile: CostProfile, *frozen: str) -> float:
    """Training FLOPs a sample by formula alone, loss excluded."""
    submodel = Submodel(frozen=frozenset(frozen))
    return cost_profile.train_flops(submodel, include="all") - cost_profile.train_flops(submodel) - LOSS_OF_3


def around(*middle: nn.Module, wide: int = 6) -> CostProfile:
    """The cost profile of a linear layer of `wide` units, something, and a linear head, both without biases."""
    layers = (nn.Linear(4, wide, bias=False), *middle, nn.LazyLinear(3, bias=False))
    module = nn.Sequential(*layers)
    module(torch.zeros(2, 4))  # makes the head
    return measure(module, "around", (4,), 3)


def test_lenet_by_hand() -> None:
    cls, fixed = find("model", "lenet5")
    plugin = cls(**fixed)
    with torch.device("meta"):
        cost_profile = measure(plugin.build((3, 32, 32), 10), "lenet5", (3, 32, 32), 10)
    maps, pooled, hidden, logits = (4704, 1600), (1176, 400), (120, 84), 10
    forward = 3 * sum(pooled) + sum(pooled) + sum(hidden) + 5 * logits + 1  # comparisons of 4, ReLU, softmax, loss
    biases = sum(maps) + sum(hidden) + logits
    backward = 2 * sum(pooled) + sum(hidden) + biases + 4 * logits + 1
    assert cost_profile.forward_flops(include="all") - cost_profile.forward_flops() == forward
    assert cost_profile.coverage == (cost_profile.train_flops(), forward + backward, ())
    # With the convolutions frozen nothing flows back through their pooling, ReLU and biases.
    frozen = Submodel(frozen=frozenset({"conv1", "conv2"}))
    paid = cost_profile.train_flops(frozen, include="all") - cost_profile.train_flops(frozen)
    assert paid == forward + sum(hidden) + sum(hidden) + logits + 4 * logits + 1


# FLOPs an element, forward and backward: of the result, 6 of them.
@pytest.mark.parametrize(
    ("layer", "forward", "backward"),
    [
        (nn.ReLU(), 1, 1),
        (nn.LeakyReLU(), 2, 2),
        (nn.ReLU6(), 2, 2),
        (nn.Sigmoid(), 4, 3),
        (nn.Tanh(), 1, 3),
        (nn.ELU(), 4, 3),
        (nn.SiLU(), 5, 9),
        (nn.GELU(), 5, 11),
        (nn.Hardsigmoid(), 4, 3),
        (nn.Hardswish(), 5, 5),
        (nn.Softmax(1), 5, 4),
        (nn.Dropout(0.5), 1, 1),
        (nn.Identity(), 0, 0),
    ],
)
def test_work_on_each_element(layer: nn.Module, forward: int, backward: int) -> None:
    cost_profile = around(layer)
    assert formula(cost_profile) == 6 * (forward + backward)
    assert formula(cost_profile, "0") == 6 * forward  # only the head is trained
    assert cost_profile.left_at_zero == ()


def test_pooling_and_means() -> None:
    shape = nn.Unflatten(1, (2, 4, 4))  # 32 units as two maps of 4 x 4
    pools = [(nn.MaxPool2d(2), 3 * 8, 8), (nn.AvgPool2d(2), 4 * 8, 5 * 8), (nn.AdaptiveAvgPool2d(2), 32, 32)]
    for pool, forward, backward in pools:
        cost_profile = around(shape, pool, nn.Flatten(), wide=32)
        assert (formula(cost_profile), formula(cost_profile, "0")) == (forward + backward, forward)


def test_batch_normalisation_costs_more_while_it_trains() -> None:
    cost_profile = around(nn.BatchNorm1d(6))
    assert formula(cost_profile) == 6 * (8 + 9)  # mean 1, variance 3, normalise 4; x^ 2, sums 3, gradient 4
    assert formula(cost_profile, "1") == 6 * (4 + 1)  # fixed statistics: normalise, one factor
    assert formula(cost_profile, "0") == 6 * (8 + 5)  # nothing upstream is trained: gain and offset only
    assert formula(cost_profile, "0", "1") == 6 * 4
    assert cost_profile.forward_flops(include="all") - cost_profile.forward_flops() == 6 * 4 + 5 * 3 + 1
    plain = around(nn.BatchNorm1d(6, affine=False))
    assert formula(plain) == 6 * (8 + 9)


@pytest.mark.parametrize("norm", [nn.LayerNorm(6), nn.GroupNorm(2, 6)])
def test_normalisation_of_each_sample(norm: nn.Module) -> None:
    cost_profile = around(norm)
    assert formula(cost_profile) == 6 * (8 + 10 + 3)
    assert formula(cost_profile, "1") == 6 * (8 + 10)
    assert formula(cost_profile, "0") == 6 * (8 + 3)
    assert formula(cost_profile, "0", "1") == 6 * 8


class Skip(nn.Module):
    """Its input, used twice, times a learned vector of 6, plus itself."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + x


def test_results_used_twice_and_repeated_operands() -> None:
    cost_profile = around(Skip())
    # Forward product and sum; backward two products, the vector's sum over samples, the sum of the input's gradients.
    assert formula(cost_profile) == 6 * (1 + 1) + 6 * (1 + 2 + 1)
    assert formula(cost_profile, "0") == 6 * (1 + 1) + 6 * 2  # the vector's product and sum
    assert formula(cost_profile, "1") == 6 * (1 + 1) + 6 * (1 + 1)  # the input's product and the sum of its gradients


def test_bias_gradients_are_sums_over_positions() -> None:
    layers = (nn.Conv2d(1, 5, 3), nn.Flatten(), nn.Linear(5 * 4 * 4, 3))
    cost_profile = measure(nn.Sequential(*layers), "biased", (1, 6, 6), 3)
    assert formula(cost_profile) == 5 * 4 * 4 + 3
    assert formula(cost_profile, "0") == 3


def test_thinner_parts_pay_their_share() -> None:
    cost_profile = around(nn.BatchNorm1d(6), nn.ReLU())
    submodel = Submodel(channels=(("0", (1, 4)),))
    assert cost_profile.train_flops(submodel, include="all") - cost_profile.train_flops(submodel) - LOSS_OF_3 == 2 * (
        8 + 9 + 1 + 1
    )


class Masked(nn.Module):
    """Its input with 0 in the place of every second number."""

    def forward(self, x: Tensor) -> Tensor:
        """Return what is left."""
        return x.masked_fill(torch.arange(6, device=x.device) % 2 == 0, 0.0)


def test_choosing_numbers_is_free() -> None:
    cost_profile = around(Masked())
    assert formula(cost_profile) == 0
    assert cost_profile.left_at_zero == ()


def test_what_has_no_formula_is_named() -> None:
    class Running(nn.Module):
        """Running sums."""

        def forward(self, x: Tensor) -> Tensor:
            return x.cumsum(1)

    cost_profile = around(Running())
    assert cost_profile.left_at_zero == cost_profile.coverage.left_at_zero == ("Cumsum",)
    assert formula(cost_profile) == 0


@full
@pytest.mark.parametrize(
    "name", thinned(["torchvision:vit_b_16", "torchvision:efficientnet_b0"], ["torchvision:vit_b_16"])
)
def test_known_families_leave_nothing_at_zero(name: str) -> None:
    cls, fixed = find("model", name)
    plugin = cls(**fixed)
    with torch.device("meta"):
        cost_profile = measure(plugin.build((3, 224, 224), 10), name, (3, 224, 224), 10)
    assert cost_profile.left_at_zero == ()
    assert 0.001 < cost_profile.coverage.formula_flops / cost_profile.coverage.counted_flops < 0.2


class Recurrent(nn.Module):
    """Features of 5 steps through a linear layer, an LSTM of 7 units and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.lstm, self.head = nn.Linear(4, 5), nn.LSTM(5, 7, batch_first=True), nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.encoder(x))[0][:, -1])


def test_an_lstm_has_its_right_count() -> None:
    """PyTorch counts 0 for an LSTM on a CPU with oneDNN; here 8 h (x + h) FLOPs a step forward, four gates."""
    cost_profile = measure(Recurrent(), "recurrent", (6, 4), 3)
    lstm = cost_profile.layers[1]
    steps, features, channels = 6, 5, 7
    assert lstm.forward_flops == lstm.weight_grad_flops == steps * 8 * channels * (features + channels)
    assert lstm.input_grad_flops == steps * 8 * channels * features
    # The state's gradient goes back through every step but the first, whose state is constant.
    within = (steps - 1) * 8 * channels * channels
    encoder, head = steps * 2 * 4 * 5, 2 * 7 * 3
    frozen = frozenset({"encoder"})
    assert cost_profile.train_flops(frozen) == encoder + 2 * lstm.forward_flops + within + 3 * head
    assert cost_profile.train_flops() == cost_profile.train_flops(frozen) + encoder + lstm.input_grad_flops
    assert cost_profile.coverage.formula_flops > 0 and cost_profile.groups == ()


def test_the_update_of_a_parameter() -> None:
    # w - lr g: product and sum; momentum: m b + g; decay: g + d w.
    assert [update_flops(), update_flops(momentum=True), update_flops(weight_decay=True)] == [2, 4, 4]
    assert update_flops(momentum=True, weight_decay=True) == 6
