"""Ray: training and studies on a cluster equal those in this process, also when a node is killed meanwhile."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import edgesim
from edgesim.core.errors import ConfigError, EdgesimError
from edgesim.execution import ray_cluster
from edgesim.execution.ray_cluster import RayRows
from edgesim.files.atomic import checkpoint_of
from edgesim.records.lock import lock_of
from edgesim.studies.runs import Planned, plan, run_all
from edgesim.studies.study import load_study
from tests.calling import TINY, call, names
from tests.contracts.support import COORDINATORS, NORMED, PLUGINS, mixed_scenario, prepare, results_of
from tests.execution.test_processes import answers, are_gone, fail, started, vanish, wait_until
from tests.runs.ray_nodes import Nodes, two_nodes
from tests.sizes import full

STUDY = """
name = "tiny"
base = "base.toml"
columns = ["round_s"]

[axes]
method = ["fedavg", "fedprox"]
seed = [1, 2, 3]
"""
ON_RAY = {"name": "ray", "workers": 2}


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    """A cluster that the test is connected to."""
    with two_nodes(monkeypatch) as found:
        yield found


@pytest.fixture
def study(here: Path) -> Path:
    """The current folder, with a study of six cells that take a moment each."""
    (here / "base.toml").write_text(TINY.replace("rounds = 1", "rounds = 100"))
    (here / "study.toml").write_text(STUDY)
    return here


def planned(out: Path) -> list[Planned]:
    """Return the cells of the study."""
    return plan(load_study(Path("study.toml")), Path("study.toml"), "quick", [], out)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the tables and weights of all runs in a folder."""
    kinds = {".parquet", ".csv", ".safetensors"}
    files = [path for path in folder.rglob("*") if path.suffix in kinds and ".answers" not in path.parts]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


# --- without Ray ------------------------------------------------------------------------------------------------------


@pytest.fixture
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Ray be missing."""
    monkeypatch.setitem(sys.modules, "ray", None)  # an import fails
    monkeypatch.setattr(ray_cluster, "find_spec", lambda name: None if name == "ray" else find_spec(name))


@pytest.mark.usefixtures("without_ray")
def test_where_ray_is_missing_it_says_how_to_get_it(study: Path) -> None:
    says = 'error: backend: ray is not installed; pip install "edgesim[ray]"'
    for command in ("validate", "run"):
        code, _, err = call(command, "scenario.toml", "--set", "backend=ray")
        assert (code, err.splitlines()[-1]) == (2, says)
    code, _, err = call("study", "run", "study.toml", "--backend", "ray")
    assert (code, err) == (2, says.replace("backend:", "--backend:") + "\n")
    assert "ray" in call("list", "backend").out
    assert "address" in call("list", "backend", "ray").out


def test_bad_options_of_a_study(study: Path) -> None:
    code, _, err = call("study", "run", "study.toml", "--backend", "dask")
    assert code == 2 and err.startswith("error: Invalid value for '--backend': ")
    assert "'dask' is not one of 'workers', 'ray'" in err
    code, _, err = call("study", "run", "study.toml", "--address", "auto")
    assert (code, err) == (2, "error: --address: needs --backend ray\n")


def test_machines_have_to_have_the_same_versions() -> None:
    here = {package: ray_cluster.version(package) for package in ray_cluster.SAME}
    assert {"edgesim", "torch"} <= here.keys()
    ray_cluster.check_versions(here)
    with pytest.raises(EdgesimError, match=rf"^machine .* has torch {re.escape(here['torch'])}, which has to be 1\.0,"):
        ray_cluster.check_versions({**here, "torch": "1.0"})


# --- a run ------------------------------------------------------------------------------------------------------------


METHODS = [
    ("fedavg", "sync"),
    ("fedasync", "buffered"),
    ("scaffold", "sync"),  # devices keep something
    ("dpsgd", "sync"),  # among peers
    (f"{PLUGINS}:Proximal", "deadline"),
]


@full
@pytest.mark.workers
def test_a_cluster_agrees_with_serial(nodes: Nodes) -> None:
    """Tables, weights and memories are equal; a connection that was there stays open."""
    for name, protocol in METHODS:
        outcomes = []
        for backend in ("serial", ON_RAY):
            scenario = mixed_scenario(method=name, model=NORMED, protocol=COORDINATORS[protocol], backend=backend)
            simulation = prepare(scenario)
            simulation.run()
            simulation.learner.backend.close()
            outcomes.append(results_of(simulation))
        assert outcomes[1] == outcomes[0], name


def linger(given: Any, *models: Any) -> Any:
    """Do an item; on one node of the cluster so late that it is killed before."""
    import ray

    node, told, work, item = given
    if ray.get_runtime_context().get_node_id() == node:
        told.touch()
        time.sleep(100)
    if not told.exists():
        time.sleep(0.2)  # so that the other node is needed
    return work(item, *models)


@full
@pytest.mark.kills
@pytest.mark.workers
def test_a_run_goes_on_where_a_node_is_lost(nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its process was at is done again on the node that is left; nothing is different for it."""
    scenario = {"method": "fedavg", "model": NORMED, "stop": {"rounds": 30}}
    simulation = prepare(mixed_scenario(**scenario))
    simulation.run()
    given, told, give = count(), tmp_path / "lingers", ray_cluster.RayPool.give

    def giving(pool: ray_cluster.RayPool, name: Any, work: Any, item: Any, *models: Any) -> None:
        next(given)
        give(pool, name, linger, (nodes.second.node_id, told, work, item), *models)

    def kill() -> int:
        wait_until(told.exists, at_most_s=100)
        nodes.kill()
        return next(given)

    monkeypatch.setattr(ray_cluster.RayPool, "give", giving)
    again = prepare(mixed_scenario(**scenario, backend=ON_RAY))
    with ThreadPoolExecutor() as beside:
        killed = beside.submit(kill)
        again.run()
    again.learner.backend.close()
    assert killed.result() < 150 < next(given)  # in the midst of it
    assert results_of(again) == results_of(simulation)


