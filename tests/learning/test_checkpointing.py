"""Checkpointed blocks: the same gradients bit for bit, and a price that agrees with hand counts and with PyTorch."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from edgesim.core.price_list import CostProfile, side_by_side
from edgesim.core.rng import Key
from edgesim.core.task import Submodel
from edgesim.learning.measure.step import measure
from edgesim.learning.models.build import applied
from edgesim.learning.models.checkpointing import Checkpointed
from edgesim.learning.models.seeding import seeded
from edgesim.learning.train.loop import gradients
from tests.learning.test_training_memory import held_bytes

BLOCKS, WIDTH, HIDDEN, CLASSES = 3, 4, 8, 2
PAIR = 2 * WIDTH * HIDDEN  # FLOPs of either product of a block, by the sample


class Blocks(nn.Module):
    """Residual blocks of two linear layers, ReLU and dropout between them, and a classifier."""

    def __init__(self, checkpointed: bool, dropout: float = 0.0, width: int = WIDTH, hidden: int = HIDDEN) -> None:
        super().__init__()
        torch.manual_seed(1)
        pairs = [(nn.Linear(width, hidden), nn.Linear(hidden, width)) for _ in range(BLOCKS)]
        middle = [nn.ReLU(), nn.Dropout(dropout)] if dropout else [nn.ReLU()]
        self.blocks = nn.ModuleList(nn.Sequential(one, *middle, other) for one, other in pairs)
        self.last = nn.Linear(width, CLASSES)
        self.runs = [Checkpointed(block) for block in self.blocks] if checkpointed else list(self.blocks)

    def forward(self, x: Tensor) -> Tensor:
        for block, run in zip(self.blocks, self.runs, strict=True):
            x = x + (run(partial(block), x) if isinstance(run, Checkpointed) else block(x))
        out: Tensor = self.last(x)
        return out


def profile_of(checkpointed: bool, kinds: bool = False) -> CostProfile:
    return measure(Blocks(checkpointed), "blocks", (WIDTH,), CLASSES, kinds=kinds)


def test_gradients_are_the_same_bit_for_bit() -> None:
    """With lent weights that the network no longer has when backward runs, and with the same dropout."""
    x, found = torch.randn(5, WIDTH), list[list[Tensor]]()
    for checkpointed in (False, True):
        module = Blocks(checkpointed, dropout=0.5)
        lent = {name: (2 * value.detach()).requires_grad_() for name, value in module.named_parameters()}
        with seeded(Key(3)):
            loss = applied(module, lent, x).square().sum()
            found.append([*gradients(loss, list(lent.values())), torch.rand(2)])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))
    assert any(each.any() for each in found[0])


def test_a_block_runs_again_up_to_the_last_tensor_that_is_kept() -> None:
    """The second product of each block reads all that is kept, so that only the first product and ReLU run again.

    They run again if something is trained whose gradient needs a tensor of the block.
    """
    plain, again = profile_of(False, kinds=True), profile_of(True, kinds=True)
    names = plain.layer_names
    for frozen, blocks in (
        (frozenset[str](), 3),
        (plain.before_last(1), 0),  # the classifier alone
        (plain.before_last(2), 1),  # and the second layer of the last block
        (plain.before_last(3), 1),
        (plain.before_last(4), 2),
        (frozenset(names) - {names[0]}, 3),  # the gradient of the first layer passes all blocks
    ):
        part = Submodel(frozen=frozen)
        assert again.train_flops(part) - plain.train_flops(part) == blocks * PAIR
        formula = again.train_flops(part, include="all") - plain.train_flops(part, include="all")
        assert formula == blocks * (PAIR + HIDDEN)  # and one comparison by the number
        counts = [each.amounts(part)["operations"] for each in (again, plain)]
        assert sum(counts[0]) - sum(counts[1]) == 2 * blocks
    assert again.forward_flops() == plain.forward_flops()
    thin = Submodel(channels=tuple((f"blocks.{block}.0", (0, 1)) for block in range(BLOCKS)))
    assert again.train_flops(thin) - plain.train_flops(thin) == BLOCKS * PAIR / 4
    assert side_by_side({"a": again, "b": plain}).train_flops() == again.train_flops() + plain.train_flops()


@pytest.mark.parametrize("frozen", [0, 2, 4])
def test_torch_counts_and_keeps_the_same(frozen: int) -> None:
    """`frozen`: number of layers at the end that train; 0: all."""
    module, profile = Blocks(True), profile_of(True)
    part = Submodel(frozen=profile.before_last(frozen) if frozen else frozenset())
    for name, value in module.named_parameters():
        value.requires_grad_(name.rpartition(".")[0] not in part.frozen)
    with FlopCounterMode(display=False) as counter:
        nn.functional.cross_entropy(module(torch.zeros(5, WIDTH)), torch.zeros(5, dtype=torch.int64)).backward()
    assert 5 * profile.train_flops(part) == counter.get_total_flops()
    kept = held_bytes(module, profile, part.frozen, 5)[2]
    unused = 0 if not frozen else 4 * 5 * WIDTH * (BLOCKS - (frozen + 1) // 2)  # inputs that no gradient needs
    assert profile.saved_bytes(part, 5) == kept - unused
