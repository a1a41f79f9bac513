"""A method that works and one that breaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Gt, Le

from edgesim.contracts import Bundle, Merged, Message, Setting, View
from edgesim.methods.fedavg import FedAvg
from edgesim.rng import Key


@dataclass(frozen=True, kw_only=True)
class Damped(FedAvg):
    """FedAvg whose server goes only a part of the way to the average."""

    rate: Annotated[float, Gt(0), Le(1)] = 0.5

    def merge(self, state: Any, base: Bundle, got: Sequence[Message], view: View, tools: Any, key: Key) -> Merged:
        """Return base + rate * (average - base)."""
        merged = super().merge(state, base, got, view, tools, key)
        if merged.model is None:
            return merged
        model = {
            kind: {name: old.lerp(merged.model[kind][name], self.rate) for name, old in tensors.items()}
            for kind, tensors in base.items()
        }
        return merged._replace(model=model)


class Broken(Exception):
    """An error that cannot be made again from its `args`, as many libraries have."""

    def __init__(self, part: str, round_: int) -> None:
        super().__init__(f"{part} broke in round {round_}")


@dataclass(frozen=True, kw_only=True)
class Breaks(FedAvg):
    """FedAvg whose server breaks while it merges."""

    at: int = 2

    def merge(self, state: Any, base: Bundle, got: Sequence[Message], view: View, tools: Any, key: Key) -> Merged:
        """Return the average, or raise Broken."""
        if view.round == self.at:
            raise Broken("the server", view.round)
        return super().merge(state, base, got, view, tools, key)


@dataclass(frozen=True, kw_only=True)
class Unready(FedAvg):
    """FedAvg that breaks before its first round."""

    def init(self, setting: Setting, key: Key) -> Any:
        """Raise Broken."""
        raise Broken("the start", 0)
