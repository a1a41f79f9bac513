"""Low-rank adapters (LoRA) of a network: their layers, their products and parts of smaller rank.

An adapter adds scaling times B A to the frozen weight of a layer. A has the shape (rank, inputs) and B the shape
(outputs, rank). peft names their layers "LAYER.lora_A.NAME" and "LAYER.lora_B.NAME", and so does this module.

Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (ICLR 2022); names of the library peft.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from edgesim.core.errors import ConfigError
from edgesim.core.model_state import ModelState
from edgesim.core.price_list import CostProfile
from edgesim.core.task import Submodel
from edgesim.core.update import Update

_A = re.compile(r"(.*\.)?lora_A\.([^.]+)")


class Adapter(NamedTuple):
    """Names of a pair of layers and the shapes of their matrices."""

    layer: str  # that is adapted
    a_layer: str
    b_layer: str
    rank: int
    inputs: int
    outputs: int
    group: str  # channel group of the rank, "" if the rank cannot be cut

    @property
    def a(self) -> str:
        """Name of the parameter A, (rank, inputs)."""
        return f"{self.a_layer}.weight"

    @property
    def b(self) -> str:
        """Name of the parameter B, (outputs, rank)."""
        return f"{self.b_layer}.weight"

    def rank_in(self, submodel: Submodel) -> int:
        """Return the rank that a part has of it."""
        return len(dict(submodel.channels).get(self.group, range(self.rank)))


def pairs_in(layers: Iterable[str]) -> dict[str, str]:
    """Return the layer of B for each layer of A among these names, in their order. Others are left out."""
    names = dict.fromkeys(layers)
    found: dict[str, str] = {}
    for name in names:
        if match := _A.fullmatch(name):
            other = f"{match[1] or ''}lora_B.{match[2]}"
            if other in names:
                found[name] = other
    return found


def adapters_of(cost_profile: CostProfile) -> list[Adapter]:
    """Return the trained adapters of a network in forward order. Raises ConfigError if it has none."""
    layers = {layer.name: layer for layer in cost_profile.layers if layer.weights}
    found = []
    for a, b in pairs_in(layers).items():
        (rank, inputs), (outputs, _) = layers[a].matrices[0], layers[b].matrices[0]
        group = layers[a].rows if layers[a].rows == layers[b].columns else ""
        found.append(Adapter(a.rpartition(".lora_A.")[0], a, b, rank, inputs, outputs, group))
    if not found:
        raise ConfigError(
            f"model.lora: the method trains low-rank adapters, and {cost_profile.model} has none; set "
            "model.lora = { r = 8 }, or name a network with layers lora_A and lora_B as peft names them"
        )
    return found


def at_rank(adapters: Sequence[Adapter], rank: int, width: int) -> Submodel:
    """Return the part of a network with the first `rank` rows of A and columns of B. Smaller adapters stay whole.

    `width`: place of the rank among the ranks of the method, from 1.
    """
    cut = {each.group: tuple(range(rank)) for each in adapters if rank < each.rank}
    return Submodel(f"rank{rank}", width=width, channels=tuple(cut.items()))


def product(adapter: Adapter, params: Mapping[str, Tensor]) -> Tensor:
    """Return B A of a model in float64, shape (outputs, inputs). The factor alpha / r is not part of it."""
    return params[adapter.b].double().flatten(1) @ params[adapter.a].double().flatten(1)


def shares(weights: Sequence[float]) -> list[float]:
    """Return weights over their sum."""
    total = sum(weights)
    return [weight / total for weight in weights]


def without(adapters: Sequence[Adapter], updates: Sequence[Update]) -> list[Update]:
    """Return updates without the parameters of these adapters."""
    names = {name for each in adapters for name in (each.a, each.b)}

    def others(body: ModelState) -> dict[str, dict[str, Any]]:
        return {kind: {n: t for n, t in tensors.items() if n not in names} for kind, tensors in body.items()}

    return [each._replace(body=others(each.body)) for each in updates]
