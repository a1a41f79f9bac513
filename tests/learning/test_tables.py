"""Tables as data: features, labels of every kind, natural partitions, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sklearn import datasets
from sklearn.preprocessing import StandardScaler

import edgesim
from edgesim.core.errors import ConfigError, DataError, EdgesimError
from edgesim.core.rng import Key
from edgesim.learning.data.dataset import Dataset
from edgesim.learning.data.partitions.by_column import ByColumn
from edgesim.learning.data.sources.tables import BreastCancer, Diabetes, TableFile, Wine
from edgesim.learning.data.sources.texts import TextFiles
from edgesim.learning.models.mlp import Mlp
from edgesim.reports.load import open_run
from edgesim.runs.assembly import assemble
from edgesim.runs.network import cost_profile_of
from tests.conftest import digits_scenario
from tests.sizes import full

ROWS = pd.DataFrame(
    {
        "user": ["b", "a", "b", "a", "c", "c", "b", "a", "c", "a", "b", "c"],
        "height": [1.0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
        "width": [3.0, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8],
        "kind": ["x", "y", "x", "y"] * 3,
        "late": [0, 1, 1, 0] * 3,
        "lost": [1, 0, 0, 0] * 3,
        "part": (["train"] * 3 + ["test"]) * 3,
    }
)


@pytest.fixture(params=[".csv", ".parquet"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The rows, as a file of each kind."""
    path = tmp_path / f"rows{request.param}"
    if request.param == ".csv":
        ROWS.to_csv(path, index=False)
    else:
        ROWS.to_parquet(path)
    return path


def numbers(data: Dataset) -> dict[str, np.ndarray]:
    """Return all numbers of a data set."""
    return {name: getattr(data, name).numpy() for name in ("x_train", "y_train", "x_test", "y_test")}


def test_a_file_says_which_rows_are_for_the_test(file: Path) -> None:
    data = TableFile(path=file, label="kind", features=("height", "width"), split="part", ignore=("late",)).load()
    train, test = ROWS[ROWS["part"] == "train"], ROWS[ROWS["part"] == "test"]
    scaler = StandardScaler().fit(train[["height", "width"]].to_numpy())
    found = numbers(data)
    np.testing.assert_allclose(found["x_train"], scaler.transform(train[["height", "width"]].to_numpy()), rtol=1e-6)
    np.testing.assert_allclose(found["x_test"], scaler.transform(test[["height", "width"]].to_numpy()), rtol=1e-6)
    assert found["y_train"].tolist() == [{"x": 0, "y": 1}[kind] for kind in train["kind"]]
    assert (data.classes, data.input_shape, data.kind, data.name) == (2, (2,), "classes", "rows")
    assert data.columns["user"][0].tolist() == train["user"].tolist()
    assert data.columns["user"][1].tolist() == test["user"].tolist()


def test_numbers_and_flags_are_labels_too(file: Path) -> None:
    keys: dict[str, Any] = {"path": file, "split": "part", "standardise": False}
    train = ROWS["part"] == "train"
    data = TableFile(label="width", labels="numbers", ignore=("late", "lost"), **keys).load()
    assert numbers(data)["y_train"].tolist() == ROWS[["width"]][train].to_numpy().tolist()
    assert numbers(data)["x_train"].tolist() == ROWS[["height"]][train].to_numpy().tolist()
    assert (data.classes, data.kind) == (1, "numbers")
    scaled = TableFile(label="width", labels="numbers", scale_labels=True, **keys).load().y_train
    assert float(scaled.mean()) == pytest.approx(0, abs=1e-6)
    assert float(scaled.std(correction=0)) == pytest.approx(1)
    data = TableFile(label=("late", "lost"), labels="flags", **keys).load()
    assert numbers(data)["y_train"].tolist() == ROWS[["late", "lost"]][train].to_numpy().tolist()
    assert (data.classes, data.kind, data.input_shape) == (2, "flags", (2,))


