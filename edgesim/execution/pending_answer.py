"""Answers that may not be computed yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from edgesim.execution.graph import Graph, Node
from edgesim.execution.memo import Memo

_T = TypeVar("_T")


class PendingAnswer(Generic[_T]):
    """An answer that is known, or the value of `node` once computed; functions given to `then` get it on request."""

    def __init__(self, graph: Graph, memo: Memo, id_: bytes | None, round_: int, known: Any, node: Node) -> None:
        """`id_`: identity of the answer; `round_`: the round that asked for it."""
        self._graph = graph
        self._memo = memo
        self._id = id_
        self._round = round_
        self._known = known
        self._node = node
        self._then: list[Callable[[_T], None]] = []

    @property
    def is_ready(self) -> bool:
        """True if `get` will not wait."""
        return self._known is not None or self._node.is_settled

    @property
    def is_got(self) -> bool:
        """True if the answer is known here, and so has been stored in the cache."""
        return self._known is not None

    def then(self, tell: Callable[[_T], None]) -> None:
        """Call `tell` with the answer at the first `get`."""
        self._then.append(tell)

    def get(self) -> _T:
        """Return the answer. Raises the error of computing it."""
        if self._known is None:
            self._known = self._graph.value(self._node)
            self._memo.keep(self._id, self._known, self._round)
        told, self._then = self._then, []
        for tell in told:
            tell(self._known)
        known: _T = self._known
        return known
