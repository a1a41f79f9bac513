"""Run folders that somebody edited, or a disk damaged: one line that names the file, and the key or the row."""

import json
import os
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

from edgesim.core.errors import ConfigError
from edgesim.reports.load import Run, open_run
from tests.calling import call
from tests.records.written import seal_again
from tests.sizes import thinned

REMOVED = object()


def edited(manifest: dict[str, Any], key: str, value: Any) -> None:
    *above, last = key.split(".")
    table = manifest
    for name in above:
        table = table[name]
    if value is REMOVED:
        del table[last]
    else:
        table[last] = value


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("scenario", REMOVED, "scenario: is missing"),
        ("scenario", 5, "scenario: must be a table, got 5"),
        ("scenario.method", REMOVED, "scenario.method: is missing"),
        ("scenario.method", "fedavg", "scenario.method: must be a table"),
        ("scenario.method.name", 3, "scenario.method.name: must be a string, got 3"),
        ("scenario.seed", REMOVED, "scenario.seed: is missing"),
        ("scenario.seed", "x" * 9999, "scenario.seed: must be a whole number, got 'x{150,180}\\.\\.\\."),
        ("scenario.evaluation", REMOVED, "scenario.evaluation: is missing"),
        ("scenario.evaluation.targets", REMOVED, "scenario.evaluation.targets: is missing"),
        ("scenario.evaluation.targets", 0.5, "scenario.evaluation.targets: must be a list, got 0.5"),
        ("scenario.evaluation.targets", ["high"], "scenario.evaluation.targets.0: must be a number"),
        ("scenario.protocol", {"deadline": "soon"}, "scenario.protocol.deadline: must be a number"),
        ("host_s", REMOVED, "host_s: is missing"),
        ("host_s", "NaN", "host_s: must be a number, got 'NaN'"),
        ("rounds", None, "rounds: must be a whole number, got None"),
        ("status", 1, "status: must be a string, got 1"),
        ("stop_reason", ["a"], "stop_reason: must be a string"),
    ],
)
def test_a_manifest_that_lacks_what_is_told_of_a_run_is_refused(fake_run, key, value, message):
    path = fake_run().folder / "manifest.json"
    manifest = json.loads(path.read_text())
    edited(manifest, key, value)
    path.write_text(json.dumps(manifest))
    for words in (["table", path.parent], ["plot", path.parent, "--out", path.parent / "p"]):
        code, out, err = call(*words)
        assert (code, out, err.count("\n")) == (2, "", 1)
        with pytest.raises(ConfigError, match=rf"^{path}: not the manifest of a run: {message}"):
            raise ConfigError(err.removeprefix("error: ").strip())


def test_other_keys_of_a_manifest_are_let_be(fake_run):
    path = fake_run().folder / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "more": {"of": "this"}}))
    seal_again(path.parent)
    assert open_run(path.parent).manifest["more"] == {"of": "this"}


@pytest.mark.parametrize("text", ["[" * 100_000, "\ufeff[]", "9" * 5000, '{"a": 1', "null", "{}"])
def test_no_manifest_at_all(fake_run, text):
    path = fake_run().folder / "manifest.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"manifest\.json: not (valid JSON|the manifest of a run): ") as caught:
        _ = open_run(path.parent).manifest
    assert len(str(caught.value)) < 500


def put(column: str, value: Any) -> Any:
    """An edit of a frame: another value in the second row."""

    def edit(frame: pd.DataFrame) -> pd.DataFrame:
        frame.loc[1, column] = value
        return frame

    return edit


