"""HierFAVG against a loop written with PyTorch alone, and its steps.

Source: Liu et al. (2020), algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

import edgesim
from edgesim.core.arrays import Ids
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key
from edgesim.learning.data.split import Partition, Split
from edgesim.methods.hierfavg import HierFAVG
from edgesim.runs.assembly import assemble
from tests.engine.trees import run, tree


@dataclass(frozen=True, kw_only=True)
class Slices(Partition):
    """The first samples for the first device, the next ones for the second, and so on."""

    sizes: tuple[int, ...]

    def split(self, y_train: Ids, y_test: Ids, devices: int, classes: int, key: Key) -> Split:
        """Return slices of these sizes."""
        return Split(tuple(np.split(np.arange(sum(self.sizes)), np.cumsum(self.sizes)[:-1])), None)


def test_kappa_1_is_the_number_of_steps() -> None:
    """40 samples in batches of 16 are 3 steps an epoch; 5 steps take 16 + 16 + 8 + 16 + 16 samples."""
    parts = assemble(edgesim.load(tree({}, 2, method={"name": "hierfavg", "kappa_1": 5})))
    [sgd] = HierFAVG(kappa_1=5).task(View(parts.setting)).local_sgd
    samples, steps = sgd.amount(parts.setting.samples, False)
    assert (steps.tolist(), samples.tolist()) == ([5] * 4, [72] * 4)


class View:
    """What a method asks of a view to make its task."""

    def __init__(self, setting: object) -> None:
        self.setting, self.round = setting, 0


def test_two_averages_of_edge_servers_and_one_of_the_cloud() -> None:
    """The whole of algorithm 1 in a loop of its own: one step on all samples, kappa_2 = 2, unequal devices."""
    sizes = [10, 30, 20, 40]
    shared = {"data": {"name": "digits", "train_limit": 100, "test_limit": 50}, "model": "mlr"}
    shared |= {"training": {"batch": 64, "lr": 0.5}, "stop": {"rounds": 2}, "weights": "final"}
    shared |= {"partition": {"name": "tests.methods.test_hierfavg:Slices", "sizes": sizes}}
    shared |= {"method": {"name": "hierfavg", "kappa_1": 1}}
    seen = run(tree({"rounds": 2}, 2, **shared)).weights("final")
    parts = assemble(edgesim.load(tree({"rounds": 2}, 2, **shared)))
    x, y = parts.data.batch("train", torch.arange(100))  # type: ignore[union-attr]
    names = [name for name, _ in parts.module.named_parameters()]
    cloud = [value.detach().double().clone() for value in parts.module.parameters()]
    ends = torch.tensor([0, *sizes]).cumsum(0).tolist()

    def gradient(weights: list[torch.Tensor], device: int) -> list[torch.Tensor]:
        at = [value.clone().requires_grad_() for value in weights]
        rows = slice(ends[device], ends[device + 1])
        logits = x[rows].flatten(1).double() @ at[0].T + at[1]
        return list(torch.autograd.grad(torch.nn.functional.cross_entropy(logits, y[rows]), at))

    for _ in range(2):
        edges = []
        for members in ((0, 1), (2, 3)):
            weights, total = cloud, sum(sizes[device] for device in members)
            for _ in range(2):
                steps = [[w - 0.5 * g for w, g in zip(weights, gradient(weights, d), strict=True)] for d in members]
                shares = [sizes[device] / total for device in members]
                weights = [sum(s * w for s, w in zip(shares, each, strict=True)) for each in zip(*steps, strict=True)]
            edges.append(weights)
        cloud = [0.4 * first + 0.6 * second for first, second in zip(*edges, strict=True)]
    for name, expected in zip(names, cloud, strict=True):
        assert torch.allclose(torch.from_numpy(seen[name]).double(), expected, rtol=0, atol=1e-6)


def test_settings_out_of_range() -> None:
    with pytest.raises(ConfigError, match=r"method\.kappa_1"):
        edgesim.load(tree({}, 2, method={"name": "hierfavg", "kappa_1": 0}))


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "hierfavg": {
        "kappa_1": "test_kappa_1_is_the_number_of_steps",
    },
}
