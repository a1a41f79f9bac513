"""The graph of a run: what is to be computed from what, and nothing of it before somebody wants it.

Protocols run ahead and add nodes; a value that is wanted is computed with all that it builds on. A backend that works
on while the protocol does gets work as soon as all that it builds on is there; any other gets all that is ready in one
call, once a value is asked for.
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
    PersonalScoring,
    Result,
    Scoring,
    Training,
    Work,
    works_ahead,
)

_UNMADE = object()
_Hashable = TypeVar("_Hashable", bound=Hashable)


class Node:
    """A value that is there, or can be computed: from other nodes, by a backend, or by reading it somewhere.

    `id`: its identity, see edgesim.execution.identity; None where nothing is ever looked up.
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
        self._missing = -1  # inputs without a value; -1: nobody wants the node
        self._users: list[Node] = []  # wanted nodes that wait for it
        self._error: Exception | None = None  # why there is no value

    @property
    def is_made(self) -> bool:
        """Whether its value is there."""
        return self._value is not _UNMADE

    @property
    def is_settled(self) -> bool:
        """Whether its value is there, or it is known that there will be none."""
        return self.is_made or self._error is not None

    @property
    def is_at_hand(self) -> bool:
        """Whether its value is there or can be read where it was saved, so that nothing has to be computed for it."""
        return self.is_made or (self._make is not None and not self._inputs and self._error is None)

    def found(self, read: Callable[[], Any]) -> None:
        """Let its value be read where it was saved, unless it is wanted already. It needs no inputs then."""
        if self._missing < 0:
            self._inputs, self._make, self._work = (), read, None


class Graph:
    """Nodes, computed on a backend when they are wanted. What a node was made from is forgotten at once.

    An error in computing a node is raised when its value, or that of one that builds on it, is asked for: so a run
    fails at the same place however fast its backend is.
    """

    def __init__(self, backend: Callable[[], Backend]) -> None:
        """`backend`: asked for each time, as who runs a simulation may change it."""
        self._backend = backend
        self._numbers = count()
        self._to_make: list[tuple[int, Node]] = []  # heaps of what is wanted, and all that it builds on is there
        self._to_work: list[tuple[int, Node]] = []  # and that is the backend's to do
        self._at_work: dict[int, Node] = {}  # of a backend with futures, by number
        self.jobs = 0  # that were trained

    def given(self, value: Any, id_: bytes | None = None) -> Node:
        """Return a node whose value is known."""
        return Node(id_, next(self._numbers), value=value)

    def computed(self, id_: bytes | None, make: Callable[..., Any], *inputs: Node) -> Node:
        """Return a node of what `make` returns for the values of its inputs."""
        return Node(id_, next(self._numbers), inputs, make)

    def worked(self, id_: bytes | None, work: Callable[..., Work], *inputs: Node) -> Node:
        """Return a node of what the backend gives for a piece of work, which is made from the values of its inputs."""
        return Node(id_, next(self._numbers), inputs, work=work)

    def trained(self, id_: bytes | None, assignment: Callable[..., Assignment], *inputs: Node, turn: int = 0) -> Node:
        """Return a node of the result of an assignment; `turn`: those of a lower one are needed earlier."""
        return self.worked(id_, lambda *values: Training(assignment(*values), turn), *inputs)

    def value(self, node: Node) -> Any:
        """Return the value of a node, computed if it is not there yet. Raises what computing it raised.

        One that is at hand is there whatever has become of the backend.
        """
        if node.is_at_hand and node._missing < 0 and not node.is_made:
            self._compute(node)
        self.want([node])
        while not node.is_settled:
            if not self._step(wait=True):
                raise RuntimeError("a node waits for something that nobody computes")
        if node._error is not None:
            raise node._error
        return node._value

    def make(self, nodes: Iterable[Node]) -> None:
        """Compute the values of nodes with all that they build on. Raises what that raised."""
        nodes = list(nodes)
        self.want(nodes)
        for node in nodes:
            self.value(node)

    def want(self, nodes: Iterable[Node]) -> None:
        """Let nodes be computed, with all that they build on, when there is time; see `go_on`."""
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
        """Take what a backend with futures has done meanwhile, and hand it what is ready; others do nothing here."""
        if works_ahead(self._backend()):
            while self._step(wait=False):
                pass

    def _step(self, wait: bool) -> bool:
        """Compute what is ready; return whether there was anything. `wait`: for the backend to be done with a part."""
        backend, busy = self._backend(), bool(self._to_make or self._to_work)
        while self._to_make:
            number, node = heappop(self._to_make)
            try:
                self._compute(node)
            except BaseException:  # who interrupts it may still ask for the value
                heappush(self._to_make, (number, node))
                raise
        if works_ahead(backend):
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
        """Give a backend what is ready and take what it has done; return whether it has done anything."""
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
        """Let a backend without futures do what is ready, all jobs in one call."""
        nodes = [node for _, node in sorted(self._to_work)]
        works = [node._work(*_values(node)) for node in nodes if node._work is not None]
        jobs = [(node, work.assignment) for node, work in zip(nodes, works, strict=True) if isinstance(work, Training)]
        try:
            results = backend.train([assignment for _, assignment in jobs]) if jobs else []
        except Exception as error:
            for node, _ in jobs:
                self._fail(node, error)
        else:
            for (node, _), result in zip(jobs, results, strict=True):
                self._finish(node, result)
        for node, work in zip(nodes, works, strict=True):
            if isinstance(work, Training):
                continue
            try:
                self._finish(node, _scored(backend, work))
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
        """Note that a node has no value, and so none of those that wait for it."""
        failed = [node]
        while failed:
            each = failed.pop()
            if each._error is None:
                each._error = error
                failed += each._users
                each._inputs, each._users = (), []


def _values(node: Node) -> list[Any]:
    return [each._value for each in node._inputs]


def _scored(backend: Backend, work: Scoring | PersonalScoring) -> Any:
    return backend.evaluate(work.model) if isinstance(work, Scoring) else backend.evaluate_personal(work.models)


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
