"""The life of a run folder: there from the start, one writer, whole at every instant, replaced with care."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgesim
from edgesim.core.errors import ConfigError, FolderBusy
from edgesim.learning.train.trainer import Trainer
from edgesim.records import writer
from edgesim.records.lock import hold, is_held
from edgesim.records.manifest import NEXT
from edgesim.records.schema import TABLES
from edgesim.records.writer import RunFolder, taken
from edgesim.runs.recording import Recording
from edgesim.runs.simulate import simulate
from tests.calling import call, names
from tests.execution.test_interrupts import check_rounds
from tests.execution.test_processes import children_of, started
from tests.records.test_writer import frames
from tests.sizes import full, grows, sized, thinned

RUN = ("run", "scenario.toml", "--out", "run", "--quiet")
SCENARIO = {"method": {"name": "fedavg"}, "evaluation": {"targets": []}}
MANIFEST = {"rounds": 1, "host_s": 0.0}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Looking:
    """An observer that opens the run folder after each round."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: list[Any] = []

    def round_closed(self, info: Any) -> None:
        run = edgesim.open(self.folder)
        self.seen.append((run.manifest["status"], run.manifest["rounds"], len(run.rounds), len(run.jobs)))

    def close(self) -> None:
        """Do nothing."""


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs write their folder after every round."""
    monkeypatch.setattr("edgesim.runs.recording._EVERY_S", 0.0)
    monkeypatch.setattr("edgesim.runs.recording._SHARE", float("inf"))


# --- while it runs ----------------------------------------------------------------------------------------------


def test_the_folder_is_there_from_the_start_and_grows(here: Path, often: None) -> None:
    """A look at it after each round finds the rounds before; the finished run is that of one that was not watched."""
    scenario = edgesim.load("scenario.toml", ["stop.rounds=4"])
    looking = Looking(here / "run")
    run = simulate(scenario, here / "run", looking)
    assert looking.seen == [("running", n, n, 2 * n) for n in range(4)]
    assert run.manifest["status"] == "finished" and "process" not in run.manifest
    assert not is_held(here / "run")
    call("run", "scenario.toml", "--set", "stop.rounds=4", "--out", "other", "--quiet", "--fresh")
    assert call("diff", "run", "other").out == "identical\n"
    assert names(here) == ["other", "run", "scenario.toml"]
    assert names(here / "run") == names(here / "other")


def test_writing_on_the_way_is_seldom(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not within the first seconds, and then at most a fiftieth of the time."""
    clock = iter(np.arange(0, 1000, 1.0).tolist())  # each look is a second after the one before
    monkeypatch.setattr("edgesim.runs.recording.time.perf_counter", lambda: next(clock))
    written: list[str] = []
    really = RunFolder.write
    monkeypatch.setattr(
        RunFolder, "write", lambda self, t, m, *more: [written.append(m["status"]), really(self, t, m, *more)][1]
    )
    call(*RUN, "--set", "stop.rounds=60", "--set", "backend='null'")
    assert written == ["running", "running", "finished"]


@full
@pytest.mark.kills
@pytest.mark.process
def test_a_second_run_is_refused_at_once(here: Path, often: None) -> None:
    """By any other process, whatever it asks for; the first one is not disturbed."""
    process = started("-m", "edgesim", *RUN, "--set", "stop.rounds=100000")
    try:
        while not (here / "run").exists():
            assert process.poll() is None
        says = f"error: run: process {process.pid} on "
        for more in ([], ["--overwrite"], ["--checkpoint", "1 h"]):
            code, out, err = call(*RUN, *more)
            assert (code, out, err.startswith(says), err.count("\n")) == (2, "", True, 1)
        with pytest.raises(FolderBusy):
            edgesim.run("scenario.toml", out="run")
        assert edgesim.open("run").manifest["status"] == "running"
        assert edgesim.open("run").manifest["process"]["pid"] == process.pid
    finally:
        process.kill()
        process.communicate()
    assert edgesim.open("run").manifest["status"] == "cut off"
    assert call(*RUN).err == "error: run: already exists, a run that is cut off; --overwrite replaces it\n"
    assert call(*RUN, "--overwrite").code == 0
    assert names(here) == ["run", "scenario.toml"]


def test_a_lock_is_for_one(tmp_path: Path) -> None:
    """Also within a process; it leaves no file, and one that a killed process left is no lock."""
    folder = tmp_path / "deep" / "run"
    with hold(folder):
        assert is_held(folder)
        with pytest.raises(FolderBusy, match=f"process {os.getpid()} on "), hold(folder):
            pass
        assert is_held(folder)
    assert not is_held(folder) and names(folder.parent) == []
    (folder.parent / ".run.lock").write_text("process 1 on moon")
    assert not is_held(folder)
    with hold(folder):
        assert is_held(folder)


