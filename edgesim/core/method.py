"""Interface of federated-learning methods: the needs, inputs and decisions of a method, with a default for each.

No torch: weights are opaque here, and the server computes with them by its tools.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias

from edgesim.core.errors import ContractError
from edgesim.core.job import Job
from edgesim.core.local_sgd import LocalSGD, Training
from edgesim.core.model_state import model_in
from edgesim.core.peer_graph import PeerGraph
from edgesim.core.rng import Key
from edgesim.core.task import Order, Plan, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, Turn, View

Absent: TypeAlias = Literal["average_over_holders", "include_absent"]  # treatment of updates that lack a parameter
Fn: TypeAlias = Callable[..., Any]


class ServerSet(NamedTuple):
    """Labelled samples that the server has for a method's own use, such as to test an update before it counts."""

    samples: int
    split: Literal["train", "test"] = "test"
    draw: Literal["first", "random", "balanced"] = "first"  # "balanced": at random, equally many of each class
    reserved: bool = False  # for the server alone: no device trains on them, or evaluation leaves them out
    at_most: bool = False  # use the whole split if it has fewer samples
    option: str | None = None  # the method's option that gives `samples`, named in the error for too many
    public: bool = False  # all devices have them too, from before the run: `Context.public`


@dataclass(frozen=True, slots=True)
class Needs:
    """Requirements of a method on the rest of the program."""

    protocols: frozenset[str] = frozenset({"sync", "deadline"})
    device_state: Literal["none", "computed", "delivered"] = "none"  # event at which the kept state of a device changes
    feedback: bool = False  # plan() reads something that aggregate() or on_exchange() computed
    peers: Literal["any", "fixed"] | None = None  # devices exchange models; "fixed": always with the same peers
    clock: bool = False  # aggregate() or on_exchange() read speeds, costs or the deadline of the setting
    asked: bool = False  # init() reads how devices are selected
    metadata: frozenset[str] = frozenset()  # facts that every device sends to the server once: {"labels"}
    overlap: bool = False  # tasks overlap transfers with computing, and every device takes part in every round
    networks: bool = False  # the method can train several networks in one run, each on devices of its own


class Aggregate(NamedTuple):
    """New state and global model of a method. `model` None: no new version."""

    state: Any
    model: ModelState | None
    server_flops: float = 0.0  # in addition to averaging, which the engine prices, and to `Method.merge_flops`
    metrics: Mapping[str, Any] = {}  # name -> number, or device id -> number; written to the metrics table


@dataclass(slots=True)
class LocalState:
    """Data of a job in progress: the weights in training, and the method's own data until the job ends."""

    weights: ModelState
    scratch: Any = None  # a record of the method's own, which is neither sent nor kept
    optimizer: list[Any] = field(default_factory=list)  # state of a phase with `keeps_optimizer`, by trained parameter


class Finished(NamedTuple):
    """Results of a job when its training ends."""

    body: ModelState  # the task's `up` payload is taken from it
    new_device_state: ModelState | None = None  # state that the device keeps for its next job; None: the old state
    statistics: Mapping[str, Any] = {}  # numbers or small arrays that are sent beside the body
    own_model: ModelState | None = None  # the device's model for reports, where the body is something else
    moves: ModelState = {}  # changes of received parameters, where known more exactly than by the rounded body; encoded


@dataclass(frozen=True, slots=True)
class LocalPhase:
    """Behaviour of one run of local SGD, in hooks with the names of their events. Each gets the job's LocalState.

    `context` is an edgesim.learning.train.context.Context. Gradients are a list in the order of `context.trained`.
    """

    loss: Fn | None = None  # (local, batch, context) -> scalar; default: the objective's loss
    gradient: Fn | None = None  # (local, batch, context) -> gradients; default: the gradients of the loss
    adjust_gradients: Fn | None = None  # (gradients, local, context) -> gradients
    after_step: Fn | None = None  # (local, context) -> None; may change weights and scratch in place
    on_enter: Fn | None = None  # (local, context) -> LocalState, before the first step of the phase
    frozen: frozenset[str] = frozenset()  # layers that this phase runs but does not train, added to those of the task
    keeps_optimizer: bool = False  # the optimiser goes on from `LocalState.optimizer` and leaves its state there
    run: Fn | None = None  # (local, local SGD, context, key) -> steps; a run in place of local SGD, with on_enter alone


@dataclass(frozen=True, slots=True)
class LocalRule:
    """Work of a device on a task: a phase for each run of its local SGD, and functions before and after."""

    phases: tuple[LocalPhase, ...] = ()
    on_start: Callable[[Any], LocalState] | None = None  # (context); default: a copy of the model received
    on_finish: Callable[[LocalState, Any], Finished] | None = None  # (local, context); default: the weights are sent

    @property
    def is_plain(self) -> bool:
        """True if the rule trains by one run of plain SGD, whatever it does before and after."""
        return self.phases == (LocalPhase(),)