@full
@pytest.mark.kills
@pytest.mark.workers
def test_what_dies_time_and_again_is_told(nodes: Nodes) -> None:
    """A process that dies is replaced so many times, and the message says what it was at."""
    with closing(ray_cluster.RayCluster("backend", 2)):
        pool = ray_cluster.RayPool("pool", 2, len, ["abc"], doing=lambda item: f"item {item}")
        assert answers(pool, abs, [-1, 2, -3]) == [1, 2, 3]
        with pytest.raises(ValueError, match="not 1") as error:
            answers(pool, fail, [1])
        assert "in fail" in error.value.__notes__[0]
        with pytest.raises(
            EdgesimError, match=r"^pool: processes of the cluster died 5 times at item 7; the last: ActorDiedError: "
        ):
            answers(pool, vanish, [7])
        assert not pool.is_busy()


@full
def test_nobody_at_the_address() -> None:
    pytest.importorskip("ray")
    with pytest.raises(ConfigError, match=r"^backend: no Ray cluster answers at '127\.0\.0\.1:1': .*refused"):
        ray_cluster.RayCluster("backend", 2, "127.0.0.1:1")
    with pytest.raises(ConfigError, match=r"^backend: a Ray address is HOST:PORT or auto, .* got 'ray://there:1'$"):
        ray_cluster.RayCluster("backend", 2, "ray://there:1")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_service_is_gone_that_answers_no_more(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried once a second, and gone after ten seconds without an answer; one out of reach is never gone."""
    now_s = [100.0]
    monkeypatch.setattr(ray_cluster, "monotonic", lambda: now_s[0])

    def is_gone(service: ray_cluster.Service, after_s: float) -> bool:
        now_s[0] += after_s
        return service.is_gone()

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    port = listening.getsockname()[1]
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    service = ray_cluster.Service("head", address)
    assert not is_gone(service, 1000)
    assert not any(is_gone(service, 0.3) for _ in range(3))  # that is too soon for another try
    listening.setblocking(False)
    for _ in range(2):
        listening.accept()[0].close()
    with pytest.raises(BlockingIOError):
        listening.accept()

    listening.close()
    assert [is_gone(service, after_s) for after_s in (1, 1, 8, 0.5)] == [False] * 4  # 9.5 s after the first try in vain
    assert not ray_cluster.Service("head", address).is_gone()
    with closing(socket.create_server((host, port), family=family)):
        assert not is_gone(service, 1)
    assert [is_gone(service, after_s) for after_s in (1, 9.5, 0.4, 1)] == [False, False, False, True]
    unknown = ray_cluster.Service("head", address)
    assert [is_gone(unknown, 10) for _ in range(3)] == [False] * 3


def _of_this_session(process: int, name: str = "") -> list[int]:
    """Return the processes of a session, its first one included; `name`: how the names begin."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            _, _, rest = (folder / "stat").read_text().partition("(")
            named, _, numbers = rest.rpartition(")")
            if int(numbers.split()[3]) == process and named.startswith(name):
                found.append(int(folder.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


@full
@pytest.mark.kills
@pytest.mark.workers
@pytest.mark.process
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_cluster_of_its_own(here: Path, how: signal.Signals) -> None:
    """It ends with the process that started it, also when that is killed; Ctrl-C keeps what was done."""
    pytest.importorskip("ray")
    words = ["run", "scenario.toml", "--out", "run", "--set", "stop.rounds=2000", "--set", "backend=ray"]
    process = started("-m", "edgesim", *words)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("round ")
    all_of_it = _of_this_session(process.pid)
    assert len(all_of_it) > 4
    if how == signal.SIGINT:
        os.killpg(process.pid, how)  # as in a terminal
    else:
        process.send_signal(how)
    process.communicate(timeout=60)
    wait_until(lambda: are_gone(all_of_it), at_most_s=180)  # Ray's agents look for their parent every now and then
    if how != signal.SIGKILL:
        assert process.returncode == 128 + how
        assert edgesim.open("run").manifest["status"] == "interrupted"


def lose(process: subprocess.Popen[str], service: str) -> str:
    """Kill a process of Ray's that a command has started, and what works there; return the last line it prints."""
    assert _of_this_session(process.pid, service)
    for name in (service, "ray::_Process"):
        for each in _of_this_session(process.pid, name):
            os.kill(each, signal.SIGKILL)
    try:
        _, err = process.communicate(timeout=40)  # Ray itself would end the command after 60 s
    finally:
        for each in _of_this_session(process.pid):  # also Ray's agents, which would end a little later
            os.kill(each, signal.SIGKILL)
    assert process.returncode == 2 and "Traceback" not in err
    return err.splitlines()[-1]


GONE = r"the Ray cluster is gone: its {} [0-9.]+:\d+ has not answered for 10 s; what was finished is kept"


@full
@pytest.mark.kills
@pytest.mark.workers
@pytest.mark.process
def test_a_run_whose_head_is_killed_ends_with_a_line_and_goes_on(here: Path) -> None:
    """The same command comes to the tables and weights of a run in one process."""
    pytest.importorskip("ray")
    words = ["run", "scenario.toml", "--set", "stop.rounds=1000"]
    on_ray = [*words, "--out", "run", "--checkpoint", "1 s", "--set", "backend=ray"]
    process = started("-m", "edgesim", *on_ray)
    checkpoint = checkpoint_of(Path("run"))
    wait_until(checkpoint.exists)
    assert re.fullmatch(f"error: backend: {GONE.format('head')}", lose(process, "gcs_server"))
    assert edgesim.open("run").manifest["status"] == "failed" and checkpoint.exists()
    assert 0 < edgesim.open("run").manifest["rounds"] < 1000
    assert call(*on_ray, "--quiet").code == 0
    assert edgesim.open("run").manifest["known"]["answers"] > 0
    assert call(*words, "--out", "alone/run", "--quiet").code == 0
    assert contents(Path("run")) == contents(Path("alone/run")) != {}


# --- a study ----------------------------------------------------------------------------------------------------------


@full
@pytest.mark.workers
def test_a_study_on_a_cluster_of_its_own(study: Path) -> None:
    """Its runs are those of this process, byte for byte; cells share answers, and nothing else is left."""
    pytest.importorskip("ray")
    assert call("study", "run", "study.toml", "--runs", "serial", "--only", "seed=1").code == 0
    (study / "study.toml").write_text(
        STUDY.replace("[axes]", "[axes.network]\nslow = []\nfast = ['network=ideal']\n\n[axes]")
    )
    code, _, err = call(
        "study", "run", "study.toml", "--runs", "cluster", "--only", "seed=1", "--backend", "ray", "--workers", "1"
    )
    assert (code, err.splitlines()[0], err.splitlines()[-1][:7]) == (0, "0 of 4 cells are done", "4 of 4:")
    cells = names(Path("cluster"))
    assert len(cells) == 4 and all("seed=1" in cell for cell in cells)
    jobs = {cell: edgesim.open(f"cluster/{cell}").manifest["known"]["jobs"] for cell in cells}
    assert sorted(map(bool, jobs.values())) == [False, False, True, True]  # of each method one trained


@full
@pytest.mark.kills
@pytest.mark.workers
def test_a_study_goes_on_where_a_node_is_lost(study: Path, nodes: Nodes) -> None:
    """The cell that its process was at is run again on the node that is left; all equal those of this process."""
    assert call("study", "run", "study.toml", "--runs", "serial").code == 0
    cells = planned(study / "cluster")
    from edgesim.studies.on_ray import ray_pool as pool_of

    with pool_of(cells, 2, None) as pool, ThreadPoolExecutor() as beside:
        cut_off = beside.submit(_kill_at_work, nodes, cells)
        faults = [step.fault for step in run_all(cells, 2, fresh=True, pool=pool)]
    assert not cut_off.result() and set(faults) == {""}
    assert contents(study / "cluster") == contents(study / "serial") != {}
    assert all(each.is_done() for each in cells)


def _kill_at_work(nodes: Nodes, cells: list[Planned]) -> bool:
    """Kill a node when both are at a cell; return whether the cell had been finished when its process was gone."""
    at_work: dict[int, Planned] = {}

    def both() -> bool:
        at_work.clear()
        for each in cells:
            with suppress(FileNotFoundError):
                match = re.match(r"process (\d+) on ", lock_of(each.folder).read_text())
                at_work.update({int(match[1]): each} if match else {})
        return len(at_work) == 2

    wait_until(both)
    nodes.kill()
    wait_until(lambda: any(are_gone([process]) for process in at_work))
    return any(each.folder.exists() for process, each in at_work.items() if are_gone([process]))


@full
@pytest.mark.kills
@pytest.mark.workers
@pytest.mark.process
@pytest.mark.parametrize("service, told", [("gcs_server", "head"), ("raylet", "raylet on this machine")])
def test_a_study_whose_cluster_is_killed_keeps_the_cells_that_ended(study: Path, service: str, told: str) -> None:
    pytest.importorskip("ray")
    words = ["study", "run", "study.toml", "--runs", "cells"]
    process = started("-m", "edgesim", *words, "--backend", "ray", "--workers", "1")
    assert process.stderr is not None
    while not process.stderr.readline().startswith("1 of 6: "):
        assert process.poll() is None
    assert re.fullmatch(f"error: --backend ray: {GONE.format(told)}", lose(process, service))
    kept = list((study / "cells").glob("method=*"))
    assert 0 < len(kept) < 6
    code, _, err = call(*words)
    assert (code, err.splitlines()[0]) == (0, f"{len(kept)} of 6 cells are done")
    assert len(names(study / "cells")) == 6


def test_machines_have_to_see_the_folder(tmp_path: Path) -> None:
    from edgesim.studies.on_ray import start

    with pytest.raises(EdgesimError, match=rf"^{tmp_path}: machine .* does not see this folder; "):
        start(tmp_path / ".seen-0", {}, RayRows(None))
