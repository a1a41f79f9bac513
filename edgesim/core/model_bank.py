"""Several models in one run: a bank holds numbered models beside the global model, such as one for each cluster."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edgesim.core.model_state import MODEL, Mapped, ModelState, flattened, named
from edgesim.core.task import Payload
from edgesim.core.view import Setting

_STATISTICS = Payload(collections=frozenset({"buffers"}))


@dataclass(frozen=True, slots=True)
class ModelBank:
    """Numbered models of the network of a run. Model 3 of the bank "cluster" is the collection "cluster_3"."""

    name: str

    def put(self, number: int, model: ModelState) -> Mapped:
        """Return the collection that holds a model, to be added to the global model."""
        return {self._collection(number): flattened(model, self._prefix(number))}

    def get(self, global_model: ModelState, number: int) -> ModelState | None:
        """Return a model from the global model that was received or is kept; None: it does not hold this model."""
        held = global_model.get(self._collection(number))
        if held is None:
            return None
        prefix = self._prefix(number)
        return {kind: named(lambda name, _: held[prefix + name], global_model[kind]) for kind in MODEL}

    def payload(self, numbers: Iterable[int], setting: Setting, whole: bool = True) -> Payload:
        """Return the downlink payload of some models of the bank, with or without the global model itself.

        A method's own collection is priced as parameters, so the running statistics of each model are added.
        """
        collections = frozenset(map(self._collection, numbers))
        statistics = setting.cost_profile.nbytes(_STATISTICS, usual=setting.encoding_down)
        return Payload(
            collections=collections | frozenset(MODEL if whole else ()), extra_bytes=len(collections) * statistics
        )

    def numbers(self, payload: Payload) -> list[int]:
        """Return the numbers of the models that a payload carries, ascending."""
        start = f"{self.name}_"
        return sorted(int(each.removeprefix(start)) for each in payload.collections if each.startswith(start))

    def _collection(self, number: int) -> str:
        return f"{self.name}_{number}"

    def _prefix(self, number: int) -> str:
        return f"{self._collection(number)}."  # names are unique in the global model