# --- killed at any instant --------------------------------------------------------------------------------------


class Killed(BaseException):
    """Ends whatever goes on, and nothing is cleared away."""


@contextmanager
def killed_at(step: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """End the with-block at the so-manieth change to the disk, as SIGKILL would."""
    changes = [0]

    def counted(really: Any) -> Any:
        def change(*words: Any, **options: Any) -> Any:
            changes[0] += not str(words[0]).endswith(".lock")
            if changes[0] > step and not str(words[0]).endswith(".lock"):  # which ends with its process
                raise Killed
            return really(*words, **options)

        return change

    with monkeypatch.context() as patch:
        for place, name in ((Path, "rename"), (Path, "replace"), (Path, "write_bytes"), (Path, "write_text")):
            patch.setattr(place, name, counted(getattr(place, name)))
        patch.setattr(writer.shutil, "rmtree", counted(writer.shutil.rmtree))
        for name in ("mkdir", "unlink", "rmdir"):
            patch.setattr(Path, name, counted(getattr(Path, name)))
        patch.setattr(RunFolder, "leave", lambda self: None)
        try:
            yield
        except Killed:
            return
    raise StopIteration


def write(folder: Path, value: float, overwrite: bool = False, goes_on: bool = False, status: str = "finished") -> None:
    """Write a run folder whose tables, weights and manifest all have one number."""
    tables = frames()
    tables["metrics"]["value"] = value
    with taken(folder, overwrite, goes_on) as run:
        run.write(
            tables,
            {**MANIFEST, "status": status, "scenario": {**SCENARIO, "seed": int(value)}},
            {"final": {"w": np.full(3, value)}},
        )


@full
@grows
@pytest.mark.parametrize("how", thinned(["overwrite", "goes_on"], ["overwrite"]))
def test_a_kill_at_any_instant_leaves_the_old_run_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Never some files of each; and the same command can be given again, and then leaves nothing behind."""
    seen = set()
    for step in range(0, 100, sized(3, 1, 1)):
        folder = tmp_path / str(step) / "run"
        write(folder, 1.0, status="interrupted")
        (folder / "notes.txt").write_text("mine")
        try:
            with killed_at(step, monkeypatch):
                write(folder, 2.0, **{how: True})
        except RuntimeError:  # it came to its end
            break
        if folder.exists():
            run = edgesim.open(folder)
            found = {run.metrics["value"][0], run.weights()["w"][0], run.seed}
            assert all(len(run.table(table)) >= 0 for table in TABLES) and len(found) == 1
            seen |= found
        else:  # between two renames
            assert (folder.parent / ".run.old").exists()
        assert [path.read_text() for path in folder.parent.rglob("notes.txt")] == ["mine"]
        if not (folder.exists() and edgesim.open(folder).seed == 2):
            write(folder, 3.0, **{how: True})
            assert edgesim.open(folder).weights()["w"].tolist() == [3.0] * 3
            assert names(folder.parent) == ["run"]
            ours = ["final.safetensors", "manifest.json", *(f"{t}.parquet" for t in TABLES)]
            assert names(folder) == sorted([*ours, "notes.txt"])
    assert step > 8 and seen == {1.0, 2.0}


def test_what_is_not_settled_is_read_where_it_lies(tmp_path: Path) -> None:
    """After a kill between the manifest and the moves of the files that it names."""
    write(tmp_path / "run", 1.0)
    write(tmp_path / "new", 2.0)
    (tmp_path / "run" / NEXT).mkdir()
    for path in (tmp_path / "new").iterdir():
        path.rename(tmp_path / "run" / ("" if path.name == "manifest.json" else NEXT) / path.name)
    run = edgesim.open(tmp_path / "run")
    assert (run.metrics["value"][0], run.weights()["w"][0]) == (2.0, 2.0)


# --- what is there already --------------------------------------------------------------------------------------


def test_an_old_run_stays_until_the_new_one_stands(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no run is never replaced; a run that fails before its first round leaves the old one as it was."""
    call(*RUN)
    kept = contents(here / "run")
    assert call(*RUN).err == "error: run: already exists, a run that is finished; --overwrite replaces it\n"
    with monkeypatch.context() as patch:
        patch.setattr("edgesim.runs.simulate.Simulation.run", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        patch.setattr(Recording, "write", give_up(Recording.write))
        assert call(*RUN, "--overwrite").code == 130
    assert contents(here / "run") == kept
    assert names(here) == ["run", "scenario.toml"]
    assert call(*RUN, "--overwrite", "--set", "seed=2").code == 0
    assert edgesim.open("run").seed == 2
    (here / "mine").mkdir()
    (here / "mine" / "manifest.json").write_text("{}")
    code, _, err = call("run", "scenario.toml", "--out", "mine", "--overwrite")
    assert (code, err) == (2, "error: mine: already exists; remove it or choose another run folder\n")
    assert names(here / "mine") == ["manifest.json"]


USERS = {"notes.txt": b"mine", "more/plot.py": b"import this", "my.final.safetensors": b"not of a run", ".hidden": b""}


def add_files(folder: Path) -> None:
    """Put files into a run folder that no run writes."""
    for name, content in USERS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)


def users(folder: Path) -> dict[str, bytes]:
    return {name: content for name, content in contents(folder).items() if name in USERS}


def test_files_that_no_run_wrote_stay_when_a_run_is_replaced(here: Path) -> None:
    """A run writes the files that its manifest names; all others are the user's."""
    call(*RUN)
    add_files(here / "run")
    assert call(*RUN, "--overwrite", "--set", "seed=2", "--set", "weights=none").code == 0
    assert edgesim.open("run").seed == 2 and users(here / "run") == USERS
    assert sorted(contents(here / "run")) == sorted([*edgesim.open("run").manifest["files"], "manifest.json", *USERS])
    assert names(here) == ["run", "scenario.toml"]


def test_files_that_no_run_wrote_stay_when_a_run_comes_to_nothing(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also files that were put into the folder while the run was going on."""
    call(*RUN)
    add_files(here / "run")
    kept = contents(here / "run")

    def stop(simulation: object) -> None:
        (here / "run" / "later.txt").write_text("mine")
        raise KeyboardInterrupt

    monkeypatch.setattr("edgesim.runs.simulate.Simulation.run", stop)
    monkeypatch.setattr(Recording, "write", give_up(Recording.write))
    assert call(*RUN, "--overwrite").code == 130
    assert contents(here / "run") == kept | {"later.txt": b"mine"}
    monkeypatch.setattr(Recording, "write", give_up(Recording.write))
    assert call("run", "scenario.toml", "--out", "new").code == 130


def test_a_link_to_a_run_folder_is_replaced_and_the_run_behind_it_stays(here: Path) -> None:
    call("run", "scenario.toml", "--out", "real", "--quiet")
    add_files(here / "real")
    kept = contents(here / "real")
    (here / "run").symlink_to("real")
    assert call(*RUN, "--overwrite", "--set", "seed=2").code == 0
    assert edgesim.open("run").seed == 2 and not (here / "run").is_symlink()
    assert contents(here / "real") == kept and names(here) == ["real", "run", "scenario.toml"]


def give_up(really: Any) -> Any:
    """Return a stand-in for writing at whose second time somebody loses patience."""
    times: list[int] = []

    def second(*words: Any) -> None:
        times.append(1)
        if len(times) == 2:
            raise KeyboardInterrupt
        really(*words)

    return second


def test_a_finished_run_needs_no_checkpoint_any_more(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rerun that begins anew removes the file of the one that was cut off; --overwrite also goes on from it."""
    with monkeypatch.context() as patch:
        patch.setattr("edgesim.learning.train.trainer.run_local_sgd", stop_at_the(5))
        code, _, err = call(*RUN, "--set", "stop.rounds=4", "--checkpoint", "1 ns")
    assert code == 130 and "the same command goes on" in err
    assert names(here) == [".run.checkpoint", "run", "scenario.toml"]
    assert call(*RUN, "--set", "stop.rounds=4", "--overwrite").code == 0
    assert names(here) == ["run", "scenario.toml"]
    Path(".run.checkpoint").write_bytes(b"damaged")
    assert call(*RUN, "--set", "stop.rounds=4", "--overwrite", "--checkpoint", "1 ns").code == 0
    assert names(here) == ["run", "scenario.toml"]


def stop_at_the(nth: int) -> Any:
    """Return a stand-in for training at whose nth time Ctrl-C is pressed."""
    from edgesim.learning.train.trainer import run_local_sgd

    times: list[int] = []

    def counted(*words: Any, **options: Any) -> Any:
        times.append(1)
        if len(times) == nth:
            raise KeyboardInterrupt
        return run_local_sgd(*words, **options)

    return counted


def test_a_full_disk_keeps_the_tables(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no room for the weights; the one line says what is lost."""
    really = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if path.suffix == ".safetensors":
            raise OSError(28, "No space left on device")
        return really(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    code, out, err = call(*RUN, "--set", "stop.rounds=2")
    says = "run: cannot be written: [Errno 28] No space left on device"
    assert (code, out, err) == (2, "", f"error: {says}; the tables are kept, the weights are not\n")
    run = edgesim.open("run")
    assert (run.manifest["status"], run.manifest["stop_reason"], run.saved_weights) == ("failed", says, [])
    check_rounds(run, 2)


# --- signals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [[], pytest.param(["--workers", "2"], marks=full)], ids=["serial", "workers"])
@pytest.mark.parametrize(
    "sent", thinned([signal.SIGTERM, signal.SIGHUP, signal.SIGINT], [signal.SIGTERM]), ids=lambda sent: sent.name
)
@pytest.mark.kills
@pytest.mark.workers
@pytest.mark.process
def test_a_signal_writes_what_there_is(here: Path, sent: signal.Signals, backend: list[str]) -> None:
    """To all processes of the group, as a terminal, a batch system and `timeout` send it."""
    process = started("-m", "edgesim", "run", "scenario.toml", "--out", "run", "--set", "stop.rounds=600", *backend)
    assert process.stderr is not None and process.stderr.readline().startswith("round 60/")
    os.killpg(process.pid, sent)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + sent
    run = edgesim.open("run")
    assert run.manifest["status"] == "interrupted"
    assert run.manifest["stop_reason"] == (None if sent == signal.SIGINT else sent.name)
    check_rounds(run, run.manifest["rounds"])
    assert run.saved_weights == ["best", "final"]
    assert "Traceback" not in err
    assert names(here) == ["run", "scenario.toml"]


@pytest.mark.parametrize("backend", [[], ["--workers", "2"]], ids=["serial", "workers"])
@full
@pytest.mark.kills
@pytest.mark.workers
@pytest.mark.process
def test_many_signals_give_up_at_once(here: Path, backend: list[str]) -> None:
    """Without a traceback, without a process or a file that is left over; the folder is whole, or not there."""
    process = started("-m", "edgesim", "run", "scenario.toml", "--out", "run", "--set", "stop.rounds=600", *backend)
    assert process.stderr is not None and process.stderr.readline().startswith("round 60/")
    workers = children_of(process.pid)
    for _ in range(20):
        os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert not any(Path(f"/proc/{each}").exists() for each in workers)
    assert set(names(here)) <= {"run", "scenario.toml"}
    if (here / "run").exists():
        run = edgesim.open("run")
        assert run.manifest["status"] in ("interrupted", "cut off")
        check_rounds(run, run.manifest["rounds"])


def test_handlers_are_put_back_and_ignored_signals_stay_ignored(here: Path) -> None:
    """As under nohup; and a handler of the caller's own is left in its place."""
    scenario = edgesim.load("scenario.toml")

    def mine(*_: Any) -> None:
        raise AssertionError

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {each: signal.getsignal(each) for each in signals}
    during: dict[str, Any] = {}
    looking = Looking(here / "run")
    looking.round_closed = lambda _: during.update({s.name: signal.getsignal(s) for s in signals})  # type: ignore[method-assign]
    wanted = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: mine, signal.SIGHUP: signal.SIG_IGN}
    try:
        for each, handler in wanted.items():
            signal.signal(each, handler)
        simulate(scenario, here / "run", looking)
        assert {each: signal.getsignal(each) for each in signals} == wanted
    finally:
        for each, old in before.items():
            signal.signal(each, old)
    assert (during["SIGTERM"], during["SIGHUP"]) == (mine, signal.SIG_IGN)
    assert during["SIGINT"] is not signal.default_int_handler


# --- names and what a manifest says -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ([], "scenario-fedavg-1"),
        (["seed=3", "method=fedprox", "method.name=fedprox"], "scenario-fedprox-3"),
        (["training.lr=0.2"], "scenario-fedavg-1-training.lr=0.2"),
        (["method='tests.outside.methods:Breaks'"], "scenario-tests.outside.methods.Breaks-1"),
        (["selection.count=1", "stop.rounds = 2"], "scenario-fedavg-1-selection.count=1-stop.rounds=2"),
        (["method={name='fedprox', mu=0.5}"], "scenario-fedprox-1-method={name='fedprox',mu=0.5}"),
        (["name='a:b?'"], "scenario-fedavg-1-name='a_b_'-"),
        (["training.lr=0.1" + "0" * 200], "scenario-fedavg-1-training.lr=0.1000000"),
    ],
)
def test_the_default_folder_tells_what_is_set(here: Path, words: list[str], name: str) -> None:
    """Colons and the like are no part of it, as some file systems refuse them."""
    sets = [word for each in words for word in ("--set", each)]
    folder = Path(call("run", "scenario.toml", "--quiet", *sets).out.strip())
    assert folder.parent == Path("runs") and len(folder.name) < 130
    assert folder.name.startswith(name) and (folder.name == name or name.endswith(("-", "0")))
    assert not set(folder.name) & set('<>:"/\\|?*')


