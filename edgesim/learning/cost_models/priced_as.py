"""Prices of another network: a small network is trained, and a large one is charged."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeAlias

import numpy as np
from pydantic import Field

from edgesim.core.arrays import Arr
from edgesim.core.cost_model import CostModel
from edgesim.core.errors import ConfigError
from edgesim.core.limits import Count
from edgesim.core.price_list import CostProfile
from edgesim.core.task import Pass, Payload, Submodel
from edgesim.learning.cost_models.measured import Measured

_INPUT = re.compile(r"[1-9]\d{0,5}(x[1-9]\d{0,5})*")
_ONE = np.ones(1)
_Size: TypeAlias = Annotated[str, Field(examples=["3x224x224"])]


@dataclass(frozen=True, kw_only=True)
class As(CostModel):
    """FLOPs, bytes and memory of another network. The network of the scenario itself is trained.

    A part costs the same share of the other network as of the scenario's own: half the FLOPs, or bytes, of one network
    are half the FLOPs, or bytes, of the other. So a run gives the seconds, joules and costs of a large network that
    cannot be trained here. Samples, steps and rounds do not change: nothing is said about the learning speed of the
    large network.
    """

    model: str | dict[str, Any]  # as in the section model, such as "torchvision:resnet50"
    input: _Size | None = None  # such as "3x224x224". None: the network's native input, or the input of the data set
    classes: Count | None = None  # None: likewise
    payload_of: str | dict[str, Any] | None = None  # the network whose bytes are sent, if it is a third one

    def __post_init__(self) -> None:
        if self.input is not None and not _INPUT.fullmatch(self.input):
            raise ConfigError(f"cost.input: must be a size such as '3x224x224', got {self.input!r}")

    @property
    def input_shape(self) -> tuple[int, ...] | None:
        """Shape of an input. None: the network's own."""
        return None if self.input is None else tuple(map(int, self.input.split("x")))

    @property
    def charged_as(self) -> str:
        """Name of the charged network, with its input size if one is set."""
        model = self.model if isinstance(self.model, str) else str(self.model.get("name"))
        return model if self.input is None else f"{model} on {self.input}"

    def flops(self, cost_profile: CostProfile, work: Pass, submodel: Submodel, samples: Arr, steps: Arr) -> Arr:
        """Return FLOPs, shape (k,), of one pass over `samples` in `steps` SGD steps, both of shape (k,)."""
        large = _large(cost_profile)
        if work.kind == "flops":  # work on the numbers of the network, such as coding, in proportion to them
            return np.full_like(samples, work.times * large.params / cost_profile.params)
        whole = replace(work, submodel=Submodel())
        return _share(cost_profile, work, submodel) * Measured().flops(large, whole, Submodel(), samples, steps)

    def amounts(
        self, cost_profile: CostProfile, work: Pass, submodel: Submodel, samples: Arr, steps: Arr
    ) -> Mapping[str, Arr]:
        """Return the amounts of all kinds of work, each of shape (k,). See edgesim.core.cost_model.CostModel.

        A part does the same share of each kind as in the scenario's own network, or its share of the FLOPs if the own
        network does no work of the kind.
        """
        large, flops = _large(cost_profile), self.flops(cost_profile, work, submodel, samples, steps)
        if work.kind not in ("train", "forward"):
            return {"other_flops": flops}
        whole = Measured().amounts(large, replace(work, submodel=Submodel()), Submodel(), samples, steps)
        share = _share(cost_profile, work, submodel)
        part, all_parts = (
            Measured().amounts(cost_profile, replace(work, submodel=of), of, samples, steps)
            for of in (work.submodel or submodel, Submodel())
        )
        amounts = {}
        for kind, amount in whole.items():
            own = all_parts.get(kind, np.zeros_like(amount))
            of_kind = np.divide(part.get(kind, 0.0 * own), own, out=np.full_like(own, share), where=own > 0)
            amounts[kind] = of_kind * amount
        return {**amounts, "flops": flops}


def charged(cost_profile: CostProfile, large: CostProfile, carried: CostProfile, batch: int) -> CostProfile:
    """Return the cost profile of a network that is charged as `large` and sends the bytes of `carried`.

    `batch`: samples of the training step in which the memory of the two networks is compared.
    """
    everything = Payload(collections=frozenset({"params", "buffers"}))
    memory = large.memory_bytes(Submodel(), batch).total / cost_profile.memory_bytes(Submodel(), batch).total
    numbers = carried.numbers(everything) / cost_profile.numbers(everything)
    return replace(
        cost_profile,
        charged_as=large,
        numbers_scale=numbers,
        memory_scale=memory,
        charged_base=carried.base,
        charged_base_bytes=carried.base_bytes,
    )


def _large(cost_profile: CostProfile) -> CostProfile:
    if cost_profile.charged_as is None:
        raise ConfigError("cost.model: is not known here")
    return cost_profile.charged_as


def _share(cost_profile: CostProfile, work: Pass, submodel: Submodel) -> float:
    """Return the cost of work on a part as a share of the whole network's cost, for one sample of a large batch."""
    part = Measured().flops(cost_profile, replace(work, samples=None, times=1.0), submodel, _ONE, _ONE)
    whole = replace(work, samples=None, times=1.0, submodel=Submodel())
    return float(part[0] / Measured().flops(cost_profile, whole, Submodel(), _ONE, _ONE)[0])


PLUGINS = {"as": As}