def test_every_user_has_a_share_of_the_test(file: Path) -> None:
    data = TableFile(path=file, label="kind", user="user", ignore=("late", "lost"), test_share=0.25).load()
    for column, count in (0, 3), (1, 1):
        assert pd.Series(data.columns["user"][column]).value_counts().to_dict() == dict.fromkeys("abc", count)


@pytest.mark.parametrize(
    ("source", "theirs"),
    [
        (BreastCancer(), datasets.load_breast_cancer()),
        (Wine(), datasets.load_wine()),
        (Diabetes(scale_labels=False), datasets.load_diabetes(scaled=False)),
    ],
)
def test_bundled_tables_are_scikit_learns(source: Any, theirs: Any) -> None:
    data = type(source)(**{**vars(source), "standardise": False}).load()
    x = np.concatenate([numbers(data)["x_train"], numbers(data)["x_test"]])
    y = np.concatenate([numbers(data)["y_train"], numbers(data)["y_test"]]).reshape(-1)
    ours, wanted = (np.column_stack(each) for each in ((x, y), (theirs.data.astype(np.float32), theirs.target)))
    np.testing.assert_allclose(ours[np.lexsort(ours.T)], wanted[np.lexsort(wanted.T)], rtol=1e-6)
    assert len(data.y_test) == pytest.approx(0.2 * len(y), abs=2)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"label": "sort"}, "data: FILE has no column 'sort' (it has user, height, width, kind, late, lost, part)"),
        ({"label": ["kind", "late"]}, "data.label: classes stand in one column, found 2"),
        ({"label": "kind", "labels": "numbers"}, "FILE: column 'kind' needs finite numbers, row 1 has 'x'"),
        ({"label": "width", "labels": "flags"}, "FILE: column 'width' needs 0 or 1, row 1 has 3"),
        ({"label": "kind", "split": "user"}, "FILE: column 'user' says train or test, row 1 has 'b'"),
        ({"label": "kind", "features": ["late"], "ignore": ["late"]},
         "data.features: 'late' is no feature, as it is a label or left out"),
        ({"label": "kind", "test_share": 0.01},
         "data.test_share: must leave samples in both splits, 0.01 of 12 are 0"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    path = tmp_path / "rows.csv"
    ROWS.to_csv(path, index=False)
    scenario = digits_scenario(data={"name": "table", "path": str(path), **keys}, model="mlp")
    with pytest.raises(EdgesimError) as caught:
        assemble(scenario)
    assert str(caught.value) == message.replace("FILE", str(path))


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2,3,4\n1\n", b"\xff\xfe\x00", b'a,b\n"1,2\n'])
def test_damaged_files_are_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    with pytest.raises(EdgesimError) as caught:
        TableFile(path=path, label="a").load()
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["1e300", "1", "2"], "FILE: column 'a' needs numbers up to 3.4e+38, row 1 has 1e+300"),
        (["1", "-inf", "2"], "FILE: column 'a' needs finite numbers, row 2 has -inf"),
        (["1", "", "2"], "FILE: column 'a' needs finite numbers, row 2 has nan"),
        (["0", "0", "0", "1e-60", "3"],
         "FILE: column 'a' cannot be standardised, as training samples hardly differ: 6.9282e+60 in row 5"),
    ],
)  # fmt: skip
def test_numbers_are_those_that_networks_have(tmp_path: Path, values: list[str], message: str) -> None:
    """Of 32 bits. The deviation of 0, 0, 0, d is d sqrt(3) / 4, and 3 of them are 3 x 4 / sqrt(3) / d = 6.9282 / d."""
    path = tmp_path / "rows.csv"
    rows = [f"{value},{'test' if value == values[-1] else 'train'},1" for value in values]
    path.write_text("\n".join(["a,part,late", *rows]))
    with pytest.raises(EdgesimError) as caught:
        TableFile(path=path, label="late", labels="flags", split="part").load()
    assert str(caught.value) == message.replace("FILE", str(path))


