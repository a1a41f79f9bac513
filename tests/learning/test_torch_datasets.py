"""A user's own Datasets of torch: what they may return, their identity, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import edgesim
from edgesim.core.errors import ConfigError, DataError
from edgesim.files.code_identity import named_files_digest
from edgesim.learning.data.dataset import Dataset
from edgesim.runs.assembly import assemble
from tests.conftest import digits_scenario
from tests.learning.made_up_data import load
from tests.outside.torch_datasets import Points
from tests.sizes import full


def made(name: str, **keys: Any) -> Dataset:
    return load("torch", dataset=f"tests.outside.torch_datasets:{name}", **keys)


@pytest.mark.parametrize("as_table", [False, True])
def test_two_sets_are_train_and_test(as_table: bool) -> None:
    data = made("both", options={"as_table": as_table})
    assert torch.equal(data.x_train, Points(6).x) and torch.equal(data.x_test, Points(6, train=False).x)
    assert data.y_train.tolist() == [0, 1] * 3 and (data.classes, data.input_shape) == (2, (3,))
    limited = made("both", train_limit=4, test_limit=1)
    assert torch.equal(limited.x_train, data.x_train[:4]) and len(limited.y_test) == 1
    assert limited.columns["day"][0].tolist() == [0, 1, 2, 3]


def test_a_class_is_called_a_second_time_for_the_test() -> None:
    data = made("Points", options={"count": 6, "shift": 0.5}, test_options={"train": False})
    assert torch.equal(data.x_train, Points(6, shift=0.5).x)
    assert torch.equal(data.x_test, Points(6, train=False, shift=0.5).x)


def test_a_single_set_gives_a_share_of_each_class_to_the_test() -> None:
    data = made("Points", test_share=1 / 3)
    x, y = torch.cat([data.x_train, data.x_test]), torch.cat([data.y_train, data.y_test])
    rows = (x[:, 0] / 3).int().tolist()
    assert sorted(rows) == list(range(12)) and y.tolist() == [row % 2 for row in rows]
    assert data.y_test.sum() == 2 and len(data.y_test) == 4
    assert np.concatenate(data.columns["day"]).tolist() == rows


def test_pictures_of_every_library_are_the_same_pixels() -> None:
    found = {kind: made("pictures", options={"kind": kind}, test_share=0.5, normalise="cifar10") for kind in (
        "array", "tensor", "float", "pillow")}  # fmt: skip
    assert {each.input_shape for each in found.values()} == {(3, 2, 3)}
    assert len({found[kind].digest for kind in ("array", "tensor", "pillow")}) == 1
    assert torch.allclose(found["float"].x_train, found["array"].x_train, atol=1e-6)


def test_draws_of_torch_are_the_same_every_time_and_leave_the_generator() -> None:
    before = torch.get_rng_state()
    assert made("noisy").digest == made("noisy").digest != made("noisy", split_seed=2).digest
    assert torch.equal(torch.get_rng_state(), before)


def test_devices_hold_the_samples_of_their_users(tmp_path: Path) -> None:
    scenario = digits_scenario(
        data={"name": "torch", "dataset": "tests.outside.torch_datasets:both"}, selection="all",
        partition={"name": "by_column", "column": "user_id"}, model={"name": "mlp", "hidden": [2]},
        fleet=[{"count": 3, "cpu": {"flops_per_s": "20 MFLOP/s"}}], stop={"rounds": 1}, training={"batch": 2},
    )  # fmt: skip
    split = assemble(scenario).split
    assert split is not None and [rows.tolist() for rows in split.train] == [[0, 3], [1, 4], [2, 5]]
    assert len(edgesim.run(scenario, out=tmp_path / "run").rounds) == 1


# --- identity ---------------------------------------------------------------------------------------------------


def test_data_of_a_changed_file_are_other_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code is the same, so that tensors and named files have to tell."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "numbers.txt"
    table = {"name": "torch", "dataset": "tests.outside.torch_datasets:of_file", "options": {"path": "numbers.txt"}}
    found = set()
    for text in ("1 2 3 4 5 6", "1 2 3 4 5 7"):
        file.write_text(text)
        data = made("of_file", options=table["options"], test_share=0.34)
        found.add((data.digest, named_files_digest({"data": table})))
    assert len({digest for digest, _ in found}) == len({files for _, files in found}) == 2


@full
def test_answers_of_other_data_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run beside the first one, with a file that has changed, equals a run with nothing kept."""
    monkeypatch.chdir(tmp_path)

    def accuracy(text: str, name: str) -> list[float]:
        (tmp_path / "numbers.txt").write_text(text)
        scenario = digits_scenario(
            data={"name": "torch", "dataset": "tests.outside.torch_datasets:of_file", "test_share": 0.34,
                  "options": {"path": str(tmp_path / "numbers.txt")}},
            partition="iid", model={"name": "mlp", "hidden": [2]}, selection="all", stop={"rounds": 2},
            fleet=[{"count": 2, "cpu": {"flops_per_s": "20 MFLOP/s"}}], training={"batch": 2, "lr": 0.5},
        )  # fmt: skip
        return list(edgesim.run(scenario, out=tmp_path / name / "run").evals["loss"])

    first, second = "1 2 3 4 5 6", "6 -2 3 -4 5 9"
    changed = [accuracy(first, "a"), accuracy(second, "a2")]
    assert changed == [accuracy(first, "b"), accuracy(second, "c")] and changed[0] != changed[1]


