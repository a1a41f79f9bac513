"""Names that are no text, edited run folders, and files that never end: one line each, and no waiting."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import sqlite3
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from edgesim.core.errors import ConfigError, DataError, FolderBusy
from edgesim.execution.result_cache import FOLDER, ROWS, Answers
from edgesim.execution.serialization import read_tree, write_tree
from edgesim.files.atomic import checkpoint_of, whole_file
from edgesim.learning.data.file_formats import read_idx
from edgesim.records.lock import check_free, hold, is_held, lock_of
from edgesim.records.manifest import MANIFEST, NEXT, read_file
from edgesim.studies.runs import check_owner
from tests.calling import TINY, call
from tests.records.written import seal_again
from tests.sizes import full

NO_TEXT = "n\udcff\udcfe"  # as Python gives the bytes n, 0xff, 0xfe of a name


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a scenario and a run of it."""
    place = tmp_path_factory.mktemp("made")
    (place / "tiny.toml").write_text(TINY)
    assert call("run", place / "tiny.toml", "--quiet", "--out", place / "run").code == 0
    return place


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder, the current one."""
    shutil.copytree(made, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.fixture(autouse=True)
def not_for_ever() -> Iterator[None]:
    """End a test that waits."""

    def end(*_: object) -> None:
        pytest.fail("waits for ever")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def line_of(*words: object) -> str:
    """Return the one line that a command ends in with exit code 2."""
    code, _, err = call(*words)
    assert code == 2 and err.startswith("error: ") and err.count("\n") == 1 and err[:-1].isprintable(), (code, err)
    return err


# --- names --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("run", "tiny.toml", "--quiet", "--out", NO_TEXT),
        ("replay", "run", "--set", "network.latency=1", "--quiet", "--out", NO_TEXT),
        ("report", "run", "--out", NO_TEXT),
        ("export", NO_TEXT, "--to", "csv", "--out", "tables"),
    ],
)
def test_a_name_that_is_not_utf8(place: Path, words: tuple[str, ...]) -> None:
    if words[0] == "export":
        shutil.copytree(place / "run", place / NO_TEXT)
    assert r"n\udcff\udcfe" in line_of(*words)


@pytest.mark.parametrize("out", ["/", ".", ".."])
def test_a_run_needs_a_name_of_its_own(place: Path, out: str) -> None:
    words = ("--quiet", "--overwrite", "--out", out)
    line = line_of("run", "tiny.toml", *words)
    assert line == f"error: {out}: is no name of a run folder; choose another one\n"
    assert line_of("replay", "run", *words) == line


def test_watch_takes_the_current_folder(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line_of("watch", "/")
    monkeypatch.chdir(place / "run")
    assert call("watch", ".").code == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("report run --out loop/r.html", "--out: loop is not a folder"),
        ("trace run --out loop/t.json", "--out: loop is not a folder"),
        ("plot run --out loop/p", "--out: loop is not a folder"),
        ("watch loop", "loop: "),
        ("run tiny.toml --quiet --out loop", "loop: cannot be written"),
        ("check nothing --json loop/c.json", "--json: loop is not a folder"),
    ],
)
def test_a_link_to_itself(place: Path, words: str, says: str) -> None:
    (place / "loop").symlink_to("loop")
    assert says in line_of(*words.split())


# --- run folders that were edited, digests included ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("command", [1]),
        ("command", {"a": 1}),
        ("totals", {"energy_j": [1.0]}),
        ("totals", [1]),
        ("totals", {"energy_j": 1e300}),
        ("host_s", 1e300),
        ("warnings", 5),
        ("versions", [1]),
        ("metrics", {"a": "up"}),
        ("charged_as", {"a": 1}),
        ("date", [1]),
        ("currency", [1]),
    ],
)
@pytest.mark.parametrize("command", ["table run", "report run", "trace run --out trace.json"])
def test_a_manifest_of_other_types(place: Path, command: str, key: str, value: Any) -> None:
    path = place / "run" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    seal_again(path.parent)
    assert f"run/manifest.json: not the manifest of a run: {key}" in line_of(*command.split())


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda joules: [[each] for each in joules], "rounds.parquet: column energy_j must be"),
        (lambda joules: joules * 0 + 1e300, "rounds.parquet row 1: energy_j must be a finite number, at most 1e+60"),
    ],
)
@pytest.mark.parametrize("command", ["table run", "report run", "trace run --out trace.json"])
def test_joules_that_no_run_writes(place: Path, command: str, edit: Callable[[Any], Any], says: str) -> None:
    file = place / "run" / "rounds.parquet"
    frame = pd.read_parquet(file)
    frame.assign(energy_j=edit(frame["energy_j"])).to_parquet(file, index=False)
    seal_again(file.parent)
    assert says in line_of(*command.split())


@pytest.mark.parametrize(
    ("table", "number", "says"),
    [
        ("evals", -(2**62), "evals.parquet row 1: round must be -1 or a round of the rounds table"),
        ("evals", 1, "evals.parquet row 1: round must be -1 or a round of the rounds table"),
        ("rounds", 1, "rounds.parquet row 1: round must count from 0 in each session"),
    ],
)
@pytest.mark.parametrize("command", ["table run", "report run"])
def test_rounds_that_no_run_writes(place: Path, command: str, table: str, number: int, says: str) -> None:
    file = place / "run" / f"{table}.parquet"
    frame = pd.read_parquet(file)
    frame.assign(round=number).to_parquet(file, index=False)
    seal_again(file.parent)
    assert says in line_of(*command.split())


@pytest.mark.parametrize("said", ["a\0b.toml", "a\n\x1b[2Jb.toml", 5000 * "x" + ".toml"])
def test_a_mark_of_a_study_that_no_study_writes(place: Path, said: str) -> None:
    (place / "runs").mkdir()
    (place / "runs" / ".study").write_text(said)
    with pytest.raises(ConfigError, match="has the runs of") as error:
        check_owner(place / "runs", "../study.toml")
    assert str(error.value).isprintable() and len(str(error.value)) < 600


# --- what never ends ----------------------------------------------------------------------------------------------

ENDLESS = "with recursive n(i) as (select 1 union all select i + 1 from n) select i as id, i as answer from n"


def _pipe(file: Path) -> None:
    os.mkfifo(file)


def _view(file: Path) -> None:
    with closing(sqlite3.connect(file)) as made:
        made.execute(f"create view answers as {ENDLESS}")


def _trigger(file: Path) -> None:
    with closing(sqlite3.connect(file)) as made:
        made.execute("create table answers (id blob primary key, answer blob)")
        made.execute(f"create trigger t before insert on answers begin insert into answers {ENDLESS}; end")


@pytest.mark.parametrize("hostile", [_pipe, _view, _trigger])
def test_answers_that_never_end(tmp_path: Path, capsys: pytest.CaptureFixture[str], hostile: Any) -> None:
    (tmp_path / FOLDER).mkdir()
    hostile(tmp_path / FOLDER / ROWS)
    with closing(Answers(tmp_path)) as answers:
        assert answers.get(b"x") is None
        answers.put(b"x", 1)
        assert "this run computes everything" in capsys.readouterr().err
        with pytest.raises(ConfigError, match=ROWS):
            answers.held()


def test_weights_and_growing_files_that_are_pipes(tmp_path: Path) -> None:
    with closing(Answers(tmp_path)) as answers:
        (tmp_path / FOLDER / "weights").mkdir(parents=True)
        os.mkfifo(tmp_path / FOLDER / "weights" / f"{b'w'.hex()}.safetensors")
        os.mkfifo(tmp_path / FOLDER / "weights" / f".{b'v'.hex()}.safetensors.growing")
        assert answers.weights(b"w") is None
        answers.put_weights(b"v", {})  # a line says that it is not kept
        assert answers.weights(b"v") is None


def test_a_checkpoint_that_is_a_pipe(place: Path) -> None:
    os.mkfifo(checkpoint_of(place / "new"))
    words = ("run", "tiny.toml", "--quiet", "--checkpoint", "1min", "--out", "new")
    assert "a named pipe, a regular file is needed" in line_of(*words)


def test_a_checkpoint_without_end(tmp_path: Path) -> None:
    path = tmp_path / "c"
    with path.open("wb") as file:
        write_tree(file, {"a": 1}, {})
    assert read_tree(path, {}, "a") == [1]
    os.truncate(path, 2**40)
    with pytest.raises(ValueError, match="its head promises"):
        read_tree(path, {}, "a")


def test_pipes_beside_files(tmp_path: Path) -> None:
    os.mkfifo(lock_of(tmp_path / "run"))
    assert not is_held(tmp_path / "run")
    os.mkfifo(tmp_path / ".a.growing")
    with hold(tmp_path / "run"), pytest.raises(FolderBusy, match="another process is at work on it"):
        check_free(tmp_path / "run")
    with whole_file(tmp_path / "a") as growing:
        growing.write_text("x")
    assert (tmp_path / "a").read_text() == "x"


def test_a_packed_file_that_ends_in_zeros(tmp_path: Path) -> None:
    """They are allowed after what is packed, and gzip reads them all."""
    path = tmp_path / "labels.gz"
    path.write_bytes(gzip.compress(b"\0\0\x08\x01\0\0\0\x03abc"))
    os.truncate(path, 2**19)
    assert read_idx(path).tolist() == list(b"abc")
    os.truncate(path, 2**40)
    with pytest.raises(DataError, match=r"labels\.gz: damaged: 1099511627776 bytes for the 3 that they promise"):
        read_idx(path)


def test_a_table_without_end(place: Path) -> None:
    os.truncate(place / "run" / "rounds.parquet", 2**40)
    assert "run/rounds.parquet: needs 1024.0 GiB of memory" in line_of("table", "run")


@full
def test_a_large_table_is_not_held_in_memory_before_its_digest_fits(tmp_path: Path) -> None:
    path = tmp_path / "rounds.parquet"
    path.write_bytes(b"")
    os.truncate(path, 2**28)
    tracemalloc.start()
    with pytest.raises(ConfigError, match=r"rounds\.parquet: damaged"):
        read_file(tmp_path, path.name, {path.name: 64 * "0"})
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2**24


@pytest.mark.parametrize("hostile", [os.mkfifo, lambda path: path.touch() or os.truncate(path, 2**40)])
def test_what_a_killed_run_did_not_leave(place: Path, hostile: Callable[[Path], None]) -> None:
    """A pipe or an endless file among the files that a run was about to put in their places; the next run goes on."""
    manifest = place / "run" / MANIFEST
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "status": "interrupted"}))
    seal_again(manifest.parent)
    (place / "run" / NEXT).mkdir()
    hostile(place / "run" / NEXT / "rounds.parquet")
    assert call("run", "tiny.toml", "--quiet", "--checkpoint", "1min", "--out", "run").code == 0
    assert not (place / "run" / NEXT).exists()


def test_text_with_a_hole(tmp_path: Path) -> None:
    """What was never written reads as zeros, which no text has, however many."""
    from edgesim.files.reading import csv_rows
    from edgesim.files.tables import read_frame

    path = tmp_path / "a.csv"
    path.write_text("a,b\n1,2\n")
    os.truncate(path, 2**31)
    for read in (read_frame, lambda path: list(csv_rows(path))):
        with pytest.raises(DataError, match=r"a\.csv: not a text: nothing was written from byte"):
            read(path)
