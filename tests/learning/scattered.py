"""The way back of `extract`: a thinner network's tensors in the places of the whole one."""

from __future__ import annotations

from torch import Tensor

from edgesim.core.price_list import CostProfile
from edgesim.core.task import Submodel
from edgesim.core.update import ModelState
from edgesim.learning.submodel.slicing import Cut


def scatter(
    thin: ModelState, part: Submodel, cost_profile: CostProfile, into: ModelState
) -> dict[str, dict[str, Tensor]]:
    """Return a copy of `into` with the tensors of a thinner bundle in the places that `extract` took them from.

    Kinds and tensors that only one of them has are left as they are in `into`. Raises ValueError as `extract` does.
    """
    cut = Cut(part, cost_profile)
    result = {kind: {name: tensor.clone() for name, tensor in tensors.items()} for kind, tensors in into.items()}
    for kind, tensors in result.items():
        for name, tensor in tensors.items():
            if name in thin.get(kind, {}):
                tensor[cut.index(name, tensor)] = thin[kind][name]
    return result
