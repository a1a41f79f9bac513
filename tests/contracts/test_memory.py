"""What devices remember, and when it changes."""

from __future__ import annotations

import pytest

from edgesim.core.errors import ContractError
from tests.contracts.support import (
    COORDINATORS,
    LATE_COMPUTING,
    LATE_UPLOADING,
    PLUGINS,
    fingerprint,
    mixed_scenario,
    play,
    prepare,
    run,
)


@pytest.mark.parametrize(
    ("name", "remember"), [("Proximal", {LATE_UPLOADING, 2, 3, 4, 5}), ("Delivered", {2, 3, 4, 5})]
)
def test_when_memory_changes(name, remember):
    """Late in its upload a device has changed its "computed" memory but not its "delivered" one; late in its
    computation neither.
    """
    scenario = mixed_scenario(method=f"{PLUGINS}:{name}", protocol=COORDINATORS["deadline"], stop={"rounds": 1})
    simulation = run(scenario)
    jobs = simulation.tables["jobs"].frame().set_index("device")
    assert jobs["outcome"][[LATE_COMPUTING, LATE_UPLOADING, 2]].tolist() == ["late", "late", "ok"]
    assert jobs["up_s"][LATE_COMPUTING] == 0 < jobs["up_s"][LATE_UPLOADING]
    assert simulation.learner.memory.keys() == remember


def test_memory_comes_back_to_its_device():
    """In round 2 a device starts from what it kept in round 1 and replaces it."""
    simulation = prepare(mixed_scenario(method=f"{PLUGINS}:Proximal"))
    learner = simulation.learner
    handed = {}
    train = learner.backend.train

    def watched(assignments):
        handed.update({assignment.device: assignment.device_state for assignment in assignments})
        return train(assignments)

    learner.backend.train = watched
    play(simulation)
    kept = dict(learner.memory)
    handed.clear()
    play(simulation)
    assert handed.keys() == kept.keys()
    assert all(handed[device] is kept[device] for device in kept)
    assert all(fingerprint(learner.memory[device]) != fingerprint(kept[device]) for device in kept)


@pytest.mark.parametrize("name", ["Proximal", "Delivered"])
def test_memory_without_rounds(name):
    """A device that delivers twice for one merge trains the second time from what it kept the first time."""
    simulation = prepare(mixed_scenario(method=f"{PLUGINS}:{name}", protocol=COORDINATORS["buffered"]))
    calls, train = [], simulation.learner.backend.train

    def watched(assignments):
        results = train(assignments)
        calls.append(list(zip(assignments, results, strict=True)))
        return results

    simulation.learner.backend.train = watched
    simulation.run()
    kept = {}
    for call in calls:
        assert all(assignment.device_state is kept.get(assignment.device) for assignment, _ in call)
        kept.update({assignment.device: result.new_device_state for assignment, result in call})
    assert simulation.session.round == 2 < len(calls)  # somebody came twice to a merge, and was trained in two calls


def test_undeclared_memory_is_refused():
    """A rule that keeps something although needs.device_state says "none" breaks its word."""
    with pytest.raises(
        ContractError, match=r"Forgetful keeps something on a device but needs\.device_state says 'none'"
    ):
        run(mixed_scenario(method=f"{PLUGINS}:Forgetful"))
