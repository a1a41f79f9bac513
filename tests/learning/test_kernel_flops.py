"""FLOPs of kernels that torch's own counter does not score, against the products that it scores without them."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from edgesim.learning.models.flop_counter import flop_counter, plain_formulas


def products(device: str, counter: FlopCounterMode, frozen: str, state: bool) -> int:
    """FLOPs of a step of two layers of LSTM in both directions, 4 tokens, 3 features, 5 units."""
    lstm = nn.LSTM(3, 5, 2, batch_first=True, bidirectional=True, device=device)
    for name, value in lstm.named_parameters():
        value.requires_grad_(not name.startswith(frozen))
    first = tuple(torch.ones(4, 2, 5, device=device, requires_grad=True) for _ in range(2)) if state else None
    with counter:
        lstm(torch.ones(2, 4, 3, device=device, requires_grad=state), first)[0].sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("frozen", ["none", "weight_ih_l0", "weight_hh_l1"])
@pytest.mark.parametrize("state", [False, True])
def test_a_server_that_trains_an_lstm_is_charged_its_products(frozen: str, state: bool) -> None:
    """On a CPU each layer is one kernel; without numbers it is made of the products that it computes."""
    fused = products("cpu", flop_counter(), frozen, state)
    assert fused == products("meta", FlopCounterMode(display=False), frozen, state) > 0


def test_attention_of_grouped_heads_costs_those_of_the_queries() -> None:
    """Six heads of queries of 5 tokens, two of 7 keys, 8 features, 4 of values."""
    formulas, aten = plain_formulas(), torch.ops.aten
    q, k, v = torch.ones(2, 6, 5, 8), torch.ones(2, 2, 7, 8), torch.ones(2, 2, 7, 4)
    forward = formulas[aten._scaled_dot_product_flash_attention_for_cpu](q, k, v)
    backward = formulas[aten._scaled_dot_product_flash_attention_for_cpu_backward](torch.ones(2, 6, 5, 4), q, k, v)
    pairs = 2 * 6 * 5 * 7
    assert (forward, backward) == (2 * pairs * (8 + 4), 2 * pairs * 2 * (8 + 4))
