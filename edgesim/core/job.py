"""Jobs of devices: what a job is, what it takes, and how it ended."""

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
    "late",  # too late for its round, or there were enough without it, or too few with it
    "stale",  # delivered, but started from a model that is too old for the protocol
    "lost",  # delivered, and lost by a server that restarted before the merge
    "crashed",  # the device crashed
    "offline",  # the device left
    "moved",  # the device moved to another edge server, which got the update, or nobody
    "battery",  # the battery was empty
    "no_memory",  # refused: the device lacks the memory
    "stopped",  # at work when the run ended
]
DELIVERED = frozenset({"ok", "partial"})
ONE_SESSION = "session1"  # the name of the training of a run that has no others
SESSION_NAME = r"^[A-Za-z0-9_-]{1,64}$"  # the form of names of sessions, which are parts of file names
ON_TIME_S = 1e-9  # what happens this soon after an instant, such as a deadline, happens at it


class Prices(NamedTuple, Generic[Number]):
    """What undisturbed jobs cost: numbers of one job, or float64 arrays of shape (k,) of k jobs.

    Joules are what a job adds to idle power. Among peers nothing crosses a link between device and server: download
    and upload take no seconds, bytes or joules here, as what peers exchange shows only while they do.
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
    down_latency_s: Number  # of down_s, the seconds before the first bit flows
    up_latency_s: Number  # of up_s
    message_bytes: Number  # size of the update, whoever it is for: of a job of the server the same as up_bytes
    memory_bytes: Number  # that the device needs at the peak; 0 if nothing is trained
    down_air_bytes: Number  # of down_bytes, as many as cross the air, with those that are sent again
    up_air_bytes: Number  # of up_bytes


@dataclass(slots=True, eq=False, kw_only=True)
class Job:
    """An order with its prices. Training is a pure function of task, base model, what the device kept and its key."""

    id: int
    device: int
    task: Task
    round: int
    nth: int  # training orders the device had before: with it keys do not depend on the order of events
    base: ModelRef
    sent_s: float
    due_s: float  # when it ends if nothing happens; inf: not known
    prices: Prices[float]
    inputs: tuple[int, ...] = ()
    wait: Wait = NO_WAIT
    steps: int | None = None  # SGD steps after which the device stops; None: all
    to: int | None = None  # node of the edge server that gets the update; None: who asked
    received: tuple[ModelRef, ...] = ()  # messages of peers that it starts from, for certain once it computes
    partner: int | None = None  # the peer with which it has traded models
    ended: bool = False
    number: int = 0  # among the jobs of its session, as tables show it; `id` is that in the world


class Completion(NamedTuple):
    """How a job ended. `computed`: the device finished its computation, whatever became of the upload."""

    job: Job
    ended_s: float
    outcome: Outcome
    staleness: int
    computed: bool
    weight: float = 1.0  # what the protocol lets it count