def test_a_manifest_tells_when_how_and_from_what(here: Path) -> None:
    """Date, command line and revision; no word of git where there is none."""
    run = edgesim.run("scenario.toml", out="one")
    assert (run.manifest["command"], run.manifest["git"]) == (None, None)
    assert run.manifest["date"].endswith("+00:00")
    git = ["git", "-c", "user.name=a", "-c", "user.email=b"]
    for words in (["init", "-q"], ["add", "scenario.toml"], ["commit", "-qm", "all"]):
        subprocess.run([*git, *words], check=True)
    call(*RUN)
    revision = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    assert edgesim.open("run").manifest["git"] == {"revision": revision, "dirty": False}
    assert edgesim.open("run").manifest["command"] == ["edgesim", *RUN]
    (here / "scenario.toml").write_text((here / "scenario.toml").read_text() + "\n")
    call(*RUN, "--overwrite")
    assert edgesim.open("run").manifest["git"]["dirty"] is True


@pytest.mark.parametrize(
    ("wanted", "kept"), [("both", ["best", "final"]), ("final", ["final"]), ("best", ["best"]), ("none", [])]
)
def test_weights_are_kept_as_wanted(here: Path, wanted: str, kept: list[str]) -> None:
    """Which changes nothing else: the run is the same one."""
    run = edgesim.run(edgesim.load("scenario.toml", [f"weights={wanted}"]), out="run")
    assert run.saved_weights == kept
    assert run.manifest["digest"] == edgesim.load("scenario.toml").digest()
    assert set(names(here / "run")) & {"best.safetensors", "final.safetensors"} == {f"{k}.safetensors" for k in kept}


