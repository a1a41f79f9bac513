"""The learner between protocols and methods: keys, lifetimes of models, and what a merge is given.

Weights are opaque to it, so a bundle is a word here and no torch is needed.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgesim.core.backend import Assignment, Result, Score
from edgesim.core.job import Completion, Job, Prices
from edgesim.core.learner import AggregationFacts
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.method import Aggregate, Method, Needs
from edgesim.core.rng import Key, Purpose
from edgesim.core.task import Plan, Task
from edgesim.core.update import SERVER, ModelRef
from edgesim.execution.learner import FederatedLearner

SETTING = SimpleNamespace(samples=np.array([10, 20, 30]), reports=False, routed=lambda plan: plan)
VIEW = SimpleNamespace(round=4, exchange=1, setting=SETTING)
ONE_EPOCH = (LocalSGD(batch=1, lr=0.1, epochs=1),)
TRAIN = Task(local_sgd=ONE_EPOCH)
AMONG_PEERS = Task("gossip", start="device", local_sgd=ONE_EPOCH)
PROBE = Task("probe")
KEY = Key(8)


class Words(Method):
    """A method whose model is the last message, and that remembers what it was given."""

    def __init__(self, device_state: str = "none", peers: str | None = None) -> None:
        self.needs = Needs(device_state=device_state, peers=peers)
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

    def on_exchange(self, state, updates, view, key):
        """Count the messages of an exchange a hundred each."""
        self.keys.append(key)
        return state + 100 * len(updates)

    def aggregate(self, state, global_model, updates, server, key):
        """Return the body of the last message as the new model."""
        self.got.append((global_model, updates))
        self.keys.append(key)
        return Aggregate(state + 1, updates[-1].body if updates else None, 7.0, {"count": len(updates)})


class Echo:
    """A backend whose result tells what it came from, and that remembers what it was given, call by call."""

    trains = True

    def __init__(self) -> None:
        self.calls: list[list[Assignment]] = []
        self.scores: list[float] = []

    def train(self, assignments):
        """Return words for each assignment: base, device and messages for its body, memory and job for what is kept."""
        self.calls.append(list(assignments))
        return [self.result_of(a) for a in assignments]

    def result_of(self, a):
        """Return the words for one assignment."""
        words = "".join(f"&{m.body}" for m in a.received)
        return Result(f"{a.global_model}+{a.device}{words}", f"{a.device_state}>{a.job}", {"job": a.job}, 3)

    def evaluate(self, model, classes=None):
        """Return the next score."""
        return {"test": Score(0.0, self.scores.pop(0), 1)}


def learner_of(device_state: str = "computed", peers: str | None = None) -> FederatedLearner:
    """Return a learner that starts from the model "w"."""
    return FederatedLearner(Words(device_state, peers), Echo(), SETTING, KEY, "w")


def trained_by(learner: FederatedLearner) -> list[list[int]]:
    """Return the jobs that the backend was given, call by call."""
    return [[a.job for a in call] for call in learner.backend.calls]


def given_to(learner: FederatedLearner) -> dict[int, Assignment]:
    """Return what the backend was given, by job. Nothing may be trained twice."""
    assignments = [a for call in learner.backend.calls for a in call]
    assert len({a.job for a in assignments}) == len(assignments)
    return {a.job: a for a in assignments}


def job(
    id_: int, device: int, global_model: int = 0, task: Task = TRAIN, nth: int = 0, round_: int = 0, **more: Any
) -> Job:
    """Return a job without prices."""
    first = {"id": id_, "device": device, "task": task, "round": round_, "nth": nth, "sent_s": 0.0, "due_s": 0.0}
    free = Prices(*[0] * len(Prices._fields))
    return Job(**first, base=ModelRef(SERVER, global_model), prices=free, **more)


def gossip(id_: int, device: int, *received: tuple[int, int]) -> Job:
    """Return a job among peers that starts from the messages of (device, job); job -1: what it had untrained."""
    return job(id_, device, task=AMONG_PEERS, received=tuple(ModelRef(1 + peer, of) for peer, of in received))


def ended(what: Job, outcome: str = "ok", computed: bool = True, staleness: int = 0) -> Completion:
    """Return how a job ended."""
    return Completion(what, 1.0, outcome, staleness, computed)


def test_messages_come_sorted_and_complete():
    """Whatever the order of completion, messages are in the order of jobs, with size, steps, staleness and signals."""
    learner, jobs = learner_of(), [job(5, 2), job(6, 0), job(7, 1)]
    learner.start(jobs)
    learner.cancel([ended(jobs[1], "late", computed=False)])
    result = learner.aggregate([ended(jobs[2]), ended(jobs[0], staleness=2)], VIEW)
    base, got = learner.method.got[0]
    assert base == "w"
    assert [(m.job, m.device, m.samples, m.steps, m.staleness, m.statistics) for m in got] == [
        (5, 2, 30, 3, 2, {"job": 5}),
        (7, 1, 20, 3, 0, {"job": 7}),
    ]
    assert learner.weights() == "w+1"
    assert result.model == ModelRef(SERVER, 1)
    assert result.facts.get() == AggregationFacts(True, 7.0, {"count": 2})
    assert learner.state == 1


class Deaf(Words):
    """Words without a hook for exchanges."""

    on_exchange = Method.on_exchange


@pytest.mark.parametrize("hears", [True, False])
def test_a_method_may_hear_an_exchange_before_the_next(hears):
    """What delivered is trained once, then; the merge gets it again, with what later exchanges brought."""
    learner = learner_of()
    learner.method = (Words if hears else Deaf)("computed")
    jobs = [job(0, 0), job(1, 1), job(2, 2)]
    learner.start(jobs[:2])
    learner.on_exchange([ended(jobs[0]), ended(jobs[1], "late", computed=False)], VIEW)
    assert (learner.state, trained_by(learner)) == ((100, [[0]]) if hears else (0, []))
    learner.cancel([ended(jobs[1], "late", computed=False)])
    learner.start(jobs[2:])
    learner.aggregate([ended(jobs[0]), ended(jobs[2])], VIEW)
    assert [m.job for m in learner.method.got[0][1]] == [0, 2]
    assert trained_by(learner) == ([[0], [2]] if hears else [[0, 2]])
    assert (KEY.at(Purpose.MERGE, 4, 1) in learner.method.keys) == hears


def test_only_arrivals_in_time_are_merged():
    """A late completion in the list is no message, was never trained and is forgotten."""
    learner, jobs = learner_of(), [job(0, 0), job(1, 1)]
    learner.start(jobs)
    late = ended(jobs[1], "late", computed=False)
    learner.cancel([late])
    learner.aggregate([ended(jobs[0]), late], VIEW)
    assert [m.job for m in learner.method.got[0][1]] == [0]
    assert trained_by(learner) == [[0]]
    assert len(learner._pending) == 0


def test_an_empty_round_keeps_the_model():
    """Nobody in time: the method hears of it, the version stays, the weights stay."""
    learner = learner_of()
    assert learner.aggregate([], VIEW).model == ModelRef(SERVER, 0)
    assert learner.weights() == "w"
    assert learner.state == 1


def test_keys_do_not_depend_on_job_numbers():
    """Local training is keyed by device and its count of trainings, a probe by device and round; never by the job."""
    learner = learner_of()
    jobs = [job(3, 1, nth=2, round_=9), job(4, 2, task=PROBE, nth=2, round_=9)]
    learner.start(jobs)
    learner.plan(VIEW)
    learner.aggregate([ended(j) for j in jobs], VIEW)
    assert given_to(learner)[3].key == KEY.at(Purpose.LOCAL, 1, 2)
    assert given_to(learner)[4].key == KEY.at(Purpose.PROBE, 2, 9)
    assert learner.method.keys == [KEY.at(Purpose.INIT, 1), KEY.at(Purpose.PLAN, 4, 1), KEY.at(Purpose.MERGE, 4)]


def test_a_model_lives_as_long_as_a_job_needs_it():
    """A job may end after newer models: its base is kept until then and freed afterwards."""
    learner, slow, fast = learner_of(), job(0, 0), job(1, 1)
    learner.start([slow, fast])
    learner.aggregate([ended(fast)], VIEW)
    later = job(2, 2, global_model=1)
    learner.start([later])
    assert len(learner._models) == 2
    learner.cancel([ended(slow, "late")])
    assert len(learner._models) == 1
    learner.aggregate([ended(later)], VIEW)
    assert given_to(learner)[0].global_model == "w"  # trained with those of the next round, from its own base
    assert given_to(learner)[2].global_model == "w+1"
    assert learner.weights() == "w+1+2"
    assert len(learner._models) == 1


@pytest.mark.parametrize(("keep", "after"), [("computed", {0: "None>0", 1: "None>1"}), ("delivered", {0: "None>0"})])
def test_memory_follows_the_promise(keep, after):
    """ "computed": whoever finished computing remembers; "delivered": whoever arrived. Others are not trained."""
    learner, jobs = learner_of(keep), [job(0, 0), job(1, 1), job(2, 2)]
    learner.start(jobs)
    late = [ended(jobs[1], "late"), ended(jobs[2], "late", computed=False)]
    learner.cancel(late)
    learner.aggregate([ended(jobs[0]), *late], VIEW)
    assert learner.memory == after
    assert len(learner._pending) == 0
    again = job(3, 0, global_model=1)
    learner.start([again])
    learner.aggregate([ended(again)], VIEW)
    assert given_to(learner)[3].device_state == "None>0"
    assert given_to(learner).keys() == {3, *after}


def test_the_best_model_is_remembered():
    """The first model of the highest accuracy, not the last."""
    learner = learner_of()
    learner.backend.scores = [0.3, 0.5, 0.5, 0.4]
    for version in range(4):
        learner.evaluate(learner.model)
        learner.start([job(version, 0, global_model=version)])
        learner.aggregate([ended(job(version, 0, global_model=version))], VIEW)
    assert learner.graph.value(learner.saved_models()["best"]) == "w+0"


def test_jobs_that_depend_on_nobody_are_one_call():
    """The backend gets all jobs of a merge at once, so that it may share them out."""
    learner, jobs = learner_of(), [job(id_, id_) for id_ in range(3)]
    learner.start(jobs)
    assert trained_by(learner) == []
    learner.aggregate([ended(j) for j in jobs], VIEW)
    assert trained_by(learner) == [[0, 1, 2]]


def test_a_device_merged_twice_at_once_starts_from_what_it_kept_before():
    """Without rounds, two updates of a device may wait for one merge: the second job had the memory of the first."""
    learner, jobs = learner_of("delivered"), [job(0, 0), job(1, 1), job(2, 0)]
    learner.start(jobs)
    learner.aggregate([ended(j) for j in jobs], VIEW)
    assert trained_by(learner) == [[0, 1], [2]]
    assert [m.job for m in learner.method.got[0][1]] == [0, 1, 2]
    assert given_to(learner)[2].device_state == "None>0"
    assert learner.memory == {0: "None>0>2", 1: "None>1"}


@pytest.mark.parametrize(("keep", "device_state"), [("computed", "None>0>1"), ("delivered", "None>0")])
def test_a_job_discarded_between_two_others(keep, device_state):
    """A device's update 1 is discarded while 0 waits to be merged and 2 runs: 2 started from the memory of 1, which
    had computed, or, if memory changes on delivery, of 0.
    """
    learner, jobs = learner_of(keep), [job(0, 0), job(1, 0), job(2, 0)]
    learner.start(jobs)
    learner.cancel([ended(jobs[1], "stale")])
    learner.aggregate([ended(jobs[0]), ended(jobs[2])], VIEW)
    assert given_to(learner)[2].device_state == device_state
    assert learner.memory == {0: f"{device_state}>2"}
    assert [m.job for m in learner.method.got[0][1]] == [0, 2]


def test_what_the_protocol_decides_reaches_the_method():
    """The weight of an update and the steps that a device took: the one with its message, the other with its task."""
    learner = learner_of()
    partial, whole = job(0, 0, steps=2), job(1, 1)
    learner.start([partial, whole])
    learner.aggregate([ended(partial, "partial")._replace(weight=0.25), ended(whole)], VIEW)
    assert [m.weight for m in learner.method.got[0][1]] == [0.25, 1.0]
    assert {id_: a.steps for id_, a in given_to(learner).items()} == {0: 2, 1: None}


def test_peers_start_from_the_first_model_and_then_from_each_other():
    """Device 1 hears 0 and 2 in two rounds: first what they had before they ever trained, then what they sent."""
    learner = learner_of(peers="any")
    first = [gossip(0, 0), gossip(1, 1, (0, -1), (2, -1)), gossip(2, 2)]
    learner.start(first)
    learner.aggregate([ended(j) for j in first], VIEW)
    second = gossip(3, 1, (0, 0), (2, 2))
    learner.start([second])
    learner.aggregate([ended(second)], VIEW)
    heard = {id_: [(m.device, m.job, m.body, m.samples) for m in a.received] for id_, a in given_to(learner).items()}
    assert heard[1] == [(0, -1, "w", 0), (2, -1, "w", 0)]
    assert heard[3] == [(0, 0, "w+0", 10), (2, 2, "w+2", 30)]
    assert given_to(learner)[3].device_state == "None>1"
    assert given_to(learner)[3].global_model == "w"  # the first model, though the global one is another


def test_a_peer_that_waited_is_trained_after_whom_it_waited_for():
    """2 waited for 1, which waited for 0: three calls, and each hears what the one before made."""
    learner = learner_of(peers="any")
    jobs = [gossip(0, 2, (1, 1)), gossip(1, 1, (0, 2)), gossip(2, 0)]
    learner.start(jobs)
    learner.aggregate([ended(j) for j in jobs], VIEW)
    assert trained_by(learner) == [[2], [1], [0]]
    assert learner.weights() == "w+0"  # that of the last job, which heard nobody
    assert learner.method.got[0][1][0].body == "w+2&w+1&w+0"


@pytest.mark.parametrize("keep", ["none", "computed", "delivered"])
def test_what_peers_have_is_trained_though_it_was_lost(keep):
    """A restart loses device 0's update, but its peer heard it and may hear it again."""
    learner = learner_of(keep, peers="any")
    if keep == "none":
        learner.backend.result_of = lambda a: Echo.result_of(learner.backend, a)._replace(new_device_state=None)
    lost, heard = gossip(0, 0), gossip(1, 1, (0, 0))
    learner.start([lost, heard])
    learner.cancel([ended(lost, "lost")])
    learner.aggregate([ended(heard)], VIEW)
    again = gossip(2, 1, (0, 0))
    learner.start([again])
    learner.aggregate([ended(again)], VIEW)
    assert [m.body for m in given_to(learner)[1].received] == ["w+0"]
    assert given_to(learner)[2].received == given_to(learner)[1].received
    assert trained_by(learner) == [[0], [1], [2]]


