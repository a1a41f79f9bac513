"""Memory that processes share."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import edgesim
from edgesim.core.errors import ConfigError
from edgesim.execution.shared_memory import SharedMemory
from tests.sizes import full

TREE = {"a": np.arange(1000.0), "b": [np.zeros(0), "text", np.arange(6, dtype=np.int8).reshape(2, 3)], "c": 1}


def equal(one: Any, two: Any) -> bool:
    return str(one) == str(two) and one["a"].dtype == two["a"].dtype


def test_what_is_put_there_is_found_there() -> None:
    """Also if the place of one that was freed is used again; a copy stays as it was, what lies there does not."""
    memory = SharedMemory()
    one, two = memory.put(TREE), memory.put({**TREE, "c": 2})
    assert equal(memory.get(one, copied=False), TREE) and equal(memory.get(two, copied=True), {**TREE, "c": 2})
    lying, copy = memory.get(one, copied=False), memory.get(one, copied=True)
    memory.free(one)
    three = memory.put({**TREE, "a": np.arange(1000.0) * 2})
    assert (three.start, three.nbytes) == (one.start, one.nbytes) != (two.start, two.nbytes)
    assert lying["a"][1] == 2.0 and copy["a"][1] == 1.0
    assert equal(memory.get(two, copied=False), {**TREE, "c": 2})


@pytest.mark.parametrize("numbers", [1, 500, 10_000, 70_000, 1_000_003])
def test_blocks_are_hardly_larger_than_what_lies_in_them(numbers: int) -> None:
    memory = SharedMemory()
    array = np.arange(numbers, dtype=np.float64)
    block = memory.put(array)
    assert sum(block.parts) <= block.nbytes <= max(2 * 4096, 1.15 * sum(block.parts))
    assert (memory.get(block, copied=False) == array).all()


def test_arrays_in_common_are_one_and_arrays_in_pieces_come_whole() -> None:
    memory = SharedMemory()
    array, pieces = np.arange(10.0), np.arange(100.0).reshape(10, 10)[::2, ::3]
    first, second, found = memory.get(memory.put([array, array, pieces]), copied=True)
    assert first is second and (found == pieces).all()


def test_tensors_come_back_as_they_lay() -> None:
    """With their strides and types, one that is in two places once, and the parameters of a network."""
    images = torch.arange(2 * 3 * 4 * 5.0).view(2, 3, 4, 5).to(memory_format=torch.channels_last)
    some = {
        "images": images,
        "again": images,
        "part": images[1, 1:],
        "half": torch.arange(3, dtype=torch.bfloat16),
        "true": torch.tensor([True, False]),
        "none": torch.empty(0, 3),
        "layer": torch.nn.Linear(3, 2),
    }
    memory = SharedMemory()
    for copied in (True, False):
        found = memory.get(memory.put(some), copied)
        assert found["images"] is found["again"]
        for name in ("images", "part", "half", "true", "none"):
            assert torch.equal(found[name], some[name]) and found[name].dtype == some[name].dtype
            assert found[name].stride() == some[name].stride()
        assert torch.equal(found["layer"].weight, some["layer"].weight) and found["layer"].weight.requires_grad


def _answer(memory: SharedMemory, work: Connection) -> None:
    block = work.recv()
    lying = memory.get(block, copied=False)
    lying["a"][:] *= 2
    del lying
    work.send("done")
    work.recv()


@pytest.mark.workers
def test_another_process_sees_the_same_memory() -> None:
    """Blocks that were there when it started, and those of a file that has grown since."""
    memory = SharedMemory()
    context = get_context("forkserver")
    mine, theirs = context.Pipe()
    process = context.Process(target=_answer, args=(memory, theirs))
    process.start()
    try:
        block = memory.put(TREE)
        mine.send(block)
        assert mine.recv() == "done"
        assert (memory.get(block, copied=False)["a"] == np.arange(1000.0) * 2).all()
    finally:
        mine.send("end")
        process.join(60)
    assert process.exitcode == 0


# --- what is left -------------------------------------------------------------------------------------------------


@pytest.fixture
def no_collections() -> Iterator[None]:
    """Let nothing that refers to itself be freed meanwhile."""
    gc.disable()
    yield
    gc.enable()


def held() -> tuple[int, int]:
    """Return how many files this process has open, and how much memory of files it has mapped, in bytes."""
    mapped = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:edgesim" in line]
    ends = [[int(end, 16) for end in line[0].split("-")] for line in mapped]
    return len(list(Path("/proc/self/fd").iterdir())), sum(last - first for first, last in ends)


@full
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="counts what Linux tells of a process")
@pytest.mark.workers
def test_runs_on_workers_leave_no_file_open_and_no_memory(here: Path, no_collections: None) -> None:
    """Whether or not Python looks for objects that refer to each other."""
    gc.collect()  # pools that other tests have left to the collector
    scenario = edgesim.load("scenario.toml", ["backend={ name = 'workers', workers = 2 }"])
    edgesim.run(scenario, out=here / "first")  # the process that workers are forked from stays
    before = held()
    for place in range(3):
        edgesim.run(scenario, out=here / str(place))
    with pytest.raises(ConfigError, match="stopped"):
        edgesim.run(scenario, out=here / "stopped", on_round=_stop)
    assert held() == before and before[1] == 0


def _stop(info: Any) -> None:
    raise ConfigError("stopped")


def test_arrays_that_lie_in_memory_stay_when_it_is_closed() -> None:
    memory = SharedMemory()
    lying = memory.get(memory.put(TREE), copied=False)
    memory.close()
    memory.close()
    assert equal(lying, TREE)
