"""Metrics of trained models by name, with the direction in which each is better."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

Better: TypeAlias = Literal["lower", "higher"]
LabelKind: TypeAlias = Literal["classes", "numbers", "flags", "tokens"]  # kind of a sample's label

IGNORED = -100  # label of a position of a text that does not count, as in torch's cross_entropy

ACCURACY = "accuracy"
METRICS: Mapping[str, Better] = {
    "loss": "lower",
    "accuracy": "higher",
    "f1_macro": "higher",
    "f1_micro": "higher",
    "perplexity": "lower",
    "mse": "lower",
    "mae": "lower",
}


def is_reached(value: Any, target: float, better: Better) -> Any:
    """Return True if a number, or each number of an array, is at a target or better. NaN never is."""
    return value >= target if better == "higher" else value <= target
