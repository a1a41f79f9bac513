"""What a device tells of a model, against NumPy's ranks and PyTorch's Hessian.

Source: "Efficient Federated Learning with Heterogeneous Data and Adaptive Dropout", arXiv 2507.10430.
"""

from __future__ import annotations

import math
from collections import OrderedDict

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from edgesim.config.plugins import find
from edgesim.core.backend import Assignment
from edgesim.core.rng import Key
from edgesim.core.task import Submodel, Task
from edgesim.learning.data.dataset import Dataset
from edgesim.learning.measure.step import measure
from edgesim.learning.models.build import model_state_of
from edgesim.learning.train.context import Context
from edgesim.methods.adaptive_dropout.unit_ranks import curvature_of, rank_flops, ranks_of, source_of
from edgesim.runs.network import cost_profile_of
from tests.plugins.networks import TinyNorm

KEY = Key(8)
MATRIX = torch.tensor([[1.0, 2, 3], [2, 4, 6], [0, 1, 1]])  # of rank 2
NEURONS = torch.tensor([[1.0, -2, 0.5], [0, 0, 0]])


def device(module, images, labels=None, submodel=None):
    """Return what a device has that holds these images, (samples, height, width), and received this network."""
    x, y = images.unsqueeze(-1).contiguous(), torch.zeros(len(images), dtype=torch.int64) if labels is None else labels
    data = Dataset("by hand", x, y, x, y, 2, (1, *images.shape[1:]))
    base = model_state_of(module)
    job = Assignment(0, 0, Task(submodel=submodel or Submodel()), KEY, base, None)
    context = Context(module, data, torch.arange(len(images)), job, False)
    return context.copy(base), context


def channels(*factors):
    """Return a network whose channels are the image times these factors; its two neurons have NEURONS' weights."""
    conv, fc = nn.Conv2d(1, len(factors), 1, bias=False), nn.Linear(3, 2)
    conv.weight.data = torch.tensor(factors).view(-1, 1, 1, 1)
    fc.weight.data = NEURONS.clone()
    layers = {"conv": conv, "pool": nn.AdaptiveMaxPool2d(1), "flatten": nn.Flatten(), "fc": fc}
    return nn.Sequential(OrderedDict(layers))


def test_ranks_of_maps_after_relu():
    """Rank 2 by hand; the negative map is nothing after ReLU; the mean over a second image of rank 1; of 3 possible."""
    w, context = device(channels(1.0, -1.0, 0.5), torch.stack([MATRIX, torch.ones(3, 3)]))
    found = ranks_of(w, context, ["conv"], 2, "abs")
    assert found.importance["conv"].tolist() == [1.5, 0.0, 1.5]
    assert found.deficiency == pytest.approx((1.5 + 0 + 1.5) / 3 / 3)
    one = device(channels(1.0, 1.0, 1.0), MATRIX.unsqueeze(0))
    assert ranks_of(*one, ["conv"], 100, "abs").importance["conv"].tolist() == [2, 2, 2]


def test_the_rank_of_a_volume_is_the_mean_over_its_slices():
    """Two slices of rank 2 and 1, of 3 possible; a second sample of ones has rank 1 in both; the negative map none."""
    net = nn.Sequential(nn.Unflatten(2, (2, 3)), nn.Conv3d(1, 3, 1, bias=False))
    net[1].weight.data = torch.tensor([1.0, -1.0, 0.5]).view(3, 1, 1, 1, 1)
    images = torch.stack([torch.cat([MATRIX, torch.ones(3, 3)]), torch.ones(6, 3)])
    found = ranks_of(*device(net, images), ["1"], 2, "abs")
    assert found.importance["1"].tolist() == [(2 + 1 + 1 + 1) / 4, 0.0, (2 + 1 + 1 + 1) / 4]
    assert found.deficiency == pytest.approx(2 * 1.25 / 3 / 3)


def test_the_rank_of_a_sequence_is_one_where_something_is_there():
    """A matrix of one row: rank 1 of 1, or 0 if it is nothing after ReLU."""
    net = nn.Sequential(nn.Flatten(2), nn.Conv1d(1, 3, 2, bias=False))
    net[1].weight.data = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [-1.0, 2.0]]).unsqueeze(1)
    found = ranks_of(*device(net, torch.tensor([[[3.0, 2.0, 1.0]], [[0.0, 0.0, 4.0]]])), ["1"], 2, "abs")
    assert found.importance["1"].tolist() == [0.5, 0.0, 1.0]
    assert found.deficiency == 0.5


@pytest.mark.parametrize(("how", "sums"), [("abs", [3.5, 0.0]), ("signed", [-0.5, 0.0])])
def test_weights_of_neurons(how, sums):
    """The sum of three incoming weights or of their magnitudes; a network without maps lacks no rank."""
    found = ranks_of(*device(channels(1.0, 1.0, 1.0), MATRIX.unsqueeze(0)), ["fc"], 1, how)
    assert found.importance["fc"].tolist() == sums
    assert found.deficiency == 1.0


def test_a_diverged_model_tells_nothing():
    """NaN, without an error of the decomposition."""
    found = ranks_of(*device(channels(1.0, math.inf, 1.0), MATRIX.unsqueeze(0)), ["conv"], 1, "abs")
    assert np.isnan(found.importance["conv"]).all()
    assert math.isnan(found.deficiency)


