"""State of a device, with what the steps of encodings keep there. It needs no torch, for runs without training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from edgesim.core.encoding import EncodingStep
from edgesim.core.update import ModelState

if TYPE_CHECKING:
    from torch import Tensor


def stateful(cls: type[EncodingStep] = EncodingStep) -> dict[str, type[EncodingStep]]:
    """Return the classes of steps that keep state on devices, by the word for it."""
    found = {cls.keeps: cls} if cls.keeps else {}
    for each in cls.__subclasses__():
        found |= stateful(each)
    return found


def state_name(word: str, collection: str) -> str:
    """Return the name under which a device keeps the state of a step for a collection of its messages."""
    return f"{word} of {collection}"


def step_of(name: str) -> type[EncodingStep]:
    """Return the class of the step whose state has this name. Raises KeyError if there is none."""
    return stateful()[name.partition(" of ")[0]]


class Kept(NamedTuple):
    """State of a device: for its method, None if the method keeps nothing, and for the encoding of its updates."""

    own: ModelState | None
    left: dict[str, Mapping[str, Tensor]]  # e.g. "residual of params" -> name -> tensor of the whole model's shape

    @classmethod
    def of(cls, device_state: ModelState | None) -> Kept:
        """Return the two parts of a device's state."""
        state, words = device_state or {}, tuple(state_name(word, "") for word in stateful())
        left = {kind: tensors for kind, tensors in state.items() if kind.startswith(words)}
        own = {kind: tensors for kind, tensors in state.items() if kind not in left}
        return cls(None if device_state is None or (left and not own) else own, left)

    def state(self) -> ModelState | None:
        """Return the device's state with both parts, or None if there is nothing to keep."""
        return None if self.own is None and not self.left else {**(self.own or {}), **self.left}
