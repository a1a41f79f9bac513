"""Runs that share what was learned: nothing is trained twice, and what is answered is what training would give."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import shutil
import signal
import sqlite3
import struct
import tempfile
import tomllib
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgesim
from edgesim.execution.backends.workers import WorkersBackend
from edgesim.execution.result_cache import FOLDER, ROWS, Answers
from edgesim.runs.simulate import simulate
from tests.calling import TINY, call, names
from tests.execution.test_checkpoint import training
from tests.execution.test_processes import children_of
from tests.sizes import full, grows, sized, spread, thinned

__all__ = ["training"]  # a fixture

RUN = ("run", "scenario.toml", "--set", "stop.rounds=6", "--quiet")
FIRST = (*RUN, "--out", "first")
JOBS = 12  # two devices a round
STUDY = """
name = "networks"
base = "scenario.toml"
columns = ["best_accuracy", "sim_time_s", "energy_j"]
overrides = ["stop.rounds=3"]
[axes.method]
fedavg = []
fedprox = ["method=fedprox"]
[axes]
"network.latency" = [0, 1, 2]
"energy.idle" = ["1 W", "2 W"]
[sizes.quick]
"""


def weights_of(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).glob("*.safetensors")}


def check_same(one: str, other: str) -> None:
    """Compare every table and every bit of the weights."""
    assert call("diff", one, other).out == "identical\n"
    assert weights_of(one) == weights_of(other) and len(weights_of(one)) == 2


def test_the_same_run_again_trains_nothing(here: Path, training: list[int]) -> None:
    """Unless it is to be fresh; all three are equal."""
    trained = []
    for out, more in {"first": (), "second": (), "third": ("--fresh",)}.items():
        training[0] = 0
        assert call(*RUN, "--out", out, *more).code == 0
        trained.append(training[0])
    assert trained == [JOBS, 0, JOBS]
    check_same("first", "second")
    check_same("first", "third")
    known = edgesim.open("second").manifest["known"]
    assert known == {"answers": 12, "computed": 0, "computed_from": None, "jobs": 0}
    assert edgesim.open("first").manifest["known"] == {"answers": 0, "computed": 12, "computed_from": 0, "jobs": JOBS}


def test_more_rounds_of_the_same_run_train_the_rest(here: Path, training: list[int]) -> None:
    """From the snapshots that the shorter run has kept; both go the same way as far as the shorter one goes."""
    call(*FIRST, "--checkpoint", "1 ns")
    training[0] = 0
    assert call(*RUN, "--set", "stop.rounds=9", "--out", "longer").code == 0
    assert training[0] == 6
    call(*RUN, "--set", "stop.rounds=9", "--out", "alone", "--fresh")
    check_same("longer", "alone")


def test_ctrl_c_is_not_answered_by_training(here: Path, training: list[int]) -> None:
    """What a run was answered so far it has not got the weights of, and they are not computed for its folder."""
    call(*FIRST)
    shutil.rmtree(here / FOLDER / "weights")  # a run that was killed has not kept them
    training[:] = [0, 3]
    assert call(*RUN, "--set", "stop.rounds=9", "--out", "longer").code == 130
    assert training[0] == 3
    run = edgesim.open("longer")
    assert (run.status, run.manifest["rounds"], run.saved_weights) == ("interrupted", 6, [])


@full
@pytest.mark.kills
@pytest.mark.workers
def test_a_worker_that_dies_takes_nobody_s_time(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it was at is lost, and with it all that builds on that; the tables of the rounds before are kept."""
    call(*FIRST)
    shutil.rmtree(here / FOLDER / "weights")
    really = WorkersBackend.submit

    def submit(self: WorkersBackend, *words: Any) -> None:
        really(self, *words)
        os.kill(children_of(os.getpid())[0], signal.SIGKILL)

    monkeypatch.setattr(WorkersBackend, "submit", submit)
    words = ("--set", "stop.rounds=9", "--out", "longer", "--workers", "2")
    says = "error: backend: a worker process died; with too little memory use fewer\n"
    assert call(*RUN, *words) == (2, "", says)
    run = edgesim.open("longer")
    assert (run.status, run.manifest["rounds"], run.saved_weights) == ("failed", 6, [])
    monkeypatch.undo()
    monkeypatch.chdir(here)
    assert call(*RUN, *words, "--overwrite").code == 0
    call(*RUN, "--set", "stop.rounds=9", "--out", "alone", "--fresh")
    check_same("longer", "alone")


