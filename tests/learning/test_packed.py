"""Packed tensors come back bit for bit, take what they should, and change nothing in a run."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edgesim.execution.checkpoint import Checkpoint, Saved
from edgesim.execution.shared_memory import SharedMemory
from edgesim.learning.aggregate.mean import is_finite
from edgesim.learning.codec import packed as module
from edgesim.learning.codec.packed import Packed, Tensors, packed
from tests.conftest import digits_scenario
from tests.contracts.support import fingerprint, run
from tests.sizes import thinned

DTYPES = [np.bool_, np.uint8, np.int16, np.int64, np.float16, np.float32, np.float64]
SHAPES = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6)
SPECIAL = [0.0, -0.0, float("nan"), -float("nan"), float("inf"), 1e-45, 1.0]


def pack_anything(model_state):
    """Return a bundle in which everything is packed that gets a tenth smaller."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LEAST_BYTES", 0)
        return packed(model_state)[0]


def bits(tensor):
    """Return all that tells tensors apart."""
    return tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.numpy().tobytes()


def open_tree(tree):
    """Return a tree of bundles as plain dicts of tensors."""
    return {name: open_tree(node) for name, node in tree.items()} if hasattr(tree, "items") else tree


def half_zero(*shape):
    """Return a tensor of which every other entry is zero."""
    return torch.arange(1.0, np.prod(shape) + 1).view(shape) * (torch.arange(np.prod(shape)).view(shape) % 2)


@given(st.data())
def test_round_trip(data):
    """Of any type, shape, bits and layout; -0.0 and the payload of a NaN are bits like any others."""
    dtype = np.dtype(data.draw(st.sampled_from(DTYPES)))
    size = dtype.itemsize
    words = st.sampled_from([0, 0, 0, 1]) if dtype == np.bool_ else st.sampled_from([0, 0, 0, 1, 2 ** (8 * size) - 1])
    drawn = data.draw(arrays.arrays(f"u{size}", data.draw(SHAPES), elements=words)).view(dtype)
    tensor = torch.from_numpy(drawn)
    if tensor.dim() == 4 and data.draw(st.booleans()):
        tensor = tensor.to(memory_format=torch.channels_last)
    found = pack_anything({"params": {"w": tensor}})
    assert bits(found["params"]["w"]) == bits(tensor)


@given(st.lists(st.sampled_from(SPECIAL), min_size=1, max_size=80))
def test_special_numbers(values):
    """What has a bit set stays; whether all is finite is told without unpacking."""
    tensor = torch.tensor([*values, *[0.0] * 2 * len(values)])
    found = pack_anything({"params": {"w": tensor}})
    assert isinstance(found["params"], Tensors)
    assert bits(found["params"]["w"]) == bits(tensor)
    assert is_finite(found) == is_finite({"params": {"w": tensor}}) == bool(np.isfinite(values).all())


def test_what_it_takes():
    """ResNet18's largest tensor, half of it zero: 4 bytes for every other number and a bit for each; masks: a bit."""
    weight = half_zero(512, 512, 3, 3)
    (found,) = packed({"params": {"w": weight}, "mask": {"w": weight != 0}})
    entries = 512 * 512 * 3 * 3
    assert found["params"].stored["w"].nbytes == entries * 4 // 2 + entries // 8
    assert found["mask"].stored["w"].nbytes == entries // 8


def test_only_what_gets_smaller():
    """Nine tenths of the numbers and a bit for each are no tenth less; small tensors are not worth the time."""
    dense, small, nearly = torch.ones(400, 400), torch.zeros(100, 100), torch.ones(400, 400)
    nearly[:40] = 0
    model_state = {"params": {"dense": dense, "nearly": nearly, "small": small, "gaps": torch.zeros(800, 800)[:, ::2]}}
    assert packed(model_state, None)[1] is None
    assert packed(model_state)[0]["params"] is model_state["params"]
    nearly[:60] = 0
    (found,) = packed(model_state)
    assert [name for name, each in found["params"].stored.items() if isinstance(each, Packed)] == ["nearly"]
    assert found["params"]["dense"] is dense


def test_shared_tensors_are_packed_once():
    """What a device sends is what it keeps: one memory for both."""
    weight = half_zero(200, 200)
    sent, kept = packed({"params": {"w": weight}}, {"params": {"w": weight.detach()}, "mask": {"w": weight != 0}})
    assert sent["params"].stored["w"] is kept["params"].stored["w"]
    again, _ = packed(kept, None)
    assert again["params"] is kept["params"]


def test_across_processes_and_on_disk(tmp_path):
    """Packed tensors travel as they are, dense ones as arrays; in a checkpoint they are packed too."""
    weight, bias = half_zero(200, 200), torch.ones(3)
    (model_state,) = packed({"params": {"w": weight, "b": bias}})
    memory = SharedMemory()
    block = memory.put(model_state)
    assert sum(block.parts) < weight.nbytes * 0.6
    found = memory.get(block, copied=True)
    assert {n: bits(t) for n, t in found["params"].items()} == {"w": bits(weight), "b": bits(bias)}
    checkpoint = Checkpoint(tmp_path / "file", 1.0, {})
    checkpoint.save(Saved({}, {b"kept": model_state}, 0.0))
    saved = checkpoint.load().values[b"kept"]["params"]
    assert checkpoint.file.stat().st_size < weight.nbytes * 0.6
    assert {n: bits(t) for n, t in saved.items()} == {"w": bits(weight), "b": bits(bias)}


PEERS = {"peers": {"name": "random", "degree": 3}, "selection": "all"}
PRUNING = {"name": "dadpfl", "growth": "random", "change_below": 1e9, "c": 1.0}


@pytest.mark.parametrize(
    "changes",
    thinned(
        [{"method": PRUNING, **PEERS}, {"method": "gossipfl", **PEERS}, {"method": "feddst"}], [{"method": "feddst"}]
    ),
    ids=str,
)
def test_runs_are_the_same(changes, monkeypatch):
    """Weights, memories and tables of a run in which everything is packed that gets smaller, and of one without."""
    found, packed_kinds = [], []
    for least in (2**60, 0):
        monkeypatch.setattr(module, "LEAST_BYTES", least)
        simulation = run(digits_scenario(**changes, stop={"rounds": 2}))
        learner = simulation.learner
        frames = {name: table.frame().to_csv() for name, table in simulation.tables.items()}
        found.append([frames, fingerprint(open_tree(learner.weights())), fingerprint(open_tree(learner.memory))])
        packed_kinds.append({kind for own in learner.memory.values() for kind, t in own.items() if type(t) is Tensors})
    assert found[0] == found[1]
    assert not packed_kinds[0]
    if changes["method"] is PRUNING:
        assert packed_kinds[1] == {"params", "mask", "origin"}


def test_what_is_alive_after_a_round():
    """Of each device what it keeps, whose weights are those that it sent; the first model is there once."""
    learner = run(digits_scenario(method="dispfl", **PEERS)).learner
    assert len(learner._messages) == len(learner.memory) == 10
    assert len(learner._models) == 2  # where devices start, and the newest mean
    assert not len(learner._pending)
    for ref, message in learner._messages.items():
        kept, sent = learner.memory[ref.owner - 1]["params"], learner.graph.value(message).body["params"]
        assert {t.data_ptr() for t in kept.values()} == {t.data_ptr() for t in sent.values()}
