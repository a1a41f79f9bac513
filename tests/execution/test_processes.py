"""Worker processes end with the process that started them, and say why they could not start."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import edgesim
from edgesim.core.errors import EdgesimError
from edgesim.execution.processes import Pool, ProcessPool
from tests.calling import TINY
from tests.sizes import full, thinned

ROOT = str(Path(__file__).parents[2])


def double(number: int) -> int:
    return 2 * number


def fail(number: int) -> None:
    raise ValueError(f"not {number}")


def vanish(_: int) -> None:
    os._exit(1)


def children_of(parent: int) -> list[int]:
    """Return the worker processes of a process: they are forked from one that it has started."""
    return [worker for server in _started_by(parent) for worker in _started_by(server)]


def _started_by(parent: int) -> list[int]:
    """Return the processes that a process has started to be forked from, or that were forked from such a one."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent_of = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent_of == parent and b"multiprocessing.forkserver" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def wait_until(true: Callable[[], bool], at_most_s: float = 60) -> None:
    """Wait for something to be so."""
    end_s = time.monotonic() + at_most_s
    while not true():
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.05)


def are_gone(processes: list[int]) -> bool:
    return not any(Path(f"/proc/{each}").exists() for each in processes)


def started(*words: str, **options: object) -> subprocess.Popen[str]:
    """Start Python in the current folder, in a session of its own, with the signals as in a shell."""

    def as_in_a_shell() -> None:
        for each in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
            signal.signal(each, signal.SIG_DFL)

    return subprocess.Popen(
        [sys.executable, *words], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        env={**os.environ, "PYTHONPATH": ROOT}, preexec_fn=as_in_a_shell, **options,  # type: ignore[call-overload]
    )  # fmt: skip


def answers(pool: Pool, work: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """Return what processes give for items, in their order; raise what they raise."""
    for place, item in enumerate(items):
        pool.give(place, work, item)
    found: dict[int, Any] = {}
    while done := pool.take(wait=True):
        found.update(done)
    for error in (each for each in found.values() if isinstance(each, Exception)):
        raise error
    return [found[place] for place in sorted(found)]


@pytest.mark.workers
def test_answers_come_by_their_names_and_errors_come_home() -> None:
    """An error comes with where it was raised; after it the pool can be used again."""
    gc.collect()  # pools that other tests have left to the collector
    pool = ProcessPool("pool", 2)
    try:
        assert answers(pool, double, []) == []
        assert answers(pool, double, range(5)) == [0, 2, 4, 6, 8]
        with pytest.raises(ValueError, match="not 1") as error:
            answers(pool, fail, [1, 1, 1])
        assert "in fail" in error.value.__notes__[0]
        assert answers(pool, double, [3]) == [6]
        with pytest.raises(EdgesimError, match=r"^pool: a worker process died; with too little memory use fewer$"):
            answers(pool, vanish, [1, 2, 3])
        assert answers(pool, double, [1, 2]) == [2, 4]
    finally:
        pool.close()
        pool.close()
    assert children_of(os.getpid()) == []


@pytest.mark.parametrize(
    "sent", thinned([signal.SIGKILL, signal.SIGTERM, signal.SIGHUP], [signal.SIGKILL]), ids=lambda sent: sent.name
)
@pytest.mark.kills
@pytest.mark.workers
@pytest.mark.process
def test_nothing_outlives_a_run(here: Path, sent: signal.Signals) -> None:
    """Not the workers, and so not whoever reads their output either."""
    process = started("-m", "edgesim", "run", "scenario.toml", "--set", "stop.rounds=600", "--workers", "2")
    assert process.stderr is not None
    assert process.stderr.readline().startswith("round ")
    workers = children_of(process.pid)
    assert len(workers) == 2
    process.send_signal(sent)
    _, err = process.communicate(timeout=60)  # returns when no process holds the pipes any more
    assert process.returncode == (-sent if sent == signal.SIGKILL else 128 + sent)
    assert "Traceback" not in err
    wait_until(lambda: are_gone(workers))


@full
@pytest.mark.workers
@pytest.mark.process
def test_a_script_without_a_main_guard_is_told(tmp_path: Path) -> None:
    """Every worker loads the script that started it; what stood there instead spoke of too little memory."""
    (tmp_path / "scenario.toml").write_text(TINY.replace("[[fleet]]", 'backend = { name = "workers" }\n[[fleet]]', 1))
    script = tmp_path / "script.py"
    script.write_text("import edgesim\nedgesim.run('scenario.toml', out='run')\n")
    _, err = started(str(script), cwd=tmp_path).communicate(timeout=120)
    assert err.splitlines()[-1].startswith(
        "edgesim.core.errors.EdgesimError: "
        f"backend: a worker process died as it loaded {script}, which every worker does"
    )
    assert 'below a line `if __name__ == "__main__":`' in err.splitlines()[-1]
    assert err.count("Traceback") == 2  # of the parent alone, and its cause


@full
@pytest.mark.workers
@pytest.mark.process
def test_too_few_file_descriptors_are_one_line(here: Path) -> None:
    words = f"ulimit -n 32; exec {sys.executable} -m edgesim run scenario.toml --workers 12 --quiet --out run"
    done = subprocess.run(
        ["bash", "-c", words], env={**os.environ, "PYTHONPATH": ROOT}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last == "error: backend: cannot start 12 processes: Too many open files"
    assert "Traceback" not in done.stderr


@pytest.mark.workers
def test_a_fleet_of_hundreds_is_trained_on_workers(here: Path) -> None:
    """What each device holds crosses to the processes in one piece: as many open files as devices are too many."""
    scenario = {**tomllib.loads(TINY), "data": "digits", "backend": "workers"}
    scenario["fleet"] = [{**scenario["fleet"][0], "count": 400}]
    assert edgesim.run(scenario).manifest["status"] == "finished"