def test_messages_of_peers_live_as_long_as_somebody_can_hear_them():
    """Each device has its newest message; an older one goes once no job starts from it any more."""
    learner = learner_of(peers="any")
    first, waits = gossip(0, 0), gossip(1, 1, (0, 0))
    learner.start([first, waits])
    learner.aggregate([ended(first)], VIEW)
    second = gossip(2, 0)
    learner.start([second])
    learner.aggregate([ended(second)], VIEW)
    assert learner._messages.keys() == {ModelRef(1, 0), ModelRef(1, 2)}
    learner.aggregate([ended(waits)], VIEW)
    assert given_to(learner)[1].received[0].body == "w+0"
    assert learner._messages.keys() == {ModelRef(1, 2), ModelRef(2, 1)}
    assert len(learner._models) == 2  # the newest, and the first for those who have not trained


def test_without_training_the_method_never_merges():
    """A timing-only learner counts versions and touches neither weights nor backend."""
    backend = SimpleNamespace(trains=False)
    learner = FederatedLearner(Words(), backend, SETTING, KEY, None)
    first = job(0, 0)
    learner.start([first])
    learner.cancel([ended(job(1, 1), "late")])
    assert learner.aggregate([ended(first)], VIEW).model == ModelRef(SERVER, 1)
    assert learner.aggregate([], VIEW).model == ModelRef(SERVER, 1)
    assert learner.method.got == []
    assert learner.evaluate(learner.model).get() == {}
    assert len(learner._pending) == 0
