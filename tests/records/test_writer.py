"""A run folder appears whole or not at all."""

import hashlib
import json
import os

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file

from edgesim.core.errors import ConfigError
from edgesim.records.manifest import plain_json
from edgesim.records.schema import TABLES
from edgesim.records.table import new_tables
from edgesim.records.writer import check_writable, give_up
from tests.records.written import manifest_of, whole, write_run


def frames():
    tables = new_tables()
    tables["metrics"].append((0, "mask", -1, 0.5))
    return whole(tables)


def current_umask():
    os.umask(before := os.umask(0))
    return before


def test_everything_comes_back(tmp_path):
    folder = tmp_path / "runs" / "one"
    # A transposed view and a scalar are the two memory layouts that a naive writer gets wrong.
    weights = {"fc.weight": np.arange(6, dtype=np.float32).reshape(2, 3).T, "scale": np.float32(2.5)}
    write_run(folder, frames(), {"status": "finished"}, {"final": weights, "best": {"b": np.ones(2)}})
    assert {path.name for path in folder.iterdir()} == {
        "manifest.json",
        "final.safetensors",
        "best.safetensors",
        *(f"{name}.parquet" for name in TABLES),
    }
    loaded = load_file(folder / "final.safetensors")
    assert loaded["fc.weight"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert loaded["scale"].shape == () and loaded["scale"] == 2.5
    assert pd.read_parquet(folder / "metrics.parquet").to_dict("records") == [
        {"round": 0, "name": "mask", "device": -1, "value": 0.5, "session": "session1"}
    ]
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest.pop("status"), len(manifest.pop("sha256"))) == ("finished", 64)
    files = [path for path in folder.iterdir() if path.name != "manifest.json"]
    assert manifest == {"files": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}}
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o666 & ~current_umask()}
    assert [path.name for path in folder.parent.iterdir()] == ["one"]


def test_the_same_run_gives_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        write_run(tmp_path / name, frames(), {"seed": 1}, {"final": {"w": np.ones(3)}})
    files = [path.name for path in (tmp_path / "a").iterdir()]
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in files)


def test_an_existing_folder_is_refused_and_kept(tmp_path):
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(ConfigError, match="already exists"):
        write_run(tmp_path, frames(), {}, {})
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_parent_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="not a writable folder"):
        check_writable(tmp_path / "file" / "run")
    check_writable(tmp_path / "new" / "deep" / "run")
    assert not (tmp_path / "new").exists()  # asking makes nothing


def test_a_folder_without_permission_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write everywhere, so the answer is faked
    with pytest.raises(ConfigError, match="not a writable folder"):
        check_writable(tmp_path / "run")


@pytest.mark.parametrize("failure", [OSError("disk full"), KeyboardInterrupt(), ValueError("x")])
def test_nothing_half_written_stays(tmp_path, monkeypatch, failure):
    def fail(*_):
        raise failure

    monkeypatch.setattr("edgesim.records.writer.save", fail)
    expected = ConfigError if isinstance(failure, OSError) else type(failure)
    with pytest.raises(expected):
        write_run(tmp_path / "run", frames(), {}, {"final": {"w": np.ones(1)}})
    assert list(tmp_path.iterdir()) == []


def test_the_rest_of_a_killed_run_does_not_get_in(tmp_path):
    (tmp_path / ".run.growing").mkdir()
    (tmp_path / ".run.growing" / "best.safetensors").write_text("half")
    write_run(tmp_path / "run", frames(), {}, {})
    assert not (tmp_path / "run" / "best.safetensors").exists()


def test_a_missing_table_is_named(tmp_path):
    tables = frames()
    del tables["jobs"]
    with pytest.raises(ConfigError, match="no table jobs"):
        write_run(tmp_path / "run", tables, {}, {})
    assert list(tmp_path.iterdir()) == []


def test_no_file_outside_the_folder_is_given_up_whatever_a_manifest_names(tmp_path):
    """A run folder may come from somebody else."""
    write_run(tmp_path / "run", frames(), manifest_of({"sessions": {"../mine": {}}}), {"final": {"w": np.ones(1)}})
    (tmp_path / "mine.final.safetensors").write_text("mine")
    give_up(tmp_path / "run", tmp_path / "nowhere")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.final.safetensors"]
    write_run(tmp_path / "run", frames(), manifest_of({"sessions": {"a": {}}}), {"a.final": {"w": np.ones(1)}})
    give_up(tmp_path / "run", tmp_path / "nowhere")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.final.safetensors"]


def test_json_of_numpy_values_and_infinities():
    value = {"a": np.float32(0.5), "b": np.arange(2), "c": np.int64(7), "d": float("inf"), "e": (1, None)}
    assert json.loads(plain_json(value)) == {"a": 0.5, "b": [0, 1], "c": 7, "d": "Infinity", "e": [1, None]}
    with pytest.raises(ValueError, match="object has no JSON form"):
        plain_json(object())
