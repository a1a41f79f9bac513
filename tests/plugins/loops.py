"""Training loops as a user would write them."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader


def plain(model, data, config):
    """Train by SGD as edgesim's own loop does, in the same order of batches."""
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr, momentum=config["momentum"])
    x, y = data.tensors
    order, steps = torch.Generator().manual_seed(config.seed), config.steps or None
    taken, total = 0, 0.0
    while steps is None or taken < steps:
        for places in torch.split(torch.randperm(len(data), generator=order), config.batch):
            if taken == steps:
                break
            loss = nn.functional.cross_entropy(model(x[places]), y[places])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            taken, total = taken + 1, total + loss.item() * len(places)
        if steps is None and taken >= config.epochs * -(-len(data) // config.batch):
            break
    return {"samples": len(data), "metrics": {"loss": total / len(data)}}


def loader(model, data, config):
    """Train on a shuffling DataLoader, with noise of all three generators, and leave every global setting changed."""
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr)
    for _ in range(config.epochs):
        for x, y in DataLoader(data, config.batch, shuffle=True):
            noise = random.random() + np.random.rand()  # noqa: NPY002 - users do
            loss = nn.functional.cross_entropy(model(x + 0.01 * noise), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(True)
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    return {"samples": 2 * len(data)}


def batches(model, data, config):
    """Train by SGD on a DataLoader that shuffles."""
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr)
    for _ in range(config.epochs):
        for x, y in DataLoader(data, config.batch, shuffle=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return {"samples": len(data)}


def weighed(model, data, config):
    """Train as `plain` does, with another weight on device 5."""
    found = plain(model, data, config)
    found["metrics"]["round"] = config.round
    return {**found, "samples": 1.6 if config.device_id == 5 else 80}


def early(model, data, config):
    """Stop at once in the first job, but not while it is priced."""
    if len(data) == 40:
        config = {**config, "epochs": 1}
        model(data.tensors[0])
        return {}
    return plain(model, data, config)


def drops_last(model, data, config):
    """Leave out the last batch of an epoch if it is short."""
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr)
    for x, y in DataLoader(data, config.batch, shuffle=True, drop_last=True):
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return {}


LIMIT = 3


def two(model, data):
    """Take no config."""


def in_numpy(model, data, config):
    """Do no work that torch sees."""
    return {"samples": len(data)}


def fails(model, data, config):
    """Divide by 0."""
    return 1 / 0


def leaves(model, data, config):
    """End the program."""
    raise SystemExit(3)


def answers(model, data, config):
    """Return what the scenario says."""
    plain(model, data, config)
    return config["answer"]


def reshapes(model, data, config):
    """Replace the last layer by a wider one."""
    found = plain(model, data, config)
    name, last = [(name, each) for name, each in model.named_modules() if isinstance(each, nn.Linear)][-1]
    model.set_submodule(name, nn.Linear(last.in_features, last.out_features + 1))
    return found


def sets(model, data, config):
    """Change the config."""
    config.lr = 0.1
