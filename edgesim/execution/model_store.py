"""Models by name. A model is kept while it is the newest or a job in flight starts from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from edgesim.core.update import ModelRef
from edgesim.execution.graph import Node


class ModelStore:
    """Nodes of models, reference-counted."""

    def __init__(self) -> None:
        self.models: dict[ModelRef, Node] = {}  # pinned models
        self._pins: Counter[ModelRef] = Counter()

    def put(self, ref: ModelRef, model: Node) -> None:
        """Keep a model under its name, pinned once."""
        self.models[ref] = model
        self.pin(ref)

    def get(self, ref: ModelRef) -> Node:
        """Return a model. Raises KeyError if it is not pinned."""
        return self.models[ref]

    def pin(self, ref: ModelRef) -> None:
        """Keep a model for one more user."""
        self._pins[ref] += 1

    def release(self, ref: ModelRef) -> None:
        """Undo one pin; the last one frees the model."""
        self._pins[ref] -= 1
        if not self._pins[ref]:
            del self._pins[ref]
            del self.models[ref]

    def __iter__(self) -> Iterator[Node]:
        return iter(self.models.values())

    def __len__(self) -> int:
        return len(self.models)
