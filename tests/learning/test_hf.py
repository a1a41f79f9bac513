"""Hugging Face data sets on disk: their layouts, columns, partitions, and what is refused."""

from __future__ import annotations

import builtins
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import edgesim
from edgesim.core.errors import ConfigError, DataError, EdgesimError
from edgesim.learning.data.sources.hf import HuggingFace
from edgesim.runs.assembly import assemble
from tests.conftest import digits_scenario
from tests.learning.made_up_data import load, pixels, png, write_arrow, write_parquet, write_saved

TRAIN, TEST = pixels(6, 6, 6, 3), pixels(4, 6, 6, 3)[::-1]
USERS = ["b", "a", "b", "c", "a", "c"]


def pictures(images: np.ndarray, labels: list[int], users: list[str] | None = None) -> pa.Table:
    """Return the table that `datasets` writes for images with classes ant, bee and cat."""
    cells = [{"bytes": png(one), "path": None} for one in images]
    columns: dict[str, Any] = {"img": cells, "label": labels, **({} if users is None else {"user_id": users})}
    noted = {"img": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["ant", "bee", "cat"]}}
    return with_features(pa.table(columns), noted)


def with_features(table: pa.Table, noted: Mapping[str, Any]) -> pa.Table:
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": noted}})})


PAIR = {
    "train": pictures(TRAIN, [0, 1, 0, 1, 0, 1], USERS),
    "test": pictures(TEST, [1, 0, 1, 0], ["c", "b", "a", "b"]),
}


def write_hub(folder: Path, tables: Mapping[str, pa.Table]) -> None:
    """Write a parquet file for each name, which may have folders."""
    for name, table in tables.items():
        path = folder / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path)


def write_halves(folder: Path) -> None:
    """Write the training split in two files, and their numbers in the names."""
    halves = [PAIR["train"][:4], PAIR["train"][4:]]
    names = [f"data/train-0000{n}-of-00002" for n in range(2)]
    write_hub(folder, {**dict(zip(names, halves, strict=True)), "data/test-00000-of-00001": PAIR["test"]})


