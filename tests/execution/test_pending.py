"""Which untrained jobs have to be trained for others, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import TopologicalSorter
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgesim.core.update import ModelRef
from edgesim.execution.pending import Pending
from tests.sizes import full

LONG = 5_000  # jobs one below another: five times the depth that Python lets functions call themselves


def job(id_: int, device: int | None = None, received: Sequence[Any] = ()) -> Any:
    """Return a job, by default of a device of its own, that starts from messages of other jobs."""
    refs = tuple(ModelRef(1 + other.device, other.id) for other in received)
    return SimpleNamespace(id=id_, device=id_ if device is None else device, received=refs)


def pending(*jobs: Any, keeps: bool = True) -> Pending:
    """Return these jobs, untrained."""
    waiting = Pending(keeps)
    for each in jobs:
        waiting.add(each)
    return waiting


def ids(waiting: Pending, *jobs: Any) -> list[list[int]]:
    """Return the batches that training some jobs takes, as numbers."""
    return [[each.id for each in batch] for batch in waiting.batches(jobs)]


def test_jobs_that_share_nothing_are_one_batch():
    """In the order of their ids, each once, however they are asked for; those not asked for stay untrained."""
    jobs = [job(id_) for id_ in (3, 5, 8, 9)]
    assert ids(pending(*jobs), jobs[2], jobs[0], jobs[3], jobs[0]) == [[3, 8, 9]]
    assert ids(pending(*jobs)) == []


def test_messages_come_before_those_who_received_them():
    """Two batches lie below the last job: its neighbour's, which started from two messages, and the senders of these.

    The job that was asked for beside it and needs nobody is trained at once.
    """
    first, second, alone = job(0), job(1), job(2)
    between = job(3, received=[first, second])
    last = job(4, received=[between, first])
    assert ids(pending(first, second, alone, between, last), last, alone) == [[0, 1, 2], [3], [4]]


def test_a_later_number_may_come_first():
    """The order follows from who received what, not from the numbers: a device may wait for one asked after it."""
    sender = job(7)
    receiver = job(2, received=[sender])
    assert ids(pending(receiver, sender), receiver) == [[7], [2]]


@pytest.mark.parametrize(("keeps", "batches"), [(True, [[1], [4], [6]]), (False, [[6]])])
def test_a_device_that_keeps_something_trains_in_its_own_order(keeps, batches):
    """Its jobs build on one another; another device's are nobody's business. Without memory nothing does."""
    jobs = [job(1, device=0), job(4, device=0), job(5, device=1), job(6, device=0)]
    assert ids(pending(*jobs, keeps=keeps), jobs[3]) == batches


def test_memory_and_messages_count_together():
    """Job 3 builds on the job that its device did before and on a message of a device that had a job before that."""
    jobs = [job(0, device=5), job(1, device=6), job(2, device=5)]
    jobs.append(job(3, device=6, received=[jobs[2]]))
    assert ids(pending(*jobs), jobs[3]) == [[0, 1], [2], [3]]


def test_what_is_trained_or_gone_is_not_trained_again():
    """A message of a job that was trained, or merged long ago, or that nobody ever trained, is no reason to wait."""
    trained, merged, untouched = job(0), job(1), SimpleNamespace(device=9, id=-1)
    receiver = job(2, received=[trained, merged, untouched])
    waiting = pending(trained, merged, receiver)
    waiting.finish(trained, "result")
    waiting.drop(merged)
    assert ids(waiting, receiver, trained) == [[2]]


def test_a_job_dropped_in_the_middle_leaves_the_chain_whole():
    """Jobs 0, 1 and 2 of one device: with 1 gone, 2 builds on what 0 left; with 2 gone too, the next one does."""
    jobs = [job(id_, device=0) for id_ in range(4)]
    waiting = pending(*jobs[:3])
    waiting.drop(jobs[1])
    assert ids(waiting, jobs[2]) == [[0], [2]]
    waiting.drop(jobs[2])
    waiting.add(jobs[3])
    assert ids(waiting, jobs[3]) == [[0], [3]]
    waiting.drop(jobs[0])
    assert ids(waiting, jobs[3]) == [[3]]
    waiting.drop(jobs[3])
    assert len(waiting) == 0


def test_results_are_kept_until_their_job_is_dropped():
    """A job has a result once it is trained; one that is dropped has none, trained or not."""
    trained, untrained = job(0), job(1)
    waiting = pending(trained, untrained)
    waiting.finish(trained, "result")
    assert waiting.result(trained) == "result"
    with pytest.raises(KeyError):
        waiting.result(untrained)
    waiting.drop(trained)
    waiting.drop(untrained)
    for gone in (trained, untrained):
        with pytest.raises(KeyError):
            waiting.result(gone)


def test_messages_in_use_are_those_of_the_jobs_that_are_left():
    """A message is in use while a job that started from it is pending, whether its sender still is or not."""
    sender = job(0, device=4)
    receivers = [job(1, received=[sender]), job(2, received=[sender])]
    waiting = pending(sender, *receivers)
    waiting.drop(sender)
    waiting.drop(receivers[0])
    assert waiting.received() == {ModelRef(5, 0)}
    waiting.drop(receivers[1])
    assert waiting.received() == set()


@pytest.mark.parametrize("by_memory", [True, False])
def test_long_chains(by_memory):
    """A device with thousands of jobs, or as many peers of which each waited for the one before: one after another."""
    jobs = [job(0, device=0)]
    for id_ in range(1, LONG):
        jobs.append(job(id_, device=0) if by_memory else job(id_, received=jobs[-1:]))
    waiting = pending(*jobs)
    assert ids(waiting, jobs[-1]) == [[id_] for id_ in range(LONG)]
    waiting.drop(jobs[LONG // 2])
    kept = [id_ for id_ in range(LONG) if id_ != LONG // 2]
    assert ids(waiting, jobs[-1]) == [[id_] for id_ in (kept if by_memory else range(LONG // 2 + 1, LONG))]


@full
def test_many_ways_to_one_job_are_gone_once():
    """Each of two jobs received both messages of the layer before: 2 ^ 200 ways lead down, 200 layers are trained."""
    layers = [[job(0), job(1)]]
    for layer in range(1, 200):
        layers.append([job(2 * layer + side, received=layers[-1]) for side in (0, 1)])
    waiting = pending(*(each for layer in layers for each in layer))
    assert ids(waiting, *layers[-1]) == [[2 * layer, 2 * layer + 1] for layer in range(200)]


def naive_batches(alive: Sequence[Any], trained: set[int], keeps: bool, wanted: Sequence[Any]) -> list[list[int]]:
    """Return the same from the definition: the jobs reached from `wanted`, in the generations of graphlib."""
    untrained = {each.id: each for each in alive if each.id not in trained}

    def below(each: Any) -> set[int]:
        before = {o.id for o in untrained.values() if keeps and o.device == each.device and o.id < each.id}
        return before | ({ref.version for ref in each.received} & untrained.keys())

    graph: dict[int, set[int]] = {}
    todo = [each.id for each in wanted if each.id in untrained]
    while todo:
        id_ = todo.pop()
        if id_ not in graph:
            graph[id_] = below(untrained[id_])
            todo += graph[id_]
    order = TopologicalSorter(graph)
    order.prepare()
    batches = []
    while order.is_active():
        batches.append(sorted(order.get_ready()))
        order.done(*batches[-1])
    return batches


@given(st.booleans(), st.data())
def test_any_history_agrees_with_a_topological_order(keeps, data):
    """Jobs of four devices come, start from any messages there are, are trained and dropped in any order."""
    waiting, alive, made, trained = Pending(keeps), [], [], set[int]()
    for step in data.draw(st.lists(st.sampled_from(["add", "add", "add", "train", "drop"]), max_size=40)):
        if step == "add":
            received = data.draw(st.lists(st.sampled_from(made), max_size=3, unique_by=id)) if made else []
            made.append(job(len(made), data.draw(st.integers(0, 3)), received))
            alive.append(made[-1])
            waiting.add(made[-1])
        elif alive and step == "drop":
            gone = alive.pop(data.draw(st.integers(0, len(alive) - 1)))
            waiting.drop(gone)
        elif alive:
            wanted = data.draw(st.lists(st.sampled_from(alive), max_size=4))
            batches = ids(waiting, *wanted)
            assert batches == naive_batches(alive, trained, keeps, wanted)
            for each in (made[id_] for batch in batches for id_ in batch):
                trained.add(each.id)
                waiting.finish(each, each.id)
    assert len(waiting) == len(alive)
    assert all(waiting.result(each) == each.id for each in alive if each.id in trained)
