"""Work that PyTorch's counter scores as zero: every formula written out once more, by hand."""

import pytest
import torch
from torch import Tensor, nn

from edgesim.card import ModelCard, update_flops
from edgesim.catalogue import find
from edgesim.contracts import Part
from edgesim.learning.measure import measure

LOSS_OF_3 = 5 * 3 + 4 * 3 + 1 + 1  # log-softmax of three classes forward and backward, the mean of likelihoods


def formula(card: ModelCard, *frozen: str) -> float:
    """Training FLOPs a sample by formula alone, loss excluded."""
    part = Part(frozen=frozenset(frozen))
    return card.train_flops(part, include="all") - card.train_flops(part) - LOSS_OF_3


def around(*middle: nn.Module, wide: int = 6) -> ModelCard:
    """The card of a linear layer of `wide` units, something, and a linear head, both without biases."""
    layers = (nn.Linear(4, wide, bias=False), *middle, nn.LazyLinear(3, bias=False))
    module = nn.Sequential(*layers)
    module(torch.zeros(2, 4))  # makes the head
    return measure(module, "around", (4,), 3)


def test_lenet_by_hand() -> None:
    cls, fixed = find("model", "lenet5")
    part = cls(**fixed)
    with torch.device("meta"):
        card = measure(part.build((3, 32, 32), 10), "lenet5", (3, 32, 32), 10)
    maps, pooled, hidden, logits = (4704, 1600), (1176, 400), (120, 84), 10
    forward = 3 * sum(pooled) + sum(pooled) + sum(hidden) + 5 * logits + 1  # comparisons of 4, ReLU, softmax, loss
    biases = sum(maps) + sum(hidden) + logits
    backward = 2 * sum(pooled) + sum(hidden) + biases + 4 * logits + 1
    assert card.forward_flops(include="all") - card.forward_flops() == forward
    assert card.coverage == (card.train_flops(), forward + backward, ())
    # With the convolutions frozen nothing flows back through their pooling, ReLU and biases.
    frozen = Part(frozen=frozenset({"conv1", "conv2"}))
    paid = card.train_flops(frozen, include="all") - card.train_flops(frozen)
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
    card = around(layer)
    assert formula(card) == 6 * (forward + backward)
    assert formula(card, "0") == 6 * forward  # only the head is trained
    assert card.left_at_zero == ()


def test_pooling_and_means() -> None:
    shape = nn.Unflatten(1, (2, 4, 4))  # 32 units as two maps of 4 x 4
    pools = [(nn.MaxPool2d(2), 3 * 8, 8), (nn.AvgPool2d(2), 4 * 8, 5 * 8), (nn.AdaptiveAvgPool2d(2), 32, 32)]
    for pool, forward, backward in pools:
        card = around(shape, pool, nn.Flatten(), wide=32)
        assert (formula(card), formula(card, "0")) == (forward + backward, forward)


def test_batch_normalisation_costs_more_while_it_trains() -> None:
    card = around(nn.BatchNorm1d(6))
    assert formula(card) == 6 * (8 + 9)  # mean 1, variance 3, normalise 4; x^ 2, sums 3, gradient 4
    assert formula(card, "1") == 6 * (4 + 1)  # fixed statistics: normalise, one factor
    assert formula(card, "0") == 6 * (8 + 5)  # nothing upstream is trained: gain and offset only
    assert formula(card, "0", "1") == 6 * 4
    assert card.forward_flops(include="all") - card.forward_flops() == 6 * 4 + 5 * 3 + 1
    plain = around(nn.BatchNorm1d(6, affine=False))
    assert formula(plain) == 6 * (8 + 9)


@pytest.mark.parametrize("norm", [nn.LayerNorm(6), nn.GroupNorm(2, 6)])
def test_normalisation_of_each_sample(norm: nn.Module) -> None:
    card = around(norm)
    assert formula(card) == 6 * (8 + 10 + 3)
    assert formula(card, "1") == 6 * (8 + 10)
    assert formula(card, "0") == 6 * (8 + 3)
    assert formula(card, "0", "1") == 6 * 8