def test_maps_of_a_normalised_network_are_those_of_a_test():
    """NumPy's ranks of ReLU behind the normalisation with running statistics, which stay, and nothing dropped out."""
    net, images = TinyNorm(), torch.from_numpy(KEY.numpy().normal(size=(7, 8, 8)).astype(np.float32))
    net.norm.running_mean.fill_(0.3)
    w, context = device(net, images)
    before = w["buffers"]["norm.running_mean"].clone()
    found = ranks_of(w, context, ["norm"], 7, "abs").importance["norm"]
    maps = F.relu(net.eval().norm(net.conv(images.unsqueeze(1)))).detach().numpy()
    assert found.tolist() == pytest.approx(np.linalg.matrix_rank(maps).mean(axis=0).tolist())
    assert torch.equal(w["buffers"]["norm.running_mean"], before)
    cost_profile = measure(net.train(), "tiny", (1, 8, 8), 10)
    assert [source_of(cost_profile, group) for group in cost_profile.groups] == ["norm"]


@pytest.mark.parametrize(
    ("name", "flops"),
    [("lenet5", 6 * (8 * 28**3 // 3) + 16 * (8 * 10**3 // 3)), ("cnn_3conv", 32 * 72000 + 64 * 5858 + 64 * 170)],
)
def test_what_ranks_cost(name, flops):
    """Maps of 28 and 10, or 30, 13 and 4 pixels a side, before pooling, at 8 / 3 side^3 each; neurons cost nothing."""
    plugin = find("model", name)[0]()
    cost_profile = cost_profile_of(plugin, name, None, None, KEY)[1]
    assert rank_flops(cost_profile, cost_profile.groups) == flops
    assert [source_of(cost_profile, group) for group in cost_profile.groups] == [
        group.name for group in cost_profile.groups
    ]


def test_what_ranks_of_volumes_and_sequences_cost():
    """Five cubes of 3 pixels a side: three slices each; four sequences of 60 pixels: one matrix of one row each."""
    cubes = nn.Sequential(nn.Unflatten(2, (4, 4)), nn.Conv3d(1, 5, 2), nn.Flatten(), nn.Linear(5 * 27, 10))
    cost_profile = measure(cubes, "cubes", (1, 16, 4), 10)
    assert rank_flops(cost_profile, cost_profile.groups) == 5 * 3 * (8 * 3**3 // 3)
    lines = nn.Sequential(nn.Flatten(2), nn.Conv1d(1, 4, 5), nn.Flatten(), nn.Linear(4 * 60, 10))
    cost_profile = measure(lines, "lines", (1, 16, 4), 10)
    assert rank_flops(cost_profile, cost_profile.groups) == 4 * 1 * (8 * 1**3 // 3)


def hessian_in_full(net, x, y, names):
    """Return torch's Hessian of the loss in a test, with respect to these parameters, float64."""
    params = {name: p.detach() for name, p in net.named_parameters()}
    sizes = [params[name].numel() for name in names]

    def loss(flat):
        pieces = {n: piece.view_as(params[n]) for n, piece in zip(names, torch.split(flat, sizes), strict=True)}
        return F.cross_entropy(torch.func.functional_call(net, {**params, **pieces}, (x,)), y)

    flat = torch.cat([params[name].flatten() for name in names])
    return torch.autograd.functional.hessian(loss, flat).double().numpy(), flat.double().numpy(), loss


@pytest.mark.parametrize("frozen", [frozenset(), frozenset({"conv", "norm"})], ids=["all", "linear"])
def test_curvature_of_a_network(frozen):
    """Eigenvalues and the bound of B from torch's Hessian at w and gradients at w and on the way back from there.

    What is frozen has moved too, and so have running statistics: both are those of w at either end.
    """
    net = TinyNorm(2)
    images = torch.from_numpy(KEY.numpy().normal(size=(9, 8, 8)).astype(np.float32))
    labels = torch.arange(9)
    _, context = device(net, images, labels, Submodel(frozen=frozen))
    first = {name: p.detach().clone() for name, p in net.named_parameters()}
    draws = torch.Generator().manual_seed(KEY.word())
    names = [n for n in first if n.rpartition(".")[0] not in frozen]
    moved = {n: p + 0.3 * torch.randn(p.shape, generator=draws) for n, p in first.items()}
    buffers = {n: b + 1 if b.is_floating_point() else b for n, b in net.named_buffers()}
    w = context.copy({"params": moved, "buffers": buffers})
    found = curvature_of(w, context, 9, 0, 1)
    net.load_state_dict({name: tensor.clone() for name, tensor in {**moved, **buffers}.items()})
    matrix, here, loss = hessian_in_full(net.eval(), images.unsqueeze(1), labels, names)
    there = np.concatenate([first[n].numpy().ravel() for n in names])
    ends = [torch.from_numpy(end).float().requires_grad_(True) for end in (here, there)]
    slopes = [torch.autograd.grad(loss(end), end)[0].double().numpy() for end in ends]
    way = there - here
    assert found.moved == pytest.approx(np.linalg.norm(way), rel=1e-5)
    assert found.lipschitz == pytest.approx(
        np.linalg.norm(matrix @ way - slopes[1] + slopes[0]) / found.moved, rel=1e-3
    )
    assert found.spectrum.values == pytest.approx(np.linalg.eigvalsh(matrix), abs=1e-5)
    some = curvature_of(w, context, 9, 40, 2).spectrum
    assert some.values[-1] == pytest.approx(np.linalg.eigvalsh(matrix)[-1], rel=1e-4)
    assert some.masses.sum() == pytest.approx(1)


def test_nothing_is_known_where_nothing_moved():
    """At the first model itself the way has no length, and B no bound."""
    net = TinyNorm(2)
    w, context = device(net, torch.ones(2, 8, 8))
    found = curvature_of(w, context, 2, 3, 1)
    assert (found.moved, found.lipschitz) == (0.0, 0.0)
