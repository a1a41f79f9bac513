"""The network, its data and its training, in plain PyTorch."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def new_network():
    return nn.Sequential(nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 10))


def load_data(partition, partitions):
    """Return the training and the test samples of a partition, a fifth of them for tests."""
    digits = load_digits()
    mine = np.random.default_rng(0).permutation(len(digits.target))[partition::partitions]
    x = torch.tensor(digits.data[mine] / 16, dtype=torch.float32)
    samples, tests = TensorDataset(x, torch.tensor(digits.target[mine])), len(mine) // 5
    rest = range(tests, len(mine))
    return torch.utils.data.Subset(samples, rest), torch.utils.data.Subset(samples, range(tests))


def train(network, samples, epochs, lr):
    optimizer = torch.optim.SGD(network.parameters(), lr=lr, momentum=0.9)
    network.train()
    for _ in range(epochs):
        for x, y in DataLoader(samples, batch_size=16, shuffle=True):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(x), y)
            loss.backward()
            optimizer.step()
    return loss.item()


@torch.no_grad()
def test(network, samples):
    network.eval()
    outputs = [(network(x), y) for x, y in DataLoader(samples, batch_size=64)]
    logits, labels = (torch.cat(part) for part in zip(*outputs, strict=True))
    accuracy = (logits.argmax(1) == labels).float().mean().item()
    return nn.functional.cross_entropy(logits, labels).item(), accuracy
