"""What devices and methods remember: when it changes, and that it can be written down and read back."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from edgesim.errors import ContractError, DataError
from edgesim.state import ARRAYS, STRUCTURE, load_state, save_state
from tests.contracts.support import (
    COORDINATORS,
    LATE_COMPUTING,
    LATE_UPLOADING,
    METHODS,
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
    scenario = mixed_scenario(method=f"{PLUGINS}:{name}", coordinator=COORDINATORS["deadline"], stop={"rounds": 1})
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
    train = learner._backend.train

    def watched(assignments):
        handed.update({assignment.device: assignment.own for assignment in assignments})
        return train(assignments)

    learner._backend.train = watched
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
    simulation = prepare(mixed_scenario(method=f"{PLUGINS}:{name}", coordinator=COORDINATORS["buffered"]))
    calls, train = [], simulation.learner._backend.train

    def watched(assignments):
        results = train(assignments)
        calls.append(list(zip(assignments, results, strict=True)))
        return results

    simulation.learner._backend.train = watched
    simulation.run()
    kept = {}
    for call in calls:
        assert all(assignment.own is kept.get(assignment.device) for assignment, _ in call)
        kept.update({assignment.device: result.keep for assignment, result in call})
    assert simulation.engine.round == 2 < len(calls)  # somebody came twice to a merge, and was trained in two calls


def test_undeclared_memory_is_refused():
    """A rule that keeps something although needs.keep says "no" breaks its word."""
    with pytest.raises(ContractError, match=r"Forgetful keeps something on a device but needs\.keep says 'no'"):
        run(mixed_scenario(method=f"{PLUGINS}:Forgetful"))


@pytest.mark.parametrize("name", METHODS)
def test_state_and_memory_survive_the_disk(name, tmp_path):
    """A method's state, first and after a merge, and what devices carry come back bit for bit, types included."""
    simulation = prepare(mixed_scenario(method=name))
    learner = simulation.learner
    trees = [learner.state]
    play(simulation)
    for place, tree in enumerate([*trees, learner.state, learner.memory]):
        save_state(tmp_path / str(place), tree)
        assert fingerprint(load_state(tmp_path / str(place))) == fingerprint(tree)


@pytest.mark.parametrize("name", METHODS)
def test_a_restored_method_goes_on_as_before(name, tmp_path):
    """The round after a merge is the same bit for bit from the state and memory read back from disk."""
    outcomes = []
    for restored in (False, True):
        simulation = prepare(mixed_scenario(method=name))
        learner = simulation.learner
        play(simulation)
        if restored:
            save_state(tmp_path, {"state": learner.state, "memory": learner.memory})
            tree = load_state(tmp_path)
            learner.state, learner.memory = tree["state"], tree["memory"]
        play(simulation)
        outcomes.append(fingerprint([learner.weights(), learner.state, learner.memory]))
    assert outcomes[0] == outcomes[1]


TREES = [
    None,
    {"a": [1, -2.5, True, None, "x"], "b": {3: (4, (5.0, [])), -1: {}}, (1, "k"): 0, None: 1, 2.5: 2, True: 3},
    [float("inf"), float("-inf"), -0.0, 1e-320, 2**70, 0.1 + 0.2],
    {"tuple": [1], "dict": [], "float": "nan", "tensor": "0", "ä": "\n\0\ud7ff"},
    [np.arange(6, dtype=t).reshape(2, 3) for t in ("i1", "u2", "i4", "u8", "f2", "f4", "f8")],
    [np.zeros((0, 3)), np.array(7), np.array([True]), np.arange(8).reshape(2, 4).T, np.array([np.nan, -0.0])],
    [np.float64(0.5), np.int64(3), np.bool_(True)],
    [torch.arange(6).reshape(2, 3).T, torch.tensor(2.5), torch.tensor([True]), torch.zeros(0), torch.ones(3).half()],
]


@pytest.mark.parametrize("tree", TREES, ids=range(len(TREES)))
def test_trees_come_back_exactly(tree, tmp_path):
    """Values, types, dtypes and shapes survive, also where JSON has no form for them."""
    save_state(tmp_path / "deep" / "folder", tree)
    assert fingerprint(load_state(tmp_path / "deep" / "folder")) == fingerprint(tree)


def test_nan_and_number_types_come_back(tmp_path):
    """NaN is NaN again; True stays a bool, 1.0 a float, and a dict keeps its order."""
    save_state(tmp_path, [float("nan"), True, 1.0, 1, {"b": 1, "a": 2}])
    nan, *others = load_state(tmp_path)
    assert np.isnan(nan)
    assert [type(value) for value in others[:3]] == [bool, float, int]
    assert list(others[3]) == ["b", "a"]


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a": [0, {1, 2}]}, r"state\['a'\]\[1\]: a value of type set cannot be saved"),
        ({"a": {b"k": 1}}, r"state\['a'\]: a key of type bytes cannot be saved"),
        ((np.array(["x"]),), r"state\[0\]: a value of type ndarray of <U1 cannot be saved"),
        ([torch.ones(2, dtype=torch.bfloat16)], r"state\[0\]: a value of type Tensor of torch.bfloat16"),
        (np.ones(2, dtype=">f8"), r"state: a value of type ndarray of >f8"),
        ({"f": len}, r"state\['f'\]: a value of type builtin_function_or_method cannot be saved"),
    ],
)
def test_what_cannot_be_kept_is_named(tree, message, tmp_path):
    """The error says where in the tree the value is; nothing is written."""
    with pytest.raises(ContractError, match=message):
        save_state(tmp_path / "new", tree)
    assert not (tmp_path / "new").exists()


def test_an_older_state_is_replaced(tmp_path):
    """Saving again leaves nothing of the tree before."""
    save_state(tmp_path, [np.zeros(3), np.ones(4)])
    save_state(tmp_path, [np.full(2, 7.0)])
    (only,) = load_state(tmp_path)
    assert only.tolist() == [7, 7]
    only[0] = 8  # what comes back may be changed


@pytest.mark.parametrize("broken", [STRUCTURE, ARRAYS])
@pytest.mark.parametrize("content", [None, b"", b"{", b'{"tensor": "9"}'])
def test_a_damaged_state_is_a_data_error(broken, content, tmp_path):
    """A missing, empty or cut-off file is named, not returned as something else."""
    save_state(tmp_path, {"w": torch.ones(2)})
    if content is None:
        (tmp_path / broken).unlink()
    else:
        (tmp_path / broken).write_bytes(content)
    with pytest.raises(DataError, match="holds no complete state"):
        load_state(tmp_path)


def test_a_tree_without_tensors_needs_no_torch(tmp_path, monkeypatch):
    """Where torch was never imported nothing is a tensor, and nothing imports it."""
    monkeypatch.setitem(sys.modules, "torch", None)
    save_state(tmp_path, {"a": np.ones(2), "b": (1, 2)})
    assert load_state(tmp_path)["b"] == (1, 2)