@full
def test_a_python_call_shares_nothing_unless_it_is_given_answers(here: Path, training: list[int]) -> None:
    scenario = edgesim.load("scenario.toml", ["stop.rounds=6"])
    for out in "one", "two":
        simulate(scenario, here / out)
    assert training[0] == 2 * JOBS and names(here) == ["one", "scenario.toml", "two"]
    assert not (here / FOLDER).exists()
    for out in "three", "four":
        simulate(scenario, here / out, answers=Answers(here))
    assert training[0] == 3 * JOBS


# --- what if ----------------------------------------------------------------------------------------------------


@full
def test_another_network_energy_and_battery_train_nothing(here: Path, training: list[int]) -> None:
    call(*FIRST)
    training[0] = 0
    changes = ["network.latency=1", "energy.idle='2 W'", "fleet.0.cpu.flops_per_s='10 MFLOP/s'"]
    words = [word for change in changes for word in ("--set", change)]
    code, out, err = call("replay", "first", *words, "--out", "again", "--quiet")
    assert (code, out, err) == (0, "again\n", "nothing was trained: 12 cached results were reused\n")
    assert training[0] == 0
    call("run", "scenario.toml", "--set", "stop.rounds=6", *words, "--out", "alone", "--quiet", "--fresh")
    check_same("again", "alone")
    assert edgesim.open("again").rounds["now_s"].iloc[-1] > edgesim.open("first").rounds["now_s"].iloc[-1]


@full
@pytest.mark.parametrize("first", [(), ("--checkpoint", "1 ns")], ids=["no snapshots", "snapshots"])
def test_who_is_late_in_a_later_round_is_named(here: Path, training: list[int], first: tuple[str, ...]) -> None:
    """From the fourth round on two devices compute slowly; with a snapshot of that time only the rest is trained."""
    call(*FIRST, *first)
    run = edgesim.open("first")
    after_s = run.rounds["now_s"].to_numpy()
    Path("speeds.csv").write_text(f"time_s,speed\n0,1\n{after_s[2]},0.001\n")
    changes = [
        "fleet.0.slowdown={ name = 'replay', file = 'speeds.csv', repeat = false }",
        "protocol={ name = 'deadline', deadline = '100 s' }",
    ]
    words = [word for change in changes for word in ("--set", change)]
    training[0] = 0
    code, _, err = call("replay", "first", *words, "--out", "late", "--quiet")
    assert code == 0
    late = run.jobs[(run.jobs["round"] >= 3) & (run.jobs["device"] < 2)].iloc[0]
    assert f"in round {late['round'] + 1} device {late['device']} was ok, and is late now" in err
    jobs = edgesim.open("late").jobs
    later = jobs[(jobs["outcome"] == "ok") & (jobs["round"] >= late["round"])]
    assert training[0] == edgesim.open("late").manifest["known"]["jobs"]
    assert training[0] == len(later) if first else training[0] > len(later)
    call("run", "scenario.toml", "--set", "stop.rounds=6", *words, "--out", "alone", "--quiet", "--fresh")
    check_same("late", "alone")


@pytest.mark.parametrize("method", spread(["fedavg", "fedad"], 1))  # the second's server sees speeds, and no prices
def test_other_prices_train_nothing(here: Path, training: list[int], method: str) -> None:
    """A run is priced afterwards, and then under others; a run that is trained under them has the same tables."""
    plain = ("run", "scenario.toml", "--set", "stop.rounds=4", "--set", f"method={method}", "--quiet")
    assert call(*plain, "--out", "first").code == 0
    training[0], costs = 0, []
    for name, price in {"cheap": "0.1 EUR/kWh", "dear": "0.4 EUR/kWh"}.items():
        done = call("replay", "first", "--set", f"prices.electricity='{price}'", "--out", name)
        assert (done.code, training[0]) == (0, 0) and "nothing was trained" in done.err
        costs.append(edgesim.open(name).manifest["totals"]["cost"])
    assert costs[1] == pytest.approx(4 * costs[0], rel=1e-12)
    dear = ("--set", "prices.electricity='0.4 EUR/kWh'", "--fresh", "--out", "fresh")
    assert call(*plain, *dear).code == 0
    check_same("dear", "fresh")


