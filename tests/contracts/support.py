"""What the contract suites share: a small mixed fleet, rounds played by hand, fingerprints of trees."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Sequence
from dataclasses import fields
from functools import cache
from typing import Any

import numpy as np
import torch

import edgesim
from edgesim.config.plugins import find, plugins_of
from edgesim.core.backend import Assignment, Result
from edgesim.core.job import DELIVERED, Completion, Job, Outcome
from edgesim.core.method import Finished, LocalState, Needs
from edgesim.core.rng import Key
from edgesim.core.task import TENSORS
from edgesim.core.update import ModelRef, ModelState, Update
from edgesim.engine.legs import Trip
from edgesim.execution.backends.serial import SerialBackend
from edgesim.learning.submodel.slicing import extract
from edgesim.runs.assembly import assemble
from edgesim.runs.simulation import Silent, Simulation
from tests.conftest import digits_scenario
from tests.sizes import thinned

PLUGINS = "tests.plugins.methods"
OUTSIDE = tuple(f"{PLUGINS}:{name}" for name in ("Proximal", "Delivered", "Backwards", "Teacher"))
METHODS = (*plugins_of("method"), *OUTSIDE)
PRICED = METHODS[:-1]  # the Teacher looks at other weights for free, as it is there to disturb
NORMED = "tests.plugins.networks:TinyNorm"
MODELS = ("cnn_digits", NORMED)

# Arguments with which each shipped protocol is tried. The deadline makes devices 0 and 1 late; the first four of six
# leave two behind; four places and as many updates a merge let a quick device deliver twice for one merge.
COORDINATORS: dict[str, dict[str, Any]] = {
    "sync": {"name": "sync"},
    "deadline": {"name": "deadline", "deadline": "1.5 s"},
    "over_selection": {"name": "over_selection", "keep": 4},
    "buffered": {"name": "buffered", "concurrency": 4, "buffer": 4},
    "gossip": {"name": "gossip"},
    "tiers": {"name": "tiers", "tiers": 2},
}
# Arguments of methods whose defaults are for other networks: these have no hidden linear layer.
ARGUMENTS: dict[str, dict[str, Any]] = {"feddrop": {"channels": "all"}}
# Methods that look at a model before they train it: cheaply, and from the second round on.
_LOOKS = {"check_every": 1, "force_first_at": 1, "probe_samples": 8, "hessian_samples": 4, "lanczos_steps": 3}
ARGUMENTS |= {"fedad": _LOOKS, "feddhad": _LOOKS}
# Methods that make the slow devices' networks so thin that nobody would be late.
ARGUMENTS |= {"heterofl": {"rates": [0.5, 1.0]}, "fedrolex": {"rates": [0.5, 1.0]}}
# Methods that do so much beside training that nobody would be in time: here without, but for the prices below.
ARGUMENTS |= {"fedas": {"align_epochs": 0}, "pfedme": {"inner_steps": 2}}
# Methods whose server trains a network of its own: here a small one.
ARGUMENTS |= {"augfl": {"teacher": "cnn_digits", "teacher_epochs": 1, "server_samples": 20}}
# Methods whose devices also learn public samples, of which the default has too many for anybody to be in time.
_FEW = {"public_samples": 20}
ARGUMENTS |= {"fedmd": {**_FEW, "public_epochs": 1}, "dsfl": _FEW, "comet": _FEW}
ARGUMENTS |= {"feddf": {"public_samples": 40, "steps": 3}}
# Methods that prune the model late, or little by little, in rounds that these runs do not come to: here at once.
ARGUMENTS |= {"one_shot_pruning": {"warm_up_rounds": 0, "keep": 0.5}, "feddip": {"rounds": 2, "interval": 1}}
# Methods that train several widths a step, of which the default takes too long to be in time.
ARGUMENTS |= {"us_nets": {"widths": [0.25, 0.5, 1.0], "random_widths": 1}, "slimfl": {"half_only": 0.5}}
# Methods whose server has a network of its own, on features of devices: here a small one, on few of them.
ARGUMENTS |= {"fedgkt": {"features": -1, "server_model": "fcnn", "server_epochs": 1, "score_samples": 20}}
# Methods for one device, which is to be in time.
ARGUMENTS |= {"waffle": {"target": 3, "rounds": 4}}
# Where prices are looked at: numbers in float32 and all of them, where methods have shorter ways, and all work done.
EXACT: dict[str, dict[str, Any]] = {
    "dfedavgm": {"values": "float32"},
    "gossipfl": {"share": 1.0},
    "beer": {"values": "float32"},
    "fedas": {"align_epochs": 2},
    "signsgd": {"values": "float32"},
    "laq": {"bits": 32},
    "hetlora": {"tail_penalty": 0.0},  # a part of the numbers is penalised; see its own test
    "secure_fedavg": {"bits": 29},  # and 3 for the sum of six: as many as of float32
}
# Methods whose devices may be in too deep a fade to send anything: here none is, and
# numbers take as long as float32 does.
ARGUMENTS |= {name: {"cutoff": 1e-6, "symbol_bits": 32.0} for name in ("analog_fedavg", "analog_fedsgd")}
# Methods of low-rank adapters, and what has adapters in place of each of MODELS.
ADAPTED = {"fedit", "ffa_lora", "fedsa_lora", "flora", "hetlora", "flexlora"}
WITH_ADAPTERS = {"cnn_digits": "tests.plugins.networks:AdaptedDigits", NORMED: "tests.plugins.networks:AdaptedNorm"}
LATE_COMPUTING, LATE_UPLOADING = 0, 1
KEY = Key(5)


@cache
def needs_of(method: str) -> Needs:
    """Return what a method needs."""
    needs: Needs = find("method", method)[0].needs
    return needs


@cache
def claims(method: str) -> Sequence[str]:
    """Return the protocols that edgesim ships and a method runs on, in the order of COORDINATORS."""
    shipped = plugins_of("protocol")
    return [name for name in COORDINATORS if shipped[name].protocol in needs_of(method).protocols]


_PLAIN = ("fedavg", "dpsgd", "scaffold", "heterofl")


def _representatives() -> set[str]:
    """Return methods that have every value of every field of Needs among them: plain ones first, then few others."""
    chosen, seen = set(), set[tuple[str, Any]]()
    for method in sorted(METHODS, key=lambda each: each not in _PLAIN):
        needs = needs_of(method)
        values = {(each.name, getattr(needs, each.name)) for each in fields(needs)}
        if method in _PLAIN or values - seen:
            chosen.add(method)
            seen |= values
    return chosen


REPRESENTATIVES = _representatives()  # what a short run tries where a larger one tries every method


def tried(cases: Sequence[Any]) -> list[Any]:
    """Return methods, or pairs of a method and a protocol, as a parametrisation: in short runs, representatives.

    A protocol is meant by its name or with its arguments. The plain methods are tried on every one, others on the
    hardest. The rest of a short run has every method on its hardest, and the representatives on every one. Methods that
    are there for one test alone, and so not among METHODS, are always tried.
    """

    def tries(case: Any, hard: Container[str], every: Container[str]) -> bool:
        method, protocol = case if isinstance(case, tuple) else (case, None)
        is_hardest = protocol is None or protocol in (hardest(method), hardest(method)["name"])
        return method in every or (method in hard and is_hardest)

    short = [case for case in cases if tries(case, REPRESENTATIVES, _PLAIN) or _alone(case)]
    return thinned(cases, short, [case for case in cases if tries(case, METHODS, REPRESENTATIVES)])


def _alone(case: Any) -> bool:
    return (case[0] if isinstance(case, tuple) else case) not in METHODS


CLAIMS = [(method, protocol) for method in METHODS for protocol in claims(method)]
FORESEEABLE = [(method, protocol) for method, protocol in CLAIMS if not needs_of(method).feedback]


# Methods whose devices are always there, so that no trouble comes to them; their own tests resume and answer runs.
UNDISTURBED = {name for name in METHODS if needs_of(name).overlap}


def hardest(method: str) -> dict[str, Any]:
    """Return a protocol that a method runs on: if it can be, one that leaves updates out."""
    return COORDINATORS[next((name for name in ("deadline", "buffered") if name in claims(method)), claims(method)[0])]


def mixed_scenario(**changes: Any) -> edgesim.Scenario:
    """Six devices of three levels with 40 digits each: one computes slowly, one uploads slowly, four are in time.

    Unless they are given, the protocol is the first that the method claims, and peers, if it has any, form a ring.
    """
    method = changes.get("method", "fedavg")
    chosen = method if isinstance(method, dict) else {"name": method, **ARGUMENTS.get(method, {})}
    name = chosen["name"]
    link = {"name": "fixed", "up": {"uniform": ["1 Mbit/s", "4 Mbit/s"]}, "down": "8 Mbit/s", "latency": 0.02}
    base: dict[str, Any] = {
        "partition": {"name": "iid", "samples_per_device": 40},
        "network": link,
        "selection": "all",
        "protocol": COORDINATORS[claims(name)[0]],
        "peers": None if needs_of(name).peers is None else "ring",
        "stop": {"rounds": 2},
        "fleet": [
            {"level": 1, "cpu": {"flops_per_s": "1 MFLOP/s"}},
            {"level": 1, "cpu": {"flops_per_s": "50 MFLOP/s"}, "network": {**link, "up": "20 kbit/s"}},
            {"count": 2, "level": 2, "cpu": {"flops_per_s": "40 MFLOP/s"}},
            {"count": 2, "level": 3, "cpu": {"flops_per_s": "50 MFLOP/s"}},
        ],
    }
    model = changes.get("model", "cnn_digits")
    if name in ADAPTED and model in MODELS:
        changes["model"] = WITH_ADAPTERS[model]
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
        self.rounds: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.method, name)

    def aggregate(self, *arguments: Any) -> Any:
        """Remember the arguments and let the method aggregate."""
        self.rounds.append(arguments)
        return self.method.aggregate(*arguments)


def ask(simulation: Simulation) -> list[Completion]:
    """Play the exchanges of one round up to its last completion, without merging."""
    session, learner = simulation.session, simulation.learner
    completions: list[Completion] = []
    more = True
    while more:
        plan, inbox = learner.plan(session.view()), session.new_inbox()
        learner.start(session.dispatch(plan, to=inbox))
        session.env.run()
        session.last = inbox.take()
        completions += session.last
        session.exchange += 1
        more = plan.more
        if more:
            learner.on_exchange(session.last, session.view())
    return completions


def play(simulation: Simulation) -> None:
    """Play one round: ask, wait for all, merge, take the new model."""
    session = simulation.session
    session.model = simulation.learner.aggregate(ask(simulation), session.view()).model
    session.round += 1
    session.exchange = 0


def merge_arguments(simulation: Simulation) -> tuple[Any, ...]:
    """Play one round and return what its merge was given: state, model, updates, server, key."""
    spy = simulation.learner.method = Spy(simulation.learner.method)
    simulation.learner.aggregate(ask(simulation), simulation.session.view())
    return spy.rounds[-1]


def arrived_at(simulation: Simulation, got: Sequence[Update], base: ModelState, model: ModelState) -> list[Update]:
    """Return the messages that the method's own rule makes of devices that all went from `base` to this model."""
    trainer = simulation.parts.make_trainer("cpu")
    return [_arrived_at(trainer, m, Assignment(m.job, m.device, m.task, KEY, base, None), model) for m in got]


