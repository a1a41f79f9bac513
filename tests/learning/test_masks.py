"""Masks against numbers on paper, real networks and PyTorch's gradients.

Source: Evci et al. (2020) for ERK and for pruning and regrowing; sizes and densities of the DA-DPFL and FedDHAD papers'
networks by arithmetic from their layers.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edgesim.config.plugins import find
from edgesim.core.backend import Assignment
from edgesim.core.encoding import Encoding
from edgesim.core.errors import ConfigError
from edgesim.core.price_list import CostProfile, LayerCost
from edgesim.core.task import Payload, Submodel, Task
from edgesim.learning.aggregate import mean as mean_module
from edgesim.learning.aggregate.mean import mean_of_nonzero
from edgesim.learning.codec import packed as packed_module
from edgesim.learning.models.build import model_state_of
from edgesim.learning.submodel import masks
from edgesim.learning.train.context import Batch, Context
from edgesim.runs.network import cost_profile_of
from tests.contracts.support import fingerprint
from tests.methods.hand_made import KEY
from tests.plugins.networks import TinyNorm
from tests.plugins.one_number import Ones
from tests.sizes import full, spread

SMALL = {"a": (8, 3, 3, 3), "b": (16, 8, 3, 3), "c": (10, 64)}
RESNET = {("blocks.4.conv2", "blocks.5.conv1", "blocks.5.conv2"): 0.720483, ("blocks.6.conv1",): 0.538276}
RESNET[("blocks.6.conv2", "blocks.7.conv1", "blocks.7.conv2")] = 0.358155


@cache
def network(name, shape, classes):
    """Return a network and its cost profile."""
    return cost_profile_of(find("model", name)[0](), name, shape, classes, KEY)


def card_with(kind, weights, outputs=2):
    """Return a cost profile of one layer behind another."""
    first = LayerCost("first", "Linear", 8, 0, 8.0, 8.0, 0.0, frozenset(), 8)
    layer = LayerCost("odd", kind, weights + outputs, 0, 2.0, 2.0, 2.0, frozenset({"first"}), weights)
    return CostProfile("by hand", (4,), 2, (first, layer))


# --- how many ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shapes", "density", "shares", "counts"),
    [
        (SMALL, 0.5, [0.653046, 0.216081, 0.959401], [141, 248, 614]),
        (SMALL, 0.2, [0.261218, 0.086433, 0.383760], [56, 99, 245]),
        ({"a": (20, 10), "b": (5, 20)}, 0.3, [0.245455, 0.409091], [49, 40]),
    ],
)
def test_erk(shapes, density, shares, counts):
    """Densities in proportion to sum / product of a shape; (20, 10): 30 / 200 x 1.636364."""
    found = masks.densities(shapes, 1 - density, "erk")
    assert list(found.values()) == pytest.approx(shares, abs=1e-6)
    assert list(masks.kept_counts(shapes, found).values()) == counts


@full
@pytest.mark.parametrize(
    ("name", "shape", "classes", "nonzero", "shares"),
    spread([
        (
            "vgg11_gn", (3, 32, 32), 100, 4634461,
            {("conv4",): 0.844337, ("conv5",): 0.630808, ("conv6", "conv7", "conv8"): 0.419723},
        ),
        (
            "alexnet_small", (3, 64, 64), 7, 11625310,
            {("conv3",): 0.668938, ("conv4",): 0.556874, ("conv5",): 0.6698, ("fc1",): 0.930997, ("fc2",): 0.372399},
        ),
        ("resnet18_bn", (3, 32, 32), 10, 5582173, RESNET),
    ], 1),
)  # fmt: skip
def test_erk_of_real_networks(name, shape, classes, nonzero, shares):
    """At density 0.5; what is not listed is whole. The cost profile knows the shapes that the tensors have."""
    module, cost_profile = network(name, shape, classes)
    shapes = masks.weight_shapes(cost_profile)
    assert shapes == {n: tuple(p.shape) for n, p in module.named_parameters() if p.dim() >= 2}
    found = masks.densities(shapes, 0.5, "erk")
    wanted = {f"{layer}.weight": share for layers, share in shares.items() for layer in layers}
    assert found == pytest.approx({**dict.fromkeys(shapes, 1.0), **wanted}, abs=1e-6)
    assert sum(masks.kept_counts(shapes, found).values()) == nonzero


@pytest.mark.parametrize(
    ("sparsity", "counts"), [(0.8, [100, 478, 9474, 2066, 234]), (0.5, [231, 1199, 23921, 5071, 461])]
)
def test_allocation_of_feddst(sparsity, counts):
    """LeNet's 61770 weights: 12352 and 30883 stay. The rule of ERK at 0.8 keeps the last layer whole."""
    shapes = masks.weight_shapes(network("lenet5", (3, 32, 32), 10)[1])
    found = masks.kept_counts(shapes, masks.densities(shapes, sparsity, "feddst"))
    assert list(found.values()) == counts
    erk = masks.densities(shapes, 0.8, "erk")
    assert list(erk.values()) == pytest.approx([0.627286, 0.198090, 0.160948, 0.300673, 1], abs=1e-6)