@full
def test_a_replay_has_a_folder_of_its_own(here: Path) -> None:
    call(*FIRST)
    assert call("replay", "first", "--set", "network.latency=1", "--quiet").out == "first-network.latency=1\n"
    assert call("replay", "first", "--quiet").out == "first-again\n"
    assert call("replay", "first", "--quiet").code == 2
    assert call("replay", "first", "--quiet", "--overwrite").code == 0
    assert json.loads(call("replay", "first", "--out", "x", "--json", "--quiet").out)["rounds"] == 6


def test_a_timing_only_run_is_replayed_to_what_a_run_gives(here: Path) -> None:
    timing = ("--set", "backend=null", "--set", "data_seed=3")
    assert call("run", "scenario.toml", "--out", "timed", "--quiet", *timing).code == 0
    assert call("run", "scenario.toml", "--out", "slow", "--quiet", *timing, "--set", "network.up=0.1 Mbit/s").code == 0
    code, _, err = call("replay", "timed", "--set", "network.up='0.1 Mbit/s'", "--out", "again", "--quiet")
    assert (code, err) == (0, "timing only: nothing was trained\n")
    assert call("diff", "slow", "again").out == "identical\n"
    assert edgesim.open("slow").rounds["now_s"].iloc[-1] > edgesim.open("timed").rounds["now_s"].iloc[-1]
    assert not (here / FOLDER).exists()


@grows
def test_cells_that_differ_in_the_world_train_once(here: Path, training: list[int]) -> None:
    """Twelve cells, in a short run four; two trainings of three rounds; each cell is what it is alone."""
    latencies, count = sized(("[0]", 4), ("[0, 1, 2]", 12), ("[0, 1, 2]", 12))
    Path("study.toml").write_text(STUDY.replace("[0, 1, 2]", latencies))
    words = ("study", "run", "study.toml", "--runs")
    assert call(*words, "runs").code == 0
    assert training[0] == 2 * 6
    assert call(*words, "alone", "--fresh").code == 0
    assert training[0] == 2 * 6 + count * 6
    cells = names(Path("runs"))
    assert len(cells) == count
    for cell in cells:
        check_same(f"runs/{cell}", f"alone/{cell}")


@pytest.mark.workers
def test_cells_train_once_in_several_processes_too(here: Path) -> None:
    """Two begin at a time, and both would train the first network."""
    Path("study.toml").write_text(STUDY)
    assert call("study", "run", "study.toml", "--workers", "2", "--runs", "runs").code == 0
    assert sum(edgesim.open(f"runs/{cell}").manifest["known"]["jobs"] for cell in names(Path("runs"))) == 2 * 6


# --- what is kept -----------------------------------------------------------------------------------------------


def test_what_is_kept_is_shown_and_removed(here: Path) -> None:
    call(*FIRST, "--checkpoint", "1 ns")
    found = json.loads(call("cache", ".", "--json").out)
    assert (found["answers"], found["removed"]) == (12, False)
    assert found["models"] in (1, 2) and 4 <= found["snapshots"] <= 8
    files = [path for path in Path(FOLDER).rglob("*") if path.is_file()]
    assert found["nbytes"] == sum(path.stat().st_size for path in files)
    assert call("cache", ".", "--prune").out.endswith("removed\n")
    assert names(here) == ["first", "scenario.toml"] and not Path(FOLDER).exists()
    assert json.loads(call("cache", ".", "--json").out)["answers"] == 0
    assert call("cache", "nowhere").err == "error: nowhere: no such folder\n"


