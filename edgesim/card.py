"""The price list of a model: parameters, bytes and FLOPs of every layer, per sample. No torch, so timing needs none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import PlainSerializer, TypeAdapter, ValidationError

from edgesim.contracts import Payload
from edgesim.errors import ConfigError

F32_BYTES = 4

# Sorted, so that equal cards give equal text whatever the hash seed of the process.
LayerNames = Annotated[frozenset[str], PlainSerializer(sorted, return_type=list[str])]


@dataclass(frozen=True, slots=True)
class LayerCost:
    """Size of one layer and its FLOPs per sample.

    A layer is a module that directly owns parameters or floating-point buffers, named by its path: "a.b.weight"
    belongs to "a.b". `forward_flops` are those counted while the module itself ran, less its inner modules.
    """

    name: str
    kind: str
    params: int
    buffers: int  # floating-point elements only; integer counters do not travel
    forward_flops: float
    weight_grad_flops: float
    input_grad_flops: float
    upstream: LayerNames  # layers with parameters that its input depends on


@dataclass(frozen=True, slots=True)
class ProductCost:
    """Backward FLOPs per sample of work without weights of its own, such as a product of activations."""

    backward_flops: float
    upstream: LayerNames  # paid only if one of these layers is trained


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What a model costs, per sample: `layers` in forward order and the counted work outside them."""

    model: str
    input_shape: tuple[int, ...]
    classes: int
    layers: tuple[LayerCost, ...]
    other_forward_flops: float = 0.0  # counted outside every layer
    products: tuple[ProductCost, ...] = ()
    drop_single: bool = False  # batch normalisation: cannot train on a batch of one sample

    @property
    def layer_names(self) -> tuple[str, ...]:
        """Names of the layers in forward order."""
        return tuple(layer.name for layer in self.layers)

    @property
    def params(self) -> int:
        """Number of parameters of the whole model."""
        return sum(layer.params for layer in self.layers)

    @property
    def other_backward_flops(self) -> float:
        """Backward FLOPs per sample outside the layers when all of them are trained."""
        return sum(product.backward_flops for product in self.products)

    def forward_flops(self) -> float:
        """Return the FLOPs of one forward pass, per sample."""
        return sum(layer.forward_flops for layer in self.layers) + self.other_forward_flops

    def train_flops(self, frozen: frozenset[str] = frozenset()) -> float:
        """Return the FLOPs of one forward and backward pass per sample, without the optimiser step.

        `frozen` names layers that run forward but are not trained. A layer's input gradient is paid only where a
        trained layer lies upstream. Raises ValueError for a layer the model does not have.
        """
        trained = frozenset(self._known(frozen)) - frozen
        flops = self.forward_flops()
        for layer in self.layers:
            flops += layer.weight_grad_flops * (layer.name in trained)
            flops += layer.input_grad_flops * (not trained.isdisjoint(layer.upstream))
        unpaid = (product for product in self.products if not trained.isdisjoint(product.upstream))
        return flops + sum(product.backward_flops for product in unpaid)

    def before_last(self, count: int) -> frozenset[str]:
        """Return every layer but the last `count`: the frozen set that trains only those. 1 <= count <= layers."""
        if not 1 <= count <= len(self.layers):
            raise ValueError(f"{self.model} has {len(self.layers)} layers; asked for the last {count}")
        return frozenset(self.layer_names[:-count])

    def nbytes(self, payload: Payload) -> int:
        """Return the bytes of a payload: 4 for every float of its kinds and layers, and its extra bytes.

        A method's own kind (control variates, momenta) mirrors the parameters and is priced like them.
        Raises ValueError for a layer the model does not have.
        """
        names = frozenset(self.layer_names) if payload.layers is None else payload.layers
        self._known(names)
        layers = [layer for layer in self.layers if layer.name in names]
        params = sum(layer.params for layer in layers)
        sizes = {"buffers": sum(layer.buffers for layer in layers)}
        return F32_BYTES * sum(sizes.get(kind, params) for kind in payload.kinds) + payload.extra_bytes

    def to_json(self) -> str:
        """Return the card as JSON text; `from_json` gives an equal card back."""
        return _CARDS.dump_json(self, indent=1).decode()

    @staticmethod
    def from_json(text: str) -> ModelCard:
        """Return the card written by `to_json`. Raises ConfigError if the text is not one."""
        try:
            return _CARDS.validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "text"
            raise ConfigError(f"model card: {where}: {first['msg']}") from error

    def _known(self, names: frozenset[str]) -> tuple[str, ...]:
        unknown = names.difference(self.layer_names)
        if unknown:
            raise ValueError(
                f"{self.model} has no layer {sorted(unknown)[0]!r} (layers: {', '.join(self.layer_names)})"
            )
        return self.layer_names


_CARDS: TypeAdapter[ModelCard] = TypeAdapter(ModelCard)
