"""FedAvg on FashionMNIST as anyone would write it by hand in PyTorch. Imports nothing of edgesim.

Convolution, ReLU, then pooling, images in NCHW memory, `torch.optim.SGD`, mean in the order of arrival.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

FOLDER = Path("/usr/share/datasets/fashion-mnist")  # of the Debian package dataset-fashion-mnist


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


def fedavg(start: dict[str, Tensor], rounds: Iterable[Sequence[Sequence[Tensor]]], lr: float) -> Iterator[float]:
    """Yield the test accuracy after every round.

    `rounds`: of every round the devices, of every device the rows of the training set in each SGD step.
    """
    x, y = read_split("train")
    x_test, y_test = read_split("t10k")
    net, model = Net(), start
    for devices in rounds:
        trained, sizes = [], []
        for batches in devices:
            net.load_state_dict(model)
            optimizer = torch.optim.SGD(net.parameters(), lr=lr)
            for rows in batches:
                optimizer.zero_grad()
                F.cross_entropy(net(x[rows]), y[rows]).backward()
                optimizer.step()
            trained.append({name: value.clone() for name, value in net.state_dict().items()})
            sizes.append(sum(len(rows) for rows in batches))
        model = {name: sum(n / sum(sizes) * w[name] for n, w in zip(sizes, trained, strict=True)) for name in model}
        net.load_state_dict(model)
        with torch.no_grad():
            hits = sum(int((net(a).argmax(1) == b).sum()) for a, b in zip(x_test.split(500), y_test.split(500)))
        yield hits / len(y_test)
