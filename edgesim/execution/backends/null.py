"""Timing only: no tensors, no training. For methods whose plans depend on no training result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from edgesim.core.backend import Assignment, Backend, BackendPart, Classes, Result, Score
from edgesim.core.errors import ContractError
from edgesim.core.update import ModelState


class NullBackend(Backend):
    """A backend without tensors, which trains nothing."""

    trains: ClassVar[bool] = False

    def train(self, assignments: Sequence[Assignment]) -> Sequence[Result]:
        """Raise ContractError: without tensors there is nothing to train."""
        raise ContractError("the null backend has no tensors to train")

    def evaluate(self, model: ModelState, classes: Classes = None) -> Mapping[str, Score]:
        """Return no scores."""
        return {}

    def evaluate_personal(self, models: Mapping[int, ModelState]) -> Mapping[int, Score]:
        """Return no scores."""
        return {}

    def close(self) -> None:
        """Release nothing."""


@dataclass(frozen=True, kw_only=True)
class Null(BackendPart):
    """Timing only: simulated seconds, bytes and joules without any training."""

    trains: ClassVar[bool] = False

    def open(self, make_trainer: Any) -> NullBackend:
        """Return the backend; the trainer is never made."""
        return NullBackend()


PLUGINS = {"null": Null}
