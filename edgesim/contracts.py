"""The one file where world, engine, learning and methods meet. No torch, no SimPy: only names and shapes.

Words used throughout. *Device* ids are int64 arrays or plain ints from 0; *owner* 0 is the server and
1 + i is device i. A *task* says what is to be done, an *order* gives a task to one device, a *job* is an
order stamped by the engine, an *arrival* is how a job ended, a *message* is what it delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np

from edgesim.encoding import FLOAT32
from edgesim.encoding import Encoding as Encoding
from edgesim.local_sgd import Stretch as Stretch
from edgesim.local_sgd import Training as Training
from edgesim.orders import NO_WAIT as NO_WAIT
from edgesim.orders import Order as Order
from edgesim.orders import Part as Part
from edgesim.orders import Pass as Pass
from edgesim.orders import Payload as Payload
from edgesim.orders import Plan as Plan
from edgesim.orders import Task as Task
from edgesim.orders import Wait as Wait
from edgesim.rng import Key

Ids: TypeAlias = np.ndarray  # int64, shape (k,)
Arr: TypeAlias = np.ndarray  # float64, shape (k,)
Fn: TypeAlias = Callable[..., Any]
Speeds: TypeAlias = Callable[[Ids, Arr, Mapping[str, Arr] | None], Arr]
Bundle: TypeAlias = Mapping[str, Mapping[str, Any]]  # kind ("params", "buffers", own) -> name -> tensor
Outcome: TypeAlias = Literal[
    "ok",  # delivered
    "partial",  # delivered, after part of the local steps
    "late",  # too late for its round
    "stale",  # delivered, but too many versions behind
    "lost",  # delivered, then lost by the server before it was merged
    "crashed",
    "offline",  # left in mid-job
    "battery",
    "no_memory",
    "stopped",  # in flight when the run ended
]
DELIVERED = frozenset({"ok", "partial"})

SERVER = 0  # owner of the global model


class ModelRef(NamedTuple):
    """A model or message by name; it may not have been computed yet."""

    owner: int  # SERVER, or 1 + device id
    version: int  # global models so far; of a device's message: the job that gave it, -1 for the first model


# --- prices -------------------------------------------------------------------------------------------------


class CostModel(Protocol):
    """Floating-point operations of device work."""

    def check(self, widths: int) -> None:
        """Raise ConfigError if a method with this many partial widths cannot be priced."""

    def flops(self, card: Any, work: Pass, part: Part, samples: Arr, steps: Arr) -> Arr:
        """Return FLOPs, shape (k,), of one pass over `samples` in `steps` SGD steps."""


@runtime_checkable
class Itemised(Protocol):
    """A cost model that knows of what its FLOPs consist, so that devices may have a speed for each kind of layer."""

    def amounts(self, card: Any, work: Pass, part: Part, samples: Arr, steps: Arr) -> Mapping[str, Arr]:
        """Return how much of each term of edgesim.config.profiles one pass does, shape (k,); one of them is `flops`."""


# --- what a method sees -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Constant facts of a run, known to the server. Arrays have one entry a device and are read-only."""

    card: Any  # edgesim.card.ModelCard
    cost: CostModel
    training: Training
    samples: Ids
    level: Ids  # capability label of the scenario
    flops_per_s: Arr
    up_bps: Arr
    down_bps: Arr
    latency_s: Arr
    memory_bytes: Arr  # for training; inf: no limit
    deadline_s: float  # of a round; inf if the coordinator has none
    labels: Arr | None = None  # label counts, shape (devices, classes), if the method asks for reports
    encoding_up: Encoding = FLOAT32  # of payloads that name none: to the server or to peers
    encoding_down: Encoding = FLOAT32  # and from the server
    speeds: Speeds | None = None  # devices, FLOPs and their terms -> seconds at full speed; None: by flops_per_s alone


class View(Protocol):
    """All that a method may know at a moment. Asking never changes anything."""

    @property
    def setting(self) -> Setting:
        """Constant facts of the run."""

    @property
    def now_s(self) -> float:
        """Simulated seconds since the start."""

    @property
    def version(self) -> int:
        """Global models so far."""

    @property
    def round(self) -> int:
        """Rounds closed so far; moves even if nothing arrived."""

    @property
    def exchange(self) -> int:
        """Exchanges of this round so far."""

    @property
    def free_places(self) -> int:
        """How many devices may still be asked now."""

    @property
    def last(self) -> Sequence[Arrival]:
        """Arrivals of the previous exchange."""

    @property
    def idle(self) -> Ids:
        """Ids of reachable devices without a job, ascending."""

    @property
    def peers(self) -> Any:
        """Whom each device hears in this round, an edgesim.peering.PeerGraph over the idle devices."""

    def choose(self, key: Key) -> Ids:
        """Return distinct idle devices, ascending, by the scenario's selection rule."""


