"""What a method asks devices to do: tasks, their parts, payloads and work, and the orders that give them out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from edgesim.encoding import Encoding
from edgesim.local_sgd import Stretch


@dataclass(frozen=True, slots=True)
class Part:
    """Which part of the model a device trains. Tuples and frozensets, so that == and hash work."""

    shape_id: str = "full"
    frozen: frozenset[str] = frozenset()  # layers run forward (BatchNorm in eval mode) but not trained
    width: int = 0  # 1-based rank among the method's widths, read by the "table" cost model; 0 = full model
    units: tuple[tuple[str, tuple[int, ...]], ...] = ()  # unit group of the card -> kept units, in order
    scale: tuple[tuple[str, tuple[float, ...]], ...] = ()  # unit group -> multiplier of each kept activation
    share: float = 0.0  # of the units, of which whole ones were kept: read by the "fedpmt_paper" cost model; 0: as kept
    nnz: tuple[tuple[str, int], ...] = ()  # layer -> nonzero weights: prices a mask; the mask itself is a tensor


@dataclass(frozen=True, slots=True)
class Payload:
    """What crosses a link. `ModelCard.nbytes` is the one price of it."""

    kinds: frozenset[str] = frozenset({"params", "buffers"})
    layers: frozenset[str] | None = None  # None = every layer
    extra_bytes: int = 0  # signals, seeds
    encoding: Encoding | None = None  # None: the scenario's for this direction
    weights_only: bool = False  # only tensors of two dimensions or more: no biases, normalisation or statistics


@dataclass(frozen=True, slots=True)
class Pass:
    """Device work of one kind, priced by the cost model."""

    kind: Literal["train", "forward", "param_step", "flops"] = "train"
    times: float = 1.0  # times the samples of the stretches (param_step: times the steps; flops: itself)
    samples: int | None = None  # instead: this many samples
    part: Part | None = None  # None = the task's part
    update_flops: float = 2.0  # of the optimiser per trained parameter and step; see edgesim.card.update_flops


@dataclass(frozen=True, slots=True)
class Task:
    """What a device is asked to do. One Task object serves all devices that do the same."""

    name: str = "train"  # with the part it alone decides the LocalRule
    home: Literal["server", "self"] = "server"  # "self": starts from what it kept; peers fetch its message
    part: Part = field(default_factory=Part)
    stretches: tuple[Stretch, ...] = ()  # empty: a probe, or the fetch of something kept
    down: Payload | None = field(default_factory=Payload)  # None: a bare request; unused with home "self"
    up: Payload = field(default_factory=Payload)  # what its message holds
    passes: tuple[Pass, ...] = (Pass(),)
    knobs: Mapping[str, float] = field(default_factory=dict)  # read by the method's own rule only


class Wait(NamedTuple):
    """For messages that peers will still send in this round."""

    peers: tuple[int, ...] = ()
    need: int | None = None  # None: all of them; n: the first n
    within_s: float = float("inf")  # from when nothing else is missing; then the device goes on without the rest


NO_WAIT = Wait()


class Order(NamedTuple):
    """A task for one device."""

    device: int
    task: Task
    inputs: tuple[int, ...] = ()  # peers whose newest messages are fetched at once
    wait: Wait = NO_WAIT


class Plan(NamedTuple):
    """The orders of one exchange; `more`: another exchange of the same round follows."""

    orders: tuple[Order, ...]
    more: bool = False
