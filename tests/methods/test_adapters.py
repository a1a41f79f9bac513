"""Adapters found by peft's names, and prices of a smaller rank against networks that are built with it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from edgesim.core.errors import ConfigError
from edgesim.core.price_list import CostProfile
from edgesim.core.task import Payload, Submodel
from edgesim.learning.measure.step import measure
from edgesim.learning.models.build import bare_copy
from edgesim.learning.models.transformer import TransformerChar
from edgesim.learning.objectives.next_token import NextToken
from edgesim.learning.submodel.slicing import thinner
from edgesim.methods.lora.adapters import Adapter, adapters_of, at_rank, pairs_in, product
from tests.contracts.support import ADAPTED, mixed_scenario, prepare
from tests.methods.adapted import PROFILE, model
from tests.plugins.networks import AdaptedDigits
from tests.sizes import full


def test_pairs_by_name():
    """A name without its pair, and a layer whose name only contains lora_A, are none."""
    names = [
        "a.lora_A.default",
        "a.lora_B.default",
        "b.lora_A.one",
        "b.lora_B.two",
        "my_lora_A.x",
        "lora_A.d",
        "lora_B.d",
    ]
    assert pairs_in(names) == {"a.lora_A.default": "a.lora_B.default", "lora_A.d": "lora_B.d"}


def test_product_by_hand():
    (adapter,) = adapters_of(PROFILE)
    assert adapter == Adapter("l", "l.lora_A.default", "l.lora_B.default", 2, 3, 2, "l.lora_A.default")
    state = model([[1, 0, 2], [0, 1, 0]], [[1, 1], [0, 3]])
    assert product(adapter, state["params"]).tolist() == [[1, 1, 2], [0, 3, 0]]


@pytest.mark.parametrize("method", sorted(ADAPTED))
def test_a_network_without_adapters(method):
    """One line names the key."""
    with pytest.raises(ConfigError, match=r"^model\.lora: the method trains low-rank adapters, and mlr has none; set "):
        prepare(mixed_scenario(method=method, model="mlr"))


def same_price(whole: CostProfile, small: CostProfile, rank: int) -> None:
    """Assert that the part of a rank costs what a network of this rank costs."""
    part = at_rank(adapters_of(whole), rank, 1)
    for include in ("counted", "all"):
        assert whole.train_flops(part, include=include) == small.train_flops(include=include)
        assert whole.forward_flops(part, include=include) == small.forward_flops(include=include)
    assert whole.memory_bytes(part, 5) == small.memory_bytes(Submodel(), 5)
    assert whole.nbytes(Payload(), part) == small.nbytes(Payload())


def test_a_rank_costs_what_a_network_of_this_rank_costs():
    profiles = {rank: measure(bare_copy(AdaptedDigits(rank)), "x", (1, 8, 8), 10) for rank in (1, 2, 4, 8)}
    assert [each.rank for each in adapters_of(profiles[8])] == [8, 8]
    for rank in (1, 2, 4):
        same_price(profiles[8], profiles[rank], rank)
    numbers = Payload(collections=frozenset({"params"}))
    sent = [profiles[8].nbytes(numbers, at_rank(adapters_of(profiles[8]), rank, 1)) for rank in (1, 2, 4, 8)]
    assert sent == [4 * (2 * rank * (64 + 64) + 650) for rank in (1, 2, 4, 8)]


@full
def test_a_rank_of_peft_in_a_transformer():
    """In sequences too: adapters on attention and both linear layers of each block, as peft makes them."""
    peft = pytest.importorskip("peft")

    def profile_of(rank: int) -> CostProfile:
        network: nn.Module = TransformerChar(layers=2, width=16, heads=2).build((12,), 9)
        config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=["qkv", "up", "down"])
        return measure(bare_copy(peft.inject_adapter_in_model(config, network)), "x", (12,), 9, objective=NextToken())

    whole = profile_of(4)
    found = adapters_of(whole)
    assert [each.layer for each in found] == [f"block{n}.{x}" for n in (1, 2) for x in ("attention.qkv", "up", "down")]
    assert [(each.inputs, each.outputs) for each in found[:3]] == [(16, 48), (16, 64), (64, 16)]
    assert all(each.group == each.a_layer for each in found)
    for rank in (1, 3):
        same_price(whole, profile_of(rank), rank)


def test_a_cut_adapter_gives_the_cut_product():
    """The factor alpha / r stays that of the whole network."""
    network = AdaptedDigits(4)
    for each in (network.fc1, network.fc2):
        nn.init.normal_(each.lora_B["default"].weight)
    profile = measure(bare_copy(network), "x", (1, 8, 8), 10)
    small, x = thinner(network, at_rank(adapters_of(profile), 3, 1), profile), torch.linspace(-1, 1, 64)
    expected = network.fc1.base_layer(x) + 4.0 * (
        network.fc1.lora_B["default"].weight[:, :3] @ network.fc1.lora_A["default"].weight[:3] @ x
    )
    torch.testing.assert_close(small.fc1(x), expected)