@pytest.mark.parametrize("allocation", ["erk", "feddst"])
def test_at_the_edges(allocation):
    """Sparsity 0 leaves every weight; near 1 a tensor still keeps one; tensors of two by two have no preference."""
    whole = masks.kept_counts(SMALL, masks.densities(SMALL, 0.0, allocation))
    assert whole == {"a": 216, "b": 1152, "c": 640}
    if allocation == "erk":  # FedDST's allocation refuses so much, see tests/methods/test_feddst.py
        assert min(masks.kept_counts(SMALL, masks.densities(SMALL, 0.9999, allocation)).values()) == 1
    assert min(masks.kept_counts(SMALL, dict.fromkeys(SMALL, 1e-9)).values()) == 1
    assert masks.densities({"a": (2, 2)}, 0.5, allocation) == {"a": 0.5}


@pytest.mark.parametrize(("kind", "weights"), [("Conv2d", 18), ("LSTM", 8), ("Linear", 9)])
def test_shapes_that_the_card_does_not_tell(kind, weights):
    """They are refused, in one line that names the layer."""
    with pytest.raises(ConfigError, match=rf"model\.name: by hand has weights in odd \({kind}\) whose shape"):
        masks.weight_shapes(card_with(kind, weights))


def test_a_model_without_weights():
    with pytest.raises(ConfigError, match=r"model\.name: by hand has no tensor of two dimensions"):
        masks.weight_shapes(CostProfile("by hand", (4,), 2, ()))


def test_masks_price_flops_and_bytes():
    """LeNet at sparsity 0.8: 137974 multiply-adds; 12352 weights and 236 biases are 50352 bytes, the bitmap 7722."""
    _, cost_profile = network("lenet5", (3, 32, 32), 10)
    shapes = masks.weight_shapes(cost_profile)
    counts = masks.kept_counts(shapes, masks.densities(shapes, 0.8, "feddst"))
    submodel = Submodel(nnz=masks.nonzeros(counts))
    assert cost_profile.forward_flops(submodel, sparse="ideal") == 2 * 137974
    assert masks.counts_in(submodel) == counts
    bitmap = Encoding(zeros="bitmap")
    assert cost_profile.nbytes(Payload(encoding=bitmap), submodel) == 50352 + 7722
    assert cost_profile.nbytes(Payload(encoding=masks.wire(bitmap, known=True)), submodel) == 50352
    assert masks.wire(bitmap, known=False) is masks.wire(Encoding(), known=True) is None


# --- which ------------------------------------------------------------------------------------------------------