@pytest.mark.parametrize("kind", spread(["answers.sqlite", "weights", "snapshots"], 1))
def test_what_is_damaged_is_computed_again(here: Path, training: list[int], kind: str) -> None:
    """One line names the file; files of weights and snapshots are replaced, so that the next run reads them."""
    call(*FIRST, "--checkpoint", "1 ns")
    for path in Path(FOLDER).rglob("*"):
        if path.is_file() and kind in str(path):
            path.write_bytes(b"no such thing" + path.read_bytes()[13:])
    words = ["--set", "stop.rounds=9"] if kind == "snapshots" else []
    code, _, err = call(*RUN, *words, "--out", "second")
    assert code == 0 and f"warning: {FOLDER}/{kind}" in err
    assert kind != ROWS or err.count("\n") == 1  # of the others there are several files
    assert call(*RUN, *words, "--out", "elsewhere/alone").code == 0
    check_same("second", "elsewhere/alone")
    if kind != "answers.sqlite":
        training[0] = 0
        assert call(*RUN, *words, "--out", "third") == (0, "third\n", "")
        assert training[0] == 0


@full
@pytest.mark.parametrize("jobs", [pytest.param(100, marks=full), 3], ids=["whole", "cut off"])
def test_a_fresh_run_replaces_all_that_was_kept(
    here: Path, training: list[int], monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    """Answers, models and snapshots, also of rounds that it does not reach.

    The facts are held equal, so that another deal of the samples is a change of code that they do not tell.
    """
    monkeypatch.setattr("edgesim.runs.cache_identity.facts_of", lambda parts: b"equal for all")
    old, new = ("--set", "data_seed=5"), ("--set", "data_seed=6")
    longer = (*RUN, "--set", "stop.rounds=9")
    assert call(*longer, *old, "--checkpoint", "1 ns", "--out", "old").code == 0
    training[0] = 0
    assert call(*longer, *new, "--out", "stale").code == 0
    assert training[0] == 0  # which is what such a change does
    training[:] = [0, jobs]
    assert call(*RUN, *new, "--set", "stop.rounds=4", "--fresh", "--out", "fresh").code == (0 if jobs > 8 else 130)
    training[:] = [0, 100]
    assert call(*longer, *new, "--out", "next").code == 0
    assert call(*longer, *new, "--out", "elsewhere/alone").code == 0
    check_same("next", "elsewhere/alone")
    training[0] = 0
    assert call(*longer, *new, "--out", "again").code == 0
    assert training[0] == 0
    check_same("again", "elsewhere/alone")


@full
def test_a_fresh_study_runs_its_finished_cells_again(here: Path, training: list[int]) -> None:
    Path("study.toml").write_text(STUDY.replace("[0, 1, 2]", "[0]"))
    words = ("study", "run", "study.toml", "--runs", "runs")
    for more, trained in ((), 12), ((), 0), (("--fresh",), 4 * 6):
        training[0] = 0
        assert call(*words, *more).code == 0
        assert training[0] == trained


def test_answers_of_other_code_or_data_are_not_taken(
    here: Path, training: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    call(*FIRST)
    for change in "data.test_limit=40", "training.lr=0.2", "seed=2":
        training[0] = 0
        assert call(*RUN, "--out", f"other-{change}", "--set", change).code == 0
        assert training[0] == JOBS
    monkeypatch.setattr("edgesim.files.code_identity.source_digest", lambda *folders: "other")
    training[0] = 0
    call(*RUN, "--out", "code")
    assert training[0] == JOBS


@pytest.mark.parametrize("taken", thinned(["", "answers.sqlite", "weights"], ["weights"]))
def test_a_run_goes_on_where_nothing_can_be_kept(here: Path, taken: str) -> None:
    """As something else stands where its answers would be; the run's own folder is whole."""
    place = here / FOLDER / taken
    place.parent.mkdir(exist_ok=True)
    place.mkdir() if taken == ROWS else place.write_text("a file")
    code, out, err = call(*FIRST)
    assert (code, out, err.count("\n")) == (0, "first\n", 1)
    assert err.startswith(f"warning: {FOLDER}") and "keeps nothing" in err
    call(*RUN, "--out", "elsewhere/alone")
    check_same("first", "elsewhere/alone")


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("room_bytes", [0, 4096, 8192])
def test_a_full_disk_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], room_bytes: int, reads: bool
) -> None:
    """By runs one after the other, each of two trainings, that ask for answers and weights and keep them.

    No file may have more bytes than there is room; SQLite needs 8192 for an empty table.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room_bytes, hard))
    try:
        for _ in range(3):
            with closing(Answers(tmp_path, reads)) as answers:
                for each in (answers.of(b"one"), answers.of(b"other")):
                    for id_ in (b"a", b"b"):
                        assert each.get(id_) is None and each.weights(id_) is None
                        each.put(id_, "much to keep" * 1000)
                        each.put_weights(id_, {"w": np.zeros(10_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    said = capsys.readouterr().err
    assert said.count("\n") == said.count("warning: ") == said.count("keeps nothing") == 1, said


def _page(kind: int, cells: list[bytes], right: int | None = None, head: bytes = b"") -> bytes:
    """Return a page of SQLite's file format: of a table's rows (kind 13), or that leads to other pages (kind 5)."""
    size, places, body = 4096, [], b""
    for cell in cells:
        body = cell + body
        places.append(size - len(body))
    start = struct.pack(">BHHHB", kind, 0, len(cells), places[-1], 0)
    start += b"" if right is None else struct.pack(">I", right)
    start += b"".join(struct.pack(">H", place) for place in places)
    return head + start + bytes(size - len(head) - len(start) - len(body)) + body


def _endless(file: Path) -> None:
    """Write a file of answers whose schema has 200 ** 12 rows: each of twelve pages leads 200 times to the next."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("create table answers (id blob primary key, answer blob)")
    first = file.read_bytes()[:4096]
    rows = []
    for place in struct.unpack(">HH", first[108:112]):  # of the table, and of its index
        rows.append(first[place : place + 2 + first[place]])  # its length and its number, one byte each
    pages = [first, file.read_bytes()[4096:8192], _page(13, rows[:1]), _page(13, rows[1:])]
    for below in range(4, 16):
        pages.append(_page(5, [struct.pack(">IB", below, 1)] * 200, below))
    head = first[:28] + struct.pack(">I", len(pages)) + first[32:100]
    pages[0] = _page(5, [struct.pack(">IB", 3, 1)], len(pages), head)
    file.write_bytes(b"".join(pages))