def test_a_run_without_a_folder_goes_with_its_object(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = here / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    run = edgesim.run("scenario.toml")
    assert len(run.jobs) == 2 and run.folder.is_relative_to(scratch)
    del run
    assert names(scratch) == []
    monkeypatch.setattr(Trainer, "run", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        edgesim.run("scenario.toml")
    assert names(scratch) == []


# --- streams ----------------------------------------------------------------------------------------------------


@full
@pytest.mark.parametrize(
    ("redirected", "code", "says"),
    [
        pytest.param("| head -c 0", 141, "", marks=full),
        ("> /dev/full", 1, "error: cannot write to standard output: No space left on device"),
        pytest.param(">&-", 0, "", marks=full),
        pytest.param("2>/dev/full", 0, "", marks=full),
        pytest.param("2>&1 > /dev/full", 1, "", marks=full),
        pytest.param("2>&-", 0, "", marks=full),
    ],
)
@pytest.mark.process
def test_streams_that_cannot_be_written(here: Path, redirected: str, code: int, says: str) -> None:
    """One short line at most; the run is kept, whole."""
    words = f"{sys.executable} -m edgesim run scenario.toml --out run --set backend=\"'null'\" {redirected}"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {words}"],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "MPLBACKEND": "garbage"},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == code
    assert [line for line in done.stderr.splitlines() if not line.startswith("round ")] == ([says] if says else [])
    assert json.loads((here / "run" / "manifest.json").read_text())["status"] == "finished"


@full
@pytest.mark.process
def test_a_backend_of_matplotlib_that_is_none(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call(*RUN)
    words = [sys.executable, "-m", "edgesim", "plot", "run"]
    variables = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "MPLBACKEND": "garbage"}
    done = subprocess.run(words, env=variables, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "accuracy.png\naccuracy.svg\n"), done.stderr


def test_not_run_by_a_thread_that_cannot_handle_signals(here: Path) -> None:
    """As in a notebook's executor."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(edgesim.run, "scenario.toml", out="run").result()
    assert run.manifest["status"] == "finished"


def test_a_run_that_cannot_be_replaced_is_an_error_of_the_caller(here: Path) -> None:
    edgesim.run("scenario.toml", out="run")
    with pytest.raises(ConfigError, match="a run that is finished"):
        edgesim.run("scenario.toml", out="run")
    assert edgesim.run("scenario.toml", ["seed=4"], out="run", overwrite=True).seed == 4
