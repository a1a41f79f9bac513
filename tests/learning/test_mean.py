"""The mean of thinner and partial models, entry by entry, against loops that look at one number at a time."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgesim.core.errors import ContractError
from edgesim.core.price_list import ChannelGroup, CostProfile, LayerCost
from edgesim.core.task import Submodel, Task
from edgesim.core.update import Update
from edgesim.learning.aggregate.mean import HeldTensor, mean_by_entry, mean_of_holders
from tests.sizes import examples

NOBODY: frozenset[str] = frozenset()
SIZES = {"conv": 3, "fc1": 4}  # units of each group
SPREAD = 2  # pixels of a flattened channel
CARD = CostProfile(
    "by hand",
    (1, 3, 3),
    2,
    (
        LayerCost("conv", "Conv2d", 3 * 4 + 3, 0, 1.0, 1.0, 1.0, NOBODY, weights=12, rows="conv"),
        LayerCost("norm", "BatchNorm2d", 6, 6, 1.0, 1.0, 1.0, NOBODY, rows="conv"),
        LayerCost("fc1", "Linear", 4 * 6 + 4, 0, 1.0, 1.0, 1.0, NOBODY, 24, "fc1", "conv", SPREAD),
        LayerCost("fc2", "Linear", 2 * 4 + 2, 0, 1.0, 1.0, 1.0, NOBODY, 8, "", "fc1"),
    ),
    groups=tuple(ChannelGroup(name, size) for name, size in SIZES.items()),
)
# tensor -> kind, shape, and the group that each of its first dimensions counts, with the entries of one unit
TENSORS: dict[str, tuple[str, tuple[int, ...], tuple[tuple[str, int], ...]]] = {
    "conv.weight": ("params", (3, 1, 2, 2), (("conv", 1),)),
    "conv.bias": ("params", (3,), (("conv", 1),)),
    "norm.weight": ("params", (3,), (("conv", 1),)),
    "norm.running_mean": ("buffers", (3,), (("conv", 1),)),
    "fc1.weight": ("params", (4, 6), (("fc1", 1), ("conv", SPREAD))),
    "fc1.bias": ("params", (4,), (("fc1", 1),)),
    "fc2.weight": ("params", (2, 4), (("", 1), ("fc1", 1))),
    "fc2.bias": ("params", (2,), ()),
}
WHOLE = {"conv": (0, 1, 2), "fc1": (0, 1, 2, 3)}


def values(seed: int) -> dict[str, np.ndarray]:
    """Return numbers for every tensor of the whole model, float32."""
    draws = np.random.default_rng(seed)
    return {name: draws.normal(size=shape).astype(np.float32) for name, (_, shape, _) in TENSORS.items()}


def model_state(arrays: dict[str, np.ndarray]) -> dict[str, dict[str, torch.Tensor]]:
    """Return arrays as a bundle."""
    found: dict[str, dict[str, torch.Tensor]] = {"params": {}, "buffers": {}}
    for name, array in arrays.items():
        found[TENSORS[name][0]][name] = torch.from_numpy(array.copy())
    return found


def thinned(name: str, array: np.ndarray, kept: dict[str, tuple[int, ...]]) -> np.ndarray:
    """Return the entries of a tensor whose units are all kept, in the order of the units."""
    for dim, (group, spread) in enumerate(TENSORS[name][2]):
        if group in kept:
            array = array.take([unit * spread + pixel for unit in kept[group] for pixel in range(spread)], axis=dim)
    return array


def holds(name: str, entry: tuple[int, ...], kept: dict[str, tuple[int, ...]]) -> bool:
    """Whether a model of these units has an entry."""
    along = zip(TENSORS[name][2], entry, strict=False)
    return all(place // spread in kept.get(group, (place // spread,)) for (group, spread), place in along)


def message(kept: dict[str, tuple[int, ...]], arrays: dict[str, np.ndarray]) -> Update:
    """Return a message with the kept entries of these tensors."""
    body = model_state({name: thinned(name, array, kept) for name, array in arrays.items()})
    return Update(0, 0, Task(submodel=Submodel(channels=tuple(kept.items()))), body, 1, 1, 0, {})


def by_loops(old, sent, weights, absent):
    """Return the mean of `sent`, pairs of kept units and tensors of the whole model, one entry after another."""
    mean = {name: array.copy() for name, array in old.items()}
    for name, (_, shape, _) in TENSORS.items():
        for entry in itertools.product(*map(range, shape)):
            total = weight = 0.0
            for (kept, arrays), share in zip(sent, weights, strict=True):
                if name in arrays and holds(name, entry, kept):
                    total, weight = total + share * float(arrays[name][entry]), weight + share
            if weight > 0 and absent == "include_absent":
                total, weight = total + (sum(weights) - weight) * float(old[name][entry]), sum(weights)
            if weight > 0:
                mean[name][entry] = total / weight
    return mean


@st.composite
def senders(draw):
    """Devices: the units each kept of each group (or the whole group), the layers it sent, and its weight."""
    kept = {
        group: tuple(draw(st.lists(st.integers(0, size - 1), min_size=1, unique=True)))
        for group, size in SIZES.items()
        if draw(st.booleans())
    }
    layers = draw(st.sets(st.sampled_from(["conv", "norm", "fc1", "fc2"]), min_size=1))
    arrays = {name: array for name, array in values(draw(st.integers(0, 99))).items() if name.split(".")[0] in layers}
    return kept, arrays, draw(st.integers(0, 3))


@settings(max_examples=examples(60), deadline=None)
@given(
    sent=st.lists(senders(), min_size=1, max_size=4), absent=st.sampled_from(["average_over_holders", "include_absent"])
)
def test_every_entry_is_averaged_over_who_has_it(sent: Any, absent: Any) -> None:
    """Random parts of a convolution, its norm and two linear layers; some leave layers out, some weigh nothing."""
    old, weights = values(100), [weight for _, _, weight in sent]
    got = [message(kept, arrays) for kept, arrays, _ in sent]
    found = mean_of_holders(model_state(old), got, weights, absent=absent, cost_profile=CARD)
    expected = by_loops(old, [(kept, arrays) for kept, arrays, _ in sent], weights, absent)
    for name, (kind, _, _) in TENSORS.items():
        assert np.allclose(found[kind][name].numpy(), expected[name], rtol=1e-6, atol=1e-7), name
        assert found[kind][name].dtype == torch.float32


def test_what_nobody_has_keeps_its_bits() -> None:
    old, kept = values(0), {"conv": (0,), "fc1": (1, 3)}
    found = mean_of_holders(model_state(old), [message(kept, values(1))], [2.0], cost_profile=CARD)
    for name, (kind, shape, _) in TENSORS.items():
        for entry in itertools.product(*map(range, shape)):
            assert (found[kind][name].numpy()[entry] == old[name][entry]) == (not holds(name, entry, kept))


@pytest.mark.parametrize("absent", ["average_over_holders", "include_absent"])
def test_equal_models_give_that_model(absent: Any) -> None:
    """Thinner or whole, with weights that are no powers of two: every bit of every entry that somebody has."""
    common = values(1)
    got = [message(kept, common) for kept in ({"conv": (2, 0)}, {"fc1": (1,)}, WHOLE, {})]
    base = values(1) if absent == "include_absent" else values(0)
    found = mean_of_holders(model_state(base), got, [0.1, 0.3, 0.7, 1.1], absent=absent, cost_profile=CARD)
    for name, (kind, _, _) in TENSORS.items():
        assert np.array_equal(found[kind][name].numpy(), common[name])


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shape", [(9,), (9, 7), (9, 7, 3, 3)])
def test_sums_by_a_few_rows_have_the_bits_of_those_by_entry(monkeypatch: Any, shape: Any, layout: Any) -> None:
    """Products and sums in float64, one message after the other; rows and columns in any order, or all of them."""
    monkeypatch.setattr("edgesim.learning.aggregate.mean._BLOCK", 2 * 7 * 9)  # two rows of kernels
    draws = np.random.default_rng(0)
    old = draws.normal(size=shape).astype(np.float32)
    total, weight, held = np.zeros(shape), np.zeros(shape), []
    for place in range(6):
        rows, columns = draws.permutation(9)[: 3 + place], draws.permutation(7)[: 1 + place]
        where = np.ix_(*(rows, columns)[: len(shape)]) if place < 5 else ...
        numbers, counts = draws.normal(size=old[where].shape).astype(np.float32), float(draws.random())
        total[where] += counts * numbers.astype(np.float64)
        weight[where] += counts
        tensor = torch.from_numpy(numbers)
        tensor = tensor.contiguous(memory_format=layout) if len(shape) == 4 else tensor
        kept = [torch.from_numpy(each) for each in (rows, columns)[: len(shape)]] if place < 5 else []
        held.append(HeldTensor(tensor, counts, *kept))
    found = mean_by_entry(torch.from_numpy(old), held, None)
    assert np.array_equal(found.numpy(), (total / weight).astype(np.float32))


def test_all_units_are_the_whole_model() -> None:
    """A part that names every unit counts as one that names none."""
    arrays = [values(1), values(2)]
    thin = mean_of_holders(model_state(values(0)), [message(WHOLE, a) for a in arrays], [1.0, 2.0], cost_profile=CARD)
    whole = mean_of_holders(model_state(values(0)), [message({}, a) for a in arrays], [1.0, 2.0])
    for name, (kind, _, _) in TENSORS.items():
        assert torch.allclose(thin[kind][name], whole[kind][name], rtol=1e-7, atol=0)


def test_what_cannot_be_averaged() -> None:
    with pytest.raises(ContractError, match="thinner parts needs the cost profile"):
        mean_of_holders(model_state(values(0)), [message({"conv": (1,)}, values(1))], [1.0])
    momentum = message({}, values(1))._replace(body={"momentum": {}})
    with pytest.raises(ContractError, match=r"cannot average \['momentum'\]"):
        mean_of_holders(model_state(values(0)), [momentum], [1.0])
