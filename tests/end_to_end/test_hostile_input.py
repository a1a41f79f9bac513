"""Input that is out of all measure, or meant to do harm: one short line, soon, and nothing is run that it names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import edgesim
from edgesim.core.errors import ConfigError
from edgesim.records.manifest import sealed
from tests.calling import TINY, call
from tests.sizes import full, thinned

NULL = ("backend='null'", "partition={name='sizes', samples_per_device=50}")
OUTAGE = "failures={name='link_outage', "
CPU = "fleet.0.cpu={frequency='2.5 Hz', flops_per_cycle=1}"
PEERS = ("method='dfedavg'", "selection='all'")
VALIDATE = ["validate", "scenario.toml", "--set", "method='mine:Mine'"]


def validate(*overrides: str) -> str:
    """Return the line with which a changed tiny scenario is refused, soon."""
    started_s = time.process_time()
    done = call("validate", "scenario.toml", *(word for change in overrides for word in ("--set", change)))
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert time.process_time() - started_s < 20
    return done.err.removeprefix("error: ").strip()


# --- files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "nested",
    ["a = " + "[" * 900 + "]" * 900, "a" + ".a" * 100 + " = 1", "a" + ".a" * 90_000 + " = 1", "a = " + "{a=" * 900],
)
def test_brackets_in_brackets(here: Path, nested: str) -> None:
    (here / "scenario.toml").write_text(nested + "\n")
    line = validate()
    assert line.startswith(("scenario.toml: not valid TOML: ", "a.a.a"))
    assert (
        line.endswith(("nested too deeply", "a key of more than 200 parts", "nested more than 32 levels deep"))
        and len(line) < 300
    )


def test_a_number_of_thousands_of_digits(here: Path) -> None:
    (here / "scenario.toml").write_text(TINY.replace("seed = 1", "seed = 1" + "0" * 5000))
    assert validate().startswith("scenario.toml: not valid TOML: ")


@pytest.mark.parametrize("key", ["extends", "data = { name = 'npz', file"])
def test_a_zero_byte_in_a_path(here: Path, key: str) -> None:
    text = f'{key} = "a\\u0000b"' + (" }" if "{" in key else "")
    (here / "scenario.toml").write_text(f"{text}\n" + TINY.replace("data =", "# data ="))
    assert "'a\\x00b' is no path: embedded null byte" in validate()


def test_files_that_never_end_or_begin(here: Path) -> None:
    os.mkfifo(here / "pipe.toml")
    for name in ("/dev/zero", "pipe.toml"):
        (here / "scenario.toml").write_text(f"extends = '{name}'\n{TINY}")
        assert f"{name}: cannot be read: is a " in validate()
    (here / "scenario.toml").write_text(TINY)
    assert validate("fleet='/dev/zero'") == "/dev/zero: cannot be read: is a device, a regular file is needed"


def test_a_file_too_large_to_be_read_at_once(here: Path) -> None:
    with (here / "large.toml").open("wb") as file:
        file.truncate(10**9)
    (here / "scenario.toml").write_text(f"extends = 'large.toml'\n{TINY}")
    assert validate().endswith("large.toml: has 1000000000 bytes, at most 67108864 are read")


LONG = "x" * 200_000


@pytest.mark.parametrize(
    "change",
    [f"network.up={LONG}", f"{LONG}=1", f"data={LONG}", f"data={'[' * 50_000}", f"a{'.a' * 5_000}=1", f"{LONG}",
     f"extends={LONG}", f"method={{name='fedavg', {LONG}=1}}", f"network.up=[{'1,' * 50_000}]", f"seed={'9' * 5_000}",
     f"fleet.0.name={LONG}", f"fleet.0.profile={LONG}", f"backend={{name='serial', device='{LONG}'}}",
     f"model={LONG}:{LONG}", f"data={{name='npz', file='{'y/' * 50_000}'}}"],
    ids=lambda change: change[:20],
)  # fmt: skip
def test_a_message_quotes_little_of_a_long_value(here: Path, change: str) -> None:
    line = validate(change)
    assert len(line) < 700 and line.count("x") <= 460


def test_a_file_s_name_cannot_colour_the_message(here: Path) -> None:
    (here / "scenario.toml").write_text("extends = '" + "\u202e" + "x.toml'\n" + TINY)
    assert validate().endswith("\\u202ex.toml: cannot be read: No such file or directory")


# --- code that a file names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["validate", "estimate", "run"])
@pytest.mark.parametrize("name", ["os:system", "subprocess:Popen", "shutil:rmtree"])
def test_only_what_makes_a_network_is_called(here: Path, command: str, name: str) -> None:
    key = {"os:system": "command", "subprocess:Popen": "args", "shutil:rmtree": "path"}[name]
    (here / "folder").mkdir()
    given = {"command": "touch hacked", "args": ["touch", "hacked"], "path": "folder"}[key]
    change = f"model={{name='{name}', {key}={json.dumps(given)}}}"
    code, _, err = call(command, "scenario.toml", "--set", change)
    time.sleep(0.2 if name.startswith("sub") else 0.0)
    assert (code, (here / "hacked").exists(), (here / "folder").exists()) == (2, False, True)
    assert err.startswith("error: model.name: ") and err.count("\n") == 1


@pytest.mark.parametrize(
    "key", ["fleet.0.battery", "fleet.0.cpu.governor", "network", "method", "partition", "failures"]
)
def test_a_class_of_another_kind_is_not_made(here: Path, key: str) -> None:
    text = "from dataclasses import dataclass\nfrom pathlib import Path\n\n@dataclass(frozen=True)\nclass Other:\n"
    (here / "trap.py").write_text(f"{text}    def __post_init__(self):\n        Path('made').touch()\n")
    assert ".name: trap:Other must be a dataclass " in validate(f"{key}='trap:Other'")
    assert not (here / "made").exists()


@pytest.mark.parametrize("key", ["fleet.0.battery", "network", "slowdown", "failures", "availability"])
@pytest.mark.parametrize(
    "name", ["links.analytic:Ideal", "batteries.rechargeable:Rechargeable", "failures.crash:Crash"]
)
def test_a_shipped_class_of_another_kind_is_refused(here: Path, key: str, name: str) -> None:
    keys = {"batt": ", capacity=5", "fail": ", probability=0.5"}.get(name[:4], "")
    if (key[:4], name[:4]) not in {("netw", "link"), ("fail", "fail"), ("flee", "batt")}:
        line = validate(*NULL, f"{key}={{name='edgesim.world.{name}'{keys}}}")
        assert f".name: edgesim.world.{name} must be a dataclass that extends edgesim.world." in line


def test_a_module_that_breaks_or_leaves_when_loaded(here: Path) -> None:
    (here / "breaks.py").write_text("1 / 0\n")
    (here / "leaves.py").write_text("raise SystemExit(0)\n")
    zero = "method.name: cannot import 'breaks:M': ZeroDivisionError: division by zero (breaks.py, line 1)"
    assert validate("method='breaks:M'") == zero
    assert validate("method='leaves:M'") == "method.name: cannot import 'leaves:M': SystemExit: 0 (leaves.py, line 1)"


@pytest.mark.parametrize("words", thinned([["table", "done"], VALIDATE], [VALIDATE]))
@pytest.mark.parametrize(
    "start", [["-m", "edgesim"], pytest.param(["-c", "from edgesim.cli.main import main; main()"], marks=full)]
)
@pytest.mark.process
def test_a_file_beside_takes_no_library_s_place(here: Path, start: list[str], words: list[str]) -> None:
    edgesim.run("scenario.toml", out=here / "done")
    for name in ("pandas", "rich", "torch", "yaml"):
        (here / f"{name}.py").write_text("from pathlib import Path\nPath('hacked').touch()\n")
    (here / "mine.py").write_text("from edgesim.methods.fedavg import FedAvg\n\nclass Mine(FedAvg):\n    pass\n")
    path = os.pathsep.join(p for p in sys.path if p and Path(p) != here)
    words = [sys.executable, *start, *words]
    done = subprocess.run(words, cwd=here, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert not (here / "hacked").exists()


def test_a_golden_is_compared_with_a_run_of_somebody_else_without_running_code(here: Path) -> None:
    study = "name = 'study'\nbase = 'scenario.toml'\ncolumns = ['rounds']\n[axes]\nseed = [1]\n[sizes.quick]\n"
    (here / "study.toml").write_text(study)
    golden = here / "golden"
    golden.mkdir()
    (golden / "golden.toml").write_text("study = '../study.toml'\n")
    assert call("check", golden, "--update").code == 0
    run = here / "theirs"
    edgesim.run("scenario.toml", out=run)
    assert call("check", golden, "--from", run).code == 0
    (here / "trap.py").write_text("from pathlib import Path\nPath('hacked').touch()\n")
    (here / "base.toml").write_text("method = 'trap:Method'\n")
    manifest = json.loads((run / "manifest.json").read_text())
    del manifest["sha256"]  # who forges a manifest makes it anew
    for change in ({"method": {"name": "trap:Method"}}, {"extends": str(here / "base.toml")}, {"fleet": "fleet.csv"}):
        forged = {**manifest, "scenario": {**manifest["scenario"], **change}}
        (run / "manifest.json").write_text(sealed(forged, manifest["files"]))
        code, _, err = call("check", golden, "--from", run)
        assert (code, err) == (2, f"error: {run}: is a run of none of the 1 cells\n")
    assert not (here / "hacked").exists()


# --- without end --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("says", "changes"),
    [
        ("failures.up: a model that takes 0.19488 s over the link of device 0, up for 1e-09 s",
         [OUTAGE + "up='1 ns', down='1 ns'}"]),
        ("failures.up: ",
         [OUTAGE + "up='1 s', down='1 s'}", "network={name='fixed', up='1.5 bit/s', down='1 Mbit/s'}"]),
        ("failures.up: ", [OUTAGE + "up='9 s', down='1 s'}", "network={name='shared', up='1 Mbit/s', down='1 Mbit/s'}",
                           "topology={name='star', server_up='0.01 bit/s'}"]),
        ("slowdown: a job under", ["slowdown={name='markov', idle='1 s', busy='1 s', factor=3}", CPU, "energy='none'"]),
        ("protocol.buffer: ",
         ["method='fedbuff'", "protocol={name='buffered', concurrency=2, buffer=2000000000}"]),
    ],
)  # fmt: skip
def test_what_would_see_no_end_is_refused(here: Path, says: str, changes: list[str]) -> None:
    assert validate(*NULL, *changes).startswith(says)


def test_a_server_that_restarts_all_the_time_merges_nothing(timing: Callable[..., edgesim.Scenario]) -> None:
    for mean in ("1e-9 s", 1e-30):
        failures = [{"name": "server_restart", "mean_time": mean}]
        run = edgesim.run(timing(failures=failures, stop={"rounds": 3}))
        assert (run.jobs["outcome"] == "lost").sum() == 12  # of five, the last arrives when the round is merged
        assert len(run.rounds) == 3


def test_an_estimate_says_what_simulating_takes(timing: Callable[..., edgesim.Scenario]) -> None:
    from edgesim.runs.estimate import estimate

    few, many = (estimate(timing(stop={"rounds": rounds})).totals["host_minutes"] for rounds in (10, 10**9))
    assert 0 < few < 0.1 and many > 1e3


# --- out of memory ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("says", "changes"),
    [
        ("fleet.count: a fleet of 100,000,002 devices", [*NULL, "fleet.0.count=100000000"]),
        ("peers.name: a graph of 100,002 devices that hear 100,001",
         [*NULL, *PEERS, "fleet.0.count=100000", "peers='full'"]),
        ("peers.name: ", [*NULL, *PEERS, "fleet.0.count=100000", "peers={name='random', degree=90000}"]),
        ("peers.name: ", [*NULL, *PEERS, "fleet.0.count=100000", "peers={name='gossip_match', size=90000}"]),
        ("peers.name: ", [*NULL, *PEERS, "fleet.0.count=100000", "peers={name='star_of_stars', hubs=90000}"]),
        ("data.resize: 4 images of (100000, 100000)",
         ["data={name='image_folder', root='.', resize=[100000, 100000]}"]),
        ("data.side: ", ["data={name='ham10000_like', side=100000}"]),
        ("data.samples_per_device: ", ["data={name='fedpns_synthetic', samples_per_device=1000000000}"]),
        ("backend.workers: 100,000 processes", ["backend={name='workers', workers=100000}"]),
    ],
)  # fmt: skip
def test_what_does_not_fit_into_memory_is_refused(
    here: Path, monkeypatch: pytest.MonkeyPatch, says: str, changes: list[str]
) -> None:
    monkeypatch.setattr("edgesim.core.limits.memory_bytes", lambda: 32e9)
    for split in ("train", "test"):
        for label in ("a", "b"):
            folder = here / split / label
            folder.mkdir(parents=True)
            for number in range(2):
                Image.fromarray(np.zeros((4, 4, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    line = validate(*changes)
    assert line.startswith(says) and line.endswith("GB of memory, 32 GB are here")


def test_memory_is_that_of_this_machine_or_of_its_limits() -> None:
    from edgesim.core.limits import check_memory, memory_bytes

    total = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    assert 2**26 < memory_bytes() <= total
    check_memory("key", memory_bytes(), "all of it")
    for nbytes in (1.01 * memory_bytes(), float("nan"), float("inf")):
        with pytest.raises(ConfigError, match=r"^key: more would take about"):
            check_memory("key", nbytes, "more")


# --- types and names ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("says", "change"),
    [
        ("fleet.0.cpu.efficiency: must be a number, got True",
         "fleet.0.cpu={frequency=1e9, flops_per_cycle=1, efficiency=true}"),
        ("fleet.0.cpu.efficiency: must be a number, got '0.5'",
         "fleet.0.cpu={frequency=1e9, flops_per_cycle=1, efficiency='0.5'}"),
        ("method.widths.0: must be a whole number, got True", "method={name='fedpmt', widths=[true]}"),
        ("partition.balance: must be true or false, got 0.0",
         "partition={name='dirichlet_label', beta=1, balance=0.0}"),
        ("network.latency: '٣ s' is not a time", "network.latency='٣ s'"),
        ("backend.device: cannot compute on 'toaster' here: ", "backend={name='serial', device='toaster'}"),
        ("backend.device: cannot compute on 'cuda:77' here: ", "backend={name='serial', device='cuda:77'}"),
        ("backend.device: cannot compute on 'cuda:77' here: ", "backend={name='workers', device='cuda:77'}"),
        ("name: must be of printable characters, got 'a\\u202eb'", 'name="a\\u202eb"'),
        ("fleet.0.name: must be of printable characters, got 'a\\x07b'", 'fleet.0.name="a\\u0007b"'),
        ("network.down: a download on device 0 of fleet.0 takes inf s", "network.down=5e-324"),
        ("partition.samples_per_device: must be less than or equal to 2147483647",
         "partition={name='sizes', samples_per_device=1000000000000000000}"),
        ("data.name: unknown data 'csv'; did you mean 'table'? (`edgesim list data`", "data=csv"),
        ("protocol.name: unknown protocol 'async'; did you mean 'buffered'? (known", "protocol=async"),
        ("network.name: unknown network 'csv'; did you mean 'trace'? (`edgesim list network`", "network=csv"),
        ("network.up: '6Mbps' is not a data rate; did you mean '6 Mbit/s'? give", "network.up=6Mbps"),
        ("network.up: '20 Mb/s' is not a data rate; did you mean '20 Mbit/s' or '20 MB/s'? give", "network.up=20 Mb/s"),
        ("network.latency: '1m' is not a time; did you mean '1 min'? give", "network.latency=1m"),
        ("stop.energy: '1m' is not an energy; give", "stop.energy=1m"),
        ("stop.bytes: '1 GJ' is not an amount of data; give", "stop.bytes=1 GJ"),
        ("budget: unknown key; did you mean 'stop'? (`edgesim schema`", "budget.time=2 h"),
    ],
)  # fmt: skip
def test_values_that_are_nearly_right(here: Path, says: str, change: str) -> None:
    assert validate(change).startswith(says)


def test_infinity_is_written_as_text_in_manifests() -> None:
    scenario = edgesim.load({**SMALL, "training": {"clip_norm": float("inf")}})
    assert scenario.canonical()["training"]["clip_norm"] == "inf"
    assert edgesim.load(scenario.canonical()) == scenario


SMALL = {
    "partition": "sizes",
    "model": "cnn_cifar10",
    "method": "fedavg",
    "backend": "null",
    "stop": {"rounds": 1},
    "fleet": [{"cpu": {"flops_per_s": 1e9}}],
}


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["availability={name='bernoulli', p=8e-11}"], "availability.p: looking again until some device answers"),
        (
            ["fleet.0.cpu={flops_per_s=1e-12}", OUTAGE + "up='10 min', down='20 s'}"],
            "failures.down: 20 s is too short to be told",
        ),
        (
            [
                OUTAGE + "up='10 min', down='20 s'}",
                "network={name='shared', up='5 Mbit/s', down='5 Mbit/s'}",
                "topology={name='tree', edge_servers=1, edge_up='1 Gbit/s', edge_latency='1e18 s'}",
            ],
            "failures.down: 20 s is too short to be told",
        ),
        (
            [OUTAGE + "up='1 s', down='1 s'}", "network={name='shared', up='5 Mbit/s', down='2 bit/s'}"],
            "failures.up: a round in which ",
        ),
        (["fleet.0.battery={capacity=5e-324}"], "fleet.0.battery.capacity: device 0 of the block restarts with 0 J"),
        (
            ["fleet.0.battery={capacity=20, charge=1e-13, windows=[[0, 3600]]}"],
            "fleet.0.battery.charge: device 0 of the block needs 4e+13 s to charge the 4 J with which it restarts",
        ),
        (["fleet.0.battery={capacity=1e-5}"], "fleet.0.battery.capacity: device 0 of the block restarts with 2e-06 J"),
    ],
)
def test_what_hardly_comes_or_goes_is_refused(here: Path, overrides: list[str], says: str) -> None:
    assert validate(*NULL, "energy={name='power', idle='1 W', busy='2 W'}", *overrides).startswith(says)


def test_a_network_larger_than_memory_is_refused_where_it_would_be_trained(here: Path) -> None:
    assert validate("model={name='cnn_digits', projection=1000000000}").startswith("model: CnnDigits with ")


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("coordinator='sync'", "coordinator: unknown key; it is called 'protocol' now (`edgesim schema` lists all "),
        ("method={name='feddrop', units='all'}", "method.units: unknown key; it is called 'channels' now (allowed: "),
        (
            "method={name='afd', absent='keep_old'}",
            "method.absent: must be 'average_over_holders' or 'include_absent', got 'keep_old'; "
            "it is called 'include_absent' now",
        ),
    ],
)
def test_what_was_renamed_is_refused_with_its_new_name(here: Path, override: str, says: str) -> None:
    assert validate(*NULL, override).startswith(says)