class Skip(nn.Module):
    """Its input, used twice, times a learned vector of 6, plus itself."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + x


def test_results_used_twice_and_repeated_operands() -> None:
    card = around(Skip())
    # Forward product and sum; backward two products, the vector's sum over samples, the sum of the input's gradients.
    assert formula(card) == 6 * (1 + 1) + 6 * (1 + 2 + 1)
    assert formula(card, "0") == 6 * (1 + 1) + 6 * 2  # the vector's product and sum
    assert formula(card, "1") == 6 * (1 + 1) + 6 * (1 + 1)  # the input's product and the sum of its gradients


def test_bias_gradients_are_sums_over_positions() -> None:
    layers = (nn.Conv2d(1, 5, 3), nn.Flatten(), nn.Linear(5 * 4 * 4, 3))
    card = measure(nn.Sequential(*layers), "biased", (1, 6, 6), 3)
    assert formula(card) == 5 * 4 * 4 + 3
    assert formula(card, "0") == 3


def test_thinner_parts_pay_their_share() -> None:
    card = around(nn.BatchNorm1d(6), nn.ReLU())
    part = Part(units=(("0", (1, 4)),))
    assert card.train_flops(part, include="all") - card.train_flops(part) - LOSS_OF_3 == 2 * (8 + 9 + 1 + 1)


def test_what_has_no_formula_is_named() -> None:
    class Running(nn.Module):
        """Running sums."""

        def forward(self, x: Tensor) -> Tensor:
            return x.cumsum(1)

    card = around(Running())
    assert card.left_at_zero == card.coverage.left_at_zero == ("Cumsum",)
    assert formula(card) == 0


@pytest.mark.parametrize("name", ["torchvision:vit_b_16", "torchvision:efficientnet_b0"])
def test_known_families_leave_nothing_at_zero(name: str) -> None:
    cls, fixed = find("model", name)
    part = cls(**fixed)
    with torch.device("meta"):
        card = measure(part.build((3, 224, 224), 10), name, (3, 224, 224), 10)
    assert card.left_at_zero == ()
    assert 0.001 < card.coverage.formula_flops / card.coverage.counted_flops < 0.2


class Recurrent(nn.Module):
    """Features of 5 steps through a linear layer, an LSTM of 7 units and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.lstm, self.head = nn.Linear(4, 5), nn.LSTM(5, 7, batch_first=True), nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.encoder(x))[0][:, -1])


def test_an_lstm_has_its_right_count() -> None:
    """PyTorch counts 0 for an LSTM on a CPU with oneDNN; here 8 h (x + h) FLOPs a step forward, four gates."""
    card = measure(Recurrent(), "recurrent", (6, 4), 3)
    lstm = card.layers[1]
    steps, features, units = 6, 5, 7
    assert lstm.forward_flops == lstm.weight_grad_flops == steps * 8 * units * (features + units)
    assert lstm.input_grad_flops == steps * 8 * units * features
    # The state's gradient goes back through every step but the first, whose state is constant.
    within = (steps - 1) * 8 * units * units
    encoder, head = steps * 2 * 4 * 5, 2 * 7 * 3
    frozen = frozenset({"encoder"})
    assert card.train_flops(frozen) == encoder + 2 * lstm.forward_flops + within + 3 * head
    assert card.train_flops() == card.train_flops(frozen) + encoder + lstm.input_grad_flops
    assert card.coverage.formula_flops > 0 and card.groups == ()


def test_the_update_of_a_parameter() -> None:
    # w - lr g: product and sum; momentum: m b + g; decay: g + d w.
    assert [update_flops(), update_flops(momentum=True), update_flops(weight_decay=True)] == [2, 4, 4]
    assert update_flops(momentum=True, weight_decay=True) == 6
