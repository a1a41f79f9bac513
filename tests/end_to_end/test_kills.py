"""SIGKILL at any instant, to any process of a run: none is left behind, the folder can be read, and the run goes on.

What comes of it in the end is the run that was left alone, bit for bit. Short runs have the one kill of
tests/execution/test_checkpoint.py.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from itertools import cycle, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

import edgesim
from edgesim.records.schema import TABLES
from edgesim.reports.load import Run
from edgesim.runs.simulate import simulate
from tests.calling import TINY, call, names
from tests.execution.test_processes import started, wait_until
from tests.sizes import full, sized, thinned

ROUNDS = 40
KILLS = sized(3, 3, 70, rest=2)  # of each protocol and backend
PROTOCOLS = {
    "sync": (),
    "deadline": ("protocol={name='deadline', deadline='8 s', late='keep'}",),
    "buffered": ("protocol={name='buffered', buffer=2, concurrency=3}", "method=fedbuff"),
    "peers": ("method=dispfl", "peers={name='random', degree=2}", "selection=all", "evaluation.personal=true"),
}
BACKENDS = {"serial": (), "workers": ("--workers", "2")}
WAYS = {
    "checkpoint": ("--checkpoint", "1 ns", "--fresh"),
    "both": ("--checkpoint", "1 ns"),
    "answers": ("--overwrite",),
}
STUDY = """
name = "two methods, two networks"
base = "scenario.toml"
columns = ["best_accuracy"]
[axes.method]
fedavg = []
fedprox = ["method=fedprox"]
[axes.network]
near = []
far = ["network.latency=1"]
[sizes.quick]
overrides = ["stop.rounds=10"]
"""


# --- killing --------------------------------------------------------------------------------------------------------


class Process(NamedTuple):
    """A process that lives."""

    pid: int
    parent: int
    words: bytes  # of its command line


def processes_of(session: int) -> list[Process]:
    """Return the processes of a session that live."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            state, parent, _, session_of = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(session_of) == session and state not in "ZX":
                found.append(Process(int(folder.name), int(parent), (folder / "cmdline").read_bytes()))
    return found


def main_of(process: int) -> list[int]:
    return [process]


def group_of(process: int) -> list[int]:
    return [each.pid for each in processes_of(process)]


def workers_of(process: int) -> list[int]:
    """Return one worker process, none if there are none yet."""
    servers = servers_of(process)
    return [each.pid for each in processes_of(process) if each.parent in servers][:1]


def servers_of(process: int) -> list[int]:
    """Return the process that workers are forked from."""
    return _children(process, b"multiprocessing.forkserver")


def trackers_of(process: int) -> list[int]:
    """Return the process that Python starts beside that one."""
    return _children(process, b"multiprocessing.resource_tracker")


def _children(process: int, words: bytes) -> list[int]:
    return [each.pid for each in processes_of(process) if each.parent == process and words in each.words]


VICTIMS: dict[str, tuple[Callable[[int], list[int]], ...]] = {
    "serial": (main_of,),
    "workers": (main_of, workers_of, servers_of, group_of, workers_of, trackers_of),
    "study": (workers_of, main_of, group_of, servers_of),
}


def writes_in(folder: Path) -> set[tuple[str, int]]:
    """Return what is being written below a folder: each file that grows, and each size of SQLite's log."""
    found = set()
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            with suppress(FileNotFoundError):
                if name.endswith((".growing", ".old", ".next", ".checkpoint", "-wal")):
                    info = Path(place, name).stat()
                    found.add((name, info.st_size if name.endswith("-wal") else info.st_mtime_ns))
    return found