# --- refusals ---------------------------------------------------------------------------------------------------

NAME = "tests.outside.torch_datasets:wrong"


@pytest.mark.parametrize(
    ("case", "line"),
    [
        ("list", "must return a Dataset with __len__ and __getitem__, or two, got list"),
        ("table", "must return the Datasets train and test, got ['train']"),
        ("stream", "must return a Dataset with __len__ and __getitem__, or two, got Stream"),
        ("empty", "a Dataset has no samples"),
        ("triple", "train sample 0 must be a pair of features and a class, got (tensor([0., 0.]), 0, 1) of type tuple"),
        ("text", "train sample 0: features must be numbers with one to three axes, got 'a text' of type str"),
        ("shapes", "train sample 1 has shape (3,) of float32, sample 0 has shape (2,) of float32; all must be the "
         "same"),
        ("types", "train sample 1 has shape (2,) of int32, sample 0 has shape (2,) of float32; all must be the same"),
        ("float", "train sample 1: the label must be a whole number from 0, got 0.5 of type float"),
        ("vector", "train sample 0: the label must be a whole number from 0, got a Tensor of shape (2,) and type "
         "torch.int64"),
        ("negative", "labels lie in [-1, 1], expected [0, 1]"),
        ("nan", "train sample 0 has a number that is not finite"),
        ("short", "column 'user' needs a text or whole number for each of the 6 samples, got shape (1,) of <U1"),
        ("columns", "columns of a Dataset must be a table of lists, got list"),
    ],
)  # fmt: skip
def test_samples_that_do_not_fit_are_refused_in_one_line(case: str, line: str) -> None:
    with pytest.raises(DataError) as caught:
        made("wrong", options={"case": case})
    assert str(caught.value) == f"{NAME}: {line}"


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"dataset": "points"}, "data.dataset: must be package.module:factory, got 'points'"),
        ({"dataset": "tests.outside.none:f"}, "data.dataset: cannot import 'tests.outside.none:f': No module named "
         "'tests.outside.none'"),
        ({"dataset": NAME.replace("wrong", "__doc__")}, "data.dataset: 'tests.outside.torch_datasets:__doc__' must "
         "be a function or class, found 'Datasets of torch as a user would write them.'"),
        ({"dataset": NAME, "options": {"case": "raises"}}, f"data.dataset: {NAME} fails: IndexError: Cannot choose "
         "from an empty sequence (torch_datasets.py, line "),
        ({"dataset": NAME, "options": {"size": 3}}, f"data.dataset: {NAME} fails: TypeError: wrong() got an "
         "unexpected keyword argument 'size'"),
    ],
)  # fmt: skip
def test_factories_that_fail_are_one_line(keys: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load("torch", **keys)
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value)
