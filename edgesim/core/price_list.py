"""Price list of a model: parameters, bytes, FLOPs and memory of every layer, and the cost of a task.

Amounts are per sample. Each amount names the channel groups that it grows with (a device that keeps 3 of 8 units pays
3/8 of it) and the layers of which at least one must be trained for it to be paid. So any part of a model has its exact
price. The module needs no torch, so that timing needs none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Annotated, Literal, NamedTuple, TypeAlias

from pydantic import PlainSerializer, TypeAdapter, ValidationError

from edgesim.core.encoding import FLOAT32, Codec, Contents
from edgesim.core.errors import ConfigError, demand_of
from edgesim.core.task import Payload, Submodel

# Sorted, so that equal profiles give equal text whatever the hash seed of the process.
LayerNames = Annotated[frozenset[str], PlainSerializer(sorted, return_type=list[str])]


@dataclass(frozen=True, slots=True)
class SavedBytes:
    """Bytes that a training step keeps from forward for backward."""

    per_sample: int
    fixed: int  # independent of the batch
    upstream: LayerNames  # kept only if one of these layers is trained
    groups: tuple[str, ...] = ()


class MemoryNeed(NamedTuple):
    """Bytes held at the peak of a training step: at the instant of forward, backward or the update that holds most."""

    weights: int  # parameters, buffers and the base
    gradients: int  # of parameters, as far as they are there at the peak
    optimiser: int  # moments, which are there from step to step
    activations: int  # the batch with its labels, and results kept for backward
    temporaries: int  # other results, gradients of results, copies, and scratch of the optimiser

    @property
    def total(self) -> int:
        """Bytes of all parts."""
        return sum(self)


Part: TypeAlias = Literal["gradient", "kept", "passing"]


class HeldBytes(NamedTuple):
    """Bytes that a training step holds from one instant to another."""

    per_sample: int
    fixed: int  # independent of the batch
    since: int
    until: int  # first instant without them
    owners: int  # place in `StepTimeline.owners`, from 1: held only if one of these layers is trained. 0: always
    groups: int  # place in `StepTimeline.groups`
    part: Part  # of a parameter's gradient, of what is kept for backward, or of anything else


@dataclass(frozen=True, slots=True)
class StepTimeline:
    """Bytes beside weights and the optimiser's state, by instant. The last instant is the update of the weights."""

    instants: int
    owners: tuple[LayerNames, ...]
    groups: tuple[tuple[str, ...], ...]
    held: tuple[HeldBytes, ...]

    def __hash__(self) -> int:
        return hash((self.instants, len(self.held)))  # of all numbers it would take as long as a sum


class ModelSizes(NamedTuple):
    """Numbers and bytes of a whole model as it travels, unencoded, and of its base, which does not travel with it."""

    numbers: int  # parameters that train, and buffers
    nbytes: int
    base: int  # frozen parameters
    base_bytes: int


F32_BYTES = 4
WHOLE = Submodel()

Include: TypeAlias = Literal["counted", "all"]  # FLOPs that PyTorch's counter scores, or also those by formula
Sparse: TypeAlias = Literal["dense", "ideal"]  # hardware that multiplies zeros like any number, or that skips them


@dataclass(frozen=True, slots=True)
class ChannelGroup:
    """Output channels or neurons that can be left out wherever they appear, in one layer or several."""

    name: str  # name of the first layer that has them as outputs
    size: int
    splits: int = 1  # number of equal groups into which group normalisation splits the kept units


