"""The graph of a run, and the identities of what is in it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from edgesim.core.backend import Assignment, FuturesBackend, LocalTraining, Result, Score, Scoring
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.rng import Key
from edgesim.core.task import Task
from edgesim.execution.backends.null import NullBackend
from edgesim.execution.graph import Graph
from edgesim.execution.identity import Digests


class Adding:
    """A backend whose result is the sum of what an assignment came from, and that remembers its calls."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    def train(self, assignments: Any) -> list[Result]:
        self.calls.append([each.job for each in assignments])
        return [Result({"sum": each.global_model + each.job}, None, {}, 1) for each in assignments]  # type: ignore[dict-item,operator]


def job(number: int) -> Any:
    """Return what makes an assignment from the results before it."""

    def assignment(*before: Any) -> Assignment:
        total = sum(each.body["sum"] if isinstance(each, Result) else each for each in before)
        return Assignment(number, 0, Task(), Key(0), total, None)

    return assignment


def test_nothing_is_computed_before_it_is_asked_for_and_then_once() -> None:
    backend = Adding()
    graph = Graph(lambda: backend)  # type: ignore[arg-type,return-value]
    first = graph.given(100)
    one, two = graph.trained(None, job(1), first), graph.trained(None, job(2), first)
    both = graph.computed(None, lambda a, b: a.body["sum"] + b.body["sum"], one, two)
    after = graph.trained(None, job(5), both)
    unused = graph.trained(None, job(9), one)
    assert backend.calls == [] and not both.is_made
    assert graph.value(after).body["sum"] == 101 + 102 + 5
    assert backend.calls == [[1, 2], [5]] and graph.jobs == 3
    assert graph.value(both) == 203 and not unused.is_made
    assert backend.calls == [[1, 2], [5]]


def test_what_was_saved_is_read_and_what_it_builds_on_is_not_computed() -> None:
    backend = Adding()
    graph = Graph(lambda: backend)  # type: ignore[arg-type,return-value]
    one = graph.trained(None, job(1), graph.given(0))
    two = graph.computed(None, lambda result: result.body["sum"], one)
    two.found(lambda: 7)
    assert graph.value(graph.computed(None, lambda value: value + 1, two)) == 8
    assert backend.calls == [] and not one.is_made


def test_chains_may_be_long() -> None:
    graph = Graph(lambda: None)  # type: ignore[arg-type,return-value]
    node = graph.given(0)
    for _ in range(20_000):
        node = graph.computed(None, lambda value: value + 1, node)
    assert graph.value(node) == 20_000


def test_an_error_leaves_the_rest_as_it_was() -> None:
    graph = Graph(lambda: None)  # type: ignore[arg-type,return-value]
    one = graph.computed(None, lambda: 1)
    bad = graph.computed(None, lambda value: value / 0, one)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            graph.value(bad)
    assert one.is_made and not bad.is_made


class Patient(NullBackend, FuturesBackend):
    """A backend with futures that is done with the piece of work wanted last first, one at a time."""

    rounds_ahead = 8

    def __init__(self) -> None:
        self.held: list[tuple[int, Any]] = []
        self.submitted: list[Any] = []

    def submit(self, number: int, work: Any) -> None:
        self.held.append((number, work))
        self.submitted.append(work)

    def collect(self, wait: bool) -> list[tuple[int, Any]]:
        if not self.held or not wait:
            return []
        number, work = self.held.pop()
        if isinstance(work, Scoring):
            return [(number, {"test": Score(0.0, float(work.model), 1)})]  # type: ignore[arg-type]
        if work.assignment.job == 13:
            return [(number, ValueError("job 13"))]
        return [(number, Adding().train([work.assignment])[0])]


def test_work_is_handed_over_as_soon_as_it_can_be_done() -> None:
    """And what a node needs is done in whatever order the backend is done with its parts."""
    backend = Patient()
    graph = Graph(lambda: backend)  # type: ignore[arg-type,return-value]
    first = graph.given(100)
    jobs = [graph.trained(None, job(number), first, turn=number) for number in (1, 2)]
    both = graph.computed(None, lambda a, b: a.body["sum"] + b.body["sum"], *jobs)
    scored = graph.worked(None, Scoring, both)
    later = graph.trained(None, job(5), both)
    unwanted = graph.trained(None, job(9), both)
    graph.want([scored, later])
    graph.go_on()
    assert [work.assignment.job for work in backend.submitted] == [1, 2] and not both.is_made
    assert graph.value(later).body["sum"] == 101 + 102 + 5
    assert graph.value(scored)["test"].accuracy == 203.0
    assert [work.turn for work in backend.submitted if isinstance(work, LocalTraining)] == [1, 2, 0]
    assert graph.jobs == 3 and not unwanted.is_made


def test_an_error_is_raised_where_its_value_is_asked_for() -> None:
    """Not where it happened to come up: other values, and those of nodes that do not build on it, are as ever."""
    backend = Patient()
    graph = Graph(lambda: backend)  # type: ignore[arg-type,return-value]
    first = graph.given(100)
    good, bad = graph.trained(None, job(1), first), graph.trained(None, job(13), first)
    above = graph.computed(None, lambda result: result, bad)
    graph.want([good, above])
    assert graph.value(good).body["sum"] == 101
    assert bad.is_settled and above.is_settled and not bad.is_made
    late = graph.computed(None, lambda result: result, above)
    for node in (above, bad, late):
        with pytest.raises(ValueError, match="job 13"):
            graph.value(node)


# --- identities -----------------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    one: Any
    two: Any = 0


@dataclass(frozen=True)
class Other:
    one: Any
    two: Any = 0


DIFFERENT = [
    None, True, 1, 1.0, -1, "1", b"1", "", (), [], {}, set(), (1,), [1], {1}, {1: 2}, {2: 1}, ((1,), 2), (1, (2,)),
    0.0, -0.0, float("nan"), float("inf"), Pair(1), Pair(1, 1), Other(1), "é", "ab", ("a", "b"),
    np.arange(3), np.arange(3, dtype=np.int32), np.arange(3.0), np.zeros((3, 1)), np.zeros((1, 3)), np.int64(1),
    np.float32(1), torch.arange(3), torch.arange(3.0), {"a": 1, "b": 2}, {"b": 2, "a": 1},
    Task(), Task("probe"), Task(local_sgd=(LocalSGD(batch=1, lr=0.1, epochs=1),)),
]  # fmt: skip


def test_what_differs_has_another_identity_and_what_is_equal_the_same() -> None:
    digests = [Digests().of(value) for value in DIFFERENT]
    assert len(set(digests)) == len(DIFFERENT)
    known = Digests()
    assert [known.of(value) for value in DIFFERENT] == digests == [known.of(value) for value in DIFFERENT]
    assert {len(each) for each in digests} == {16}
    assert known.of(1, 2) != known.of((1, 2)) != known.of(12)


@pytest.mark.parametrize("value", [object(), print, Path("x"), np.array([object()]), 1j])
def test_what_has_no_identity(value: Any) -> None:
    with pytest.raises(TypeError, match="has no identity"):
        Digests().of([value])


def test_identities_are_the_same_in_every_process() -> None:
    """Whatever the seed of Python's own hashes is, by which sets are in another order."""
    code = (
        "from edgesim.core.task import Task; from edgesim.execution.identity import Digests; "
        "print(Digests().of({'a', 'b', 'c', 'd'}, Task(), 0.1, {'x': frozenset('xyz')}).hex())"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }  # fmt: skip
    assert len(said) == 1
