"""The algebra of model states against PyTorch's own vectors, and its rounding against loops written by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from edgesim.core import model_state as ms
from edgesim.execution.identity import Digests
from edgesim.learning.models.build import model_state_of

factors = st.floats(-4, 4)


def drawn(seed: int, scale: float = 1.0) -> dict[str, dict[str, Tensor]]:
    """Return the state of a small network with a convolution, normalisation and a linear layer."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 4))
        network(torch.randn(5, 2, 3, 3))
        state = model_state_of(network)
        return {
            kind: {n: t.detach() * scale + torch.randn(t.shape) for n, t in ts.items()} for kind, ts in state.items()
        }


def vector(state: Mapping[str, Any]) -> Tensor:
    """Return all numbers of a state as one vector."""
    return parameters_to_vector(ms.tensors_in(state))


def same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Return True if two states have the same names in the same order, and the same bits, types and layouts."""
    pairs = list(zip(ms.tensors_in(a), ms.tensors_in(b), strict=True))
    names = [[list(each) for each in state.values() if isinstance(each, Mapping)] for state in (a, b)]
    bits = all(torch.equal(x, y) and x.dtype == y.dtype and x.stride() == y.stride() for x, y in pairs)
    return list(a) == list(b) and names[0] == names[1] and bits


@given(st.integers(0, 99), factors)
def test_a_state_is_a_vector(seed: int, factor: float) -> None:
    a, b = drawn(seed), drawn(seed + 100)
    x, y = vector(a), vector(b)
    assert torch.equal(vector(ms.plus(a, b)), x + y)
    assert torch.equal(vector(ms.minus(a, b)), x - y)
    assert torch.equal(vector(ms.plus(a, b, factor)), x.add(y, alpha=factor))
    assert torch.equal(vector(ms.lerp(a, b, factor)), x.lerp(y, factor))
    assert torch.equal(vector(ms.moves(a, b)), x.double() - y.double())
    assert torch.equal(vector(ms.stepped(a, ms.moves(b, a), factor)), (x + factor * (y.double() - x)).float())
    assert math.fsum(ms.dots(a, b)) == pytest.approx(float(x.double() @ y.double()), rel=1e-4, abs=1e-4)
    assert ms.norm(a) == pytest.approx(float(torch.linalg.vector_norm(x)), rel=1e-5)


@given(st.integers(0, 99))
def test_the_laws_of_a_vector_space_hold_to_the_last_bit_where_floating_point_has_them(seed: int) -> None:
    a, b = drawn(seed), drawn(seed + 100)
    assert same(ms.plus(a, b), ms.plus(b, a))
    assert same(ms.minus(a, b), ms.plus(a, b, -1))
    assert same(ms.lerp(a, b, 0.0), a)
    assert same(ms.lerp(a, b, 1.0), b)
    assert same(ms.stepped(a, ms.moves(b, a)), b)  # a difference of float32 numbers of like size fits float64
    assert ms.dots(a, b) == ms.dots(b, a)
    assert ms.square(ms.minus(a, a)) == ms.norm(ms.minus(a, a)) == 0


@given(st.lists(factors, min_size=1, max_size=5), st.integers(0, 99))
def test_a_sum_runs_in_float64_in_the_given_order(weights: list[float], seed: int) -> None:
    states = [drawn(seed + place, scale=10.0**place) for place in range(len(weights))]

    def by_hand(name: str, start: Tensor) -> Tensor:
        for state, weight in zip(states, weights, strict=True):
            start.add_(state["params"][name], alpha=weight)
        return start

    first = states[0]["params"]
    expected = {name: by_hand(name, torch.zeros_like(t, dtype=torch.float64)) for name, t in first.items()}
    found = ms.weighted_sum(iter(states), weights)
    assert same(found["params"], expected)
    started = ms.mapped(lambda t: torch.ones_like(t, dtype=torch.float64), first)
    expected = {name: by_hand(name, torch.ones_like(t, dtype=torch.float64)) for name, t in first.items()}
    assert ms.weighted_sum([state["params"] for state in states], weights, started) is started
    assert same(started, expected)


def test_a_sum_leaves_its_states_as_they_were() -> None:
    state = ms.mapped(Tensor.double, drawn(1))
    before = ms.mapped(torch.clone, state)
    ms.weighted_sum([state, state], [1.0, 2.0])
    assert same(state, before)


def test_a_sum_of_nothing_needs_a_start() -> None:
    start = ms.mapped(Tensor.double, drawn(1))
    assert ms.weighted_sum([], [], start) is start
    with pytest.raises(ValueError, match="needs at least one state"):
        ms.weighted_sum([], [])
    with pytest.raises(ValueError, match="shorter"):
        ms.weighted_sum([start, start], [1.0], start)


def test_a_map_sees_several_states_and_keeps_the_names_of_the_first() -> None:
    a, b = drawn(1), {"own": {}, **dict(reversed(drawn(2).items()))}
    found = ms.mapped(torch.maximum, a, b)
    assert torch.equal(vector(found), torch.maximum(vector(a), vector(drawn(2))))
    assert list(found) == list(a)
    names = ms.named(lambda name, x, y: (name, x.shape == y.shape), a, b)
    assert names == {kind: {name: (name, True) for name in tensors} for kind, tensors in a.items()}
    assert same(ms.mapped(torch.maximum, a["params"], b["params"]), found["params"])  # a collection is a state too
    with pytest.raises(KeyError, match="buffers"):
        ms.mapped(torch.add, a, {"params": a["params"]})


def test_parts_of_a_state() -> None:
    state = {**drawn(1), "control": {"w": torch.ones(2)}}
    assert list(ms.model_in(state)) == ["params", "buffers"]
    head = ms.selected(state, lambda name: name.startswith("3."))
    assert {kind: list(ts) for kind, ts in head.items()} == {
        "params": ["3.weight", "3.bias"], "buffers": [], "control": []
    }  # fmt: skip
    other = drawn(2)
    mixed = ms.replaced(state, ms.selected(other, lambda name: name.startswith("3.")))
    assert [mixed["params"]["3.bias"], mixed["params"]["0.bias"]] == [
        other["params"]["3.bias"],
        state["params"]["0.bias"],
    ]
    assert list(mixed) == list(state)
    assert sum(1 for _ in ms.tensors_in(state)) == 9


def test_results_keep_types_and_layouts_and_are_plain_mappings() -> None:
    half = ms.mapped(
        lambda t: t.half().contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t.half(), drawn(1)
    )
    for found in (ms.plus(half, half), ms.lerp(half, drawn(2), 0.5), ms.stepped(half, drawn(2), 0.1)):
        assert {t.dtype for t in ms.tensors_in(found)} == {torch.float16}
        assert found["params"]["0.weight"].is_contiguous(memory_format=torch.channels_last)
        assert type(found) is type(found["params"]) is dict
    assert {t.dtype for t in ms.tensors_in(ms.moves(half, half))} == {torch.float64}
    digests = Digests()
    assert digests.of(ms.minus(half, half)) == digests.of(
        {k: {n: t - t for n, t in ts.items()} for k, ts in half.items()}
    )


def test_names_with_a_prefix() -> None:
    model = {"params": {"w": torch.ones(2)}, "buffers": {"m": torch.zeros(1)}}
    held = ms.flattened(model, "generator.")
    assert list(held) == ["generator.w", "generator.m"]
    other = ms.mapped(torch.ones_like, model)
    assert ms.unflattened(held, "generator.", other) == model
    assert ms.unflattened({}, "generator.", other) == other
