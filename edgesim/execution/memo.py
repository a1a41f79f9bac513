"""The interface by which a run looks up cached values; the class here caches nothing, see `result_cache`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edgesim.core.method import Method
from edgesim.execution.graph import Graph, Node

FOLDER = ".answers"  # folder of cached answers, beside the run folders


class Memo:
    """A memo without a cache: nodes have no identity, and every answer is computed."""

    keeps = False  # True: answers are looked up and stored
    repeats = False  # True while a run continued from a checkpoint has got all its answers from there
    not_kept = ""  # the reason why nothing is looked up or stored although the user asked for it
    host_s = 0.0  # host time of the earlier runs from which this run continues

    def __init__(self) -> None:
        self.known = 0  # number of answers that were looked up
        self.found = 0  # number of answers that were computed
        self.found_from: int | None = None  # the first round with a computed answer

    def name(self, *parts: Any) -> bytes | None:
        """Return the identity of a value made from these parts; None without a cache."""
        return None

    def name_of_plan(self, *parts: Any) -> bytes | None:
        """Return the identity of a plan, which may depend on the whole world, selection included."""
        return None

    def look_up(self, id_: bytes | None) -> Any:
        """Return the answer of an identity, None if it is not cached."""
        return None

    def keep(self, id_: bytes | None, answer: Any, round_: int) -> None:
        """Store a computed answer; `round_`: the round that asked for it."""

    def small(self, node: Node, graph: Graph) -> Any:
        """Return the value of a node that may be small enough for the cache, such as a method's state."""
        return graph.value(node)

    def reuse(self, id_: bytes | None, nodes: Callable[[], Sequence[Node]], method: Method) -> None:
        """Let nodes read values that were saved after the aggregation `id_`; `nodes`: returns the nodes."""

    def is_due(self) -> bool:
        """Return True if it is time to save the run."""
        return False

    def save(self, id_: bytes | None, nodes: Sequence[Node], graph: Graph, method: Method) -> None:
        """Save all values on which later nodes may build, and all answers; `id_`: the newest aggregation."""

    def has_weights(self, node: Node) -> bool:
        """Return True if `weights` computes nothing for a model."""
        return node.is_at_hand

    def weights(self, node: Node, graph: Graph, flat: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """Return the arrays of a model by name, as `flat` makes them."""
        return flat(graph.value(node))


class NewRounds:
    """An observer that passes on only new rounds, with the number `before` of rounds repeated from a checkpoint."""

    def __init__(self, observer: Any, memo: Memo) -> None:
        self._observer = observer
        self._memo = memo
        self._before = 0

    def round_closed(self, info: Mapping[str, Any]) -> None:
        """Count a repeated round, or tell the observer of a new one."""
        if self._memo.repeats:
            self._before = info["round"]
        else:
            self._observer.round_closed({**info, "before": self._before})
