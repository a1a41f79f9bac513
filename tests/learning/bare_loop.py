"""FedAvg on FashionMNIST as anyone would write it by hand in PyTorch. Imports nothing of edgesim.

Rounding is chaotic here: at this learning rate a last bit grows to a hundredth of accuracy within three rounds. So the
loop makes two choices that change nothing but last bits: channels-last memory, and a mean summed in float64.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

FOLDER = Path("/usr/share/datasets/fashion-mnist")  # of the Debian package dataset-fashion-mnist
Weights = Mapping[str, Tensor]


class Net(nn.Module):
    """The 21,840-parameter network of the FedPNS paper, without its dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, 5)
        self.conv2 = nn.Conv2d(10, 20, 5)
        self.fc1 = nn.Linear(320, 50)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, shape (batch, 10), of images (batch, 1, 28, 28)."""
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def read_split(prefix: str) -> tuple[Tensor, Tensor]:
    """Return images in [0, 1], float32 (n, 1, 28, 28), and labels, int64 (n,), of "train" or "t10k"."""
    # An idx file starts with 4 bytes of type and 4 bytes a dimension.
    pixels = gzip.decompress((FOLDER / f"{prefix}-images-idx3-ubyte.gz").read_bytes())[16:]
    labels = gzip.decompress((FOLDER / f"{prefix}-labels-idx1-ubyte.gz").read_bytes())[8:]
    images = np.frombuffer(pixels, np.uint8).reshape(-1, 1, 28, 28).astype(np.float32) / 255
    return torch.from_numpy(images), torch.from_numpy(np.frombuffer(labels, np.uint8).astype(np.int64))


def fedavg(start: Weights, rounds: Iterable[Sequence[Sequence[Tensor]]], lr: float) -> Iterator[float]:
    """Yield the test accuracy after every round.

    `rounds`: of every round the devices, of every device the rows of the training set in each SGD step.
    """
    x, y = read_split("train")
    test = [half.split(500) for half in read_split("t10k")]
    net, model = Net().to(memory_format=torch.channels_last), start
    for devices in rounds:
        trained = [train(net, model, x, y, batches, lr) for batches in devices]
        model = mean(trained, [sum(map(len, batches)) for batches in devices])
        net.load_state_dict(model)
        with torch.no_grad():
            hits = [net(images).argmax(1) == labels for images, labels in zip(*test, strict=True)]
        yield float(torch.cat(hits).double().mean())


def train(net: Net, start: Weights, x: Tensor, y: Tensor, batches: Sequence[Tensor], lr: float) -> Weights:
    """Return the weights after one SGD step on each batch, given as rows of the training set."""
    net.load_state_dict(start)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    for rows in batches:
        optimizer.zero_grad()
        F.cross_entropy(net(x[rows].contiguous(memory_format=torch.channels_last)), y[rows]).backward()
        optimizer.step()
    return {name: weight.clone() for name, weight in net.state_dict().items()}


def mean(trained: Sequence[Weights], sizes: Sequence[int]) -> Weights:
    """Return the mean of the trained weights, weighted by the data sizes of the devices."""
    model = {name: torch.zeros_like(weight, dtype=torch.float64) for name, weight in trained[0].items()}
    for weights, size in zip(trained, sizes, strict=True):
        for name, weight in weights.items():
            model[name].add_(weight, alpha=size / sum(sizes))
    return {name: weight.float() for name, weight in model.items()}
