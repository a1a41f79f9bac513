"""Several models in one run: a bank holds numbered models beside the global model, such as one for each cluster."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edgesim.core.model_state import MODEL, Mapped, ModelState, flattened, model_in, named
from edgesim.core.task import Payload
from edgesim.core.view import Setting

_STATISTICS = Payload(collections=frozenset({"buffers"}))


@dataclass(frozen=True, slots=True)
class ModelBank:
    """Numbered models of the network of a run. Model 3 of the bank "cluster" is the collection "cluster_3"."""

    name: str

    def put(self, number: int, model: ModelState) -> Mapped:
        """Return the collection that holds a model, to be added to the global model."""
        return {self.collection(number): flattened(model, f"{self.collection(number)}.")}

    def get(self, global_model: ModelState, number: int) -> ModelState:
        """Return a model of the bank from a global model. Raises KeyError if it is not there."""
        collection = self.collection(number)
        held = global_model[collection]
        return named(lambda name, _: held[f"{collection}.{name}"], model_in(global_model))

    def payload(self, numbers: Iterable[int], setting: Setting, whole: bool = True) -> Payload:
        """Return the downlink payload of some models of the bank, with or without the global model itself.

        A method's own collection is priced as parameters, so the running statistics of each model are added.
        """
        collections = frozenset(map(self.collection, numbers))
        statistics = setting.cost_profile.nbytes(_STATISTICS, usual=setting.encoding_down)
        return Payload(
            collections=collections | frozenset(MODEL if whole else ()), extra_bytes=len(collections) * statistics
        )

    def numbers(self, payload: Payload) -> list[int]:
        """Return the numbers of the models that a payload carries, ascending."""
        start = f"{self.name}_"
        return sorted(int(each.removeprefix(start)) for each in payload.collections if each.startswith(start))

    def collection(self, number: int) -> str:
        """Return the name of a model's collection, which also prefixes its tensors, so that no two share a name."""
        return f"{self.name}_{number}"