TABLES = {
    "unknown device": ("jobs", put("device", 77), "row 2: device must be a device of the devices table, got 77"),
    "unknown critical device": ("rounds", put("critical_device", 9), "row 2: critical_device must be a device"),
    "doubled job": ("jobs", put("job", 0), "row 2: session, job must come once, got 'session1', 0"),
    "doubled evaluation": (
        "evals",
        lambda f: pd.concat([f, f[:1]]),
        "row 9: session, round, split must come once, got 'session1', 0, 'te",
    ),
    "doubled device": ("devices", put("device", -1), "row 2: device must come once, got -1"),
    "doubled round": (
        "rounds",
        lambda f: pd.concat([f, f[-1:]]),
        "row 5: session, round must come once, got 'session1', 3",
    ),
    "rounds in disorder": ("rounds", lambda f: f[::-1], "row 1: round must count from 0 in each session, got 3"),
    "time runs back": ("jobs", put("end_s", 3.0), "row 2: sent_s, end_s must not go backwards, got 10.0, 3.0"),
    "less than no time": (
        "jobs",
        put("up_s", -3.0),
        "row 2: up_s must be a finite number of at least 0, at most 1e\\+60, got -3.0",
    ),
    "a gap": ("jobs", put("flops", np.nan), "row 2: flops must be a finite number, at most 1e\\+60, got nan"),
    "no end": (
        "rounds",
        put("total_energy_j", np.inf),
        "row 2: total_energy_j must be a finite number, at most 1e\\+60, got inf",
    ),
    "unknown end of a round": (
        "rounds",
        put("closed_by", "moon"),
        "row 2: closed_by must be one of all, deadline, min",
    ),
    "text for numbers": (
        "jobs",
        lambda f: f.assign(device="a"),
        ": column device must be int64, found (large_)?string",
    ),
    "numbers for text": ("jobs", lambda f: f.assign(outcome=1), ": column outcome must be str, found int64"),
    "gaps in numbers": ("jobs", lambda f: f.assign(job=pd.array([1, None, 3, 4], dtype="Int64")), ": .* with gaps"),
    "gaps in text": ("jobs", lambda f: f.assign(outcome=["ok", None, "ok", "ok"]), ": column outcome .* with gaps"),
}


SHORT = [TABLES[name] for name in ("time runs back", "less than no time")]


@pytest.mark.parametrize(("table", "edit", "message"), thinned(TABLES.values(), SHORT), ids=TABLES)
def test_a_table_that_no_run_writes_is_refused(fake_run, tmp_path, table, edit, message):
    """Whichever command looks at it first."""
    path = fake_run().folder / f"{table}.parquet"
    edit(pd.read_parquet(path)).to_parquet(path, index=False)
    seal_again(path.parent)
    with pytest.raises(ConfigError, match=rf"^{path} ?{message}"):
        open_run(path.parent).table(table)
    commands = {"trace": ["--out", tmp_path / "t.json"], "explain": ["--round", 2], "energy": [], "table": []}
    ends = {name: call(name, path.parent, *words) for name, words in commands.items()}
    assert {name: end for name, end in ends.items() if end.code not in (0, 2) or end.err.count("\n") > 1} == {}
    assert any(end.code == 2 for end in ends.values())


def test_evaluations_of_a_model_that_diverged_are_read(fake_run):
    path = fake_run().folder / "evals.parquet"
    put("loss", np.nan)(pd.read_parquet(path)).to_parquet(path, index=False)
    seal_again(path.parent)
    assert np.isnan(open_run(path.parent).evals["loss"][1])


def test_weights_of_types_that_numpy_lacks_are_refused(fake_run):
    path = fake_run().folder / "final.safetensors"
    save_file({"w": torch.zeros(3).to(torch.float8_e4m3fn)}, path)
    seal_again(path.parent)
    with pytest.raises(ConfigError, match=rf"^{path}: not a readable safetensors file, truncated or damaged: "):
        open_run(path.parent).weights()


def test_a_pipe_in_a_run_folder_is_not_waited_for(fake_run):
    folder = fake_run().folder
    for name in ("final.safetensors", "evals.parquet", "manifest.json"):
        (folder / name).unlink()
        os.mkfifo(folder / name)
    run = Run(folder)  # as if they had been files when it was opened
    for read in (run.weights, lambda: run.evals, lambda: run.manifest):
        with pytest.raises(ConfigError, match="cannot be read: is a named pipe"):
            read()


def test_a_timeline_of_more_than_292_years_is_refused(fake_run, tmp_path):
    """Viewers take nanoseconds in 64 bits."""
    path = fake_run().folder / "rounds.parquet"
    frame = pd.read_parquet(path)
    frame.loc[3, "now_s"] = 1e50
    frame.to_parquet(path, index=False)
    seal_again(path.parent)
    code, out, err = call("trace", path.parent, "--out", tmp_path / "t.json")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "lasts 1e+50 s; a timeline can show 9.2e+09 s" in err
