"""Held-out prices: of networks drawn at random, any part costs what PyTorch counts in edgesim's own training loop.

A nightly run draws 100 networks and 10 parts of each, which takes minutes.
"""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from edgesim.core.rng import Key
from edgesim.core.task import Payload, Submodel
from edgesim.learning.models.trace import layer_of
from tests.learning.random_networks import CLASSES, FEATURES, RandomNetwork
from tests.learning.real_training import Device, scored_kernels
from tests.sizes import grows, sized, spread

NETWORKS, PLUGINS = sized((6, 4), (20, 4), (100, 10))


def frozen_sets(layers: tuple[str, ...], draws: np.random.Generator) -> Iterator[frozenset[str]]:
    """Nothing, everything but the last layers, and random sets."""
    yield frozenset()
    yield frozenset(layers[: -int(draws.integers(1, len(layers)))])
    for _ in range(PLUGINS - 2):
        yield frozenset(np.array(layers)[draws.random(len(layers)) < draws.random()].tolist())


@grows
@pytest.mark.parametrize("number", spread(range(NETWORKS), 1))
def test_charged_is_counted_whatever_is_frozen(number: int) -> None:
    device = Device(RandomNetwork, FEATURES, CLASSES, number=number)
    cost_profile, first = device.cost_profile, device.first
    assert cost_profile.params == sum(t.numel() for t in first["params"].values())  # a shared weight once
    for frozen in frozen_sets(cost_profile.layer_names, Key(5).at(number).numpy()):
        with scored_kernels():
            done = device.train(frozen)
        assert done.charged_flops == done.counted_flops, sorted(frozen)
        numbers = sum(t.numel() for tensors in done.body.values() for t in tensors.values())
        assert cost_profile.nbytes(Payload(), Submodel(frozen=frozen)) == 4 * numbers
        moved = {layer_of(n) for n, t in done.body["params"].items() if not torch.equal(t, first["params"][n])}
        assert moved.isdisjoint(frozen)
