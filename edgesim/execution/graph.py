"""The graph of a run: values that are computed from other values, but only once they are wanted.

Protocols run ahead and add nodes. A wanted value is computed with all its inputs. A backend that works in parallel
with the protocol gets work as soon as its inputs are there. Any other backend gets all ready work in one call, once a
value is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any, TypeVar

from edgesim.core.backend import (
    Assignment,
    Backend,
    FuturesBackend,
    LocalTraining,
    Result,
    Scoring,
    Work,
)

_UNMADE = object()
_Hashable = TypeVar("_Hashable", bound=Hashable)


class Node:
    """A value that is known, or can be computed from other nodes, by a backend, or read from a file.

    `id`: its identity, see edgesim.execution.identity; None without a cache.
    """

    __slots__ = ("_error", "_inputs", "_make", "_missing", "_number", "_users", "_value", "_work", "id")

    def __init__(
        self,
        id_: bytes | None,
        number: int,
        inputs: Sequence[Node] = (),
        make: Callable[..., Any] | None = None,
        work: Callable[..., Work] | None = None,
        value: Any = _UNMADE,
    ) -> None:
        self.id = id_
        self._number = number
        self._inputs = tuple(inputs)
        self._make = make
        self._work = work
        self._value = value
        self._missing = -1  # inputs without a value; -1: the node is not wanted
        self._users: list[Node] = []  # wanted nodes that wait for it
        self._error: Exception | None = None  # the reason why there is no value

    @property
    def is_made(self) -> bool:
        """True if the value is known."""
        return self._value is not _UNMADE

    @property
    def is_settled(self) -> bool:
        """True if the value is known, or computing it has failed."""
        return self.is_made or self._error is not None

    @property
    def is_at_hand(self) -> bool:
        """True if the value is known or can be read from a file, so that nothing needs computing."""
        return self.is_made or (self._make is not None and not self._inputs and self._error is None)

    def found(self, read: Callable[[], Any]) -> None:
        """Read the value with `read` instead of computing it from inputs, unless the node is wanted already."""
        if self._missing < 0:
            self._inputs, self._make, self._work = (), read, None


class Graph:
    """Nodes, computed on a backend when they are wanted. A node drops its inputs once it has a value.

    An error in computing a node is raised when its value, or the value of a node built on it, is asked for. So a run
    fails at the same place however fast its backend is.
    """

    def __init__(self, backend: Callable[[], Backend]) -> None:
        """`backend`: called at each use, as the caller of a simulation may replace the backend."""
        self._backend = backend
        self._numbers = count()
        self._to_make: list[tuple[int, Node]] = []  # heap of wanted nodes whose inputs are known
        self._to_work: list[tuple[int, Node]] = []  # the same for nodes of the backend
        self._at_work: dict[int, Node] = {}  # nodes that a backend with futures computes, by number
        self.jobs = 0  # number of trained jobs

    def given(self, value: Any, id_: bytes | None = None) -> Node:
        """Return a node with a known value."""
        return Node(id_, next(self._numbers), value=value)

    def computed(self, id_: bytes | None, make: Callable[..., Any], *inputs: Node) -> Node:
        """Return a node whose value is `make` of the values of its inputs."""
        return Node(id_, next(self._numbers), inputs, make)

    def worked(self, id_: bytes | None, work: Callable[..., Work], *inputs: Node) -> Node:
        """Return a node whose value the backend computes; `work` makes the piece of work from the inputs' values."""
        return Node(id_, next(self._numbers), inputs, work=work)

    def trained(self, id_: bytes | None, assignment: Callable[..., Assignment], *inputs: Node, turn: int = 0) -> Node:
        """Return a node of the result of an assignment; results with a lower `turn` are needed earlier."""
        return self.worked(id_, lambda *values: LocalTraining(assignment(*values), turn), *inputs)

    def value(self, node: Node) -> Any:
        """Return the value of a node, computed if necessary. Raises the error of computing it.

        A value at hand is returned even if the backend has failed.
        """
        if node.is_at_hand and node._missing < 0 and not node.is_made:
            self._compute(node)
        self.want([node])
        while not node.is_settled:
            if not self._step(wait=True):
                raise RuntimeError("a node waits for a value that nothing computes")
        if node._error is not None:
            raise node._error
        return node._value

    def make(self, nodes: Iterable[Node]) -> None:
        """Compute the values of nodes with all their inputs. Raises the error of computing them."""
        nodes = list(nodes)
        self.want(nodes)
        for node in nodes:
            self.value(node)

    def want(self, nodes: Iterable[Node]) -> None:
        """Mark nodes and all their inputs as wanted; `go_on` and `value` compute them."""
        new = [node for node in nodes if not node.is_settled and node._missing < 0]
        while new:
            node = new.pop()
            if node._missing >= 0:
                continue
            waits = [each for each in node._inputs if not each.is_made]
            node._missing = len(waits)
            for each in waits:
                each._users.append(node)
                if each._error is not None:
                    self._fail(node, each._error)
                elif each._missing < 0:
                    new.append(each)
            if not waits:
                self._is_ready(node)

    def go_on(self) -> None:
        """Take finished values from a backend with futures and give it ready work; other backends do nothing here."""
        if isinstance(self._backend(), FuturesBackend):
            while self._step(wait=False):
                pass

    def _step(self, wait: bool) -> bool:
        """Compute ready nodes; return True if there were any. `wait`: wait until the backend has finished work."""
        backend, busy = self._backend(), bool(self._to_make or self._to_work)
        while self._to_make:
            number, node = heappop(self._to_make)
            try:
                self._compute(node)
            except BaseException:  # after an interrupt the value may still be asked for
                heappush(self._to_make, (number, node))
                raise
        if isinstance(backend, FuturesBackend):
            return self._hand_over(backend, wait) or busy
        self._work_off(backend)
        return busy

    def _compute(self, node: Node) -> None:
        assert node._make is not None
        try:
            self._finish(node, node._make(*_values(node)))
        except Exception as error:
            self._fail(node, error)

    def _hand_over(self, backend: FuturesBackend, wait: bool) -> bool:
        """Give a backend ready work and take finished values; return True if there were any."""
        while self._to_work:
            number, node = heappop(self._to_work)
            assert node._work is not None
            self._at_work[number] = node
            backend.submit(number, node._work(*_values(node)))
        done = backend.collect(wait and bool(self._at_work))
        for number, value in done:
            node = self._at_work.pop(number)
            if isinstance(value, Exception):
                self._fail(node, value)
            else:
                self._finish(node, value)
        return bool(done)

    def _work_off(self, backend: Backend) -> None:
        """Let a backend without futures do all ready work, with all jobs in one call."""
        nodes = [node for _, node in sorted(self._to_work)]
        works = [node._work(*_values(node)) for node in nodes if node._work is not None]
        jobs = [
            (node, work.assignment) for node, work in zip(nodes, works, strict=True) if isinstance(work, LocalTraining)
        ]
        try:
            results = backend.train([assignment for _, assignment in jobs]) if jobs else []
        except Exception as error:
            for node, _ in jobs:
                self._fail(node, error)
        else:
            for (node, _), result in zip(jobs, results, strict=True):
                self._finish(node, result)
        for node, work in zip(nodes, works, strict=True):
            if isinstance(work, LocalTraining):
                continue
            try:
                if isinstance(work, Scoring):
                    self._finish(node, backend.evaluate(work.model, work.classes))
                else:
                    self._finish(node, backend.evaluate_personal(work.models))
            except Exception as error:
                self._fail(node, error)
        done = set(nodes)
        self._to_work = [each for each in self._to_work if each[1] not in done]

    def _finish(self, node: Node, value: Any) -> None:
        node._value = value
        self.jobs += node._work is not None and isinstance(value, Result)
        node._inputs, node._make, node._work = (), None, None
        users, node._users = node._users, []
        for each in users:
            each._missing -= 1
            if not each._missing and each._error is None:
                self._is_ready(each)

    def _is_ready(self, node: Node) -> None:
        heappush(self._to_work if node._make is None else self._to_make, (node._number, node))

    def _fail(self, node: Node, error: Exception) -> None:
        """Record the error of a node and of all nodes that wait for it."""
        failed = [node]
        while failed:
            each = failed.pop()
            if each._error is None:
                each._error = error
                failed += each._users
                each._inputs, each._users = (), []


def _values(node: Node) -> list[Any]:
    return [each._value for each in node._inputs]


def levels(wanted: Iterable[_Hashable], below: Callable[[_Hashable], Sequence[_Hashable]]) -> list[list[_Hashable]]:
    """Return the wanted elements and all their inputs, level by level: each above all its inputs.

    `below`: returns the direct inputs of an element. The function is a loop, as chains are too long for recursion.
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
