"""What earlier runs found out, by identity: a run that asks the same again is answered, and computes nothing twice."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from edgesim.core.method import Method
from edgesim.runtime.answers import Answers
from edgesim.runtime.checkpoint import Checkpoint, Saved
from edgesim.runtime.graph import Graph, Node
from edgesim.runtime.identity import Digests
from edgesim.runtime.memo import Memo

SNAPSHOT_S = 60.0
_MOST_SNAPSHOTS = 8


class SavedMemo(Memo):
    """Answers of runs so far, those of this one, and the values that it was saved with.

    `facts`: the hash of all that learning depends on beside the graph, see edgesim.simulation.facts; it is part of
    every identity. `world`: that of the whole scenario. `answers`: kept for all runs of a folder, with snapshots of
    values, as often as the checkpoint or once a minute. `checkpoint`: where this run is saved, or goes on from.
    """

    keeps = True

    def __init__(
        self,
        facts: bytes,
        world: bytes,
        method: Method,
        answers: Answers | None,
        checkpoint: Checkpoint | None,
    ) -> None:
        """Raise ConfigError or DataError if there is a checkpoint that does not fit, or that cannot be read."""
        super().__init__()
        saved = checkpoint.load(method) if checkpoint else None
        self._facts = facts
        self._world = world
        self._digests = Digests()
        self._answers = answers and answers.of(facts)
        self._checkpoint = checkpoint
        self._told: dict[bytes, Any] = {}  # all answers of this run, for its checkpoint
        self._saved: Mapping[bytes, Any] = saved.answers if saved else {}
        self._values: Mapping[bytes, Any] = saved.values if saved else {}
        self.repeats = saved is not None
        self.host_s = saved.host_s if saved else 0.0
        self._started_s = self._looked_s = self._kept_s = time.perf_counter()
        self._snapshot_s = checkpoint.every_s if checkpoint else SNAPSHOT_S
        self._snapshots: list[bytes] = []  # of this run

    def name(self, *parts: Any) -> bytes:
        """Return the identity of what is made of these parts and of the facts."""
        try:
            return self._digests.of(self._facts, *parts)
        except TypeError:  # such as an object of a method's own in its state: equal to no other, in no run
            return os.urandom(16)

    def name_of_plan(self, *parts: Any) -> bytes:
        """Return the identity of a plan, which may depend on all that there is in the world, selection included."""
        return self.name("plan", self._world, *parts)

    def look_up(self, id_: bytes | None) -> Any:
        """Return the answer of an identity, None if nobody knows it."""
        assert id_ is not None
        known = self._saved.get(id_)
        if known is None and self._answers is not None:
            known = self._answers.get(id_)
        self.known += known is not None
        if known is not None and self._checkpoint is not None:
            self._told[id_] = known
        return known

    def keep(self, id_: bytes | None, answer: Any, round_: int) -> None:
        """Take an answer that was computed, to a question of a round."""
        assert id_ is not None
        self.found_from = round_ if self.found_from is None else min(round_, self.found_from)
        self.found += 1
        self.repeats = False
        if self._answers is not None:
            self._answers.put(id_, answer)
        if self._checkpoint is not None:
            self._told[id_] = answer

    def small(self, node: Node, graph: Graph) -> Any:
        """Return the value of a node; one that is small is kept with the answers, and looked up there."""
        if self._answers is None or node.id is None:
            return graph.value(node)
        known = None if node.is_made else self._answers.get(node.id)
        if known is None:
            known = graph.value(node)
            self._answers.put(node.id, known)
        return known

    def reuse(self, id_: bytes | None, nodes: Callable[[], Sequence[Node]], method: Method) -> None:
        """Let nodes be read from a snapshot or the checkpoint that has their values; `nodes`: gives them.

        `id_`: the aggregation that was the newest when the snapshot was kept.
        """
        assert id_ is not None
        snapshot = None if self._answers is None else self._answers.snapshot(id_, method)
        values = self._values if snapshot is None else snapshot
        if values:
            for node in nodes():
                if not node.is_made and node.id is not None and node.id in values:
                    node.found(partial(values.__getitem__, node.id))

    def is_due(self) -> bool:
        """Return whether it is time to save the run: for its checkpoint, or as a snapshot with the answers."""
        return self.found > 0 and (self._is_checkpoint_due() or self._is_snapshot_due())

    def save(self, id_: bytes | None, nodes: Sequence[Node], graph: Graph, method: Method) -> None:
        """Save all that later nodes may build on, in the checkpoint, as a snapshot or both, as it is time to."""
        assert id_ is not None
        if self._checkpoint is not None and self._is_checkpoint_due():
            host_s = self.host_s + time.perf_counter() - self._started_s
            self._checkpoint.save(Saved(dict(self._told), _values(nodes, graph), host_s), method)
            self._looked_s = time.perf_counter()
        if self._is_snapshot_due():
            self._keep_snapshot(id_, _values(nodes, graph), method)

    def has_weights(self, node: Node) -> bool:
        """Return whether `weights` computes nothing for a model: it is at hand, or earlier runs have kept it."""
        return node.is_at_hand or (self._answers is not None and self._answers.has_weights(node.id))

    def weights(self, node: Node, graph: Graph, flat: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """Return the arrays of a model by name, as `flat` makes them; read where earlier runs have kept them."""
        known = None if self._answers is None or node.is_made else self._answers.weights(node.id)
        if known is not None:
            return known
        arrays = flat(graph.value(node))
        if self._answers is not None:
            self._answers.put_weights(node.id, arrays)
        return arrays

    def _is_checkpoint_due(self) -> bool:
        return self._checkpoint is not None and time.perf_counter() - self._looked_s >= self._checkpoint.every_s

    def _is_snapshot_due(self) -> bool:
        return self._answers is not None and time.perf_counter() - self._kept_s >= self._snapshot_s

    def _keep_snapshot(self, id_: bytes, values: Mapping[bytes, Any], method: Method) -> None:
        """Keep a snapshot; of many every second one is given up, and from then on they are half as frequent."""
        assert self._answers is not None
        self._answers.put_snapshot(id_, values, method)
        self._snapshots.append(id_)
        if len(self._snapshots) > _MOST_SNAPSHOTS:
            for old in self._snapshots[-2::-2]:
                self._answers.remove_snapshot(old)
            self._snapshots = self._snapshots[-1::-2][::-1]
            self._snapshot_s *= 2
        self._kept_s = time.perf_counter()


def _values(nodes: Sequence[Node], graph: Graph) -> dict[bytes, Any]:
    """Return the values of nodes by identity."""
    graph.make(nodes)
    return {node.id: graph.value(node) for node in nodes if node.id is not None}
