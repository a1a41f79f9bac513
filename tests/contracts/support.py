"""What the contract suites share: a small mixed fleet, rounds played by hand, fingerprints of trees."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import edgesim
from edgesim.assembly import assemble
from edgesim.backends.serial import SerialBackend
from edgesim.catalogue import find, parts_of
from edgesim.contracts import DELIVERED, Arrival, Assignment, Bundle, Job, Message, ModelRef, Needs, Outcome, Result
from edgesim.learning.context import Context
from edgesim.learning.parts import extract
from edgesim.rng import Key
from edgesim.simulation import Silent, Simulation
from tests.conftest import digits_scenario

PLUGINS = "tests.plugins.methods"
OUTSIDE = tuple(f"{PLUGINS}:{name}" for name in ("Proximal", "Delivered", "Backwards", "Teacher"))
METHODS = (*parts_of("method"), *OUTSIDE)
PRICED = METHODS[:-1]  # the Teacher looks at other weights for free, as it is there to disturb
NORMED = "tests.plugins.networks:TinyNorm"
MODELS = ("cnn_digits", NORMED)

# Arguments with which each shipped coordinator is tried. The deadline makes devices 0 and 1 late; the first four of six
# leave two behind; four places and as many updates a merge let a quick device deliver twice for one merge.
COORDINATORS: dict[str, dict[str, Any]] = {
    "sync": {"name": "sync"},
    "deadline": {"name": "deadline", "deadline": "1.5 s"},
    "over_selection": {"name": "over_selection", "keep": 4},
    "buffered": {"name": "buffered", "concurrency": 4, "buffer": 4},
}
# Arguments of methods whose defaults are for other networks: these have no hidden linear layer.
ARGUMENTS: dict[str, dict[str, Any]] = {"feddrop": {"units": "all"}}
# Methods that look at a model before they train it: cheaply, and from the second round on.
_LOOKS = {"check_every": 1, "force_first_at": 1, "probe_samples": 8, "hessian_samples": 4, "lanczos_steps": 3}
ARGUMENTS |= {"fedad": _LOOKS, "feddhad": _LOOKS}
# Methods that make the slow devices' networks so thin that nobody would be late.
ARGUMENTS |= {"heterofl": {"rates": [0.5, 1.0]}, "fedrolex": {"rates": [0.5, 1.0]}}
# Methods that do so much beside training that nobody would be in time: here without, but for the prices below.
ARGUMENTS |= {"fedas": {"align_epochs": 0}}
# Methods whose server trains a network of its own: here a small one.
ARGUMENTS |= {"augfl": {"teacher": "cnn_digits", "teacher_epochs": 1, "server_samples": 20}}
# Where prices are looked at: numbers in float32 and all of them, where methods have shorter ways, and all work done.
EXACT: dict[str, dict[str, Any]] = {
    "dfedavgm": {"values": "float32"},
    "gossipfl": {"share": 1.0},
    "beer": {"values": "float32"},
    "fedas": {"align_epochs": 2},
}
LATE_COMPUTING, LATE_UPLOADING = 0, 1
KEY = Key(5)


def needs_of(method: str) -> Needs:
    """Return what a method needs."""
    needs: Needs = find("method", method)[0].needs
    return needs


def claims(method: str) -> Sequence[str]:
    """Return the coordinators that edgesim ships and a method runs on, in the order of COORDINATORS."""
    shipped = parts_of("coordinator")
    return [name for name in COORDINATORS if shipped[name].protocol in needs_of(method).coordinators]


CLAIMS = [(method, coordinator) for method in METHODS for coordinator in claims(method)]
FORESEEABLE = [(method, coordinator) for method, coordinator in CLAIMS if not needs_of(method).feedback]


def hardest(method: str) -> dict[str, Any]:
    """Return a coordinator that a method runs on: if it can be, one that leaves updates out."""
    return COORDINATORS[next((name for name in ("deadline", "buffered") if name in claims(method)), "sync")]


def mixed_scenario(**changes: Any) -> edgesim.Scenario:
    """Six devices of three levels with 40 digits each: one computes slowly, one uploads slowly, four are in time.

    Unless they are given, the coordinator is the first that the method claims, and peers, if it has any, form a ring.
    """
    method = changes.get("method", "fedavg")
    chosen = method if isinstance(method, dict) else {"name": method, **ARGUMENTS.get(method, {})}
    name = chosen["name"]
    link = {"name": "fixed", "up": {"uniform": ["1 Mbit/s", "4 Mbit/s"]}, "down": "8 Mbit/s", "latency": 0.02}
    base: dict[str, Any] = {
        "partition": {"name": "iid", "samples_per_device": 40},
        "network": link,
        "selection": "all",
        "coordinator": COORDINATORS[claims(name)[0]],
        "peers": "ring" if needs_of(name).peers else None,
        "stop": {"rounds": 2},
        "fleet": [
            {"level": 1, "cpu": {"flops_per_s": "1 MFLOP/s"}},
            {"level": 1, "cpu": {"flops_per_s": "50 MFLOP/s"}, "network": {**link, "up": "20 kbit/s"}},
            {"count": 2, "level": 2, "cpu": {"flops_per_s": "40 MFLOP/s"}},
            {"count": 2, "level": 3, "cpu": {"flops_per_s": "50 MFLOP/s"}},
        ],
    }
    return digits_scenario(**{**base, **changes, "method": chosen})


def prepare(scenario: edgesim.Scenario, backend: type[SerialBackend] | None = None) -> Simulation:
    """Return a simulation of a scenario, not yet run; `backend` takes the place of the scenario's own."""
    parts = assemble(scenario)
    opened = backend(parts.make_trainer("cpu")) if backend else scenario.backend.value.open(parts.make_trainer)
    return Simulation(parts, opened, Silent())


