"""Ranges of numbers without a unit that keys of scenarios take; infinity is in none of them."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from annotated_types import Ge, Gt, Le
from pydantic import AfterValidator, FiniteFloat

MOST_COUNT = 2**31 - 1  # of samples, steps, pixels: no product of two of them leaves 64 bits

MOST_FACTOR = 1e30  # of tensors, whose float32 ends at 3.4e38: Adam divides a rate by 1 - beta1, a mean by samples


def _for_tensors(value: float) -> float:
    """Return a factor of tensors. Raises ValueError if float32 might not hold it or its multiples."""
    if value > MOST_FACTOR:
        raise ValueError(f"must be at most {MOST_FACTOR:g}, which float32 can still multiply, got {value:g}")
    return value


PositiveNumber: TypeAlias = Annotated[FiniteFloat, Gt(0)]
NonNegativeNumber: TypeAlias = Annotated[FiniteFloat, Ge(0)]
PositiveFactor: TypeAlias = Annotated[PositiveNumber, AfterValidator(_for_tensors)]  # of tensors, such as a rate
NonNegativeFactor: TypeAlias = Annotated[NonNegativeNumber, AfterValidator(_for_tensors)]
Count: TypeAlias = Annotated[int, Ge(1), Le(MOST_COUNT)]
Depth: TypeAlias = Annotated[int, Ge(1), Le(100)]  # of layers, which are built and measured one by one; GPT-3 has 96
CountOrZero: TypeAlias = Annotated[int, Ge(0), Le(MOST_COUNT)]
PositiveShare: TypeAlias = Annotated[float, Gt(0), Le(1)]
Share: TypeAlias = Annotated[float, Ge(0), Le(1)]  # 0 too, so that a sweep can begin with nothing