def test_prune_and_regrow():
    """Of five weights two go, indices 5 and 1; gradients 0.4 and -0.5 at 2 and 4 are the largest of those missing."""
    weight = torch.tensor([0.5, -0.1, 0, 0.3, 0, -0.05, 0.9, 0])
    gradient = torch.tensor([0.01, 0.2, 0.4, 0.02, -0.5, 0.03, 0.01, 0.1])
    kept = masks.pruned(weight, weight != 0, 0.3)
    assert kept.int().tolist() == [1, 0, 0, 1, 0, 0, 1, 0]
    assert masks.regrown(kept, gradient, 5).int().tolist() == [1, 0, 1, 1, 1, 0, 1, 0]


def test_a_pruned_weight_may_come_back():
    """If its gradient is the largest; a layer without zeros has nothing to exchange and stays."""
    weight, gradient = torch.tensor([3.0, 1.0, 0.0]), torch.tensor([0.0, 5.0, 1.0])
    kept = masks.pruned(weight, weight != 0, 0.5)
    assert kept.tolist() == [True, False, False]
    assert masks.regrown(kept, gradient, 2).tolist() == [True, True, False]
    whole = torch.ones(3, dtype=torch.bool)
    assert masks.pruned(weight, whole, 0.5) is whole


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.999, 1.0])
def test_layer_counts_are_kept(share):
    """Whatever the share: pruning and regrowing leave as many weights as there were."""
    draws = KEY.numpy()
    weight, gradient = (torch.from_numpy(draws.normal(size=(6, 7))) for _ in range(2))
    mask = masks.largest(weight.abs(), 20)
    kept = masks.pruned(weight, mask, share)
    assert int(kept.sum()) == 20 - int(np.ceil(share * 20 - 1e-9))
    assert not (kept & ~mask).any()
    assert int(masks.regrown(kept, gradient, 20).sum()) == 20


@pytest.mark.parametrize(
    ("share", "end", "expected"),
    [
        (0.3, 500, {0: 0.3, 100: 0.271353, 250: 0.15, 499: 0.000003}),
        (0.5, 300, {150: 0.25}),
        (0.5, 250, {0: 0.5, 50: 0.452254, 125: 0.25, 250: 0.0}),
    ],
)
def test_annealed(share, end, expected):
    assert {t: masks.annealed(share, t, end) for t in expected} == pytest.approx(expected, abs=1e-6)


def test_of_equal_numbers_the_first():
    """In the order of the entries, whatever their layout in memory."""
    scores = torch.zeros(1, 2, 2, 2).to(memory_format=torch.channels_last)
    assert masks.largest(scores, 3).flatten().int().tolist() == [1, 1, 1, 0, 0, 0, 0, 0]


LAYOUTS = st.sampled_from([torch.contiguous_format, torch.channels_last])
NUMBERS = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, float("inf"), -float("inf"), float("nan")])


@given(st.lists(NUMBERS, min_size=1, max_size=30), st.data())
def test_the_largest_are_the_first_of_a_stable_sort(values, data):
    """PyTorch's, for which NaN is larger than infinity."""
    scores = torch.tensor(values, dtype=data.draw(st.sampled_from([torch.float32, torch.float64])))
    count = data.draw(st.integers(0, len(values)))
    first = torch.sort(scores, descending=True, stable=True).indices[:count]
    assert masks.largest(scores, count).nonzero().flatten().tolist() == sorted(first.tolist())