# --- what travels -------------------------------------------------------------------------------------------


class Message(NamedTuple):
    """What a finished job delivered to the server or to a peer."""

    device: int
    job: int
    task: Task
    body: Bundle  # kinds and layers of the task's `up` payload
    samples: int  # local data size n_k
    steps: int  # SGD steps really taken
    staleness: int
    signals: Mapping[str, Any]  # numbers or small arrays
    weight: float = 1.0  # what the protocol lets it count, beside the method's own weights


class ServerSet(NamedTuple):
    """Labelled samples that the server has for a method's own use, such as to test an update before it counts."""

    samples: int
    split: Literal["train", "test"] = "test"
    draw: Literal["first", "random", "balanced"] = "first"  # "balanced": at random, equally many of each class
    reserved: bool = False  # for the server alone: no device trains on them, or evaluation leaves them out
    at_most: bool = False  # all of a smaller data set
    option: str | None = None  # of the method, that gives `samples`; named if they are too many


@dataclass(frozen=True, slots=True)
class Needs:
    """What a method needs from the rest of the program."""

    coordinators: frozenset[str] = frozenset({"sync", "deadline"})
    keep: Literal["no", "computed", "delivered"] = "no"  # when the device's own memory changes
    feedback: bool = False  # plan() reads something that merge() or hear() computed
    hears: bool = False  # looks at what an exchange brought before it plans the next one of the round
    peers: bool = False  # devices exchange models among themselves
    reports: frozenset[str] = frozenset()  # told once by every device: {"labels"}


class Merged(NamedTuple):
    """A method's new state and global model; `model` None: no new version."""

    state: Any
    model: Bundle | None
    server_flops: float = 0.0  # beside averaging, which the engine prices
    notes: Mapping[str, Any] = {}  # name -> number, or device id -> number; written to the notes table


@dataclass(frozen=True, slots=True)
class LocalPhase:
    """Behaviour of one stretch of local training. `w` is a Bundle that may also carry a method's own kinds."""

    loss: Fn  # (w, batch, ctx) -> scalar
    gradient: Fn | None = None  # (w, batch, ctx) -> gradients, a list in the order of ctx.trained; default: of loss
    adjust: Fn | None = None  # (gradients, w, ctx) -> gradients
    enter: Fn | None = None  # (w, ctx) -> w


@dataclass(frozen=True, slots=True)
class LocalRule:
    """What a device does with a task."""

    phases: tuple[LocalPhase, ...] = ()
    start: Fn | None = None  # (base, own, ctx) -> w; default: a copy of base
    finish: Fn | None = None  # (w, ctx) -> (body, keep, signals); default: (w, None, {})


class Method(Protocol):
    """A federated-learning method: a frozen dataclass of hyper-parameters and these pure functions.

    `state` is a plain tree of numbers, strings, lists, dicts and tensors; it is returned, never changed.

    A method with `needs.hears` also has `hear(state, got, view, key)`, which returns a new state; it is called with the
    messages of every exchange but the last of a round, which `merge` gets once more. A method whose server has samples
    of its own has `server_set`, a ServerSet. One whose devices use models of their own has `personal(base, own)`, which
    returns the model of a device that kept `own` (None: nothing yet); `base` is the global model, or the peers' first.
    One among peers may have `check_peers(graph)`, which raises ConfigError if it cannot use who hears whom, and
    `fixed_peers`, set if that has to be the same in every round.
    """

    needs: ClassVar[Needs]

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the first state. Raises ConfigError if the method cannot run in this setting."""

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Return the orders of the next exchange; a pure function of its arguments."""

    def local(self, task: Task) -> LocalRule:
        """Return what a device does with a task; a pure function of the task."""

    def merge(self, state: Any, base: Bundle, got: Sequence[Message], view: View, tools: Any, key: Key) -> Merged:
        """Return new state and model from messages sorted by job id; `base` is the current global model."""