LAYOUTS: dict[str, Any] = {
    "saved": lambda folder: write_saved(folder, PAIR),
    "hub": write_halves,
    "flat": lambda folder: write_hub(folder, PAIR),
    "converted": lambda folder: write_hub(folder, {f"plain/{each}/0000": table for each, table in PAIR.items()}),
    "dev": lambda folder: write_hub(folder, {"plain/training": PAIR["train"], "plain/x-dev": PAIR["test"]}),
    "cache": lambda folder: [write_arrow(folder / f"pets-{each}.arrow", table) for each, table in PAIR.items()],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_pixels_labels_and_columns(tmp_path: Path, layout: str) -> None:
    LAYOUTS[layout](tmp_path / "pets")
    data = load("hf", path=tmp_path / "pets")
    assert (data.classes, data.input_shape) == (3, (3, 6, 6))
    assert data.y_train.tolist() == [0, 1, 0, 1, 0, 1] and data.y_test.tolist() == [1, 0, 1, 0]
    assert torch.equal(data.x_train, torch.from_numpy(TRAIN).float() / 255)
    assert torch.equal(data.x_test, torch.from_numpy(TEST.copy()).float() / 255)
    assert {name: [part.tolist() for part in both] for name, both in data.columns.items()} == {
        "user_id": [USERS, ["c", "b", "a", "b"]]
    }


def test_limits_keep_the_first_samples_and_their_columns(tmp_path: Path) -> None:
    for layout in ("saved", "hub"):
        LAYOUTS[layout](tmp_path / layout)
        data = load("hf", path=tmp_path / layout, train_limit=5, test_limit=1)
        assert torch.equal(data.x_train, torch.from_numpy(TRAIN[:5]).float() / 255)
        assert data.columns["user_id"][0].tolist() == USERS[:5] and data.columns["user_id"][1].tolist() == ["c"]


def test_a_single_split_gives_a_share_of_each_class_to_the_test(tmp_path: Path) -> None:
    """Rows keep together: the first pixel of an image tells its row."""
    write_saved(tmp_path / "one", {"": PAIR["train"]})
    data = load("hf", path=tmp_path / "one", test_share=0.34)
    first = (torch.cat([data.x_train, data.x_test])[:, 0, 0, 0] * 255).round().int().tolist()
    rows = [TRAIN[:, 0, 0, 0].tolist().index(each) for each in first]
    assert sorted(rows) == list(range(6)) and sorted(data.y_test.tolist()) == [0, 1]
    assert torch.cat([data.y_train, data.y_test]).tolist() == [row % 2 for row in rows]
    assert np.concatenate(data.columns["user_id"]).tolist() == [USERS[row] for row in rows]
    limited = load("hf", path=tmp_path / "one", test_share=0.34, train_limit=2)
    assert torch.equal(limited.x_train, data.x_train[:2])
    assert limited.columns["user_id"][0].tolist() == data.columns["user_id"][0][:2].tolist()


def test_the_projects_cifar10_has_the_same_tensors() -> None:
    """Both read the parquet files of the hub; the moments are given by the same name."""
    from edgesim.learning.data.source import places

    folder = next((each for each in places(None, ["cifar10"]) if list(each.glob("train-*.parquet"))), None)
    if folder is None:
        pytest.skip("set EDGESIM_DATA to a folder with cifar10/train-*.parquet")
    own, hub = (
        load(name, normalise="cifar10", train_limit=2000, test_limit=500, **keys)
        for name, keys in (("cifar10", {}), ("hf", {"path": folder}))
    )
    assert own.digest == hub.digest and own.classes == hub.classes == 10
    for each in ("x_train", "y_train", "x_test", "y_test"):
        assert torch.equal(getattr(own, each), getattr(hub, each))


def test_files_that_datasets_writes_are_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"x": datasets.Array2D((2, 3), "float32"), "kind": datasets.ClassLabel(names=["u", "v"])}
    )
    x = np.arange(48, dtype=np.float32).reshape(8, 2, 3)
    made = datasets.Dataset.from_dict({"x": x, "kind": [0, 1] * 4}, features=features)
    datasets.DatasetDict({"train": made.select([5, 0, 3]), "test": made}).save_to_disk(tmp_path / "saved")
    made.to_parquet(tmp_path / "hub" / "test.parquet")
    made.select([5, 0, 3]).to_parquet(tmp_path / "hub" / "train.parquet")
    for layout in ("saved", "hub"):
        data = load("hf", path=tmp_path / layout)
        assert data.y_train.tolist() == [1, 0, 1] and data.input_shape == (1, 2, 3)
        assert torch.equal(data.x_train[..., 0], torch.from_numpy(x[[5, 0, 3]]))


# --- columns ----------------------------------------------------------------------------------------------------

NUMBERS = pa.table(
    {
        "height": [1.5, 2.5, 4.0, 0.5], "age": [3, 1, 2, 9], "vector": [[1.0, 2], [3, 4], [5, 6], [7, 8]],
        "kind": ["b", "a", "b", "c"], "code": [1, 0, 1, 0], "who": [11, 9, 11, 9], "share": [0.5, 0.1, 0.2, 0.3],
    }
)  # fmt: skip


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    write_hub(tmp_path / "numbers", {"train": NUMBERS, "test": NUMBERS[1:3]})
    return tmp_path / "numbers"


def test_numbers_texts_and_lists_become_vectors_and_classes(numbers: Path) -> None:
    data = load("hf", path=numbers, features=["height", "age"], label="kind")
    assert data.x_train.tolist() == [[1.5, 3], [2.5, 1], [4, 2], [0.5, 9]]
    assert (data.y_train.tolist(), data.y_test.tolist(), data.classes) == ([1, 0, 1, 2], [0, 1], 3)
    assert {*data.columns} == {"code", "who"} and data.columns["who"][0].tolist() == [11, 9, 11, 9]
    data = load("hf", path=numbers, label="code")
    assert data.x_test.tolist() == [[3, 4], [5, 6]] and data.input_shape == (2,)
    scaled = load("hf", path=numbers, label="code", features="height", standardise=True)
    of = np.array([1.5, 2.5, 4.0, 0.5])
    assert scaled.x_train.flatten().tolist() == pytest.approx(((of - of.mean()) / of.std()).tolist())
    assert scaled.x_test.flatten().tolist() == pytest.approx(((of[1:3] - of.mean()) / of.std()).tolist())