def _arrived_at(trainer: Any, message: Update, assignment: Assignment, model: ModelState) -> Update:
    rule, task = trainer.method.local(message.task), message.task
    context = trainer.context(assignment, trainer.network(task.submodel))
    local = rule.on_start(context) if rule.on_start else LocalState({})
    local.weights = {**local.weights, **context.copy(extract(model, task.submodel, trainer.cost_profile))}
    finished = rule.on_finish(local, context) if rule.on_finish else Finished(local.weights)
    body, statistics = finished.body, finished.statistics
    carried = {
        kind: {n: t for n, t in body[kind].items() if task.up.layers is None or n.rpartition(".")[0] in task.up.layers}
        for kind in body.keys() & task.up.collections
    }
    if task.up.tensors and not trainer.method.needs.peers:  # the mean that a run among peers reports is of models alone
        carried[TENSORS] = {spec.name: body[TENSORS][spec.name] for spec in task.up.tensors}
    return message._replace(body=carried, statistics=statistics, own_model=finished.own_model)


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
        self.memory: dict[int, ModelState] = {}
        self.trained = 0
        self._before: dict[int, ModelState | None] = {}  # what devices on their own clocks kept as their jobs began
        self._messages: dict[ModelRef, Update] = {}
        self._learner = simulation.learner
        self._backend = simulation.learner.backend
        self._really_end = simulation.world.devices._end
        simulation.world.devices._end = self._end  # type: ignore[method-assign]
        self._really_start = simulation.learner.start
        simulation.learner.start = self._start  # type: ignore[method-assign]

    def _start(self, jobs: Sequence[Job]) -> None:
        self._before |= {job.id: self.memory.get(job.device) for job in jobs if job.task.own_clock}
        self._really_start(jobs)

    def _end(self, trip: Trip, outcome: Outcome) -> Completion:
        job, completion = trip.job, self._really_end(trip, outcome)
        learner, first = self._learner, self._learner._message
        heard = [self._messages[ref] if ref.version >= 0 else learner.graph.value(first(ref)) for ref in job.received]
        own = self._before[job.id] if job.task.own_clock else self.memory.get(job.device)
        base = learner.graph.value(learner._models.get(job.base))
        key = learner._key_of(job)
        result = self._backend._trainer.run(
            Assignment(job.id, job.device, job.task, key, base, own, heard, job.steps)
        )  # fmt: skip
        self._backend.done[job.id] = result
        self._messages[ModelRef(1 + job.device, job.id)] = learner._message_of(job, result)
        self.trained += 1
        if job.task.own_clock:
            self._change(completion, result, base)
            return completion
        changes = {"none": False, "computed": completion.computed, "delivered": outcome in DELIVERED}
        if changes[learner.method.needs.device_state] and result.new_device_state is not None:
            self.memory[job.device] = result.new_device_state
        return completion

    def _change(self, completion: Completion, result: Result, first: ModelState) -> None:
        """Let a job of a device on its own clock take effect, on the peer with which it traded too."""
        job, method, memory = completion.job, self._learner.method, self.memory
        if job.partner is not None:
            mine, theirs = method.traded(first, memory.get(job.device), memory.get(job.partner))
            memory[job.device], memory[job.partner] = mine, theirs
        if completion.outcome in DELIVERED or (completion.computed and job.task.own_clock == "fetch"):
            memory[job.device] = method.joined(first, memory.get(job.device), result.new_device_state)


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
