"""Algebra of model states: maps, sums, differences, means and norms of named tensors.

A *state* is a model state (collection -> name -> tensor) or one of its collections (name -> tensor). States are plain
mappings, so a result can be sent, kept, pickled and cached like any other. The first state gives the names and their
order. The tensors of the other states are found by name, and names that the first state lacks are ignored. Each
function says how it rounds, because results must not change by a bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

ModelState: TypeAlias = Mapping[str, Mapping[str, Any]]  # collection ("params", "buffers", own) -> name -> tensor
MODEL = ("params", "buffers")  # collections of a network's own tensors

Mapped: TypeAlias = dict[str, Any]  # result of an operation: nested like the first state


def mapped(fn: Callable[..., Any], state: Mapping[str, Any], *others: Mapping[str, Any]) -> Mapped:
    """Return `fn(tensor, *tensors of the other states)` for each tensor of a state."""
    return named(lambda _, *tensors: fn(*tensors), state, *others)


def named(fn: Callable[..., Any], state: Mapping[str, Any], *others: Mapping[str, Any]) -> Mapped:
    """Return `fn(name, tensor, *tensors of the other states)` for each tensor of a state."""
    return {
        name: named(fn, value, *[other[name] for other in others])
        if isinstance(value, Mapping)
        else fn(name, value, *[other[name] for other in others])
        for name, value in state.items()
    }


def tensors_in(state: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the tensors of a state."""
    for value in state.values():
        if isinstance(value, Mapping):
            yield from tensors_in(value)
        else:
            yield value


# --- parts of a state -------------------------------------------------------------------------------------------


def model_in(state: Mapping[str, Any]) -> Mapped:
    """Return the parameters and buffers of a model state, without a method's own collections."""
    return {collection: state[collection] for collection in MODEL}


def selected(state: Mapping[str, Any], keep: Callable[[str], bool]) -> Mapped:
    """Return the tensors of a state whose names `keep` accepts. Collections may become empty."""
    return {
        name: selected(value, keep) if isinstance(value, Mapping) else value
        for name, value in state.items()
        if isinstance(value, Mapping) or keep(name)
    }


def replaced(state: Mapping[str, Any], new: Mapping[str, Any]) -> Mapped:
    """Return a model state with the tensors of `new` in place of those of the same names.

    Collections that only `new` has are left out.
    """
    return {collection: {**tensors, **new.get(collection, {})} for collection, tensors in state.items()}


def flattened(model: ModelState, prefix: str) -> Mapped:
    """Return the parameters and buffers of a model as one collection, with a prefix before their names."""
    return {prefix + name: t for kind in MODEL for name, t in model.get(kind, {}).items()}


def unflattened(held: Mapping[str, Any], prefix: str, like: ModelState) -> Mapped:
    """Return the model that `flattened` put into a collection, with the names of `like` and its tensors if missing."""
    return named(lambda name, t: held.get(prefix + name, t), like)


# --- arithmetic -------------------------------------------------------------------------------------------------


def plus(a: Mapping[str, Any], b: Mapping[str, Any], times: float = 1) -> Mapped:
    """Return a + times b, with one rounding where the hardware can."""
    return mapped(lambda x, y: x.add(y, alpha=times), a, b)


def minus(a: Mapping[str, Any], b: Mapping[str, Any]) -> Mapped:
    """Return a - b."""
    return mapped(lambda x, y: x - y, a, b)


def lerp(a: Mapping[str, Any], b: Mapping[str, Any], share: float) -> Mapped:
    """Return (1 - share) a + share b, in the type and on the device of `a`."""
    return mapped(lambda x, y: x.lerp(y.to(x), share), a, b)


def moves(after: Mapping[str, Any], before: Mapping[str, Any]) -> Mapped:
    """Return after - before in float64."""
    return mapped(lambda new, old: new.double() - old, after, before)


def stepped(state: Mapping[str, Any], step: Mapping[str, Any], times: float = 1.0) -> Mapped:
    """Return state + times step, computed in the type of the step and then rounded to the type of the state."""
    return mapped(lambda x, s: (x + times * s).to(x.dtype), state, step)


def weighted_sum(states: Iterable[Mapping[str, Any]], weights: Iterable[float], start: Mapped | None = None) -> Mapped:
    """Return the sum of weight times state, accumulated in float64 in the given order.

    `start`: float64, to which the sum is added in place. Without it the sum starts at 0, and there is at least one
    state. Raises ValueError if `states` and `weights` differ in number.
    """
    total = start
    for state, weight in zip(states, weights, strict=True):
        if total is None:
            total = mapped(lambda x: x.clone().double().zero_(), state)
        mapped(lambda x, sum_, weight=weight: sum_.add_(x, alpha=weight), state, total)
    if total is None:
        raise ValueError("a sum without a start needs at least one state")
    return total


def dots(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[float]:
    """Return the inner product of each tensor of `a` with its counterpart, in the types of the tensors."""
    return [float(each) for each in tensors_in(mapped(lambda x, y: (x * y).sum(), a, b))]


def square(state: Mapping[str, Any]) -> float:
    """Return the squared Euclidean norm of all tensors as one vector. The squares of the tensors are summed exactly."""
    return math.fsum(dots(state, state))


def norm(state: Mapping[str, Any]) -> float:
    """Return the Euclidean norm of all tensors as one vector."""
    return math.sqrt(square(state))
