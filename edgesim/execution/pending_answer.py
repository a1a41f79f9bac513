"""Answers that may still be computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from edgesim.execution.graph import Graph, Node
from edgesim.execution.memo import Memo

_T = TypeVar("_T")


class Asked(Generic[_T]):
    """An answer that is known, or that `node` gives once it is made; `then` is told of it when it is asked for."""

    def __init__(self, graph: Graph, memo: Memo, id_: bytes | None, round_: int, known: Any, node: Node) -> None:
        """`id_`: that of the answer, which was asked for in this round."""
        self._graph = graph
        self._memo = memo
        self._id = id_
        self._round = round_
        self._known = known
        self._node = node
        self._then: list[Callable[[_T], None]] = []

    @property
    def is_ready(self) -> bool:
        """Whether nobody has to wait for it."""
        return self._known is not None or self._node.is_settled

    @property
    def is_got(self) -> bool:
        """Whether it is known here, so that it has been kept."""
        return self._known is not None

    def then(self, tell: Callable[[_T], None]) -> None:
        """Let somebody know of the answer, the first time that it is asked for."""
        self._then.append(tell)

    def get(self) -> _T:
        """Return it. Raises what computing it raised."""
        if self._known is None:
            self._known = self._graph.value(self._node)
            self._memo.keep(self._id, self._known, self._round)
        told, self._then = self._then, []
        for tell in told:
            tell(self._known)
        known: _T = self._known
        return known
