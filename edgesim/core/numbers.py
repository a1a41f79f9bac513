"""Ranges of numbers without a unit that keys of scenarios take; infinity is in none of them."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from annotated_types import Ge, Gt, Le
from pydantic import FiniteFloat

MOST_COUNT = 2**31 - 1  # of samples, steps, pixels: no product of two of them leaves 64 bits

PositiveNumber: TypeAlias = Annotated[FiniteFloat, Gt(0)]
NonNegativeNumber: TypeAlias = Annotated[FiniteFloat, Ge(0)]
Count: TypeAlias = Annotated[int, Ge(1), Le(MOST_COUNT)]
Depth: TypeAlias = Annotated[int, Ge(1), Le(100)]  # of layers, which are built and measured one by one; GPT-3 has 96
CountOrZero: TypeAlias = Annotated[int, Ge(0), Le(MOST_COUNT)]
PositiveShare: TypeAlias = Annotated[float, Gt(0), Le(1)]
Share: TypeAlias = Annotated[float, Ge(0), Le(1)]  # 0 too, so that a sweep can begin with nothing