class ServerTools(Protocol):
    """Tensor computations of a server, implemented in `edgesim.learning.server`. FLOPs of losses, gradients and all
    network computations count as the server's work.
    """

    def finite(self, updates: Sequence[Update]) -> tuple[list[Update], dict[str, float]]:
        """Return the updates whose numbers are all finite, and the metric `left_out` if others exist."""

    def mean(
        self,
        model: ModelState,
        updates: Sequence[Update],
        weights: Sequence[float],
        *,
        absent: Absent,
        cost_profile: Any,
    ) -> ModelState:
        """Return the weighted mean of updates, parameter by parameter, as `edgesim.learning.aggregate.mean`."""

    @property
    def rows(self) -> Any:
        """Rows of the server's own samples in their split of the data set."""

    @property
    def labels(self) -> Any:
        """Labels of the server's own samples."""

    def loss(self, model: ModelState, places: Any = None) -> float:
        """Return the mean loss of a model on the server's own samples, or on its samples at `places`."""

    def gradient(
        self, model: ModelState, places: Any = None, layers: Collection[str] | None = None, soft: Any = None
    ) -> dict[str, Any]:
        """Return the gradient of the mean loss, by parameter."""

    def inputs(self, places: Any = None) -> Any:
        """Return the inputs of the server's own samples, or of its samples at `places`."""

    @property
    def network(self) -> Any:
        """Network of a run that has only one, an edgesim.learning.server_networks.ServerNetwork."""

    @property
    def networks(self) -> Mapping[str, Any]:
        """Networks of the run by name, with the name "" for a single network; see edgesim.core.networks."""

    def own(self, module: Any) -> Any:
        """Return a module of the method's own, such as a generator, as a ServerNetwork."""

    def step(self, loss: Fn, *models: Any, rate: float = 1.0, like: Any = None) -> float:
        """Take one descent step of models in training (`network.trained`) on the scalar `loss`, and return the loss."""

    def fit(
        self, network: Any, model: ModelState, local_sgd: LocalSGD, loss: Fn, samples: int, key: Key, rate: Fn = ...
    ) -> ModelState:
        """Return a model trained by the steps of `local_sgd`. `loss`: (model in training, places of the batch)."""


