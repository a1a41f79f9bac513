"""Differences between two runs, value by value."""

import math

import numpy as np
import pandas as pd

from edgesim.reports.compare import diff
from edgesim.reports.load import open_run
from tests.records.written import seal_again


def test_identical_runs_do_not_differ(fake_run):
    assert diff(fake_run("a"), fake_run("b")).empty


def test_only_the_changed_column_is_listed(fake_run):
    a = fake_run("a", accuracies=(0.25, 0.5))
    b = fake_run("b", accuracies=(0.25, 0.625))
    # Rows of evals alternate test, train: the second round's test row is row 2. 0.625 - 0.5 = 0.125; /0.625 = 0.2.
    assert diff(a, b).to_dict("records") == [
        {
            "table": "evals",
            "column": "accuracy",
            "different": 1,
            "first_row": 2,
            "a": 0.5,
            "b": 0.625,
            "max_abs": 0.125,
            "max_rel": 0.2,
        }
    ]


def test_rows_without_a_partner_differ(fake_run):
    found = diff(fake_run("a", accuracies=(0.1,)), fake_run("b", accuracies=(0.1, 0.2)))
    rounds = found[found["table"] == "rounds"].set_index("column")
    assert rounds.loc["round", ["different", "first_row", "a", "b"]].tolist() == [1, 1, "no row", 1]
    assert set(found["table"]) == {"jobs", "rounds", "evals"}


def test_text_differs_without_a_size(fake_run):
    a, b = fake_run("a"), fake_run("b")
    jobs = b.jobs.assign(outcome=["ok", "late", "ok", "late"])
    jobs.to_parquet(b.folder / "jobs.parquet", index=False)
    seal_again(b.folder)
    (row,) = diff(a, open_run(b.folder)).to_dict("records")
    assert [row[key] for key in ("column", "different", "first_row", "a", "b")] == ["outcome", 2, 1, "ok", "late"]
    assert math.isnan(row["max_abs"])


def test_nan_equals_nan_but_not_a_number(fake_run):
    a, b = fake_run("a", accuracies=(0.1, math.nan)), fake_run("b", accuracies=(0.1, math.nan))
    assert diff(a, b).empty
    (row,) = diff(a, fake_run("c", accuracies=(0.1, 0.2))).to_dict("records")
    assert row["first_row"] == 2 and math.isnan(row["a"]) and row["b"] == 0.2


def test_weights_are_compared_and_a_missing_tensor_is_seen(fake_run):
    a = fake_run("a", weights={"final": {"w": np.zeros((2, 2)), "gone": np.ones(3)}})
    b = fake_run("b", weights={"final": {"w": np.array([[0.0, 0.0], [1e-7, 0.0]])}})
    found = diff(a, b).set_index("column")
    assert found.loc["w", ["table", "different", "first_row", "max_abs"]].tolist() == ["weights final", 1, 2, 1e-7]
    assert found.loc["gone", ["different", "b"]].tolist() == [3, "no row"]
    assert isinstance(found, pd.DataFrame) and len(found) == 2
