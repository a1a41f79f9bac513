"""A change that moves any number of two small runs shows up here.

An intended change is taken over with EDGESIM_UPDATE_GOLDEN=1 and explained in its commit.
"""

from __future__ import annotations

import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pandas as pd
import pytest

from tests.golden.runs import RUNS, TABLES, digest_of, tables_of
from tests.sizes import full

HERE = Path(__file__).parent
TRAINED = ["loss", "accuracy"]  # depend on torch's kernels; all else is arithmetic of float64


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.golden
def test_numbers_are_as_before(name):
    """Jobs, rounds and the instants of evaluations exactly, by repr; accuracies within 0.01."""
    found = {table: frame.to_csv(index=False) for table, frame in tables_of(name).items()}
    files = {table: HERE / f"{name}.{table}.csv" for table in TABLES}
    if os.environ.get("EDGESIM_UPDATE_GOLDEN"):
        for table, text in found.items():
            files[table].write_text(text, encoding="utf-8")
    kept = {table: file.read_text(encoding="utf-8") for table, file in files.items()}
    for table in ("jobs", "rounds"):
        assert found[table].splitlines() == kept[table].splitlines()
    evals, before = (pd.read_csv(StringIO(text["evals"]), dtype={"now_s": str}) for text in (found, kept))
    pd.testing.assert_frame_equal(evals.drop(columns=TRAINED), before.drop(columns=TRAINED))
    assert evals["accuracy"].tolist() == pytest.approx(before["accuracy"].tolist(), abs=0.01)


def test_the_deadline_run_has_late_jobs():
    """The kept runs are worth keeping: one has late jobs, both learn something."""
    assert set(pd.read_csv(HERE / "fedpmt_deadline.jobs.csv")["outcome"]) == {"ok", "late"}
    for name in RUNS:
        assert pd.read_csv(HERE / f"{name}.evals.csv")["accuracy"].iloc[-1] > 0.3


@full
@pytest.mark.golden
@pytest.mark.process
def test_nothing_depends_on_hash_seeds():
    """The order of sets changes with the hash seed of a process; no number of a run does."""
    name = "fedpmt_deadline"
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.golden.runs", name],
            cwd=HERE.parents[1],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "2")
    ]
    digests = [process.communicate()[0].strip() for process in processes]
    assert digests == [digest_of(name)] * 2
