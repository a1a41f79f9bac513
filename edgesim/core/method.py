"""The seam of federated-learning methods: what a method needs, sees and decides, with a default for each of it.

No torch: weights are opaque here, and what a server computes with them it asks of its tools.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias

from edgesim.core.errors import ContractError
from edgesim.core.local_sgd import LocalSGD, Training
from edgesim.core.peer_graph import PeerGraph
from edgesim.core.rng import Key
from edgesim.core.task import Order, Plan, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, Turn, View

Absent: TypeAlias = Literal["average_over_holders", "include_absent"]  # of updates that lack a parameter
Fn: TypeAlias = Callable[..., Any]


class ServerSet(NamedTuple):
    """Labelled samples that the server has for a method's own use, such as to test an update before it counts."""

    samples: int
    split: Literal["train", "test"] = "test"
    draw: Literal["first", "random", "balanced"] = "first"  # "balanced": at random, equally many of each class
    reserved: bool = False  # for the server alone: no device trains on them, or evaluation leaves them out
    at_most: bool = False  # all of a smaller data set
    option: str | None = None  # of the method, that gives `samples`; named if they are too many
    public: bool = False  # all devices have them too, from before the run: `Context.public`


@dataclass(frozen=True, slots=True)
class Needs:
    """What a method needs from the rest of the program."""

    protocols: frozenset[str] = frozenset({"sync", "deadline"})
    device_state: Literal["none", "computed", "delivered"] = "none"  # when what a device keeps changes
    feedback: bool = False  # plan() reads something that aggregate() or on_exchange() computed
    peers: Literal["any", "fixed"] | None = None  # devices exchange models; with the same peers all the time: "fixed"
    clock: bool = False  # aggregate() or on_exchange() read speeds, costs or the deadline of the setting
    asked: bool = False  # init() reads how devices are asked
    metadata: frozenset[str] = frozenset()  # what every device tells the server once: {"labels"}
    networks: bool = False  # it can train several networks in one run, each on devices of its own


class Aggregate(NamedTuple):
    """A method's new state and global model; `model` None: no new version."""

    state: Any
    model: ModelState | None
    server_flops: float = 0.0  # beside averaging, which the engine prices, and `Method.merge_flops`
    metrics: Mapping[str, Any] = {}  # name -> number, or device id -> number; written to the metrics table


@dataclass(slots=True)
class LocalState:
    """What a job works on: the weights that are trained, and what its method needs beside them until it ends."""

    weights: ModelState
    scratch: Any = None  # a record of the method's own, which neither travels nor stays


class Finished(NamedTuple):
    """What is left of a job when its training ends."""

    body: ModelState  # of which the task's `up` payload is sent
    new_device_state: ModelState | None = None  # what the device keeps for its next job; None: what it kept before
    statistics: Mapping[str, Any] = {}  # numbers or small arrays that are sent beside the body
    own_model: ModelState | None = None  # the device's model, where its body is something else: for what a run reports
    moves: ModelState = {}  # of parameters from those received, where known better than by the rounded body; encoded


@dataclass(frozen=True, slots=True)
class LocalPhase:
    """Behaviour of one run of local SGD, in hooks with the names of their events. Each gets the job's LocalState.

    `context` is an edgesim.learning.train.context.Context. Gradients are a list in the order of `context.trained`.
    """

    loss: Fn | None = None  # (local, batch, context) -> scalar; default: that of the objective
    gradient: Fn | None = None  # (local, batch, context) -> gradients; default: of the loss
    adjust_gradients: Fn | None = None  # (gradients, local, context) -> gradients
    after_step: Fn | None = None  # (local, context) -> None; may change weights and scratch in place
    on_enter: Fn | None = None  # (local, context) -> LocalState, before the first step of the phase
    frozen: frozenset[str] = frozenset()  # layers that this phase runs but does not train, beside those of the task


@dataclass(frozen=True, slots=True)
class LocalRule:
    """What a device does with a task: a phase for each run of its local SGD, and what comes before and after."""

    phases: tuple[LocalPhase, ...] = ()
    on_start: Callable[[Any], LocalState] | None = None  # (context); default: a copy of the model received
    on_finish: Callable[[LocalState, Any], Finished] | None = None  # (local, context); default: the weights are sent