@dataclass(frozen=True, slots=True)
class LayerCost:
    """Size of one layer and its FLOPs per sample.

    A layer is a module that directly owns parameters, floating-point buffers or frozen parameters, named by its path:
    "a.b.weight" belongs to "a.b". Its frozen parameters are its part of the base, which is not sent with a model, and
    which a part with fewer channels holds as a whole. `forward_flops` are counted while the module itself ran, without
    its inner modules.
    """

    name: str
    kind: str
    params: int
    buffers: int  # floating-point elements only; integer counters do not travel
    forward_flops: float
    weight_grad_flops: float
    input_grad_flops: float
    upstream: LayerNames  # layers with parameters that its input depends on
    weights: int = 0  # parameters in tensors of two dimensions or more, which a mask can cover
    rows: str = ""  # channel group of its outputs; "" = they are never left out
    columns: str = ""  # channel group of its inputs
    column_spread: int = 1  # consecutive inputs of one unit: the pixels of a flattened channel
    matrices: tuple[tuple[int, int], ...] = ()  # tensors of the weights: outputs, and weights per output
    base: int = 0  # elements of its frozen parameters
    base_bytes: int = 0  # their bytes, as their types have it: 2 a number in bfloat16

    @property
    def groups(self) -> tuple[str, ...]:
        """Channel groups that its FLOPs grow with."""
        return tuple(group for group in (self.rows, self.columns) if group)

    @property
    def reuses_weights(self) -> bool:
        """True if it uses a weight several times per sample, as convolutions do."""
        return self.forward_flops > 2 * self.params

    def backward_flops(self, trained: frozenset[str]) -> float:
        """Return the backward FLOPs per sample of the whole layer if these layers are trained."""
        backward = self.weight_grad_flops * (self.name in trained)
        return backward + self.input_grad_flops * (not trained.isdisjoint(self.upstream))


@dataclass(frozen=True, slots=True)
class ProductCost:
    """Backward FLOPs per sample of work without weights of its own, such as a product of activations.

    Also of forward passes that run again in backward, because a block is checkpointed.
    """

    backward_flops: float
    upstream: LayerNames  # paid only if one of these layers is trained
    layer: str = ""  # layer whose forward pass it is, which a thinner layer and its zeros make cheaper


@dataclass(frozen=True, slots=True)
class OperationCost:
    """FLOPs per sample, by formula, of operations that PyTorch's counter scores as zero."""

    operation: str
    forward_flops: float
    backward_flops: float  # includes the statistics of batch normalisation, which are computed only in training
    upstream: LayerNames  # backward is paid only if one of these layers is trained
    only_with: str = ""  # backward is paid only if this layer is trained too
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkCost:
    """Amount of one kind of work (a name of `edgesim.core.work.KINDS`) that a pass over a batch takes."""

    kind: str
    per_sample: float
    per_step: float = 0.0  # independent of the batch, such as the bytes of weights
    upstream: LayerNames | None = None  # part of backward, paid if one of these layers is trained. None: of forward
    groups: tuple[str, ...] = ()


class Coverage(NamedTuple):
    """Composition of the FLOPs of training the whole model, per sample."""

    counted_flops: float  # scored by PyTorch's counter
    formula_flops: float  # for operations that the counter scores as zero; see edgesim.learning.measure.elementwise
    left_at_zero: tuple[str, ...]  # operations without any FLOPs