@given(st.lists(st.tuples(NUMBERS, st.booleans()), min_size=1, max_size=30), st.data())
def test_the_largest_of_those_that_there_are(entries, data):
    """Sizes that a mask leaves out are never chosen, not even before zeros that it has."""
    scores = torch.tensor(
        [score for score, _ in entries], dtype=data.draw(st.sampled_from([torch.float32, torch.float64]))
    )
    among = torch.tensor([there for _, there in entries])
    count = data.draw(st.integers(0, int(among.sum())))
    order = torch.sort(scores.abs(), descending=True, stable=True).indices
    first = order[among[order]][:count]
    assert masks.largest(scores.abs(), count, among).nonzero().flatten().tolist() == sorted(first.tolist())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "scores",
    [
        KEY.numpy().normal(size=30_000),
        KEY.numpy().normal(size=30_000) * (KEY.at(1).numpy().uniform(size=30_000) < 0.5),  # half of them zeros
        KEY.numpy().integers(0, 5, size=30_000).astype(float),
        np.arange(30_000.0),
        np.arange(30_000) % 7 + np.arange(30_000) / 1e5,  # of which a sample sees one in seven, always the same
        np.where(np.arange(30_000) % 3, np.nan, np.arange(30_000)),
    ],
    ids=["normal", "sparse", "few values", "sorted", "periodic", "many nan"],
)
def test_the_largest_of_many(scores, dtype):
    """Where a sample says about where the last one lies, it is the same, whether the sample is a good one or not."""
    scores = torch.from_numpy(scores).to(dtype)
    order = torch.sort(scores, descending=True, stable=True).indices
    for count in (1, 100, 7_000, 14_990, 15_000, 15_010, 29_999, 30_000):
        assert masks.largest(scores, count).nonzero().flatten().tolist() == sorted(order[:count].tolist())


def test_random_masks():
    """Exact counts; the same from the same key, others from another; every position is as likely."""
    shapes, counts = {"a": (20, 10), "b": (20, 10)}, {"a": 50, "b": 150}
    found = masks.at_random(shapes, counts, KEY)
    assert masks.counts_of(found) == counts
    assert fingerprint(found) == fingerprint(masks.at_random(shapes, counts, KEY))
    many = torch.stack([masks.at_random(shapes, counts, KEY.at(i))["a"].double() for i in range(400)]).mean(0)
    assert float((many - 0.25).abs().max()) < 5 * (0.25 * 0.75 / 400) ** 0.5


# --- models under masks -----------------------------------------------------------------------------------------


def one(values):
    """Return a bundle of one matrix of one row."""
    return {"params": {"w.weight": torch.tensor([values], dtype=torch.float32)}, "buffers": {}}


def test_mean_of_masked_models():
    """Three devices that count alike, and what two of them take of it under masks of their own."""
    models = [one(v) for v in ([1, 0, 3, 0, 2, 0], [2, 4, 0, 0, -1, 0], [0, 2, 6, 0, 5, 0])]
    mean = masks.masked_mean(models, [masks.support(m["params"]) for m in models], [1, 1, 1])
    assert mean["params"]["w.weight"].tolist() == [[1.5, 3, 4.5, 0, 2, 0]]
    assert fingerprint(mean_of_nonzero(iter(models), {"w.weight"})) == fingerprint(mean)
    assert mean_of_nonzero(models, ())["params"]["w.weight"][0, :3].tolist() == [1, 2, 3]
    for kept, expected in (([1, 0, 1, 0, 1, 0], [1.5, 0, 4.5, 0, 2, 0]), ([1, 1, 0, 0, 1, 0], [1.5, 3, 0, 0, 2, 0])):
        mask = {"w.weight": torch.tensor([kept]).bool()}
        assert masks.applied(mean, mask)["params"]["w.weight"].tolist() == [expected]


ENTRIES = st.sampled_from([0.0, -0.0, 1e-3, 1.0, -3.0, 1e30, 1.1754944e-38])


@pytest.mark.parametrize("block", [8, 1 << 15])
@given(st.data())
def test_the_mean_in_blocks_is_the_slow_formula(block, data):
    """Packed or not, in whatever layout, of any size around that of a block: sum of float64 over how many have it."""
    shape = data.draw(st.sampled_from([(), (1,), (8,), (17,), (3, 5), (2, 3, 2, 3)]))
    drawn = arrays.arrays(np.float32, shape, elements=ENTRIES)
    tensors = [torch.from_numpy(each) for each in data.draw(st.lists(drawn, min_size=1, max_size=4))]
    tensors = [t.contiguous(memory_format=data.draw(LAYOUTS)) if t.dim() == 4 else t for t in tensors]
    models = [{"params": {"w": t, "b": t}, "buffers": {}} for t in tensors]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_module, "LEAST_BYTES", 0 if data.draw(st.booleans()) else 2**16)
        patch.setattr(mean_module, "_NONZERO_BLOCK", block)
        mean = mean_of_nonzero((packed_module.packed(model)[0] for model in models), {"w"})
    total = sum((t.double() for t in tensors), torch.zeros(shape, dtype=torch.float64))
    having = sum((t != 0).double() for t in tensors).clamp(min=1)
    expected = {"params": {"w": (total / having).float(), "b": (total / len(tensors)).float()}, "buffers": {}}
    assert fingerprint(mean) == fingerprint(expected)


