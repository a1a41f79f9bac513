"""Jobs of devices: their orders, their prices, and their outcomes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np

from edgesim.core.task import NO_WAIT, Task, Wait
from edgesim.core.update import ModelRef

Number = TypeVar("Number", float, np.ndarray)

Outcome: TypeAlias = Literal[
    "ok",  # delivered
    "partial",  # delivered after part of its local steps
    "late",  # too late for its round, or not needed, because enough updates came before or too few in all
    "stale",  # delivered, but started from a model that is too old for the protocol
    "lost",  # delivered, and lost by a server that restarted before the merge
    "outage",  # not received by radio: lost with its errors, or not sent as the channel is too weak
    "crashed",  # the device crashed
    "offline",  # the device left
    "moved",  # the device moved to another edge server, which got the update, or the update was lost
    "battery",  # the battery was empty
    "no_memory",  # refused: the device lacks the memory
    "stopped",  # in progress when the run ended
]
DELIVERED = frozenset({"ok", "partial"})
ONE_SESSION = "session1"  # name of the only training of a run
SESSION_NAME = r"^[A-Za-z0-9_-]{1,64}$"  # pattern of session names, which are parts of file names
ON_TIME_S = 1e-9  # an event this soon after an instant, such as a deadline, counts as simultaneous


class Prices(NamedTuple, Generic[Number]):
    """Costs of undisturbed jobs: numbers of one job, or float64 arrays of shape (k,) of k jobs.

    Joules are above idle power. Among peers nothing crosses a link between device and server. Download and upload then
    take no seconds, bytes or joules here, because the costs of exchanges between peers are known only as they happen.
    """

    down_s: Number
    compute_s: Number
    up_s: Number
    flops: Number
    down_bytes: Number  # from the server
    up_bytes: Number  # to the server
    down_j: Number
    compute_j: Number
    up_j: Number
    down_latency_s: Number  # part of down_s before the first bit flows
    up_latency_s: Number  # part of up_s before the first bit flows
    message_bytes: Number  # size of the update for any receiver; equals up_bytes in a job of the server
    memory_bytes: Number  # peak memory that the device needs; 0 if nothing is trained
    down_air_bytes: Number  # bytes on the air for down_bytes, with retransmissions
    up_air_bytes: Number  # bytes on the air for up_bytes, with retransmissions


class JobChoice(NamedTuple):
    """Frequency, power and bandwidth that were chosen for a job."""

    frequency_hz: float  # of the CPU
    power_w: float  # radiated during the upload
    hertz: float  # of the uplink of its cell
    drawn_w: float  # by the radio during the upload, above idle power
    up_bps: float  # rate of the upload without fading


@dataclass(slots=True, eq=False, kw_only=True)
class Job:
    """An order with its prices. Training is a pure function of task, base model, kept device state and key."""

    id: int
    device: int
    task: Task
    round: int
    nth: int  # earlier training orders of the device, so that keys do not depend on the order of events
    base: ModelRef
    sent_s: float
    due_s: float  # time of its end if nothing interferes; inf: not known
    prices: Prices[float]
    inputs: tuple[int, ...] = ()
    wait: Wait = NO_WAIT
    samples: int | None = None  # that had arrived when it was sent; None: all of the device's
    steps: int | None = None  # SGD steps after which the device stops; None: all
    choice: JobChoice | None = None  # None: governor, network and allocator choose
    to: int | None = None  # node of the edge server that gets the update; None: the server that sent the order
    received: tuple[ModelRef, ...] = ()  # messages of peers that it starts from, final once it computes
    partner: int | None = None  # peer with which it has traded models
    ended: bool = False
    number: int = 0  # number among the jobs of its session, as in tables; `id` is the number in the world


class Completion(NamedTuple):
    """End of a job. `computed`: the device finished its computation, whether or not the upload succeeded."""

    job: Job
    ended_s: float
    outcome: Outcome
    staleness: int
    computed: bool
    weight: float = 1.0  # weight from the protocol