def run(scenario: edgesim.Scenario, backend: type[SerialBackend] | None = None) -> Simulation:
    """Return a simulation that has run."""
    simulation = prepare(scenario, backend)
    simulation.run()
    return simulation


def results_of(simulation: Simulation) -> dict[str, Any]:
    """Return all that a run leaves behind, ready to be compared: its tables as CSV text and its weights."""
    tables = {name: table.frame().to_csv() for name, table in simulation.tables.items()}
    learner = simulation.learner
    trained = {"weights": learner.weights(), "memory": dict(sorted(learner.memory.items()))} if learner.trains else {}
    return {**tables, **{name: fingerprint(tree) for name, tree in trained.items()}}


class Spy:
    """A method that remembers the arguments of its merges."""

    def __init__(self, method: Any) -> None:
        self.method = method
        self.merges: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.method, name)

    def merge(self, *arguments: Any) -> Any:
        """Remember the arguments and let the method merge."""
        self.merges.append(arguments)
        return self.method.merge(*arguments)


def ask(simulation: Simulation) -> list[Arrival]:
    """Play the exchanges of one round up to its last arrival, without merging."""
    engine, learner = simulation.engine, simulation.learner
    arrivals: list[Arrival] = []
    more = True
    while more:
        plan, inbox = learner.plan(engine.view()), engine.new_inbox()
        learner.start(engine.dispatch(plan, to=inbox))
        engine.env.run()
        engine.last = inbox.take()
        arrivals += engine.last
        engine.exchange += 1
        more = plan.more
        if more:
            learner.hear(engine.last, engine.view())
    return arrivals


def play(simulation: Simulation) -> None:
    """Play one round: ask, wait for all, merge, take the new model."""
    engine = simulation.engine
    engine.model = simulation.learner.merge(ask(simulation), engine.view()).model
    engine.round += 1
    engine.exchange = 0


def merge_arguments(simulation: Simulation) -> tuple[Any, ...]:
    """Play one round and return what its merge was given: state, base, messages, view, tools, key."""
    spy = simulation.learner.method = Spy(simulation.learner.method)
    simulation.learner.merge(ask(simulation), simulation.engine.view())
    return spy.merges[-1]


