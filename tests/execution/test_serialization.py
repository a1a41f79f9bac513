"""Trees of values come back from their file as they were, bit for bit; a changed byte or a foreign class is refused."""

from __future__ import annotations

import pickle
import random
import re
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from edgesim.core.errors import ConfigError, DataError
from edgesim.core.task import Order, Plan, Task
from edgesim.core.update import ModelRef
from edgesim.execution.checkpoint import Checkpoint, Saved
from edgesim.execution.serialization import read_tree, records_in, write_tree

RECORDS = records_in("edgesim.core.update", "edgesim.core.backend", "edgesim.core.task", "edgesim.core.encoding")


def there_and_back(path: Path, value: Any) -> Any:
    with path.open("wb") as file:
        write_tree(file, {"value": value}, RECORDS)
    return read_tree(path, RECORDS, "value")[0]


PLAIN = [
    None, True, 0, -(2**80), 0.1, -0.0, float("inf"), "", "é\n", b"\0\xff", [], (), {}, [1, (2, [3])], {1: {2.5: "x"}},
    {(1, "a"): None}, frozenset({"a", "b"}), {1, 2}, OrderedDict(b=1, a=2), np.float32(0.1), np.int64(7),
    np.bool_(True), ModelRef(1, 2), Plan((Order(3, Task(config={"a": 0.5})),)), torch.float32,
]  # fmt: skip


def printed(value: Any) -> list[str]:
    """Return the characters of a value as it prints, which tell 1 from 1.0; sets print their elements in any order."""
    return sorted(repr(value))


@pytest.mark.parametrize("value", PLAIN)
def test_plain_values_and_records(tmp_path: Path, value: Any) -> None:
    found = there_and_back(tmp_path / "file", value)
    assert (found, type(found), printed(found)) == (value, type(value), printed(value))


TENSORS = {
    "scalar": torch.tensor(1.5),
    "empty": torch.zeros(0, 3),
    "transposed": torch.arange(6.0).view(2, 3).T,
    "channels last": torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(1)).to(
        memory_format=torch.channels_last
    ),
    "with gaps": torch.arange(12).view(3, 4)[:, ::2],
    "expanded": torch.ones(1, 3).expand(4, 3),
    "half": torch.tensor([1.0, float("nan")], dtype=torch.bfloat16),
    "bools": torch.tensor([True, False]),
}


@pytest.mark.parametrize("tensor", TENSORS.values(), ids=TENSORS)
def test_tensors_keep_their_bits_and_strides(tmp_path: Path, tensor: torch.Tensor) -> None:
    found = there_and_back(tmp_path / "file", tensor)
    assert (found.dtype, found.shape, found.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
    assert (
        found.contiguous().view(-1).view(torch.uint8).tolist()
        == tensor.contiguous().view(-1).view(torch.uint8).tolist()
    )


@pytest.mark.parametrize("array", [np.arange(6).reshape(2, 3), np.arange(6.0).reshape(2, 3).T, np.zeros((0, 2), bool)])
def test_arrays_keep_their_order(tmp_path: Path, array: np.ndarray) -> None:
    found = there_and_back(tmp_path / "file", array)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.strides == array.strides or not array.size
    assert found.tobytes() == array.tobytes()


def test_what_is_shared_is_written_once_and_shared_again(tmp_path: Path) -> None:
    tensor, task = torch.ones(10_000), Task()
    found = there_and_back(tmp_path / "file", [tensor, {"same": tensor, "view": tensor.detach()}, task, task])
    assert found[0] is found[1]["same"] and found[2] is found[3]
    assert found[1]["view"].data_ptr() == found[0].data_ptr()
    assert (tmp_path / "file").stat().st_size < 1.2 * tensor.nbytes


class Foreign(NamedTuple):
    """A record that nobody has named."""

    command: str


@pytest.mark.parametrize(
    "value",
    [Foreign("rm"), object(), print, Path("x"), np.array([object()])],
    ids=["record", "object", "function", "path", "objects"],
)
def test_what_no_file_can_hold_is_refused_before_it_is_needed(tmp_path: Path, value: Any) -> None:
    with pytest.raises(TypeError, match="cannot be saved: only numbers, text, containers, tensors and known records"):
        there_and_back(tmp_path / "file", value)
    with pytest.raises(ConfigError, match=r"file: cannot be written: a .* cannot be saved"):
        Checkpoint(tmp_path / "file", 1.0, {}).save(Saved({}, {b"a": value}, 0.0))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_class_that_the_reader_does_not_name_is_not_made(tmp_path: Path) -> None:
    """Whatever the file says: the digest is right, and the class could be imported."""
    with (tmp_path / "file").open("wb") as file:
        write_tree(file, {"value": Foreign("rm")}, {f"{__name__}:Foreign": Foreign})
    known = re.escape(f"a record '{__name__}:Foreign', which this run does not know")
    with pytest.raises(ValueError, match=known):
        read_tree(tmp_path / "file", RECORDS, "value")


class Bomb:
    """Says so when a pickle of it is read."""

    def __reduce__(self) -> Any:
        return Path.write_text, (Path("ran"), "code")


def test_reading_a_checkpoint_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint = Checkpoint(tmp_path / "file", 1.0, {})
    for write in pickle.dump, torch.save:
        with checkpoint.file.open("wb") as file:
            write({"stamp": {"torch": torch.__version__}, "saved": Bomb()}, file)
        with pytest.raises(DataError, match="file: cannot be read; remove it to begin anew"):
            checkpoint.load()
        with pytest.raises(DataError, match="file: cannot be read; remove it to begin anew"):
            checkpoint.is_outdated()
    assert not Path("ran").exists()


def test_every_damage_is_one_line(tmp_path: Path) -> None:
    """A byte changed anywhere, a file cut short or longer: nothing is taken from it."""
    checkpoint = Checkpoint(tmp_path / "file", 1.0, {"scenario": "a"})
    checkpoint.save(Saved({}, {b"a": {"w": torch.arange(50.0)}, b"b": [1, 2]}, 2.5))
    whole = checkpoint.file.read_bytes()
    draw = random.Random(1)
    places = [*range(0, 200, 5), *(draw.randrange(len(whole)) for _ in range(100))]
    damaged = [whole[:p] + bytes([whole[p] ^ (1 << draw.randrange(8))]) + whole[p + 1 :] for p in places]
    damaged += [whole[: draw.randrange(len(whole))] for _ in range(20)] + [whole + b"\0", b"", b"{}", whole[::-1]]
    for content in damaged:
        checkpoint.file.write_bytes(content)
        with pytest.raises(DataError) as error:
            checkpoint.load()
        said = str(error.value)
        assert said.startswith(f"{checkpoint.file}: cannot be read; remove it to begin anew: ")
        assert "\n" not in said and len(said) < 500