@given(st.data())
def test_zeros_outside_a_mask(data):
    """Whatever the number, of any type and layout; a bit of a NaN too."""
    dtype = data.draw(st.sampled_from([np.float16, np.float32, np.float64]))
    shape = data.draw(st.sampled_from([(), (5,), (2, 3, 2, 3)]))
    special = st.sampled_from([0.0, -0.0, 1.5, float("inf"), float("nan")])
    tensor = torch.from_numpy(data.draw(arrays.arrays(dtype, shape, elements=special)))
    mask = torch.from_numpy(data.draw(arrays.arrays(np.bool_, shape)))
    if tensor.dim() == 4:
        tensor, mask = (t.contiguous(memory_format=data.draw(LAYOUTS)) for t in (tensor, mask))
    found, expected = masks.zeroed(tensor, mask), torch.where(mask, tensor, 0.0)
    assert fingerprint(found) == fingerprint(expected)
    assert found.stride() == mask.stride()


def test_zeros_inside_a_mask_count():
    """A mask says who has a weight, also where it is zero; biases are averaged over all."""
    models = [{**one([4.0]), "buffers": {"w.mean": torch.tensor([b])}} for b in (1.0, 5.0)]
    models[1]["params"] = one([0.0])["params"]
    full = {"w.weight": torch.tensor([[True]])}
    assert masks.masked_mean(models, [full, full], [1, 3])["params"]["w.weight"].tolist() == [[1.0]]
    mean = masks.masked_mean(models, [masks.support(m["params"]) for m in models], [1, 3])
    assert mean["params"]["w.weight"].tolist() == [[4.0]]
    assert mean["buffers"]["w.mean"].tolist() == [4.0]


def test_a_model_carries_masks():
    """Under names of their own, as a run folder keeps all tensors of a model side by side."""
    model, mask = one([1.0, 2.0]), {"w.weight": torch.tensor([[True, False]])}
    carrying = masks.with_masks(model, mask)
    names = [name for tensors in carrying.values() for name in tensors]
    assert len(names) == len(set(names)) == 2
    assert fingerprint(masks.masks_in(carrying)) == fingerprint(mask)
    assert fingerprint(masks.without_masks(carrying)) == fingerprint(model)
    assert masks.masks_in(model) == {}


def test_the_dense_gradient_is_pytorchs():
    """Outside the mask too, in training mode; neither weights nor running statistics move."""
    network, batch = TinyNorm(), Batch(torch.from_numpy(KEY.numpy().normal(size=(5, 1, 8, 8))).float(), torch.arange(5))
    network.dropout.p = 0.0
    base = model_state_of(network)
    context = Context(network, Ones(samples=2).load(), torch.arange(2), Assignment(0, 0, Task(), KEY, base, None), True)
    w = context.copy(masks.applied(base, {"fc.weight": torch.zeros(10, 36, dtype=torch.bool)}))
    before = fingerprint(dict(w))
    found = masks.dense_gradient(w, batch, context)
    assert fingerprint(dict(w)) == before
    context.bind(w)
    F.cross_entropy(network(batch.x), batch.y).backward()
    for name, parameter in network.named_parameters():
        assert torch.allclose(found[name], parameter.grad, atol=1e-6), name
    assert float(found["fc.weight"].abs().max()) > 0
