"""Metrics of trained models by name, and which of their numbers are better."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

Better: TypeAlias = Literal["lower", "higher"]
LabelKind: TypeAlias = Literal["classes", "numbers", "flags", "tokens"]  # what the label of a sample is

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
    """Return whether a number, or each of an array, is at a target or better; what is not a number never is."""
    return value >= target if better == "higher" else value <= target