@dataclass(frozen=True, slots=True)
class CostProfile:
    """Costs of a model per sample: `layers` in forward order and the work outside them.

    Functions of a submodel raise ValueError if it names a layer, channel group or unit that the model does not have.
    """

    model: str
    input_shape: tuple[int, ...]
    classes: int
    layers: tuple[LayerCost, ...]
    other_forward_flops: float = 0.0  # counted outside every layer
    products: tuple[ProductCost, ...] = ()
    drop_single: bool = False  # batch normalisation: a last batch of one sample is left out
    needs_two: bool = False  # batches of one sample are impossible, as some layer would see one number per channel
    groups: tuple[ChannelGroup, ...] = ()  # groups that can be thinned, in forward order
    operations: tuple[OperationCost, ...] = ()
    left_at_zero: tuple[str, ...] = ()  # operations of the training step that have no price
    saved: tuple[SavedBytes, ...] = ()
    timeline: StepTimeline | None = None  # None: not measured
    work: tuple[WorkCost, ...] | None = None  # by kind, beside FLOPs; None: not measured
    integer_buffer_bytes: int = 0  # counters, which stay on the device and are not of the base
    step_forward_flops: float = 0.0  # FLOPs of a step or other forward pass, independent of its batch
    step_products: tuple[ProductCost, ...] = ()  # backward FLOPs of a step, independent of its batch
    charged_as: CostProfile | None = None  # network to charge instead; see edgesim.learning.cost_models.priced_as
    numbers_scale: float = 1.0  # payload numbers of the charged network for each number of this one
    memory_scale: float = 1.0  # training memory of the charged network for each byte of this one
    charged_base: int | None = None  # frozen parameters of the network that is charged for it; None: its own
    charged_base_bytes: int | None = None  # their bytes; None: its own

    def check_batch(self, key: str, batch: int) -> None:
        """Raise ConfigError, naming the key, for batches of one sample if the model cannot be trained on them."""
        if self.needs_two and batch == 1:
            raise ConfigError(
                f"{key}: must be at least 2, as the batch normalisation of {self.model} needs two samples"
            )

    @property
    def layer_names(self) -> tuple[str, ...]:
        """Names of the layers in forward order."""
        return tuple(layer.name for layer in self.layers)

    @property
    def params(self) -> int:
        """Number of parameters of the whole model."""
        return sum(layer.params for layer in self.layers)

    @property
    def base(self) -> int:
        """Number of frozen parameters of the whole model, which are not sent with it."""
        return sum(layer.base for layer in self.layers)

    @property
    def base_bytes(self) -> int:
        """Bytes of the frozen parameters of the whole model, of the charged network if there is one."""
        if self.charged_base_bytes is not None:
            return self.charged_base_bytes
        return sum(layer.base_bytes for layer in self.layers)

    @property
    def sizes(self) -> ModelSizes:
        """Sizes of the whole model and its base, of the charged network if there is one."""
        base = self.base if self.charged_base is None else self.charged_base
        return ModelSizes(self.numbers(Payload()), self.nbytes(Payload()), base, self.base_bytes)

    @property
    def coverage(self) -> Coverage:
        """Composition of the training FLOPs of the whole model."""
        counted = self.train_flops()
        return Coverage(counted, self.train_flops(include="all") - counted, self.left_at_zero)

    def forward_flops(
        self, submodel: Submodel = WHOLE, include: Include = "counted", sparse: Sparse = "dense"
    ) -> float:
        """Return the FLOPs of one forward pass of a part, per sample. Normalisation uses its running statistics."""
        shares = self._shares(submodel)
        density = self._densities(submodel, shares, sparse)
        flops = self.other_forward_flops
        for layer in self.layers:
            flops += _thinned(layer.forward_flops, layer.groups, shares) * density.get(layer.name, 1.0)
        if include == "all":
            flops += sum(_thinned(work.forward_flops, work.groups, shares) for work in self.operations)
        return flops

    def forward_macs(self, submodel: Submodel = WHOLE) -> float:
        """Return the multiply-accumulates of one forward pass of a part, per sample, as the profiler thop counts them.

        They are half the counted FLOPs, and 4 for each output element of batch normalisation, without biases,
        activations and pooling. Zeros of masked layers count like any weight. Papers print this as a model's "FLOPs".
        """
        shares = self._shares(submodel)
        norms = (work for work in self.operations if work.operation == "batch_norm")
        normalised = sum(_thinned(work.forward_flops, work.groups, shares) for work in norms)
        return self.forward_flops(submodel) / 2 + normalised

    def train_flops(
        self, submodel: Submodel | frozenset[str] = WHOLE, include: Include = "counted", sparse: Sparse = "dense"
    ) -> float:
        """Return the FLOPs of one forward and backward pass per sample, without the optimiser step.

        A frozen set stands for the part that freezes these layers: they run forward but are not trained. A layer's
        input gradient is paid only where a trained layer lies upstream.
        """
        submodel = submodel if isinstance(submodel, Submodel) else Submodel(frozen=submodel)
        trained = self._trained(submodel)
        shares = self._shares(submodel)
        density = self._densities(submodel, shares, sparse)
        flops = self.forward_flops(submodel, include, sparse)
        for layer in self.layers:
            flops += _thinned(layer.backward_flops(trained), layer.groups, shares) * density.get(layer.name, 1.0)
        groups = {layer.name: layer.groups for layer in self.layers}
        due = (product for product in self.products if not trained.isdisjoint(product.upstream))
        flops += sum(
            _thinned(product.backward_flops, groups.get(product.layer, ()), shares) * density.get(product.layer, 1.0)
            for product in due
        )
        if include == "all":
            flops += sum(
                _thinned(work.backward_flops, work.groups, shares)
                for work in self.operations
                if not trained.isdisjoint(work.upstream) and (not work.only_with or work.only_with in trained)
            )
        return flops

    def step_flops(self, submodel: Submodel = WHOLE) -> float:
        """Return the FLOPs of a training step that do not grow with its batch, in addition to `train_flops`."""
        trained = self._trained(submodel)
        due = (product for product in self.step_products if not trained.isdisjoint(product.upstream))
        return self.step_forward_flops + sum(product.backward_flops for product in due)

    def amounts(self, submodel: Submodel = WHOLE, forward_only: bool = False) -> Mapping[str, tuple[float, float]]:
        """Return the measured amounts of a pass over a part by kind of work: per sample, and per step in addition.

        `forward_only`: without backward. Raises ValueError if the kinds of work have not been measured.
        """
        if self.work is None:
            raise ValueError(f"the kinds of work of {self.model} have not been measured")
        trained = frozenset[str]() if forward_only else self._trained(submodel)
        shares = self._shares(submodel)
        found: dict[str, tuple[float, float]] = {}
        for cost in self.work:
            if cost.upstream is None or not trained.isdisjoint(cost.upstream):
                per_sample, per_step = found.get(cost.kind, (0.0, 0.0))
                per_sample += _thinned(cost.per_sample, cost.groups, shares)
                found[cost.kind] = (per_sample, per_step + _thinned(cost.per_step, cost.groups, shares))
        return found

    def submodel_params(self, submodel: Submodel = WHOLE, trained_only: bool = False) -> int:
        """Return the number of parameters of a part, or of its trained layers only."""
        trained, shares = self._trained(submodel), self._shares(submodel)
        return sum(_sizes(layer, shares)[0] for layer in self.layers if layer.name in trained or not trained_only)

    def saved_bytes(self, submodel: Submodel, batch: int) -> int:
        """Return the bytes that a step keeps from forward for backward, without parameters and buffers."""
        trained, shares = self._trained(submodel), self._shares(submodel)
        return sum(
            int(_thinned(kept.fixed + batch * kept.per_sample, kept.groups, shares))
            for kept in self.saved
            if not trained.isdisjoint(kept.upstream)
        )

    def memory_bytes(self, submodel: Submodel, batch: int, moments: int = 0, scratch: int = 0) -> MemoryNeed:
        """Return the bytes at the peak of training a part on batches of this size.

        `moments`: numbers that the optimiser keeps per parameter. `scratch`: copies that it makes of a parameter while
        it updates it, one parameter after another.
        """
        trained, shares = self._trained(submodel), self._shares(submodel)
        weights = F32_BYTES * sum(sum(_sizes(layer, shares)) for layer in self.layers)
        weights += self.integer_buffer_bytes + sum(layer.base_bytes for layer in self.layers)
        optimiser = F32_BYTES * moments * self.submodel_params(submodel, trained_only=True)
        largest = max((_largest(layer, shares) for layer in self.layers if layer.name in trained), default=0)
        peak = (0, 0, 0)
        if self.timeline is not None:
            peak = _peak(self.timeline, trained, batch, tuple(sorted(shares.items())), F32_BYTES * scratch * largest)
        need = MemoryNeed(weights, peak[0], optimiser, peak[1], peak[2])
        return MemoryNeed(*(_scaled(part, self.memory_scale) for part in need))

    def before_last(self, count: int) -> frozenset[str]:
        """Return all layers before the last `count`: freezing them trains only the last. 1 <= count <= layers."""
        if not 1 <= count <= len(self.layers):
            raise ValueError(f"{self.model} has {len(self.layers)} layers; asked for the last {count}")
        return frozenset(self.layer_names[:-count])

    def nbytes(self, payload: Payload, submodel: Submodel = WHOLE, usual: Codec = FLOAT32) -> int:
        """Return the bytes of a payload: its numbers as its encoding writes them, and its extra bytes.

        `submodel`: only the units that it keeps are sent, and its `nnz` gives the weights that a mask keeps. `usual`:
        the encoding of a payload that names none.
        """
        encoding, own_bytes, others_bytes = payload.encoding or usual, 0, 0
        for spec in payload.tensors:
            if spec.dtype != "float32":
                others_bytes += spec.plain_bytes
            elif len(spec.shape) < 2:  # a vector
                own_bytes += encoding.of_others.nbytes(Contents(0, 0, 0, 0, 0, spec.numbers))
            else:  # a layer of weights
                own_bytes += encoding.of_others.nbytes(Contents(1, 1, spec.numbers, 0, 0, 0))
        model_bytes = _scaled(encoding.nbytes(self.contents(payload, submodel)), self.numbers_scale)
        return model_bytes + own_bytes + others_bytes + payload.extra_bytes

    def numbers(self, payload: Payload, submodel: Submodel = WHOLE) -> int:
        """Return the number of numbers in a payload, including zeros: of its layers and of its own tensors."""
        numbers = _scaled(self.contents(payload, submodel).numbers, self.numbers_scale)
        return numbers + sum(spec.numbers for spec in payload.tensors)

    def contents(self, payload: Payload, submodel: Submodel) -> Contents:
        """Return the counts of the numbers of a payload by sort.

        A method's own collection (control variates, momenta) mirrors the parameters and their mask.
        """
        names = frozenset(self.layer_names) if payload.layers is None else payload.layers
        self._check_layers(names)
        shares, nonzero = self._shares(submodel), dict(submodel.nnz)
        self._densities(submodel, shares, "dense")  # checks the mask
        collections, found = len(payload.collections - {"buffers"}), Contents(0, 0, 0, 0, 0, 0)
        for layer in (layer for layer in self.layers if layer.name in names):
            params, buffers = _sizes(layer, shares)
            weights, covered = int(_thinned(layer.weights, layer.groups, shares)), layer.name in nonzero
            statistics = buffers * ("buffers" in payload.collections) * (not payload.weights_only)
            vectors = collections * (params - weights) * (not payload.weights_only)
            matrices = tuple(
                (int(_thinned(outputs, (layer.rows,), shares)), int(_thinned(each, (layer.columns,), shares)))
                for outputs, each in layer.matrices
            )
            found = Contents(
                collections=collections,
                layers=found.layers + (weights > 0),
                whole=found.whole + weights * (not covered),
                masked=found.masked + weights * covered,
                nonzero=found.nonzero + nonzero.get(layer.name, 0),
                vectors=found.vectors + vectors + statistics,
                statistics=found.statistics + statistics,
                matrices=found.matrices + (() if covered else matrices),
            )
        return found

    def kept_channels(self, submodel: Submodel) -> dict[str, tuple[int, ...]]:
        """Return the units that a part keeps of the groups that it thins, by group. Other groups are whole."""
        sizes = {group.name: group.size for group in self.groups}
        for name, channels in submodel.channels:
            if name not in sizes:
                raise ValueError(f"{self.model} has no channel group {name!r} (groups: {', '.join(sizes) or 'none'})")
            if (
                not channels
                or len(set(channels)) < len(channels)
                or not 0 <= min(channels) <= max(channels) < sizes[name]
            ):
                raise ValueError(
                    f"{self.model}: kept channels of {name} must be distinct and in [0, {sizes[name]}), at least one"
                )
        return dict(submodel.channels)

    def to_json(self) -> str:
        """Return the cost profile as JSON text, which `from_json` turns into an equal one."""
        return _PROFILES.dump_json(self, indent=1).decode()

    @staticmethod
    def from_json(text: str) -> CostProfile:
        """Return the cost profile written by `to_json`. Raises ConfigError if the text is not one."""
        try:
            return _PROFILES.validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "text"
            raise ConfigError(f"cost profile: {where}: {demand_of(first)}") from error

    def _check_layers(self, names: Iterable[str]) -> None:
        unknown = set(names).difference(self.layer_names)
        if unknown:
            known = ", ".join(self.layer_names)
            raise ValueError(f"{self.model} has no layer {min(unknown)!r} (layers: {known})")

    def _trained(self, submodel: Submodel) -> frozenset[str]:
        self._check_layers(submodel.frozen)
        return frozenset(self.layer_names) - submodel.frozen

    def _shares(self, submodel: Submodel) -> dict[str, tuple[int, int]]:
        """Return the number of kept units and of all units of each thinned group."""
        sizes = {group.name: group.size for group in self.groups}
        return {name: (len(channels), sizes[name]) for name, channels in self.kept_channels(submodel).items()}

    def _densities(self, submodel: Submodel, shares: _Shares, sparse: Sparse) -> dict[str, float]:
        """Return the share of nonzero weights of a part's masked layers, if the hardware skips zeros."""
        self._check_layers(name for name, _ in submodel.nnz)
        nonzero = dict(submodel.nnz)
        densities: dict[str, float] = {}
        for layer in (layer for layer in self.layers if layer.name in nonzero):
            weights, found = int(_thinned(layer.weights, layer.groups, shares)), nonzero[layer.name]
            if not 0 <= found <= weights or not weights:
                raise ValueError(f"{self.model}: {layer.name} has {weights} weights, found {found} nonzero ones")
            densities[layer.name] = found / weights
        return densities if sparse == "ideal" else {}