def test_a_made_up_file_of_answers_comes_to_an_end(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite would read it for some 10^20 years; a run computes all, and what asks for its content says so."""
    monkeypatch.setattr("edgesim.execution.result_cache._MOST_STEPS", 10**6)
    (here / FOLDER).mkdir()
    _endless(here / FOLDER / ROWS)
    code, out, err = call(*FIRST)
    assert (code, out, err.count("\n")) == (0, "first\n", 1)
    assert err.startswith(f"warning: {FOLDER}/{ROWS}: cannot be used; remove it to begin anew: interrupted; this run")
    code, _, err = call("cache", ".")
    assert code and err.count("\n") == 1 and err.startswith(f"error: {FOLDER}/{ROWS}: cannot be used; remove it"), err


@full
def test_a_run_that_is_read_only_is_replayed_elsewhere(training: list[int]) -> None:
    """With all its answers. The superuser may write everywhere, so this test is somebody else meanwhile."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        folder.chmod(0o777)
        (folder / "scenario.toml").write_text(TINY)
        words = ("run", folder / "scenario.toml", "--set", "stop.rounds=2", "--quiet", "--out")
        assert call(*words, folder / "kept" / "run").code == 0
        for path in (folder / "kept").rglob("*"):
            path.chmod(0o555 if path.is_dir() else 0o444)
        (folder / "kept").chmod(0o555)
        training[0], user = 0, os.geteuid()
        if not user:
            os.seteuid(65534)
        try:
            replay = ("replay", folder / "kept" / "run", "--out", folder / "again" / "run", "--quiet")
            (code, _, err), trained = call(*replay), training[0]
            changed = ("--set", "stop.rounds=3", "--overwrite")
            more = call(*replay, *changed)
        finally:
            os.seteuid(user)
            for path in (folder / "kept", *(folder / "kept").rglob("*")):
                path.chmod(0o777)
        assert (code, err, trained) == (0, "nothing was trained: 4 cached results were reused\n", 0)
        assert more.code == 0 and "warning: " in more.err and "keeps nothing more" in more.err


def test_answers_come_back_as_they_were(tmp_path: Path) -> None:
    answers = Answers(tmp_path)
    assert answers.get(b"a") is None and answers.weights(b"a") is None
    assert not (tmp_path / FOLDER).exists()
    for value in (1, 0.1, {"a": {3: 0.5}}, (None, float("inf"))):
        answers.put(b"a", value)
        assert answers.get(b"a") == Answers(tmp_path).get(b"a") == value
    assert Answers(tmp_path, reads=False).get(b"a") is None
    answers.put(b"b", object())  # nothing that a file could hold: it is not kept
    assert answers.get(b"b") is None
    answers.close()
    answers.close()


def _flipped(content: bytes, bit: int) -> bytes:
    """Return a file with one bit changed."""
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@full
@pytest.mark.grows
def test_a_flipped_bit_gives_no_other_answer(tmp_path: Path) -> None:
    """One anywhere in the file of the answers: each is its own, or there is none. Then it can be kept again."""
    ids = [bytes([place]) * 16 for place in range(12)]
    with closing(Answers(tmp_path)) as answers:
        for place, id_ in enumerate(ids):
            answers.put(id_, place)
    file = tmp_path / FOLDER / ROWS
    content = file.read_bytes()
    bits = np.random.default_rng(1).choice(8 * len(content), sized(500, 2000, 40_000), replace=False)
    lost = 0
    for bit in bits.tolist():
        for each in file.parent.iterdir():
            each.unlink()
        file.write_bytes(_flipped(content, bit))
        with closing(Answers(tmp_path)) as answers:
            for place, id_ in enumerate(ids):
                found = answers.get(id_)
                assert found in (place, None)
                lost += found is None
                answers.put(id_, place)
    assert lost


def test_an_answer_of_another_identity_is_not_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows, models and snapshots that have changed places, each whole in itself."""
    method = edgesim.load(tomllib.loads(TINY)).method.value
    with closing(Answers(tmp_path)) as answers:
        for id_ in b"a", b"b":
            answers.put(id_, id_.hex())
            answers.put_weights(id_, {"w": np.frombuffer(id_, np.uint8)})
            answers.put_snapshot(id_, {id_: 1}, method)
    with closing(sqlite3.connect(tmp_path / FOLDER / ROWS)) as rows:
        [[answer]] = rows.execute("select answer from answers where id = ?", (b"b",)).fetchall()
        rows.execute("update answers set answer = ? where id = ?", (answer, b"a"))
        rows.commit()
    for file in (tmp_path / FOLDER).glob(f"*/{b'b'.hex()}.safetensors"):
        shutil.copy(file, file.with_name(f"{b'a'.hex()}.safetensors"))
    with closing(Answers(tmp_path)) as answers:
        assert answers.get(b"a") is answers.weights(b"a") is answers.snapshot(b"a", method) is None
        assert answers.get(b"b") == b"b".hex()
    warned = capsys.readouterr().err.splitlines()
    assert len(warned) == 3 and all("belongs to another name" in line for line in warned)


def test_a_file_that_another_process_writes_is_left_to_it(tmp_path: Path) -> None:
    """One whose writer was killed is written anew, or removed by who next uses the folder."""
    answers, arrays = Answers(tmp_path), {"w": np.arange(3.0)}
    answers.put_weights(b"first", arrays)
    path = next((tmp_path / FOLDER).rglob("*.safetensors"))
    growing = path.with_name(f".{b'second'.hex()}.safetensors.growing")
    with growing.open("wb") as file:
        file.write(b"half")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        answers.put_weights(b"second", arrays)
        answers.put(b"id", 1)  # opens the folder
        assert growing.read_bytes() == b"half" and answers.weights(b"second") is None
    answers.put_weights(b"second", arrays)
    assert not growing.exists()
    for id_ in b"first", b"second":
        found = answers.weights(id_)
        assert found is not None and found["w"].tolist() == [0, 1, 2]
    answers.close()
    growing.write_bytes(b"half")
    with closing(Answers(tmp_path)) as others:
        others.put(b"id", 1)
    assert not growing.exists() and len(list(path.parent.iterdir())) == 2
