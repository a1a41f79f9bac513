"""How the numbers of a payload are written down to cross a link, and how many bytes that takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, inf
from typing import Annotated, Literal, NamedTuple, TypeAlias

from annotated_types import Ge, Le, Lt

Values: TypeAlias = Literal["float32", "float16", "int8", "qsgd", "gsgd"]
Zeros: TypeAlias = Literal["sent", "bitmap", "indices", "cheapest", "known"]

NAMED_BITS: Mapping[str, int] = {"float32": 32, "float16": 16, "int8": 8}  # of values whose name says how many
_WITHOUT_SPARE = ("qsgd", "gsgd")  # all numbers that their bits can write are levels
SCALE_BYTES = 4
INDEX_BYTES = 4


class Contents(NamedTuple):
    """How many numbers a payload holds, by sort.

    *Weights* are the numbers of tensors of two dimensions or more, which a mask can cover. All others are *vectors*:
    biases, normalisation, running statistics.
    """

    collections: int  # that have weights: the parameters, and whatever mirrors them
    layers: int  # with weights
    whole: int  # weights of one collection that no mask covers
    masked: int  # weights of one collection that a mask covers, zeros among them
    nonzero: int  # of those, what the mask keeps
    vectors: int  # of all collections

    @property
    def numbers(self) -> int:
        """How many numbers there are in all."""
        return self.collections * (self.whole + self.masked) + self.vectors


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """How numbers are written.

    `values`: "float16" halves all of them (above 65504 they become infinite). The others write the weights of each
    layer as whole multiples of one float32 and leave vectors, few and delicate, as they are. "int8": the nearest
    multiples of a 127th of the largest weight. "qsgd": multiples of norm / 2^(bits - 1), rounded up or down at random
    so that the mean is the weight. "gsgd": the same, shrunk so that the mean error is smaller than the weights.
    `zeros`: of weights that a mask covers, "bitmap" and "indices" send those that it keeps and which they are, in one
    bit for each weight or 4 bytes for each that is kept, once for all collections; "cheapest" is the least of these and
    "sent". "known" sends only values: the mask is an old one, or one drawn from a seed that both sides have.
    The receiver always learns which weights a mask keeps, also of those that were rounded to 0. For "sent" the number 0
    says it, but for "qsgd" and "gsgd", which have no number to spare for it and need one bit more for each weight.
    Raises ValueError if `bits` are given where the name of the values says them, or missing where it does not.
    Source: Alistarh et al., "QSGD" (2017); gsgd: Zhao et al., "BEER" (2022).
    """

    values: Values = "float32"
    # Of a weight, for qsgd and gsgd. They have the levels -2^(bits - 1) ... 2^(bits - 1), one more than fits. From 3
    # bits on only one weight of a layer can reach an end, so that the sign of the layer's float32 may say which end.
    bits: Annotated[int, Ge(3), Le(16)] | None = None
    zeros: Zeros = "sent"
    flops_per_number: Annotated[float, Ge(0), Lt(inf)] = 0.0  # of a device, for each that it sends or receives

    def __post_init__(self) -> None:
        """Check that the number of bits is known, once."""
        if self.values in NAMED_BITS and self.bits is not None:
            raise ValueError(f"bits go with 'qsgd' and 'gsgd' alone, found bits = {self.bits} with '{self.values}'")
        if self.values not in NAMED_BITS and self.bits is None:
            raise ValueError(f"'{self.values}' needs bits, from 3 to 16")

    @property
    def scaled(self) -> bool:
        """Whether the weights of a layer are multiples of one number, which is sent with them."""
        return self.values not in ("float32", "float16")

    def nbytes(self, held: Contents) -> int:
        """Return the bytes of a payload that holds so many numbers."""
        ways = ("sent", "bitmap", "indices") if self.zeros == "cheapest" else (self.zeros,)
        return min(self._nbytes(held, way) for way in ways)

    def _nbytes(self, held: Contents, zeros: str) -> int:
        sent = held.masked if zeros == "sent" else held.nonzero
        bitmap_bytes = -(-held.masked // 8)
        mask_bytes = {"bitmap": bitmap_bytes, "indices": INDEX_BYTES * held.nonzero}.get(zeros, 0)
        if zeros == "sent" and held.nonzero < held.masked and self.values in _WITHOUT_SPARE:
            mask_bytes = bitmap_bytes
        weight_bits = held.collections * (held.whole + sent) * (self.bits or NAMED_BITS[self.values])
        vector_bytes = held.vectors * (4 if self.scaled else NAMED_BITS[self.values] // 8)
        scale_bytes = SCALE_BYTES * held.collections * held.layers * self.scaled
        return -(-weight_bits // 8) + vector_bytes + scale_bytes + (mask_bytes if held.collections else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Analog(Encoding):
    """Numbers as amplitudes of a signal: exact, and priced by the time on air. A scenario cannot choose it.

    What noise and fading make of them is for the method to say.
    """

    symbol_bits: float = 1.0  # what the link carries as bits in the time of one number

    def nbytes(self, held: Contents) -> int:
        """Return the bytes that the link would carry in the time of so many numbers."""
        return ceil(held.numbers * self.symbol_bits / 8.0)


FLOAT32 = Encoding()