_Shares: TypeAlias = Mapping[str, tuple[int, int]]
_PROFILES: TypeAdapter[CostProfile] = TypeAdapter(CostProfile)


def _scaled(amount: int, scale: float) -> int:
    return amount if scale == 1.0 else round(scale * amount)


def _thinned(amount: float, groups: Iterable[str], shares: _Shares) -> float:
    """Return an amount after thinning. It is exact, because amounts are multiples of the sizes of their groups."""
    for group in groups:
        kept, size = shares.get(group, (1, 1))
        amount = amount * kept / size
    return amount


def _largest(layer: LayerCost, shares: _Shares) -> int:
    """Return the numbers of the largest parameter of a layer after thinning."""
    matrices = (
        _thinned(outputs, (layer.rows,), shares) * _thinned(each, (layer.columns,), shares)
        for outputs, each in layer.matrices
    )
    vectors = _thinned(layer.params - layer.weights, (layer.rows,), shares)
    return int(max(matrices, default=vectors))


@lru_cache(maxsize=1024)
def _peak(
    timeline: StepTimeline,
    trained: frozenset[str],
    batch: int,
    thinned: tuple[tuple[str, tuple[int, int]], ...],
    scratch_bytes: int,
) -> tuple[int, int, int]:
    """Return the bytes of gradients, of what is kept, and of anything else at the instant that holds most."""
    shares, last = dict(thinned), timeline.instants - 1
    paid = [True, *(not trained.isdisjoint(owners) for owners in timeline.owners)]
    changes: dict[int, list[int]] = {last: [0, 0, scratch_bytes]}
    for per_sample, fixed, since, until, owners, groups, part in timeline.held:
        if paid[owners]:
            nbytes = fixed + batch * per_sample
            if shares:
                nbytes = round(_thinned(nbytes, timeline.groups[groups], shares))
            place = _PARTS.index(part)
            changes.setdefault(since, [0, 0, 0])[place] += nbytes
            changes.setdefault(until, [0, 0, 0])[place] -= nbytes
    now, most = (0, 0, 0), (0, 0, 0)
    for instant in sorted(changes):
        one, other, third = changes[instant]
        now = (now[0] + one, now[1] + other, now[2] + third)
        if instant <= last and sum(now) > sum(most):
            most = now
    return most


