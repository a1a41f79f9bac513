"""The learner between coordinators and methods: keys, lifetimes of models, and what a merge is given.

Weights are opaque to it, so a bundle is a word here and no torch is needed.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgesim.contracts import (
    SERVER,
    Arrival,
    Job,
    Merged,
    ModelRef,
    Needs,
    Plan,
    Result,
    Score,
    Task,
)
from edgesim.learner import FederatedLearner
from edgesim.local_sgd import Stretch
from edgesim.rng import Key, Purpose

SETTING = SimpleNamespace(samples=np.array([10, 20, 30]))
VIEW = SimpleNamespace(round=4, exchange=1)
TRAIN = Task(stretches=(Stretch(batch=1, lr=0.1, epochs=1),))
PROBE = Task("probe")
KEY = Key(8)


class Words:
    """A method whose model is the last message, and that remembers what it was given."""

    def __init__(self, keep: str = "no") -> None:
        self.needs = Needs(keep=keep)
        self.got: list[Any] = []
        self.keys: list[Key] = []

    def init(self, setting, key):
        """Return the first state."""
        self.keys.append(key)
        return 0

    def plan(self, state, view, key):
        """Return an empty plan."""
        self.keys.append(key)
        return Plan(())

    def merge(self, state, base, got, view, tools, key):
        """Return the body of the last message as the new model."""
        self.got.append((base, got))
        self.keys.append(key)
        return Merged(state + 1, got[-1].body if got else None, 7.0, {"count": len(got)})


class Echo:
    """A backend whose result tells what it came from."""

    trains = True

    def __init__(self) -> None:
        self.waiting: dict[int, Any] = {}
        self.scores: list[float] = []

    def submit(self, assignment):
        """Remember an assignment."""
        self.waiting[assignment.job] = assignment

    def collect(self, jobs):
        """Return a word for each job."""
        done = [self.waiting.pop(job) for job in jobs]
        return [Result(f"{a.base}+{a.device}", f"{a.own}>{a.job}", {"job": a.job}, 3) for a in done]

    def cancel(self, jobs):
        """Forget jobs."""
        for job in jobs:
            del self.waiting[job]

    def evaluate(self, model):
        """Return the next score."""
        return {"test": Score(0.0, self.scores.pop(0), 1)}


def learner_of(keep: str = "computed", backend: Any = None) -> FederatedLearner:
    """Return a learner that starts from the model "w"."""
    return FederatedLearner(Words(keep), backend or Echo(), SETTING, KEY, "w")


def job(id_: int, device: int, base: int = 0, task: Task = TRAIN, nth: int = 0, round_: int = 0) -> Job:
    """Return a job without prices."""
    return Job(id_, device, task, round_, nth, ModelRef(SERVER, base), *[0.0] * 6, 0, 0, 0.0, 0.0, 0.0)


def ended(what: Job, outcome: str = "ok", computed: bool = True, staleness: int = 0) -> Arrival:
    """Return how a job ended."""
    return Arrival(what, 1.0, outcome, staleness, computed)


def test_messages_come_sorted_and_complete():
    """Whatever the order of arrival, messages are in the order of jobs, with size, steps, staleness and signals."""
    learner, jobs = learner_of(), [job(5, 2), job(6, 0), job(7, 1)]
    learner.start(jobs)
    learner.cancel([ended(jobs[1], "late", computed=False)])
    result = learner.merge([ended(jobs[2]), ended(jobs[0], staleness=2)], VIEW)
    base, got = learner.method.got[0]
    assert base == "w"
    assert [(m.job, m.device, m.samples, m.steps, m.staleness, m.signals) for m in got] == [
        (5, 2, 30, 3, 2, {"job": 5}),
        (7, 1, 20, 3, 0, {"job": 7}),
    ]
    assert learner.weights() == "w+1"
    assert (result.model, result.server_flops, result.notes) == (ModelRef(SERVER, 1), 7.0, {"count": 2})
    assert learner.state == 1


def test_only_arrivals_in_time_are_merged():
    """A late arrival in the list is no message."""
    learner, jobs = learner_of(), [job(0, 0), job(1, 1)]
    learner.start(jobs)
    late = ended(jobs[1], "late", computed=False)
    learner.cancel([late])
    learner.merge([ended(jobs[0]), late], VIEW)
    assert [m.job for m in learner.method.got[0][1]] == [0]
    assert learner._backend.waiting == {}


def test_an_empty_round_keeps_the_model():
    """Nobody in time: the method hears of it, the version stays, the weights stay."""
    learner = learner_of()
    assert learner.merge([], VIEW).model == ModelRef(SERVER, 0)
    assert learner.weights() == "w"
    assert learner.state == 1


def test_keys_do_not_depend_on_job_numbers():
    """Local training is keyed by device and its count of trainings, a probe by device and round; never by the job."""
    learner = learner_of()
    jobs = [job(3, 1, nth=2, round_=9), job(4, 2, task=PROBE, nth=2, round_=9)]
    learner.start(jobs)
    assert learner._backend.waiting[3].key == KEY.at(Purpose.LOCAL, 1, 2)
    assert learner._backend.waiting[4].key == KEY.at(Purpose.PROBE, 2, 9)
    learner.plan(VIEW)
    learner.merge([ended(j) for j in jobs], VIEW)
    assert learner.method.keys == [KEY.at(Purpose.INIT, 1), KEY.at(Purpose.PLAN, 4, 1), KEY.at(Purpose.MERGE, 4)]


def test_a_model_lives_as_long_as_a_job_needs_it():
    """A job may end after newer models: its base is kept until then and freed afterwards."""
    learner, slow, fast = learner_of(), job(0, 0), job(1, 1)
    learner.start([slow, fast])
    learner.merge([ended(fast)], VIEW)
    later = job(2, 2, base=1)
    learner.start([later])
    assert learner._backend.waiting[2].base == "w+1"
    assert len(learner._store) == 2
    learner.cancel([ended(slow, "late")])
    assert len(learner._store) == 1
    learner.merge([ended(later)], VIEW)
    assert learner.weights() == "w+1+2"
    assert len(learner._store) == 1


@pytest.mark.parametrize(("keep", "after"), [("computed", {0: "None>0", 1: "None>1"}), ("delivered", {0: "None>0"})])
def test_memory_follows_the_promise(keep, after):
    """ "computed": whoever finished computing remembers; "delivered": whoever arrived. Others are not trained."""
    learner, jobs = learner_of(keep), [job(0, 0), job(1, 1), job(2, 2)]
    learner.start(jobs)
    late = [ended(jobs[1], "late"), ended(jobs[2], "late", computed=False)]
    learner.cancel(late)
    learner.merge([ended(jobs[0]), *late], VIEW)
    assert learner.memory == after
    again = job(3, 0, base=1)
    learner.start([again])
    assert learner._backend.waiting[3].own == "None>0"


def test_the_best_model_is_remembered():
    """The first model of the highest accuracy, not the last."""
    learner = learner_of()
    learner._backend.scores = [0.3, 0.5, 0.5, 0.4]
    for version in range(4):
        learner.evaluate(learner.model)
        learner.start([job(version, 0, base=version)])
        learner.merge([ended(job(version, 0, base=version))], VIEW)
    assert learner.best == (0.5, "w+0")


def test_without_training_the_method_never_merges():
    """A timing-only learner counts versions and touches neither weights nor backend."""
    backend = SimpleNamespace(trains=False)
    learner = FederatedLearner(Words(), backend, SETTING, KEY, None)
    first = job(0, 0)
    learner.start([first])
    learner.cancel([ended(job(1, 1), "late")])
    assert learner.merge([ended(first)], VIEW).model == ModelRef(SERVER, 1)
    assert learner.merge([], VIEW).model == ModelRef(SERVER, 1)
    assert learner.method.got == []
    assert learner.evaluate(learner.model) == {}