@dataclass(frozen=True, slots=True)
class ServerContext:
    """Facts and tools of the server when it aggregates."""

    setting: Setting
    round: int  # rounds closed so far
    tools: Any = None  # ServerTools; None where nothing is computed

    def finite(self, updates: Sequence[Update]) -> tuple[list[Update], dict[str, float]]:
        """Return the updates whose numbers are all finite, and the metric `left_out` if others exist.

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
        """Return the weighted mean of updates. Parameters that no update has keep their values in `model`.

        `weights`: not negative, shape (len(updates),). `absent`: a parameter is averaged over the updates that have it,
        or updates that lack it are included with the old value.
        """
        mean: ModelState = self.tools.mean(
            model, updates, weights, absent=absent, cost_profile=self.setting.cost_profile
        )
        return mean


class Method(ABC):
    """Base class of federated-learning methods, a frozen dataclass of hyper-parameters and pure functions.

    Every function has a default, and the defaults together are FedAvg. A method overrides the functions that differ.
    `state` is a plain tree of numbers, strings, lists, dicts and tensors, which is returned and never changed.
    """

    needs: ClassVar[Needs] = Needs()
    no_server_optimizer: ClassVar[str] = ""  # reason against a server optimiser after the aggregation; "": allowed
    no_update_encoding: ClassVar[str] = ""  # reason against encoding the updates of its devices; "": allowed

    uses_kept_model: ClassVar[bool] = False  # the kept state of a device has the model that the device itself uses

    @property
    def needs_classes(self) -> str:
        """Reason why labels have to be classes and the loss cross-entropy, "" if they may be anything."""
        return ""

    @property
    def loop(self) -> str:
        """Name of the user's function that trains in place of local SGD, "" if there is none."""
        return ""

    @property
    def label(self) -> str:
        """Name of the method in errors: the name of its class."""
        return type(self).__name__

    @property
    def modules(self) -> frozenset[str]:
        """Modules whose classes may be records in the state of the method or of its devices."""
        return frozenset(cls.__module__ for cls in type(self).__mro__) - {"builtins"}

    @property
    def server_set(self) -> ServerSet | None:
        """Labelled samples of the server's own, None if it has none."""
        return None

    @property
    def needs_training(self) -> bool:
        """True if its plans are not known in a run without training."""
        return self.needs.feedback and type(self).foreseen is Method.foreseen

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the first state. Raises ConfigError if the method cannot run in this setting."""
        setting.cost.check(widths=0)
        return {}

    def check_peers(self, graph: PeerGraph) -> None:
        """Raise ConfigError if a method among peers cannot work with the peer graph."""

    # --- tasks of devices -----------------------------------------------------------------------------------------

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Return the orders of the next exchange, a pure function of its arguments: `task` for the selected devices."""
        return Plan.of_one_task(view.choose(key).tolist(), self.task(view))

    def task(self, view: View) -> Task:
        """Return the task of all selected devices: the scenario's local training of the whole model."""
        return _training_task(view.setting.training, view.round)

    def local(self, task: Task) -> LocalRule:
        """Return the local rule of a task, a pure function of the task: plain SGD on the objective's loss."""
        return LocalRule((LocalPhase(),) * len(task.local_sgd))

    # --- devices on their own clocks -------------------------------------------------------------------------------

    def next_order(self, state: Any, turn: Turn, key: Key) -> Order:
        """Return the next job of a device on its own clock, a pure function of its arguments.

        `key`: key of this device's job of this number, so that no draw depends on the order of events. `own_clock` of
        the task tells how the device and its inputs exchange models.
        """
        raise ContractError(f"{type(self).__name__}: has no next_order(), which protocols without rounds ask for")

    def traded(
        self, first: ModelState, mine: ModelState | None, theirs: ModelState | None
    ) -> tuple[ModelState, ModelState]:
        """Return the kept states of a device and its peer after they traded models, a pure function of its arguments.

        `mine`, `theirs`: their kept states at that instant. None: no state yet, so they have the `first` model.
        """
        raise ContractError(f"{type(self).__name__}: a task has own_clock 'trade', but the method has no traded()")

    def joined(self, first: ModelState, device_state: ModelState | None, trained: ModelState | None) -> Any:
        """Return the kept state of a device on its own clock after a job, a pure function of its arguments.

        `device_state`: state at that instant, which trades may have changed since the job began. None: no state yet, so
        the device has the `first` model. `trained`: the `new_device_state` of the job, which replaces it by default.
        """
        return device_state if trained is None else trained

    # --- aggregation on the server --------------------------------------------------------------------------------

    def aggregate(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the new state and model from updates sorted by job id, of which there may be none.

        Updates that are not finite are left out, and `combine` aggregates the others. Without updates the model stays.
        """
        usable, left_out = server.finite(updates)
        if not usable:
            return Aggregate(state, None, metrics=left_out)
        combined = self.combine(state, global_model, usable, server, key)
        return combined._replace(metrics={**combined.metrics, **left_out})

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the new state and model from at least one update, all finite: their weighted mean."""
        return Aggregate(state, server.mean(global_model, updates, self.update_weights(updates, server.setting)))

    def update_weights(self, updates: Sequence[Update], setting: Setting) -> Sequence[float]:
        """Return the weight of each update, shape (len(updates),): data size times the protocol's weight."""
        return [update.samples * update.weight for update in updates]

    def merge_flops(self, updates: int, setting: Setting) -> float:
        """Return the FLOPs of aggregating at least one update, in addition to averaging.

        They do not depend on weights, and so are charged in timing-only runs too. FLOPs that depend on weights are
        `Aggregate.server_flops`.
        """
        return 0.0

    def merge_flops_of(self, tasks: Sequence[Task], setting: Setting) -> float:
        """Return the FLOPs of `merge_flops` for updates of these tasks, at least one.

        A method overrides it where the FLOPs depend on the exchange of the round that each update comes from.
        """
        return self.merge_flops(len(tasks), setting)

    def foreseen(self, state: Any, jobs: Sequence[Job | Update], setting: Setting) -> Any:
        """Return the state after an aggregation of these jobs in a run without training.

        A method with `Needs.feedback` overrides it if its plans follow from the jobs and not from their values.
        """
        return state

    def on_exchange(self, state: Any, updates: Sequence[Update], server: ServerContext, key: Key) -> Any:
        """Return the state after an exchange that is not the last of its round. `aggregate` gets its updates too."""
        return state

    @property
    def sees_exchanges(self) -> bool:
        """True if the method reads the updates of an exchange before it plans the next one of the round."""
        return type(self).on_exchange is not Method.on_exchange

    # --- models of devices ----------------------------------------------------------------------------------------

    def personal_model(self, global_model: ModelState, device_state: ModelState | None) -> ModelState:
        """Return the model that a device uses: the global model, or its own with `uses_kept_model`.

        `device_state`: its kept state; None: no state yet, so the device has the global model. Among peers
        `global_model` is the first model, which all start from.
        """
        return model_in(device_state) if self.uses_kept_model and device_state is not None else global_model


def has_plain_rule(method: Method) -> bool:
    """Return True if the devices of a method train by one run of plain SGD, which another loop can replace."""
    try:
        return method.local(Task(local_sgd=(Training().local_sgd(0),))).is_plain
    except LookupError:  # a rule that reads numbers of its own tasks is no plain one
        return False


@lru_cache(maxsize=8)  # one object for each round, as the engine identifies tasks by object
def _training_task(training: Training, round_: int) -> Task:
    return Task(local_sgd=(training.local_sgd(round_),))
