"""Network and data."""

import torch
from torch import nn


def network():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def samples(partition, count=40):
    generator = torch.Generator().manual_seed(partition)
    inputs = torch.randn(count, 8, generator=generator)
    return inputs, inputs[:, :3].argmax(1)


def train(model, partition, rate):
    inputs, labels = samples(partition)
    optimiser = torch.optim.SGD(model.parameters(), lr=rate)
    losses = []
    for batch in torch.randperm(len(inputs)).split(10):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs[batch]), labels[batch])
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return sum(losses) / len(losses), len(inputs)


@torch.no_grad()
def test(model, partition):
    inputs, labels = samples(partition)
    outputs = model(inputs)
    right = (outputs.argmax(1) == labels).float().mean().item()
    return nn.functional.cross_entropy(outputs, labels).item(), right, len(inputs)