class ServerTools(Protocol):
    """What a server can compute with tensors; `edgesim.learning.server` has them. FLOPs of losses, gradients and of
    all that networks compute are counted as the server's work.
    """

    def finite(self, updates: Sequence[Update]) -> tuple[list[Update], dict[str, float]]:
        """Return the updates whose numbers are all finite, and the metric `left_out` if there are others."""

    def mean(
        self,
        model: ModelState,
        updates: Sequence[Update],
        weights: Sequence[float],
        *,
        absent: Absent,
        cost_profile: Any,
    ) -> ModelState:
        """Return the weighted mean of updates, parameter by parameter; `edgesim.learning.aggregate.mean` says how."""

    @property
    def rows(self) -> Any:
        """Rows of the server's own samples in their split of the data set."""

    @property
    def labels(self) -> Any:
        """Labels of the server's own samples."""

    def loss(self, model: ModelState, places: Any = None) -> float:
        """Return the mean loss of a model on the server's own samples, or on those at `places`."""

    def gradient(
        self, model: ModelState, places: Any = None, layers: Collection[str] | None = None, soft: Any = None
    ) -> dict[str, Any]:
        """Return the gradient of that loss, by parameter."""

    def inputs(self, places: Any = None) -> Any:
        """Return the inputs of the server's own samples, or of those at `places`."""

    @property
    def network(self) -> Any:
        """The network of a run that has one, an edgesim.learning.server_networks.ServerNetwork."""

    @property
    def networks(self) -> Mapping[str, Any]:
        """The networks of the run by name, "" of the only one; see edgesim.core.networks."""

    def own(self, module: Any) -> Any:
        """Return a module of the method's own, such as a generator, as another such network."""

    def step(self, loss: Fn, *models: Any, rate: float = 1.0, like: Any = None) -> float:
        """Take one step of models in training (`network.trained`) down the scalar that `loss` gives; return it."""

    def fit(
        self, network: Any, model: ModelState, local_sgd: LocalSGD, loss: Fn, samples: int, key: Key, rate: Fn = ...
    ) -> ModelState:
        """Return a model trained by the steps of `local_sgd`; loss: (model in training, places of the batch)."""


@dataclass(frozen=True, slots=True)
class ServerContext:
    """What the server knows when it aggregates, and what it can compute with."""

    setting: Setting
    round: int  # rounds closed so far
    tools: Any = None  # ServerTools; None where nothing is computed

    def finite(self, updates: Sequence[Update]) -> tuple[list[Update], dict[str, float]]:
        """Return the updates whose numbers are all finite, and the metric `left_out` if there are others.

        A device that diverged must not spoil the global model.
        """
        usable: tuple[list[Update], dict[str, float]] = self.tools.finite(updates)
        return usable

    def mean(
        self,
        model: ModelState,
        updates: Sequence[Update],
        weights: Sequence[float],
        absent: Absent = "average_over_holders",
    ) -> ModelState:
        """Return the weighted mean of updates; parameters that no update has stay as they are in `model`.

        `weights`: not negative, shape (len(updates),). `absent`: a parameter is averaged over the updates that have it,
        or those that lack it are included with the old value.
        """
        mean: ModelState = self.tools.mean(
            model, updates, weights, absent=absent, cost_profile=self.setting.cost_profile
        )
        return mean