def test_whole_numbers_may_be_too_long_for_any_float(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(["a,b", "2,1", "1" * 400 + ",1", *["3,4"] * 9]))
    for keys in ({"label": "b", "features": ("a",)}, {"label": "a", "features": ("b",)}):
        with pytest.raises(EdgesimError) as caught:
            TableFile(path=path, labels="numbers", **keys).load()
        start = f"{path}: column 'a' needs numbers up to 3.4e+38, row 2 has "
        assert str(caught.value).startswith(start) and len(str(caught.value)) < len(start) + 200


def test_what_pandas_notes_in_a_parquet_file_may_be_damaged(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    table = pa.Table.from_pandas(ROWS).replace_schema_metadata({b"pandas": b'{"index_columns": ['})
    pq.write_table(table, path)
    with pytest.raises(EdgesimError, match="not a readable parquet file, truncated or damaged: ") as caught:
        TableFile(path=path, label="kind").load()
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("values", [[[1, 2], [3]] * 3, [{"a": 1}] * 6])
def test_lists_and_records_are_no_classes(tmp_path: Path, values: list[Any]) -> None:
    path = tmp_path / "rows.parquet"
    pd.DataFrame({"height": range(6), "kind": values}).to_parquet(path)
    with pytest.raises(DataError, match=r"column 'kind' needs texts or numbers, row 1 has (array|\{)"):
        TableFile(path=path, label="kind").load()


def test_a_long_column_is_of_one_type(tmp_path: Path) -> None:
    """Numbers up to the last rows, which say that all of them are names of classes; pandas may read in parts."""
    path = tmp_path / "rows.csv"
    features = ",0" * 30
    rows = [f"{row % 2}{features}" for row in range(40_000)] + 2 * [f"x{features}"]
    path.write_text("\n".join(["kind," + ",".join(f"f{place}" for place in range(30)), *rows]))
    data = TableFile(path=path, label="kind", test_share=0.5).load()
    assert data.classes == 3
    assert np.bincount(numbers(data)["y_train"]).tolist() == [10_000, 10_000, 1]


@pytest.mark.parametrize("source", [TableFile, TextFiles])
def test_names_of_columns_are_shown_in_short(tmp_path: Path, source: Any) -> None:
    """Names that hold what moves a cursor, or are long."""
    path = tmp_path / "rows.csv"
    path.write_text(f"a\x1b[2J,{'b' * 500}\n1,2\n")
    with pytest.raises(ConfigError, match="has no column 'user'") as caught:
        source(path=path, **({"label": "user"} if source is TableFile else {})).load()
    assert str(caught.value).isprintable() and len(str(caught.value)) < 400


def by_user(path: Path, devices: int, **keys: Any) -> edgesim.Scenario:
    """Return a scenario with a device for each user."""
    return digits_scenario(
        data={"name": "table", "path": str(path), "label": "kind", "user": "user", "test_share": 0.25},
        partition={"name": "by_column", **keys},
        model={"name": "mlp", "hidden": [4]},
        selection="all",
        fleet=[{"count": devices, "cpu": {"flops_per_s": "20 MFLOP/s"}}],
        evaluation={"personal": True},
    )


def test_a_device_holds_the_samples_of_a_user(file: Path) -> None:
    parts = assemble(by_user(file, 3))
    assert parts.data is not None and parts.split is not None and parts.split.test is not None
    for place, (rows, tests) in enumerate(zip(parts.split.train, parts.split.test, strict=True)):
        assert set(parts.data.columns["user"][0][rows]) == set(parts.data.columns["user"][1][tests]) == {"abc"[place]}
    assert parts.setting.samples.tolist() == [3, 3, 3]


def test_a_partition_needs_a_device_for_each_value(file: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        assemble(by_user(file, 4))
    assert str(caught.value) == (
        "partition.column: 'user' has 3 different values, one for each device, and there are 4 devices"
    )
    with pytest.raises(ConfigError, match=r"there are 2 devices; partition.surplus = 'choose' or 'merge' allows fewer"):
        assemble(by_user(file, 2))
    with pytest.raises(ConfigError) as caught:
        assemble(by_user(file, 3, column="town"))
    assert str(caught.value) == "partition.column: data rows has no column 'town' for it (it has part, user)"


@pytest.mark.parametrize("surplus", ["choose", "merge"])
def test_fewer_devices_than_values_take_some_or_several(file: Path, surplus: str) -> None:
    """Chosen values keep their samples apart; merged ones leave no sample out. Both follow from the seed."""
    parts, again = (assemble(by_user(file, 2, surplus=surplus)) for _ in range(2))
    assert parts.data is not None and parts.split is not None and again.split is not None
    assert parts.split.test is not None
    users = [set(parts.data.columns["user"][0][rows]) for rows in parts.split.train]
    assert users == [set(parts.data.columns["user"][1][rows]) for rows in parts.split.test]
    assert sorted(map(len, users)) == ([1, 1] if surplus == "choose" else [1, 2])
    assert not users[0] & users[1]
    assert (np.concatenate(parts.split.train) == np.concatenate(again.split.train)).all()
    assert parts.setting.samples.sum() == (6 if surplus == "choose" else 9)


def test_choices_of_values_follow_the_key() -> None:
    """Over seeds, each value is chosen, and each pair of values is merged."""
    user = np.array(["b", "a", "c", "a"])
    none = np.zeros((4, 1), np.float32), np.zeros(4, np.int64)
    data = Dataset("made", *none, *none, 1, (1,), columns={"user": (user, user)})
    chosen, merged = set(), set()
    for seed in range(30):
        for surplus, found in (("choose", chosen), ("merge", merged)):
            split = ByColumn(surplus=surplus).divide(data, np.arange(4), np.arange(4), 2, Key(seed))  # type: ignore
            assert split.test is not None
            for rows, tests in zip(split.train, split.test, strict=True):
                assert rows.tolist() == tests.tolist()
            found.add(tuple("".join(sorted(set(user[rows]))) for rows in split.train))
    assert chosen == {("a", "b"), ("a", "c"), ("b", "c")}
    assert {frozenset(pair) for pair in merged} == {frozenset(p) for p in (("a", "bc"), ("ac", "b"), ("ab", "c"))}


def test_widths_of_an_mlp_are_its_keys() -> None:
    _, profile = cost_profile_of(Mlp(hidden=(7, 5)), "mlp", (3,), 2, Key(1))
    assert profile.params == (3 * 7 + 7) + (7 * 5 + 5) + (5 * 2 + 2)
    assert profile.forward_flops() == 2 * (3 * 7 + 7 * 5 + 5 * 2)
    assert [layer.name for layer in profile.layers] == ["fc1", "fc2", "fc3"]
    assert cost_profile_of(Mlp(hidden=()), "mlp", (3,), 2, Key(1))[1].params == 3 * 2 + 2


@full
def test_regression_gets_near_least_squares(tmp_path: Path) -> None:
    """A linear model on two devices descends towards the least squares of all samples, from above."""
    data = Diabetes().load()
    x, y = torch.cat([data.x_train, torch.ones(len(data.x_train), 1)], 1).double(), data.y_train.double()
    solved = torch.linalg.lstsq(x, y).solution
    tested = torch.cat([data.x_test, torch.ones(len(data.x_test), 1)], 1).double()
    least = float((tested @ solved - data.y_test).square().mean())
    scenario = digits_scenario(
        data="diabetes", objective="regression", model={"name": "mlp", "hidden": []}, selection="all",
        training={"batch": 50, "lr": 0.01, "local_epochs": 5}, stop={"rounds": 25},
        fleet=[{"count": 2, "cpu": {"flops_per_s": "20 MFLOP/s"}}],
    )  # fmt: skip
    edgesim.run(scenario, out=tmp_path / "run")
    curve = open_run(tmp_path / "run").accuracy_curve()["mse"]
    assert curve.iloc[0] > curve.iloc[-1]
    assert curve.iloc[-1] == pytest.approx(least, rel=0.05)
