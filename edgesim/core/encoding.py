"""Encodings of messages: how the numbers of a payload cross a link, with their bytes, FLOPs and settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Annotated, Literal, NamedTuple, TypeAlias

from annotated_types import Ge, Gt, Le, Lt

from edgesim.core import golomb

Values: TypeAlias = Literal["float32", "float16", "int8", "qsgd", "gsgd"]  # of models
UpdateValues: TypeAlias = Literal["float32", "float16", "int8", "qsgd", "gsgd", "sign"]
Zeros: TypeAlias = Literal["sent", "bitmap", "indices", "cheapest", "known"]
Sparsify: TypeAlias = Literal["none", "top_k", "rand_k"]
Indices: TypeAlias = Literal["golomb", "int32"]
Scale: TypeAlias = Literal["mean", "root_mean_square"]

NAMED_BITS: Mapping[str, int] = {"float32": 32, "float16": 16, "int8": 8, "sign": 1}  # values with a fixed size
_WITHOUT_SPARE = ("qsgd", "gsgd")  # every bit pattern is a level, so that none is free for 0 under a mask
SCALE_BYTES = 4
INDEX_BYTES = 4
SEED_BYTES = 8
_SELECTION_FLOPS = 3.0  # per weight: its magnitude, and two comparisons on average; see `Encoding.coding_flops`


class Contents(NamedTuple):
    """Numbers of a payload, counted by sort.

    *Weights* are the numbers of tensors of two dimensions or more, which a mask can cover. All others are *vectors*:
    biases, normalisation, running statistics.
    """

    collections: int  # collections that have weights: the parameters, and collections that mirror them
    layers: int  # layers with weights
    whole: int  # weights of one collection that no mask covers
    masked: int  # weights of one collection that a mask covers, including zeros
    nonzero: int  # masked weights that the mask keeps
    vectors: int  # vector numbers of all collections
    statistics: int = 0  # vector numbers that no gradient trains
    matrices: tuple[tuple[int, int], ...] = ()  # tensors of the whole weights: outputs, and weights per output

    @property
    def numbers(self) -> int:
        """Total count of numbers."""
        return self.collections * (self.whole + self.masked) + self.vectors

    @property
    def params(self) -> int:
        """Count of the parameters, equal to the count of any other collection that mirrors them."""
        return self.whole + self.masked + (self.vectors - self.statistics) // max(self.collections, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """Encoding of the numbers of a payload.

    `values`: "float16" halves the size of all numbers (above 65504 they become infinite). "int8", "qsgd", "gsgd" and
    "sign" write the weights of each layer as whole multiples of one float32, and leave vectors, few and delicate, as
    they are. "int8": the nearest multiples of a 127th of the largest weight. "qsgd": multiples of norm / 2^(bits - 1),
    rounded up or down at random so that the mean is the weight. "gsgd": as "qsgd", but shrunk so that the mean error is
    smaller than the weights.
    `zeros`: for weights that a mask covers, "bitmap" and "indices" send only the kept weights and their places, in one
    bit for each weight or 4 bytes for each kept weight, once for all collections; "cheapest" is the smallest of these
    and "sent". "known" sends only values, because the mask is an old one, or drawn from a seed that both sides have.
    The receiver always learns which weights a mask keeps, including kept weights that were rounded to 0. With "sent"
    the number 0 marks the others. "qsgd" and "gsgd" have no free number for it and need one more bit for each weight.

    The keys from `update` on apply to messages of devices to a server. They encode the change of the weights from the
    received ones, and the server adds the decoded change to the weights that it had sent. "sign", one bit per weight
    and one `scale` per layer, is for updates alone. The scale is the mean magnitude of the layer's weights, which
    leaves the least error, or the root of their mean square, which keeps the norm. "top_k" sends the `share` of the
    weights that changed most, over all layers together, with their indices. "rand_k" sends the same number of random
    weights, whose indices follow from a seed. A method's own collections, such as control variates, are encoded in the
    same way, each by itself.
    `momentum` m and `clip_norm` apply only to the model's parameters, including vectors (or to the first of a method's
    own collections, if the method sends those instead, as fedbuff does). A device scales its update g down to the norm
    and keeps u and v: u <- m u + g, v <- v + u. It sends the largest weights of v. Then these are 0 in u, and in v only
    their rounding errors remain. Vectors are sent whole: they change by u, and their u stays. This is Deep Gradient
    Compression with three differences. First, g is the result of a job, which with `fedsgd` is -lr times a gradient, so
    that u remembers the learning rates of its rounds. Second, the largest weights are found exactly and among all
    layers, not in each layer. Third, a device that is not selected keeps its u.
    `rank` r turns each tensor of weights into a matrix M, of n outputs by the m weights of each, and sends P of shape
    (n, r), whose columns are orthonormal, and Q = M^T P of shape (m, r). The server computes P Q^T. P spans M Q with
    the Q of the device's last update, by Gram-Schmidt. The first Q is random, and so is a column that is 0 and would
    remain 0. A matrix is sent whole if this takes no more numbers. This is the compressor of PowerSGD with a P and a Q
    for each device. In the paper, workers reduce the mean of M Q in one exchange and the mean of M^T P in a second, so
    that all have the same P, and the mean has rank r. Here one update is sent as in any other encoding, and the mean of
    W updates may have rank W r. The paper's momentum, after decoding, is the task of a `server_optimizer`.
    Raises ValueError if `bits` are given for values of fixed size or missing for others, and if other keys do not go
    together.
    Source: Alistarh et al., "QSGD" (2017); gsgd: Zhao et al., "BEER" (2022); rand_k and rotation: Konecny et al.,
    "Federated Learning: Strategies for Improving Communication Efficiency" (2016); top_k and error feedback: Stich et
    al., "Sparsified SGD with Memory" (2018); sign: Karimireddy et al., "Error Feedback Fixes SignSGD" (2019), with the
    mean as scale; root_mean_square: Tang et al., "1-bit Adam" (2021), and the code of its authors; indices:
    Sattler et al., "Robust and Communication-Efficient Federated Learning from Non-i.i.d. Data" (2019); momentum,
    clip_norm and warm_up: Lin et al., "Deep Gradient Compression" (2018), sections 3.2 and 3.3, and for vectors and the
    shares of a warm-up the code of its authors; rank: Vogels, Karimireddy and Jaggi, "PowerSGD" (2019),
    algorithm 1.
    """

    values: UpdateValues = "float32"
    # The levels are -2^(bits - 1) ... 2^(bits - 1), one more than fits. From 3 bits on only one weight of a layer can
    # reach an end, so that the sign of the layer's float32 tells which end.
    bits: Annotated[int, Ge(3), Le(16)] | None = None  # bits of a weight, for qsgd and gsgd
    zeros: Zeros = "sent"
    flops_per_number: Annotated[float, Ge(0), Lt(inf)] = 0.0  # FLOPs of a device for each number sent or received
    update: bool = False  # encode the change of the weights; all keys below and "sign" imply it
    sparsify: Sparsify = "none"  # choice of the weights to send
    share: Annotated[float, Gt(0), Lt(1)] | None = None  # share of the weights for top_k and rand_k, at least one
    scale: Scale = "mean"  # magnitude of a layer's weights for "sign"
    indices: Indices = "golomb"  # indices of top_k: Golomb's code of their gaps, or 4 bytes for each
    rotate: bool = False  # rotate each layer by a random Hadamard matrix, so that its weights are of similar size
    error_feedback: bool = False  # devices keep the part that was not sent, and add it to their next update
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.0  # momentum of the sum that a device keeps from job to job
    clip_norm: Annotated[float, Gt(0)] = inf  # largest norm of an update; in the paper N^-1/2 of the mean's norm
    rank: Annotated[int, Ge(1)] | None = None  # rank of the two thin factors of a matrix of weights; None: whole
    warm_up: Annotated[int, Ge(0)] = 0  # number of rounds r = 0, 1, ... with the share^((r + 1) / (warm_up + 1))

    def __post_init__(self) -> None:
        """Check that the keys go together, once."""
        if self.values in NAMED_BITS and self.bits is not None:
            raise ValueError(f"bits go with 'qsgd' and 'gsgd' alone, found bits = {self.bits} with '{self.values}'")
        if self.values not in NAMED_BITS and self.bits is None:
            raise ValueError(f"'{self.values}' needs bits, from 3 to 16")
        if self.scale != "mean" and self.values != "sign":
            raise ValueError(f"scale goes with values = 'sign', found scale = '{self.scale}' with '{self.values}'")
        if self.sparsify != "none" and self.share is None:
            raise ValueError(f"'{self.sparsify}' needs a share of the weights, such as share = 0.01")
        if self.sparsify == "none" and self.share is not None:
            raise ValueError(f"a share goes with sparsify = 'top_k' or 'rand_k', found share = {self.share:g} alone")
        if self.of_update and self.zeros != "sent":
            raise ValueError(f"zeros go with whole models under a mask, found zeros = '{self.zeros}' with an update")
        if self.momentum and not (self.sparsify == "top_k" and self.error_feedback):
            found = f"sparsify = '{self.sparsify}', error_feedback = {str(self.error_feedback).lower()}"
            raise ValueError(f"momentum goes with sparsify = 'top_k' and error_feedback = true, found {found}")
        if self.momentum and self.rotate:
            raise ValueError(
                "momentum ends for weights that are sent, and rotate mixes them with others; leave one out"
            )
        if self.warm_up and self.share is None:
            raise ValueError(f"warm_up goes with a share of the weights, found warm_up = {self.warm_up} alone")
        others = {"values": self.values != "float32", "sparsify": self.sparsify != "none", "rotate": self.rotate}
        found_ = [key for key, given in {**others, "no error_feedback": not self.error_feedback}.items() if given]
        if self.rank is not None and found_:
            raise ValueError(f"rank goes with error_feedback = true and none of {', '.join(others)}; found {found_[0]}")

    @property
    def scaled(self) -> bool:
        """True if the weights of a layer are multiples of one number, which is sent with them."""
        return self.values not in ("float32", "float16")

    @property
    def of_update(self) -> bool:
        """True if the encoding writes the change of the weights and not the weights."""
        changes = self.update or self.rotate or self.error_feedback or self.moves_vectors
        return changes or self.sparsify != "none" or self.values == "sign"

    @property
    def moves_vectors(self) -> bool:
        """True if the server gets other vectors than training produced."""
        return self.momentum > 0 or self.clip_norm < inf

    @property
    def of_others(self) -> Encoding:
        """Encoding for tensors that are not an update: only the values and bits of this encoding."""
        if not self.of_update:
            return self
        values: Values = "float32" if self.values == "sign" else self.values
        return Encoding(values=values, bits=self.bits, flops_per_number=self.flops_per_number)

    @property
    def of_own_collections(self) -> Encoding:
        """Encoding for a method's own collections beside the model's parameters, without momentum and clipping."""
        return replace(self, momentum=0.0, clip_norm=inf)

    def in_round(self, round_: int) -> Encoding:
        """Return the encoding in a round counted from 0, which in a warm-up sends a larger share of the weights."""
        if self.share is None or round_ >= self.warm_up:
            return self
        return replace(self, share=self.share ** ((round_ + 1) / (self.warm_up + 1)), warm_up=0)

    @property
    def draws(self) -> bool:
        """True if both sides draw random numbers from a seed of the message."""
        return self.rotate or self.sparsify == "rand_k" or (self.sparsify == "top_k" and self.indices == "golomb")

    def count(self, weights: int) -> int:
        """Return the number of weights of a collection that are sent."""
        return weights if self.share is None else math.ceil(self.share * weights)

    def rank_of(self, outputs: int, each: int) -> int:
        """Return the rank at which a matrix of this shape is sent. 0: whole, as two factors would be no smaller."""
        rank = self.rank or 0
        return rank if rank * (outputs + each) < outputs * each else 0

    def _factors(self, held: Contents) -> list[tuple[int, int, int]]:
        """Return the shapes and ranks of the matrices of a collection that are sent as two factors."""
        ranked = [(outputs, each, self.rank_of(outputs, each)) for outputs, each in held.matrices]
        return [matrix for matrix in ranked if matrix[2]]

    def nbytes(self, held: Contents) -> int:
        """Return the bytes of a payload with these contents.

        They are known before training. Golomb's code counts with its mean length (`golomb.mean_bits`). Raises
        ValueError for an update of weights under a mask.
        """
        if not self.of_update:
            ways = ("sent", "bitmap", "indices") if self.zeros == "cheapest" else (self.zeros,)
            return min(self._nbytes(held, way) for way in ways)
        if held.masked:
            raise ValueError("an update cannot be of weights under a mask")
        saved = sum(n * m - (n + m) * r for n, m, r in self._factors(held))
        sent = held._replace(whole=self.count(held.whole) - saved)
        index_bits = 0.0
        if self.sparsify == "top_k" and held.whole:
            golomb_bits = golomb.mean_bits(sent.whole, held.whole) if self.indices == "golomb" else 0.0
            index_bits = golomb_bits or 8.0 * INDEX_BYTES * sent.whole
        seed_bytes = SEED_BYTES if self.draws and held.whole and held.collections else 0
        return self._nbytes(sent, "sent") + held.collections * math.ceil(index_bits / 8) + seed_bytes

    def coding_flops(self, held: Contents) -> float:
        """Return the FLOPs of a device that encodes or decodes a payload with these contents.

        In addition to `flops_per_number`, each weight of an update costs 1 for the change and 2 for error feedback. A
        rotation costs per weight the binary logarithm of their number and 2, and the same again where feedback has to
        undo it. Finding the k largest costs 3 per weight, as quickselect compares each twice on average where k is
        small. Each sent sign costs 2 for the scale, and each index in Golomb's code 2. Each parameter costs 2 for
        momentum and 3 for clipping: its square, a sum and a product. A matrix of (n, m) at rank r costs 2 n m r for
        each of M Q, M^T P and P Q^T, and Gram-Schmidt costs 2 n r^2 + n r: 4 n for a product and a difference of
        columns for each pair, and 3 n for each norm.
        Source: comparisons: Knuth, "Mathematical Analysis of Algorithms" (1971).
        """
        flops = self.flops_per_number * held.numbers
        if not self.of_update or not held.collections:
            return flops
        flops += (2.0 * (self.momentum > 0) + 3.0 * (self.clip_norm < inf)) * held.params
        if not held.whole:
            return flops
        sent = self.count(held.whole)
        each = 1.0 + 2.0 * self.error_feedback + _SELECTION_FLOPS * (self.sparsify == "top_k")
        each += (1 + self.error_feedback) * self.rotation_flops(held)
        thin = sum(6.0 * n * m * r + 2.0 * n * r**2 + n * r for n, m, r in self._factors(held))
        of_sent = 2.0 * (self.values == "sign") + 2.0 * (self.sparsify == "top_k" and self.indices == "golomb")
        return flops + held.collections * (each * held.whole + of_sent * sent + thin)

    def rotation_flops(self, held: Contents) -> float:
        """Return the FLOPs per weight of a rotation or its inverse: a sum for each doubling, a sign, and the norm."""
        return math.log2(held.whole) + 2.0 if self.rotate and held.whole else 0.0

    def decoding_flops(self, held: Contents) -> float:
        """Return the FLOPs of a server that adds an update to the weights it had sent, 0 for a model sent whole."""
        if not self.of_update:
            return 0.0
        vectors = held.params - held.whole if self.moves_vectors else 0
        products = sum(2.0 * n * m * r for n, m, r in self._factors(held))
        return held.collections * (self.count(held.whole) + self.rotation_flops(held) * held.whole + products) + vectors

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

    The method models noise and fading.
    """

    symbol_bits: float = 1.0  # bits that the link carries in the time of one number

    def nbytes(self, held: Contents) -> int:
        """Return the bytes that the link would carry in the time of these numbers."""
        return ceil(held.numbers * self.symbol_bits / 8.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Masked(Encoding):
    """Numbers of a finite field under masks that hide them, with `field_bits` each. A scenario cannot choose it.

    The method models rounding.
    """

    field_bits: int = 32

    def nbytes(self, held: Contents) -> int:
        """Return the bytes of these numbers."""
        return ceil(held.numbers * self.field_bits / 8)


FLOAT32 = Encoding()