_PARTS = ("gradient", "kept", "passing")


def _sizes(layer: LayerCost, shares: _Shares) -> tuple[int, int]:
    """Return the parameters and buffers of a layer after thinning. Vectors have one entry per output."""
    rows = (layer.rows,)
    params = _thinned(layer.weights, layer.groups, shares) + _thinned(layer.params - layer.weights, rows, shares)
    return int(params), int(_thinned(layer.buffers, rows, shares))


@dataclass(frozen=True, slots=True)
class SeveralProfiles(CostProfile):
    """Costs of several networks together, as if they were one network. They share no layer."""

    networks: Mapping[str, CostProfile] = field(default_factory=dict)  # by name


def profile_of(cost_profile: CostProfile, submodel: Submodel) -> CostProfile:
    """Return the cost profile of a submodel's network, which in a run with one network is the run's profile."""
    return (
        cost_profile.networks[submodel.network]
        if isinstance(cost_profile, SeveralProfiles) and submodel.network
        else cost_profile
    )


def side_by_side(networks: Mapping[str, CostProfile]) -> SeveralProfiles:
    """Return the joint cost profile of networks, whose names prefix the names of their layers and channel groups."""
    each = [_prefixed(name, profile) for name, profile in networks.items()]
    first = each[0]
    return SeveralProfiles(
        model=" + ".join(profile.model for profile in each),
        input_shape=first.input_shape,
        classes=first.classes,
        layers=tuple(layer for profile in each for layer in profile.layers),
        other_forward_flops=sum(profile.other_forward_flops for profile in each),
        products=tuple(product for profile in each for product in profile.products),
        drop_single=any(profile.drop_single for profile in each),
        needs_two=any(profile.needs_two for profile in each),
        groups=tuple(group for profile in each for group in profile.groups),
        operations=tuple(work for profile in each for work in profile.operations),
        left_at_zero=tuple(dict.fromkeys(left for profile in each for left in profile.left_at_zero)),
        saved=tuple(kept for profile in each for kept in profile.saved),
        timeline=_one_after_another([profile.timeline for profile in each if profile.timeline is not None]),
        work=tuple(cost for profile in each for cost in profile.work or ())
        if all(profile.work is not None for profile in each)
        else None,
        integer_buffer_bytes=sum(profile.integer_buffer_bytes for profile in each),
        step_forward_flops=sum(profile.step_forward_flops for profile in each),
        step_products=tuple(product for profile in each for product in profile.step_products),
        networks=dict(networks),
    )