def arrived_at(simulation: Simulation, got: Sequence[Message], base: Bundle, model: Bundle) -> list[Message]:
    """Return the messages that the method's own rule makes of devices that all went from `base` to this model."""
    trainer = simulation.parts.make_trainer("cpu")
    return [_arrived_at(trainer, m, Assignment(m.job, m.device, m.task, KEY, base, None), model) for m in got]


def _arrived_at(trainer: Any, message: Message, assignment: Assignment, model: Bundle) -> Message:
    rule, task = trainer.method.local(message.task), message.task
    module, assignment = trainer._cut(task.part, assignment)
    context = Context(module, trainer.data, trainer.shards[message.device], assignment, trainer.card.drop_single)
    w = rule.start(assignment.base, None, context) if rule.start else {}
    ended = {**w, **context.copy(extract(model, task.part, trainer.card))}
    body, _, signals = (rule.finish or (lambda w, context: (w, None, {})))(ended, context)
    carried = {
        kind: {n: t for n, t in body[kind].items() if task.up.layers is None or n.rpartition(".")[0] in task.up.layers}
        for kind in body.keys() & task.up.kinds
    }
    return message._replace(body=carried, signals=signals)


def fingerprint(tree: Any) -> str:
    """Return a hash of the types, shapes and bits of a tree of dicts, lists, tuples, arrays, tensors and scalars."""
    digest = hashlib.sha256()
    _feed(digest, tree)
    return digest.hexdigest()


def _feed(digest: Any, node: Any) -> None:
    digest.update(type(node).__name__.encode())
    if isinstance(node, torch.Tensor):
        node = node.detach().numpy()
    if isinstance(node, np.ndarray):
        digest.update(f"{node.dtype}{node.shape}".encode() + node.tobytes())
    elif isinstance(node, dict):
        for key, value in node.items():
            digest.update(repr(key).encode())
            _feed(digest, value)
    elif isinstance(node, list | tuple):
        for value in node:
            _feed(digest, value)
    else:
        digest.update(repr(node).encode())


class PreparedBackend(SerialBackend):
    """Has the results of all jobs before it is asked for them; see `run_eagerly`."""

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer)
        self.done: dict[int, Result] = {}

    def train(self, assignments: Sequence[Assignment]) -> Sequence[Result]:
        """Return what was trained before."""
        return [self.done.pop(a.job) for a in assignments]


class Devices:
    """Devices as they are: each trains every job, late ones too, and changes its memory at the instant the job ends."""

    def __init__(self, simulation: Simulation) -> None:
        self.memory: dict[int, Bundle] = {}
        self.trained = 0
        self._messages: dict[ModelRef, Message] = {}
        self._learner = simulation.learner
        self._backend = simulation.learner.backend
        self._really_end = simulation.engine._end
        simulation.engine._end = self._end

    def _end(self, job: Job, outcome: Outcome) -> Arrival:
        arrival = self._really_end(job, outcome)
        learner, first = self._learner, self._learner._received
        heard = [self._messages[ref] if ref.version >= 0 else first(ref) for ref in job.received]
        own, base = self.memory.get(job.device), learner._models.get(job.base)
        key = learner._key_of(job)
        result = self._backend._trainer.run(
            Assignment(job.id, job.device, job.task, key, base, own, heard, job.steps)
        )  # fmt: skip
        self._backend.done[job.id] = result
        self._messages[ModelRef(1 + job.device, job.id)] = learner._message_of(job, result)
        self.trained += 1
        changes = {"no": False, "computed": arrival.computed, "delivered": outcome in DELIVERED}
        if changes[learner.method.needs.keep] and result.keep is not None:
            self.memory[job.device] = result.keep
        return arrival


def run_eagerly(scenario: edgesim.Scenario) -> tuple[Simulation, Devices]:
    """Return a simulation that has run, every job of which was trained when it ended, and its devices."""
    simulation = prepare(scenario, PreparedBackend)
    devices = Devices(simulation)
    simulation.run()
    return simulation, devices


class BackwardsBackend(SerialBackend):
    """Trains the jobs that it is given together from the last to the first."""

    def train(self, assignments: Sequence[Assignment]) -> Sequence[Result]:
        """Train in reverse order; return the results in the order given."""
        return super().train(assignments[::-1])[::-1]
