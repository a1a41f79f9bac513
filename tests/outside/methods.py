"""A method that works and one that breaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Gt, Le

from edgesim.core.method import Aggregate, ServerContext
from edgesim.core.rng import Key
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting
from edgesim.methods.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class Damped(FedAvg):
    """FedAvg whose server goes only a part of the way to the average."""

    rate: Annotated[float, Gt(0), Le(1)] = 0.5

    def aggregate(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return base + rate * (average - base)."""
        merged = super().aggregate(state, global_model, updates, server, key)
        if merged.model is None:
            return merged
        model = {
            kind: {name: old.lerp(merged.model[kind][name], self.rate) for name, old in tensors.items()}
            for kind, tensors in global_model.items()
        }
        return merged._replace(model=model)


class Broken(Exception):
    """An error that cannot be made again from its `args`, as many libraries have."""

    def __init__(self, submodel: str, round_: int) -> None:
        super().__init__(f"{submodel} broke in round {round_}")


@dataclass(frozen=True, kw_only=True)
class Breaks(FedAvg):
    """FedAvg whose server breaks while it merges."""

    at: int = 2

    def aggregate(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the average, or raise Broken."""
        if server.round == self.at:
            raise Broken("the server", server.round)
        return super().aggregate(state, global_model, updates, server, key)


@dataclass(frozen=True, kw_only=True)
class Unready(FedAvg):
    """FedAvg that breaks before its first round."""

    def init(self, setting: Setting, key: Key) -> Any:
        """Raise Broken."""
        raise Broken("the start", 0)