# --- stamped by the engine ----------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Job:
    """An order with its prices. Training is a pure function of task, base model, what the device kept and its key.

    Seconds, bytes, FLOPs and joules are those of the undisturbed job; joules are what it adds to idle power.
    """

    id: int
    device: int
    task: Task
    round: int
    nth: int  # training orders the device had before: with it keys do not depend on the order of events
    base: ModelRef
    sent_s: float
    due_s: float  # when it arrives if nothing happens
    down_s: float
    compute_s: float
    up_s: float
    flops: float
    down_bytes: int
    up_bytes: int
    down_j: float
    compute_j: float
    up_j: float
    down_latency_s: float = 0.0  # of down_s and up_s, the seconds before the first bit flows
    up_latency_s: float = 0.0
    inputs: tuple[int, ...] = ()
    wait: Wait = NO_WAIT
    steps: int | None = None  # SGD steps after which the device stops; None: all
    received: tuple[ModelRef, ...] = ()  # messages of peers that it starts from, known once it computes
    ended: bool = False


class Arrival(NamedTuple):
    """How a job ended. `computed`: the device finished its computation, whatever became of the upload."""

    job: Job
    arrived_s: float
    outcome: Outcome
    staleness: int
    computed: bool
    weight: float = 1.0  # what the protocol lets it count


# --- the seams the coordinators see -------------------------------------------------------------------------


class Score(NamedTuple):
    """Mean loss and accuracy over `samples` test samples."""

    loss: float
    accuracy: float
    samples: int


class Assignment(NamedTuple):
    """All that local training depends on."""

    job: int
    device: int
    task: Task
    key: Key
    base: Bundle  # the global model the device received
    own: Bundle | None  # what the device kept
    received: Sequence[Message] = ()  # of peers
    steps: int | None = None  # SGD steps after which the device stops; None: all

    def left_after(self, steps: int) -> int | None:
        """Return how many SGD steps the device still takes after so many; None: all that remain."""
        return None if self.steps is None else max(0, self.steps - steps)


class Result(NamedTuple):
    """What local training gave."""

    body: Bundle  # kinds and layers of the task's `up` payload
    keep: Bundle | None
    signals: Mapping[str, Any]
    steps: int


class Backend(Protocol):
    """Trains what it is given; the learner asks for nothing that is not needed."""

    trains: ClassVar[bool]  # False: timing only, no tensors exist

    def train(self, assignments: Sequence[Assignment]) -> Sequence[Result]:
        """Carry out assignments, in any inner order; return their results in the order given."""

    def evaluate(self, model: Bundle) -> Mapping[str, Score]:
        """Return the scores of a global model by split name."""

    def evaluate_personal(self, models: Mapping[int, Bundle]) -> Mapping[int, Score]:
        """Return the score of each device's model on the device's own test set."""

    def close(self) -> None:
        """Release processes and memory. May be called twice."""


class Learner(Protocol):
    """Method, backend and state of a run, as the coordinators see them."""

    trains: bool

    def plan(self, view: View) -> Plan:
        """Ask the method for the orders of the next exchange."""

    def start(self, jobs: Sequence[Job]) -> None:
        """Hand jobs to the backend; nothing is trained yet."""

    def cancel(self, arrivals: Sequence[Arrival]) -> None:
        """Forget jobs that did not deliver; train only what a device's memory depends on."""

    def hear(self, arrivals: Sequence[Arrival], view: View) -> None:
        """Let the method look at what an exchange delivered that others of the same round follow."""

    def merge(self, arrivals: Sequence[Arrival], view: View) -> MergeResult:
        """Train and merge the arrivals that delivered."""

    def evaluate(self, model: ModelRef) -> Mapping[str, Score]:
        """Score a global model."""

    def evaluate_personal(self) -> Mapping[int, Score]:
        """Score the model that each device would use now on the device's own test set."""


class MergeResult(NamedTuple):
    """The global model after a merge, the server work it took and what the method wants to be seen."""

    model: ModelRef
    server_flops: float = 0.0
    notes: Mapping[str, Any] = {}


class Selection(Protocol):
    """Who is asked: a frozen dataclass. `engine/selections/rules.py` has those that come with edgesim."""

    def check(self, level: Ids) -> None:
        """Raise ConfigError if the rule does not fit devices of these levels, shape (devices,)."""

    def choose(self, idle: Ids, level: Ids, key: Key) -> Ids:
        """Return distinct ids of `idle`, ascending; a pure function of its arguments."""


class Coordinator(Protocol):
    """The protocol of a run as one SimPy process: a frozen dataclass. `coordinators/sync.py` is the shortest."""

    protocol: str  # by which methods say what they run on, in `Needs.coordinators`
    deadline_s: float  # of a round; inf if there is none

    def check(self, devices: int, asked: int) -> None:
        """Raise ConfigError if it cannot work with a fleet of so many devices, of which so many are asked."""

    def run(self, engine: Any, rounds: Any, learner: Learner) -> Iterator[Any]:
        """Ask, wait and merge until `rounds` are stopped: a generator of the SimPy events that it waits for."""
