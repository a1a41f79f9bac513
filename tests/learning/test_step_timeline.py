"""The peak of a training step's memory against PyTorch's own allocator, and by hand."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.allocated import peak_bytes
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.price_list import CostProfile, MemoryNeed
from edgesim.core.task import Submodel
from edgesim.learning.measure.step import measure
from edgesim.learning.train.torch_settings import plain_torch
from tests.learning.test_checkpointing import Blocks
from tests.sizes import full


class Residual(nn.Module):
    """A convolution beside a connection that skips it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.norm(self.conv(x)))


NETWORKS = {
    "mlp": ((20,), lambda: nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5))),
    # 16 x 16 pixels: a convolution's weights, of which some processors need copies, are few beside its activations.
    "cnn": ((3, 16, 16), lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1568, 5))),
    "residual": (
        (3, 16, 16),
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), Residual(8), Residual(8), nn.Flatten(), nn.Linear(1568, 5)),
    ),
    "attention": (
        (6, 8),
        lambda: nn.Sequential(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), nn.Flatten(), nn.Linear(48, 5)
        ),
    ),
    "checkpointed": ((16,), lambda: Blocks(True, width=16, hidden=64)),
}
OPTIMIZERS = {
    "sgd": (lambda trained: torch.optim.SGD(trained, lr=0.1), LocalSGD(7, 0.1)),
    "nesterov": (
        lambda trained: torch.optim.SGD(trained, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
        LocalSGD(7, 0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    ),
    "adam": (lambda trained: torch.optim.Adam(trained), LocalSGD(7, 0.1, optimizer="adam")),
    "adamw": (lambda trained: torch.optim.AdamW(trained), LocalSGD(7, 0.1, optimizer="adamw", weight_decay=0.1)),
}


@full
@plain_torch()
def test_the_price_is_what_pytorch_allocates() -> None:
    """Whole and with all but the last layers frozen, at two batches, within the 10 percent that the page promises."""
    for name, (shape, build) in NETWORKS.items():
        module = build()
        for value in module.parameters():
            if value.dim() == 4:
                value.data = value.data.to(memory_format=torch.channels_last)
        profile = measure(module, name, shape, 5)
        for frozen in (frozenset[str](), profile.before_last(1)):
            for inner, layer in module.named_modules():
                layer.training = inner not in frozen
            for inner, value in module.named_parameters():
                value.requires_grad_(inner.rpartition(".")[0] not in frozen)
            for optimizer, (make, sgd) in OPTIMIZERS.items():
                for batch in (7, 64):
                    x, y = torch.zeros(batch, *shape), torch.zeros(batch, dtype=torch.int64)
                    if x.dim() == 4:
                        x = x.contiguous(memory_format=torch.channels_last)
                    need = profile.memory_bytes(Submodel(frozen=frozen), batch, sgd.moments, sgd.scratch)
                    found = peak_bytes(module, cross_entropy, x, y, make)
                    assert need.total == pytest.approx(found, rel=0.1), (name, frozen, optimizer, batch)


def two_layers() -> CostProfile:
    """The cost profile of 4 inputs, 3 hidden units, 2 classes: 15 + 8 parameters."""
    return measure(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), "two", (4,), 2)


def test_two_layers_by_hand() -> None:
    """The peak is where ReLU runs backward, and with few samples and Adam where the weights are updated."""
    batch, hidden, scalars = 4 * 4 + 8, 4 * 3, 4 + 4  # bytes of a sample with its label; the loss and its gradient
    profile = two_layers()
    # Then there are the gradients of the second layer, ReLU's result, and the gradients of its result and its input.
    kept, gradients = 10 * (batch + hidden), 4 * 8
    assert profile.memory_bytes(Submodel(), 10) == MemoryNeed(4 * 23, gradients, 0, kept, 20 * hidden + scalars)
    # Torch's Adam takes the root of the second moment, and divides it into another tensor, here of 4 x 3 numbers.
    adam = LocalSGD(1, 0.1, optimizer="adam")
    need = profile.memory_bytes(Submodel(), 1, adam.moments, adam.scratch)
    assert need == MemoryNeed(4 * 23, 4 * 23, 2 * 4 * 23, batch, 2 * 4 * 12)
    # Frozen layers have neither gradients nor moments. The log-softmax of 2 classes is kept, and its gradient is made.
    head = Submodel(frozen=frozenset({"0"}))
    logits = 10 * 4 * 2
    assert profile.memory_bytes(head, 10, 1) == MemoryNeed(4 * 23, 0, 4 * 8, kept + logits, 2 * logits + scalars)


def test_a_part_needs_what_a_network_of_its_size_needs() -> None:
    """Two of three hidden units, at batches whose peaks lie at different instants."""
    small = measure(nn.Sequential(nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 2)), "small", (4,), 2)
    thin = Submodel(channels=(("0", (0, 2)),))
    for batch in (1, 100):
        assert two_layers().memory_bytes(thin, batch, 2, 2) == small.memory_bytes(Submodel(), batch, 2, 2)
