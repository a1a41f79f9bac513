"""Encodings of messages: chains of steps that turn the numbers of a payload into bytes.

A step says its bytes and FLOPs here, before anything is trained and without torch. The values that arrive are computed
in `edgesim.learning.codec.steps`, or by the step itself (`EncodingStep.crossed`) if it is not one of this module.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate
from math import inf
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias

from annotated_types import Ge, Gt, Le, Lt

from edgesim.core import golomb

Values: TypeAlias = Literal["float32", "float16", "int8", "qsgd", "gsgd"]  # of models
UpdateValues: TypeAlias = Literal["float32", "float16", "int8", "qsgd", "gsgd", "sign"]
Zeros: TypeAlias = Literal["sent", "bitmap", "indices", "cheapest", "known"]
Choice: TypeAlias = Literal["none", "top_k", "rand_k"]
Indices: TypeAlias = Literal["golomb", "int32"]
Scale: TypeAlias = Literal["mean", "root_mean_square"]

NAMED_BITS: Mapping[str, int] = {"float32": 32, "float16": 16, "int8": 8, "sign": 1}  # values with a fixed size
NUMBER_BYTES = 4  # float32
SCALE_BYTES = 4
INDEX_BYTES = 4
SEED_BYTES = 8


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
    among: int = 0  # weights among which the whole ones were chosen; 0: no step has chosen any

    @property
    def numbers(self) -> int:
        """Total count of numbers."""
        return self.collections * (self.whole + self.masked) + self.vectors

    @property
    def params(self) -> int:
        """Count of the parameters, equal to the count of any other collection that mirrors them."""
        trained = (self.vectors - self.statistics) // max(self.collections, 1)
        return self.whole + self.masked + trained if self.collections else 0

    @property
    def bitmap_bytes(self) -> int:
        """Bytes of one bit for each weight that a mask covers, once for all collections."""
        return -(-self.masked // 8) if self.collections else 0


class Flops(NamedTuple):
    """FLOPs of a step: for the message, for each of its collections, and for each weight of the model in each."""

    message: float = 0.0
    collection: float = 0.0
    weight: float = 0.0


@dataclass(frozen=True)
class EncodingStep:
    """One step of an encoding: its bytes, FLOPs, state on devices, and the values that arrive.

    Steps work like pipes. Each gets the numbers that the steps before it made, and the steps after it as `rest`.
    """

    of_update: ClassVar[bool] = False  # it works on the change of the weights, which only devices send to a server
    of_params: ClassVar[bool] = False  # it works on the model's parameters, with vectors, and on no other collection
    draws: ClassVar[bool] = False  # both sides draw random numbers from a seed of the message
    feedback: ClassVar[bool] = False  # the device decodes what it sends, and pays for decoding the steps after it
    keeps: ClassVar[str] = ""  # word for its state on a device, such as "residual"; "": it has none
    keeps_rows: ClassVar[bool] = True  # the state has the shape of the tensor; False: but for its first dimension
    param_flops: ClassVar[float] = 0.0  # FLOPs of encoding for each parameter of the model
    weight_flops: ClassVar[float] = 0.0  # FLOPs of encoding for each weight of a collection, sent or not
    sent_flops: ClassVar[float] = 0.0  # FLOPs of encoding for each weight that the step gets

    def check(self, steps: tuple[EncodingStep, ...]) -> None:
        """Raise ValueError if the step does not go with the other steps of its chain."""

    def passed(self, held: Contents) -> Contents:
        """Return the numbers that go on to the next step."""
        return held

    def nbytes(self, held: Contents, rest: Callable[[Contents], int]) -> int:
        """Return the bytes of a message with these numbers. `rest`: bytes of the steps after it."""
        return rest(self.passed(held))

    def flops(self, held: Contents) -> tuple[Flops, Flops]:
        """Return the FLOPs of encoding and of decoding these numbers."""
        return Flops(self.param_flops * held.params, self.sent_flops * held.whole, self.weight_flops), Flops()

    def crossed(self, tensors: Mapping[str, Any], rest: Callable[[Mapping[str, Any]], Any], message: Any) -> Any:
        """Return tensors by name as they arrive, if `rest` gives what arrives through the steps after it.

        `message`: an `edgesim.learning.codec.steps.Message`, with the random numbers and the state of the device.
        """
        return rest(tensors)


class Codec(ABC):
    """A chain of steps, whose prices are those of its steps. Numbers that leave the last step cost 4 bytes each."""

    @property
    @abstractmethod
    def steps(self) -> tuple[EncodingStep, ...]:
        """Steps in the order of encoding."""

    @property
    def of_update(self) -> bool:
        """True if the encoding writes the change of the weights and not the weights."""
        return any(step.of_update for step in self.steps)

    @property
    def of_others(self) -> Codec:
        """Encoding for tensors that are not an update."""
        return Chain(tuple(step for step in self.steps if not step.of_update)) if self.of_update else self

    @property
    def of_own_collections(self) -> Codec:
        """Encoding for a method's own collections beside the model's parameters."""
        return Chain(tuple(step for step in self.steps if not step.of_params))

    def nbytes(self, held: Contents) -> int:
        """Return the bytes of a payload with these contents, which are known before training."""
        seed_bytes = SEED_BYTES if held.whole and held.collections and any(step.draws for step in self.steps) else 0
        return self._nbytes(held, 0) + seed_bytes

    def _nbytes(self, held: Contents, place: int) -> int:
        rest = partial(self._nbytes, place=place + 1)
        return self.steps[place].nbytes(held, rest) if place < len(self.steps) else NUMBER_BYTES * held.numbers

    def coding_flops(self, held: Contents) -> float:
        """Return the FLOPs of a device that encodes or decodes a payload with these contents."""
        work, feedback = list[Flops](), False
        for step, at in zip(self.steps, self._contents(held), strict=False):
            work += step.flops(at)[: 1 + feedback]  # of encoding, or of both
            feedback = feedback or step.feedback
        return _total(work, held)

    def decoding_flops(self, held: Contents) -> float:
        """Return the FLOPs of a server that adds an update to the weights it had sent, 0 for a model sent whole.

        Decoding costs 1 for each weight that is sent, and for each vector that differs from what training produced.
        """
        if not self.of_update:
            return 0.0
        *contents, sent = self._contents(held)
        vectors = held.params - held.whole if any(step.of_params for step in self.steps) else 0
        steps = [step.flops(at)[1] for step, at in zip(self.steps, contents, strict=True)]
        return _total([Flops(vectors, sent.whole), *steps], held)

    def _contents(self, held: Contents) -> Iterator[Contents]:
        """Return the numbers that each step gets, and those that leave the last one."""
        return accumulate(self.steps, lambda at, step: step.passed(at), initial=held)


def _total(work: Sequence[Flops], held: Contents) -> float:
    each = math.fsum(flops.weight for flops in work) * held.whole + math.fsum(flops.collection for flops in work)
    return math.fsum(flops.message for flops in work) + held.collections * each


@dataclass(frozen=True)
class Chain(Codec):
    """Encoding that names its steps, for methods with steps of their own.

    Raises ValueError if the steps do not go together, or if steps of updates have no `Change` among them.
    """

    steps: tuple[EncodingStep, ...] = ()

    def __post_init__(self) -> None:
        """Check the steps, once."""
        if self.of_update and not any(isinstance(step, Change) for step in self.steps):
            raise ValueError("steps of updates need the step Change before them")
        for step in self.steps:
            step.check(self.steps)


# --- steps ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PerNumber(EncodingStep):
    """Work for each number sent or received, which leaves the number as it is."""

    number_flops: float

    def flops(self, held: Contents) -> tuple[Flops, Flops]:
        """Return the FLOPs of all numbers, and nothing for decoding an update."""
        return Flops(message=self.number_flops * held.numbers), Flops()


@dataclass(frozen=True)
class Mask(EncodingStep):
    """Weights under a mask: which are sent, and how the receiver learns of the others.

    "bitmap" and "indices" send only the kept weights and their places, in one bit for each weight or 4 bytes for each
    kept weight, once for all collections. "cheapest" is the smallest of these and "sent". "known" sends only values,
    because the mask is an old one, or drawn from a seed that both sides have. The receiver always learns which weights
    a mask keeps, including kept weights that were rounded to 0.
    """

    zeros: Zeros

    def check(self, steps: tuple[EncodingStep, ...]) -> None:
        """Raise ValueError with an update."""
        if any(step.of_update for step in steps):
            raise ValueError(f"zeros go with whole models under a mask, found zeros = '{self.zeros}' with an update")

    def nbytes(self, held: Contents, rest: Callable[[Contents], int]) -> int:
        """Return the bytes of the mask and of the steps after it."""
        kept = rest(held._replace(masked=held.nonzero))
        index_bytes = INDEX_BYTES * held.nonzero if held.collections else 0
        ways = {"sent": rest(held), "bitmap": held.bitmap_bytes + kept, "indices": index_bytes + kept}
        return {**ways, "known": kept, "cheapest": min(ways.values())}[self.zeros]


class UpdateStep(EncodingStep):
    """A step on the change of the weights."""

    of_update = True


class Change(UpdateStep):
    """The change of the weights from the received ones, which the server adds to the weights that it had sent.

    Vectors, few and delicate, are sent whole. A method's own collections are changes themselves.
    """

    weight_flops = 1.0

    def nbytes(self, held: Contents, rest: Callable[[Contents], int]) -> int:
        """Return the bytes of the steps after it. Raises ValueError for weights under a mask."""
        if held.masked:
            raise ValueError("an update cannot be of weights under a mask")
        return rest(held)


@dataclass(frozen=True)
class Clip(UpdateStep):
    """An update scaled down to a norm. Each parameter costs 3 FLOPs: its square, a sum and a product.

    Source: Lin et al., "Deep Gradient Compression" (2018), section 3.2.
    """

    norm: float
    of_params = True
    param_flops = 3.0


@dataclass(frozen=True)
class Momentum(UpdateStep):
    """The sum of updates g that a device keeps from job to job: u <- m u + g.

    Where a weight is sent, its u becomes 0. Vectors are always sent, and their u stays. With error feedback and top_k
    this is Deep Gradient Compression, with three differences. First, g is the result of a job, which with `fedsgd` is
    -lr times a gradient, so that u remembers the learning rates of its rounds. Second, the largest weights are found
    exactly and among all layers, not in each layer. Third, a device that is not selected keeps its u.
    Source: Lin et al., "Deep Gradient Compression" (2018), sections 3.2 and 3.3; for vectors, the code of its authors.
    """

    m: float
    of_params = True
    keeps = "momentum"
    param_flops = 2.0

    def check(self, steps: tuple[EncodingStep, ...]) -> None:
        """Raise ValueError without error feedback or the largest weights, and with a rotation."""
        feedback, kinds = any(step.feedback for step in steps), {type(step) for step in steps}
        if not (feedback and TopK in kinds):
            sparsify = "top_k" if TopK in kinds else "rand_k" if RandK in kinds else "none"
            found = f"sparsify = '{sparsify}', error_feedback = {str(feedback).lower()}"
            raise ValueError(f"momentum goes with sparsify = 'top_k' and error_feedback = true, found {found}")
        if Rotate in kinds:
            raise ValueError(
                "momentum ends for weights that are sent, and rotate mixes them with others; leave one out"
            )


class ErrorFeedback(UpdateStep):
    """The part of the weights' updates that was not sent. It stays on the device and is added to its next update.

    Source: Stich et al., "Sparsified SGD with Memory" (2018).
    """

    feedback = True
    keeps = "residual"
    weight_flops = 2.0


@dataclass(frozen=True)
class LowRank(UpdateStep):
    """Two thin factors for each tensor of weights.

    The tensor becomes a matrix M, of n outputs by the m weights of each. The device sends P of shape (n, r), whose
    columns are orthonormal, and Q = M^T P of shape (m, r). The server computes P Q^T. P spans M Q with the Q of the
    device's last update, by Gram-Schmidt. The first Q is random, and so is a column that is 0 and would remain 0. A
    matrix is sent whole if this takes no more numbers. This is the compressor of PowerSGD with a P and a Q for each
    device. In the paper, workers reduce the mean of M Q in one exchange and the mean of M^T P in a second, so that all
    have the same P, and the mean has rank r. Here one update is sent as in any other encoding, and the mean of W
    updates may have rank W r. The paper's momentum, after decoding, is the task of a `server_optimizer`.
    Source: Vogels, Karimireddy and Jaggi, "PowerSGD" (2019), algorithm 1.
    """

    rank: int
    keeps = "basis"  # Q^T: its rows are the columns of Q, each in the shape of one output
    keeps_rows = False

    def check(self, steps: tuple[EncodingStep, ...]) -> None:
        """Raise ValueError without error feedback, and with other steps that leave something out."""
        others = {"values": Quantise, "sparsify": Sparsify, "rotate": Rotate}
        found = [key for key, cls in others.items() if any(isinstance(step, cls) for step in steps)]
        if found or not any(step.feedback for step in steps):
            what = [*found, "no error_feedback"][0]
            raise ValueError(f"rank goes with error_feedback = true and none of {', '.join(others)}; found {what}")

    def rank_of(self, outputs: int, each: int) -> int:
        """Return the rank at which a matrix of this shape is sent. 0: whole, as two factors would be no smaller."""
        return self.rank if self.rank * (outputs + each) < outputs * each else 0

    def _factored(self, held: Contents) -> list[tuple[int, int, int]]:
        """Return the shapes and ranks of the matrices of a collection that are sent as two factors."""
        return [(n, m, self.rank) for n, m in held.matrices if self.rank_of(n, m)]

    def nbytes(self, held: Contents, rest: Callable[[Contents], int]) -> int:
        """Return the bytes of factors and small matrices."""
        return rest(held._replace(whole=held.whole - sum(n * m - (n + m) * r for n, m, r in self._factored(held))))

    def flops(self, held: Contents) -> tuple[Flops, Flops]:
        """Return 2 n m r for each of M Q and M^T P and 2 n r^2 + n r for Gram-Schmidt, and 2 n m r for P Q^T.

        Gram-Schmidt takes 4 n for a product and a difference of columns for each pair, and 3 n for each norm.
        """
        factored = self._factored(held)
        products = sum(2.0 * n * m * r for n, m, r in factored)
        gram_schmidt = sum(2.0 * n * r**2 + n * r for n, _, r in factored)
        return Flops(collection=2.0 * products + gram_schmidt), Flops(collection=products)


class Rotate(UpdateStep):
    """A rotation of each layer by a random Hadamard matrix, so that its weights are of similar size.

    Source: Konecny et al., "Federated Learning: Strategies for Improving Communication Efficiency" (2016).
    """

    draws = True

    def flops(self, held: Contents) -> tuple[Flops, Flops]:
        """Return log2 of the count and 2 for each weight, both ways: a sum for each doubling, a sign, and the norm."""
        each = Flops(weight=math.log2(held.whole) + 2.0 if held.whole else 0.0)
        return each, each


@dataclass(frozen=True)
class Sparsify(UpdateStep):
    """A share of the weights, chosen over all layers together and at least one. The others arrive as 0."""

    share: float

    def count(self, weights: int) -> int:
        """Return the number of weights of a collection that are sent."""
        return math.ceil(self.share * weights)

    def passed(self, held: Contents) -> Contents:
        """Return the chosen weights."""
        return held._replace(whole=self.count(held.whole), among=held.whole)


class TopK(Sparsify):
    """The weights that changed most. Finding them costs 3 FLOPs per weight: its magnitude, and two comparisons.

    Source: Stich et al., "Sparsified SGD with Memory" (2018). Quickselect compares each weight twice on average where k
    is small: Knuth, "Mathematical Analysis of Algorithms" (1971).
    """

    weight_flops = 3.0


@dataclass(frozen=True)
class RandK(Sparsify):
    """Random weights, whose indices follow from a seed.

    Source: Konecny et al., "Federated Learning: Strategies for Improving Communication Efficiency" (2016).
    """

    larger: bool  # they are sent larger by the inverse of their share, so that the mean of what arrives is unbiased
    draws = True


class Int32Code(UpdateStep):
    """Indices of the chosen weights, 4 bytes each."""

    def nbytes(self, held: Contents, rest: Callable[[Contents], int]) -> int:
        """Return the bytes of the indices and of the steps after it."""
        return held.collections * INDEX_BYTES * held.whole + rest(held)


class GolombCode(UpdateStep):
    """Indices of the chosen weights as Golomb's code of their gaps (`edgesim.core.golomb`), 2 FLOPs for each index.

    Source: Sattler et al., "Robust and Communication-Efficient Federated Learning from Non-i.i.d. Data" (2019).
    """

    draws = True
    sent_flops = 2.0

    def nbytes(self, held: Contents, rest: Callable[[Contents], int]) -> int:
        """Return the mean length of the code and the bytes of the steps after it."""
        bits = golomb.mean_bits(held.whole, held.among) if held.whole else 0.0
        return held.collections * math.ceil(bits / 8) + rest(held)


@dataclass(frozen=True)
class Quantise(EncodingStep):
    """Numbers in fewer bits. "float16" halves the size of all numbers, and above 65504 they become infinite.

    All other values write the weights of each layer as whole multiples of one float32, and leave vectors, few and
    delicate, as they are. "int8": the nearest multiples of a 127th of the largest weight. "qsgd": multiples of
    norm / 2^(bits - 1), rounded up or down at random so that the mean is the weight. "gsgd": as "qsgd", but shrunk so
    that the mean error is smaller than the weights. The levels of these two are -2^(bits - 1) ... 2^(bits - 1), one
    more than fits. From 3 bits on only one weight of a layer can reach an end, so that the sign of the layer's float32
    tells which end.
    Source: Alistarh et al., "QSGD" (2017); gsgd: Zhao et al., "BEER" (2022).
    """

    values: UpdateValues
    bits: int  # of a weight

    @property
    def scaled(self) -> bool:
        """True if the weights of a layer are multiples of one number, which is sent with them."""
        return self.values != "float16"

    def nbytes(self, held: Contents, rest: Callable[[Contents], int]) -> int:
        """Return the bytes of weights, scales and vectors.

        Where some weights under a mask are 0, "qsgd" and "gsgd" need one more bit for each: no bit pattern is free.
        """
        weight_bits = held.collections * (held.whole + held.masked) * self.bits
        vector_bytes = held.vectors * (NUMBER_BYTES if self.scaled else self.bits // 8)
        scale_bytes = SCALE_BYTES * held.collections * held.layers * self.scaled
        zero_bytes = held.bitmap_bytes if self.values not in NAMED_BITS and held.nonzero < held.masked else 0
        return -(-weight_bits // 8) + vector_bytes + scale_bytes + zero_bytes


@dataclass(frozen=True)
class Sign(Quantise):
    """Signs of the weights, and one magnitude per layer. Each sign costs 2 FLOPs for the magnitude.

    "mean" is the mean magnitude of the layer's weights, which leaves the least error. "root_mean_square" is the root of
    their mean square, which keeps the norm.
    Source: Karimireddy et al., "Error Feedback Fixes SignSGD" (2019), with the mean as scale. root_mean_square: Tang et
    al., "1-bit Adam" (2021), and the code of its authors.
    """

    scale: Scale
    of_update = True
    sent_flops = 2.0


# --- keys of a scenario -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Encoding(Codec):
    """Encoding of the numbers of a payload, as a scenario and most methods name it: by the keys of its steps.

    `values` and `zeros` are of all messages. With "sent" the number 0 marks the zeros under a mask. "qsgd" and "gsgd"
    have no free number for it and need one more bit for each weight.
    The keys from `update` on apply to messages of devices to a server, and so does "sign". They encode the change of
    the weights from the received ones. A method's own collections, such as control variates, are encoded in the same
    way, each by itself, but without `momentum` and `clip_norm`. These two apply only to the model's parameters,
    including vectors (or to the first of a method's own collections, if the method sends those instead, as fedbuff
    does). `steps` has the step of each key, with its source.
    Raises ValueError if `bits` are given for values of fixed size or missing for others, and if other keys do not go
    together.
    """

    values: UpdateValues = "float32"
    bits: Annotated[int, Ge(3), Le(16)] | None = None  # bits of a weight, for qsgd and gsgd
    zeros: Zeros = "sent"
    flops_per_number: Annotated[float, Ge(0), Lt(inf)] = 0.0  # FLOPs of a device for each number sent or received
    update: bool = False  # encode the change of the weights; all keys below and "sign" imply it
    sparsify: Choice = "none"  # choice of the weights to send
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
        if self.warm_up and self.share is None:
            raise ValueError(f"warm_up goes with a share of the weights, found warm_up = {self.warm_up} alone")
        for step in self.steps:
            step.check(self.steps)

    @cached_property
    def steps(self) -> tuple[EncodingStep, ...]:
        """Steps of these keys, in the order of encoding."""
        share, bits = self.share or 1.0, self.bits or NAMED_BITS.get(self.values, 0)
        indices = GolombCode() if self.indices == "golomb" else Int32Code()
        chosen = (
            (self.zeros != "sent", Mask(self.zeros)),
            (self.clip_norm < inf, Clip(self.clip_norm)),
            (self.momentum > 0, Momentum(self.momentum)),
            (self.error_feedback, ErrorFeedback()),
            (self.rank is not None, LowRank(self.rank or 0)),
            (self.rotate, Rotate()),
            (self.sparsify == "top_k", TopK(share)),
            (self.sparsify == "top_k", indices),
            (self.sparsify == "rand_k", RandK(share, larger=not self.error_feedback)),
            (self.values == "sign", Sign(self.values, bits, self.scale)),
            (self.values not in ("float32", "sign"), Quantise(self.values, bits)),
        )
        steps = tuple(step for wanted, step in chosen if wanted)
        changed = self.update or any(step.of_update for step in steps)
        work = (PerNumber(self.flops_per_number),) if self.flops_per_number else ()
        return (*work, *((Change(),) if changed else ()), *steps)

    def in_round(self, round_: int) -> Encoding:
        """Return the encoding in a round counted from 0, which in a warm-up sends a larger share of the weights.

        Source: the code of the authors of Lin et al., "Deep Gradient Compression" (2018).
        """
        if self.share is None or round_ >= self.warm_up:
            return self
        return replace(self, share=self.share ** ((round_ + 1) / (self.warm_up + 1)), warm_up=0)


FLOAT32 = Encoding()