class Method:
    """Base class of federated-learning methods, a frozen dataclass of hyper-parameters and pure functions.

    Every function has a default, and the defaults together are FedAvg: a method overrides what it does otherwise.
    `state` is a plain tree of numbers, strings, lists, dicts and tensors; it is returned, never changed.
    """

    needs: ClassVar[Needs] = Needs()
    no_server_optimizer: ClassVar[str] = ""  # why none may go on from what the server aggregates; "": one may
    no_update_encoding: ClassVar[str] = ""  # why the updates of its devices cannot be encoded as such; "": they can

    @property
    def needs_classes(self) -> str:
        """What the method does for which labels have to be classes, and the loss cross-entropy; "": nothing."""
        return ""

    @property
    def label(self) -> str:
        """What errors call the method: the name of its class."""
        return type(self).__name__

    @property
    def modules(self) -> frozenset[str]:
        """Modules of whose classes records may be part of the state or of what devices keep."""
        return frozenset(cls.__module__ for cls in type(self).__mro__) - {"builtins"}

    @property
    def server_set(self) -> ServerSet | None:
        """Labelled samples of the server's own; None: it has none."""
        return None

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the first state. Raises ConfigError if the method cannot run in this setting."""
        setting.cost.check(widths=0)
        return {}

    def check_peers(self, graph: PeerGraph) -> None:
        """Raise ConfigError if a method among peers cannot use who hears whom."""

    # --- what devices are asked to do -----------------------------------------------------------------------------

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Return the orders of the next exchange, a pure function of its arguments: `task` for the selected devices."""
        return Plan.of_one_task(view.choose(key).tolist(), self.task(view))

    def task(self, view: View) -> Task:
        """Return what all selected devices are asked to do: the scenario's local training of the whole model."""
        return _training_task(view.setting.training, view.round)

    def local(self, task: Task) -> LocalRule:
        """Return how a device carries out a task, a pure function of the task: plain SGD on the objective's loss."""
        return LocalRule((LocalPhase(),) * len(task.local_sgd))

    # --- devices on their own clocks -------------------------------------------------------------------------------

    def next_order(self, state: Any, turn: Turn, key: Key) -> Order:
        """Return the next job of a device on its own clock, a pure function of its arguments.

        `key`: of this device's job of this number, so that no draw depends on the order of events. The task says by
        `own_clock` how the device and its inputs exchange models.
        """
        raise ContractError(f"{type(self).__name__}: has no next_order(), which protocols without rounds ask for")

    def traded(
        self, first: ModelState, mine: ModelState | None, theirs: ModelState | None
    ) -> tuple[ModelState, ModelState]:
        """Return what a device and its peer keep once they have traded models, a pure function of its arguments.

        `mine`, `theirs`: what they kept at that instant; None: nothing yet, they have the `first` model.
        """
        raise ContractError(f"{type(self).__name__}: a task has own_clock 'trade', but the method has no traded()")

    def joined(self, first: ModelState, device_state: ModelState | None, trained: ModelState | None) -> Any:
        """Return what a device on its own clock keeps once a job has ended, a pure function of its arguments.

        `device_state`: what it keeps at that instant, which trades may have changed since the job began; None: nothing
        yet, it has the `first` model. `trained`: the `new_device_state` of the job, which takes its place by default.
        """
        return device_state if trained is None else trained

    # --- what the server makes of updates -------------------------------------------------------------------------

    def aggregate(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the new state and model from updates sorted by job id, none of which need have come.

        Updates that are not finite are left out; what the others make is `combine`'s to say. Without any the model
        stays.
        """
        usable, left_out = server.finite(updates)
        if not usable:
            return Aggregate(state, None, metrics=left_out)
        combined = self.combine(state, global_model, usable, server, key)
        return combined._replace(metrics={**combined.metrics, **left_out})

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the new state and model from finite updates, of which there is at least one: their weighted mean."""
        return Aggregate(state, server.mean(global_model, updates, self.update_weights(updates, server.setting)))

    def update_weights(self, updates: Sequence[Update], setting: Setting) -> Sequence[float]:
        """Return how much each update counts, shape (len(updates),): data size times the protocol's weight."""
        return [update.samples * update.weight for update in updates]

    def merge_flops(self, updates: int, setting: Setting) -> float:
        """Return the FLOPs of aggregating so many updates, at least one, beside averaging them.

        They are what can be known without any weights, and so are charged where nothing is trained too. What follows
        from weights is `Aggregate.server_flops`.
        """
        return 0.0

    def merge_flops_of(self, tasks: Sequence[Task], setting: Setting) -> float:
        """Return the same FLOPs for updates of these tasks, at least one, where their number alone does not tell.

        Other than `merge_flops` it knows of which exchange of the round each update is.
        """
        return self.merge_flops(len(tasks), setting)

    def on_exchange(self, state: Any, updates: Sequence[Update], server: ServerContext, key: Key) -> Any:
        """Return the state after an exchange that others of the same round follow; `aggregate` gets its updates too."""
        return state

    @property
    def sees_exchanges(self) -> bool:
        """Whether the method looks at what an exchange brought before it plans the next one of the round."""
        return type(self).on_exchange is not Method.on_exchange

    # --- what devices use -----------------------------------------------------------------------------------------

    def personal_model(self, global_model: ModelState, device_state: ModelState | None) -> ModelState:
        """Return the model that a device uses which keeps `device_state` (None: nothing yet): the global one.

        Among peers `global_model` is the model that all started from.
        """
        return global_model


@lru_cache(maxsize=8)
def _training_task(training: Training, round_: int) -> Task:
    """Return the task of a round: one object, by which the engine knows it again."""
    return Task(local_sgd=(training.local_sgd(round_),))