def test_only_floating_point_numbers_are_features_by_default(tmp_path: Path) -> None:
    write_hub(tmp_path / "d", {"train": NUMBERS.select(["height", "share", "kind"])})
    assert load("hf", path=tmp_path / "d", label="kind", test_share=0.4).input_shape == (2,)


def test_images_of_several_sizes_and_colours_are_made_equal(tmp_path: Path) -> None:
    mixed = pa.table(
        {"image": [{"bytes": png(pixels(1, *shape)[0])} for shape in ((6, 6, 3), (4, 8))], "label": [0, 1]}
    )
    write_hub(tmp_path / "d", {"train": mixed, "test": mixed})
    with pytest.raises(DataError, match=r"image 1 has shape \(4, 8, 1\), image 0 has \(6, 6, 3\)"):
        load("hf", path=tmp_path / "d")
    assert load("hf", path=tmp_path / "d", resize=5, grey=False).x_train.shape == (2, 5, 5, 3)


def test_a_device_holds_the_samples_of_a_value(tmp_path: Path) -> None:
    write_saved(tmp_path / "pets", PAIR)
    scenario = digits_scenario(
        data={"name": "hf", "path": str(tmp_path / "pets")}, partition={"name": "by_column", "column": "user_id"},
        model={"name": "mlp", "hidden": [2]}, selection="all", evaluation={"personal": True},
        fleet=[{"count": 3, "cpu": {"flops_per_s": "20 MFLOP/s"}}], stop={"rounds": 1}, training={"batch": 2},
    )  # fmt: skip
    split = assemble(scenario).split
    assert split is not None and split.test is not None
    assert [rows.tolist() for rows in split.train] == [[1, 4], [0, 2], [3, 5]]
    assert [rows.tolist() for rows in split.test] == [[2], [1, 3], [0]]
    assert len(edgesim.run(scenario, out=tmp_path / "run").rounds) == 1


# --- refusals ---------------------------------------------------------------------------------------------------