def _one_after_another(timelines: Sequence[StepTimeline]) -> StepTimeline:
    owners: list[LayerNames] = []
    groups: list[tuple[str, ...]] = []
    held: list[HeldBytes] = []
    instants = 0
    for each in timelines:
        held.extend(
            one._replace(
                since=one.since + instants,
                until=one.until + instants,
                owners=one.owners and one.owners + len(owners),
                groups=one.groups + len(groups),
            )
            for one in each.held
        )
        owners.extend(each.owners)
        groups.extend(each.groups)
        instants += each.instants
    return StepTimeline(instants, tuple(owners), tuple(groups), tuple(held))


def _prefixed(name: str, profile: CostProfile) -> CostProfile:
    """Return a cost profile whose layers and channel groups have a prefix before their names."""

    def own(found: str) -> str:
        return found and f"{name}.{found}"

    def all_own(found: Iterable[str]) -> LayerNames:
        return frozenset(map(own, found))

    def layer_of(layer: LayerCost) -> LayerCost:
        rows, columns = own(layer.rows), own(layer.columns)
        return replace(layer, name=own(layer.name), rows=rows, columns=columns, upstream=all_own(layer.upstream))

    def group_of(group: ChannelGroup) -> ChannelGroup:
        return replace(group, name=own(group.name))

    def product_of(product: ProductCost) -> ProductCost:
        return replace(product, upstream=all_own(product.upstream), layer=own(product.layer))

    return replace(
        profile,
        layers=tuple(map(layer_of, profile.layers)),
        groups=tuple(map(group_of, profile.groups)),
        products=tuple(map(product_of, profile.products)),
        step_products=tuple(map(product_of, profile.step_products)),
        operations=tuple(
            replace(
                work,
                upstream=all_own(work.upstream),
                only_with=own(work.only_with),
                groups=tuple(map(own, work.groups)),
            )
            for work in profile.operations
        ),
        saved=tuple(
            replace(kept, upstream=all_own(kept.upstream), groups=tuple(map(own, kept.groups)))
            for kept in profile.saved
        ),
        timeline=profile.timeline
        and replace(
            profile.timeline,
            owners=tuple(map(all_own, profile.timeline.owners)),
            groups=tuple(tuple(map(own, each)) for each in profile.timeline.groups),
        ),
        work=profile.work
        and tuple(
            replace(
                cost,
                upstream=None if cost.upstream is None else all_own(cost.upstream),
                groups=tuple(map(own, cost.groups)),
            )
            for cost in profile.work
        ),
    )
