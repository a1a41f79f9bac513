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
from edgesim.catalogue import parts_of
from edgesim.contracts import Arrival, Assignment, Bundle, Message, Payload, Result
from edgesim.simulation import Silent, Simulation
from tests.conftest import digits_scenario

PLUGINS = "tests.plugins.methods"
OUTSIDE = tuple(f"{PLUGINS}:{name}" for name in ("Proximal", "Delivered", "Backwards", "Teacher"))
METHODS = (*parts_of("method"), *OUTSIDE)
PRICED = METHODS[:-1]  # the Teacher looks at other weights for free, as it is there to disturb
NORMED = "tests.plugins.networks:TinyNorm"
MODELS = ("cnn_digits", NORMED)

# Arguments with which each shipped coordinator is tried; the deadline makes devices 0 and 1 late.
COORDINATORS = {"sync": {"name": "sync"}, "deadline": {"name": "deadline", "deadline": "1.5 s"}}
LATE_COMPUTING, LATE_UPLOADING = 0, 1


def mixed_scenario(**changes: Any) -> edgesim.Scenario:
    """Six devices of three levels with 40 digits each: one computes slowly, one uploads slowly, four are in time."""
    link = {"name": "fixed", "up": {"uniform": ["1 Mbit/s", "4 Mbit/s"]}, "down": "8 Mbit/s", "latency": 0.02}
    base: dict[str, Any] = {
        "partition": {"name": "iid", "samples_per_device": 40},
        "network": link,
        "selection": "all",
        "stop": {"rounds": 2},
        "fleet": [
            {"level": 1, "cpu": {"flops_per_s": "1 MFLOP/s"}},
            {"level": 1, "cpu": {"flops_per_s": "50 MFLOP/s"}, "network": {**link, "up": "20 kbit/s"}},
            {"count": 2, "level": 2, "cpu": {"flops_per_s": "40 MFLOP/s"}},
            {"count": 2, "level": 3, "cpu": {"flops_per_s": "50 MFLOP/s"}},
        ],
    }
    return digits_scenario(**{**base, **changes})


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
    return {**tables, "weights": fingerprint(learner.weights()) if learner.trains else None}


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
    """Play one exchange up to its last arrival, without merging."""
    engine, learner = simulation.engine, simulation.learner
    inbox = engine.new_inbox()
    learner.start(engine.dispatch(learner.plan(engine.view()), to=inbox))
    engine.env.run()
    return inbox.take()


def play(simulation: Simulation) -> None:
    """Play one round: ask, wait for all, merge, take the new model."""
    engine = simulation.engine
    engine.model = simulation.learner.merge(ask(simulation), engine.view()).model
    engine.round += 1


def merge_arguments(simulation: Simulation) -> tuple[Any, ...]:
    """Play one round and return what its merge was given: state, base, messages, view, tools, key."""
    spy = simulation.learner.method = Spy(simulation.learner.method)
    simulation.learner.merge(ask(simulation), simulation.engine.view())
    return spy.merges[-1]


def carried(model: Bundle, up: Payload) -> Bundle:
    """Return the part of a model that a payload carries."""
    return {
        kind: {n: t for n, t in model[kind].items() if up.layers is None or n.rpartition(".")[0] in up.layers}
        for kind in up.kinds
    }


def with_bodies(got: Sequence[Message], model: Bundle) -> list[Message]:
    """Return the messages as if every device had arrived at this model."""
    return [m._replace(body=carried(model, m.task.up)) for m in got]


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


class EagerBackend(SerialBackend):
    """Trains every job the moment it starts, the late ones too."""

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer)
        self._done: dict[int, Result] = {}

    def submit(self, assignment: Assignment) -> None:
        """Train at once."""
        self._done[assignment.job] = self._trainer.run(assignment)

    def collect(self, jobs: Sequence[int]) -> Sequence[Result]:
        """Return what was trained."""
        return [self._done.pop(job) for job in jobs]

    def cancel(self, jobs: Sequence[int]) -> None:
        """Throw away what was trained for nothing."""
        for job in jobs:
            del self._done[job]


class BackwardsBackend(SerialBackend):
    """Trains the jobs that are asked for from the last to the first."""

    def _run(self, assignments: Sequence[Assignment]) -> Sequence[Result]:
        return super()._run(assignments[::-1])[::-1]