class Killer:
    """Kills processes of runs at instants and in ways that a generator draws. `kills`: how many so far."""

    def __init__(self, rng: np.random.Generator, here: Path, victims: tuple[Callable[[int], list[int]], ...]) -> None:
        self.kills = 0
        self._rng = rng
        self._here = here
        self._victims = victims

    def run(self, *words: str, kill: bool) -> tuple[int, str]:
        """Run a command, killed if so wanted; return its exit code, and what it said went wrong.

        A process that was left alive when another was killed ends with one line, or as if nothing had been.
        """
        how, environment = self._rng.choice(["change", "instant", "training", "write"]), dict(os.environ)
        if kill and how == "change":
            environment["EDGESIM_KILLED_AT"] = str(int(self._log_uniform(1, 400)))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "environ", environment)
            process = started("-m", "tests.runs.killable", *words)
        victims = main_of
        if kill and how != "change":
            victims = self._victims[self.kills % len(self._victims)]
            self._until(lambda: victims(process.pid) != [], process)
            self._wait(how, process)
            for victim in victims(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
        _, err = process.communicate(timeout=120)  # returns when no process holds the pipes any more
        wait_until(lambda: not processes_of(process.pid), at_most_s=20)
        code, said = process.returncode, [line for line in err.splitlines() if line.startswith("error: ")]
        killed = code != 0 or victims is not main_of
        aim = f"{how}, {victims.__name__}" if kill else "left alone"
        print(f"{aim}: exit code {code}, {err!r}: {' '.join(words)}", flush=True)
        self.kills += kill and killed
        assert code in ((0, 2, -signal.SIGKILL) if kill else (0,)), err
        assert len(said) == (code == 2) and "Traceback" not in err, err
        return code, "".join(said)

    def _wait(self, how: str, process: subprocess.Popen[str]) -> None:
        """Wait for the instant at which a run is to be killed, or for its end."""
        if how == "instant":
            self._sleep(4.0, process)
            return
        self._until(lambda: any(self._here.rglob(".*.lock")), process)
        if how == "training":
            self._sleep(2.0, process)
            return
        seen, wanted = set[tuple[str, int]](), self._log_uniform(1, 40)
        self._until(lambda: seen.update(writes_in(self._here)) or len(seen) >= wanted, process)

    def _sleep(self, at_most_s: float, process: subprocess.Popen[str]) -> None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(self._rng.uniform(0.0, at_most_s))

    def _until(self, true: Callable[[], bool], process: subprocess.Popen[str]) -> None:
        while process.poll() is None and not true():
            time.sleep(0.0005)

    def _log_uniform(self, low: float, high: float) -> float:
        return float(np.exp(self._rng.uniform(np.log(low), np.log(high))))


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Return a generator of a test's own: in nightly runs another one each time."""
    fixed = zlib.crc32(request.node.name.encode())
    seed = sized(fixed, fixed, secrets.randbits(32))
    print("seed", seed)
    return np.random.default_rng(seed)


# --- comparing --------------------------------------------------------------------------------------------------------


def check_same(run: Run, expected: Run) -> None:
    """All tables and weights must be equal, bit for bit."""
    assert run.manifest["status"] == "finished"
    for table in TABLES:
        pd.testing.assert_frame_equal(run.table(table), expected.table(table), check_exact=True, obj=table)
    assert run.saved_weights == expected.saved_weights == ["best", "final"]
    for which in run.saved_weights:
        found, wanted = run.weights(which), expected.weights(which)
        assert found.keys() == wanted.keys()
        assert all(found[name].tobytes() == wanted[name].tobytes() for name in wanted)


def check_part(folder: Path, expected: Run) -> None:
    """What a killed run has left must be nothing, or the first rounds of the run, or all of it."""
    code, _, err = call("table", folder)
    if not folder.exists():
        assert (code, err.count("\n")) == (2, 1)
        return
    run = edgesim.open(folder)
    assert run.status in ("cut off", "failed", "finished")
    ends = f"run: {run.status} after {run.manifest['rounds']} round"
    assert code == 0 and err.count("\n") == (not run.finished) and (run.finished or err.startswith(ends))
    assert not any(path.name.endswith(".growing") for path in folder.iterdir())
    rounds = run.manifest["rounds"]
    assert len(run.rounds) == rounds
    for table in ("rounds", "evals", "metrics"):
        found, whole = (_but_ties(each.table(table), rounds) for each in (run, expected))
        pd.testing.assert_frame_equal(found, whole, check_exact=True, obj=table)
    assert all(len(run.table(table)) >= 0 for table in TABLES)
    assert all(len(run.weights(which)) for which in run.saved_weights)


def _but_ties(table: pd.DataFrame, rounds: int) -> pd.DataFrame:
    """Return the rows of the first rounds, but for the critical path of the last one.

    A job that ends at the very instant at which a round is closed belongs to it, but comes after it: a run that was cut
    off between the two does not know of it.
    """
    first = table[table["round"] < rounds].copy()
    first.loc[first["round"] == rounds - 1, [n for n in first.columns if n.startswith("critical_")]] = -1
    return first


def is_finished(folder: Path) -> bool:
    return folder.exists() and edgesim.open(folder).finished


def check_answers(folder: Path) -> None:
    """The answers that runs in a folder share must be whole."""
    code, out, err = call("cache", folder)
    assert (code, err) == (0, ""), out


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """Return the run of a protocol that nobody has killed, in one process."""
    known: dict[str, Run] = {}

    def run(protocol: str) -> Run:
        if protocol not in known:
            folder = tmp_path_factory.mktemp(protocol)
            (folder / "scenario.toml").write_text(TINY)
            words = [f"stop.rounds={ROUNDS}", *PROTOCOLS[protocol]]
            known[protocol] = simulate(edgesim.load(folder / "scenario.toml", words), folder / "run")
        return known[protocol]

    return run


# --- runs -------------------------------------------------------------------------------------------------------------


PAIRS = [(protocol, backend) for protocol in PROTOCOLS for backend in BACKENDS]
IN_TURN = [(protocol, list(BACKENDS)[place % 2]) for place, protocol in enumerate(PROTOCOLS)]


@full
@pytest.mark.parametrize(("protocol", "backend"), thinned(PAIRS, IN_TURN[:1], IN_TURN))
@pytest.mark.kills
@pytest.mark.workers
@pytest.mark.process
def test_a_run_killed_at_any_instant_goes_on(
    here: Path, rng: np.random.Generator, alone: Callable[[str], Run], protocol: str, backend: str
) -> None:
    """From its checkpoint, from answers, or from both; one whose worker was killed ends with one line, or not at all.

    It is killed up to three times before it is left to come to its end. With few kills, each pair of protocol and
    backend goes on in another way first.
    """
    sets = [word for each in (f"stop.rounds={ROUNDS}", *PROTOCOLS[protocol]) for word in ("--set", each)]
    words = ("run", "scenario.toml", "--out", "run", "--quiet", *BACKENDS[backend], *sets)
    expected, killer = alone(protocol), Killer(rng, here, VICTIMS[backend])
    first = ([*PROTOCOLS].index(protocol) + [*BACKENDS].index(backend)) % len(WAYS)
    for way in islice(cycle(WAYS), first, None):
        for kills in range(4):
            code, said = killer.run(*words, *WAYS[way], kill=kills < 3 and killer.kills < KILLS)
            if code == 2:
                assert said.startswith("error: backend: ")
            check_part(here / "run", expected)
            check_answers(here)
            if code == 0 or is_finished(here / "run"):  # a kill may come between the last rename and the end
                break
        check_same(edgesim.open("run"), expected)
        assert names(here) == ["run", "scenario.toml"]
        if killer.kills >= KILLS:
            return
        assert call("cache", here, "--prune").code == 0
        shutil.rmtree(here / "run")


# --- studies ----------------------------------------------------------------------------------------------------------


@full
@pytest.mark.kills
@pytest.mark.workers
@pytest.mark.process
def test_a_study_killed_at_any_instant_goes_on(here: Path, rng: np.random.Generator) -> None:
    """Cells are there whole or not at all; the same command makes those that are missing."""
    Path("study.toml").write_text(STUDY)
    assert call("study", "run", "study.toml", "--runs", "alone", "--fresh").code == 0
    expected = {name: edgesim.open(f"alone/{name}") for name in names(here / "alone")}
    assert len(expected) == 4
    killer = Killer(rng, here, VICTIMS["study"])
    for saves in cycle([(), ("--checkpoint", "1 ns")]):
        for kills in range(4):
            words = ("study", "run", "study.toml", "--runs", "runs", "--workers", "2", *saves)
            code, said = killer.run(*words, kill=kills < 3 and killer.kills < KILLS)
            if code == 2:
                assert said.startswith("error: --workers: a worker process died")
            for name in names(here / "runs") if Path("runs").exists() else []:
                if not name.startswith("."):
                    check_same(edgesim.open(f"runs/{name}"), expected[name])
            if code == 0:
                break
        left = [name for name in names(here / "runs") if not name.endswith(".lock")]  # of a cell that was done then
        assert left == list(expected)
        check_answers(here / "runs")
        if killer.kills >= KILLS:
            return
        shutil.rmtree(here / "runs")