def refused(folder: Path, **keys: Any) -> str:
    """Return the one line with which a data set is refused, with FOLDER for its folder."""
    with pytest.raises(EdgesimError) as caught:
        load("hf", **{"path": folder, **keys})
    assert isinstance(caught.value, ConfigError | DataError)
    text = str(caught.value)
    assert "\n" not in text
    return text.replace(f"{folder} split train", "SPLIT").replace(str(folder), "FOLDER")


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"train": "tests"}, "data.train: FOLDER has no split 'tests' (it has test, train)"),
        ({"test": "validation"}, "data.test: FOLDER has no split 'validation' (it has test, train)"),
        ({"subset": "de"}, "data.subset: FOLDER has no subset 'de' (it has .)"),
        ({"label": "sort"}, "data: SPLIT has no column 'sort' (it has height, age, vector, kind, code, who, "
         "share)"),
        ({}, "data.label: SPLIT has the columns height, age, vector, kind, code, who, share; name the "
         "column of the label"),
        ({"label": "share"}, "SPLIT: label 'share' is double, expected integers or texts; data 'table' has "
         "labels that are numbers"),
        ({"label": "code", "features": "code"}, "data.features: 'code' is no feature, as it is the label"),
        ({"label": "code", "features": "kind"}, "data.features: column 'kind' of SPLIT is text, needed are "
         "images or numbers; data 'text' reads texts of other files"),
        ({"label": "code", "features": ["height", "vector"]}, "data.features: column 'vector' of SPLIT: a "
         "column of images or lists is the only feature"),
        ({"label": "age"}, "FOLDER: labels lie in [-1, 9], expected [0, 9]"),
        ({"label": "code", "resize": 4}, "data.resize: is for images, the features of FOLDER are numbers"),
        ({"label": "code", "download": True}, "data.repository: data.download = true needs a repository, such as "
         "'ylecun/mnist'"),
    ],
)  # fmt: skip
def test_keys_that_do_not_fit_are_refused_in_one_line(numbers: Path, keys: dict[str, Any], line: str) -> None:
    if keys.get("label") == "age":
        write_hub(numbers, {"train": NUMBERS.set_column(1, "age", pa.array([-1, 1, 2, 9]))})
    assert refused(numbers, **keys) == line


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        ({"img": [None, None], "label": [0, 1]}, "SPLIT: has no column of images or numbers beside the label"),
        ({"img": ["a", "b"], "label": [0, 1]}, "SPLIT: has no column of images or numbers beside the label; "
         "its text (img) is not read, data 'text' reads texts of other files"),
        ({"x": [[1.0], [1.0, 2.0]], "label": [0, 1]},
         "SPLIT: column 'x' needs lists of one length, found lengths [1, 2]"),
        ({"x": [[1.0], None], "label": [0, 1]},
         "SPLIT: column 'x' needs lists of one length, found a missing list"),
        ({"x": [[1.0], [None]], "label": [0, 1]}, "SPLIT: column 'x' has a list with a missing number"),
        ({"x": [1.0, None], "label": [0, 1]}, "SPLIT: column 'x' has no value in row 1"),
        ({"x": [1.0, 2.0], "label": [0, None]}, "SPLIT: column 'label' has no value in row 1"),
        ({"x": [1.0, 2.0], "label": [[0], [1]]}, "SPLIT: label 'label' is list<element: int64>, expected "
         "integers or texts; data 'table' has labels that are numbers"),
        ({"img": [{"bytes": None, "path": "a.png"}, {"bytes": b"", "path": "b.png"}], "label": [0, 1]},
         "SPLIT: image 0 has no bytes; save the data set with its images, not with their paths"),
        ({"x": [1.0, float("nan")], "label": [0, 1]}, "FOLDER: train sample 1 has a number that is not finite"),
        ({"x": [1.0], "n": [2], "label": [0]}, "data.features: SPLIT has the columns of integers n, which "
         "may be features or not; name all features"),
        ({"x": [[1.0]], "z": [[2.0]], "label": [0]}, "data.features: SPLIT has several columns of lists of "
         "numbers; name one of them: x, z"),
    ],
)  # fmt: skip
def test_values_that_do_not_fit_are_refused_in_one_line(tmp_path: Path, columns: dict[str, Any], line: str) -> None:
    table = pa.table(columns)
    if columns.get("img", [0])[0] is not None and isinstance(columns.get("img", [0])[0], dict):
        image = pa.array(columns["img"], pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
        table = table.set_column(0, "img", image)
    write_hub(tmp_path / "d", {"train": table, "test": table})
    assert refused(tmp_path / "d") == line


def test_negative_labels_of_a_single_split_are_refused_in_one_line(tmp_path: Path) -> None:
    write_hub(tmp_path / "d", {"train": pa.table({"x": [0.5] * 4, "label": [-1, 2**40, -1, 2**40]})})
    assert refused(tmp_path / "d", test_share=0.5) == f"FOLDER: labels lie in [-1, {2**40}], expected [0, 999999]"


def test_folders_that_do_not_fit_are_refused_in_one_line(tmp_path: Path) -> None:
    missing = "data.path: FOLDER is no folder; data.repository and data.download = true fetch one from the hub"
    assert refused(tmp_path / "none") == missing
    (tmp_path / "empty").mkdir()
    holds = "data.path: FOLDER holds no data set: needs what save_to_disk of datasets writes, or *.parquet files"
    assert refused(tmp_path / "empty") == holds
    write_hub(tmp_path / "two", {"en/train": PAIR["train"], "de/train": PAIR["train"]})
    assert refused(tmp_path / "two") == "data.subset: FOLDER has several, name one of them: de, en"
    assert load("hf", path=tmp_path / "two", subset="de").classes == 3
    write_hub(tmp_path / "rows", {"train": PAIR["train"][:0], "test": PAIR["test"]})
    assert refused(tmp_path / "rows") == "FOLDER: labels have type int64 and shape (0,), expected integers (n,)"
    twice = pa.table([[0.5], [1], [2]], names=["x", "label", "label"])
    write_hub(tmp_path / "twice", {"train": twice})
    assert refused(tmp_path / "twice") == "FOLDER/train.parquet: has several columns of the name label"
    write_hub(tmp_path / "types", {"train-0": PAIR["train"], "train-1": NUMBERS})
    assert refused(tmp_path / "types").startswith("FOLDER/train-1.parquet: has no column 'label' (it has height,")


def test_what_save_to_disk_notes_is_checked(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    write_saved(folder, PAIR)
    state = folder / "train" / "state.json"
    for found in ("[]", "null", '[{"filename": "../train/x.arrow"}]', '[{"filename": 3}]', "{}"):
        state.write_text(f'{{"_data_files": {found}}}')
        assert refused(folder).startswith(f"{state.relative_to(folder)}".join(("FOLDER/", ": _data_files must name")))
    state.write_text("[1]")
    assert refused(folder) == "FOLDER/train/state.json: must hold a table, found [1]"
    state.write_text('{"_data_files": [{"filename": "x.arrow"}], "_indices_data_files": [{"filename": "i.arrow"}]}')
    assert "was saved by an old version of datasets" in refused(folder)
    state.write_text('{"_data_files": [{"filename": "x.arrow"}]}')
    assert refused(folder) == "FOLDER/train/x.arrow: cannot be read: No such file or directory"
    (folder / "dataset_dict.json").write_text('{"splits": [".."]}')
    assert refused(folder).startswith("FOLDER/dataset_dict.json: splits must be names of folders")


def test_cut_files_are_refused_in_one_line(tmp_path: Path) -> None:
    write_saved(tmp_path / "d", PAIR)
    [file] = (tmp_path / "d" / "train").glob("*.arrow")
    whole = file.read_bytes()
    for end in (0, 3, 40, 400, len(whole) // 2, len(whole) - 100):
        file.write_bytes(whole[:end])
        assert "damaged" in refused(tmp_path / "d")


# --- the hub ----------------------------------------------------------------------------------------------------


def test_a_download_needs_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "huggingface_hub":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    said = refused(tmp_path / "pets", repository="me/pets", download=True)
    assert said == 'data.download: huggingface_hub is not installed; pip install "edgesim[hf]"'


def test_a_download_is_asked_for_once_and_says_what_to_do_if_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, Mapping[str, Any]]] = []
    hub = ModuleType("huggingface_hub")

    def fails(repository: str, **keys: Any) -> None:
        raise ConnectionError("no\nnetwork")

    def snapshot(repository: str, **keys: Any) -> None:
        asked.append((repository, keys))
        write_hub(Path(keys["local_dir"]), {f"data/{name}": table for name, table in PAIR.items()})

    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    vars(hub)["snapshot_download"] = fails
    assert refused(tmp_path / "pets", repository="me/pets", download=True) == (
        "data.download: cannot download me/pets (no network); put its parquet files, or what save_to_disk of datasets "
        "writes, into FOLDER"
    )
    vars(hub)["snapshot_download"] = snapshot
    for _ in range(2):
        assert load("hf", path=tmp_path / "pets", repository="me/pets", revision="v1", download=True).classes == 3
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "state.json").write_text("{")  # what is there is never overwritten
    assert "not a readable JSON file" in refused(tmp_path / "broken", repository="me/pets", download=True)
    [(repository, keys)] = asked
    assert (repository, keys["repo_type"], keys["revision"]) == ("me/pets", "dataset", "v1")


def test_columns_are_read_when_they_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_parquet(tmp_path / "d" / "train.parquet", TRAIN, [0, 1, 0, 1, 0, 1])
    monkeypatch.setattr(HuggingFace, "values", lambda *_: pytest.fail("read"))
    assert len(load("hf", path=tmp_path / "d").columns) == 0
