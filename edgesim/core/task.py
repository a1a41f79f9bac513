"""Tasks of devices: submodels, payloads and work, and the orders that give tasks to devices."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeVar

from edgesim.core.encoding import Codec
from edgesim.core.local_sgd import LocalSGD

Kind = TypeVar("Kind")


@dataclass(frozen=True, slots=True)
class Submodel:
    """Part of the model that a device trains, made of tuples and frozensets so that == and hash work."""

    shape_id: str = "full"
    frozen: frozenset[str] = frozenset()  # layers run forward (BatchNorm in eval mode) but not trained
    width: int = 0  # 1-based rank among the method's widths, read by the "table" cost model; 0 = full model
    channels: tuple[
        tuple[str, tuple[int, ...]], ...
    ] = ()  # channel group of the cost profile -> kept channels, in order
    scale: tuple[tuple[str, tuple[float, ...]], ...] = ()  # channel group -> multiplier of each kept activation
    share: float = 0.0  # share of units before rounding, read by the "fedpmt_paper" cost model; 0: share as kept
    nnz: tuple[tuple[str, int], ...] = ()  # layer -> nonzero weights: prices a mask; the mask itself is a tensor
    network: str = ""  # name of the network in a run with several, which the engine sets by the device


TENSORS = "tensors"  # collection of a body or model with the tensors that a payload declares by TensorSpec


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor of a method's own that a payload carries beside the model's, such as logits or prototypes.

    It lies in the collection "tensors" under its name. An encoding writes its numbers like the numbers of a layer.
    Types other than float32 are sent as they are.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Literal["float32", "int64", "int32", "int16", "int8", "uint8", "bool"] = "float32"

    @property
    def numbers(self) -> int:
        """Count of numbers in the tensor."""
        return math.prod(self.shape)

    @property
    def plain_bytes(self) -> int:
        """Bytes of the tensor without any encoding."""
        return self.numbers * _NUMBER_BYTES[self.dtype]


_NUMBER_BYTES = {"float32": 4, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1}


@dataclass(frozen=True, slots=True)
class Payload:
    """Contents of a message on a link. `CostProfile.nbytes` is its only price."""

    collections: frozenset[str] = frozenset({"params", "buffers"})
    layers: frozenset[str] | None = None  # None = every layer
    extra_bytes: int = 0  # signals, seeds
    encoding: Codec | None = None  # None: the scenario's for this direction
    weights_only: bool = False  # only tensors of two dimensions or more: no biases, normalisation or statistics
    tensors: tuple[TensorSpec, ...] = ()  # of the method's own, beside the model's


@dataclass(frozen=True, slots=True)
class Pass:
    """Device work of one kind, priced by the cost model."""

    kind: Literal["train", "forward", "param_step", "flops"] = "train"
    times: float = 1.0  # times the samples of local SGD (param_step: times the steps; flops: itself)
    samples: int | None = None  # instead: this many samples (param_step: this many steps)
    submodel: Submodel | None = None  # None = the task's own
    update_flops: float = 2.0  # of the optimiser per trained parameter and step; see core.workload.update_flops
    updates: float = 1.0  # of a training pass: updates of the optimiser in each step of local SGD


@dataclass(frozen=True, slots=True)
class CountedWork:
    """Price of a job whose code was run and counted: its work, and the bytes of its messages."""

    flops: float
    memory_bytes: int  # peak on the device
    down_bytes: int
    up_bytes: int
    idle_s: float = 0.0  # seconds in which the code slept, at no power above idle
    amounts: Mapping[str, float] = field(default_factory=dict)  # of the kinds of work in edgesim.core.work.KINDS


@dataclass(frozen=True, slots=True)
class Task:
    """Work of a device. All devices with the same work share one Task object."""

    name: str = "train"  # name and submodel alone decide the LocalRule
    # Start from the server's model, or from the device's own; then peers fetch its update.
    start: Literal["server", "device"] = "server"
    submodel: Submodel = field(default_factory=Submodel)
    local_sgd: tuple[LocalSGD, ...] = ()  # empty: a probe, or a fetch of kept state
    down: Payload | None = field(default_factory=Payload)  # None: a bare request; unused if `start` is "device"
    up: Payload = field(default_factory=Payload)  # contents of its update
    passes: tuple[Pass, ...] = (Pass(),)
    config: Mapping[str, float] = field(default_factory=dict)  # numbers and seeds, read by the method's own rule only
    mixing: Mapping[tuple[int, int], float] = field(default_factory=dict)  # (source, target) -> weight among peers
    # For a peer without rounds. "fetch": it fetches the models of its inputs and computes. "trade": it computes and
    # then trades models with its one input, which keeps another model from then on.
    own_clock: Literal["fetch", "trade"] | None = None
    counted: CountedWork | None = None  # price of code that is no local rule; None: the passes and payloads
    overlaps: bool = False  # download and upload of earlier results pass while the device computes, all from the start
    held_out: int = 0  # samples of the device on which local SGD does not train, chosen by `Context.hold_out`


class Wait(NamedTuple):
    """Wait for messages that peers will still send in this round."""

    peers: tuple[int, ...] = ()
    need: int | None = None  # None: all of them; n: the first n
    within_s: float = float("inf")  # longest wait once nothing else is missing; then the device continues without them


NO_WAIT = Wait()


class Order(NamedTuple):
    """A task for one device."""

    device: int
    task: Task
    inputs: tuple[int, ...] = ()  # peers whose newest messages are fetched at once
    wait: Wait = NO_WAIT


class Plan(NamedTuple):
    """Orders of one exchange. `more`: another exchange of the same round follows."""

    orders: tuple[Order, ...]
    more: bool = False

    @classmethod
    def of_one_task(cls, devices: Iterable[int], task: Task, more: bool = False) -> Plan:
        """Return the plan in which all these devices have the same task."""
        return cls(tuple(Order(device, task) for device in devices), more)

    @classmethod
    def by_kind(cls, devices: Iterable[int], kinds: Iterable[Kind], task_of: Callable[[Kind], Task]) -> Plan:
        """Return the plan in which devices of the same kind share a task, created by `task_of` once for each kind."""
        tasks: dict[Kind, Task] = {}
        orders = []
        for device, kind in zip(devices, kinds, strict=True):
            if kind not in tasks:
                tasks[kind] = task_of(kind)
            orders.append(Order(device, tasks[kind]))
        return cls(tuple(orders))
