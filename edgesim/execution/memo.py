"""What a run can look up instead of computing it: by itself nothing; see `saved_memo` for what earlier runs kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edgesim.core.method import Method
from edgesim.execution.graph import Graph, Node


class Memo:
    """A memo that knows nothing and keeps nothing: nodes have no identity, and what is asked for is computed."""

    keeps = False  # whether anything is looked up or kept
    repeats = False  # whether the run goes on from a checkpoint, and has been told all that it asked for
    not_kept = ""  # why it does not, where it was asked to
    host_s = 0.0  # seconds of the host that the runs before took, from which this one goes on

    def __init__(self) -> None:
        self.known = 0  # answers that were looked up
        self.found = 0  # and that were computed
        self.found_from: int | None = None  # the first round in which one was

    def name(self, *parts: Any) -> bytes | None:
        """Return the identity of what is made of these parts; None where nothing is ever looked up."""
        return None

    def name_of_plan(self, *parts: Any) -> bytes | None:
        """Return the identity of a plan, which may depend on all that there is in the world, selection included."""
        return None

    def look_up(self, id_: bytes | None) -> Any:
        """Return the answer of an identity, None if nobody knows it."""
        return None

    def keep(self, id_: bytes | None, answer: Any, round_: int) -> None:
        """Take an answer that was computed, to a question of a round."""

    def small(self, node: Node, graph: Graph) -> Any:
        """Return the value of a node that may be small enough to be looked up, such as a method's state."""
        return graph.value(node)

    def reuse(self, id_: bytes | None, nodes: Callable[[], Sequence[Node]], method: Method) -> None:
        """Let nodes be read where they were saved, after an aggregation of this identity; `nodes`: gives them."""

    def is_due(self) -> bool:
        """Return whether it is time to save the run."""
        return False

    def save(self, id_: bytes | None, nodes: Sequence[Node], graph: Graph, method: Method) -> None:
        """Save all that later nodes may build on; `id_`: the newest aggregation. All answers so far are kept."""

    def has_weights(self, node: Node) -> bool:
        """Return whether `weights` computes nothing for a model."""
        return node.is_at_hand

    def weights(self, node: Node, graph: Graph, flat: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """Return the arrays of a model by name, as `flat` makes them."""
        return flat(graph.value(node))


class NewRounds:
    """Tells an observer only of the rounds that are not repeated; `before`: how many were."""

    def __init__(self, observer: Any, memo: Memo) -> None:
        self._observer = observer
        self._memo = memo
        self._before = 0

    def round_closed(self, info: Mapping[str, Any]) -> None:
        """Take note of a round, or tell the observer."""
        if self._memo.repeats:
            self._before = info["round"]
        else:
            self._observer.round_closed({**info, "before": self._before})
