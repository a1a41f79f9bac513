"""The graph of a run: what is to be computed from what, and nothing of it before somebody asks.

Protocols run ahead and add nodes; a value that is asked for is computed with all that it builds on. Jobs that do not
build on each other are trained in one call of the backend.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import count
from typing import Any, TypeVar

from edgesim.core.backend import Assignment, Backend, Result

_UNMADE = object()
_Hashable = TypeVar("_Hashable", bound=Hashable)


class Node:
    """A value that is there, or can be computed: from other nodes, by training a job, or by reading it somewhere.

    `id`: its identity, see edgesim.runtime.identity; None where nothing is ever looked up.
    """

    __slots__ = ("_assignment", "_inputs", "_make", "_number", "_value", "id")

    def __init__(
        self,
        id_: bytes | None,
        number: int,
        inputs: Sequence[Node] = (),
        make: Callable[..., Any] | None = None,
        assignment: Callable[..., Assignment] | None = None,
        value: Any = _UNMADE,
    ) -> None:
        self.id = id_
        self._number = number
        self._inputs = tuple(inputs)
        self._make = make
        self._assignment = assignment
        self._value = value

    @property
    def is_made(self) -> bool:
        """Whether its value is there."""
        return self._value is not _UNMADE

    def found(self, read: Callable[[], Any]) -> None:
        """Let its value, which is not there yet, be read where it was saved; what it builds on is not needed then."""
        self._inputs, self._make, self._assignment = (), read, None


class Graph:
    """Nodes, computed on a backend when they are asked for. What a node was made from is forgotten at once."""

    def __init__(self, backend: Callable[[], Backend]) -> None:
        """`backend`: asked for each time, as who runs a simulation may change it."""
        self._backend = backend
        self._numbers = count()
        self.jobs = 0  # that were trained

    def given(self, value: Any, id_: bytes | None = None) -> Node:
        """Return a node whose value is known."""
        return Node(id_, next(self._numbers), value=value)

    def computed(self, id_: bytes | None, make: Callable[..., Any], *inputs: Node) -> Node:
        """Return a node of what `make` returns for the values of its inputs."""
        return Node(id_, next(self._numbers), inputs, make)

    def trained(self, id_: bytes | None, assignment: Callable[..., Assignment], *inputs: Node) -> Node:
        """Return a node of the result of an assignment, which is made from the values of its inputs."""
        return Node(id_, next(self._numbers), inputs, assignment=assignment)

    def value(self, node: Node) -> Any:
        """Return the value of a node, computed if it is not there yet."""
        self.make([node])
        return node._value

    def make(self, nodes: Iterable[Node]) -> None:
        """Compute the values of nodes with all that they build on, level by level, each in the order of creation."""
        unmade = [node for node in nodes if not node.is_made]
        for level in levels(unmade, lambda node: [each for each in node._inputs if not each.is_made]):
            self._make_level(sorted(level, key=lambda node: node._number))

    def _make_level(self, level: Sequence[Node]) -> None:
        jobs = [node for node in level if node._assignment is not None]
        if jobs:
            assignments = [node._assignment(*_values(node)) for node in jobs if node._assignment is not None]
            results: Sequence[Result] = self._backend().train(assignments)
            self.jobs += len(jobs)
            for node, result in zip(jobs, results, strict=True):
                self._finish(node, result)
        for node in level:
            if node._make is not None:
                self._finish(node, node._make(*_values(node)))

    def _finish(self, node: Node, value: Any) -> None:
        node._value = value
        node._inputs, node._make, node._assignment = (), None, None


def _values(node: Node) -> list[Any]:
    return [each._value for each in node._inputs]


def levels(wanted: Iterable[_Hashable], below: Callable[[_Hashable], Sequence[_Hashable]]) -> list[list[_Hashable]]:
    """Return what is wanted and all that lies below it, level by level: each above all that it builds on.

    `below`: what something builds on directly. A loop, as chains are long.
    """
    depths: dict[_Hashable, int] = {}
    stack = list(wanted)
    while stack:
        top = stack[-1]
        under = [] if top in depths else below(top)
        missing = [each for each in under if each not in depths]
        if top in depths:
            stack.pop()
        elif missing:
            stack += missing
        else:
            depths[top] = 1 + max((depths[each] for each in under), default=-1)
            stack.pop()
    found: dict[int, list[_Hashable]] = {}
    for each, depth in depths.items():
        found.setdefault(depth, []).append(each)
    return [found[depth] for depth in sorted(found)]
